# SPDX-License-Identifier: MIT
"""Commands on the pages, as the programs' own command lines read them. Nothing is run."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.cli.pal import pal
from slurm_pal.cli.pal_profile import pal_profile
from slurm_pal.cli.pal_rebalance import pal_rebalance
from slurm_pal.profiling.node.bench import parser as bench_parser
from slurm_pal.submit import alternatives, elastic, saving
from slurm_pal.submit.argv import PAL_FLAGS, PAL_OPTIONAL, PAL_VALUES, parse
from slurm_pal.submit.choice import choice, moving, observing, sensitivity
from slurm_pal.submit.script import Script, scan

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, click.Command] = {"pal": pal, "pal-profile": pal_profile, "pal-rebalance": pal_rebalance}
_FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_BEFORE = (
    "do",
    "then",
    "else",
    "while",
    "until",
    "if",
    "!",
    "eval",
    "exec",
    "time",
    "nice",
    "sudo",
    "srun",
    "env",
    "{",
)
_COMMENT = re.compile(r"""^((?:'[^']*'|"[^"]*"|[^'"#]|(?<=\S)#)*)(?:(?<!\S)#.*)?$""")
_ENDS = re.compile(r"[;&|()<>]+")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All pages but the history, which names what has been renamed since."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/man").glob("*.md")),
    ]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(str(page.relative_to(ROOT)), line, found[2], found[3])


def spans(page: Path) -> Iterator[str]:
    """The inline code of a page."""
    text = _FENCE.sub("", page.read_text())
    yield from _SPAN.findall(re.sub(r"(?<!\n) *\n *(?![\n|#-])", " ", text))  # a line may end within


def commands(text: str) -> Iterator[list[str]]:
    """Our programs' command lines in the text of a shell, as words.

    Brackets around options that may be left out are taken away; what the shell would put in the place of a variable
    is 1, or nothing where it may be several words.
    """
    text = re.sub(r"\[(--?[^\]]*)\]", r"\1", text.replace("\\\n", " "))
    while (at := text.find("$(")) >= 0:
        end = _closing(text, at + 1)
        yield from commands(text[at + 2 : end])
        text = f"{text[:at]}$X{text[end + 1 :]}"
    for line in text.splitlines():
        line = re.sub(r'"\$\{?\w+[^"]*"|(?<==)\$\w+', "1", line)
        words: list[str] = []
        for word in [*_split(line), ";"]:
            if not _ENDS.fullmatch(word):
                words.append(word)
                continue
            if ours := _ours(words):
                yield ours
                wrapped = next((b for a, b in itertools.pairwise(ours) if a == "--wrap"), "")
                yield from commands(wrapped)
            words = []


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    raise ValueError(f"no end of $( in {text[start:]!r}")


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(_COMMENT.sub(r"\1", line), posix=True, punctuation_chars=True)
    lexer.commenters = ""
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quote that goes on in the next line
        if re.search(rf"\b({'|'.join(PROGRAMS)}|palsub) ", line):
            raise ValueError(f"quotes in {line!r}") from None
        return []


def _ours(words: Sequence[str]) -> list[str]:
    """The words from the program's name on, without unquoted variables; [] for another program."""
    rest = list(words)
    while rest:
        name = rest[0].rpartition("/")[2]
        if "=" not in rest[0] and name in (*PROGRAMS, "palsub"):
            return [name, *(word for word in rest[1:] if not word.startswith("$"))]
        if not (rest[0] in _BEFORE or "=" in rest[0] or rest[0].startswith("-") or rest[0] == "slurm"):
            return []
        rest = rest[1:]
    return []


def complaint(words: Sequence[str]) -> str:
    """What the program says about its command line; "" for nothing."""
    if words[0] == "palsub":
        try:
            line = parse(words[1:])
            return line.unsure or "; ".join(_warnings(line_script=None, words=words[1:]))
        except UsageError as error:
            return str(error)
    if words[:2] == ["pal-profile", "bench"]:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                bench_parser().parse_args(words[2:])
        except SystemExit as ended:
            return said.getvalue() if ended.code else ""
        return ""
    return _by_click(PROGRAMS[words[0]], words[0], list(words[1:]))


