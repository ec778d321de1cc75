# SPDX-License-Identifier: MIT
"""Which job waits behind a fence, for how long, and when the fence goes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.cluster import Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.case import Settings
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.pending import head
from slurm_pal.pending.head import FENCE_S, Wait, limits_say_nothing, over, plan
from slurm_pal.pending.retarget import Wish, WishAction, retarget
from slurm_pal.placement.patience import expected_wait_s
from slurm_pal.slurm.client import Overview

from .test_retarget import (
    FULL,
    INTERVAL_S,
    MIXED,
    NODES,
    NOW_S,
    PATIENCE_S,
    SLOW_FREE,
    Scores,
    cluster,
    job,
    lease_of,
    node,
    running,
    scores,
    waiting,
)  # fmt: skip

__all__ = ["scores"]
WAIT = Wait(Settings(), 3600.0, INTERVAL_S)
FENCE = TickLease(7, LeaseKind.FENCE, "n0", "", NOW_S - 60, NOW_S + PATIENCE_S - 60, 0, "why")


def wish(
    overview: Overview, scores: Scores, one: SlurmJob, fence: TickLease | None = None, waited_s: float = 0.0,
    wait: Wait = WAIT, sensitivity: str = "A",
) -> Wish | None:  # fmt: skip
    whole = overview._replace(jobs=(*overview.jobs, one))
    fences = {one.job_id: fence} if fence is not None else {}
    asked = [waiting(one, None, waited_s, sensitivity)]
    found = plan(whole, scores(MIXED), asked, fences, wait, NOW_S)
    assert len(found) <= 1 and all(one_.sort is Sort.FENCES and not one_.fields for one_ in found)
    return found[0] if found else None


def test_the_first_job_waits_for_as_long_as_that_pays(scores: Scores) -> None:
    found = wish(cluster(NODES, SLOW_FREE), scores, job(gpus=2))
    assert found is not None and found.action is WishAction.FENCE and found.lease is not None
    assert (found.lease.ours, found.lease.made_s) == ("n0", NOW_S)
    assert found.lease.until_s == pytest.approx(NOW_S + PATIENCE_S)
    assert found.lease.reservation == f"pal_wait_7_{NOW_S:.0f}"


@pytest.mark.parametrize(("longest_s", "waited_s"), [(200.0, 0.0), (3600.0, 100.0), (200.0, 50.0)])
def test_no_longer_than_the_site_allows_and_what_it_has_waited_counts(
    scores: Scores, longest_s: float, waited_s: float
) -> None:
    found = wish(cluster(NODES, SLOW_FREE), scores, job(gpus=2), None, waited_s, WAIT._replace(longest_s=longest_s))
    assert found is not None and found.lease is not None
    assert found.lease.until_s == pytest.approx(NOW_S + min(PATIENCE_S, longest_s) - waited_s)


OTHER = job(3, "", gpus=1)  # of higher priority


@pytest.mark.parametrize(
    ("others", "queued", "changes"),
    [
        ([OTHER], set(), {}),  # it is not the first
        ([], {("gpu", "Resources")}, {}),  # nor may it be
        ([], {("other,gpu", "Resources")}, {}),
        ([], set(), {"reason": "Priority"}),
        ([], set(), {"reason": "Dependency"}),
        ([], set(), {"partition": "gpu,b"}),
    ],
)
def test_only_the_surely_first_job_of_a_queue_waits(
    scores: Scores, others: list[SlurmJob], queued: set[tuple[str, str]], changes: dict[str, str]
) -> None:
    there = cluster(NODES, SLOW_FREE, *others)._replace(queued=frozenset(queued))
    one = job(gpus=2)._replace(**changes)  # type: ignore[arg-type]
    found = wish(there, scores, one)
    assert found is None
    assert wish(there._replace(queued=frozenset({("gpu", "Priority")}), jobs=(SLOW_FREE,)), scores, job(gpus=2))


def test_a_job_that_waits_first_in_a_partition_that_shares_nodes_is_in_the_way(scores: Scores) -> None:
    there = cluster(NODES, SLOW_FREE)
    for nodes, first in ((("n2",), False), (("n9",), True)):
        parts = (*there.partitions, Partition("b", False, True, nodes))
        seen = there._replace(partitions=parts, queued=frozenset({("b", "Resources")}))
        assert (wish(seen, scores, job(gpus=2)) is not None) is first


def test_nothing_where_nothing_is_free_or_better_is_free_or_the_job_does_not_care(scores: Scores) -> None:
    assert wish(cluster(NODES, FULL), scores, job(gpus=2)) is None
    assert wish(cluster(NODES), scores, job(gpus=2)) is None
    assert wish(cluster(NODES, SLOW_FREE), scores, job(gpus=2), sensitivity="C") is None


def why_not(found: Wish | None) -> str:
    assert found is not None and found.action is WishAction.NONE and found.lease is None
    return found.reason


def test_why_a_job_does_not_wait_is_said(scores: Scores) -> None:
    there = cluster(NODES, SLOW_FREE)
    parts = tuple(part._replace(max_time_s=3600, default_time_s=60) for part in there.partitions)
    assert "say nothing" in why_not(wish(there._replace(partitions=parts), scores, job(gpus=2)))
    assert "too short a time" in why_not(wish(there, scores, job(gpus=2), waited_s=PATIENCE_S - FENCE_S))
    late = [running(k, {name: (0, 1)})._replace(time_limit_s=1100) for k, name in ((1, "n1"), (2, "n2"))]
    said = why_not(wish(cluster(NODES, *late), scores, job(gpus=2)))  # 550 s each
    assert f"expected only in 275 s, and waiting pays for {PATIENCE_S:.0f} s" in said
    wide = [node("n0", 8), *NODES[1:]]
    table = MIXED | {"n0": [1.3] * 8}
    busy = running(1, {"n1": (0, 1), "n2": (0, 1)})._replace(time_limit_s=600)  # expected after 150 s
    seen = cluster(wide, busy, job(gpus=2))
    (found,) = plan(seen, scores(table), [waiting(job(gpus=2))], {}, WAIT, NOW_S)
    assert "6 more GPUs of n0 would stay idle" in why_not(found)


def test_the_fence_goes_when_the_job_starts_or_is_overtaken_or_its_time_is_over(scores: Scores) -> None:
    there = cluster(NODES, SLOW_FREE)
    kept = wish(there, scores, job(gpus=2), FENCE)
    assert kept is not None and (kept.action, kept.lease, kept.could_start) == (WishAction.KEEP, FENCE, True)
    for changes, word in (
        ({"reason": "Priority"}, "no longer the first"), ({"reason": "JobHeldUser"}, "does not wait"),
        ({"restarts": 1}, "a start that has been"), ({"state": "RUNNING"}, "has started"),
    ):  # fmt: skip
        found = wish(there, scores, job(gpus=2)._replace(**changes), FENCE)  # type: ignore[arg-type]
        assert found is not None and found.action is WishAction.FENCE_CLEAR and word in found.reason
    for left_s, ends in ((FENCE_S + 1, False), (FENCE_S, True), (-5.0, True)):
        found = wish(there, scores, job(gpus=2), FENCE._replace(until_s=NOW_S + left_s))
        assert found is not None and (found.action is WishAction.FENCE_CLEAR) is ends
    assert [one.action for one in over({7: FENCE}, [], NOW_S)] == [WishAction.FENCE_CLEAR]
    assert over({7: FENCE}, [job()], NOW_S) == []
    assert [one.action for one in head.cleared({7: FENCE}, "why")] == [WishAction.FENCE_CLEAR]
    assert head.standing({7: FENCE}, head.cleared({7: FENCE}, "why")) == {} != head.standing({7: FENCE}, [])


def test_behind_a_fence_only_the_other_slow_nodes_are_excluded_and_for_as_long(scores: Scores) -> None:
    more = [*NODES, node("n3")]
    table = MIXED | {"n3": [1.4, 1.4]}
    one = job(gpus=2, exc_nodes=("n0", "n3"))
    lease = lease_of("exclude", "n[0,3]")
    seen = cluster(more, running(1, {"n1": (0, 1), "n2": (0, 1), "n3": (0, 1)}), one)
    asked = [waiting(one, lease, 30.0)]

    def wished(fence: TickLease | None) -> Wish:
        fences = {7: fence} if fence is not None else {}
        settings = Settings(lease_max_s=100.0)
        (found,) = retarget(seen, scores(table), asked, {7: lease}, settings, NOW_S, INTERVAL_S, fences=fences)
        return found

    assert wished(None).action is WishAction.KEEP
    found = wished(FENCE)
    assert (found.action, found.fields) == (WishAction.EXCLUDE, {"ExcNodeList": "n3"}) and found.could_start
    assert found.lease is not None and found.lease.until_s == FENCE.until_s + INTERVAL_S
    everything = wished(FENCE._replace(ours="n[0,3]"))
    assert (everything.action, everything.fields) == (WishAction.CLEAR, {"ExcNodeList": ""}) and everything.could_start


def test_once_its_patience_has_ended_nothing_keeps_it_off_those_nodes(scores: Scores) -> None:
    """Backfill plans the job on the nodes of its fence, so they do not look free, and an advance exclusion would."""
    planned = [NODES[0]._replace(states=frozenset({"IDLE", "PLANNED"})), *NODES[1:]]
    asked = [waiting(job(7, gpus=2), None, 60.0)]
    seen = cluster(planned, SLOW_FREE, job(7, gpus=2))
    for patient, action in ((True, WishAction.EXCLUDE), (False, WishAction.NONE)):
        gone = frozenset() if patient else head.impatient([FENCE], asked, FENCE.until_s - FENCE_S)
        (found,) = retarget(seen, scores(MIXED), asked, {}, Settings(), NOW_S, INTERVAL_S, impatient=gone)
        assert found.action is action
    assert head.impatient([FENCE], asked, FENCE.until_s - FENCE_S - 1) == frozenset()
    assert head.impatient([FENCE._replace(restarts=1)], asked, FENCE.until_s) == frozenset()
    assert head.impatient([FENCE], [], FENCE.until_s) == frozenset()


def test_no_other_job_is_sent_behind_a_fence(scores: Scores) -> None:
    """A measured class C would be sent to the slow node: Slurm would not start it there before the fence has gone."""
    table = MIXED | {"n3": [1.2, 1.2]}
    seen = cluster([*NODES, node("n3")], SLOW_FREE, job(7, gpus=2), job(8, gpus=2))
    asked = [waiting(job(7, gpus=2)), waiting(job(8, gpus=2), None, 0.0, "C", measured=True)]
    for fences, sent in (({}, True), ({7: FENCE}, False)):
        wishes = retarget(seen, scores(table), asked, {}, Settings(), NOW_S, INTERVAL_S, fences=fences)
        found = {one.job_id: one for one in wishes}
        assert (found[8].fields.get("ReqNodeList") == "n0") is sent
        assert found[7].could_start  # it is kept off n0 by the list, or by its fence


@pytest.mark.parametrize(
    ("limits", "silent"),
    [([3600, 60], False), ([3600, 3600], True), ([3600, 3600, 60, 60], False), ([None, 60, 1800], True), ([], False)],
)
def test_limits_say_nothing_where_most_are_the_partitions_own(limits: list[int | None], silent: bool) -> None:
    part = Partition("gpu", True, True, ("n0",), max_time_s=3600, default_time_s=1800)
    jobs = [job(k)._replace(time_limit_s=limit) for k, limit in enumerate(limits)]
    others = [job(90 + k)._replace(partition="other", time_limit_s=60) for k in range(5)]
    ended = [job(80 + k)._replace(state="COMPLETED", time_limit_s=60) for k in range(5)]
    assert limits_say_nothing([*jobs, *others, *ended], [part], {"gpu"}) is silent


def test_the_expected_wait_by_hand() -> None:
    assert expected_wait_s(1, 1, []) == math.inf
    assert expected_wait_s(1, 1, [(0, [(60.0, 1)])]) == pytest.approx(60)
    assert expected_wait_s(1, 1, [(0, [(60.0, 1)])] * 3) == pytest.approx(20)
    assert expected_wait_s(2, 1, [(1, [(60.0, 1)])]) == pytest.approx(60)
    assert expected_wait_s(2, 1, [(0, [(60.0, 1), (60.0, 1)])]) == pytest.approx(90)  # 30 s, then 60 s
    assert expected_wait_s(2, 1, [(0, [(60.0, 1)])]) == math.inf
    assert expected_wait_s(1, 2, [(0, [(60.0, 1)])] * 2) == pytest.approx(90)
    assert expected_wait_s(1, 2, [(0, [(60.0, 1)])]) == math.inf
    assert expected_wait_s(1, 1, [(1, []), (0, [(60.0, 1)])]) < 1e-6


@given(st.lists(st.tuples(st.floats(10, 1e5), st.integers(1, 4)), min_size=1, max_size=6), st.integers(1, 4))
def test_more_nodes_never_wait_longer_and_more_gpus_never_shorter(held: list[tuple[float, int]], count: int) -> None:
    there = [(0, held)]
    assert expected_wait_s(count, 1, there * 2) <= expected_wait_s(count, 1, there)
    assert expected_wait_s(count, 1, there) <= expected_wait_s(count + 1, 1, there)
