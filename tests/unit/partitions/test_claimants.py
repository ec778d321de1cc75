# SPDX-License-Identifier: MIT
"""Which jobs take part in sharing out partitions, and with which throughputs."""

from __future__ import annotations

import math

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.partitions import claimants as module
from slurm_pal.partitions.claimants import (
    Expected,
    Leases,
    PartitionNodes,
    claimants,
    in_partitions,
    partition_types,
    sharers,
)
from slurm_pal.partitions.sharing import Claimant
from slurm_pal.slurm.client import Overview

from ...doubles.partition_site import NODES, NOW_S, OWN, job, known, node, overview, part, running, waiting

KNOWN = known({"slow": 1.0, "fast": 4.0})
EXPECTED = Expected(0.5, 3600.0)
OURS = TickLease(7, LeaseKind.PARTITION, "fast", OWN, NOW_S - 30, NOW_S, 0, "why")
NAMED = TickLease(7, LeaseKind.NODELIST, "f0", "", NOW_S - 30, NOW_S, 0, "why")


def found(
    one: SlurmJob, where: Overview | None = None, lease: TickLease | None = None, barred: tuple[int, ...] = (),
    nodes: TickLease | None = None,
) -> Claimant | None:  # fmt: skip
    leases = Leases({7: lease} if lease else {}, {7: nodes} if nodes else {})
    made = claimants(where or overview(one), [waiting(one)], leases, barred, KNOWN, EXPECTED)
    return made[0] if made else None


def shape_of(*words: str, **fields: object) -> SlurmJob:
    return job(**{"TresPerNode": words[0], **fields})  # type: ignore[arg-type]


def test_a_job_of_several_partitions() -> None:
    one = found(job())
    assert one is not None and one.own == ("slow", "fast") and one.shape.total == 1 and one.run_s == 3600.0
    assert one.speed == pytest.approx({"slow": 1.0, "fast": 4.0}) and one.error["fast"] == pytest.approx(0.01)
    assert one.nodes == {"slow": ("s0", "s1"), "fast": ("f0", "f1")}


@pytest.mark.parametrize(
    "one",
    [
        job(Priority="0"),
        job(reason="Dependency"),
        job(reason="(QOSMaxGRESPerUser)"),
        job(reason="BadConstraints"),
        job(reason="BeginTime"),
        job(state="RUNNING"),
        job(req_nodes=("f0",)),
        job(Reservation="r1"),  # it may start on nodes of the reservation only
        job(HetJobId="5"),
        job(ArrayJobId="7", ArrayTaskId="1-3", array_job_id=7),
        job(Switches="1@00:10:00"),
        job(TresPerNode="(null)"),
    ],
)
def test_left_to_slurm(one: SlurmJob) -> None:
    assert found(one) is None


def test_one_task_of_an_array_that_has_an_id_of_its_own() -> None:
    assert found(job(ArrayJobId="3", ArrayTaskId="2", array_job_id=3)) is not None


def test_a_job_with_a_list_of_ours() -> None:
    one = found(job(partition="fast"), lease=OURS)
    assert one is not None and one.own == ("slow", "fast")
    assert found(job(partition="fast", reason="QOSGrpGRES"), lease=OURS) is not None  # to be given its own list
    assert found(job(partition="fast", reason="JobHeldUser", Priority="0"), lease=OURS) is None


def test_nodes_that_we_named_are_not_its_users() -> None:
    named = job(partition="fast", req_nodes=("f0",))
    leases = Leases({7: OURS}, {7: NAMED})
    steered = waiting(named)._replace(request=request_of(named, own_req=""))
    assert claimants(overview(named), [steered], leases, (), KNOWN, EXPECTED) != []
    both = job(req_nodes=("f0",))  # its partitions have come back before its nodes
    assert found(both, nodes=NAMED) is not None and found(both) is None
    kept_off = NAMED._replace(kind=LeaseKind.EXCLUDE, ours="f1", own="")
    assert found(job(exc_nodes=("f1",)), nodes=kept_off).nodes["fast"] == ("f0", "f1")  # type: ignore[union-attr]
    assert found(job(exc_nodes=("f1",))).nodes["fast"] == ("f0",)  # type: ignore[union-attr]


