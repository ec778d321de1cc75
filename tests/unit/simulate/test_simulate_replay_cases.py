# SPDX-License-Identifier: MIT
"""The replay on cases done by hand: backfill, moves, patience, partitions, what is told and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from unittest.mock import patch

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.moves.worth import MoveLimits
from slurm_pal.placement.patience import patience_s
from slurm_pal.simulate.background import again_and_again
from slurm_pal.simulate.hardware import Hardware
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import TraceJob

from ...doubles.replay_cases import AT_ONCE, WAITING, job, machine, run, trace, watched

# -- cases done by hand ------------------------------------------------------------------------


def test_backfill_by_hand() -> None:
    """4 GPUs. a may hold 3 until 100; b wants all; c (until 100 at the latest) may pass, d may not. a ends early, at
    50: e may pass then, and b starts when c ends, as reserved."""
    jobs = [
        job("a", 0, 3, 50, limit_s=100), job("b", 1, 4, 10, limit_s=10), job("d", 2, 1, 5, limit_s=101),
        job("c", 3, 1, 97, limit_s=97), job("e", 4, 1, 5, limit_s=5),
    ]  # fmt: skip
    found = run(machine([1.0] * 4), jobs)
    assert {name: outcome.start_s for name, outcome in found.items()} == {
        "a": 0, "c": 3, "e": 50, "b": 100, "d": 110,
    }  # fmt: skip


def test_backfill_waits_for_the_interval_but_the_first_in_line_does_not() -> None:
    """A pass at 0 (a), the next at 30 at the earliest: d may pass b only then; c starts at once when it is first."""
    jobs = [job("a", 0, 3, 50, limit_s=50), job("b", 1, 4, 10, limit_s=10), job("d", 2, 1, 5, limit_s=5)]
    found = run(machine([1.0] * 4), jobs, given=ReplaySettings(backfill_interval_s=30.0))
    assert [found[name].start_s for name in "abd"] == [0, 50, 30]
    found = run(machine([1.0] * 4), [*jobs[:1], job("c", 7, 1, 5)], given=ReplaySettings(backfill_interval_s=30.0))
    assert found["c"].start_s == 7


def test_a_job_is_killed_at_its_limit() -> None:
    found = run(machine([2.0]), [job("a", 5, 1, 100, limit_s=150), job("b", 5, 1, 100, limit_s=200)])
    assert (found["a"].finish_s, found["a"].end) == (155, "TIMEOUT")
    assert (found["b"].start_s, found["b"].finish_s, found["b"].end) == (155, 355, "COMPLETED")


def test_without_a_limit_a_job_gets_one_by_its_ideal_time_across_nodes() -> None:
    given = AT_ONCE._replace(limit_factor=1.5, locality_penalty=2.0)
    found = run(machine([2.9], [3.1]), [job("a", 0, 1, 100), job("b", 0, 1, 100)], given=given)
    assert (found["a"].finish_s, found["a"].end) == (290, "COMPLETED")
    assert (found["b"].finish_s, found["b"].end) == (300, "TIMEOUT")


def test_warm_up_is_held_and_not_worked() -> None:
    result = replay(
        ReplayPlan(trace(job("a", 0, 2, 100)), machine([1.0, 1.0]), "packed", settings=ReplaySettings(warmup_s=20.0))
    )
    assert result.outcomes[0].finish_s == 120 and result.gpu_s == 240


MOVING = ReplaySettings(
    backfill_interval_s=0.0, tick_s=100.0, move_cost_s=50.0, expected_run_share=1.0, limits=MoveLimits(1.5, 100.0)
)


def test_a_job_that_moved_once_by_hand() -> None:
    """b starts on the slow node at 10; a ends at 250; the tick at 300 moves b: 290 s at factor 2 are 145 s of work.

    855 s of work are left, after 50 s for the move: it ends at 300 + 50 + 855.
    """
    jobs = [job("a", 0, 1, 250, limit_s=300), job("b", 10, 1, 1000, limit_s=4000)]
    with watched() as stays:
        result = replay(ReplayPlan(trace(*jobs), machine([1.0], [2.0]), "class-fit-move", settings=MOVING))
    found = {outcome.job_id: outcome for outcome in result.outcomes}
    b = found["b"]
    assert (b.start_s, b.finish_s, b.moves, b.nodes) == (10, 1205, 1, ("n0",))
    assert b.slowdown == pytest.approx((145 * 2.0 + 855 * 1.0) / 1000) and b.locality == 1.0
    assert (result.moves, result.move_gpu_s, result.gpu_s) == (1, 50, 250 + 1195)
    assert [stay.idle_s for stay in stays] == [0, 0, 50]


def test_locality_of_a_job_that_was_gathered_by_hand() -> None:
    """Spread over two nodes at 1.5 until the tick at 200, then on one: 100 s of 400 s of work were spread."""
    jobs = [
        job("a", 0, 1, 150, limit_s=160, movable=False),
        job("c", 0, GpuShape(2, 2, 1), 150, limit_s=160, movable=False),
        job("b", 50, 2, 400, limit_s=4000, locality_penalty=1.5),
    ]  # fmt: skip
    found = run(machine([1.0, 1.0], [1.0, 1.0, 1.0][:2]), jobs[1:], "class-fit-move", MOVING)
    b = found["b"]
    assert (b.start_s, b.moves) == (50, 1)
    assert b.locality == pytest.approx((100 * 1.5 + 300 * 1.0) / 400)
    assert b.finish_s == 200 + 50 + 300


def test_a_job_that_cannot_be_moved_stays_under_every_policy() -> None:
    jobs = [job("a", 0, 1, 250, limit_s=300), job("b", 10, 1, 1000, limit_s=4000, movable=False)]
    for policy in ("class-fit-move", "pal-fit", "packed-ns", "pal-ns", "pm-first-ns", "random-ns"):
        found = run(machine([1.0], [2.0]), jobs, policy, MOVING)
        assert found["b"].moves == 0, policy


def test_everybody_anew_moves_by_the_rule_at_every_tick() -> None:
    """PM-First: at the tick the job on the slow GPU goes to the fast one that came free."""
    jobs = [job("a", 0, 1, 150), job("b", 10, 1, 1000, limit_s=5000)]
    found = run(machine([1.0], [2.0]), jobs, "pm-first-ns", MOVING)
    assert found["b"].moves == 1 and found["b"].nodes == ("n0",)
    assert found["b"].finish_s == 200 + 50 + (1000 - 190 / 2)


def test_random_policies_draw_by_the_seed_and_anew_each_time() -> None:
    jobs = [job(str(k), 1000.0 * k, 1, 500) for k in range(30)]
    cluster = machine(*[[1.0]] * 5)

    def nodes(policy: str, seed: int) -> list[tuple[str, ...]]:
        found = run(cluster, jobs, policy, MOVING, seed=seed)
        return [found[str(k)].nodes for k in range(30)]

    assert nodes("random", 1) == nodes("random", 1) != nodes("random", 2)
    assert set(nodes("random", 1)) == {(f"n{k}",) for k in range(5)}
    long = [job("a", 0, 1, 5000)]
    result = replay(ReplayPlan(trace(*long), cluster, "random-ns", settings=MOVING))
    assert result.moves > 10, "an order drawn once would leave the job where it is"


# -- patience ------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [0.0, 30.0])
@pytest.mark.parametrize("policy", ["class-fit-wait", "pal-fit"])
def test_a_sensitive_job_starts_on_the_outlier_exactly_when_its_patience_ends(policy: str, interval_s: float) -> None:
    """The good GPU is busy for long; starting on the outlier costs (1.6 - 1.0) x expected run time."""
    cluster = machine([1.0], [1.6])
    jobs = [job("a", 0, 1, 90000, limit_s=100000), job("b", 100, 1, 500, limit_s=2000)]
    found = run(cluster, jobs, policy, WAITING._replace(backfill_interval_s=interval_s))
    wait_s = WAITING.wait_share * patience_s(1.6, 1.0, 0.5 * 2000)
    assert wait_s == pytest.approx(WAITING.wait_share * 600)
    assert found["b"].start_s == 100 + wait_s and found["b"].nodes == ("n1",)


def test_it_takes_a_good_gpu_that_frees_before() -> None:
    jobs = [job("a", 0, 1, 150, limit_s=100000), job("b", 100, 1, 500, limit_s=2000)]
    found = run(machine([1.0], [1.6]), jobs, "class-fit-wait", WAITING)
    assert (found["b"].start_s, found["b"].nodes) == (150, ("n0",))


def test_nobody_waits_for_gpus_that_do_not_exist_or_when_it_does_not_care() -> None:
    for cluster, changes in (
        (machine([1.6], [1.6]), {}),
        (machine([1.0], [1.6]), {"sensitivity": "C"}),
        (machine([1.0], [1.2]), {}),
    ):
        jobs = [job("a", 0, 1, 9000), job("b", 100, 1, 500, limit_s=2000, **changes)]
        found = run(cluster, jobs, "class-fit-wait", WAITING)
        assert found["b"].start_s == (100 if changes.get("sensitivity") != "C" else found["b"].start_s)
    assert found["b"].start_s == 100


def test_a_job_that_may_be_spread_waits_only_for_what_is_better_than_that() -> None:
    """On an open number of nodes Slurm starts it across nodes as soon as so many GPUs are free: at 1.7 times."""
    for slow, open_start_s in ((1.6, 100), (2.1, 100 + WAITING.wait_share * 0.5 * 2000 * (2.1 - 1.7))):
        for shape, start_s in ((GpuShape(2), open_start_s), (GpuShape(2, 1, 2), None)):
            jobs = [job("a", 0, 2, 90000, limit_s=100000), job("b", 100, shape, 500, limit_s=2000)]
            found = run(machine([1.0, 1.0], [slow, slow]), jobs, "class-fit-wait", WAITING)
            wait_s = WAITING.wait_share * 0.5 * 2000 * (slow - 1.0)
            assert found["b"].start_s == pytest.approx(100 + wait_s if start_s is None else start_s)


def test_only_who_is_first_in_line_waits() -> None:
    """w is reserved when a ends; c, behind it, takes the outlier rather than nothing."""
    jobs = [
        job("a", 0, 1, 900, limit_s=1000), job("w", 1, 2, 10, limit_s=10, sensitivity="C"),
        job("c", 2, 1, 50, limit_s=100),
    ]  # fmt: skip
    found = run(machine([1.0], [1.6]), jobs, "class-fit-wait", WAITING)
    assert (found["c"].start_s, found["c"].nodes, found["w"].start_s) == (2, ("n1",), 900)


def test_policies_that_do_not_wait_start_at_once() -> None:
    jobs = [job("a", 0, 1, 9000), job("b", 100, 1, 500, limit_s=2000)]
    for policy in ("slurm", "packed", "class-fit"):
        assert run(machine([1.0], [1.6]), jobs, policy, WAITING)["b"].start_s == 100


# -- partitions and whole nodes ------------------------------------------------------------------


def test_a_blocked_job_of_the_whole_cluster_does_not_keep_a_partition_idle() -> None:
    """w wants everything and waits for a; p fits into its partition and would be done by then."""
    cluster = machine([1.0] * 2, [1.0] * 2, partitions={"p": [1]})
    jobs = [job("a", 0, 2, 100, limit_s=100), job("w", 1, 4, 10), job("p", 2, 2, 50, limit_s=50, partition="p")]
    found = run(cluster, jobs)
    assert (found["p"].start_s, found["w"].start_s) == (2, 100)


def test_jobs_that_may_go_anywhere_do_not_starve_one_of_a_partition() -> None:
    """p wants its whole node; later small jobs would always find half of it free."""
    cluster = machine([1.0] * 2, partitions={"p": [0]})
    small = [job(str(k), 10.0 * k, 1, 95, limit_s=95) for k in range(40)]
    wanted = [small[0], job("p", 5, 2, 10, limit_s=10, partition="p"), *small[1:]]
    found = run(cluster, wanted)
    assert found["p"].start_s == 95


def test_partitions_that_share_no_node_do_not_wait_for_each_other() -> None:
    cluster = machine([1.0] * 2, [1.0] * 2, partitions={"p": [0], "q": [1]})
    jobs = [
        job("a", 0, 2, 100, partition="p"), job("b", 1, 2, 100, partition="p"), job("c", 2, 2, 100, partition="q"),
        job("d", 3, 2, 100, partition="q"),
    ]  # fmt: skip
    found = run(cluster, jobs, given=ReplaySettings(backfill_interval_s=1000.0))
    assert [found[name].start_s for name in "abcd"] == [0, 100, 2, 102]


def test_a_request_is_split_by_the_nodes_of_its_partition() -> None:
    cluster = machine([1.0] * 8, [1.0] * 4, [1.0] * 4, partitions={"small": [1, 2]})
    jobs = [job("a", 0, GpuShape(8, nodes=2), 100, partition="small"), job("b", 1, GpuShape(8, nodes=2), 10)]
    for policy in ("packed", "pal-fit", "slurm", "pal"):
        found = run(cluster, jobs[:1], policy)
        assert found["a"].nodes == ("n1", "n2"), policy


def test_a_partition_of_small_nodes_reserves_by_their_size() -> None:
    """8 GPUs on 2 nodes are 4 + 4 there: b waits for a, and the small jobs that come meanwhile do not put it off."""
    cluster = machine([1.0] * 8, [1.0] * 4, [1.0] * 4, partitions={"small": [1, 2]})
    small = [job(str(k), 2 + k, 1, 500, limit_s=500, partition="small") for k in range(9)]
    jobs = [
        job("a", 0, 1, 100, limit_s=100, partition="small"),
        job("b", 1, GpuShape(8, nodes=2), 10, partition="small"), *small,
    ]  # fmt: skip
    assert run(cluster, jobs)["b"].start_s == 100


def test_what_was_refused_is_looked_at_again_after_another_start() -> None:
    """h is reserved on n0 at 100. k1 would take n0's free GPU for too long; when s has that, k2 goes to n1."""
    cluster = machine([1.0] * 2, [1.0] * 3)
    jobs = [
        job("x", 0, 1, 100, limit_s=100), job("y", 0, 2, 1000, limit_s=1000), job("h", 1, GpuShape(2, 1, 2), 10),
        job("k1", 2, 1, 500, limit_s=500), job("s", 2, 1, 50, limit_s=50, sensitivity="B"),
        job("k2", 2, 1, 500, limit_s=500),
    ]  # fmt: skip
    found = run(cluster, jobs)
    assert (found["s"].start_s, found["s"].nodes) == (2, ("n0",))
    assert (found["k2"].start_s, found["k2"].nodes) == (2, ("n1",))
    assert (found["h"].start_s, found["h"].nodes) == (100, ("n0",))