def _by_click(command: click.Command, name: str, words: list[str]) -> str:
    parent = None
    try:
        while True:
            with contextlib.redirect_stdout(io.StringIO()):
                context = command.make_context(name, words, parent)
            if not isinstance(command, click.Group):
                return ""
            rest = [
                *context._protected_args,
                *context.args,
            ]  # what a group has not read, as click's own invoke takes it
            if not rest:
                return ""
            found, inner, words = command.resolve_command(context, rest)
            if found is None or inner is None:
                return f"no command {rest[0]}"
            name, command, parent = found, inner, context
    except click.exceptions.Exit:
        return ""
    except (click.ClickException, UsageError) as error:
        why = error.format_message() if isinstance(error, click.ClickException) else error
        return f"{' '.join((name, *words))}: {why}"


def _warnings(line_script: Script | None, words: Sequence[str] = ()) -> list[str]:
    """What palsub warns of, for a command line and the script's #PAL lines."""
    line, script, said = parse(words), line_script, list[str]()
    chosen, pal_lines = choice(line), line_script.pal if line_script else ()
    config = Config()
    sensitivity(chosen, {}, pal_lines, {}, said)
    observing(chosen, pal_lines, 0.0, said)
    moves = moving(chosen, {}, pal_lines, said)
    if elastic.asked(chosen, {}, script) and script is not None:
        elastic.checked(elastic.asked(chosen, {}, script), line, {}, script)
    alternatives.wanted(chosen, {}, line, script, config, 0.0, said)
    if script is not None or chosen.checkpoint:
        saving.saving(chosen, {}, line, script, moves, int(config.number("submit", "save_times_max")), said)
    return said


def script_complaint(text: str) -> str:
    """What palsub would warn of in a job script; "" for nothing."""
    script = scan(text.encode())
    try:
        said = _warnings(script)
    except UsageError as error:
        said = [str(error)]
    end = script.options
    return "; ".join(filter(None, (script.doubt, end.unsure, *said)))


def known_options() -> set[str]:
    """The option words of all our programs."""
    found = {f"--pal-{name}" for name in (*PAL_VALUES, *PAL_OPTIONAL, *PAL_FLAGS)}
    found |= {word for action in bench_parser()._actions for word in action.option_strings}
    todo = [*PROGRAMS.values()]
    while todo:
        command = todo.pop()
        for one in command.params:
            found |= {*one.opts, *one.secondary_opts}
        todo += command.commands.values() if isinstance(command, click.Group) else ()
    return found


def span_complaint(span: str) -> str:
    """Of inline code: commands that do not exist, and options that the command has not; "" for nothing."""
    words = re.sub(r"[\[\]]", " ", span).partition(" -- ")[0].split()  # what follows is another program's
    if not words or words[0] not in (*PROGRAMS, "palsub"):
        return ""
    if words[0] == "palsub":
        wrong = [word for word in words if word.startswith("--pal-") and _name(word) not in known_options()]
        return ", ".join(wrong)
    reached: list[click.Command] = [PROGRAMS[words[0]]]
    own = {"--help", "--version"}
    for word in words[1:]:
        groups = [one for one in reached if isinstance(one, click.Group)]
        if not groups or word.startswith("-") or not re.match(r"[a-z]", word):
            break
        own |= {spelt for one in reached for each in one.params for spelt in each.opts}
        missing = [name for name in word.split("|") if not any(name in one.commands for one in groups)]
        if missing:
            return f"no command {', '.join(missing)}"
        reached = [one.commands[name] for name in word.split("|") for one in groups if name in one.commands]
    own |= {spelt for one in reached for each in one.params for spelt in (*each.opts, *each.secondary_opts)}
    if words[:2] == ["pal-profile", "bench"]:
        own |= {word for action in bench_parser()._actions for word in action.option_strings}
    given = [option for word in words[1:] for option in word.split("|") if re.match(r"--?[a-zA-Z]", option)]
    return ", ".join(option for option in given if _name(option) not in own)


def _name(word: str) -> str:
    return re.split(r"[=\[|]", word.rstrip(",.;:"), maxsplit=1)[0]