def test_a_partition_that_the_lists_on_the_job_leave_no_nodes_is_not_chosen() -> None:
    """Its partition is changed alone: with nodes of another one slurmctld would set its priority to 0."""
    by_palsub = "pal:lease=23;req=;exc=;act=nodelist;set=f0"
    named = found(job(req_nodes=("f0",), comment=by_palsub))
    assert named is not None and (set(named.speed), named.closed) == ({"slow", "fast"}, {"slow"})
    kept_off = found(job(exc_nodes=("f0", "f1"), comment="pal:lease=23;req=;exc=;act=exclude;set=f0,f1"))
    assert kept_off is not None and kept_off.closed == {"fast"}
    one_off = found(job(exc_nodes=("f1",), comment="pal:lease=23;req=;exc=;act=exclude;set=f1"))
    assert one_off is not None and one_off.closed == frozenset() and one_off.nodes["fast"] == ("f0", "f1")


def test_what_slurm_refused_is_not_tried_again_at_once() -> None:
    assert found(job(), barred=(7,)) is None
    assert found(job(partition="fast"), lease=OURS, barred=(7,)) is not None
    assert found(job(partition="fast"), barred=(7,)) is not None  # it takes part as one that has no choice


@pytest.mark.parametrize("parts", [[part("slow", "s0", "s1"), part("fast", "f0", up=False)], [part("slow", "s0")]])
def test_while_one_of_its_partitions_takes_no_jobs_or_is_hidden_none_is_chosen(parts: list[Partition]) -> None:
    where = overview(job(), parts=parts)
    assert found(job(), where) is None
    assert found(job(partition="slow"), where, OURS._replace(ours="slow")) is not None


@pytest.mark.parametrize(
    ("one", "fast"),
    [
        (job(), True),
        (job(gpus=2), True),
        (job(gpus=3), False),
        (job(TresPerNode="gres:gpu:fast:1"), True),
        (job(TresPerNode="gres:gpu:slow:1"), False),
        (job(Features="nvlink"), False),
        (job(exc_nodes=("f0", "f1")), False),
        (job(exc_nodes=("f1",)), True),
        (job(MinMemoryCPU="65000M"), False),
        (job(**{"CPUs/Task": "17"}), False),
        (job(NumNodes="2-2", NumTasks="2", gpus=2), True),
        (job(NumNodes="3-3", NumTasks="3"), False),
        (job(time_limit_s=7201), False),
        (job(time_limit_s=None, TimeLimit="UNLIMITED"), False),
        (job(time_limit_s=None, TimeLimit="Partition_Limit"), True),
    ],
)
def test_a_partition_where_it_could_never_start_has_no_throughput(one: SlurmJob, fast: bool) -> None:
    """A job that waits there alone would lose its priority (BadConstraints), or wait for good."""
    parts = [part("slow", "s0", "s1", "s2"), part("fast", "f0", "f1", max_time_s=7200)]
    large = {"cpus": 64, "memory_mib": 128000, "features": frozenset({"nvlink"})}
    nodes = [node(f"s{k}", "slow", 4, **large) for k in range(3)] + [node("f0", "fast"), node("f1", "fast")]
    made = found(one, overview(one, nodes=nodes, parts=parts))
    assert made is not None and ("fast" in made.speed, "fast" in made.nodes) == (fast, fast)
    slow = "TresPerNode" not in one.raw or one.raw["TresPerNode"] != "gres:gpu:fast:1"
    assert ("slow" in made.speed) is slow


@pytest.mark.parametrize(
    ("changes", "ever", "now"),
    [
        ({}, True, True),
        ({"gpus_used": 2}, True, False),
        ({"cpus_used": 16}, True, False),
        ({"memory_used_mib": 63800}, True, False),
        ({"states": frozenset({"IDLE", "PLANNED"})}, True, False),
        ({"states": frozenset({"IDLE", "RESERVED"})}, False, False),
        ({"states": frozenset({"IDLE", "DRAIN"})}, False, False),
    ],
)
def test_nodes_that_could_take_it_now(changes: dict[str, object], ever: bool, now: bool) -> None:
    where = Overview((node("f0", **changes),), (), (part("fast", "f0"),), {})
    place = PartitionNodes(where).place("fast", request_of(job(partition="fast")), 3600)
    assert (place is not None, bool(place)) == (ever, now)


