# SPDX-License-Identifier: MIT
"""Node lists of pending jobs: what one tick wishes, and what many ticks may never do."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.case import Settings
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease import comment
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.pending.retarget import Levers, Waiting, Wish, WishAction, over, retarget
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import GpuScore, Snapshot, publish, read

from ...doubles.faulty_gpus import broken
from ...doubles.slurm_pairs import shown
from ...doubles.trials import trials

NOW_S = 1_763_712_345.0
INTERVAL_S = 15.0
Table = dict[str, list[float]]
Scores = Callable[[Table], Snapshot]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Scores:
    """Snapshots from {node: slowdowns of its GPUs for class A}; B suffers the same, C nothing."""
    path = str(tmp_path_factory.mktemp("scores") / "snapshot")
    classes = dict.fromkeys("ABC", "v0")

    def make(table: Table) -> Snapshot:
        gpus = [
            GpuScore(name, k, f"{name}-{k}", "m", {"A": a, "B": a, "C": 1.0}, classes, NOW_S - 60, 0.9, ())
            for name, row in table.items()
            for k, a in enumerate(row)
        ]
        publish(path, gpus, cluster="c", epoch=1, now_s=NOW_S, centroids={c: [1.0] for c in "ABC"})
        return read(path)

    return make


def node(name: str, gpus: int = 2, **changes: object) -> Node:
    plain = Node(name, frozenset({"IDLE"}), ("",) * gpus, 0, 16, 0, 64000, 0, frozenset(), ("gpu",))
    return plain._replace(**changes)  # type: ignore[arg-type]


def job(job_id: int = 7, mark: str = "pal:job=A;from=x", gpus: int = 1, **changes: object) -> SlurmJob:
    """A pending job of one node; a change that is no attribute is a field of scontrol."""
    fields = {
        "JobId": str(job_id), "Priority": str(1000 - job_id), "NumNodes": "1", "NumTasks": "1", "NumCPUs": "1",
        "CPUs/Task": "1", "TresPerNode": f"gres:gpu:{gpus}", "Partition": "gpu", "TimeLimit": "01:00:00",
        "MinMemoryCPU": "500M",
    }  # fmt: skip
    fields |= {key: str(changes.pop(key)) for key in list(changes) if key not in SlurmJob._fields}
    plain = SlurmJob(
        job_id, "PENDING", "Resources", "u", "j", "gpu", {}, (), (), (), NOW_S - 60, 0.0, 0.0, 3600, 0, mark, gpus,

    )  # fmt: skip
    return shown(plain, fields)._replace(**changes)  # type: ignore[arg-type]


def running(job_id: int, held: dict[str, tuple[int, ...]]) -> SlurmJob:
    return job(job_id, "", state="RUNNING", reason="None", gpus=1)._replace(
        gpus=held, nodes=tuple(held), time_limit_s=60
    )


def cluster(nodes: list[Node], *jobs: SlurmJob) -> Overview:
    used = Counter({n.name: sum(len(j.gpus.get(n.name, ())) for j in jobs) for n in nodes})
    there = tuple(n._replace(gpus_used=used[n.name]) for n in nodes)
    return Overview(there, jobs, (Partition("gpu", True, True, tuple(n.name for n in nodes)),), {})


def waiting(
    found: SlurmJob, lease: TickLease | None = None, waited_s: float = 0.0, sensitivity: str = "A",
    measured: bool = False, gather: bool = False,
) -> Waiting:  # fmt: skip
    own_req = lease.own_req if lease is not None else None
    own_exc = lease.own_exc if lease is not None else None
    return Waiting(found, request_of(found, own_req, own_exc, gather), sensitivity, waited_s, measured)


def lease_of(kind: str, ours: str, own: str = "", **changes: float) -> TickLease:
    plain = TickLease(7, LeaseKind(kind), ours, own, NOW_S - INTERVAL_S, NOW_S, 0, "why")
    return plain._replace(**changes)  # type: ignore[arg-type]


def wish(
    overview: Overview, snapshot: Snapshot, one: SlurmJob, lease: TickLease | None = None, waited_s: float = 0.0,
    sensitivity: str = "A", measured: bool = False, **changes: float,
) -> Wish:  # fmt: skip
    whole = overview._replace(jobs=(*overview.jobs, one))
    leases = {one.job_id: lease} if lease else {}
    asked = [waiting(one, lease, waited_s, sensitivity, measured)]
    (found,) = retarget(whole, snapshot, asked, leases, Settings(**changes), NOW_S, INTERVAL_S)  # type: ignore[arg-type]
    assert found.job_id == one.job_id
    return found


NODES = [node("n0"), node("n1"), node("n2")]
MIXED: Table = {"n0": [1.3, 1.3], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
FULL = running(1, {"n0": (0, 1), "n1": (0, 1), "n2": (0, 1)})
SLOW_FREE = running(1, {"n1": (0, 1), "n2": (0, 1)})
PATIENCE_S = 0.5 * 0.3 * 1800  # WAIT_SHARE x (1.3 - 1) x half the time limit


# -- GPUs that were seen to fail -----------------------------------------------------------------


@pytest.mark.parametrize("sensitivity", "ABC?")
def test_jobs_of_every_class_are_kept_off_faulty_gpus(scores: Scores, sensitivity: str) -> None:
    snapshot = broken(scores({"n0": [1.0, 1.0], "n1": [1.0, 1.0], "n2": [1.0, 1.0]}), {("n0", 0): "no_answer"})
    named = wish(cluster(NODES), snapshot, job(), sensitivity=sensitivity)
    assert named.action == "nodelist" and named.fields["ReqNodeList"] in ("n1", "n2")
    free = wish(cluster(NODES, SLOW_FREE), snapshot, job(), sensitivity=sensitivity)
    assert (free.action, free.fields, free.could_start) == ("exclude", {"ExcNodeList": "n0"}, True)
    assert "n0:0 (no-answer)" in free.reason
    full = wish(cluster(NODES, FULL), snapshot, job(gpus=2), sensitivity=sensitivity)
    assert (full.action, full.fields, full.could_start) == ("exclude", {"ExcNodeList": "n0"}, False)
    assert wish(cluster(NODES, FULL), snapshot, job(), sensitivity=sensitivity).action == "none", "n0:1 will do"


# -- naming nodes --------------------------------------------------------------------------------


def test_nodes_of_free_gpus_are_named_until_the_next_tick(scores: Scores) -> None:
    found = wish(cluster(NODES), scores(MIXED), job())
    assert (found.action, found.fields, found.could_start) == ("nodelist", {"ReqNodeList": "n2"}, False)
    assert found.lease == TickLease(7, LeaseKind.NODELIST, "n2", "", NOW_S, NOW_S + INTERVAL_S, 0, found.reason)
    slow_pass = wish(cluster(NODES), scores(MIXED), job(), lease_pass_s=60.0)
    assert slow_pass.lease is not None and slow_pass.lease.until_s == NOW_S + 60.0


def test_only_a_measured_class_c_is_sent_to_outliers(scores: Scores) -> None:
    free = cluster(NODES)
    sent = {m: wish(free, scores(MIXED), job(), sensitivity="C", measured=m).fields for m in (True, False)}
    assert sent[True] == {"ReqNodeList": "n0"} and sent[False] in ({"ReqNodeList": "n1"}, {"ReqNodeList": "n2"})
    both = [waiting(job(8), sensitivity="C", measured=True), waiting(job(7), sensitivity="C")]
    found = retarget(free, scores(MIXED), both, {}, Settings(), NOW_S, INTERVAL_S)
    assert {wish_.job_id: wish_.fields["ReqNodeList"] == "n0" for wish_ in found} == {7: False, 8: True}


@pytest.mark.parametrize(
    "changes", [{"NumNodes": "1-2"}, {"NumTasks": "4", "NumCPUs": "4"}, {"NumNodes": "1-3", "NumTasks": "2"}]
)
def test_no_nodes_are_named_where_their_number_is_open(scores: Scores, changes: dict[str, str]) -> None:
    """On a job that has just started on more nodes Slurm takes a list for a resize, and gives the others up."""
    snapshot, there = scores({"n0": [1.0, 1.0], "n1": [0.9, 0.9]}), [node("n0"), node("n1")]
    for open_number, action in ((changes, "none"), ({}, "nodelist")):
        made = wish(cluster(there), snapshot, job(gpus=2, **open_number))
        assert made.action == action and ("ReqNodeList" in made.fields) == (action == "nodelist")


def test_nodes_that_might_not_hold_the_job_are_not_named(scores: Scores) -> None:
    """Slurm holds a job for good whose named node can never take it: a CPU of two threads costs memory twice."""
    for memory, action in (("31G", "nodelist"), ("32G", "none")):
        there = [node._replace(threads=2) for node in NODES]
        assert wish(cluster(there), scores(MIXED), job(MinMemoryCPU=memory)).action == action
        assert wish(cluster(NODES), scores(MIXED), job(MinMemoryCPU=memory)).action == "nodelist"


def test_the_same_nodes_are_never_named_twice_in_a_row(scores: Scores) -> None:
    pinned = job(req_nodes=("n2",))
    found = wish(cluster(NODES), scores(MIXED), pinned, lease_of("nodelist", "n2"))
    assert (found.action, found.fields, found.lease) == ("clear", {"ReqNodeList": ""}, None)
    assert not found.could_start  # they are still free: something else keeps it waiting
    early = lease_of("nodelist", "n2", made_s=NOW_S - 2, until_s=NOW_S + 5)
    assert wish(cluster(NODES), scores(MIXED), pinned, early) == Wish(7, WishAction.KEEP, {}, early, False, "why")
    passed = lease_of("nodelist", "n2", made_s=NOW_S - 3, until_s=NOW_S + 60)
    assert wish(cluster(NODES), scores(MIXED), pinned, passed).action == "clear"  # Slurm counts something else
    waits = pinned._replace(reason="Priority")
    assert wish(cluster(NODES), scores(MIXED), waits, passed).action == "keep"  # it has had no turn yet
    planned = waits._replace(start_s=NOW_S + 600)  # backfill has looked at it, and starts it there later
    assert wish(cluster(NODES), scores(MIXED), planned, passed).action == "clear"


def test_a_total_of_gpus_must_be_free_in_all() -> None:
    lease = lease_of("nodelist", "n2", made_s=NOW_S - 3, until_s=NOW_S + 600)
    asked = job(TresPerNode="", TresPerJob="gres:gpu:2", NumNodes="1-1", req_nodes=("n2",), gpus_per_node=0)
    for used, ends in ((0, 1), (1, 0)):
        assert len(over({7: lease}, [asked], [node("n2", gpus_used=used)], NOW_S, 3.0)) == ends


@pytest.mark.parametrize(
    ("used", "reason", "made_ago_s", "kind", "ends"),
    [
        (0, "Resources", 3.0, "nodelist", True), (0, "Resources", 2.0, "nodelist", False),
        (0, "Priority", 3.0, "nodelist", False), (0, "Priority planned", 3.0, "nodelist", True),
        (1, "Resources", 3.0, "nodelist", True), (2, "Resources", 3.0, "nodelist", False),
        (0, "Resources", 3.0, "exclude", False),
    ],
)  # fmt: skip
def test_a_list_ends_where_slurm_does_not_start_the_job_on_free_gpus(
    used: int, reason: str, made_ago_s: float, kind: str, ends: bool
) -> None:
    lease = lease_of(kind, "n2", made_s=NOW_S - made_ago_s, until_s=NOW_S + 600)
    named = {"req_nodes" if kind == "nodelist" else "exc_nodes": ("n2",)}
    why, _, planned = reason.partition(" ")
    waits = job(reason=why, start_s=NOW_S + 60 if planned else 0.0, **named)
    found = over({7: lease}, [waits], [node("n2", gpus_used=used)], NOW_S, 3.0)
    assert [(made.action, made.reason) for made in found] == [("clear", "Slurm did not start it there")] * ends


def test_gpus_that_others_took_are_replaced_while_that_pays(scores: Scores) -> None:
    taken = cluster(NODES, running(1, {"n2": (0, 1)}))
    pinned, lease = job(req_nodes=("n2",)), lease_of("nodelist", "n2")
    found = wish(taken, scores(MIXED), pinned, lease)
    assert (found.action, found.fields, found.could_start) == ("nodelist", {"ReqNodeList": "n1"}, True)
    too_long = wish(taken, scores(MIXED), pinned, lease, waited_s=600.0)
    assert (too_long.action, too_long.fields) == ("clear", {"ReqNodeList": ""})
    gone = wish(cluster(NODES, FULL), scores({"n0": [1.0, 1.0]}), pinned, lease)
    assert (gone.action, gone.fields, gone.could_start) == ("clear", {"ReqNodeList": ""}, True)


def test_a_job_that_was_kept_waiting_before_pays_for_each_pass_beforehand(scores: Scores) -> None:
    """Else GPUs named in vain and an exclusion in turns would cost two passes and count as one."""
    assert wish(cluster(NODES), scores(MIXED), job(), waited_s=30.0).could_start
    taken, lease = cluster(NODES, SLOW_FREE), lease_of("nodelist", "n2")
    assert wish(taken, scores(MIXED), job(req_nodes=("n2",)), lease, waited_s=30.0).action == "exclude"
    assert wish(cluster(NODES, FULL), scores(MIXED), job(req_nodes=("n2",)), lease, waited_s=30.0).action == "exclude"


def test_an_exclusion_and_a_node_list_change_places_in_one_update(scores: Scores) -> None:
    kept = job(exc_nodes=("n0", "n9"))
    found = wish(cluster(NODES), scores(MIXED), kept, lease_of("exclude", "n0,n9", "n9"))
    assert found.action == "nodelist" and found.fields == {"ExcNodeList": "n9", "ReqNodeList": "n2"}
    pinned = job(req_nodes=("n2",))
    back = wish(cluster(NODES, SLOW_FREE), scores(MIXED), pinned, lease_of("nodelist", "n2"))
    assert back.action == "exclude" and back.fields == {"ReqNodeList": "", "ExcNodeList": "n0"}


def test_jobs_go_by_priority_and_each_sees_what_those_before_it_take(scores: Scores) -> None:
    jobs = [job(number, gpus=2, Priority=number) for number in (11, 12, 13, 14)]
    table: Table = {"n0": [1.0, 1.0], "n1": [1.02, 1.02], "n2": [0.9, 0.9]}
    asked = [waiting(one) for one in jobs]
    found = retarget(cluster(NODES, *jobs), scores(table), asked, {}, Settings(), NOW_S, INTERVAL_S)
    assert [(w.job_id, w.fields.get("ReqNodeList")) for w in found[:2]] == [(14, "n2"), (13, "n0")]
    assert [(w.job_id, w.action) for w in found[2:]] == [(12, "none"), (11, "none")]  # the last node needs no name


@pytest.mark.parametrize(("key", "text"), [("NumCPUs", "12"), ("MinMemoryNode", "0")])
def test_a_claim_takes_cpus_and_memory_too(scores: Scores, key: str, text: str) -> None:
    changes = {"CPUs/Task": "12"} if key == "NumCPUs" else {}
    if key == "MinMemoryNode":
        changes["MinMemoryCPU"] = ""
    jobs = [job(number, **{key: text, **changes}) for number in (11, 12)]
    overview = cluster([*NODES, node("n3")], *jobs)
    found = retarget(overview, scores(MIXED), [waiting(one) for one in jobs], {}, Settings(), NOW_S, INTERVAL_S)
    named = [w.fields["ReqNodeList"] for w in found]
    assert len(set(named)) == 2, "two jobs fit on one node by their GPUs, but not by the rest"


def test_gpus_promised_to_other_pinned_jobs_are_not_ours(scores: Scores) -> None:
    other = job(3, "", 2, req_nodes=("n2",))
    assert wish(cluster(NODES, other), scores(MIXED), job()).fields == {"ReqNodeList": "n1"}


def test_a_jobs_own_list_claims_nothing_from_itself_and_a_late_one_nothing_from_others(scores: Scores) -> None:
    mine = job(gpus=2, req_nodes=("n2",))
    early = lease_of("nodelist", "n2", made_s=NOW_S - 2, until_s=NOW_S + 5)
    assert wish(cluster(NODES), scores(MIXED), mine, early).action == "keep"
    first = job(3, gpus=2)
    asked = [waiting(first), waiting(mine, lease_of("nodelist", "n2"))]
    leases = {7: lease_of("nodelist", "n2")}
    overview = cluster(NODES, first, mine)
    found = retarget(overview, scores(MIXED), asked, leases, Settings(), NOW_S, INTERVAL_S)
    assert [(w.job_id, w.fields) for w in found] == [(3, {"ReqNodeList": "n2"}), (7, {"ReqNodeList": "n1"})]


# -- keeping off slow nodes ----------------------------------------------------------------------


def test_only_slow_gpus_are_free(scores: Scores) -> None:
    found = wish(cluster(NODES, SLOW_FREE), scores(MIXED), job(exc_nodes=("n9",)))
    assert (found.action, found.fields, found.could_start) == ("exclude", {"ExcNodeList": "n[0,9]"}, True)
    assert found.lease is not None and (found.lease.kind, found.lease.own) == ("exclude", "n9")
    assert found.lease.until_s == pytest.approx(NOW_S + PATIENCE_S + INTERVAL_S, rel=1e-6)
    insensitive = wish(cluster(NODES, SLOW_FREE), scores(MIXED), job(), sensitivity="C")
    assert insensitive.action == "none"


def test_slow_nodes_are_excluded_before_they_become_free(scores: Scores) -> None:
    found = wish(cluster(NODES, FULL), scores(MIXED), job())
    assert (found.action, found.fields, found.could_start) == ("exclude", {"ExcNodeList": "n0"}, False)
    kept = wish(cluster(NODES, FULL), scores(MIXED), job(exc_nodes=("n0",)), found.lease, waited_s=30.0)
    assert (kept.action, kept.fields, kept.could_start) == ("keep", {}, True), "it has had its turn"
    assert kept.lease is not None
    assert kept.lease.until_s == pytest.approx(NOW_S + PATIENCE_S - 30.0 + INTERVAL_S, rel=1e-6)


def test_a_job_that_others_overtake_on_the_nodes_it_is_kept_off_does_not_wait_for_ever(scores: Scores) -> None:
    """The slow node is never free when a tick looks: a job from behind gets it each time."""
    lease = lease_of("exclude", "n0", "", until_s=NOW_S + 99)
    behind = running(900, {"n0": (0, 1)})._replace(priority=1, start_s=lease.made_s + 1)
    busy = cluster(NODES, running(1, {"n1": (0, 1), "n2": (0, 1)}), behind)
    kept = job(exc_nodes=("n0",))
    assert wish(busy, scores(MIXED), kept, lease).could_start
    earlier = cluster(NODES, FULL, behind._replace(gpus={}, start_s=lease.made_s - 1))
    assert not wish(earlier, scores(MIXED), kept, lease).could_start
    assert wish(earlier, scores(MIXED), kept, lease, waited_s=15.0).could_start, "it has had its turn"


def test_only_the_first_in_the_queue_waits_because_of_us(scores: Scores) -> None:
    """One GPU of the slow node is free: all others of the queue would wait for it in vain, too."""
    jobs = [job(number, exc_nodes=("n0",)) for number in (11, 12, 13)]
    leases = {one.job_id: lease_of("exclude", "n0")._replace(job_id=one.job_id) for one in jobs}
    one_free = cluster(NODES, running(1, {"n0": (0,), "n1": (0, 1), "n2": (0, 1)}), *jobs)
    asked = [waiting(one, leases[one.job_id]) for one in jobs]
    found = retarget(one_free, scores(MIXED), asked, leases, Settings(), NOW_S, INTERVAL_S)
    assert [(w.action, w.could_start) for w in found] == [("keep", True), ("keep", False), ("keep", False)]


def test_each_lever_alone(scores: Scores) -> None:
    snapshot = broken(scores({"n0": [1.3, 1.3], "n1": [1.0, 1.0], "n2": [1.0, 1.0]}), {("n1", 0): "no_answer"})
    for fit, avoid, names in ((True, True, "n[0-1]"), (True, False, "n0"), (False, True, "n1"), (False, False, "")):
        one = job(gpus=2)
        seen, levers = cluster(NODES, FULL, one), Levers(fit, avoid)
        (found,) = retarget(seen, snapshot, [waiting(one)], {}, Settings(), NOW_S, INTERVAL_S, levers)
        assert found.fields == ({"ExcNodeList": names} if names else {})
    for fit, fields in ((True, {"ExcNodeList": "n0"}), (False, {})):
        one = job()
        seen, levers = cluster(NODES, SLOW_FREE, one), Levers(fit)
        (found,) = retarget(seen, scores(MIXED), [waiting(one)], {}, Settings(), NOW_S, INTERVAL_S, levers)
        assert found.fields == fields


def test_where_all_gpus_are_alike_nothing_is_ordered(scores: Scores) -> None:
    snapshot = scores({"n0": [1.0, 1.0], "n1": [1.0, 1.0], "n2": [1.0, 1.0]})
    for sensitivity in "AB?C":
        assert wish(cluster(NODES, FULL), snapshot, job(), sensitivity=sensitivity).fields == {}


def test_it_stays_off_slow_nodes_while_slurm_has_good_gpus_for_it(scores: Scores) -> None:
    only_n2 = cluster(NODES, running(1, {"n0": (0, 1), "n1": (0, 1)}))
    lease = lease_of("exclude", "n0", "", until_s=NOW_S + 99)
    assert wish(only_n2, scores(MIXED), job(exc_nodes=("n0",)), lease).action == "keep"


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ({"n0": [1.3, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}, {}),  # one good GPU is enough for it
        ({"n0": [1.3, 1.3], "n1": [1.3, 1.3], "n2": [1.3, 1.3]}, {}),  # no others could hold it
        (MIXED, {"TimeLimit": "00:03:00"}),  # waiting pays for less than one interval
        ({"n0": [1.0, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}, {}),
        (MIXED, {"CPUs/Task": "17", "NumCPUs": "17"}),  # nobody could hold it
    ],
)
def test_where_nothing_is_excluded_beforehand(scores: Scores, table: Table, changes: dict[str, str]) -> None:
    found = wish(cluster(NODES, FULL), scores(table), job(**changes))
    assert (found.action, found.fields, found.lease) == ("none", {}, None)
    assert wish(cluster(NODES, FULL), scores(MIXED), job(), sensitivity="C").action == "none"


def test_a_job_that_slurm_may_spread_is_kept_off_nothing(scores: Scores) -> None:
    """It would start at once on the first GPU of several nodes, at 1.7 instead of 1.3."""
    two = {"TresPerJob": "gres:gpu:2", "TresPerNode": ""}
    for seen in (FULL, SLOW_FREE):
        assert "ExcNodeList" not in wish(cluster(NODES, seen), scores(MIXED), job(gpus=2, **two, NumNodes="1-2")).fields
        one_node = job(gpus=2, NumNodes="1")
        assert wish(cluster(NODES, seen), scores(MIXED), one_node).fields == {"ExcNodeList": "n0"}


def test_two_gpus_need_two_good_ones_on_a_node(scores: Scores) -> None:
    table: Table = {"n0": [1.3, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
    assert wish(cluster(NODES, FULL), scores(table), job(gpus=2)).fields == {"ExcNodeList": "n0"}
    whole = job(OverSubscribe="NO")
    assert wish(cluster(NODES, FULL), scores(table), whole).fields == {"ExcNodeList": "n0"}


@pytest.mark.parametrize("busy", [FULL, SLOW_FREE])
def test_an_exclusion_ends_for_good_when_waiting_no_longer_pays(scores: Scores, busy: SlurmJob) -> None:
    lease = lease_of("exclude", "n0", "", until_s=NOW_S + 99)
    last_s = PATIENCE_S - INTERVAL_S
    before = wish(cluster(NODES, busy), scores(MIXED), job(exc_nodes=("n0",)), lease, waited_s=last_s - 1)
    assert before.action == "keep"
    after = wish(cluster(NODES, busy), scores(MIXED), job(exc_nodes=("n0",)), lease, waited_s=last_s + 1)
    assert (after.action, after.fields, after.lease) == ("clear", {"ExcNodeList": ""}, None)
    again = wish(cluster(NODES, busy), scores(MIXED), job(), None, waited_s=last_s + 1)
    assert again.action == "none"


# -- whom a tick leaves alone --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (job(reason="Dependency"), "Dependency"),
        (job(reason="BeginTime"), "BeginTime"),
        (job(reason="JobHeldUser"), "JobHeldUser"),
        (job(reason="QOSMaxJobsPerUserLimit"), "QOSMaxJobs"),
        (job(Priority="0"), "does not wait"),
        (job(req_nodes=("n1",)), "--nodelist"),
        (job(HetJobId="7"), "heterogeneous"),
    ],
)
def test_who_is_left_alone(scores: Scores, found: SlurmJob, word: str) -> None:
    made = wish(cluster(NODES), scores(MIXED), found)
    assert (made.action, made.fields, made.lease) == ("none", {}, None) and word in made.reason
    # What is ours on such a job is taken back all the same.
    lease = lease_of("exclude", "n0", "n9")
    cleared = wish(cluster(NODES), scores(MIXED), found._replace(exc_nodes=("n0",)), lease)
    assert (cleared.action, cleared.fields, cleared.lease) == ("clear", {"ExcNodeList": "n9"}, None)


@pytest.mark.parametrize("reason", ["", "None", "Priority", "ReqNodeNotAvail,_UnavailableNodes:n2"])
def test_reasons_that_a_list_can_help(scores: Scores, reason: str) -> None:
    assert wish(cluster(NODES), scores(MIXED), job(reason=reason)).action == "nodelist"


def test_jobs_that_are_not_ours_or_do_not_wait_get_no_wish(scores: Scores) -> None:
    jobs = [
        job(1, ""),
        job(2, "pal:it=3"),
        job(3, state="RUNNING"),
        job(4, AdminComment="pal:class=A;act=none;why=off"),
    ]
    asked = [waiting(one) for one in jobs]
    assert retarget(cluster(NODES), scores(MIXED), asked, {}, Settings(), NOW_S, INTERVAL_S) == []


def test_a_list_that_somebody_changed_is_not_touched(scores: Scores) -> None:
    for found, lease in (
        (job(req_nodes=("n1",)), lease_of("nodelist", "n2")),
        (job(exc_nodes=("n0", "n1")), lease_of("exclude", "n0")),
        (job(exc_nodes=("n1",)), lease_of("exclude", "n0")),
    ):
        made = wish(cluster(NODES), scores(MIXED), found, lease)
        assert (made.action, made.fields, made.lease) == ("none", {}, None) and "left alone" in made.reason
        assert over({7: lease}, [found], (), math.inf, 3.0) == [made]


def test_a_list_of_palsub_or_the_filter_is_left_until_it_is_over(scores: Scores) -> None:
    mark = f"pal:job=A;from=x {comment(60, '', '', 'exclude', 'n0')}"
    made = wish(cluster(NODES, FULL), scores(MIXED), job(mark=mark, exc_nodes=("n0",)))
    assert (made.action, made.fields, made.lease, made.could_start) == ("none", {}, None, False)
    assert wish(cluster(NODES, SLOW_FREE), scores(MIXED), job(mark=mark, exc_nodes=("n0",))).could_start
    assert wish(cluster(NODES), scores(MIXED), job(mark=mark)).action == "nodelist"  # taken back


@pytest.mark.parametrize(
    ("lease", "changes"),
    [
        (lease_of("move", "n2", until_s=NOW_S + 99), {"req_nodes": ("n2",)}),
        (lease_of("nodelist", "n2", until_s=NOW_S + 99), {"req_nodes": ("n2",), "restarts": 1}),
        (lease_of("nodelist", "n2", made_s=NOW_S + 99, until_s=NOW_S + 150), {"req_nodes": ("n2",)}),
        (lease_of("exclude", "n2", until_s=NOW_S + 99), {"exc_nodes": ("n2",), "restarts": 1}),
    ],
)
def test_leases_that_mean_nothing_any_more(scores: Scores, lease: TickLease, changes: dict[str, object]) -> None:
    made = wish(cluster(NODES), scores(MIXED), job(**changes), lease)
    assert made.action == "clear" and set(made.fields.values()) == {""} and made.lease is None
    assert over({7: lease}, [job(**changes)], (), NOW_S, 3.0) == [made]


@pytest.mark.parametrize(
    ("changes", "until_s", "ended"),
    [
        ({}, NOW_S, True),
        ({}, NOW_S + 1, False),
        ({"reason": "None"}, NOW_S, False),  # Slurm has not looked at it yet
        ({"reason": "None"}, NOW_S - 3, True),
        ({"reason": "JobHeldUser"}, NOW_S - 3, True),  # never left with our list
        ({"reason": "ReqNodeNotAvail"}, NOW_S + 99, True),
        ({"state": "RUNNING"}, NOW_S - 99, False),
    ],
)
def test_leases_that_are_over(changes: dict[str, object], until_s: float, ended: bool) -> None:
    lease = lease_of("nodelist", "n2", until_s=until_s)
    found = over({7: lease}, [job(req_nodes=("n2",), **changes), job(8)], (), NOW_S, 3.0)
    assert [one.fields for one in found] == ([{"ReqNodeList": ""}] if ended else [])


def test_a_list_that_is_gone_already_only_ends_in_the_journal() -> None:
    (found,) = over({7: lease_of("exclude", "n0,n9", "n9")}, [job(exc_nodes=("n9",))], (), NOW_S, 3.0)
    assert (found.action, found.fields, found.lease) == ("clear", {}, None)


# -- many ticks ----------------------------------------------------------------------------------


WIDE = 3
"""GPUs of a job that fits on no node."""


class Queue:
    """A cluster whose state changes between ticks, a Slurm that starts by priority, and one tick after another."""

    def __init__(self, seed: int, snapshot: Snapshot, table: Table, rivals: bool, lease_max_s: float) -> None:
        self.draw, self.snapshot, self.rivals = random.Random(seed), snapshot, rivals
        self.settings = Settings(lease_max_s=lease_max_s)
        self.nodes = [node(name, len(row)) for name, row in table.items()]
        self.busy: dict[str, set[int]] = {n.name: set() for n in self.nodes}
        self.held: dict[int, dict[str, tuple[int, ...]]] = {}
        self.jobs: dict[int, SlurmJob] = {}
        self.classes: dict[int, str] = {}
        self.own_exc: dict[int, tuple[str, ...]] = {}
        self.leases: dict[int, TickLease] = {}
        self.waited: Counter[int] = Counter()
        self.late: set[int] = set()  # jobs that a list of ours has kept from starting
        self.kept_off: Counter[int] = Counter()  # passes from then on in which they bore an exclusion
        self.in_a_row: Counter[int] = Counter()  # passes in which any list kept them from it, since they last bore none
        self.left_alone: dict[int, SlurmJob] = {}
        self.now_s = NOW_S
        for number in range(100, 106):
            self.add(number)

    def add(self, number: int) -> None:
        ours = self.draw.random() < 0.8
        self.own_exc[number] = ("n0",) if self.draw.random() < 0.2 else ()
        self.classes[number] = self.draw.choice("AB?C")
        mark = f"pal:job={self.classes[number]};from=x" if ours else "mine"
        minutes, gpus = self.draw.choice([5, 20, 60]), self.draw.choice([1, 1, 2, WIDE])
        changes: dict[str, object] = {"exc_nodes": self.own_exc[number], "TimeLimit": f"00:{minutes}:00"}
        if gpus == WIDE:
            nodes = self.draw.choice(["1", "1-5", "2-3"])
            changes |= {"TresPerNode": "", "TresPerJob": f"gres:gpu:{gpus}", "NumNodes": nodes}
        self.jobs[number] = job(number, mark, gpus, **changes)

    def free(self) -> dict[str, list[int]]:
        taken = {name: set(indexes) for name, indexes in self.busy.items()}
        for held in self.held.values():
            for name, indexes in held.items():
                taken[name] |= set(indexes)
        return {n.name: [k for k in range(n.n_gpus) if k not in taken[n.name]] for n in self.nodes}

    def change(self) -> None:
        """What happens between two ticks."""
        for name, indexes in self.free().items():
            for k in indexes:
                if self.draw.random() < 0.4:
                    self.busy[name].add(k)
            for k in sorted(self.busy[name]):
                if self.draw.random() < 0.3:
                    self.busy[name].discard(k)
        for number in sorted(self.held):
            if self.draw.random() < 0.3:
                del self.held[number]
                made = self.jobs[number]
                if self.draw.random() < 0.3 and number not in self.left_alone:  # requeued, with whatever list it bears
                    self.jobs[number] = made._replace(state="PENDING", restarts=made.restarts + 1)
                else:
                    del self.jobs[number]
                    self.leases.pop(number, None)
        pending = [n for n, one in sorted(self.jobs.items()) if one.state == "PENDING" and n not in self.left_alone]
        if pending and self.draw.random() < 0.05:  # a user has ideas of his own
            number = self.draw.choice(pending)
            changed = self.jobs[number]._replace(exc_nodes=("n0", "n1"), req_nodes=())
            self.jobs[number], self.left_alone[number] = changed, changed

    def overview(self) -> Overview:
        free, shown = self.free(), [running(1, {name: tuple(sorted(i)) for name, i in self.busy.items()})]
        for number, one in self.jobs.items():
            shown.append(one._replace(gpus=self.held.get(number, {})))
        there = tuple(n._replace(gpus_used=n.n_gpus - len(free[n.name])) for n in self.nodes)
        return Overview(there, tuple(shown), (Partition("gpu", True, True, tuple(free)),), {})

    def tick(self) -> None:
        known = {number: lease for number, lease in self.leases.items() if number not in self.left_alone}
        asked = [
            waiting(one, known.get(number), float(self.waited[number]), self.classes[number], gather=True)
            for number, one in self.jobs.items()
            if one.state == "PENDING" and number not in self.left_alone
        ]
        levers = Levers(gather=True)
        wishes = retarget(self.overview(), self.snapshot, asked, known, self.settings, self.now_s, INTERVAL_S, levers)
        assert len({w.job_id for w in wishes}) == len(wishes)
        self.check_claims(wishes)
        for made in wishes:
            self.carry_out(made)

    def check_claims(self, wishes: list[Wish]) -> None:
        """No two wishes claim the same GPU: on no node are more named than are free."""
        named: Counter[str] = Counter()
        for made in wishes:
            if made.lease is not None and made.lease.kind == "nodelist":
                for name in expand(made.lease.ours):
                    named[name] += self.jobs[made.job_id].gpus_per_node
        free = self.free()
        assert all(count <= len(free[name]) for name, count in named.items())

    def carry_out(self, made: Wish) -> None:
        one = self.jobs[made.job_id]
        assert "pal:job" in one.comment
        lists = {"ReqNodeList": "req_nodes", "ExcNodeList": "exc_nodes"}
        one = one._replace(**{lists[key]: expand(text) for key, text in made.fields.items()})  # type: ignore[arg-type]
        assert set(self.own_exc[made.job_id]) <= set(one.exc_nodes)
        self.jobs[made.job_id] = one
        self.leases.pop(made.job_id, None)
        if made.lease is not None:
            self.leases[made.job_id] = made.lease
        self.waited[made.job_id] += INTERVAL_S * made.could_start  # type: ignore[assignment]

    def start(self) -> None:
        """Slurm's pass: others first where there are rivals, then by priority."""
        if self.rivals:
            for name, indexes in self.free().items():
                if indexes and self.draw.random() < 0.3:
                    self.busy[name] |= set(indexes)
        missed: Counter[str] = Counter()  # GPUs that jobs ahead would have got, but for an exclusion of ours
        for number, one in sorted(self.jobs.items()):
            if one.state != "PENDING":
                continue
            free = self.free()
            may = [name for name in free if name not in one.exc_nodes and (not one.req_nodes or name in one.req_nodes)]
            taken = taking(one.gpus_per_node, {name: free[name] for name in may})
            there = {name: indexes for name, indexes in free.items() if name not in self.own_exc[number]}
            if taken:
                self.held[number] = taken
                self.jobs[number] = one._replace(state="RUNNING")
                self.in_a_row[number] = 0
            elif number not in self.leases or number in self.left_alone:
                self.in_a_row[number] = 0
            elif taking(one.gpus_per_node, there):
                would = taking(one.gpus_per_node, {name: i[missed[name] :] for name, i in there.items()})
                if would:
                    self.late.add(number)
                    missed.update({name: len(indexes) for name, indexes in would.items()})
                if number in self.late and self.leases[number].kind == "exclude":
                    self.kept_off[number] += 1
                self.in_a_row[number] += bool(would)


