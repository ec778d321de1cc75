# SPDX-License-Identifier: MIT
"""Man pages and completions of the installed programs, made from their own help: a wheel has no others."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from slurm_pal import __version__
from slurm_pal.admin.setup_plan import SHELLS
from slurm_pal.base.config import KEYS, TABLES
from slurm_pal.submit.choice import HELP

_CLASSES: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_SUMMARY = {
    "pal": "look at GPU variability and at what was done for a job",
    "pal-profile": "measure the GPUs of a Slurm cluster",
    "pal-rebalance": "retarget pending jobs and move running ones",
    "palsub": "submit a batch job to Slurm, placed by GPU variability",
    "pal.toml": "settings of slurm-pal",
}
_WIDTH = 78


def texts() -> dict[str, str]:
    """Path below a prefix -> text, of all man pages and completions."""
    from slurm_pal.cli.pal import pal
    from slurm_pal.cli.pal_profile import pal_profile
    from slurm_pal.cli.pal_rebalance import pal_rebalance

    programs = {"pal": pal, "pal-profile": pal_profile, "pal-rebalance": pal_rebalance}
    found = {"share/man/man1/palsub.1": _page("palsub", 1, [("DESCRIPTION", HELP)])}
    for name, command in programs.items():
        found[f"share/man/man1/{name}.1"] = _page(name, 1, _helps(name, command))
    found["share/man/man5/pal.toml.5"] = _page("pal.toml", 5, _settings())
    for name, command in programs.items():
        for shell, place in SHELLS.items():
            found[place.format(name)] = _completion(name, command, shell)
    return found


def _completion(name: str, command: click.Command, shell: str) -> str:
    made = _CLASSES[shell](command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
    return ShellComplete.source(made) + "\n"  # bash's own would start bash to learn its version


def _helps(name: str, command: click.Command, above: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """A heading and the help of a command and of all that it contains; earlier names are not shown."""
    context = click.Context(command, above, name, max_content_width=_WIDTH, terminal_width=_WIDTH)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            if inner is not None and not inner.hidden:
                yield from _helps(word, inner, context)


def _settings() -> Iterator[tuple[str, str]]:
    yield (
        "DESCRIPTION",
        "/etc/slurm/pal.toml, and pal.d/*.toml beside it; `pal doctor` shows what is in force. Below: the setting,\n"
        "its default, what it means.\n",
    )
    for section, keys in KEYS.items():
        lines = [f"{name} = {_value(key.default)}\n    {key.meaning}" for name, key in keys.items()]
        yield f"[{section}]", "\n".join(lines) + "\n"
    yield "SECTIONS OF THE SITE'S OWN NAMES", ", ".join(f"[{name}]" for name in TABLES) + "\n"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _page(name: str, section: int, parts: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> str:
    """One man page (man(7)): texts as they stand, none of their characters a command of roff."""
    lines = [
        f'.TH "{name.upper()}" {section} "" "slurm-pal {__version__}"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(_SUMMARY[name])}",
    ]
    for heading, text in parts:
        lines += [f".SH {_escaped(heading)}", ".nf", *map(_escaped, text.rstrip("\n").split("\n")), ".fi"]
    return "\n".join(lines) + "\n"


def _escaped(line: str) -> str:
    text = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("~", "\\(ti").replace("^", "\\(ha")
    return f"\\&{text}" if text.startswith(".") else text