def test_a_job_refused_by_one_reservation_counts_in_no_other() -> None:
    """k on both nodes would delay only the job of q; so the GPU to spare on p's node is still there for j."""
    cluster = machine([1.0] * 4, [1.0] * 4, partitions={"p": [0], "q": [1]})
    jobs = [
        job("x", 0, 2, 100, limit_s=100, partition="p"), job("y", 0, 2, 100, limit_s=100, partition="q"),
        job("p", 1, 3, 10, partition="p"), job("q", 1, 4, 10, partition="q"),
        job("k", 1, GpuShape(2, 2, 1), 500, limit_s=500), job("j", 1, 1, 500, limit_s=500, partition="p"),
    ]  # fmt: skip
    found = run(cluster, jobs)
    assert found["j"].start_s == 1 and found["p"].start_s == found["q"].start_s == 100 and found["k"].start_s >= 100


def test_whole_nodes_are_held_counted_and_reserved() -> None:
    """x has one GPU of each node until 100 and 60; e wants one node for itself: reserved at 60 on n1, where s, which
    would hold a GPU of it until 70, may not go."""
    cluster = machine([1.0] * 4, [1.0] * 4)
    jobs = [
        job("x", 0, 1, 100, limit_s=100), job("y", 0, GpuShape(4, nodes=2), 60, limit_s=60),
        job("e", 5, GpuShape(1, whole_nodes=True), 50, limit_s=50), job("s", 10, 4, 60, limit_s=60),
    ]  # fmt: skip
    result = replay(ReplayPlan(trace(*jobs), cluster, "packed", settings=AT_ONCE))
    found = {outcome.job_id: outcome for outcome in result.outcomes}
    assert (found["e"].start_s, found["e"].gpus) == (60, 1)
    assert result.gpu_s == 100 + 4 * 60 + 4 * 50 + 4 * 60


