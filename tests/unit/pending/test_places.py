# SPDX-License-Identifier: MIT
"""Pending jobs with several places: chosen again only for a start at once that gains enough."""

from __future__ import annotations

import pytest

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.prices import Prices
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import COST, DEADLINE, TIME, Goal
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark
from slurm_pal.decide.waits import Expects
from slurm_pal.pending.places import AGAIN_S, PlaceChange, changes
from slurm_pal.slurm.client import Overview

from ...doubles.partition_site import NOW_S, job, node, overview, part, running

FAST, SLOW = MarkedPlace("gpu", "fast", "gpu:1", 0, "", 1000), MarkedPlace("old", "slow", "gpu:1", 0, "", 2000)
CPU = MarkedPlace("cpu", "cpus", "none", 4, "1-00:00:00", 7200)
PRICES = Prices({"fast": {"gres/gpu": 4.0}, "slow": {"gres/gpu": 1.0}, "cpus": {"cpu": 0.1}})
EXPECTS = Expects(0.5, 3600.0)
NODES = [node("s0", "slow"), node("f0", "fast"), node("c0", gpus=0)]
PARTS = [part("slow", "s0"), part("fast", "f0"), part("cpus", "c0")]
BUSY = running(1, "fast", {"f0": (0, 1)}), running(2, "slow", {"s0": (0, 1)})


def chosen(goal: Goal | None = None, name: str = "gpu", at_s: float = NOW_S - AGAIN_S, cpus: int = 1) -> dict[str, str]:
    own = [place if place is CPU else place._replace(cpus=int(cpus > 1)) for place in (FAST, SLOW, CPU)]
    mark = PlaceMark(name, goal or Goal(TIME), at_s, cpus, tuple(own))
    return place_mark.pairs_of(mark)


def waits(pairs: dict[str, str], **changes_: object) -> SlurmJob:
    one = job(7, **{"partition": "fast", **changes_})  # type: ignore[arg-type]
    return one._replace(comment=marks.put("mine", pairs) or "") if "comment" not in changes_ else one


def found(*jobs: SlurmJob, prices: Prices = PRICES, barred: frozenset[int] = frozenset()) -> list[PlaceChange]:
    seen = overview(*jobs, nodes=NODES, parts=PARTS)
    return changes(seen, barred, prices, EXPECTS, NOW_S)


def test_a_job_starts_where_there_is_room_now() -> None:
    (change,) = found(waits(chosen()), BUSY[0])
    assert change.there == "old" and change.fields["Partition"] == "slow" and change.fields["Gres"] == "gpu:1"
    after = place_mark.read(job(comment=change.fields["Comment"]))
    assert after is not None and after.chosen == "old" and after.at_s == round(NOW_S)
    assert change.fields["Comment"].startswith("mine ")


def test_a_place_without_gpus_has_its_own_request() -> None:
    long = running(1, "fast", {"f0": (0, 1)}, time_limit_s=86400)  # 42,600 s to go
    (change,) = found(waits(chosen()), long, BUSY[1])
    assert change.there == "cpu" and change.fields["TresPerNode"] == "" and "Gres" not in change.fields
    assert change.fields["NumCPUs"] == "4" and change.fields["TimeLimit"] == "1-00:00:00"
    seen = overview(waits(chosen()), long, BUSY[1], nodes=NODES, parts=PARTS)
    assert changes(seen, frozenset(), PRICES, EXPECTS, NOW_S, gpus_stay=True) == []


@pytest.mark.parametrize(
    "jobs",
    [
        (waits(chosen()), *BUSY),  # room only for CPUs, and that would take longer
        (waits(chosen(at_s=NOW_S - AGAIN_S + 1)), BUSY[0]),
        (waits(chosen(), req_nodes=("f0",)), BUSY[0]),
        (waits(chosen(), exc_nodes=("f0",)), BUSY[0]),
        (waits(chosen(), reason="Dependency"), BUSY[0]),
        (waits(chosen(), Priority="0"), BUSY[0]),
        (waits(chosen(), array_job_id=7), BUSY[0]),
        (waits(chosen(), partition="slow"), BUSY[0]),  # somebody has changed it
        (waits(chosen()), running(1, "fast", {"f0": (0, 1)}, time_limit_s=3400)),  # 1,100 s of waiting against 1,000 s
        (waits(chosen()), BUSY[0], job(8, "slow", reason="Resources", comment="")),  # somebody waits there
        (waits(chosen(), comment="x" * 990), BUSY[0]),
    ],
)
def test_it_stays(jobs: tuple[SlurmJob, ...]) -> None:
    assert found(*jobs) == []


