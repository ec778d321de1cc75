# SPDX-License-Identifier: MIT
"""Gangs on columns of unequal GPUs, from arrivals to the last end, with every move charged.

An event loop: jobs come and end at their own times, and after each such event, and at least
every `review_s`, a policy says who runs where. A job's first start is free. When it is moved,
or stopped and started again, it holds its new GPUs for `move_cost_s` without progress. A job that
keeps its column and its number of GPUs keeps its GPUs. Without a `Hardware` the GPUs of a column are all alike;
with one they have nodes and slowdowns, and a gang runs at the speed of its slowest GPU x locality.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Problem, Vector, problem
from slurm_pal.base.errors import PalError, UsageError
from slurm_pal.research import pal_share
from slurm_pal.research.pal_share import move_costs
from slurm_pal.research.unequal_places import Places, Slots
from slurm_pal.simulate.hardware import Hardware

TOUCH_S = 1e-6  # events closer together than this are one
UNDERRATED = 0.1  # a job that outlives the belief about it is taken to have this part of its work so far still to do
PATIENCE = 4
ADMITTED_S = 3600.0
"""A policy may let a job wait this long just for its next look: Gavel's rounds take up to 1920 s and a round."""
LATEST_S = 1e10
"""A job that runs at once must end by then, wherever it runs: 300 years. Later the clock's rounding exceeds TOUCH_S."""


class StarvedError(PalError):
    """Jobs do not finish: the policy never lets them run, or moves them all the time."""


class GangJob(NamedTuple):
    id: str
    arrival_s: float
    steps: float
    scale: int  # GPUs of one column
    throughput: tuple[float, ...]  # steps/s of the whole job, by column; 0: it cannot run there
    believed_steps: float = math.nan  # what the policy sees instead of `steps`
    sensitivity: str = "A"
    locality_penalty: float = 1.0  # slower by this over several nodes
    sizes: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """Other numbers of GPUs on which it could run, and its `throughput` there, in the same steps."""


class Moment(NamedTuple):
    """What a policy sees. Rows are the jobs that have come and not ended, in order of arrival."""

    now_s: float
    problem: Problem  # remaining by belief, held, age_s
    job: NDArray[np.int64]  # (m,) numbers of the jobs in the trace
    charged: NDArray[np.bool_]  # (m,) has run, so its next start costs
    move_cost_s: float
    moves: NDArray[np.int64]  # (m,) charged starts so far
    gpus: Vector  # (m,) that it holds, 0 where it waits
    places: Places | None  # which ones, where they differ; not to be changed


class Chosen(NamedTuple):
    """The answer of a policy that chooses more than columns."""

    column: NDArray[np.int64]  # (m,) -1 to wait
    gpus: Vector  # (m,) of each job, anything where it waits
    slots: Mapping[int, Slots] = {}  # row -> its GPUs; without it a job keeps those it has, or is packed


Policy = Callable[[Moment], "NDArray[np.int64] | Chosen"]
"""(m,) column of each job, -1 to wait, or more. A policy with a memory serves one run."""


class UnequalResult(NamedTuple):
    """One run. Arrays are in the order of the jobs given."""

    jct_s: Vector
    finish_s: Vector
    moves: NDArray[np.int64]  # charged starts
    makespan_s: float  # from 0 to the last end
    utilisation: float  # held GPU time over all GPU time up to the makespan
    lost_gpu_h: float  # GPU time that moves cost
    finish_time_ratio: Vector
    """Finish-time ratio: what the job would have done meanwhile on its own part of all GPUs, over its work."""

    def mean_jct_s(self, first: int = 0, end: int | None = None) -> float:
        return float(self.jct_s[first:end].mean())

    def percentile_jct_s(self, percent: float, first: int = 0, end: int | None = None) -> float:
        return float(np.percentile(self.jct_s[first:end], percent))


