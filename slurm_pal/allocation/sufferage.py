# SPDX-License-Identifier: MIT
"""Least mean completion time where no job is ever stopped: prices for GPUs that later jobs will want, and sufferage.

Each job has one column, for good. What it costs there is the time until it ends, and what it takes from others:

    (GPU time dealt there before it) / GPUs  +  run time x (1 + GPUs x price)

Where the job finds room now, the first term counts only in part: others will wait for what it takes.

The jobs at hand stand for those to come. The prices are the duals of a program that gives their work to the columns
so that run times are least and every column is done by a common time: CONGESTION times the least there is, and no
earlier than a mean job takes, so that GPUs are free of charge where there is room. Jobs are dealt by sufferage
(Maheswaran et al., 1999): next comes who would lose most by its second best column, as loads grow. No job is given a
column where it takes longer than all others together and far longer than elsewhere: it would be alone there for days.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import Time, fitting, left_out, limit_rows
from slurm_pal.allocation.grouping import groups
from slurm_pal.allocation.linear import LinearProgram, Rows, UnsolvedError
from slurm_pal.allocation.problem import Allocation, Matrix, Problem, Vector, rows_of

CONGESTION = 1.2
"""1.1 to 1.5 change little at loads of .3 to 2; without prices 6 % of the completion time are lost at .8."""

ROOM = 0.5
"""How much the load of a column counts where there is room: with 1 completion takes 1 to 2 % longer (loads .8, 1.3)."""

LONG_TIMES, LONG_RATIO = 2.0, 2.5
"""A column is too slow for a job that takes longer there than this many common times, and than so often its fastest.

