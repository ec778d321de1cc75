# SPDX-License-Identifier: MIT
"""What all exact policies share: which shares are variables, the rows that bound them, and shares from a solution."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.grouping import Groups
from slurm_pal.allocation.linear import INFINITE, Rows
from slurm_pal.allocation.problem import (
    Allocation,
    Matrix,
    Problem,
    Vector,
    isolated_throughput,
    proportional_throughput,
)


class Cells(NamedTuple):
    """The shares that can be above 0, as the variables 0..v-1 of a program, ordered by group, then column."""

    group: NDArray[np.int64]  # (v,)
    column: NDArray[np.int64]  # (v,)
    throughput: Vector  # (v,) steps/s
    best: Vector  # (g,) largest throughput of a group over its cells, steps/s; 0 where it has none

    @property
    def size(self) -> int:
        return len(self.group)


class Time(NamedTuple):
    """The time that variables take from their owners, as triplets."""

    owner: NDArray[np.int64]
    variable: NDArray[np.int64]
    value: Vector


def fitting(problem: Problem) -> Matrix:
    """(m, n) throughput where a job can run, steps/s: 0 where its gang is larger than a capacity it would draw on."""
    taken = problem.uses > 0
    room = np.where(taken, problem.capacity[:, None] / np.where(taken, problem.uses, 1.0), np.inf)
    return np.where(problem.scale[:, None] <= room.min(axis=0, initial=np.inf), problem.throughput, 0.0)


def cells(problem: Problem, found: Groups) -> Cells:
    """The variables of a program with one row of shares for each group."""
    throughput = fitting(problem)[found.first]
    group, column = np.nonzero(throughput)
    return Cells(group, column, throughput[group, column], throughput.max(axis=1, initial=0.0))


def base_rows(problem: Problem, found: Groups, variables: Cells) -> Rows:
    """The conditions B of gavel.md 1 over the cells: one time row for each group, then the capacity rows.

    Row i <= 1 is the time of a member of group i. Row g + k is the use of capacity k by all members.
    """
    time = Time(variables.group, np.arange(variables.size), np.ones(variables.size))
    gpus = (problem.scale[found.first] * found.count)[variables.group]
    return limit_rows(problem, time, np.ones(len(found.first)), variables.column, gpus)


def limit_rows(problem: Problem, time: Time, most: Vector, column: NDArray[np.int64], gpus: Vector) -> Rows:
    """Row i: the time of owner i, at most most[i]; then the capacities. Variable e takes gpus[e] in column[e]."""
    g, k = len(most), len(problem.capacity)
    each = [np.flatnonzero(gpus * problem.uses[row, column]) for row in range(k)]
    return Rows(
        np.concatenate([time.owner, *(np.full(len(some), g + row) for row, some in enumerate(each))]),
        np.concatenate([time.variable, *each]),
        np.concatenate([time.value, *(gpus[e] * problem.uses[row, column[e]] for row, e in enumerate(each))]),
        np.full(g + k, -INFINITE),
        np.concatenate([most, problem.capacity]),
    )


WHOLE = 1e-6
"""How far a solver's whole number may be from one."""


def whole_gangs(
    problem: Problem, x: Vector, value: Vector, job: NDArray[np.int64], column: NDArray[np.int64], gpus: Vector
) -> NDArray[np.int64]:
    """Entries of a solution `x` that fit together, one for each job: whole ones first, then by `value` per GPU.

    Entry e is job[e] in column[e] on gpus[e].
    """
    free = problem.capacity.copy()
    taken: list[int] = []
    placed = np.zeros(problem.n_jobs, dtype=bool)
    for entry in np.lexsort((-value / gpus, x < 1 - WHOLE)).tolist():
        i = job[entry]
        need = problem.uses[:, column[entry]] * gpus[entry]
        if not placed[i] and (need <= free + WHOLE).all():
            free -= need
            placed[i] = True
            taken.append(entry)
    return np.array(taken, dtype=np.int64)


def shares_of(problem: Problem, found: Groups, variables: Cells, x: Vector) -> Matrix:
    """(m, n) the shares of a solution, given to every member of each group."""
    shares = np.zeros((len(found.first), problem.n_columns))
    shares[variables.group, variables.column] = x[: variables.size]
    return within_limits(problem, found, shares)[found.member]


def within_limits(problem: Problem, found: Groups, shares: Matrix) -> Matrix:
    """(g, n) shares of groups, scaled down where they are over a limit.

    A solver keeps its rows to a tolerance. Afterwards no limit is broken by more than rounding.
    """
    shares = np.clip(shares, 0.0, 1.0)
    shares /= np.maximum(1.0, shares.sum(axis=1, keepdims=True))
    use = (problem.scale[found.first] * found.count) @ shares
    for uses, capacity in zip(problem.uses, problem.capacity, strict=True):
        wanted = float(uses @ use)
        if wanted > capacity:
            factor = np.where(uses > 0, capacity / wanted, 1.0)
            shares, use = shares * factor, use * factor
    return shares


def reference_throughput(problem: Problem) -> Vector:
    """(m,) steps/s that throughput is measured against: at proportional shares, as published (Tbar of gavel.md 1).

    A job that runs only where the reference has no GPUs is measured against its best throughput.
    """
    mean = proportional_throughput(problem)
    return np.where(mean > 0, mean, problem.throughput.max(axis=1, initial=0.0))


def isolated_s(problem: Problem) -> Vector:
    """(m,) time of a job from its arrival to its end on its own part of the cluster, s: earned so far and still to go.

    A job that runs only where that part has no GPUs is measured against 1/m of its reference throughput.
    """
    speed = isolated_throughput(problem)
    speed = np.where(speed > 0, speed, reference_throughput(problem) / max(1, problem.n_jobs))
    return np.asarray(problem.earned_s + problem.remaining / np.where(speed > 0, speed, 1.0))


def running(problem: Problem) -> NDArray[np.bool_]:
    """(m,) jobs that can run somewhere."""
    return np.asarray(fitting(problem).any(axis=1), dtype=np.bool_)


def left_out(runs: NDArray[np.bool_]) -> tuple[str, ...]:
    """A note about jobs that can run nowhere; `runs` is (m,)."""
    rows = np.flatnonzero(~runs)
    if not rows.size:
        return ()
    some = ", ".join(str(row) for row in rows[:5]) + (", ..." if rows.size > 5 else "")
    return (f"{rows.size} of {runs.size} jobs fit no column and get no share (rows {some})",)


def nothing(problem: Problem, objective: float = float("nan"), notes: tuple[str, ...] = ()) -> Allocation:
    """No share for anybody."""
    return Allocation(np.zeros((problem.n_jobs, problem.n_columns)), objective, notes=notes)
