# SPDX-License-Identifier: MIT
"""docs/json.md has every schema that is printed, and its keys; tests/slurm/test_tutorial.py compares real outputs."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from slurm_pal.cli.pal import pal
from slurm_pal.journal.journal import LoanOrder
from slurm_pal.lab import directory
from slurm_pal.loans.scale import Change
from slurm_pal.moves.planning import PlannedMove
from slurm_pal.online.word import SlowWord
from slurm_pal.pending.places import PlaceChange
from slurm_pal.profiling.node.bench import main as bench
from slurm_pal.profiling.sweep.collect import Faulty, LevelRatio
from slurm_pal.profiling.sweep.sweep_state import Pause
from slurm_pal.report.costs import AccountCost, CostRow
from slurm_pal.report.loan_rows import GuestRow, OwnerRow, ReclaimRow
from slurm_pal.report.move_rows import MoveRow
from slurm_pal.report.power_cap import PowerFinding
from slurm_pal.report.throughput_rows import ThroughputRow
from slurm_pal.report.top import ListRow
from slurm_pal.report.why_slow import Steps
from slurm_pal.sensitivity.behaviour import Behaviour
from slurm_pal.sensitivity.cascade import Evidence
from slurm_pal.simulate.trace import BadRow
from slurm_pal.store import gpus_text
from slurm_pal.trial.trial import TicksAgain
from slurm_pal.variability.finding import Finding

from ...doubles.json_page import differences, read
from ...doubles.page_commands import PROGRAMS, span_complaint

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "elastic" / "job.sh"
SCHEMAS = read()
BY_OTHERS = {f"pal.{name}/1" for name in ("benchmarks", "card", "decision", "repeat", "selftest", "work")}
"""Schemas that are not printed by a name in `print_json`."""


def printed() -> list[str]:
    """The schemas of all calls of `print_json`, and of `show`, which prints tables, one for each call."""
    words = [
        node.args[place]
        for path in (ROOT / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        for name, place in (("print_json", 0), ("show", 2))
        if node.func.attr == name and len(node.args) > place
    ]
    return [f"pal.{word.value}/1" for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]


def with_json(name: str, command: click.Command) -> list[str]:
    """The commands that have --json."""
    if isinstance(command, click.Group):
        return [one for word, inner in command.commands.items() for one in with_json(f"{name} {word}", inner)]
    return [name] if any("--json" in one.opts for one in command.params) and not command.hidden else []


def test_every_schema_is_on_the_page() -> None:
    assert len(printed()) > 25
    assert SCHEMAS.keys() == set(printed()) | BY_OTHERS


def test_a_name_means_one_body() -> None:
    """--site has one key more than `pal simulate`, and a trial is shown by two commands. Files have other names."""
    assert {name for name, calls in Counter(printed()).items() if calls > 1} == {"pal.simulate/1", "pal.trial/1"}
    assert not SCHEMAS.keys() & {gpus_text.SCHEMA, directory.SCHEMA}


def test_every_command_with_json_is_on_the_page() -> None:
    shown = [command for schema in SCHEMAS.values() for command in schema.commands]
    known = {one for name, program in PROGRAMS.items() for one in with_json(name, program)}
    named = {" ".join(word for word in command.split() if word[:1].islower()) for command in shown}
    assert known <= named
    assert not [command for command in shown if span_complaint(command)]


@pytest.mark.parametrize(
    ("schema", "path", "fields"),
    [
        ("pal.compare/1", "moved[]", ("uuid", "before", "after")),
        ("pal.costs/1", "rows[]", CostRow._fields),
        ("pal.gpu-list/1", "power_cap[]", PowerFinding._fields),
        ("pal.history/1", "gpus[].findings[]", Finding._fields),
        ("pal.loans/1", "owners[]", OwnerRow._fields),
        ("pal.loans/1", "guests[]", GuestRow._fields),
        ("pal.loans/1", "reclaims[]", ReclaimRow._fields),
        ("pal.loans/1", "orders[]", ("open_nodes" if name == "open" else name for name in LoanOrder._fields)),
        ("pal.moves/1", "moves[]", MoveRow._fields),
        ("pal.observed/1", "", Behaviour._fields),
        ("pal.explain/1", "observed", Evidence._fields),
        ("pal.rebalance/1", "moves[]", PlannedMove._fields),
        ("pal.rebalance/1", "loans.order", LoanOrder._fields),
        ("pal.rebalance/1", "places[]", PlaceChange._fields),
        ("pal.rebalance/1", "elastic[]", Change._fields),
        ("pal.report/1", "money.accounts[]", AccountCost._fields),
        ("pal.report/1", "money.accounts[].partitions[]", CostRow._fields),
        ("pal.sweep/1", "faulty[]", Faulty._fields),
        ("pal.sweep/1", "levels{}", LevelRatio._fields),
        ("pal.sweep_status/1", "levels{}", LevelRatio._fields),
        ("pal.sweep_status/1", "pause", Pause._fields),
        ("pal.throughputs/1", "throughputs[]", ThroughputRow._fields),
        ("pal.top/1", "lists[]", ListRow._fields),
        ("pal.top/1", "moves[]", MoveRow._fields),
        ("pal.trace-figures/1", "bad_rows[]", BadRow._fields),
        ("pal.trial/1", "arms[].ticks_again[]", TicksAgain._fields),
        ("pal.why_slow/1", "steps", Steps._fields),
        ("pal.why_slow/1", "reported", SlowWord._fields),
    ],
)
def test_rows_that_a_small_lab_never_has(schema: str, path: str, fields: tuple[str, ...]) -> None:
    assert [*SCHEMAS[schema].objects[path]] == [*fields]


@pytest.mark.parametrize("words", ["simulate --list --json", "recipes --json", f"recipes --check {EXAMPLE} --json"])
def test_outputs_that_need_no_slurm(words: str) -> None:
    body: dict[str, Any] = json.loads(CliRunner().invoke(pal, words.split()).stdout)
    assert differences(body, SCHEMAS) == []


def test_the_list_of_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(["--list", "--json"]) == 0
    assert differences(json.loads(capsys.readouterr().out), SCHEMAS) == []


PAGE = "```text\npal.x/1: pal x --json\n  a# b[] c. (d) e{}#\n  b[]: f?\n  c: g\n```\n"
GOOD: dict[str, Any] = {"schema": "pal.x/1", "a": 1.5, "b": [{"f": True}], "c": {"g": "x"}, "e": {"A": 1}}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, 0), ({"d": "text"}, 0), ({"a": None, "c": None}, 0), ({"b": []}, 0),
        ({"a": "1"}, 1), ({"a": True}, 1), ({"new": 1}, 1), ({"b": [{"f": 1}, {}]}, 2), ({"b": {}}, 1),
        ({"c": {"g": "", "h": 1}}, 1), ({"c": "g"}, 1), ({"e": {"A": "1"}}, 1), ({"schema": "pal.x/2"}, 1),
    ],
)  # fmt: skip
def test_differences_are_found(change: dict[str, Any], found: int) -> None:
    assert len(differences(GOOD | change, read(PAGE))) == found


def test_a_missing_key_is_found() -> None:
    assert len(differences({"schema": "pal.x/1", "a": 1}, read(PAGE))) == 3


@pytest.mark.parametrize("change", [("  c: g\n", ""), ("  c: g", "  z: g"), ("a# b", "a# a"), ("a#", "a!")])
def test_a_page_that_does_not_hold_together_is_refused(change: tuple[str, str]) -> None:
    with pytest.raises(ValueError):
        read(PAGE.replace(*change))