# -- what is told and what is refused --------------------------------------------------------------


def test_background_jobs_load_the_cluster_and_are_not_reported() -> None:
    reported = [job("a", 0, 1, 100), job("b", 1000, 1, 100)]
    load = again_and_again(trace(*reported), 3600.0, seed=1)
    with watched() as stays:
        result = replay(ReplayPlan(trace(*reported), machine([1.0]), "packed", settings=AT_ONCE, background=load))
    assert [outcome.job_id for outcome in result.outcomes] == ["a", "b"]
    assert all(stay.job.reported == (stay.start_s < result.end_s) for stay in stays), "they queue behind the reported"

    def before() -> Iterator[TraceJob]:
        return iter([job("early", 950, 1, 500), job("late", 1050, 1, 500)])

    result = replay(ReplayPlan(trace(*reported), machine([1.0], [1.0]), "packed", settings=AT_ONCE, background=before))
    found = {outcome.job_id: outcome for outcome in result.outcomes}
    assert set(found) == {"a", "b"} and result.end_s == 1100
    # a 100 s, early from 950, b from 1000: the GPU time of jobs that still run counts up to the end
    assert result.gpu_s == 100 + 150 + 100


def test_again_and_again_repeats_the_trace_at_whole_seconds() -> None:
    jobs = trace(job("a", 0, 1, 10), job("b", 7, 2, 20))
    many = list(islice(again_and_again(jobs, 2.0, seed=1)(), 2001))
    assert [one.job_id for one in many[:5]] == ["a+1", "b+1", "a+2", "b+2", "a+3"]
    assert [one.ideal_s for one in many[:2]] == [10, 20]
    assert all(one.submit_s == int(one.submit_s) for one in many) and many[0].submit_s > 7
    assert all(one.submit_s <= other.submit_s for one, other in pairwise(many))
    assert (many[-1].submit_s - 7) / len(many) == pytest.approx(1800.0, rel=0.1)
    assert list(again_and_again(trace(), 2.0, seed=1)()) == []
    assert many[:9] == list(islice(again_and_again(jobs, 2.0, seed=1)(), 9))


