# SPDX-License-Identifier: MIT
"""The replay against a second simulator, and against what must always hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.jobs import GpuShape
from slurm_pal.moves.worth import CandidateMove, MoveLimits
from slurm_pal.simulate.easy import Reservation
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.policies import POLICIES, STUDIES
from slurm_pal.simulate.queues import QUEUES
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import JobOutcome
from slurm_pal.simulate.running import RunningJobs
from slurm_pal.simulate.settings import Failures, ReplaySettings
from slurm_pal.simulate.starter import Starter
from slurm_pal.simulate.trace import Trace, TraceJob

from ...doubles.cluster_factory import CLASSES, tables
from ...doubles.easy_oracle import Wish, simulate
from ...doubles.replay_cases import PLACED_ONCE, Stay, job, machine, run, watched
from ...doubles.trials import trials

# -- against the second simulator -----------------------------------------------------------

GAPS = st.sampled_from((0.0, 0.0, 10.0, 30.0, 100.0))
IDEAL = st.sampled_from((10.0, 25.0, 40.0, 80.0, 200.0, 500.0))
EIGHTHS = st.sampled_from((0.875, 1.0, 1.125, 1.5))  # products are exact, so that finish times are


@st.composite
def wishes(draw: st.DrawFn, gpus: int) -> list[Wish]:
    made, now_s = [], 0.0
    for number in range(draw(st.integers(1, 25))):
        now_s += draw(GAPS)
        ideal_s = draw(IDEAL)
        limit_s = ideal_s * draw(st.sampled_from((0.5, 1.0, 1.5, 2.0, 4.0)))
        made.append(Wish(str(number), now_s, draw(st.integers(1, gpus)), ideal_s, limit_s, draw(EIGHTHS) + 0.25))
    return made


@trials(300)
@given(st.lists(st.lists(EIGHTHS, min_size=1, max_size=4), min_size=1, max_size=4), st.data())
def test_every_job_starts_and_ends_when_the_second_simulator_says(rows: list[list[float]], data: st.DataObject) -> None:
    asked = data.draw(wishes(sum(map(len, rows))))
    expected = simulate(rows, asked)
    jobs = [
        job(wish.name, wish.submit_s, wish.gpus, wish.ideal_s, limit_s=wish.limit_s, locality_penalty=wish.penalty)
        for wish in asked
    ]
    found = run(machine(*rows), jobs)
    for name, end in expected.items():
        outcome = found[name]
        assert (outcome.start_s, outcome.finish_s) == (end.start_s, end.finish_s), name
        assert outcome.end == ("TIMEOUT" if end.timeout else "COMPLETED")
        assert outcome.nodes == tuple(f"n{node}" for node in sorted({node for node, _ in end.gpus}))
        assert outcome.slowdown == pytest.approx(max(rows[node][k] for node, k in end.gpus))


# -- what must always hold -------------------------------------------------------------------


SIZES = st.sampled_from(([2, 2], [4, 4, 4], [1, 1, 1], [3, 3]))


@st.composite
def plans(draw: st.DrawFn, policies: Sequence[str] = STUDIES, failures: bool = True) -> ReplayPlan:
    """Any policy on a small cluster with outliers, and a queue most of the time."""
    sizes = draw(SIZES)
    nodes = list(range(len(sizes)))
    cluster = hardware(
        tables(sizes, draw(st.integers(0, 99)), outliers=0.25), partitions={"some": nodes[1:], "all": nodes}
    )
    shapes = [GpuShape(n) for n in range(1, sum(sizes[1:]) + 1)]
    shapes += [GpuShape(n, nodes=1, per_node=n) for n in (1, sizes[0])]
    shapes += [GpuShape(1, whole_nodes=True), GpuShape(sizes[0], nodes=1, per_node=sizes[0], whole_nodes=True)]
    shapes += [GpuShape(2, nodes=2, per_node=1)] if len(sizes) > 2 else []
    jobs, now_s = [], 0.0
    for number in range(draw(st.integers(1, 14))):
        now_s += draw(st.sampled_from((0.0, 50.0, 400.0)))
        ideal_s = draw(st.sampled_from((0.0, 30.0, 400.0, 2000.0, 9000.0)))
        jobs.append(
            TraceJob(
                str(number), now_s, draw(st.sampled_from(shapes)), ideal_s, draw(st.sampled_from((*CLASSES, "?"))),
                limit_s=draw(st.sampled_from((None, 300.0, 3000.0, 40000.0))), user=draw(st.sampled_from("ab")),
                partition=draw(st.sampled_from(("", "", "some", "all"))), movable=draw(st.booleans()),
                move_cost_s=draw(st.sampled_from((None, 0.0, 20.0))),
            )
        )  # fmt: skip
    chosen = ReplaySettings(
        backfill_interval_s=draw(st.sampled_from((0.0, 30.0, 300.0))), backfill_depth=draw(st.sampled_from((2, 500))),
        tick_s=100.0, warmup_s=draw(st.sampled_from((0.0, 7.0))), limits=MoveLimits(margin=1.0, minimum_s=150.0),
        best_first=draw(st.booleans()), steer=draw(st.sampled_from(("start", "submit"))),
        failures=Failures(3e4, 500.0, 100.0) if failures and draw(st.booleans()) else None,
    )  # fmt: skip
    policy, queue = draw(st.sampled_from(list(policies))), draw(st.sampled_from(list(QUEUES)))
    return ReplayPlan(Trace("drawn", tuple(jobs)), cluster, policy, queue, draw(st.integers(0, 3)), chosen)


@trials(300)
@given(plans())
def test_gpus_are_held_by_one_job_at_a_time_and_every_second_is_counted(plan: ReplayPlan) -> None:
    with watched() as stays:
        result = replay(plan)
    assert all(stay.end_s < inf for stay in stays)
    by_gpu: dict[tuple[int, int], list[Stay]] = {}
    for stay in stays:
        for gpu in stay.gpus():
            by_gpu.setdefault(gpu, []).append(stay)
    for mine in by_gpu.values():
        mine.sort(key=lambda stay: (stay.start_s, stay.end_s))
        assert all(one.end_s <= other.start_s for one, other in pairwise(mine))
    assert result.gpu_s == pytest.approx(sum((stay.end_s - stay.start_s) * len(stay.gpus()) for stay in stays))
    moved = [later for _, later in moves_of(stays)]
    assert result.moves == len(moved)
    assert result.move_gpu_s == pytest.approx(sum(stay.job.move_cost_s * len(stay.gpus()) for stay in moved))
    assert all(stay.job.trace.movable for stay in moved)


def moves_of(stays: Sequence[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs of stays between which a job was moved."""
    by_job: dict[int, list[Stay]] = {}
    for stay in stays:
        by_job.setdefault(stay.job.number, []).append(stay)
    return [(one, other) for mine in by_job.values() for one, other in pairwise(mine) if not one.lost]


