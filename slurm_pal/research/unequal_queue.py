# SPDX-License-Identifier: MIT
"""Policies that stop no job: a queue in order of arrival with EASY backfill, each job with a list of columns.

`Listed` gives all jobs the same list, as a user of stock Slurm would who names all partitions.
`Belonging` keeps a job to the columns where an allocation policy gives it time, for as long as waiting
for them can pay, and then gives it the whole list. The tick does so too (rebalance.allocation), but keeps
no job waiting for longer than rebalance.partition_wait_s.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.problem import Allocation, Problem, Vector
from slurm_pal.placement.patience import WAIT_SHARE
from slurm_pal.research.unequal import Moment

LEAST_SHARE = 1e-6
"""A smaller share is rounding of the solver."""


class BackfillQueue:
    """Jobs start in order in the first column of their list with room.

    The first job that a column must turn away has a reservation there: the moment at which it can
    start if all jobs use their whole time limit. Others start there if they end before, or leave it enough GPUs.
    """

    def __init__(self, limit_s: Vector) -> None:
        self._limit_s = limit_s  # by job number
        self._end_s = np.zeros(limit_s.size)  # of the limit of those that run

    def start(self, moment: Moment, lists: list[list[int]]) -> NDArray[np.int64]:
        """(m,) columns after one pass; `lists` has the columns of each row, the best first."""
        column = moment.problem.held.copy()
        one = _Pass(moment, column, free_gpus(moment.problem), self._end_s)
        for row in np.flatnonzero(column < 0).tolist():
            one.take(row, lists[row], float(self._limit_s[moment.job[row]]))
        return column


class _Pass:
    """One pass over the queue: free GPUs, and the reservation in each column."""

    def __init__(self, moment: Moment, column: NDArray[np.int64], free: Vector, end_s: Vector) -> None:
        self.moment, self.column, self.free, self.end_s = moment, column, free, end_s
        self.reserved_s = np.full(free.size, math.inf)
        self.spare = np.zeros(free.size)  # GPUs that are left over at the moment of the reservation

    def take(self, row: int, columns: list[int], limit_s: float) -> None:
        """Start the job, or reserve for it what nobody has reserved."""
        size, end_s = self.moment.problem.scale[row], self.moment.now_s + limit_s
        for j in columns:
            late = end_s > self.reserved_s[j]
            if self.free[j] >= size and (not late or self.spare[j] >= size):
                self.column[row] = j
                self.free[j] -= size
                self.spare[j] -= size if late else 0.0
                self.end_s[self.moment.job[row]] = end_s
                return
        for j in columns:
            if math.isinf(self.reserved_s[j]):
                self._reserve(j, size)

    def _reserve(self, j: int, size: float) -> None:
        rows = np.flatnonzero(self.column == j)
        ends_s = self.end_s[self.moment.job[rows]]
        order = np.argsort(ends_s, kind="stable")
        total = self.free[j] + np.cumsum(self.moment.problem.scale[rows[order]])
        enough = int(np.searchsorted(total, size))
        self.reserved_s[j] = ends_s[order[enough]]
        last = int(np.searchsorted(ends_s[order], self.reserved_s[j], side="right")) - 1
        self.spare[j] = total[last] - size


def free_gpus(problem: Problem) -> Vector:
    """(n,) GPUs that no job holds."""
    runs = problem.held >= 0
    used = np.bincount(problem.held[runs], weights=problem.scale[runs], minlength=problem.n_columns)
    return np.asarray(problem.gpus - used)


def finds_room(problem: Problem) -> NDArray[np.bool_]:
    """(m, n) where a waiting job would find its GPUs now."""
    room = (problem.throughput > 0) & (problem.scale[:, None] <= free_gpus(problem))
    return np.asarray(room & (problem.held < 0)[:, None])


class Listed:
    """The policy with all columns in the list of each job, in their order."""

    def __init__(self, limit_s: Vector) -> None:
        self._queue = BackfillQueue(limit_s)

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        if not finds_room(moment.problem).any():
            return moment.problem.held.copy()
        return self._queue.start(moment, [np.flatnonzero(speeds).tolist() for speeds in fitting(moment.problem)])


class Belonging:
    """The policy with lists by an allocation policy, which sees running jobs too: what they hold comes free one day."""

    def __init__(self, limit_s: Vector, allocate: Callable[[Problem], Allocation]) -> None:
        self._queue, self._allocate = BackfillQueue(limit_s), allocate
        self._kept_s: dict[int, float] = {}  # how long a job could have started and was kept from it
        self._before: tuple[float, set[int]] = (0.0, set())  # when, and who was kept from then on

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        since_s, kept = self._before
        for number in kept:
            self._kept_s[number] = self._kept_s.get(number, 0.0) + moment.now_s - since_s
        column, kept = moment.problem.held.copy(), set()
        if finds_room(moment.problem).any():
            usable = fitting(moment.problem)
            shares = self._allocate(moment.problem).shares
            lists = [self._list(moment, row, usable[row], shares[row]) for row in range(len(moment.job))]
            column = self._queue.start(moment, lists)
            room = finds_room(moment.problem._replace(held=column))
            for row in np.flatnonzero(room.any(axis=1)).tolist():
                if np.delete(room[row], lists[row]).any():
                    kept.add(int(moment.job[row]))
        self._before = moment.now_s, kept
        return column

    def _list(self, moment: Moment, row: int, speed: Vector, shares: Vector) -> list[int]:
        able = np.flatnonzero(speed)
        wanted = able[shares[able] > LEAST_SHARE]
        wanted = wanted[np.argsort(-shares[wanted], kind="stable")]
        others = np.setdiff1d(able, wanted)
        pays_s = 0.0
        if wanted.size and others.size:
            gain = 1.0 / float(speed[others].max()) - 1.0 / float(speed[wanted].max())
            pays_s = WAIT_SHARE * max(0.0, float(moment.problem.remaining[row]) * gain)
        waits = wanted.size and (not others.size or self._kept_s.get(int(moment.job[row]), 0.0) < pays_s)
        found: list[int] = (wanted if waits else able).tolist()
        return found