def test_whole_nodes_and_gpus_on_an_open_number_of_nodes() -> None:
    whole = request_of(job(partition="fast", OverSubscribe="NO"))
    some = request_of(job(partition="fast", TresPerNode="(null)", TresPerJob="gres:gpu:3", NumNodes="1-2"))
    assert some.shape is not None and some.shape.total == 3 and not some.leave
    site = PartitionNodes(overview())
    assert site.place("fast", whole, None) == site.place("fast", some, None) == ("f0", "f1")
    more = request_of(job(partition="fast", TresPerNode="(null)", TresPerJob="gres:gpu:5", NumNodes="1-3"))
    assert site.place("fast", more, None) is None
    ranged = found(job(TresPerNode="(null)", TresPerJob="gres:gpu:3", NumNodes="1-2"))
    assert ranged is not None and ranged.shape.nodes is None and found(job()).shape.nodes == 1  # type: ignore[union-attr]


def test_as_many_gpus_as_the_nodes_that_it_may_have_hold() -> None:
    """Two nodes hold four GPUs; to wait for five there would cost the job its priority (BadConstraints)."""
    parts, nodes = [part("fast", "f0", "f1", "f2")], [node(f"f{k}", "fast") for k in range(3)]
    site = PartitionNodes(overview(nodes=nodes, parts=parts))

    def place(gpus: int, count: str) -> tuple[str, ...] | None:
        asked = job(partition="fast", TresPerNode="(null)", TresPerJob=f"gres:gpu:{gpus}", NumNodes=count, NumTasks="2")
        request = request_of(asked)
        assert request.shape is not None and request.shape.per_node is None
        return site.place("fast", request, None)

    assert place(4, "2-2") == ("f0", "f1", "f2") and place(5, "2-2") is None
    assert place(4, "1-2") == place(6, "1-3") == ("f0", "f1", "f2") and place(5, "1-2") is None


def test_types_of_partitions() -> None:
    two = node("d")._replace(gpu_types=("v100", "a100"))
    nodes = [node("a", "v100"), node("b", "a100"), node("c"), two, node("e", gpus=0)]
    parts = [part("old", "a", "e"), part("new", "b"), part("both", "a", "b"), part("plain", "c"), part("gold", "b")]
    parts += [part("mixed", "a", "d"), part("none", "e")]
    where = Overview(tuple(n._replace(partitions=("plain",)) for n in nodes), (), tuple(parts), {})
    assert partition_types(where, ["gold", "a100"]) == {
        "old": "v100", "new": "a100", "both": "both", "plain": "plain", "gold": "gold", "mixed": "mixed",
        "none": "none",
    }  # fmt: skip


def test_running_jobs_are_where_their_nodes_are() -> None:
    parts = [part("all", "s0", "s1", "f0", "f1"), part("slow", *NODES["slow"]), part("fast", *NODES["fast"])]
    jobs = [
        running(1, "fast", {"f0": (0,)}),
        running(2, "night", {"s0": (0, 1)}),
        running(3, "night", {"s1": (0,), "f1": (0,)}),
        job(4),
    ]
    where = overview(*jobs, parts=parts)
    assert [(j.job_id, j.partition) for j in in_partitions(where, ["slow", "fast"])] == [(1, "fast"), (2, "slow")]
    assert [(j.job_id, j.partition) for j in in_partitions(where, ["all", "fast"])] == [
        (1, "fast"), (2, "all"), (3, "all"),
    ]  # fmt: skip
    kept = [n._replace(states=n.states | {"RESERVED"}) if n.name in ("s0", "f1") else n for n in where.nodes]
    now = where._replace(nodes=tuple(kept))
    assert [(j.job_id, j.partition) for j in in_partitions(now, ["all", "fast"])] == [(1, "fast")]