def test_others_that_wait_may_be_known_only_by_their_reason() -> None:
    seen = overview(waits(chosen()), BUSY[0], nodes=NODES, parts=PARTS)._replace(
        queued=frozenset({("slow", "Priority")})
    )
    assert changes(seen, frozenset(), PRICES, EXPECTS, NOW_S) == []
    held = Overview(*seen[:4], queued=frozenset({("slow", "JobHeldUser")}))
    assert len(changes(held, frozenset(), PRICES, EXPECTS, NOW_S)) == 1


def test_jobs_that_others_look_after_are_left_alone() -> None:
    assert found(waits(chosen()), BUSY[0], barred=frozenset({7})) == []


def test_of_two_jobs_the_first_one_goes() -> None:
    second = waits(chosen())._replace(job_id=8)
    (change,) = found(second, waits(chosen()), BUSY[0])
    assert change.job_id == 7


def test_money_decides_where_the_user_says_so() -> None:
    here = chosen(Goal(COST))
    (change,) = found(waits(here), BUSY[0])
    assert change.there == "old"  # 2,000 s at 1 against 1,000 s at 4
    dear = Prices({"fast": {"gres/gpu": 4.0}, "slow": {"gres/gpu": 3.0}, "cpus": {"cpu": 1.0}})
    assert found(waits(here), BUSY[0], prices=dear) == []


def test_a_deadline_in_danger_is_worth_money() -> None:
    due = Goal(DEADLINE, NOW_S + 2500.0)
    one = job(7, "slow")
    one = one._replace(comment=marks.put("", chosen(due, "old")) or "")
    (change,) = found(one, BUSY[1])
    assert change.there == "gpu"
    later = one._replace(comment=marks.put("", chosen(Goal(DEADLINE, NOW_S + 9000.0), "old")) or "")
    assert found(later, BUSY[1]) == []


def test_no_change_asks_for_fewer_cpus_than_it_was_submitted_with() -> None:
    one = job(7, "cpus", TresPerNode="", NumCPUs="4", **{"CPUs/Task": "4"})
    pairs = chosen(name="cpu", cpus=4)
    assert found(one._replace(comment=marks.put("", pairs) or "")) == []


GPU_PRICES = Prices({name: rate for name, rate in PRICES.rates.items() if name != "cpus"})


def asleep(*jobs: SlurmJob, prices: Prices = GPU_PRICES, boot_s: float | None = 120.0) -> list[PlaceChange]:
    """Where the nodes of the partition `slow` are powered down."""
    nodes = [node("s0", "slow", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})), *NODES[1:]]
    boots_s = None if boot_s is None else {one.name: boot_s for one in PARTS}
    return changes(overview(*jobs, nodes=nodes, parts=PARTS), frozenset(), prices, EXPECTS, NOW_S, boots_s=boots_s)


def test_a_node_is_woken_only_where_that_is_better_with_its_boot() -> None:
    (change,) = asleep(waits(chosen()), BUSY[0])
    assert change.there == "old" and change.fields["Partition"] == "slow"
    assert asleep(waits(chosen()), BUSY[0], boot_s=None) == []
    assert asleep(waits(chosen()), BUSY[0], boot_s=1700.0) == []  # 4,000 s here
    assert asleep(waits(chosen()), BUSY[0], job(8, "slow", reason="Resources", comment="")) == []
    assert len(asleep(waits(chosen()), BUSY[0], prices=Prices({}))) == 1  # by time no price is needed


def test_the_boot_is_paid_for() -> None:
    here = waits(chosen(Goal(COST)))
    prices = Prices({**GPU_PRICES.rates, "slow": {"gres/gpu": 1.7}})  # .94 against 1.11
    assert [change.there for change in asleep(here, BUSY[0], prices=prices, boot_s=1.0)] == ["old"]
    assert asleep(here, BUSY[0], prices=prices) == []  # 1.001, which is more than nine tenths


@pytest.mark.parametrize("goal", [Goal(COST), Goal(DEADLINE, NOW_S + 3000.0)])
@pytest.mark.parametrize("without", ["fast", "slow", "both"])
def test_without_a_price_no_node_is_woken_for_money(goal: Goal, without: str) -> None:
    rates = {name: rate for name, rate in GPU_PRICES.rates.items() if name != without and without != "both"}
    assert asleep(waits(chosen(goal)), BUSY[0], prices=Prices(rates)) == []
    assert len(asleep(waits(chosen(goal)), BUSY[0])) == 1
