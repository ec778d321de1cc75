# SPDX-License-Identifier: MIT
"""What users wrote never acts on a terminal, whichever command shows it."""

from __future__ import annotations

import ast
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.terminal import visible
from slurm_pal.cli import common
from slurm_pal.report import table

CLI = Path(common.__file__).parent
HOSTILE = {
    "\x1b[2J\x1b]0;t\x07": "\\x1b[2J\\x1b]0;t\\x07",
    "a\rb\nc\td\x08\x00\x7f": "a\\x0db\\x0ac\\x09d\\x08\\x00\\x7f",
    "\x85\x9b31m": "\\x85\\x9b31m",
    "\u202eabc\u202c\u2066\u2069\u200e\u200f": "\\u202eabc\\u202c\\u2066\\u2069\\u200e\\u200f",
    "\u2028\u2029\ufeff\u200b": "\\u2028\\u2029\\ufeff\\u200b",
    "\udc9b\U000e0041": "\\udc9b\\U000e0041",
    "na\u00efve \u5b57 \U0001f600 1\xa0%": "na\u00efve \u5b57 \U0001f600 1\xa0%",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_act_on_is_shown(text: str) -> None:
    assert visible(text) == HOSTILE[text]


@given(st.text(st.characters() | st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_any_text_is_one_line_of_what_can_be_shown(text: str) -> None:
    shown = visible(text)
    assert shown.replace("\xa0", "").isprintable()
    assert visible(shown) == shown
    shown.encode()


@pytest.mark.parametrize("err", [False, True])
def test_a_line_is_printed_as_one_whatever_stands_in_it(err: bool) -> None:
    @click.command()
    def command() -> None:
        common.say("job \x1b[31m\r", "two\nlines", err=err, color=True)
        common.say("x\x1b[0m", color=True, fg="red")
        common.say_finding("WARN", "red", "y\x1b[0m", "rm \u202e", True)

    done = CliRunner().invoke(command)
    said = ("job \\x1b[31m\\x0d", "two\\x0alines")
    assert (done.stderr if err else done.stdout).splitlines()[:2] == list(said)
    assert "\x1b[31mx\\x1b[0m\x1b[0m\n" in done.stdout
    assert "\x1b[31mWARN\x1b[0m  y\\x1b[0m\n" in done.stdout and "-> rm \\u202e\n" in done.stdout


def test_cells_are_as_wide_as_they_are_shown() -> None:
    rows = [["\x1b", "1"], ["ab|", "2"]]
    assert table.columns(["NAME", "N"], rows) == ["NAME  N", "\\x1b  1", "ab|   2"]
    assert table.parsable(["NAME", "N"], rows, True) == ["\\x1b|1", "ab/|2"]


RAW = {
    "admin.py": 1,  # unit files
    "common.py": 3,  # JSON, and the two that make text safe
    "dashboard.py": 1,  # JSON of ours, which has no word of a user
    "lab.py": 2,  # lines for a shell, which are quoted; JSON
    "pal_rebalance.py": 1,  # JSON
    "palsub.py": 0,
    "publish.py": 1,  # JSON
    "report.py": 2,  # a picture with colours of its own
    "top.py": 1,  # a picture with colours of its own, between lines that were made safe
    "trace.py": 1,  # a file
}
"""How often a command prints past `common.say`, and what."""


def test_commands_print_in_one_place() -> None:
    found = {}
    for path in CLI.rglob("*.py"):
        called = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [one.attr for one in called if isinstance(one, ast.Attribute)]
        found[path.name] = sum(map(names.count, ("echo", "echo_via_pager", "secho")))
    assert {name: count for name, count in found.items() if count or name in RAW} == RAW