def test_who_takes_part() -> None:
    jobs = [running(1, "fast", {"f0": (0, 1)}, gpus=2), job(7), job(8, "slow", gpus=2)]
    where = overview(*jobs)
    pending = claimants(where, [waiting(j) for j in jobs[1:]], Leases({}, {}), (), KNOWN, EXPECTED)
    names = ["slow", "fast"]
    made = sharers(pending, {8: "B"}, in_partitions(where, names), names, {}, {}, KNOWN, EXPECTED, NOW_S)
    assert [(one.job.job_id, one.gpus, one.sensitivity) for one in made] == [(7, 1, "A"), (8, 2, "B"), (1, 2, "A")]
    assert made[1].speed == pytest.approx({"slow": 2.0}) and made[2].speed == pytest.approx({"slow": 2.0, "fast": 8.0})
    assert made[2].run_s == pytest.approx(3000.0 * 4.0)  # half of two hours, less the ten minutes that it runs, there


def test_what_is_left_of_a_running_job_that_could_go_elsewhere_is_in_its_slowest_partition() -> None:
    (one,) = in_partitions(overview(running(1, "fast", {"f0": (0,)})), ["fast"])
    (made,) = sharers([], {}, [one], ["slow", "fast"], {1: {"slow": 1.0, "fast": 4.0}}, {}, KNOWN, EXPECTED, NOW_S)
    assert made.speed == {"slow": 1.0, "fast": 4.0}
    # Half of two hours are for the slow partition, 900 s here, of which 600 have gone.
    assert made.run_s == pytest.approx(300.0 * 4.0)
    (late,) = sharers([], {}, [one], ["slow", "fast"], {1: made.speed}, {}, KNOWN, EXPECTED, NOW_S + 600)
    assert late.run_s == pytest.approx(0.5 * 600.0 * 4.0)  # it has outlived that: half of what its limit leaves here
    free = one._replace(time_limit_s=None)
    (other,) = sharers([], {}, [free], ["slow", "fast"], {1: made.speed}, {}, KNOWN, EXPECTED, NOW_S)
    assert other.run_s == pytest.approx(300.0 * 4.0)
    (never,) = sharers([], {}, [free], ["slow", "fast"], {1: made.speed}, {}, KNOWN, EXPECTED, NOW_S + 600)
    assert never.run_s == 0.0


def test_the_limit_of_a_job_that_stays_is_for_the_slowest_of_its_users_partitions() -> None:
    (one,) = in_partitions(overview(running(1, "fast", {"f0": (0,)})), ["fast"])

    def left_s(lists: dict[int, tuple[str, ...]], names: list[str], now_s: float = NOW_S) -> float:
        (made,) = sharers([], {}, [one], names, {}, lists, KNOWN, EXPECTED, now_s)
        assert made.stays
        return made.run_s * min(made.speed.values()) / made.speed["fast"]

    both = {1: ("fast", "slow")}
    assert left_s({}, ["slow", "fast"]) == pytest.approx(3000.0)  # half of two hours, less ten minutes
    assert left_s(both, ["slow", "fast"]) == left_s(both, ["fast"]) == pytest.approx(300.0)  # a quarter of that
    assert left_s({1: ("fast",)}, ["slow", "fast"]) == pytest.approx(3000.0)
    # Half of what the limit leaves; beyond that half of a fifth of what it has run, until its real limit is near.
    assert left_s(both, ["fast"], NOW_S + 900.0) == pytest.approx(0.5 * 300.0)
    assert left_s(both, ["fast"], NOW_S + 2400.0) == pytest.approx(0.5 * 0.2 * 3000.0)
    assert left_s(both, ["fast"], NOW_S + 6500.0) == pytest.approx(0.5 * 100.0)


def test_a_throughput_of_nothing_and_of_nobody() -> None:
    zero = known({"slow": 1.0, "fast": 0.0})
    (one,) = claimants(overview(job()), [waiting(job())], Leases({}, {}), (), zero, EXPECTED)
    assert one.speed["fast"] == 0.0 and one.speed["slow"] == pytest.approx(1.0)
    stranger = job(name="?")
    (other,) = claimants(overview(stranger), [waiting(stranger)], Leases({}, {}), (), KNOWN, EXPECTED)
    assert all(0 < value < math.inf for value in other.speed.values()) and other.error["fast"] > 0.1
    runs_there = running(1, "fast", {"f0": (0,)})
    assert sharers([], {}, in_partitions(overview(runs_there), ["fast"]), ["fast"], {}, {}, zero, EXPECTED, NOW_S) == []
    assert module.speeds(runs_there, 1, ["nowhere"], zero) == ({}, {})
