# SPDX-License-Identifier: MIT
"""pal simulate --policy aryl,... as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from slurm_pal.base.errors import Exit, UsageError
from slurm_pal.cli.pal import main
from slurm_pal.cli.simulate import loans as cli
from slurm_pal.cli.simulate.options import LOANS
from slurm_pal.research.loans import GRACE_S, ORDER_S
from slurm_pal.research.loans_comparison import KEYS, POLICIES, LoanSettings

from ...doubles.json_page import differences, read

Pal = Callable[..., tuple[int, str, str]]
SMALL = ("--generate", "servers=4,days=2,jobs=120,elastic=0.2", "--jobs", "1")


@pytest.fixture
def pal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Pal:
    """One command line of pal simulate: exit code, standard output, standard error."""

    def run(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pal", "simulate", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.mark.long
def test_a_table_the_gates_and_what_was_drawn(pal: Pal) -> None:
    code, out, err = pal("--policy", "aryl,aryl-noloan", "--seeds", "2", *SMALL)
    assert (code, err) == (Exit.OK, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["POLICY", "QUEUE(s)"]
    assert [line.split()[0] for line in lines[1:4]] == ["aryl-none", "aryl", "aryl-noloan"]
    assert [line.split()[0] for line in lines[5:10]] == ["GATE", "A1", "A2", "A3", "A6"]
    assert all(line.endswith(("met", "missed")) for line in lines[6:10])
    assert sum(line.startswith("seed ") for line in lines) == 2
    assert "seed 1: 120 jobs in 2.0 days" in out and "20.0% of jobs are elastic and have 36.0% of GPU time" in out
    assert "aryl-noloan: shortest first and scaling, no loan" in lines


def test_json_has_what_the_table_has(pal: Pal) -> None:
    _, out, _ = pal("--policy", "aryl-random-reclaim,aryl", "--seeds", "3", "--seed", "5", "--json", *SMALL)
    found: dict[str, Any] = json.loads(out)
    assert differences(found, read()) == []
    assert list(found["policies"]) == ["aryl-none", "aryl-random-reclaim", "aryl"]
    assert found["policies"]["aryl"]["jct_share_of_aryl"] == pytest.approx(1.0)
    assert found["policies"]["aryl-none"]["jct_ratio"] == pytest.approx(1.0)
    assert found["policies"]["aryl"]["runs"] == 3
    assert list(found["seeds"]) == ["5", "6", "7"]
    assert {gate["name"] for gate in found["gates"]} == {"A1", "A2", "A3", "A6"}
    assert found["gates"][3]["measured"] <= found["gates"][3]["wanted"] == ORDER_S + GRACE_S
    assert found["settings"] == LoanSettings(jobs=120, servers=4, days=2.0, elastic=0.2)._asdict()


@pytest.mark.long
def test_csv_and_parsable_have_a_line_for_each_policy(pal: Pal) -> None:
    _, out, _ = pal("--policy", "aryl-sjf", "--seeds", "1", "--csv", *SMALL)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["policy"] for row in rows] == ["aryl-none", "aryl-sjf"]
    assert [row["jct_share_of_aryl"] for row in rows] == ["", ""]  # aryl did not run
    _, out, _ = pal("--policy", "aryl-sjf", "--seeds", "1", "--parsable2", "--noheader", *SMALL)
    assert [line.split("|")[0] for line in out.splitlines()] == ["aryl-none", "aryl-sjf"]


@pytest.mark.long
def test_without_aryl_there_are_no_gates(pal: Pal) -> None:
    _, out, _ = pal("--policy", "aryl-sjf", "--seeds", "1", *SMALL)
    assert "GATE" not in out and "AT MOST" not in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--policy", "aryl-x"), "policy 'aryl-x' is not one of aryl-none, "),
        (("--policy", "aryl,slurm"), "policy 'slurm' is not one of aryl-none, "),
        (("--policy", "aryl,"), "policy '' is not one of aryl-none, "),
        (("--policy", "aryl", "--queue", "fifo"), "--queue means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--mtbf", "9"), "--mtbf means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--trace", "x"), "--trace means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--cluster", "2x8"), "--cluster means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--no-causes"), "--causes/--no-causes means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--site"), "--site means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--out", "x"), "--out means nothing with --policy aryl,..."),
        (("--policy", "aryl", "--generate", "load=1"), "--generate 'load=1' must be KEY=NUMBER with a key of jobs, "),
        (("--policy", "aryl", "--generate", "jobs=2.5"), "--generate 'jobs=2.5' must be KEY=NUMBER with a key of"),
        (("--policy", "aryl", "--generate", "restart=nan"), "restart nan s"),
        (("--policy", "aryl", "--generate", "servers=1"), "servers 1, days 15.0: 2 to 1,000"),
    ],
)
def test_bad_values_and_options_without_meaning_are_refused_in_one_line(
    pal: Pal, argv: tuple[str, ...], words: str
) -> None:
    code, out, err = pal(*argv)
    assert (code, out) == (Exit.USAGE, "")
    assert words in err.splitlines()[-1] and "Traceback" not in err


def test_the_options_with_a_meaning_exist(pal: Pal) -> None:
    from slurm_pal.cli.simulate.command import simulate

    assert {parameter.name for parameter in simulate.params} >= LOANS


def test_names_of_the_contract_are_accepted() -> None:
    wanted = {"aryl", "aryl-noloan", "aryl-noscale", "aryl-random-reclaim", "aryl-fewest-reclaim", "aryl-noplacement"}
    assert wanted <= set(POLICIES)
    assert cli.asks_for_loans(["slurm, aryl-noloan"]) and not cli.asks_for_loans(["slurm,arylx"])


def test_help_and_list_explain_the_keys(pal: Pal) -> None:
    _, text, _ = pal("--help")
    _, listed, _ = pal("--list", "--parsable2")
    assert set(KEYS) == set(LoanSettings._fields)
    for key in KEYS:
        assert key in text
        line = next(line for line in listed.splitlines() if line.startswith(f"--generate|{key}=|"))
        assert "study: owners and guests: " in line


def test_settings_are_read_by_their_types() -> None:
    assert cli.settings_of("") == LoanSettings()
    assert cli.settings_of(" restart=30, jobs=50 ,") == LoanSettings(restart=30.0, jobs=50)
    with pytest.raises(UsageError, match="like restart=150"):
        cli.settings_of("restart")