@trials(200)
@given(plans())
def test_a_move_goes_elsewhere_and_takes_the_place_of_the_old_one_at_once(plan: ReplayPlan) -> None:
    with watched() as stays:
        replay(plan)
    for one, other in moves_of(stays):
        assert other.start_s == one.end_s and other.gpus() != one.gpus() and len(other.gpus()) == len(one.gpus())


@trials(300)
@given(plans())
def test_every_job_ends_and_its_outcome_is_the_sum_of_its_stays(plan: ReplayPlan) -> None:
    with watched() as stays:
        result = replay(plan)
    assert sorted(outcome.job_id for outcome in result.outcomes) == sorted(j.job_id for j in plan.trace.jobs)
    assert result.complete and result.end_s == max(outcome.finish_s for outcome in result.outcomes)
    assert [outcome.finish_s for outcome in result.outcomes] == sorted(o.finish_s for o in result.outcomes)
    mine: dict[str, list[Stay]] = {}
    for stay in stays:
        mine.setdefault(stay.job.trace.job_id, []).append(stay)
    for outcome in result.outcomes:
        check_outcome(plan, outcome, mine[outcome.job_id])


def check_outcome(plan: ReplayPlan, outcome: JobOutcome, stays: Sequence[Stay]) -> None:
    first, last = stays[0], stays[-1]
    wanted = last.job.trace
    assert outcome.submit_s == wanted.submit_s <= outcome.start_s == first.start_s
    assert outcome.finish_s == last.end_s
    assert outcome.restarts == sum(stay.lost for stay in stays)
    assert outcome.moves == len(stays) - 1 - outcome.restarts
    assert outcome.nodes == tuple(plan.hardware.names[node] for node, _ in last.held)
    for stay in stays:
        assert stay.end_s - stay.start_s <= last.job.limit_s + 1e-6, "no stay is longer than the time limit"
        if wanted.partition:
            assert {node for node, _ in stay.held} <= set(plan.hardware.partitions[wanted.partition])
        sizes = {node: len(plan.hardware.true["A"][node]) for node, _ in stay.held}
        if wanted.shape.whole_nodes:
            assert all(len(indexes) == sizes[node] for node, indexes in stay.held)
        else:
            assert len(stay.gpus()) == wanted.shape.total
    assert first.idle_s == plan.settings.warmup_s
    for stay in stays[1:]:
        assert stay.idle_s == last.job.move_cost_s + plan.settings.warmup_s
    if not outcome.restarts and not POLICIES[plan.policy].alone:
        check_work(plan, outcome, stays)