Twice, since of running jobs only the rest counts, which is half in the mean."""


class Dealt(NamedTuple):
    """All jobs with their columns, and what the next one would find."""

    allocation: Allocation
    price: Vector  # (n,) of a GPU second, s
    load_s: Vector  # (n,) GPU time of the jobs in the column, per GPU


def least_completion(problem: Problem) -> Allocation:
    """Shares of one column for each job: 1, or less where together they take more GPUs than there are.

    Uses throughput, scale, uses, capacity, remaining and held of the problem. A running job stays.
    """
    return dealt(problem).allocation


def dealt(problem: Problem) -> Dealt:
    """The same, with prices and loads."""
    able = np.asarray(fitting(problem).any(axis=1))
    some = rows_of(problem, np.flatnonzero(able))
    shares = np.zeros((problem.n_jobs, problem.n_columns))
    price, load_s = np.zeros(problem.n_columns), np.zeros(problem.n_columns)
    if some.n_jobs:
        run_s = run_times(some)
        price, time_s = prices(some, run_s)
        run_s = np.where(too_slow(run_s, time_s) & (some.held < 0)[:, None], np.inf, run_s)
        column, load_s = _columns(some, run_s, price)
        shares[np.flatnonzero(able), column] = 1.0
        used = problem.uses @ (problem.scale @ shares)
        with_gpus = problem.capacity > 0
        shares /= max(1.0, float((used[with_gpus] / problem.capacity[with_gpus]).max(initial=0.0)))
    return Dealt(Allocation(shares, notes=left_out(able)), price, load_s)


def run_times(problem: Problem) -> Matrix:
    """(m, n) time until a job that runs in the column from now on ends, s; inf where it cannot run."""
    speeds = fitting(problem)
    run_s: Matrix = np.divide(problem.remaining[:, None], speeds, out=np.full(speeds.shape, np.inf), where=speeds > 0)
    return run_s


def too_slow(run_s: Matrix, time_s: float) -> NDArray[np.bool_]:
    """(m, n) columns where a job would be for too long; `time_s` is the time common to all columns."""
    best_s = run_s.min(axis=1, initial=np.inf)
    return np.asarray(run_s > np.maximum(LONG_TIMES * time_s, LONG_RATIO * best_s)[:, None])


def prices(problem: Problem, run_s: Matrix) -> tuple[Vector, float]:
    """(n,) what a job's GPU time costs others in each column, per GPU second, s; and the time common to all, s.

    All jobs can run somewhere.
    """
    work = _work(problem, run_s)
    if not work.mean_s > 0:
        return np.zeros(problem.n_columns), np.inf
    try:
        time_s = max(CONGESTION * _least_s(work), work.mean_s)
        return np.asarray(_spread_over(work, time_s) @ problem.uses), time_s
    except UnsolvedError:
        return np.zeros(problem.n_columns), np.inf


class _Work(NamedTuple):
    """The work of kinds of jobs, as variables: the part of a kind that is done in a column."""

    rows: Rows  # of each kind all; of each capacity row its GPU time, s
    run_s: Vector  # (v,) run time of all of the kind there
    capacity: Vector  # (k,) GPUs
    kinds: int
    mean_s: float  # of a GPU's job in its fastest column


def _work(problem: Problem, run_s: Matrix) -> _Work:
    found = groups(problem)
    amount = np.bincount(found.member, weights=problem.remaining, minlength=len(found.first))
    speeds = fitting(problem)[found.first]
    kind, column = np.nonzero(speeds)
    time_s = amount[kind] / speeds[kind, column]
    time = Time(kind, np.arange(kind.size), np.ones(kind.size))
    gpus = problem.scale[found.first][kind] * time_s
    rows = limit_rows(problem, time, np.ones(len(found.first)), column, gpus)
    rows.lower[: len(found.first)] = 1.0
    best_s = run_s.min(axis=1)
    return _Work(rows, time_s, problem.capacity, len(found.first), float(best_s @ problem.scale / problem.scale.sum()))


def _least_s(work: _Work) -> float:
    """The time by which all columns can be done, however the work is spread."""
    v, g, k = work.run_s.size, work.kinds, work.capacity.size
    rows = Rows(
        np.concatenate([work.rows.row, g + np.arange(k)]),
        np.concatenate([work.rows.column, np.full(k, v)]),
        np.concatenate([work.rows.value, -work.capacity]),
        work.rows.lower,
        np.concatenate([work.rows.upper[:g], np.zeros(k)]),
    )
    cost = np.zeros(v + 1)
    cost[v] = 1.0
    return float(LinearProgram(cost, rows, maximise=False).solve().objective)


def _spread_over(work: _Work, time_s: float) -> Vector:
    """(k,) how much run time one more GPU second of each capacity row would save, all being done by `time_s`."""
    upper = np.concatenate([work.rows.upper[: work.kinds], work.capacity * time_s])
    found = LinearProgram(work.run_s, work.rows._replace(upper=upper), maximise=False).solve()
    return np.maximum(0.0, -found.dual[work.kinds :])


def _columns(problem: Problem, run_s: Matrix, price: Vector) -> tuple[NDArray[np.int64], Vector]:
    """(m,) the column of each job, and (n,) the loads with all of them."""
    scale, uses = problem.scale, problem.uses
    runs = problem.held >= 0
    column = np.where(runs, problem.held, -1)
    rows = np.flatnonzero(runs)
    held_s = np.where(np.isfinite(run_s[rows, column[rows]]), run_s[rows, column[rows]], 0.0)
    free = problem.capacity - uses[:, column[rows]] @ scale[rows]  # (k,) of each capacity row
    load_s = _per_gpu(problem, uses[:, column[rows]] @ (scale[rows] * held_s))
    cost = run_s * (1.0 + scale[:, None] * price)
    apart = ~((uses.T @ uses) > 0)  # columns without GPUs in common
    left = np.flatnonzero(~runs)
    while left.size:
        room = scale[left, None] <= np.where(uses > 0, free[:, None], np.inf).min(axis=0)
        until_s = cost[left] + np.where(room, ROOM, 1.0) * _of_column(problem, load_s)
        at = until_s.argmin(axis=1)
        k = int(_sufferage(until_s, at, apart).argmax())
        job, chosen = int(left[k]), int(at[k])
        column[job] = chosen
        free -= uses[:, chosen] * scale[job]
        load_s += _per_gpu(problem, uses[:, chosen] * (scale[job] * run_s[job, chosen]))
        left = np.delete(left, k)
    return column, _of_column(problem, load_s)


def _of_column(problem: Problem, load_s: Vector) -> Vector:
    """(n,) that of the fullest of the capacity rows that a column draws on."""
    return np.asarray((problem.uses * load_s[:, None]).max(axis=0, initial=0.0))


def _per_gpu(problem: Problem, gpu_s: Vector) -> Vector:
    return np.divide(gpu_s, problem.capacity, out=np.zeros(gpu_s.size), where=problem.capacity > 0)


def _sufferage(until_s: Matrix, at: NDArray[np.int64], apart: NDArray[np.bool_]) -> Vector:
    """(m,) by how much a job ends later elsewhere; inf where it has no other place."""
    lost_s = np.zeros(at.size)
    for j in np.unique(at).tolist():
        rows = np.flatnonzero(at == j)
        other_s = until_s[np.ix_(rows, np.flatnonzero(apart[j]))].min(axis=1, initial=np.inf)
        lost_s[rows] = other_s - until_s[rows, j]
    return lost_s
