# SPDX-License-Identifier: MIT
"""Policies that maximise a sum over jobs: throughput, throughput for money, with deadlines (gavel.md 2 and 8)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base, sums
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, PRIMAL, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, Matrix, Problem, Vector, effective
from slurm_pal.base.errors import DataError

SMALLEST = 1e-6  # part of a job's best throughput: a deadline that asks for less asks for this much
MET = 1e-6  # relative shortfall up to which a deadline counts as met


def max_sum(problem: Problem) -> Allocation:
    """Make the sum of throughput_i / reference_i as large as it can be; the objective is that sum."""
    return _largest_sum(problem, problem.throughput / _positive(base.reference_throughput(problem))[:, None])


def cost(problem: Problem) -> Allocation:
    """The largest sum of throughput_ij / price_j * X_ij, (steps/s) / (money/h); the objective is that sum.

    Raises DataError for a price that is not above 0.
    """
    return _largest_sum(problem, problem.throughput / checked_prices(problem))


def cost_slo(problem: Problem) -> Allocation:
    """`cost` among the shares that miss the deadlines least.

    A deadline asks for remaining / deadline_s steps/s, or for the best throughput of the job
    where even that is too slow. First the sum of the missing parts is made least, which is a
    slack at a cost above every other; then the sum of `cost` is made largest. The notes name the
    rows that end after their deadline at the throughput found, and by how many seconds.
    Raises DataError for a price that is not above 0.
    """
    need = _needed(problem)
    found = groups(problem, need)
    variables = base.cells(problem, found)
    due = np.flatnonzero((need[found.first] > 0) & (variables.best > 0))
    if not due.size:
        return cost(problem)
    value = (problem.throughput / checked_prices(problem))[found.first]
    shares = base.shares_of(problem, found, variables, _with_deadlines(problem, found, variables, need, value, due))
    notes = (*base.left_out((variables.best > 0)[found.member]), *_late(problem, shares))
    return Allocation(shares, float((value[found.member] * shares).sum()), notes=notes)


def _positive(values: Vector) -> Vector:
    return np.where(values > 0, values, 1.0)


def checked_prices(problem: Problem) -> Vector:
    """(n,) the prices. Raises DataError for one that is not above 0."""
    if problem.price.min() <= 0:
        raise DataError(f"a price is {problem.price.min()}; the cost policies divide by prices, so all must be above 0")
    return problem.price


def _largest_sum(problem: Problem, value: Matrix) -> Allocation:
    """The largest sum of value * shares; `value` (m, n), equal for jobs with equal throughputs."""
    found = groups(problem)
    demand = problem.scale[found.first] * found.count
    fits = base.fitting(problem)[found.first] > 0
    runs, shares = np.flatnonzero(fits.any(axis=1)), np.zeros(fits.shape)
    if runs.size:
        worth = np.where(fits, value[found.first] * found.count[:, None], 0.0)[runs]
        shares[runs] = sums.largest(sums.Market(worth, demand[runs], problem.uses, problem.capacity)).shares
    shares = base.within_limits(problem, found, shares)[found.member]
    return Allocation(shares, float((value * shares).sum()), notes=base.left_out(base.running(problem)))


def _gain(found: Groups, variables: base.Cells, value: Matrix) -> Vector:
    """(v,) what a share is worth, scaled to at most 1: the unit of a step must not matter to the solver."""
    gain = value[variables.group, variables.column] * found.count[variables.group]
    return np.asarray(gain / gain.max())


def _needed(problem: Problem) -> Vector:
    """(m,) steps/s that the deadline asks for; inf where it has passed, 0 where there is none or no work."""
    ahead = problem.deadline_s > 0
    need = np.where(ahead, problem.remaining / np.where(ahead, problem.deadline_s, 1.0), np.inf)
    return np.where(problem.remaining > 0, need, 0.0)


class _Columns(NamedTuple):
    """How many variables stand before the slacks, and how many slacks there are."""

    cells: int
    slacks: int


def _with_deadlines(
    problem: Problem, found: Groups, variables: base.Cells, need: Vector, value: Matrix, due: NDArray[np.int64]
) -> Vector:
    """A solution of the two programs, one after the other: the cells, then a slack for each group in `due`."""
    size = _Columns(variables.size, len(due))
    members = found.count[due]
    rows = together(
        base.base_rows(problem, found, variables),
        _deadline_rows(variables, need[found.first], due),
        _missing(size, members),
    )
    program = LinearProgram(np.concatenate([np.zeros(size.cells), -members]), rows)
    program.option("simplex_strategy", PRIMAL)
    missing = float(members @ program.solve().x[size.cells :])
    program.change_row(len(rows.lower) - 1, -INFINITE, missing + 1e-9)
    program.change_cost(np.concatenate([_gain(found, variables, value), np.zeros(size.slacks)]))
    return program.solve().x


def _deadline_rows(variables: base.Cells, need: Vector, due: NDArray[np.int64]) -> Rows:
    """throughput_i / asked_i + slack_i >= 1 for each group in `due`."""
    best = variables.best[due]
    asked = np.clip(need[due], SMALLEST * best, best)
    place = np.full(len(need), -1)
    place[due] = np.arange(len(due))
    row = place[variables.group]
    cell = np.flatnonzero(row >= 0)
    return Rows(
        np.concatenate([row[cell], np.arange(len(due))]),
        np.concatenate([cell, variables.size + np.arange(len(due))]),
        np.concatenate([variables.throughput[cell] / asked[row[cell]], np.ones(len(due))]),
        np.ones(len(due)),
        np.full(len(due), INFINITE),
    )


def _missing(size: _Columns, members: Vector) -> Rows:
    """One row without a limit yet: the sum of the slacks over all jobs."""
    slack = np.arange(size.slacks)
    return Rows(np.zeros_like(slack), size.cells + slack, members, np.array([-INFINITE]), np.array([INFINITE]))


def _late(problem: Problem, shares: Matrix) -> tuple[str, ...]:
    """A line for each row that ends after its deadline; rows that can run nowhere have their own."""
    found, need, runs = effective(problem, shares), _needed(problem), base.running(problem)
    notes = []
    for row in np.flatnonzero(runs & (found < need * (1 - MET))):
        if found[row] > 0:
            late_s = problem.remaining[row] / found[row] - problem.deadline_s[row]
            notes.append(f"row {row} misses its deadline by {late_s:.0f} s at the throughput found")
        else:
            notes.append(f"row {row} misses its deadline: no share is left for it")
    return tuple(notes)