def test_progress_may_stop_the_replay() -> None:
    jobs = [job(str(k), 100.0 * k, 1, 50) for k in range(10)]
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        told.append((done, total))
        return done < 4

    result = replay(ReplayPlan(trace(*jobs), machine([1.0]), "packed"), progress)
    assert not result.complete and [outcome.job_id for outcome in result.outcomes] == ["0", "1", "2", "3"]
    assert told[-1] == (4, 10) and [done for done, _ in told] == sorted(done for done, _ in told)
    assert result.gpu_s == 200 and result.end_s == 350
    assert replay(ReplayPlan(trace(*jobs), machine([1.0]), "packed"), lambda done, total: True).complete


def test_an_empty_trace_is_a_complete_replay() -> None:
    result = replay(ReplayPlan(trace(), machine([1.0]), "pal-fit"))
    assert result.complete and result.outcomes == () and result.gpu_s == 0 and result.timeline.time_s == ()


REFUSED: list[tuple[dict[str, object], TraceJob, str]] = [
    ({"policy": "best"}, job("1", 0, 1, 1), "policy 'best' is not one of slurm, packed,"),
    ({"queue": "lifo"}, job("1", 0, 1, 1), "queue 'lifo' is not one of fifo, las, srtf, multifactor"),
    ({}, job("1", 0, 1, 1, partition="q"), r"job 1: partition 'q' is not in the cluster \(it has: p\)"),
    ({}, job("1", 0, 7, 1), r"job 1 wants 7 GPUs on any nodes, more than the cluster has \(3 nodes, 6 GPUs\)"),
    ({}, job("1", 0, 3, 1, partition="p"), r"job 1 wants 3 GPUs .* more than partition p has \(1 nodes, 2 GPUs\)"),
    ({}, job("1", 0, GpuShape(3, 1, 3), 1), "job 1 wants 3 GPUs on 1 nodes, more than the cluster has"),
    ({}, job("1", 0, GpuShape(4, 4, 1), 1), "job 1 wants 4 GPUs on 4 nodes, more than the cluster has"),
    ({}, job("1", 0, GpuShape(0), 1), "job 1 wants 0 GPUs"),
    ({}, job("1", 0, 1, 1, sensitivity="E"), "job 1: nothing is known of the GPUs for class E"),
]