def taking(gpus: int, free: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """What Slurm gives a job, {} where it does not start: on one node, or of a wide job wherever there are any."""
    found: dict[str, tuple[int, ...]] = {}
    for name, indexes in free.items():
        left = gpus - sum(map(len, found.values()))
        if indexes and left and (gpus == WIDE or len(indexes) >= gpus):
            found[name] = tuple(indexes[:left])
    return found if sum(map(len, found.values())) == gpus else {}


@trials(60)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([20.0, 60.0, 200.0]))
def test_many_ticks(scores: Scores, seed: int, rivals: bool, lease_max_s: float) -> None:
    draw = random.Random(seed)
    table: Table = {f"n{i}": [draw.choice([0.95, 1.0, 1.2, 1.5]) for _ in range(2)] for i in range(5)}
    queue = Queue(seed, scores(table), table, rivals, lease_max_s)
    for number in range(110, 170):
        queue.change()
        if len(queue.jobs) < 8:
            queue.add(number)
        queue.tick()
        queue.start()
        queue.now_s += INTERVAL_S
        assert all(passes * INTERVAL_S <= lease_max_s + INTERVAL_S for passes in queue.kept_off.values())
        # GPUs that were named and lost to others cost one pass more.
        assert all(passes * INTERVAL_S <= lease_max_s + 2 * INTERVAL_S for passes in queue.in_a_row.values())
    for number, one in queue.left_alone.items():
        if number in queue.jobs:
            assert (queue.jobs[number].req_nodes, queue.jobs[number].exc_nodes) == (one.req_nodes, one.exc_nodes)
    known = {number: lease for number, lease in queue.leases.items() if number not in queue.left_alone}
    for made in over(known, queue.jobs.values(), (), math.inf, 3.0):
        queue.carry_out(made)
    for number, one in queue.jobs.items():
        if one.state == "PENDING" and number not in queue.left_alone:
            assert (one.req_nodes, one.exc_nodes) == ((), queue.own_exc[number])


