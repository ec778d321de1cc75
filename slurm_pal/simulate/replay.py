# SPDX-License-Identifier: MIT
"""Replay one trace on a virtual cluster under one policy: an event loop with a clock of its own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.moves.worth import slots
from slurm_pal.placement.need import Need, need_of
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement
from slurm_pal.simulate.alone import Alone
from slurm_pal.simulate.hardware import Hardware
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.policies import POLICIES, STUDY, SimPolicy, without
from slurm_pal.simulate.published_round import everybody_anew
from slurm_pal.simulate.queues import QUEUES, Usage
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline
from slurm_pal.simulate.running import RunningJobs
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.starter import Starter
from slurm_pal.simulate.trace import Trace, TraceJob

# Events of the same moment happen in this order.
REPAIR, FAIL, FINISH, ARRIVE, TICK, WAKE = range(6)
Progress = Callable[[int, int], bool]
"""Called with (reported jobs done, reported jobs in all); False stops the replay, whose result is then incomplete."""


class ReplayPlan(NamedTuple):
    """What to replay, and how. `background` goes on for ever and is not reported (pal.md 1.4: keeps the load up)."""

    trace: Trace
    hardware: Hardware
    policy: str
    queue: str = "fifo"
    seed: int = 0  # for failures and random placement
    settings: ReplaySettings = ReplaySettings()
    background: Callable[[], Iterator[TraceJob]] | None = None
    without: frozenset[str] = frozenset()  # levers that the policy is replayed without, of `policies.LEVERS`
    number: int = 0  # of the trace, among several


def replay(plan: ReplayPlan, progress: Progress | None = None) -> Replay:
    """Run it. Raises UsageError for an unknown policy or queue, and for a job that can never fit."""
    for name, table, what in ((plan.policy, POLICIES, "policy"), (plan.queue, QUEUES, "queue")):
        if name not in table:
            raise UsageError(f"{what} {name!r} is not one of {', '.join(table)}")
    if POLICIES[plan.policy].runs != STUDY:
        raise UsageError(f"policy {plan.policy!r} is the program's: it runs in the twin")
    return _Run(plan, progress).result()


class _Run:
    """The state of one replay."""

    def __init__(self, plan: ReplayPlan, progress: Progress | None) -> None:
        self._plan, self._progress = plan, progress
        self._policy: SimPolicy = without(POLICIES[plan.policy], plan.without)
        self._settings = plan.settings
        machine = plan.hardware
        self._occupancy = Occupancy(
            machine.names, machine.believed, machine.level, machine.partitions, plan.settings.best_first
        )
        self._starter = Starter(self._occupancy, self._policy, plan.settings, self._begin, plan.seed)
        self._alone = Alone(machine) if self._policy.alone else None
        self._queue, self._usage = QUEUES[plan.queue], Usage()
        self._events: list[tuple[float, int, int, int]] = []
        self._arrivals = self._all_jobs()
        self._coming: ReplayJob | None = None
        self._pending: list[ReplayJob] = []  # in the queue's order, as far as that is fixed
        self._fitting: set[tuple[GpuShape, str, str]] = set()  # kinds of jobs that the empty cluster can hold
        self._running = RunningJobs(plan.settings)
        if self._policy.moves == "paying":
            self._running.plan_for(self._occupancy, self._policy.placement, self._starter.rule)
        self._ends: list[tuple[float, int]] = []  # (end of limit, job number), sorted
        self._numbers = 0
        self._now_s = 0.0
        self._last_pass_s = -1e18
        self._woken_s: float | None = None
        self._outcomes: list[JobOutcome] = []
        self._gpu_s = self._move_gpu_s = 0.0
        self._moves = 0
        self._settled_until_s = 0.0  # no move pays before, unless a job starts or ends
        self._busy = 0
        self._timeline: list[tuple[float, int, int]] = []
        self._random = np.random.default_rng([plan.seed, 0xFA11])

    def result(self) -> Replay:
        total = len(self._plan.trace.jobs)
        complete = self._loop(total) if total else True
        self._count_work()
        columns = list(zip(*self._timeline, strict=True)) or [(), (), ()]
        return Replay(
            policy=self._plan.policy, queue=self._plan.queue, seed=self._plan.seed, n_gpus=self._plan.hardware.n_gpus,
            outcomes=tuple(self._outcomes), timeline=Timeline(*columns), gpu_s=self._gpu_s, moves=self._moves,
            move_gpu_s=self._move_gpu_s, end_s=self._now_s,
            complete=complete, trace=self._plan.number,
        )  # fmt: skip

    def _loop(self, total: int) -> bool:
        self._next_arrival()
        if self._policy.moves != "none" or not self._queue.fixed:
            heappush(self._events, (self._settings.tick_s, TICK, 0, 0))
        self._schedule_failures()
        while len(self._outcomes) < total:
            if not self._events or self._stuck():
                raise UsageError(f"{len(self._pending)} pending jobs can never start on this cluster")
            self._now_s = self._events[0][0]
            changed = False
            while self._events and self._events[0][0] <= self._now_s:
                _, kind, number, edition = heappop(self._events)
                changed |= self._happen(kind, number, edition)
            if changed:
                self._schedule()
                if not self._timeline or self._timeline[-1][1:] != (self._busy, len(self._pending)):
                    self._timeline.append((self._now_s, self._busy, len(self._pending)))
            if self._progress and changed and not self._progress(len(self._outcomes), total):
                return False
        return True

    def _stuck(self) -> bool:
        """Whether jobs are pending and nothing will ever happen but ticks."""
        quiet = not self._running and self._coming is None and self._woken_s is None
        return quiet and bool(self._pending) and self._settings.failures is None

    def _happen(self, kind: int, number: int, edition: int) -> bool:
        """Carry out one event; False when it changed nothing."""
        if kind == ARRIVE:
            self._arrive()
        elif kind == FINISH:
            job = self._running.get(number)
            if job is None or job.edition != edition:
                return False
            self._finish(job)
        elif kind == TICK:
            heappush(self._events, (self._now_s + self._settings.tick_s, TICK, 0, 0))
            return self._tick()
        elif kind == WAKE:
            if self._woken_s is not None and self._now_s >= self._woken_s:
                self._woken_s = None
        else:
            self._node_event(kind, number)
        return True

    # Arrivals

    def _all_jobs(self) -> Iterator[ReplayJob]:
        """Trace and background merged by submission."""
        background = self._plan.background() if self._plan.background else iter(())
        ahead = next(background, None)
        for trace_job in self._plan.trace.jobs:
            while ahead is not None and ahead.submit_s < trace_job.submit_s:
                yield self._job(ahead, False)
                ahead = next(background, None)
            yield self._job(trace_job, True)
        while ahead is not None:
            yield self._job(ahead, False)
            ahead = next(background, None)

    def _job(self, trace_job: TraceJob, reported: bool) -> ReplayJob:
        self._numbers += 1
        return ReplayJob(trace_job, self._numbers, self._settings, reported)

    def _next_arrival(self) -> None:
        self._coming = next(self._arrivals, None)
        if self._coming is not None:
            heappush(self._events, (self._coming.submit_s, ARRIVE, self._coming.number, 0))

    def _arrive(self) -> None:
        job = self._coming
        assert job is not None
        self._check_fits(job)
        self._enqueue(job)
        self._next_arrival()

    def _enqueue(self, job: ReplayJob) -> None:
        if self._queue.fixed:
            insort(self._pending, job, key=self._in_line)
        else:
            self._pending.append(job)

    def _in_line(self, job: ReplayJob) -> tuple[float, int]:
        return self._queue.key(job, self._now_s, self._usage), job.number

    def _check_fits(self, job: ReplayJob) -> None:
        """Raises UsageError for a job that even the empty cluster could not hold."""
        trace = job.trace
        kind = (trace.shape, trace.partition, _class(job))
        if kind in self._fitting:
            return
        if _class(job) not in self._plan.hardware.true:
            known = ", ".join(self._plan.hardware.true)
            raise UsageError(
                f"job {trace.job_id}: nothing is known of the GPUs for class {trace.sensitivity} (only for {known})"
            )
        if trace.partition and trace.partition not in self._plan.hardware.partitions:
            known = ", ".join(self._plan.hardware.partitions) or "none"
            raise UsageError(
                f"job {trace.job_id}: partition {trace.partition!r} is not in the cluster (it has: {known})"
            )
        mine = [
            count
            for node, count in enumerate(self._occupancy.node_gpus)
            if self._occupancy.in_partition(trace.partition, node)
        ]
        need = need_of(trace.shape, max(mine, default=0))
        if need is None or not _can_hold(mine, need):
            where = f"partition {trace.partition}" if trace.partition else "the cluster"
            raise UsageError(
                f"job {trace.job_id} wants {trace.shape.total} GPUs on {trace.shape.nodes or 'any'} nodes, "
                f"more than {where} has ({len(mine)} nodes, {sum(mine)} GPUs); leave it out or take a larger cluster"
            )
        self._fitting.add(kind)

    # Starting, ending, moving

    def _schedule(self) -> None:
        """Heads at every event; backfill at most once per interval, and then again when the interval is over."""
        if not self._pending:
            return
        now_s = self._now_s
        if not self._queue.fixed and self._occupancy.free_gpus:
            self._pending.sort(key=self._in_line)
        due_s = self._last_pass_s + self._settings.backfill_interval_s
        if now_s >= due_s:
            self._last_pass_s = now_s
            self._backfill()
        else:
            self._starter.heads(self._pending, now_s)
            self._wake(due_s)
        impatient_s = self._starter.next_patience_end()
        if impatient_s is not None:
            self._wake(impatient_s)

    def _backfill(self) -> None:
        """One pass. Its starts may help a job that waited for better GPUs, since a node hands out GPUs in order.
        So another pass follows, as Slurm's would, until nothing starts."""
        while True:
            before = len(self._pending)
            self._starter.backfill(self._pending, self._by_end, self._now_s)
            if not self._pending or len(self._pending) == before:
                return
            if self._settings.backfill_interval_s > 0:
                self._wake(self._now_s + self._settings.backfill_interval_s)
                return
            if not self._policy.waits:
                return

    def _wake(self, at_s: float) -> None:
        if self._woken_s is None or at_s < self._woken_s:
            self._woken_s = at_s
            heappush(self._events, (at_s, WAKE, 0, 0))

    def _by_end(self) -> Iterator[ReplayJob]:
        return (self._running[number] for _, number in self._ends)

    def _begin(self, job: ReplayJob, placed: Placement, cost_s: float = 0.0) -> None:
        """Run a job on these GPUs from now on; `cost_s` is charged when it had run elsewhere."""
        held = slots(placed)
        self._settled_until_s = 0.0
        self._occupancy.take(held)
        if self._alone:
            slowdown, locality = self._alone.factors(job, _class(job))
        else:
            true = self._plan.hardware.true[_class(job)]
            slowdown = max(true[node][index] for node, indexes in held for index in indexes)
            locality = job.locality_penalty if len(held) > 1 else 1.0
        if job.first_start_s is not None and not cost_s:
            cost_s = job.move_cost_s  # it failed with its node and starts again
        job.begin(held, slowdown, locality, self._now_s, cost_s + self._settings.warmup_s)
        job.believed = placed.product
        self._running.add(job)
        self._busy += job.held_gpus
        insort(self._ends, (job.limit_end_s, job.number))
        heappush(self._events, (job.end_s, FINISH, job.number, job.edition))

    def _stop(self, job: ReplayJob) -> None:
        """Count what it did and free its GPUs."""
        self._settled_until_s = 0.0
        self._running.remove(job)
        gpu_s = job.advance(self._now_s)
        self._gpu_s += gpu_s
        self._usage.add(job.account or job.user, gpu_s, self._now_s)
        self._occupancy.give(job.held)
        self._busy -= job.held_gpus
        del self._ends[bisect_left(self._ends, (job.limit_end_s, job.number))]

    def _count_work(self) -> None:
        """Of all running jobs, up to now."""
        held = self._running.advance(self._now_s)
        self._gpu_s = float(np.add.accumulate(np.append(self._gpu_s, held))[-1])  # one after the other, in order
        if not self._queue.fixed:
            owners = (job.account or job.user for job in self._running)
            self._usage.add_all(zip(owners, held.tolist(), strict=True), self._now_s)

    def _finish(self, job: ReplayJob) -> None:
        self._stop(job)
        if job.reported:
            self._outcomes.append(job.outcome(self._now_s, self._plan.hardware.names))

    def _tick(self) -> bool:
        """Plan moves; False when nothing has come of it and no queue depends on the time."""
        if self._queue.fixed and self._now_s < self._settled_until_s:
            return False
        self._count_work()
        if self._policy.moves == "paying":
            moves = self._running.moves(self._now_s)
            self._carry_out({number: move.placement for number, move in moves})
            if not moves:
                self._settled_until_s = self._running.next_prospect_s(self._now_s)
            return bool(moves) or not self._queue.fixed
        elif self._policy.moves == "always":
            movable = [job for job in self._running if job.trace.movable]
            self._carry_out(everybody_anew(self._occupancy, self._policy.placement, movable, self._starter.rule))
        return True

    def _carry_out(self, moves: dict[int, Placement]) -> None:
        moved = [self._running[number] for number in moves]
        for job in moved:
            self._stop(job)
        for job in moved:
            job.moves += 1
            self._moves += 1
            self._move_gpu_s += job.move_cost_s * job.held_gpus
            self._begin(job, moves[job.number], job.move_cost_s)

    # Nodes that fail

    def _schedule_failures(self) -> None:
        if self._settings.failures:
            for node in range(len(self._plan.hardware.names)):
                self._fail_later(node)

    def _fail_later(self, node: int) -> None:
        failures = self._settings.failures
        assert failures is not None
        heappush(self._events, (self._now_s + float(self._random.exponential(failures.mtbf_s)), FAIL, node, 0))

    def _node_event(self, kind: int, node: int) -> None:
        failures = self._settings.failures
        assert failures is not None
        if kind == REPAIR:
            self._settled_until_s = 0.0
            self._occupancy.set_down(node, False)
            self._fail_later(node)
            return
        for job in [job for job in self._running if any(node == at for at, _ in job.held)]:
            self._stop(job)
            saved = job.done_s - job.done_s % failures.checkpoint_s
            job.lose(saved)
            job.restarts += 1
            self._enqueue(job)
        self._occupancy.set_down(node, True)
        heappush(self._events, (self._now_s + failures.repair_s, REPAIR, node, 0))


def _can_hold(sizes: Sequence[int], need: Need) -> bool:
    """Whether empty nodes of these sizes meet the need."""
    if not need.counts:
        return need.total <= sum(sizes)
    return all(
        sum(1 for size in sizes if size >= count) >= sum(1 for other in need.counts if other >= count)
        for count in need.counts
    )


def _class(job: ReplayJob) -> str:
    """The class whose slowdowns the job really feels; a job nobody classified feels those of class A."""
    return "A" if job.trace.sensitivity == "?" else job.trace.sensitivity
