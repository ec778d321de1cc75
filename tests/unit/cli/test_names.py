# SPDX-License-Identifier: MIT
"""One name for one option in all commands; earlier ones work and are not shown."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from slurm_pal.cli.aliases import Renamed, renamed
from slurm_pal.cli.pal import pal
from slurm_pal.cli.pal_profile import pal_profile
from slurm_pal.cli.pal_rebalance import pal_rebalance

PROGRAMS: dict[str, click.Command] = {"pal": pal, "pal-profile": pal_profile, "pal-rebalance": pal_rebalance}


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word, inner in command.commands.items():
            yield from commands(f"{name} {word}", inner)


ALL = [found for name, program in PROGRAMS.items() for found in commands(name, program)]


def options(command: click.Command) -> dict[str, click.Option]:
    return {spelt: one for one in command.params if isinstance(one, click.Option) for spelt in one.opts}


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_a_letter_and_a_word_are_one_option_everywhere(name: str, command: click.Command) -> None:
    found = options(command)
    for letter, word in (("-w", "--nodelist"), ("-y", "--yes"), ("-P", "--parsable2")):
        assert found.get(letter) is found.get(word), f"{name}: {letter} is {word}"
    assert "--apply" not in found
    assert not any(one.metavar == "HOSTLIST" and "-w" not in one.opts for one in found.values())


def test_only_these_commands_have_earlier_names() -> None:
    assert [name for name, command in ALL if command.hidden] == ["pal publish", "pal-profile publish"]


@pytest.mark.parametrize("words", [["install"], ["uninstall"]])
def test_apply_is_act(words: list[str]) -> None:
    admin = pal.commands["admin"]
    assert isinstance(admin, click.Group)
    command = admin.commands[words[0]]
    for given, act in (([], False), (["--act"], True), (["--apply"], True), (["--apply", "--dry-run"], False)):
        assert command.make_context(words[0], list(given)).params["act"] is act
    said = CliRunner().invoke(pal, ["admin", *words, "--help"]).output
    assert "--act / --dry-run" in said and "--apply" not in said


def test_renamed_options_take_values_and_are_not_shown() -> None:
    @click.command()
    @click.option("-w", "--nodelist", cls=Renamed, was=["--nodes"])
    def command(nodelist: str | None) -> None:
        click.echo(nodelist)

    for words in (["--nodes", "n0"], ["--nodes=n0"], ["-wn0"], ["--nodelist", "n0"]):
        assert CliRunner().invoke(command, words).output == "n0\n"
    assert "--nodes" not in CliRunner().invoke(command, ["--help"]).output
    missing = CliRunner().invoke(command, ["--nodes"])
    assert missing.exit_code == 2 and "requires an argument" in missing.output


def test_a_renamed_command_leaves_its_name_as_it_was() -> None:
    group = click.Group("g")
    command = click.Command("new", callback=lambda: click.echo("done"))
    group.add_command(command)
    renamed(group, command, "old")
    assert not command.hidden and "old" not in CliRunner().invoke(group, ["--help"]).output
    assert CliRunner().invoke(group, ["old"]).output == CliRunner().invoke(group, ["new"]).output == "done\n"


@pytest.mark.parametrize(
    ("words", "incomplete", "wanted"),
    [([], "self", ["selftest"]), (["selftest"], "--bu", ["--budget"]), (["bench"], "--rep", ["--repeat"])],
)
def test_a_shell_completes_commands_and_options(words: list[str], incomplete: str, wanted: list[str]) -> None:
    found = ShellComplete(pal_profile, {}, "pal-profile", "_PAL_PROFILE_COMPLETE").get_completions(words, incomplete)
    assert [item.value for item in found] == wanted