@pytest.mark.parametrize(("changes", "wanted", "text"), REFUSED)
def test_what_cannot_be_replayed_is_refused(changes: dict[str, object], wanted: TraceJob, text: str) -> None:
    plan = ReplayPlan(trace(wanted), machine([1.0] * 2, [1.0] * 2, [1.0] * 2, partitions={"p": [0]}), "packed")
    with pytest.raises(UsageError, match=text) as caught:
        replay(plan._replace(**changes))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_job_for_which_no_node_is_left_ends_the_replay_instead_of_ticking_for_ever() -> None:
    """No trace can bring this about; a rule that never places anything must not hang the replay."""
    for policy in ("packed", "pal-fit", "pal-ns"):
        with (
            patch("slurm_pal.placement.occupancy.Occupancy.place", lambda *_: None),
            pytest.raises(UsageError, match="1 pending jobs can never start"),
        ):
            replay(ReplayPlan(trace(job("a", 0, 1, 10)), machine([1.0]), policy))


def test_fair_share_counts_running_jobs_under_every_policy() -> None:
    """ann's long job still runs when bob's and her next one wait: bob goes first, although he came later."""
    jobs = [
        job("long", 0, 1, 9000, user="ann", limit_s=20000), job("short", 0, 1, 4000, user="eve", limit_s=20000),
        job("hers", 3000, 1, 10, user="ann"), job("his", 3001, 1, 10, user="bob"),
    ]  # fmt: skip
    for policy in ("packed", "pal-fit"):
        found = run(machine([1.0, 1.0]), jobs, policy, queue="multifactor")
        assert found["his"].start_s == 4000 < found["hers"].start_s, policy


