# SPDX-License-Identifier: MIT
"""Whole columns for whole jobs, one job after the other: FIFO and shortest job first (gavel.md 2)."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import left_out, running
from slurm_pal.allocation.problem import Allocation, PairShare, Problem

Columns = NDArray[np.int64]
"""(m,) the column that each job has to itself, -1 for none."""


class FreeCapacity:
    """The GPUs that are left."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._free = problem.capacity.copy()

    def columns(self, job: int) -> NDArray[np.int64]:
        """The columns in which the job fits now, ascending."""
        full = self._free + 1e-9 < self._problem.scale[job]
        return np.flatnonzero(~(self._problem.uses[full] > 0).any(axis=0))

    def take(self, job: int, column: int) -> None:
        self._free -= self._problem.scale[job] * self._problem.uses[:, column]


def keep_held(problem: Problem) -> tuple[Columns, FreeCapacity]:
    """Running jobs stay; the room that this leaves."""
    room = FreeCapacity(problem)
    for job in np.flatnonzero(problem.held >= 0):
        room.take(int(job), int(problem.held[job]))
    return problem.held.copy(), room


def waiting(problem: Problem, columns: Columns) -> list[int]:
    """Jobs without a column, in order. One that can run nowhere is left out: it would stop those behind it."""
    return [int(job) for job in np.flatnonzero(running(problem) & (columns < 0))]


def alone(problem: Problem, columns: Columns) -> Allocation:
    """Each job all of its time in its column."""
    shares = np.zeros((problem.n_jobs, problem.n_columns))
    jobs = np.flatnonzero(columns >= 0)
    shares[jobs, columns[jobs]] = 1.0
    return Allocation(shares, notes=left_out(running(problem)))


def fifo(problem: Problem, draws: random.Random) -> Allocation:
    """In order, each to a random column among those with room, where it stays; stops at the first without room.

    `held` is the column of the previous answer. Draws one `randrange` per job that starts.
    This is the agnostic policy as its authors meant it, not the shipped one (gavel.md 9, defect 1).
    """
    columns, room = keep_held(problem)
    for job in waiting(problem, columns):
        options = [int(j) for j in room.columns(job) if problem.throughput[job, j] > 0]
        if not options:
            break
        columns[job] = options[draws.randrange(len(options))]
        room.take(job, columns[job])
    return alone(problem, columns)


def fifo_perf(problem: Problem) -> Allocation:
    """Anew each time: in order, each to its fastest column with room; stops at the first that finds no room."""
    return alone(problem, _in_order(problem))


def sjf(problem: Problem) -> Allocation:
    """Anew each time: the shortest job first (remaining steps / its best throughput), to its fastest column with room.

    A job that finds no room is passed over: the ones before it are shorter, so it loses nothing by it.
    """
    best = problem.throughput.max(axis=1, initial=0.0)
    left_s = np.divide(problem.remaining, best, out=np.full(problem.n_jobs, np.inf), where=best > 0)
    return alone(problem, _fastest(problem, np.argsort(left_s, kind="stable"), stops=False))


def fifo_packing(problem: Problem, threshold: float = 1.5) -> Allocation:
    """`fifo_perf`, then the waiting jobs in order beside running ones, while that pays; stops at the first that cannot.

    It pays if the speeds of the two, each relative to the job alone, add up to more than `threshold`.
    """
    columns = _in_order(problem)
    single = [int(job) for job in np.flatnonzero(columns >= 0)]
    pairs = []
    for job in waiting(problem, columns):
        gains = [_gain(problem, other, job, int(columns[other])) for other in single]
        if not gains or max(gains) <= threshold:
            break
        other = single.pop(gains.index(max(gains)))
        pairs.append(PairShare(min(other, job), max(other, job), np.eye(problem.n_columns)[columns[other]]))
        columns[other] = -1
    return alone(problem, columns)._replace(pairs=tuple(pairs))


def _in_order(problem: Problem) -> Columns:
    return _fastest(problem, waiting(problem, np.full(problem.n_jobs, -1)), stops=True)


def _fastest(problem: Problem, order: Iterable[int], *, stops: bool) -> Columns:
    columns, room = np.full(problem.n_jobs, -1), FreeCapacity(problem)
    for job in order:
        options = room.columns(job)
        options = options[problem.throughput[job, options] > 0]
        if options.size:
            columns[job] = options[problem.throughput[job, options].argmax()]
            room.take(job, columns[job])
        elif stops:
            break
    return columns


def _gain(problem: Problem, first: int, second: int, column: int) -> float:
    """Speed of the first beside the second plus the reverse, each relative to the job alone; 0: they cannot share."""
    if not problem.pairs.size or problem.scale[first] != problem.scale[second]:
        return 0.0
    a, b = problem.kind[first], problem.kind[second]
    there, back = problem.pairs[a, b, column], problem.pairs[b, a, column]
    if not (there > 0 and back > 0 and problem.throughput[second, column] > 0):
        return 0.0
    return float(there / problem.throughput[first, column] + back / problem.throughput[second, column])
