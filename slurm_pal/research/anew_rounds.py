# SPDX-License-Identifier: MIT
"""Policies that place all jobs anew each ROUND_S, for jobs whose moves are charged: Hadar, SRPT, LAS.

Between two rounds jobs that wait may start on free GPUs; what runs stays. SRPT and LAS serve jobs in an
order, each on the fastest column with room: the plain rules that others must beat (hadar.md 3, sia-and-bar.md 6).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.hadar import hadar
from slurm_pal.allocation.problem import Problem, Vector
from slurm_pal.research.unequal import Moment
from slurm_pal.research.unequal_rounds import ROUND_S

QUEUES_GPU_S = (3600.0, 36000.0)
"""LAS serves jobs by queues, those with less GPU time first, and each queue in order of arrival (Tiresias, NSDI'19)."""

Place = Callable[[Moment, NDArray[np.bool_]], NDArray[np.int64]]
"""(m,) columns of a round. Running jobs that are pinned (m,) stay."""


class AnewRounds:
    """The policy of one run."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._round = -1
        self._left = np.zeros((2, 0), dtype=np.int64)  # jobs and their columns as the last look has left them

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        held = moment.problem.held
        number = int(moment.now_s / ROUND_S)
        if number <= self._round and np.array_equal(np.stack((moment.job, held)), self._left):
            return held.copy()
        pinned = (held >= 0) & (number <= self._round)
        self._round = number
        column = self._place(moment, pinned)
        self._left = np.stack((moment.job, column))
        return column


class HadarPlace:
    """Hadar (hadar.md 2). `n_jobs` are those of the trace."""

    def __init__(self, n_jobs: int) -> None:
        self._total = np.full(n_jobs, np.nan)  # steps of each job, as believed when it came

    def __call__(self, moment: Moment, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
        now = moment.problem
        new = np.isnan(self._total[moment.job])
        self._total[moment.job[new]] = now.remaining[new]
        cost_s = np.where(moment.charged, moment.move_cost_s, 0.0)
        return hadar(now, self._total[moment.job], cost_s, pinned)


def srpt(moment: Moment, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Shortest remaining processing time first, on the fastest column of each job."""
    now = moment.problem
    best = fitting(now).max(axis=1, initial=0.0)
    rest_s = np.divide(now.remaining, best, out=np.zeros(now.n_jobs), where=best > 0)
    return in_order(now, np.argsort(rest_s, kind="stable"), pinned)


class LasPlace:
    """Least attained service first: GPU time so far, in the queues of QUEUES_GPU_S. `n_jobs` are those of the trace."""

    def __init__(self, n_jobs: int) -> None:
        self._attained_s = np.zeros(n_jobs)  # GPU time
        self._seen_s, self._held = 0.0, (np.zeros(0, dtype=np.int64), np.zeros(0))

    def __call__(self, moment: Moment, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
        jobs, gpus = self._held
        self._attained_s[jobs] += gpus * (moment.now_s - self._seen_s)
        queue = np.searchsorted(QUEUES_GPU_S, self._attained_s[moment.job], side="right")
        column = in_order(moment.problem, np.argsort(queue, kind="stable"), pinned)
        self._seen_s = moment.now_s
        self._held = moment.job, np.where(column >= 0, moment.problem.scale, 0.0)
        return column


def in_order(problem: Problem, order: NDArray[np.int64], pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(m,) the fastest column with room of each job in turn, -1 where none has; of equal ones that which it holds."""
    column: NDArray[np.int64] = np.where(pinned, problem.held, -1)
    free: Vector = problem.capacity - problem.uses[:, problem.held[pinned]] @ problem.scale[pinned]
    speeds = fitting(problem)
    stays = np.arange(problem.n_columns) == problem.held[:, None]
    for job in order.tolist():
        need = problem.uses * problem.scale[job]
        able = (speeds[job] > 0) & (need <= free[:, None]).all(axis=0)
        if pinned[job] or not able.any():
            continue
        at = int(np.lexsort((~stays[job], -np.where(able, speeds[job], 0.0)))[0])
        column[job] = at
        free -= need[:, at]
    return column
