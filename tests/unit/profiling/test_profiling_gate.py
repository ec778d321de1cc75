# SPDX-License-Identifier: MIT
"""When a sweep may submit: hours of the day, the budget of a day, users who wait; and which nodes go first."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.sweep import spending, window
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spending import Expense, Spending
from slurm_pal.profiling.sweep.urgency import CONFIRM, ENVIRONMENT, FAULTY, LATE, UNKNOWN, urgent
from slurm_pal.profiling.sweep.waiting import user_waiting
from slurm_pal.slurm import parse
from slurm_pal.store.database import Condition
from slurm_pal.store.snapshot import GpuScore

DAY_S = 86400.0
NOW_S = 1_800_000_000.0


def at(hour: int, minute: int = 0, day: int = 15) -> float:
    """Local time in January 2027, Unix s."""
    return time.mktime((2027, 1, day, hour, minute, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("20:00-06:00", [at(20), at(23, 59), at(0), at(5, 59)], [at(6), at(12), at(19, 59)]),
        ("8:30-17:00", [at(8, 30), at(16, 59)], [at(8, 29), at(17), at(0)]),
        ("00:00-23:59", [at(0), at(23, 58)], [at(23, 59)]),
    ],
)
def test_windows_and_those_over_midnight(text: str, inside: list[float], outside: list[float]) -> None:
    found = window.parse(text)
    assert all(found.open_at(t) for t in inside) and not any(found.open_at(t) for t in outside)


def test_when_a_window_opens_next() -> None:
    night = window.parse("20:00-06:00")
    assert night.opens_s(at(12)) == at(20) and night.opens_s(at(6)) == at(20)
    assert window.parse("08:00-09:00").opens_s(at(23)) == at(8, day=16)


@given(st.integers(0, 1439), st.integers(1, 1439), st.floats(NOW_S, NOW_S + 3 * DAY_S))
def test_a_window_opens_when_it_says(start_min: int, length_min: int, now_s: float) -> None:
    found = window.Window(start_min, (start_min + length_min) % 1440)
    if not found.open_at(now_s):
        opens_s = found.opens_s(now_s)
        assert now_s < opens_s <= now_s + 26 * 3600  # the clock may be changed in between
        assert found.open_at(opens_s) and not found.open_at(opens_s - 61.0)


@pytest.mark.parametrize("text", ["", "20-6", "20:00", "24:00-06:00", "20:60-06:00", "20:00-20:00", "20:00-06:00x"])
def test_windows_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="window"):
        window.parse(text)


# -- the budget of a day --------------------------------------------------------------


def test_a_budget_fills_and_empties_again() -> None:
    spent = Spending(2.0, [Expense("a", NOW_S - 23 * 3600, 1.0), Expense("old", NOW_S - 25 * 3600, 9.0)])
    assert spent.free_s(1.0, NOW_S) == 0.0
    spent.add(Expense("b", NOW_S, 1.0))
    assert spent.free_s(1.0, NOW_S) == NOW_S + 3600.0  # when the first one is a day old
    assert spent.free_s(2.0, NOW_S) == NOW_S + DAY_S
    spent.take_back("b")
    assert spent.free_s(1.0, NOW_S) == 0.0 and spent.spent_gpu_h(NOW_S + 2 * 3600) == 0.0
    assert Spending(0.0, [Expense("a", NOW_S, 99.0)]).free_s(99.0, NOW_S) == 0.0  # 0 is no limit


def test_a_clock_that_once_was_wrong_does_not_stop_sweeps_for_years() -> None:
    spent = Spending(1.0, [Expense("then", NOW_S + 9 * 365 * DAY_S, 1.0)])
    assert spent.free_s(1.0, NOW_S) == 0.0
    spent.add(Expense("ahead", NOW_S + 3600.0, 1.0))  # a clock set back by an hour
    assert spent.free_s(1.0, NOW_S) == NOW_S + 3600.0 + DAY_S


@given(st.lists(st.tuples(st.floats(0, DAY_S), st.floats(0.1, 2.0)), max_size=20), st.floats(0.1, 2.0))
def test_no_24_hours_ever_hold_more_than_the_budget(past: list[tuple[float, float]], gpu_h: float) -> None:
    limit = 5.0
    spent = Spending(limit)
    for i, (ago_s, cost) in enumerate(sorted(past, reverse=True)):
        if not spent.free_s(cost, NOW_S - ago_s):
            spent.add(Expense(str(i), NOW_S - ago_s, cost))
    assert spent.spent_gpu_h(NOW_S) <= limit + 1e-6
    free_s = spent.free_s(gpu_h, NOW_S)
    if free_s:
        assert spent.free_s(gpu_h, free_s) == 0.0


def test_a_journal_tells_what_was_spent() -> None:
    def line(node: str, state: str, job: int, ts: float) -> dict[str, object]:
        return {"node": node, "state": state, "job_id": job, "since_s": ts}

    journal = [
        line("n0", "submitted", 1, 100.0), line("n0", "submitted", 1, 110.0), line("n0", "done", 1, 200.0),
        line("n1", "submitted", 2, 100.0), line("n1", "todo", 2, 150.0),  # withdrawn
        line("n2", "submitted", 3, 100.0), line("n2", "failed", 3, 150.0), line("n2", "todo", 3, 160.0),
        line("n2", "submitted", 4, 170.0), line("n3", "failed", 0, 100.0), line("n4", "submitted", 5, 10.0),
    ]  # fmt: skip
    found = spending.expenses("s", journal, {"n0": 1.0, "n2": 2.0}, 50.0)
    assert [(e.job, e.gpu_h) for e in found] == [("s:1", 1.0), ("s:3", 2.0), ("s:4", 2.0)]


# -- users who wait ---------------------------------------------------------------------

NODES = [
    ChosenNode("n0", 4, 0.0, partitions=("gpu",), gpu_types=("v100",)),
    ChosenNode("n1", 4, 0.0, partitions=("gpu", "long")),
]  # fmt: skip


def job(request: str = "TresPerNode=gres:gpu:2", **changes: str) -> SlurmJob:
    table = {"name": "train", "state": "PENDING", "reason": "Resources", "partition": "gpu", "req": "(null)",
             "exc": "(null)", "count": "1-1"} | changes  # fmt: skip
    return parse.job(
        f"JobId=7 JobName={table['name']} UserId=u(1) GroupId=g(1) JobState={table['state']} Reason={table['reason']} "
        f"Partition={table['partition']} ReqNodeList={table['req']} ExcNodeList={table['exc']} NodeList=(null) "
        f"NumNodes={table['count']} NumCPUs=1 Features=(null) Command=x WorkDir=/ {request}"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"reason": "Priority"}, {"request": "TresPerJob=gres:gpu:8"}, {"request": "TresPerTask=gres/gpu=1"},
        {"partition": "cpu,long"}, {"req": "n1"}, {"exc": "n0"}, {"request": "TresPerNode=gres:gpu:v100:1"},
        {"req": "other", "count": "2-2"},  # -w other -N2: another node is added
    ],
)  # fmt: skip
def test_a_user_who_waits_for_our_nodes(changes: dict[str, str]) -> None:
    found = user_waiting([job(reason="Dependency"), job(**changes)], NODES, 1)
    assert found is not None and found.reason in ("Resources", "Priority")


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Dependency"}, {"reason": "QOSMaxGRESPerUser"}, {"reason": "None"}, {"state": "RUNNING"},
        {"request": "TresPerNode=(null)"}, {"partition": "cpu"}, {"req": "n9"}, {"exc": "n[0-1]"},
        {"name": "pal-profile:20270115"}, {"request": "TresPerNode=gres:gpu:h100:1", "partition": "gpu", "exc": "n1"},
    ],
)  # fmt: skip
def test_users_whom_a_sweep_does_not_hinder(changes: dict[str, str]) -> None:
    assert user_waiting([job(**changes)], NODES, 1) is None
    assert user_waiting([job()], [], 1) is None


def test_a_user_who_calls_his_job_as_ours_waits_as_others_do() -> None:
    named = [job(name="pal-profile:20270115")]
    assert user_waiting(named, NODES, 1) is None and user_waiting(named, NODES, 0) is named[0]


# -- what goes first --------------------------------------------------------------------


def score(node: str, index: int, *flags: str) -> GpuScore:
    return GpuScore(node, index, f"GPU-{node}-{index}", "m", {}, {}, NOW_S, 1.0, flags)


def condition(node: str, slot: int, ts: float = NOW_S, driver: str = "550.1", vbios: str = "1", limit: str = "300",
              uuid: str = "") -> Condition:  # fmt: skip
    return Condition(uuid or f"GPU-{node}-{slot}", node, slot, ts, driver, vbios, limit)


def test_doubtful_gpus_come_before_forgotten_ones() -> None:
    found = urgent(
        [
            score("a", 0, "unknown"),
            score("b", 1, "unknown", "unconfirmed"),
            score("c", 0, "outlier"),
            score("d", 2, "outlier", "no_answer"),
            score("e", 1, "stale", "late"),
        ],
        [],
        [],
    )
    assert found == {
        "a": (UNKNOWN, "GPU 0 unknown"),
        "b": (CONFIRM, "GPU 1 unconfirmed"),
        "d": (FAULTY, "GPU 2 no_answer"),
        "e": (LATE, "GPU 1 late"),
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"driver": "560.2"}, "GPU 0 driver 550 is now 560"),
        ({"vbios": "2"}, "GPU 0 VBIOS 1 is now 2"),
        ({"limit": "250"}, "GPU 0 power limit 300 is now 250"),
        ({"driver": "550.9"}, ""),
        ({"vbios": ""}, ""),
    ],
)
def test_an_environment_that_only_an_invalid_run_has_seen(changes: dict[str, str], why: str) -> None:
    found = urgent([], [condition("n0", 0)], [condition("n0", 0, NOW_S + 60, **changes)])
    assert found == ({"n0": (ENVIRONMENT, why)} if why else {})


def test_a_driver_is_the_nodes_but_a_moved_gpu_tells_nothing() -> None:
    measured = [condition("n0", 0), condition("n0", 1, NOW_S + 60, "560.1")]
    assert urgent([], measured, measured)["n0"] == (ENVIRONMENT, "GPU 0 driver 550 is now 560")
    moved = [condition("n1", 0, NOW_S + 60, "560.1", uuid="GPU-n0-0")]
    assert urgent([], [condition("n0", 0)], moved) == {}