def simulate(
    jobs: Sequence[GangJob], gpus: Sequence[float], policy: Policy, *, move_cost_s: float, review_s: float = 1800.0,
    machine: Hardware | None = None,
) -> UnequalResult:  # fmt: skip
    """Run all jobs to the end; `gpus` are those of each column, and the partitions of `machine` are the columns.

    Raises UsageError for jobs that fit nowhere and for wrong answers of the policy, StarvedError when jobs
    have not ended after PATIENCE times what all would take one by one in their slowest column, ADMITTED_S apart.
    """
    _check(jobs, gpus, move_cost_s, review_s)
    run = _Run(jobs, gpus, policy, move_cost_s, review_s, Places(machine) if machine else None)
    while run.step():
        pass
    return run.result()


def pal_share_policy(settings: pal_share.PalShareSettings | None = None) -> Policy:
    """The policy of `pal-share`, with the promises it makes as its memory."""
    promised: dict[int, float] = {}

    def policy(moment: Moment) -> NDArray[np.int64]:
        until_s = np.array([promised.get(int(number), math.nan) for number in moment.job])
        now = move_costs(len(moment.job), move_cost_s=moment.move_cost_s, promised_s=until_s - moment.now_s)
        found = pal_share.decide(moment.problem, now, settings)
        promised.update(zip(moment.job.tolist(), (found.promised_s + moment.now_s).tolist(), strict=True))
        return found.column

    return policy


