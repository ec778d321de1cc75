# SPDX-License-Identifier: MIT
"""Policies side by side on unequal GPUs, seed by seed; work for pool.run_all."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Vector, problem
from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.research.bounds import makespan_bound_s
from slurm_pal.research.replica.gavel_simulator import StoppedError
from slurm_pal.research.unequal import Chosen, Moment, Policy, StarvedError, UnequalResult, simulate
from slurm_pal.research.unequal_jobs import UnequalWorkload
from slurm_pal.research.unequal_policies import POLICIES, check
from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.metrics import weeks
from slurm_pal.simulate.pool import Progress
from slurm_pal.simulate.profiles import Source, tables
from slurm_pal.simulate.statistics import LEAST_PIECES, Piece, Ratio, over_pieces
from slurm_pal.simulate.virtual import VirtualCluster

_STREAM = 0x11E9


class UnequalTask(NamedTuple):
    policy: str
    seed: int


class UnequalFigures(NamedTuple):
    """Of one run. Completion times over the jobs of the window, all else over all jobs."""

    avg_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    makespan_s: float
    utilisation: float
    moves: float
    lost_gpu_h: float
    missed: float  # jobs that ended after their deadline
    worst_finish_time_ratio: float


class Ran(NamedTuple):
    """One run: its figures, and the jobs that ended after their deadlines, with how late."""

    figures: UnequalFigures
    late_s: dict[str, float]  # job id -> s, the latest first
    weeks_jct_s: tuple[float, ...] = ()  # mean completion time of the jobs of each week, as the trace has them


class UnequalComparison(NamedTuple):
    """What is compared; policies are names of `unequal_policies`."""

    work: UnequalWorkload  # of the first seed
    policies: tuple[str, ...]
    move_cost_s: float
    seeds: tuple[int, ...] = (1,)
    jitter_s: float = 0.0  # submissions move by up to this much, by seed
    window: tuple[int, int] | None = None  # job numbers from 0 in the order of the trace, end exclusive
    anew: tuple[UnequalWorkload, ...] = ()  # of each seed, where each has a trace of its own, as made-up ones have
    source: Source | None = None  # slowdowns of the GPUs, drawn by seed; None: all are median ones

    def work_of(self, seed: int) -> UnequalWorkload:
        return self.anew[self.seeds.index(seed)] if self.anew else self.work

    def check(self) -> None:
        """Raises UsageError for a policy or a window that means nothing."""
        n = len(self.work.jobs)
        if self.window is not None and not 0 <= self.window[0] < self.window[1] <= n:
            raise UsageError(f"window {self.window[0]}:{self.window[1]} must be FIRST:END of job numbers within 0:{n}")
        for name in self.policies:
            check(name, self.work)

    def tasks(self) -> list[UnequalTask]:
        """Seed by seed, so that pairs are complete early."""
        return [UnequalTask(name, seed) for seed in self.seeds for name in self.policies]

    def arrival_s(self, seed: int) -> Vector:
        """(m,) arrivals of one seed, alike for all policies: each moved by U(-jitter_s, jitter_s), never before 0."""
        given = np.array([job.arrival_s for job in self.work_of(seed).jobs])
        if not self.jitter_s:
            return given
        moved_s = np.random.default_rng([seed, _STREAM]).uniform(-self.jitter_s, self.jitter_s, given.size)
        return np.asarray(np.maximum(0.0, given + moved_s))

    def run(self, task: UnequalTask, progress: Progress) -> Ran:
        """One policy on one seed. Raises StarvedError when it lets jobs starve, StoppedError on request."""
        work, arrival_s = self.work_of(task.seed), self.arrival_s(task.seed)
        row = POLICIES[task.policy]
        jobs = [job._replace(arrival_s=at_s) for job, at_s in zip(work.jobs, arrival_s.tolist(), strict=True)]
        policy = _watched(row.make(work, arrival_s, task.seed), arrival_s, progress)
        try:
            found = simulate(
                jobs, work.cluster.gpus, policy, move_cost_s=self.move_cost_s, review_s=row.review_s,
                machine=self.machine(task.seed),
            )  # fmt: skip
        except StarvedError as error:
            raise StarvedError(f"{task.policy}: {error}; leave that policy out") from None
        return self._figures(found, work)

    def machine(self, seed: int) -> Hardware | None:
        """The GPUs of one seed, alike for all policies. Raises UsageError for a profile of another size."""
        kinds = self.work.cluster
        if self.source is None and not kinds.per_node:
            return None
        sizes: list[int] = []
        partitions: dict[str, tuple[int, ...]] = {}
        for name, nodes in zip(kinds.types, kinds.nodes(), strict=True):
            partitions[name] = tuple(range(len(sizes), len(sizes) + len(nodes)))
            sizes += nodes
        cluster = VirtualCluster(tuple(f"n{k}" for k in range(len(sizes))), tuple(sizes), partitions)
        if self.source is None:
            median = {sensitivity: [[1.0] * size for size in sizes] for sensitivity in SENSITIVITY_CLASSES}
            return hardware(median, None, cluster.names, partitions)
        return hardware(tables(self.source.draw(cluster, seed), cluster), None, cluster.names, partitions)

    def _figures(self, found: UnequalResult, work: UnequalWorkload) -> Ran:
        first, end = self.window or (0, len(work.jobs))
        late_s = _late_s(found, work)
        each = weeks([job.arrival_s for job in work.jobs[first:end]])
        figures = UnequalFigures(
            avg_jct_s=found.mean_jct_s(first, end),
            p50_jct_s=found.percentile_jct_s(50, first, end),
            p99_jct_s=found.percentile_jct_s(99, first, end),
            makespan_s=found.makespan_s,
            utilisation=found.utilisation,
            moves=int(found.moves.sum()),
            lost_gpu_h=found.lost_gpu_h,
            missed=len(late_s),
            worst_finish_time_ratio=float(found.finish_time_ratio.max()),
        )
        return Ran(figures, late_s, tuple(float(found.jct_s[first:end][numbers].mean()) for numbers in each))

    def bound_s(self, seed: int) -> float:
        """A lower bound on the makespan of any schedule, moves free."""
        work = self.work_of(seed)
        jobs = work.jobs
        made = problem(
            [job.throughput for job in jobs],
            [job.scale for job in jobs],
            work.cluster.gpus,
            remaining=[job.steps for job in jobs],
        )
        return makespan_bound_s(made, self.arrival_s(seed))


def _late_s(found: UnequalResult, work: UnequalWorkload) -> dict[str, float]:
    over_s = found.jct_s - work.deadline_s
    order = [k for k in np.argsort(-over_s, kind="stable").tolist() if over_s[k] > 0]
    return {work.jobs[k].id: round(float(over_s[k]), 3) for k in order}


def ratio_of(runs: Mapping[int, Ran], theirs: Mapping[int, Ran], anew: bool) -> Ratio | None:
    """The ratio of mean completion times over pairs of runs, by seed; None without a pair.

    Independent are the traces, where each seed has its own, and with few of them the weeks of each.
    """
    pairs = sorted(runs.keys() & theirs.keys())
    weekly = not anew or len(pairs) < LEAST_PIECES
    found: dict[Piece, list[float]] = {}
    for number, seed in enumerate(pairs):
        sides = [run.weeks_jct_s if weekly else (run.figures.avg_jct_s,) for run in (runs[seed], theirs[seed])]
        for week, (above_s, below_s) in enumerate(zip(*sides, strict=True)):
            found.setdefault((number if anew else 0, week), []).append(above_s / below_s)
    return over_pieces(found, len(pairs)) if found else None


def mean(rows: list[UnequalFigures]) -> UnequalFigures:
    """Field by field, over seeds."""
    return UnequalFigures(*(fmean(values) for values in zip(*rows, strict=True)))


def _watched(policy: Policy, arrival_s: Vector, progress: Progress) -> Policy:
    """The same policy; it shows how many jobs are done, and ends the run on request."""
    order_s, total = np.sort(arrival_s), arrival_s.size

    def watched(moment: Moment) -> NDArray[np.int64] | Chosen:
        came = int(np.searchsorted(order_s, moment.now_s, side="right"))
        if not progress(max(0, came - moment.job.size), total):
            raise StoppedError("the run was stopped")
        return policy(moment)

    return watched
