# SPDX-License-Identifier: MIT
"""Which list of partitions a pending job should have, given where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.ownership import Whose, of_lease
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.partitions import sharing
from slurm_pal.partitions.sharing import NOT_TAKEN, Claimant, Room, SharingTerms
from slurm_pal.pending.retarget import Wish

from ...doubles.trials import trials

NOW_S = 1_700_000_000.0
TERMS = SharingTerms(pass_s=3.0, interval_s=15.0, longest_s=3600.0)
NODES = {"slow": ("s0", "s1"), "fast": ("f0", "f1"), "medium": ("m0",)}
EXACT = {"slow": 0.0, "fast": 0.0, "medium": 0.0}
UP = frozenset(NODES)
OWN = "fast,slow"
WIDE = "fast,medium,slow"
SPEEDS = {"slow": 1.0, "medium": 2.0, "fast": 4.0}


def job(partition: str = OWN, **given: Any) -> SlurmJob:  # noqa: ANN401
    base = SlurmJob(
        7, "PENDING", "Resources", "u", "app", partition, {}, (), (), (), NOW_S, 0.0, 0.0, 7200, 0, "", 0, priority=10,
    )  # fmt: skip
    return base._replace(**given)


def claimant(of: SlurmJob, **given: Any) -> Claimant:  # noqa: ANN401
    speed = {"slow": 1.0, "fast": 4.0}
    one = Claimant(of, ("fast", "slow"), GpuShape(2), speed, EXACT, NODES, 3600.0, 0.0)
    return one._replace(**given)


def wide(partition: str = WIDE, **given: Any) -> Claimant:  # noqa: ANN401
    return claimant(job(partition), own=("fast", "medium", "slow"), speed=SPEEDS)._replace(**given)


def room(**free: int) -> Room:
    return Room({name: [""] * count for name, count in free.items()})


def lease(ours: str, until_s: float = NOW_S, **given: Any) -> TickLease:  # noqa: ANN401
    return TickLease(7, LeaseKind.PARTITION, ours, OWN, NOW_S - 20, until_s, 0, "why")._replace(**given)


def wish(
    one: Claimant, belongs: dict[str, float], free: Room, before: TickLease | None = None, up: frozenset[str] = UP
) -> Wish:
    leases = {} if before is None else {one.job.job_id: before}
    (found,) = sharing.share([one], [belongs], leases, free, up, TERMS, NOW_S)
    assert found.sort is Sort.PARTITIONS
    return found


# -- a list of ours --------------------------------------------------------------------------


def test_room_where_it_belongs_is_taken() -> None:
    found = wish(claimant(job()), {"fast": 0.8, "slow": 0.2}, room(s0=4, f0=4))
    assert (found.action, found.fields) == ("partition", {"Partition": "fast"})
    assert found.lease == TickLease(7, LeaseKind.PARTITION, "fast", OWN, NOW_S, NOW_S + 15, 0, found.reason)
    assert found.could_start  # an interval that Slurm may let go by
    assert not wish(claimant(job()), {"fast": 1.0}, room(f0=4)).could_start


def test_waits_where_that_pays_and_only_so_long() -> None:
    one = claimant(job())
    found = wish(one, {"fast": 1.0}, room(s0=4))
    assert found.fields == {"Partition": "fast"} and found.could_start
    full = wish(one, {"fast": 1.0}, room())
    assert full.fields == {"Partition": "fast"} and not full.could_start
    tired = wish(claimant(job("fast"), waited_s=3600.0), {"fast": 1.0}, room(s0=4), lease("fast"))
    assert (tired.action, tired.fields, tired.lease) == ("partition-clear", {"Partition": OWN}, None)


def test_what_was_counted_is_not_forgotten_when_room_appears() -> None:
    """GPUs that look free and are not, now and then, must not buy a job new waiting."""
    tired = claimant(job(), waited_s=3590.0)
    assert wish(tired, {"fast": 1.0}, room(f0=4, s0=4)).action == "none"
    assert wish(tired, {"fast": 1.0}, room(f0=4)).action == "none"
    fresh = claimant(job(), speed={"slow": 3.9, "fast": 4.0}, run_s=60.0)  # waiting never pays
    assert wish(fresh, {"fast": 1.0}, room(f0=4, s0=4)).fields == {"Partition": "fast"}
    assert wish(fresh._replace(waited_s=15.0), {"fast": 1.0}, room(f0=4, s0=4)).action == "none"


def test_while_it_is_named_a_partition_without_starting_there_its_waiting_is_counted() -> None:
    standing = lease("fast", until_s=NOW_S + 3000)
    found = wish(claimant(job("fast"), waited_s=15.0), {"fast": 1.0}, room(s0=4, f0=4), standing)
    assert found.action == "keep" and found.could_start
    assert found.lease is not None and found.lease.until_s == NOW_S + 15  # from now on Slurm has its pass for it


def test_a_list_that_has_stood_for_long_makes_way_for_one_interval() -> None:
    """What we take for no room elsewhere may be room."""
    old = lease("fast", until_s=NOW_S + 3000, made_s=NOW_S - 3600)
    found = wish(claimant(job("fast")), {"fast": 1.0}, room(), old)
    assert found.fields == {"Partition": OWN} and "one interval" in found.reason
    young = old._replace(made_s=NOW_S - 3599)
    kept = wish(claimant(job("fast")), {"fast": 1.0}, room(), young)
    assert kept.action == "keep" and kept.lease is not None and kept.lease.made_s == young.made_s


def test_what_nobody_knows_keeps_no_job_waiting() -> None:
    sure, unsure = claimant(job()), claimant(job(), error={"slow": 2.0, "fast": 2.0})
    assert sharing.patience_s(unsure, ["fast"], ["slow"]) < 0.5 * sharing.patience_s(sure, ["fast"], ["slow"])
    same = claimant(job(), speed={"slow": 1.0, "fast": 1.0})
    assert sharing.patience_s(same, ["fast"], ["slow"]) == 0.0
    assert wish(same, {"fast": 1.0}, room(s0=4)).action == "none"


def test_patience_is_half_of_what_the_faster_partition_saves() -> None:
    # 3600 s in the slowest partition are 900 s in the fast one.
    assert sharing.patience_s(claimant(job()), ["fast"], ["slow"]) == pytest.approx((3600 - 900) / 2)
    assert sharing.patience_s(claimant(job()), ["slow"], ["fast"]) == 0.0
    # It may come to run in the slower one of its list.
    assert sharing.patience_s(wide(), ["fast", "medium"], ["slow"]) == pytest.approx((3600 - 1800) / 2)


def test_a_list_that_slurm_did_not_start_it_with_is_not_set_again() -> None:
    tried = lease("fast")
    one = claimant(job("fast"), speed={"slow": 3.9, "fast": 4.0}, run_s=60.0)
    found = wish(one, {"fast": 1.0}, room(s0=4, f0=4), tried)
    assert found.action == "partition-clear"
    fresh = wish(one, {"fast": 1.0}, room(s0=4, f0=4), lease("fast", until_s=NOW_S + 5))
    assert (fresh.action, fresh.fields) == ("keep", {}) and fresh.lease is not None
    assert fresh.lease.until_s == NOW_S + 5


def test_a_partition_that_slurm_leaves_free_does_not_change_its_list_from_tick_to_tick() -> None:
    belongs = {"fast": 0.6, "medium": 0.4}
    free = {"f0": 4}
    named = wish(wide(), belongs, room(**free))
    assert named.fields == {"Partition": "fast"} and named.lease is not None
    tried = named.lease._replace(until_s=NOW_S, made_s=NOW_S - 15)
    widened = wish(wide("fast"), belongs, room(**free), tried)
    assert widened.fields == {"Partition": "fast,medium"} and widened.lease is not None
    kept = wish(wide("medium,fast"), belongs, room(**free), widened.lease)
    assert (kept.action, kept.fields) == ("keep", {})


def test_where_naming_one_no_longer_pays_all_where_it_belongs_may() -> None:
    # Kept off the medium partition it gains less than kept off the slow one.
    one = wide(waited_s=800.0)
    assert sharing.patience_s(one, ["fast"], ["medium", "slow"]) == pytest.approx((1800 - 900) / 2)
    found = wish(one, {"fast": 0.5, "medium": 0.5}, room(f0=4))
    assert found.fields == {"Partition": "fast,medium"}


def test_what_slurm_refuses_is_given_up_at_once() -> None:
    found = wish(claimant(job("fast", reason="PartitionTimeLimit")), {"fast": 1.0}, room(f0=4), lease("fast"))
    assert (found.action, found.fields) == ("partition-clear", {"Partition": OWN})
    assert found.reason.startswith(NOT_TAKEN)
    again = wish(claimant(job("fast", reason="QOSMaxGRESPerUser")), {"fast": 1.0}, room(f0=4), lease("fast"))
    assert again.action == "partition-clear"


def test_somebody_elses_list_stays() -> None:
    found = wish(claimant(job("other")), {"fast": 1.0}, room(f0=4), lease("fast"))
    assert (found.action, found.fields, found.lease) == ("none", {}, None)


def test_after_a_requeue_the_list_is_looked_at_anew() -> None:
    found = wish(claimant(job("fast", restarts=1)), {"slow": 1.0}, room(s0=4), lease("fast"))
    assert found.fields == {"Partition": "slow"} and found.lease is not None and found.lease.restarts == 1
    limited = wish(claimant(job("fast", restarts=1, reason="QOSGrpGRES")), {"fast": 1.0}, room(f0=4), lease("fast"))
    assert limited.lease is not None and limited.lease.restarts == 1


def test_a_list_from_a_later_time_is_made_anew() -> None:
    """The clock was set back by a day: neither its age nor its end tells anything."""
    late = lease("fast", until_s=NOW_S + 86400, made_s=NOW_S + 86000)
    found = wish(claimant(job("fast")), {"fast": 1.0}, room(f0=4), late)
    assert found.lease is not None and (found.lease.made_s, found.lease.until_s) == (NOW_S, NOW_S + 15)
    skewed = lease("fast", until_s=NOW_S + 9, made_s=NOW_S + 4)
    assert wish(claimant(job("fast")), {"fast": 1.0}, room(f0=4), skewed).action == "keep"


def test_no_share_and_all_shares_leave_the_users_list() -> None:
    assert wish(claimant(job()), {}, room(f0=4)).action == "none"
    assert wish(claimant(job()), {"fast": 0.5, "slow": 0.5}, room()).action == "none"
    assert wish(claimant(job("fast")), {}, room(f0=4), lease("fast")).fields == {"Partition": OWN}


def test_a_partition_where_it_cannot_run_is_never_chosen() -> None:
    one = claimant(job(), speed={"slow": 1.0})
    assert wish(one, {"fast": 1.0}, room(f0=4, s0=4)).action == "none"
    assert wish(one, {"slow": 1.0}, room()).action == "none"  # there is nothing to keep it off
    assert wish(claimant(job(), speed={"slow": 1.0, "fast": 0.0}), {"fast": 1.0}, room(f0=4)).action == "none"


def test_a_partition_that_the_lists_on_the_job_close_is_not_chosen() -> None:
    """The other stays a partition that it is kept off, so that a list which stands is kept."""
    pinned = claimant(job(), closed=frozenset({"fast"}))
    assert wish(pinned, {"fast": 1.0}, room(f0=4)).action == "none"
    assert wish(pinned, {"fast": 0.9, "slow": 0.1}, room(f0=4, s0=4)).fields == {"Partition": "slow"}
    standing = claimant(job("fast"), closed=frozenset({"slow"}))
    assert wish(standing, {"fast": 1.0}, room(), lease("fast", until_s=NOW_S + 10)).action == "keep"


def test_a_partition_without_what_it_needs_beside_gpus_has_no_room() -> None:
    one = claimant(job(), nodes={"slow": ("s0", "s1"), "fast": ()})
    found = wish(one, {"fast": 1.0}, room(f0=4))
    assert found.lease is not None and found.lease.until_s > NOW_S + 60  # it waits there


def test_jobs_do_not_get_the_same_gpus() -> None:
    jobs = [claimant(job(job_id=k)) for k in (1, 2)]
    found = sharing.share(jobs, [{"fast": 1.0}] * 2, {}, room(f0=2, s0=2), UP, TERMS, NOW_S)
    untils = [one.lease.until_s - NOW_S for one in found if one.lease]
    assert untils[0] == 15 and untils[1] > 60  # the second one waits for the fast ones
    left = [claimant(job(job_id=1)), claimant(job(job_id=2))]
    (first, second) = sharing.share(left, [{}, {"fast": 1.0}], {}, room(f0=2, s0=2), UP, TERMS, NOW_S)
    assert first.action == "none" and second.lease is not None and second.lease.until_s > NOW_S + 60


# -- room ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "free", "fits"),
    [
        (GpuShape(4), {"f0": 2, "f1": 2}, True),
        (GpuShape(5), {"f0": 2, "f1": 2}, False),
        (GpuShape(4, nodes=1, per_node=4), {"f0": 2, "f1": 2}, False),
        (GpuShape(4, nodes=2, per_node=2), {"f0": 2, "f1": 2}, True),
        (GpuShape(4, nodes=2, per_node=2), {"f0": 4}, False),
        (GpuShape(4, nodes=2), {"f0": 4}, False),  # each of two nodes gives one at least
        (GpuShape(4, nodes=2), {"f0": 4, "f1": 1}, True),
        (GpuShape(4, nodes=2), {"f0": 2, "f1": 1}, False),
        (GpuShape(1), {"s0": 4}, False),
    ],
)
def test_room(shape: GpuShape, free: dict[str, int], fits: bool) -> None:
    there = room(**free)
    assert there.take(NODES["fast"], shape, claim=True) is fits
    assert there.take(NODES["fast"], shape, claim=False) is (fits and shape.total * 2 <= sum(free.values()))


def test_a_stated_number_of_nodes_is_neither_more_nor_fewer() -> None:
    there = room(f0=1, f1=1, m0=3)
    assert not there.take(("f0", "f1", "m0"), GpuShape(5, nodes=2), claim=False)
    assert there.take(("f0", "f1", "m0"), GpuShape(5), claim=False)
    assert there.take(("f0", "f1", "m0"), GpuShape(3, nodes=3), claim=True)
    assert there.take(("m0",), GpuShape(2), claim=True) and not there.take(("f0", "f1"), GpuShape(1), claim=False)


def test_room_by_type_and_in_whole_nodes() -> None:
    there = Room({"f0": ["v100", "a100"], "f1": ["a100"]}, {"f0"})
    assert not there.take(("f0", "f1"), GpuShape(2, 1, 2, "a100"), claim=False)
    assert there.take(("f0", "f1"), GpuShape(2, gpu_type="a100"), claim=False)
    alone = GpuShape(1, 1, 1, whole_nodes=True)
    assert not there.take(("f1",), alone, claim=False)
    assert there.take(("f0",), alone, claim=True)
    assert not there.take(("f0",), GpuShape(1), claim=False)  # it has all GPUs of the node
    mixed = Room({"f0": ["v100", "a100"]}, {"f0"})
    assert mixed.take(("f0",), alone._replace(gpu_type="a100"), claim=True)
    assert not mixed.take(("f0",), GpuShape(1), claim=False)


# -- giving lists back -----------------------------------------------------------------------


def test_lists_are_taken_back_from_jobs_that_wait() -> None:
    jobs = [job("fast"), job("fast", job_id=8, state="RUNNING"), job("other", job_id=9), job(job_id=10)]
    jobs.append(job("fast", job_id=11, reason="BadConstraints"))
    leases = {k: lease("fast", job_id=k) for k in (7, 8, 9, 10, 11)}
    found = {one.job_id: one for one in sharing.over(leases, jobs, UP, "switched off")}
    assert {k: one.action for k, one in found.items()} == {
        7: "partition-clear", 9: "none", 10: "partition-clear", 11: "partition-clear",
    }  # fmt: skip
    assert (found[7].fields, found[10].fields) == ({"Partition": OWN}, {})
    assert found[11].reason.startswith(NOT_TAKEN) and found[7].reason == "switched off"


def test_a_partition_that_takes_no_jobs_is_given_back_when_it_does() -> None:
    """Slurm drops it from a list without a word, and the job would never have it again."""
    own, up = "a,b,c", frozenset("ab")
    (found,) = sharing.over({7: lease("a", own=own)}, [job("a")], up, "off")
    assert (found.action, found.fields) == ("partition", {"Partition": "a,b"})
    assert found.lease is not None and (found.lease.ours, found.lease.own) == ("a,b", own)
    (kept,) = sharing.over({7: found.lease}, [job("a,b")], up, "off")
    assert (kept.action, kept.lease) == ("keep", found.lease)
    (back,) = sharing.over({7: found.lease}, [job("b,a")], frozenset("abc"), "off")
    assert (back.action, back.fields, back.lease) == ("partition-clear", {"Partition": own}, None)
    (nowhere,) = sharing.over({7: lease("a", own=own)}, [job("a")], frozenset(), "off")
    assert (nowhere.action, nowhere.fields) == ("keep", {})
    (own_already,) = sharing.over({7: lease("a", own=own)}, [job(own)], up, "off")
    assert (own_already.action, own_already.fields) == ("partition-clear", {})


def test_a_list_that_was_changed_after_we_gave_it_back_is_somebody_elses() -> None:
    given_back = {k: lease("fast", job_id=k, made_s=NOW_S) for k in (7, 8, 9)}
    jobs = [job(), job("slow,fast", job_id=8), job("slow", job_id=9), job("slow", job_id=10)]
    (found,) = sharing.changed(given_back, jobs)
    assert (found.job_id, found.action, found.fields, found.lease) == (9, "none", {}, None)
    assert sharing.changed(given_back, [job("slow", state="RUNNING")]) == []
    assert sharing.changed(given_back, [job("slow", submit_s=NOW_S + 60)]) == []  # another job of this number


def test_leases_of_a_job_that_had_the_number_before() -> None:
    made = lease("fast", made_s=NOW_S, restarts=1)
    for restarts, submit_s, same in [(1, NOW_S - 60, True), (1, NOW_S + 60, False), (2, NOW_S + 60, True),
                                     (0, NOW_S - 60, False)]:  # fmt: skip
        assert sharing.of_this_job(made, job(restarts=restarts, submit_s=submit_s)) is same


# -- whatever happens ------------------------------------------------------------------------

names = st.sampled_from(["fast", "medium", "slow"])
speeds = st.dictionaries(names, st.floats(1e-9, 1e9), max_size=3)
shares = st.dictionaries(names, st.floats(0.0, 1.0), max_size=3)
lists = st.lists(names, min_size=2, max_size=3, unique=True)
some = st.lists(names, min_size=1, max_size=3, unique=True)
times = st.floats(0.0, 1e5)
shapes = st.sampled_from(
    [GpuShape(1), GpuShape(3), GpuShape(2, 1, 2), GpuShape(4, 2, 2), GpuShape(1, 1, 1, whole_nodes=True)]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Claimant, dict[str, float], TickLease | None]:
    own = draw(lists)
    reason = draw(st.sampled_from(["Resources", "Priority", "QOSGrpGRES"]))
    present = draw(st.one_of(st.just(own), some))
    here = job(",".join(present), job_id=draw(st.integers(1, 9)), reason=reason, restarts=draw(st.integers(0, 1)))
    one = Claimant(
        here, tuple(own), draw(shapes), {k: v for k, v in draw(speeds).items() if k in own},
        dict.fromkeys(NODES, draw(st.floats(0.0, 3.0))), NODES, draw(times), draw(times),
    )  # fmt: skip
    ours = ",".join(draw(some.filter(lambda found: set(found) < set(own))))
    made_s, until_s = NOW_S - draw(times), NOW_S + draw(st.floats(-1e4, 1e4))
    before = TickLease(here.job_id, LeaseKind.PARTITION, ours, ",".join(own), made_s, until_s, 0, "why")
    return one, draw(shares), draw(st.sampled_from([None, before]))


@trials(300)
@given(cases(), st.dictionaries(st.sampled_from(["f0", "f1", "m0", "s0", "s1"]), st.integers(0, 4)), st.sets(names))
def test_a_list_is_a_part_of_the_users_own(
    case: tuple[Claimant, dict[str, float], TickLease | None], free: dict[str, int], up: set[str]
) -> None:
    one, belongs, before = case
    found = wish(one, belongs, room(**free), before, frozenset(up))
    own = set(one.own)
    if found.lease is not None:
        ours = set(found.lease.ours.split(","))
        assert ours and ours < own and set(found.lease.own.split(",")) == own
        assert found.fields in ({}, {"Partition": found.lease.ours})
    elif found.fields:
        assert found.fields == {"Partition": ",".join(one.own)} and own <= up
    if of_lease(one.job, before) is Whose.OTHER:
        assert found.fields == {} and found.lease is None


@trials(300)
@given(cases(), st.dictionaries(st.sampled_from(["f0", "f1", "m0", "s0", "s1"]), st.integers(0, 4)))
def test_a_job_that_has_waited_longer_than_pays_has_all_its_partitions(
    case: tuple[Claimant, dict[str, float], TickLease | None], free: dict[str, int]
) -> None:
    one, belongs, before = case
    runs = [speed for speed in one.speed.values() if speed > 0]
    longest_s = 0.5 * one.run_s * (1 - min(runs) / max(runs)) if runs else 0.0  # nothing can save more
    tired = one._replace(waited_s=min(longest_s, TERMS.longest_s) + 1.0)
    found = wish(tired, belongs, room(**free), before)
    assert found.lease is None and not found.could_start
    if of_lease(tired.job, before) is Whose.OURS:
        assert found.fields == {"Partition": ",".join(one.own)}


@trials(300)
@given(cases(), st.dictionaries(st.sampled_from(["f0", "f1", "m0", "s0", "s1"]), st.integers(0, 4)))
def test_no_list_stands_longer_than_it_may_without_a_look(
    case: tuple[Claimant, dict[str, float], TickLease | None], free: dict[str, int]
) -> None:
    one, belongs, before = case
    lease = wish(one, belongs, room(**free), before).lease
    if lease is not None:
        assert lease.until_s <= NOW_S + TERMS.longest_s + TERMS.interval_s
        assert NOW_S - lease.made_s < TERMS.longest_s


@trials(200)
@given(
    st.lists(st.tuples(shapes, st.permutations(["f0", "f1", "m0", "s0", "s1"])), max_size=8),
    st.dictionaries(st.sampled_from(["f0", "f1", "m0", "s0", "s1"]), st.integers(0, 4)),
)
def test_no_more_gpus_are_claimed_than_are_free(asked: list[tuple[GpuShape, list[str]]], free: dict[str, int]) -> None:
    there = Room({name: [""] * count for name, count in free.items()}, set(free))
    taken = sum(shape.total for shape, nodes in asked if there.take(nodes[:3], shape, claim=True))
    left = sum(there.take((name,), GpuShape(1), claim=True) for name in free for _ in range(4))
    whole = sum(4 for shape, _ in asked if shape.whole_nodes)  # such a job has all GPUs of its node
    assert taken + left <= sum(free.values()) <= taken + left + whole
