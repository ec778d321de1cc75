# SPDX-License-Identifier: MIT
"""What a policy leaves open, spent on throughput without moving jobs about (gavel.md 15.1, 15.2 and 15.5).

Max-min, makespan and finish-time fairness fix the least that each job gets, and leave the rest
to the solver's whim. The second stage keeps that floor and maximises

    sum_i value_i throughput_i / reference_i  -  sum_i penalty_i sum_j |X_ij - previous_ij|

The share of a cell is split into what is kept, at most the previous share, and what is new;
then |X - previous| is linear without rows of its own, and the program stays as small as the
first stage's. Jobs are grouped where they agree in everything that enters it, previous shares
included: by symmetry and convexity that is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, PRIMAL, InfeasibleError, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, Matrix, Problem, Vector, effective
from slurm_pal.base.errors import DataError

SLACK = 1e-3
"""How much of the floor the second stage may give up: between 1e-4 and 1e-2 (gavel.md 15.1)."""
FLOOR_RANGE = 1e3
"""Largest coefficient of a floor row: beyond it the program would be badly scaled."""


# -- floors: what the first stage promised each job, steps/s -------------------------------


def level_floor(problem: Problem, level: float) -> Vector:
    """(m,) of max-min: s throughput / (w reference) >= level."""
    return np.asarray(level * problem.weight * base.reference_throughput(problem) / problem.scale)


def makespan_floor(problem: Problem, makespan_s: float) -> Vector:
    """(m,) of makespan: all remaining steps within `makespan_s`."""
    return np.asarray(problem.remaining / makespan_s)


def finish_time_floor(problem: Problem, rho: float) -> Vector:
    """(m,) of finish-time fairness: (age + remaining / throughput) / (earned + remaining / isolated) <= rho.

    A job whose age alone is over that bound has no floor: no throughput would keep it.
    """
    left_s = rho * base.isolated_s(problem) - problem.age_s
    return np.divide(problem.remaining, left_s, out=np.zeros_like(left_s), where=left_s > 0)


def held_shares(problem: Problem) -> Matrix:
    """(m, n) the whole time in the column that a job holds; 0 for one that waits."""
    shares = np.zeros((problem.n_jobs, problem.n_columns))
    rows = np.flatnonzero(problem.held >= 0)
    shares[rows, problem.held[rows]] = 1.0
    return shares


# -- the program ---------------------------------------------------------------------------


def second_stage(
    problem: Problem,
    floor: Vector,
    *,
    previous: Matrix | None = None,
    penalty: Vector | None = None,
    value: Vector | None = None,
    slack: float = SLACK,
) -> Allocation:
    """The best shares among those that give every job (1 - slack) of its floor; exact.

    `floor` (m,) steps/s; `previous` (m, n) shares, by default what the jobs hold; `penalty` (m,)
    in normalised throughput per share that changes (a whole move changes two by 1), by default 0; `value` (m,)
    of throughput / reference, by default 1. A job without previous shares starts free of charge. The objective
    is the difference above.
    Raises DataError for shapes that do not fit, InfeasibleError where no shares give the floors.
    """
    task = _task(problem, floor, previous, penalty, value)
    found = groups(problem, task.floor, task.gain, task.penalty, *task.previous.T)
    variables, kept = _cells(problem, found, task.previous)
    runs = (variables.best > 0)[found.member]
    if not variables.size:
        return Allocation(np.zeros_like(task.previous), 0.0, notes=base.left_out(runs))
    x = _program(problem, found, variables, kept, task, slack)
    shares = base.shares_of(problem, found, variables, x)
    moved = np.abs(shares - task.previous).sum(axis=1)
    objective = float(task.gain @ effective(problem, shares) - task.penalty @ moved)
    return Allocation(shares, objective, notes=base.left_out(runs))


class SecondStageData(NamedTuple):
    """What the program is given about each job."""

    floor: Vector  # (m,) steps/s
    gain: Vector  # (m,) objective per step/s
    penalty: Vector  # (m,) objective per changed share
    previous: Matrix  # (m, n)


def _task(
    problem: Problem, floor: Vector, previous: Matrix | None, penalty: Vector | None, value: Vector | None
) -> SecondStageData:
    m, n = problem.n_jobs, problem.n_columns
    before = held_shares(problem) if previous is None else np.asarray(previous, dtype=np.float64)
    price = np.zeros(m) if penalty is None else np.asarray(penalty, dtype=np.float64)
    worth = np.ones(m) if value is None else np.asarray(value, dtype=np.float64)
    for name, found, shape in (
        ("floor", floor, (m,)), ("previous", before, (m, n)), ("penalty", price, (m,)), ("value", worth, (m,)),
    ):  # fmt: skip
        if found.shape != shape or (found.size and not (np.isfinite(found).all() and found.min() >= 0)):
            raise DataError(
                f"{name} must be finite numbers of at least 0 of shape {shape}; it has the shape {found.shape} and "
                f"the least value {found.min(initial=np.inf)}"
            )
    reference = base.reference_throughput(problem)
    gain = np.divide(worth, reference, out=np.zeros(m), where=reference > 0)
    return SecondStageData(floor, gain, np.where(before.sum(axis=1) > 0, price, 0.0), before)


def _cells(problem: Problem, found: Groups, previous: Matrix) -> tuple[base.Cells, NDArray[np.int64]]:
    """The cells of new shares, and which of them have a share to keep as well."""
    variables = base.cells(problem, found)
    kept = np.flatnonzero(previous[found.first[variables.group], variables.column] > 0)
    return variables, kept


def _program(
    problem: Problem, found: Groups, variables: base.Cells, kept: NDArray[np.int64], task: SecondStageData, slack: float
) -> Vector:
    """(v,) the share of each cell. The program has the new shares, then the kept ones, as its variables."""
    every = np.concatenate([np.arange(variables.size), kept])
    fields = ("group", "column", "throughput")
    twice = variables._replace(**{name: getattr(variables, name)[every] for name in fields})
    job = found.first[twice.group]
    sign = np.concatenate([-np.ones(variables.size), np.ones(len(kept))])
    cost = found.count[twice.group] * (task.gain[job] * twice.throughput + sign * task.penalty[job])
    upper = np.full(twice.size, INFINITE)
    upper[variables.size :] = task.previous[job[variables.size :], twice.column[variables.size :]]
    rows = together(base.base_rows(problem, found, twice), _floor_rows(found, twice, (1.0 - slack) * task.floor))
    program = LinearProgram(cost, rows, upper=upper)
    program.option("simplex_strategy", PRIMAL)  # 2 to 6 times as fast as the dual one (1,500 to 3,000 jobs)
    try:
        x = program.solve().x
    except InfeasibleError as error:
        raise InfeasibleError("no shares give all jobs their floor; take the floor from a first stage") from error
    total = x[: variables.size].copy()
    total[kept] += x[variables.size :]
    return total


def _floor_rows(found: Groups, variables: base.Cells, floor: Vector) -> Rows:
    """Rows throughput_i >= floor_i, one for each group that runs and has a floor.

    In units of the floor, so that the solver's tolerance is a part of it, but with
    coefficients of at most FLOOR_RANGE.
    """
    least = floor[found.first]
    asks = (variables.best > 0) & (least > 0)
    unit = np.maximum(least, variables.best / FLOOR_RANGE)
    row = np.cumsum(asks) - 1
    cells = np.flatnonzero(asks[variables.group])
    group = variables.group[cells]
    lower = (least / np.where(asks, unit, 1.0))[asks]
    return Rows(row[group], cells, variables.throughput[cells] / unit[group], lower, np.full(len(lower), INFINITE))
