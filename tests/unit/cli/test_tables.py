# SPDX-License-Identifier: MIT
"""Commands with a table are alike: the same options with the same meaning, and a screen's width is respected."""

from __future__ import annotations

import ast
import csv
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli import common, gpu_scores, tables
from slurm_pal.cli import inventory as gpu_commands
from slurm_pal.cli.pal import pal
from slurm_pal.cli.pal_profile import pal_profile
from slurm_pal.profiling.selftest.checks import Check
from slurm_pal.report import costs, move_rows, throughput_rows, top
from slurm_pal.report.fitting import fitted
from slurm_pal.report.inventory import GPU_COLUMNS, NODE_COLUMNS
from slurm_pal.report.listing import Listing, ordered
from slurm_pal.report.table import columns
from slurm_pal.submit.recipes import Recipe

from ..report.test_csv import ALL, NO_TABLE, commands, words

ROOT = Path(__file__).parents[3]
TABLES = sorted(ALL.keys() - NO_TABLE.keys())
OPTIONS = ["--json", "--csv", "-P", "--parsable2", "--noheader", "--sort", "-o", "--color"]
FORMAT_OF_A_TRACE = {"pal simulate", "pal trace describe", "pal trial"}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_same_options(name: str) -> None:
    """All come from one place, so that their texts and meanings are the same."""
    found = {spelt: one for one in ALL[name].params if isinstance(one, click.Option) for spelt in one.opts}
    assert found.keys() >= {*OPTIONS, "--format"}
    ours = {one.name for one in found.values()} & {*tables.NAMES}
    assert ours == {*tables.NAMES}
    assert (found["-o"] is found["--format"]) is (name not in FORMAT_OF_A_TRACE)

    @click.command()
    @tables.table_options
    def shared(form: tables.Form) -> None:
        pass

    for one in shared.params:
        assert isinstance(one, click.Option)
        mine = next(other for other in ALL[name].params if other.name == one.name)
        assert isinstance(mine, click.Option)
        assert (mine.help, mine.type.name, mine.default) == (one.help, one.type.name, one.default), one.name


def test_colour_and_json_are_one_option_also_where_there_is_no_table() -> None:
    for name, command in ALL.items():
        for word in ("--json", "--color"):
            mine = [one for one in command.params if word in one.opts]
            shared = [one for one in ALL["pal gpus"].params if word in one.opts]
            assert not mine or (mine[0].name, mine[0].help) == (shared[0].name, shared[0].help), f"{name} {word}"  # type: ignore[attr-defined]


def test_tables_are_printed_in_one_place() -> None:
    """A command that printed its own would not know --sort, --format and the width."""
    own = {"cli/tables.py", "cli/simulate/prices.py", "cli/loans.py"}  # the others: -P with several tables, or another
    for path in (ROOT / "cli").rglob("*.py"):
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        used = {call for call in calls if re.fullmatch(r"tables?\.(columns|parsable|row_lines)|csv\.writer", call)}
        assert not used or str(path.relative_to(ROOT)) in own, f"{path}: {used}"


compare, recipes, selftest = (sys.modules[f"slurm_pal.cli.{name}"] for name in ("compare", "recipes", "selftest"))
HEADINGS = [
    (GPU_COLUMNS, gpu_commands._GPU_HEADER, gpu_commands._GPU_SHOWS),
    (NODE_COLUMNS, gpu_commands._NODE_HEADER, gpu_commands._NODE_SHOWS),
    (move_rows.MoveRow._fields, move_rows.HEADER, move_rows._SHOWS),
    (costs.CSV_COLUMNS, costs.HEADER, {}),
    (throughput_rows.ThroughputRow._fields, throughput_rows.HEADER, throughput_rows._SHOWS),
    (top.JobRow._fields, top.JOB_HEADER, top._JOB_SHOWS),
    (compare.COLUMNS, compare.HEADER, compare._SHOWS),
    (Check._fields, selftest.HEADER, selftest._SHOWS),
    (Recipe._fields, recipes._HEADER, recipes._SHOWS),
    (gpu_scores.RUN_COLUMNS, gpu_scores.RUN_HEADER, gpu_scores._RUN_SHOWS),
]


GROUPS = ["pal", "pal admin", "pal fork", "pal lab", "pal trace", "pal-profile"]


@pytest.mark.parametrize("name", sorted([*ALL, *GROUPS]))
def test_help_has_a_letter_everywhere(name: str) -> None:
    program, *inner = name.split()
    roots = {"pal": pal, "pal-profile": pal_profile, "pal-rebalance": ALL["pal-rebalance"]}
    command: click.Command = roots[program]
    for word in ["", *inner]:
        command = command.commands[word] if word and isinstance(command, click.Group) else command
        command._help_option = None  # click keeps what another test's call has made
    said = [
        CliRunner().invoke(roots[program], [*inner, word], prog_name=program, **common.PROGRAM)
        for word in ("-h", "--help")
    ]
    short, long = said
    if name == "pal-profile bench":  # argparse's, on nodes without click
        assert short.exit_code == long.exit_code == 0
        return
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert f"Usage: {name}" in long.stdout and "-h, --help" in long.stdout
    assert not any("-h" in one.opts for one in ALL[name].params) if name in ALL else True