# -- totals of GPUs on an open number of nodes --------------------------------------------------


def total(gpus: int = 2, **changes: object) -> SlurmJob:
    return job(TresPerNode="", TresPerJob=f"gres:gpu:{gpus}", **changes)


def gathered(overview: Overview, snapshot: Snapshot, one: SlurmJob, gather: bool = True) -> Wish:
    whole = overview._replace(jobs=(*overview.jobs, one))
    asked = [Waiting(one, request_of(one, gather=gather), "A", 0.0)]
    (found,) = retarget(whole, snapshot, asked, {}, Settings(), NOW_S, INTERVAL_S, Levers(gather=gather))
    return found


def test_more_gpus_than_a_node_has_are_kept_off_nodes_with_a_slow_one(scores: Scores) -> None:
    """Slurm starts it on nodes of its own choice, and gives it nearly all GPUs of each."""
    table: Table = {"n0": [1.3, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
    found = gathered(cluster(NODES, FULL), scores(table), total(3, NumNodes="1"))
    assert (found.action, found.fields, found.could_start) == ("exclude", {"ExcNodeList": "n0"}, False)
    assert found.lease is not None
    patience_s = 0.5 * 0.3 * Settings().locality_penalty * 1800
    assert found.lease.until_s == pytest.approx(NOW_S + patience_s + INTERVAL_S, rel=1e-6)


@pytest.mark.parametrize(
    ("gpus", "changes"),
    [
        (5, {}),  # the others have no room for it
        (4, {"NumNodes": "1-1"}),
        (4, {"MinMemoryCPU": "99G"}),  # nobody could hold it
        (3, {"TimeLimit": "00:01:00"}),  # waiting pays for less than one interval
    ],
)
def test_where_more_gpus_than_a_node_has_are_kept_off_nothing(
    scores: Scores, gpus: int, changes: dict[str, str]
) -> None:
    table: Table = {"n0": [1.3, 1.0], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
    found = gathered(cluster(NODES, FULL), scores(table), total(gpus, **{"NumNodes": "1", **changes}))
    assert (found.action, found.fields) == ("none", {})


def test_the_turn_of_more_gpus_than_a_node_has(scores: Scores) -> None:
    """It waits because of us where the slow node has what it lacks elsewhere."""
    table: Table = {"n0": [1.3, 1.3], "n1": [1.0, 1.0], "n2": [0.9, 0.9]}
    lease = lease_of("exclude", "n0", until_s=NOW_S + 99)
    kept = total(3, NumNodes="1", exc_nodes=("n0",))
    asked = [Waiting(kept, request_of(kept, None, (), gather=True), "A", 0.0)]
    for taken, turn in (
        ({"n1": (0, 1), "n2": (0, 1)}, False),  # two are free on n0, and it needs three
        ({"n1": (0, 1), "n2": (0,)}, True),
        ({"n0": (0, 1), "n1": (0, 1), "n2": (0,)}, False),
    ):
        seen = cluster(NODES, running(1, taken), kept)
        (found,) = retarget(seen, scores(table), asked, {7: lease}, Settings(), NOW_S, INTERVAL_S, Levers(gather=True))
        assert (found.action, found.could_start) == ("keep", turn)


@pytest.mark.parametrize("nodes", ["1", "1-3"])
def test_a_total_is_sent_to_one_node_by_an_update_that_a_running_job_refuses(scores: Scores, nodes: str) -> None:
    free = cluster(NODES, running(1, {"n0": (0,), "n1": (0,)}))
    found = gathered(free, scores(MIXED), total(NumNodes=nodes))
    assert (found.action, found.fields) == (WishAction.NODELIST, {"ReqNodeList": "n2"})
    assert found.guard == {"Partition": "gpu,gpu"}
    kept = gathered(free, scores(MIXED), total(NumNodes=nodes), gather=False)
    assert not kept.fields and not kept.guard and "open" in kept.reason


def test_a_list_for_a_fixed_number_of_nodes_needs_no_guard(scores: Scores) -> None:
    found = gathered(cluster(NODES), scores(MIXED), total(NumNodes="1-1"))
    assert found.action == WishAction.NODELIST and not found.guard
    one = gathered(cluster(NODES), scores(MIXED), job())
    assert one.action == WishAction.NODELIST and not one.guard


def test_a_number_on_each_of_several_nodes_stays_open(scores: Scores) -> None:
    """Of a range of nodes Slurm would take as many as it can, beside the named ones."""
    found = gathered(cluster(NODES), scores(MIXED), job(NumNodes="1-2", gpus=2))
    assert not found.fields and found.reason == "on how many nodes it will start is open"