class _Run:
    """The state of one simulation; `step` goes from one event to the next."""

    def __init__(
        self, jobs: Sequence[GangJob], gpus: Sequence[float], policy: Policy, move_cost_s: float, review_s: float,
        places: Places | None,
    ) -> None:  # fmt: skip
        self.jobs, self.places = jobs, places
        self.policy, self.move_cost_s, self.review_s = policy, move_cost_s, review_s
        self.gpus = np.array(gpus, dtype=np.float64)
        self.arrival_s = np.array([job.arrival_s for job in jobs])
        self.scale = np.array([job.scale for job in jobs], dtype=np.float64)
        self.speed = np.array([job.throughput for job in jobs], dtype=np.float64)
        self.steps = np.array([job.steps for job in jobs], dtype=np.float64)
        believed = np.array([job.believed_steps for job in jobs])
        self.believed = np.where(np.isnan(believed), self.steps, believed)
        n = len(jobs)
        self.left = self.steps.copy()
        self.column = np.full(n, -1)
        self.held = np.zeros(n)  # GPUs
        self.rate = np.zeros(n)  # steps/s where it runs
        self.fair = np.zeros(n)  # steps on its own part of the cluster
        self.ready_s = np.zeros(n)  # from when a running job makes progress
        self.started = np.zeros(n, dtype=bool)
        self.moves = np.zeros(n, dtype=np.int64)
        self.finish_s = np.full(n, np.nan)
        self.queue = np.argsort(self.arrival_s, kind="stable").tolist()[::-1]
        self.present: list[int] = []
        self.now_s = self.held_gpu_s = self.lost_gpu_s = 0.0
        slowest = np.where(self.speed > 0, self.speed, np.inf).min(axis=1)
        one_by_one_s = float((self.steps / slowest).sum()) * self._worst_drag() + n * (move_cost_s + ADMITTED_S)
        self.give_up_s = PATIENCE * (float(self.arrival_s.max()) + one_by_one_s)

    def step(self) -> bool:
        """One event and the decision after it; False when all jobs have ended."""
        while self.queue and self.arrival_s[self.queue[-1]] <= self.now_s + TOUCH_S:
            self.present.append(self.queue.pop())
        if self.present:
            self._decide()
        elif not self.queue:
            return False
        if self.now_s > self.give_up_s:
            raise StarvedError(
                f"{len(self.present)} jobs have not ended after {self.now_s:.0f} s, {PATIENCE} times what all of them "
                "one by one would take"
            )
        self._advance()
        return True

    def _decide(self) -> None:
        jobs = np.array(self.present)
        done = self.steps[jobs] - self.left[jobs]
        made = problem(
            self.speed[jobs],
            self.scale[jobs],
            self.gpus,
            remaining=np.maximum(self.believed[jobs] - done, UNDERRATED * done),
            age_s=np.maximum(0.0, self.now_s - self.arrival_s[jobs]),
            held=self.column[jobs],
        )
        moment = Moment(
            self.now_s, made, jobs, self.started[jobs], self.move_cost_s, self.moves[jobs], self.held[jobs], self.places
        )
        answer = self.policy(moment)
        chosen = answer if isinstance(answer, Chosen) else Chosen(np.asarray(answer), self.scale[jobs])
        self._check_answer(jobs, chosen)
        self._carry_out(jobs, chosen)

    def _carry_out(self, jobs: NDArray[np.int64], chosen: Chosen) -> None:
        runs = chosen.column >= 0
        gpus = np.where(runs, chosen.gpus, 0.0)
        changed = (chosen.column != self.column[jobs]) | (gpus != self.held[jobs])
        for row, slots in chosen.slots.items():
            held = self.places.slots.get(int(jobs[row])) if self.places else slots
            changed[row] |= bool(runs[row]) and held != slots
        starts = jobs[changed & runs]
        charged = starts[self.started[starts]]
        self.ready_s[starts] = self.now_s
        self.ready_s[charged] += self.move_cost_s
        self.moves[charged] += 1
        self.started[starts] = True
        self.column[jobs], self.held[jobs] = chosen.column, gpus
        if self.places:
            self._place(self.places, jobs, np.flatnonzero(changed).tolist(), chosen)
        for job in starts.tolist():
            self.rate[job] = self._rate(job)

    def _place(self, places: Places, jobs: NDArray[np.int64], rows: list[int], chosen: Chosen) -> None:
        """Those that a policy has named get their GPUs first, then the largest."""
        for row in rows:
            places.leave(int(jobs[row]))
        starts = [row for row in rows if chosen.column[row] >= 0]
        for row in sorted(starts, key=lambda row: (row not in chosen.slots, -chosen.gpus[row])):
            job, slots = int(jobs[row]), chosen.slots.get(row)
            if slots is None:
                places.packed(job, int(chosen.column[row]), int(chosen.gpus[row]))
            else:
                self._check_slots(places, row, slots, chosen)
                places.take(job, slots)

    def _check_slots(self, places: Places, row: int, slots: Slots, chosen: Chosen) -> None:
        """Raises UsageError for GPUs that are not what the column and the number say."""
        inside = places.machine.partitions[places.names[chosen.column[row]]]
        count = sum(len(indexes) for _, indexes in slots)
        if count != chosen.gpus[row] or any(node not in inside for node, _ in slots):
            raise UsageError(f"the policy gave {slots} for {chosen.gpus[row]:g} GPUs of column {chosen.column[row]}")

    def _rate(self, job: int) -> float:
        """Steps/s on the GPUs that it holds."""
        row, gpus = self.jobs[job], int(self.held[job])
        speeds = row.throughput if gpus == row.scale else dict(row.sizes)[gpus]
        slower = self.places.drag(job, row.sensitivity, row.locality_penalty) if self.places else 1.0
        return float(speeds[self.column[job]]) / slower

    def _worst_drag(self) -> float:
        if self.places is None:
            return 1.0
        worst = max(value for table in self.places.machine.true.values() for row in table for value in row)
        return worst * max(job.locality_penalty for job in self.jobs)

    def _check_answer(self, jobs: NDArray[np.int64], chosen: Chosen) -> None:
        """Raises UsageError for an answer that cannot be carried out."""
        found, runs = chosen.column, chosen.column >= 0
        if found.shape != jobs.shape or (found >= self.gpus.size).any():
            raise UsageError(
                f"the policy answered {found.tolist()}; it must give one column below {self.gpus.size} a job"
            )
        each = zip(jobs[runs].tolist(), found[runs].tolist(), chosen.gpus[runs].tolist(), strict=True)
        for job, column, gpus in each:
            row = self.jobs[job]
            speeds = row.throughput if gpus == row.scale else dict(row.sizes).get(int(gpus), ())
            if not speeds or speeds[column] <= 0:
                raise UsageError(f"the policy put job {row.id} on {gpus:g} GPUs of column {column}: no progress there")
        used = np.bincount(found[runs], weights=chosen.gpus[runs], minlength=self.gpus.size)
        if (used > self.gpus).any():
            raise UsageError(f"the policy gave out {used.tolist()} GPUs; there are {self.gpus.tolist()}")

    def _advance(self) -> None:
        """To the next event, or to the next review."""
        running = np.array([job for job in self.present if self.column[job] >= 0], dtype=np.int64)
        from_s = np.maximum(self.ready_s[running], self.now_s)
        speed = self.rate[running]
        ends_s = from_s + self.left[running] / speed
        next_s = float(ends_s.min(initial=math.inf))
        if self.queue:
            next_s = min(next_s, float(self.arrival_s[self.queue[-1]]))
        if self.present:
            next_s = min(next_s, self.now_s + self.review_s)
        self.left[running] -= np.clip(next_s - from_s, 0.0, None) * speed
        self.held_gpu_s += (next_s - self.now_s) * float(self.held[running].sum())
        self.lost_gpu_s += float((np.minimum(from_s, next_s) - self.now_s) @ self.held[running])
        self._count_fair(next_s)
        ended = ends_s <= next_s + TOUCH_S
        for job in running[ended].tolist():
            self.finish_s[job] = next_s
            self.present.remove(job)
            if self.places:
                self.places.leave(job)
        self.now_s = next_s

    def _count_fair(self, next_s: float) -> None:
        """What each job would do until then on an equal part of every column (Themis; `isolated_throughput`)."""
        jobs = np.array(self.present, dtype=np.int64)
        if jobs.size:
            shares = np.outer(1.0 / self.scale[jobs], self.gpus / jobs.size)
            shares /= np.maximum(1.0, shares.sum(axis=1, keepdims=True))
            self.fair[jobs] += (next_s - self.now_s) * (self.speed[jobs] * shares).sum(axis=1)

    def result(self) -> UnequalResult:
        makespan_s = float(self.finish_s.max())
        return UnequalResult(
            jct_s=self.finish_s - self.arrival_s,
            finish_s=self.finish_s,
            moves=self.moves,
            makespan_s=makespan_s,
            utilisation=self.held_gpu_s / (makespan_s * float(self.gpus.sum())),
            lost_gpu_h=self.lost_gpu_s / 3600.0,
            finish_time_ratio=self.fair / self.steps,
        )


