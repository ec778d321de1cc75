# SPDX-License-Identifier: MIT
"""Jobs that wait only for Slurm's delay after their own requeue: which they are, and what a tick does about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.event_log import EventLog
from slurm_pal.pending.continued import delayed
from slurm_pal.tick.continuing import Continuing
from slurm_pal.tick.role import Role

from ...doubles.running_factory import NOW_S, job, overview

SAVED = "mine pal:job=A;mov=1;ck=1 pal:ack=1.1 pal:cont=2;of=10"
WAITS = {"Priority": "5", "Reason": "BeginTime"}
DELAY_S = 121.0


def waits(job_id: int = 1, **changes: object) -> SlurmJob:
    """Its second run ended ten seconds ago."""
    plain = job(job_id, {}, state="PENDING", comment=SAVED, restarts=2, fields=WAITS)
    plain = plain._replace(reason="BeginTime", submit_s=NOW_S - 10, eligible_s=NOW_S - 10 + DELAY_S)
    return plain._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "RUNNING"},
        {"state": "COMPLETING"},
        {"priority": 0},
        {"reason": "JobHeldUser"},
        {"reason": "Dependency"},
        {"reason": "Priority"},
        {"eligible_s": NOW_S + 3600},  # a time of its user's
        {"eligible_s": NOW_S - 10 + 60},
        {"submit_s": NOW_S - 120, "eligible_s": NOW_S + 1},  # it starts in a moment
        {"restarts": 0},
        {"restarts": 3},  # requeued otherwise since it has saved
        {"comment": SAVED.replace("ack=1.1", "ack=1.1;failed=1")},
        {"comment": SAVED.replace("pal:cont=2;of=10", "")},
        {"comment": SAVED.replace("pal:cont=2", "pal:cont=0")},
        {"comment": SAVED.replace("pal:ack=1.1", "")},
        {"array_job_id": 1},  # its number means all tasks
    ],
)
def test_only_slurms_own_delay_counts(changes: dict[str, object]) -> None:
    assert delayed([waits()], DELAY_S, NOW_S) == [waits()]
    assert delayed([waits(array_job_id=7)], DELAY_S, NOW_S)
    assert not delayed([waits(**changes)], DELAY_S, NOW_S)


class Orders:
    """A Slurm that takes orders for all jobs but one."""

    def __init__(self) -> None:
        self.given: list[tuple[int, dict[str, str]]] = []

    def update_job(self, job_id: int, **fields: str) -> None:
        if job_id == 3:
            raise SlurmError("it is gone")
        self.given.append((job_id, fields))


def test_each_gets_one_order_and_only_those_that_are_ours(tmp_path: Path) -> None:
    slurm, log = Orders(), EventLog(str(tmp_path / "log"), echo=False)
    jobs = overview([], [waits(1), waits(2), waits(3), waits(4, user="v")])
    mine = Continuing(slurm, Role("user", "u", frozenset({"own"}), ()), log, DELAY_S)  # type: ignore[arg-type]
    found = mine.decide(jobs, frozenset({2}), NOW_S)
    assert found == [1, 3]
    done, trouble = mine.carry_out(found, NOW_S)
    assert done == [1] and slurm.given == [(1, {"StartTime": "now+2"})]
    assert trouble == ["job 3 waits for Slurm's delay after its requeue: it is gone"]
    every = Continuing(slurm, Role("operator", "op", frozenset({"own", "others"}), ()), log, DELAY_S)  # type: ignore[arg-type]
    assert every.decide(jobs, frozenset(), NOW_S) == [1, 2, 3, 4]
    log.close()
