# SPDX-License-Identifier: MIT
"""What no schedule can beat: lower bounds on the makespan, with free moves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Problem, Vector, rows_of

SUFFIXES = 24  # release times that `makespan_bound_s` looks at, at most


def drain_s(problem: Problem) -> float:
    """Time that the remaining work takes at the very least, s; 0 where nothing can run. Cheap, for each tick.

    The longest job on its fastest column, or what the capacity takes with the jobs of a kind taken together
    (same throughput and scale). Work that can run nowhere is left out.
    """
    return _least_s(problem, groups(problem))


def makespan_bound_s(problem: Problem, release_s: Vector) -> float:
    """Time at which the last job ends at the very earliest, s; job i comes at release_s[i].

    For some release times a: a, and the makespan LP (gavel.md 10.2) of all jobs from a on,
    with the rows for whole gangs that `drain_s` has too. For jobs that are all there at 0 it is that LP.
    """
    times = np.unique(release_s)
    picked = times[np.unique(np.linspace(0, times.size - 1, SUFFIXES).astype(int))] if times.size else times
    best = fitting(problem).max(axis=1, initial=0.0)
    alone_s = np.divide(problem.remaining, best, out=np.zeros(best.size), where=best > 0)
    ends_s = [float((release_s + alone_s).max(initial=0.0))]
    for start_s in picked:
        later = release_s >= start_s
        part = rows_of(problem, later)
        ends_s.append(float(start_s) + _least_s(part, groups(part, part.remaining)))
    return max(ends_s)


def _least_s(problem: Problem, found: Groups) -> float:
    """The least M such that the work of all groups fits into M seconds, by time rows, capacity and whole gangs."""
    speed = fitting(problem)[found.first]
    best = speed.max(axis=1, initial=0.0)
    work = np.bincount(found.member, weights=problem.remaining, minlength=best.size)
    longest = np.zeros(best.size)
    np.maximum.at(longest, found.member, problem.remaining)
    alone_s = np.divide(longest, best, out=np.zeros(best.size), where=best > 0)
    unit_s = float(alone_s.max(initial=0.0))
    if unit_s == 0.0:
        return 0.0
    group, column = np.nonzero((speed > 0) & (alone_s > 0)[:, None])
    n = group.size
    # In units, on the fastest column.
    needed = np.divide(work, best * unit_s, out=np.zeros(best.size), where=alone_s > 0)
    rate = speed[group, column] / best[group]
    parts = [
        Rows(group, np.arange(n), rate, needed, np.full(best.size, INFINITE)),
        _at_most(group, np.ones(n), found.count, n),
    ]
    for use, capacity in gangs(problem, problem.scale[found.first][group], column):
        parts.append(_at_most(np.zeros(n, dtype=np.int64), use, np.array([capacity]), n))
    cost = np.zeros(n + 1)
    cost[n] = 1.0
    least = LinearProgram(cost, together(*parts), maximise=False).solve().objective
    return unit_s * max(1.0, least)


def _at_most(row: NDArray[np.int64], use: Vector, limit: Vector, makespan: int) -> Rows:
    """Rows use . time <= limit * M, where `makespan` is the variable M."""
    rows = np.arange(limit.size)
    return upto(
        np.concatenate((row, rows)),
        np.concatenate((np.arange(row.size), np.full(limit.size, makespan))),
        np.concatenate((use, -limit)),
        np.zeros(limit.size),
    )


def upto(row: NDArray[np.int64], column: NDArray[np.int64], value: Vector, upper: Vector) -> Rows:
    """Rows with upper limits only."""
    return Rows(row, column, value, np.full(upper.size, -INFINITE), upper)


def gangs(problem: Problem, scale: Vector, column: NDArray[np.int64]) -> Iterator[tuple[Vector, float]]:
    """(use of each entry, capacity) in GPUs, then in gangs of q GPUs, for each capacity row.

    Jobs that run at the same moment need no more than c GPUs together, so neither more than c // q
    times q GPUs, if of each job only whole multiples of q are counted.
    """
    for uses, capacity in zip(problem.uses, problem.capacity, strict=True):
        need = uses[column] * scale
        yield need, float(capacity)
        for gang in np.unique(need[need > 1]):
            yield np.floor(need / gang), float(np.floor(capacity / gang))