def check_work(plan: ReplayPlan, outcome: JobOutcome, stays: Sequence[Stay]) -> None:
    """Work done is time on the GPUs without what is charged, over slowest GPU x locality; means weigh by work."""
    done: list[tuple[float, float, float]] = []
    wanted = stays[0].job.trace
    table = plan.hardware.true["A" if wanted.sensitivity == "?" else wanted.sensitivity]
    for stay in stays:
        slowdown = max(table[node][k] for node, k in stay.gpus())
        locality = stay.job.locality_penalty if len(stay.held) > 1 else 1.0
        worked_s = max(0.0, stay.end_s - stay.start_s - stay.idle_s) / (slowdown * locality)
        done.append((worked_s, slowdown, locality))
    total_s = sum(worked_s for worked_s, _, _ in done)
    if outcome.end == "COMPLETED":
        assert total_s == pytest.approx(outcome.ideal_s, abs=1e-6)
    else:
        assert total_s < outcome.ideal_s
        assert stays[-1].end_s == stays[-1].start_s + stays[-1].job.limit_s
    if total_s > 1e-6:
        assert outcome.slowdown == pytest.approx(sum(w * s for w, s, _ in done) / total_s)
        assert outcome.locality == pytest.approx(sum(w * x for w, _, x in done) / total_s)


@trials(200)
@given(plans())
def test_the_timeline_tells_the_state_after_each_change(plan: ReplayPlan) -> None:
    with watched() as stays:
        result = replay(plan)
    rows = list(zip(*result.timeline, strict=True))
    assert all(one[0] <= other[0] and one[1:] != other[1:] for one, other in pairwise(rows))
    assert rows[-1][0] == result.end_s
    for (at_s, busy, _), (until_s, _, _) in pairwise(rows):
        middle_s = (at_s + until_s) / 2
        running = [stay for stay in stays if stay.start_s <= middle_s < stay.end_s]
        # Ends that rounding has put an instant apart are one moment.
        assert until_s - at_s < 1e-6 or busy == sum(len(stay.gpus()) for stay in running)


@trials(200)
@given(plans())
def test_the_same_plan_gives_the_same_result(plan: ReplayPlan) -> None:
    assert replay(plan) == replay(plan)


@trials(200)
@given(plans(("pal-fit", "class-fit-move"), failures=True))
def test_no_move_would_pay_where_nothing_is_free(plan: ReplayPlan) -> None:
    found = RunningJobs.moves

    def watch_moves(self: RunningJobs, now_s: float) -> list[tuple[int, CandidateMove]]:
        assert self._prospects is not None
        moves = found(self, now_s)
        if not self._occupancy.free_gpus:
            at = self._columns
            ripe = at["gpus"] * at["alive"] > 0
            assert moves == self._prospects.plan(self._remaining_s(now_s), ripe) == []
        return moves

    with patch.object(RunningJobs, "moves", watch_moves):
        replay(plan)


@contextmanager
def reservations() -> Iterator[list[tuple[int, float]]]:
    """(job number, reserved moment) of whoever was first in the queue when a pass reserved for it."""
    made: list[tuple[int, float]] = []
    reserve, backfill = Starter._reserve, Starter.backfill
    first = False

    def watch_backfill(self: Starter, *args: object) -> None:
        nonlocal first
        first = True
        backfill(self, *args)  # type: ignore[arg-type]

    def watch_reserve(self: Starter, job: ReplayJob, *args: object) -> Reservation:
        nonlocal first
        found = reserve(self, job, *args)  # type: ignore[arg-type]
        if first:
            made.append((job.number, found.time_s))
        first = False
        return found

    with patch.object(Starter, "backfill", watch_backfill), patch.object(Starter, "_reserve", watch_reserve):
        yield made


@trials(300)
@given(plans(PLACED_ONCE, failures=False))
def test_nobody_delays_the_first_of_the_queue_beyond_its_reservation(plan: ReplayPlan) -> None:
    with watched() as stays, reservations() as made:
        replay(plan._replace(queue="fifo"))
    started = {stay.job.number: stay for stay in reversed(stays)}
    for number, at_s in made:
        own_choice_s = started[number].job.patient_until_s or 0.0  # it may wait for better GPUs once it could start
        assert at_s < inf and started[number].start_s <= max(at_s, own_choice_s)