# -- growth: counts of operations and of what is kept, no clock --------------------------------------


def busy(jobs: int, gpus: int = 8) -> list[TraceJob]:
    """A trace that keeps `gpus` busy and a handful of jobs waiting, however long it is."""
    return [job(str(k), 25.0 * k, 1 + k % 2, 20.0 * (5 + k % 7), limit_s=600.0) for k in range(jobs)]


@pytest.mark.parametrize("policy", ["packed", "pal-fit"])
def test_what_is_kept_grows_in_step_with_the_jobs(policy: str) -> None:
    for jobs in (100, 400):
        result = replay(ReplayPlan(trace(*busy(jobs)), machine([1.0] * 4, [1.1] * 4), policy))
        assert len(result.outcomes) == jobs
        assert len(result.timeline.time_s) <= 3 * jobs


def test_ticks_without_a_move_leave_no_trace() -> None:
    """A year of one job: 100,000 ticks, two changes."""
    jobs = [job("a", 0, 1, 365 * 86400.0, limit_s=4e7)]
    result = replay(ReplayPlan(trace(*jobs), machine([1.0, 1.0]), "pal-fit", settings=ReplaySettings(tick_s=3600.0)))
    assert len(result.timeline.time_s) == 2


def placements(policy: str, jobs: Sequence[TraceJob], cluster: Hardware) -> int:
    """How often a placement was asked for."""
    from slurm_pal.placement.occupancy import Occupancy

    place: Callable[..., object] = Occupancy.place
    asked = 0

    def counted(self: Occupancy, *args: object) -> object:
        nonlocal asked
        asked += 1
        return place(self, *args)

    with patch.object(Occupancy, "place", counted):
        replay(ReplayPlan(trace(*jobs), cluster, policy))
    return asked


def test_work_per_job_does_not_grow_with_the_queue() -> None:
    """Hundreds wait behind one that is blocked: a pass asks once per kind of job, not once per job."""
    blocked = [job("a", 0, 3, 50000, limit_s=50000), job("w", 1, 4, 10, limit_s=10)]
    for waiting in (50, 500):
        jobs = [*blocked, *(job(str(k), 2 + k, 1, 60000, limit_s=60000) for k in range(waiting))]
        few = placements("packed", jobs, machine([1.0] * 4))
        # one for each start, and at each arrival and pass one for the head and one for the kind of the others
        assert few <= 5 * (waiting + 2)