@pytest.mark.parametrize(
    ("program", "argv"), [("main", ["gpus"]), ("main", ["admin", "status"]), ("profile", ["selftest"]), ("profile", []),
                          ("rebalance", [])],
)  # fmt: skip
def test_each_way_to_start_has_the_letter(program: str, argv: list[str]) -> None:
    run = f"from slurm_pal.cli.start import {program}; {program}()"
    done = subprocess.run([sys.executable, "-P", "-c", run, *argv, "-h"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "  -h, --help" in done.stdout


def test_what_was_meant_is_shown() -> None:
    for argv, meant in (
        (["gpsu"], "gpus"), (["lab", "stauts"], "status"), (["gpus", "--nodelits", "n1"], "--nodelist"),
        (["moves", "--noheadr"], "--noheader"), (["admin", "instal"], "install"),
    ):  # fmt: skip
        said = CliRunner().invoke(pal, argv)
        assert said.exit_code == Exit.USAGE and meant in said.stderr and "id you mean" in said.stderr, said.stderr


def test_all_commands_are_walked() -> None:
    assert len(TABLES) > 18
    assert {name for program in (pal, pal_profile) for name, _ in commands(program, program.name or "")} <= {*ALL}
    assert "--json" in words(ALL["pal gpus"])


# -- what the options mean ---------------------------------------------------------------------

ROWS = [
    {"node": "n10", "slow": {"A": 1.25, "B": None}, "flags": ["x", "y"], "used": True, "age_s": 60.0},
    {"node": "n2", "slow": {"A": 0.5, "B": 1.0}, "flags": [], "used": False, "age_s": 7200.0},
    {"node": "n1", "slow": {"A": None, "B": 3.0}, "flags": ["z"], "used": False, "age_s": None},
]
FOUND = Listing(
    ("node", "slow_A", "slow_B", "flags", "used", "age_s"), ROWS, ("NODE", "A", "AGE"),
    [["n10", "1.250 v1", "1m"], ["n2", "0.500 v0", "2h"], ["n1", "?", "-"]], {"A": "slow_A", "AGE": "age_s"},
    [True, False, False],
)  # fmt: skip


@click.command()
@tables.table_options
def example(form: tables.Form) -> None:
    tables.show(form, FOUND, "example", lambda told: {"rows": told, "n": 3}, notes=["note"], empty="nothing")


def asked(*argv: str) -> list[str]:
    result = CliRunner().invoke(example, list(argv))
    assert result.exit_code == 0, result.exception
    return result.stdout.splitlines()


def refused(*argv: str) -> str:
    result: Result = CliRunner().invoke(example, list(argv))
    assert isinstance(result.exception, UsageError) and result.exception.exit_code == Exit.USAGE
    return str(result.exception)


def test_columns_are_chosen_by_name_or_heading() -> None:
    assert asked() == ["NODE  A         AGE", "n10   1.250 v1  1m", "n2    0.500 v0  2h", "n1    ?         -", "note"]
    assert asked("-o", "a,NODE", "--noheader") == ["1.250 v1  n10", "0.500 v0  n2", "?         n1"]
    assert asked("--format=slow_A,flags,used", "-P") == ["SLOW_A|FLAGS|USED", "1.25|x,y|yes", "0.5|-|no", "-|z|no"]
    assert asked("--csv", "-o", "AGE,node") == ["age_s,node", "60.0,n10", "7200.0,n2", ",n1"]


def test_rows_are_sorted_by_value() -> None:
    def nodes(*argv: str) -> list[str]:
        return asked(*argv, "-o", "node", "--noheader")

    assert nodes("--sort", "node") == ["n1", "n2", "n10"]
    assert nodes("--sort", "-NODE") == ["n10", "n2", "n1"]
    long = [{"node": f"x{'9' * 9000}"}, {"node": "x007"}, {"node": "x10"}, {"node": "x"}, {"node": "x\u0663"}]
    found = [row["node"] for row in ordered(Listing(("node",), long), ["node"]).rows]
    assert found == ["x", "x007", "x10", f"x{'9' * 9000}", "x\u0663"]
    assert nodes("--sort=age") == ["n10", "n2", "n1"]  # not by 1m, 2h, -
    assert nodes("--sort", "-slow_a") == ["n10", "n2", "n1"]  # without a value: last both ways
    assert nodes("--sort", "slow_A") == ["n2", "n10", "n1"]
    assert nodes("--sort", "used,-node") == ["n2", "n1", "n10"]
    told = json.loads("\n".join(asked("--json", "--sort", "node")))
    assert [row["node"] for row in told["rows"]] == ["n1", "n2", "n10"]
    assert [row["node"] for row in csv.DictReader(asked("--csv", "--sort", "node"))] == ["n1", "n2", "n10"]


def test_an_unknown_column_is_one_line_with_those_that_there_are() -> None:
    every = "node, slow_A, slow_B, flags, used, age_s"
    assert refused("-o", "node,what") == f"--format: no column 'what'; the columns are {every}"
    for form in ([], ["--csv"], ["--json"], ["-P"]):
        assert refused("--sort", "-what", *form) == f"--sort: no column 'what'; the columns are {every}"
    assert refused("--sort", ",") == "--sort ',' names no column: give NAME,..."
    assert "exclude each other" in refused("-o", "node", "--json")
    assert refused("--sort", "\x1b[31m") == f"--sort: no column '\\x1b[31m'; the columns are {every}"


def test_colour_marks_header_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    bold, yellow = "\x1b[1m", "\x1b[33m"
    plain = asked()
    assert asked("--color", "never") == plain == asked("--color", "auto")
    shown = asked("--color=always", "--sort", "node")
    assert shown[0].startswith(bold) and [line.startswith(yellow) for line in shown[1:4]] == [False, False, True]
    assert [re.sub("\x1b\\[[0-9]*m", "", line) for line in shown[:1]] == plain[:1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert asked() == plain


@pytest.mark.parametrize(("names", "header", "shows"), HEADINGS, ids=[header[0] for _, header, _ in HEADINGS])
def test_each_heading_is_the_name_of_a_column(
    names: Sequence[str], header: Sequence[str], shows: Mapping[str, str]
) -> None:
    found = Listing(names, [], header, [], shows)
    assert {found.column(heading, "--sort") for heading in header} <= {*names}
    assert not shows.keys() - {*header}


# -- width -------------------------------------------------------------------------------------

WIDE = [
    ["NODE", "MODEL", "FLAGS", "NOTE"],
    ["n1", "NVIDIA H100 80GB HBM3", "small_group,unconfirmed,power_capped", "taken off since the owner needs it"],
    ["n200", "emu", "-", "-"],
]


CELL = st.lists(st.text("abc,", min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 30])
def test_nothing_is_cut_and_no_line_is_longer_than_the_screen(width: int) -> None:
    rows = fitted(WIDE, width)
    assert len(rows) == len(WIDE)
    for cells, lines in zip(WIDE, rows, strict=True):
        assert all(len(line) <= width for line in lines)
        joined = " ".join(lines)
        for cell in cells:
            for word in re.split(r"[\s,]+", cell):
                assert re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", joined), (word, lines)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(CELL, min_size=n, max_size=n), min_size=1, max_size=5)),
       st.integers(12, 60))  # fmt: skip
def test_whatever_the_cells_no_line_is_too_long(rows: list[list[str]], width: int) -> None:
    for cells, lines in zip(rows, fitted(rows, width), strict=True):
        assert all(len(line) <= width for line in lines)
        assert sorted("".join(lines).replace(" ", "")) == sorted("".join(cells).replace(" ", ""))


def test_a_table_with_room_is_as_it_was() -> None:
    assert fitted(WIDE, 200) == [[line] for line in columns(WIDE[0], WIDE[1:])]


def test_a_table_that_is_too_wide_wraps_long_cells_between_words() -> None:
    assert columns(["A", "B"], [["x", "one two three"], ["y", "a,b,c"]], width=10) == [
        "A  B", "x  one two", "   three", "y  a,b,c",
    ]  # fmt: skip
    shown = columns(["A", "B"], [["first,second,third", "z"]], width=12)
    assert shown == ["A          B", "first,     z", "second,", "third"]


def test_columns_without_room_go_on_a_second_line() -> None:
    shown = columns(["AAAAAAAA", "BBBBBBBB", "CCCCCCCC"], [["aaaaaaaa", "bbbbbbbb", "cccccccc"]], width=20)
    assert shown == ["AAAAAAAA  BBBBBBBB", "    CCCCCCCC", "aaaaaaaa  bbbbbbbb", "    cccccccc"]


def test_a_word_longer_than_the_screen_is_left_whole() -> None:
    assert columns(["A"], [["x" * 50]], width=20) == ["A", "x" * 50]


def test_the_width_is_that_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, lines in (("12", 6), ("200", 5), ("", 5), ("0", 5), ("many", 5), ("-3", 5)):
        monkeypatch.setenv("COLUMNS", value)
        assert len(asked()) >= lines and (len(asked()) == 5) is (lines == 5), value
        assert asked("-P")[1] == "n10|1.250 v1|1m"
        assert asked("--csv")[1].startswith("n10,1.25,,")
