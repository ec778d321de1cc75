# SPDX-License-Identifier: MIT
"""The sentence with which pal explain begins, and the line for a job's output."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.report.headline import headline, of_several
from slurm_pal.slurm import parse


def job(state: str = "RUNNING", comment: str = "", admin_comment: str = "", restarts: int = 0) -> SlurmJob:
    made = parse.nobodys(7, {"JobState": state, "JobName": "x"})
    return made._replace(comment=comment, admin_comment=admin_comment, restarts=restarts)


def found(*slowdowns: float | None, state: str = "ok") -> dict[str, Any]:
    gpus = [
        {"node": "n1", "index": k} | ({} if s is None else {"slowdown": {"A": s}, "state": state})
        for k, s in enumerate(slowdowns)
    ]
    known = [s for s in slowdowns if s is not None]
    unknown = [f"n1:{k}" for k, s in enumerate(slowdowns) if s is None]
    return {"gpus": gpus, "slowdown": {"A": max(known)} if known else {}, "unknown": unknown}


def decided(slowdown: float | None, node: str = "n9", chosen: bool = True) -> dict[str, Any]:
    plain = None if slowdown is None else {"slowdown": slowdown, "gpus": [{"node": node, "index": 0}]}
    return {"plain_slurm": plain, "chosen": {"slowdown": 1.0} if chosen else None}


@pytest.mark.parametrize(
    ("seen", "decision", "text", "note"),
    [
        (
            found(1.0, 1.02, 0.99, 1.0), decided(1.31),
            "Your job got 4 GPUs; the slowest is 2 % slower than the median GPU here. "
            "Slurm alone would have given it one 31 % slower than the median",
            "slurm-pal: ran on 4 GPUs, the slowest at 1.02 of a median GPU's time; Slurm alone would have given 1.31",
        ),
        (
            found(0.95), decided(0.95, "n1"),
            "Your job got 1 GPU; it is 5 % faster than the median GPU here. Slurm alone would have given it the same",
            "slurm-pal: ran on a GPU at 0.95 of a median GPU's time, as Slurm alone would have given",
        ),
        (
            found(1.002, None), decided(None),
            "Your job got 2 GPUs; the slowest is as fast as the median GPU here (1 of them never measured). "
            "Slurm alone had no GPUs for it then",
            "slurm-pal: ran on 2 GPUs, the slowest at 1.00 of a median GPU's time",
        ),
        (found(None, None), None, "Your job got 2 GPUs; none of them was ever measured", ""),
        (
            found(1.0, state="ecc"), None,
            "Your job got 1 GPU, and some were seen to fail: n1:0 (ecc)", "",
        ),
        (
            found(1.1), decided(None, chosen=False), "Your job got 1 GPU; it is 10 % slower than the median GPU here",
            "slurm-pal: ran on a GPU at 1.10 of a median GPU's time",
        ),
    ],
)  # fmt: skip
def test_the_sentence(seen: dict[str, Any], decision: dict[str, Any] | None, text: str, note: str) -> None:
    made = headline("Your job", job(), seen, "?", decision)
    assert (made.text, made.note) == (text, note)


def test_what_slurm_chose_by_itself_is_not_compared_with_a_guess_of_that() -> None:
    """Such as tasks of an array: each went where Slurm sent it."""
    made = headline("Your job", job(), found(1.4), "A", decided(1.04) | {"action": "none"})
    assert made.slurm_alone is None and "Slurm alone" not in made.text + made.note
    none = headline("Your job", job(), found(1.4), "A", decided(None) | {"action": "none"})
    assert "Slurm alone" not in none.text


LEASE = "pal:lease=60;req=;exc=;act=nodelist;set=n1"


@pytest.mark.parametrize(
    ("marked", "alone"),
    [
        (job(comment=f"{LEASE};alone=1.250"), 1.25),
        (job(admin_comment=f"site pal:class=A;from=--pal;{LEASE[4:]};alone=1.250;epoch=1"), 1.25),
        (job(admin_comment="pal:class=A;from=--pal;act=none;why=busy;alone=1.3"), 1.3),
        (job(comment=f"{LEASE};alone=1.250", restarts=1), None),  # of a later run nobody knows
        (job(comment=f"{LEASE};alone=nan"), None),
        (job(comment=f"{LEASE};alone=-3"), None),
        (job(comment=f"{LEASE};alone=x"), None),
        (job(comment=LEASE), None),
    ],
)
def test_what_slurm_alone_would_have_given_stands_on_the_job(marked: SlurmJob, alone: float | None) -> None:
    assert headline("Job 7", marked, found(1.0), "A", None).slurm_alone == alone


def test_gpus_that_fail_are_named_and_not_compared() -> None:
    bad = headline("Job 7", job(comment=f"{LEASE};alone=10.000"), found(1.0), "A", None)
    assert bad.text.endswith("Slurm alone would have given it some that were seen to fail")
    assert bad.note == "slurm-pal: ran on a GPU at 1.00 of a median GPU's time"


def test_a_job_without_gpus_says_why() -> None:
    waits = job("PENDING")._replace(reason="Resources", start_s=0.0)
    assert headline("Your job", waits, None, "A", None).text == "Your job waits and has no GPUs yet (Resources)"
    assert "Slurm plans to start it at 20" in headline("Your job", waits._replace(start_s=2e9), None, "A", None).text
    assert headline("Job 7", None, None, "A", None).note == ""


def test_several_jobs_have_one_sentence() -> None:
    rows = [headline("Job", job(), found(s), "A", decided(1.3)).shown | {"job": f"5_{s}"} for s in (1.0, 1.2)]
    assert of_several(rows).startswith("2 jobs with 2 GPUs; the slowest, of job 5_1.2, is 20 % slower than")
    assert "30 % slower than" in of_several(rows)
    unknown = headline("Job", None, None, "A", None).shown | {"job": "9"}
    assert of_several([unknown, unknown]) == "2 jobs with 0 GPUs; of none of these GPUs the speed is known."
