# SPDX-License-Identifier: MIT
"""What owners needed in the past, by a sacct that prints what it is given; whose QOS may be preempted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.slurm.accounting import demand_history, preempted_qos
from slurm_pal.slurm.client import Completed

HOUR_S = 3600.0
Sacct = Callable[[str, int], Path]


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sacct:
    def made(text: str, code: int = 0) -> Path:
        (tmp_path / "rows").write_text(text)
        script = tmp_path / "sacct"
        lines = ["#!/bin/sh", f'printf "%s\\n" "$*" > {tmp_path}/asked', f"cat {tmp_path}/rows"]
        lines += ["echo 'sacct: error: Connection refused' >&2"] * bool(code) + [f"exit {code}"]
        script.write_text("\n".join(lines) + "\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return tmp_path / "asked"

    return made


def test_the_nodes_of_each_hour(sacct: Sacct) -> None:
    now_s = time.time()
    hour = int(now_s // HOUR_S)
    rows = [
        (hour - 5, hour - 4, "n[1-2]"),  # both hours
        (hour - 5, hour - 5, "n2"),  # the same node again
        (hour - 40, hour - 4, "n3"),  # began before what is asked for
        (hour - 2, None, "n7"),  # runs
    ]
    text = "".join(
        f"{int(first * HOUR_S) + 1}|{'Unknown' if last is None else int(last * HOUR_S) + 1}|{nodes}\n"
        for first, last, nodes in rows
    )
    broken = "Unknown|Unknown|None assigned\n\nx|y\n12|13|None assigned\n||n1\n"
    asked = sacct(broken + text, 0)
    found = demand_history(["owner", "other"], now_s - 10 * HOUR_S, HOUR_S)
    assert [found[hour - k] for k in range(5, -1, -1)] == [3.0, 3.0, 0.0, 1.0, 1.0, 1.0]
    assert found[hour - 8] == 1.0 and min(found) == hour - 9 and max(found) == hour
    assert " -r owner,other " in asked.read_text()


def test_without_a_job_nothing_is_known(sacct: Sacct) -> None:
    sacct("", 0)
    assert demand_history(["owner"], time.time() - HOUR_S, HOUR_S) == {}


def test_a_database_that_is_away_is_an_error_with_its_words(sacct: Sacct) -> None:
    sacct("", 1)
    with pytest.raises(SlurmError, match="sacct failed: Connection refused"):
        demand_history(["owner"], time.time() - HOUR_S, HOUR_S)


def runner(done: Completed | SlurmError) -> Callable[[Sequence[str], str], Completed]:
    def run(argv: Sequence[str], stdin: str) -> Completed:
        assert argv[0] == "sacctmgr"
        if isinstance(done, SlurmError):
            raise done
        return done

    return run


def test_whose_jobs_some_qos_may_preempt() -> None:
    assert preempted_qos(runner(Completed(0, "\nlow,lower\n\nlow\n", ""))) == {"low", "lower"}
    assert preempted_qos(runner(Completed(0, "\n", ""))) == frozenset()
    assert preempted_qos(runner(Completed(1, "", "no"))) is None
    assert preempted_qos(runner(SlurmError("sacctmgr is not in PATH"))) is None