def _check(jobs: Sequence[GangJob], gpus: Sequence[float], move_cost_s: float, review_s: float) -> None:
    if not jobs:
        raise UsageError("a trace without jobs cannot be simulated")
    if not (0 <= move_cost_s < math.inf and 0 < review_s < math.inf):
        raise UsageError(f"move cost {move_cost_s} s and review {review_s} s: at least 0 and above 0, and finite")
    for job in jobs:
        if len(job.throughput) != len(gpus):
            raise UsageError(f"job {job.id} has {len(job.throughput)} throughputs; there are {len(gpus)} columns")
        if not (job.steps > 0 and job.arrival_s >= 0 and job.scale > 0):
            raise UsageError(
                f"job {job.id}: {job.steps} steps on {job.scale} GPUs from {job.arrival_s} s; "
                "steps and GPUs must be above 0, the arrival at least 0"
            )
        speeds = [speed for speed, free in zip(job.throughput, gpus, strict=True) if speed > 0 and job.scale <= free]
        if not speeds:
            raise UsageError(
                f"job {job.id} wants {job.scale} GPUs of one column; none has them and a throughput for it"
            )
        if not job.arrival_s + job.steps / min(speeds) <= LATEST_S:
            raise UsageError(
                f"job {job.id} comes at {job.arrival_s:g} s and takes up to {job.steps / min(speeds):g} s; "
                f"it must end by {LATEST_S:g} s (300 years)"
            )
