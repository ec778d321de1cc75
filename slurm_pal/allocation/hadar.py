# SPDX-License-Identifier: MIT
"""Hadar: prices of GPUs that rise as they are given out, and jobs that take what pays (IPDPS'24; hadar.md 1 to 3).

A job is worth more the sooner it ends, relative to what it would take alone on its fastest column; a GPU costs
more the more of its row are taken. Jobs are served by payoff per GPU. What that leaves free goes to the jobs
with the least left to do, so that nobody starves. One type per gang: types are never mixed.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.problem import Matrix, Problem, Vector

LEAST_PRICE = 1e-12
"""Below this the growth of a price over a row overflows."""


class Prices(NamedTuple):
    """Of each capacity row: price of a GPU when none and when all of them are taken, in worth per GPU."""

    least: Vector  # (k,)
    most: Vector  # (k,)


class _Row:
    """One capacity row, as GPUs are given out."""

    def __init__(self, capacity: float, least: float, most: float) -> None:
        self.free = capacity
        self._capacity, self._least = capacity, least
        self._growth = math.log(most / least) / max(1.0, capacity)

    def cost(self, gpus: float) -> float:
        """Of so many more GPUs, each at the price it has when its turn comes."""
        at = self._least * math.exp(self._growth * (self._capacity - self.free))
        return at * math.expm1(self._growth * gpus) / math.expm1(self._growth) if self._growth else at * gpus


def hadar(problem: Problem, total: Vector, move_cost_s: Vector, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(m,) column of each job until the next round, -1 for those that wait.

    total (m,) is the work of each job in steps, from its beginning; move_cost_s (m,) what it loses where it does not
    stay; pinned (m,) the running jobs that stay in any case. Uses throughput, scale, uses, capacity, weight,
    remaining, age_s and held. Pinned jobs must fit. The answer fits all capacity rows.
    """
    usable = np.where(pinned[:, None], 0.0, fitting(problem))
    worths = worth(problem, usable, total, move_cost_s)
    cost = prices(problem, usable, worths)
    rows = [
        _Row(*each) for each in zip(problem.capacity.tolist(), cost.least.tolist(), cost.most.tolist(), strict=True)
    ]
    of_column = [[rows[k] for k in np.flatnonzero(used).tolist()] for used in problem.uses.T]
    column = np.where(pinned, problem.held, -1)
    for job in np.flatnonzero(pinned).tolist():
        _take(of_column[int(column[job])], float(problem.scale[job]))
    gangs, worth_of = problem.scale.tolist(), worths.tolist()
    for job in _by_payoff(problem, usable, worths, of_column):
        options = _fitting_now(worth_of[job], gangs[job], of_column)
        payoffs = [(j, value - _cost(of_column[j], gangs[job])) for j, value in options]
        at, payoff = max(payoffs, key=itemgetter(1), default=(-1, 0.0))
        if payoff > 0:
            column[job] = at
            _take(of_column[at], gangs[job])
    for job in _by_rest(problem, usable, column):
        options = _fitting_now(worth_of[job], gangs[job], of_column)
        if options:
            at, _ = max(options, key=itemgetter(1))
            column[job] = at
            _take(of_column[at], gangs[job])
    return column


def worth(problem: Problem, usable: Matrix, total: Vector, move_cost_s: Vector) -> Matrix:
    """(m, n) what a job is worth on each column: GPUs x weight x (time alone on its fastest) / (time from its arrival).

    -inf where it cannot run. The utility of hadar.md 1 that was measured: it has no unit and compares applications.
    """
    best = usable.max(axis=1, initial=0.0)
    alone_s = np.divide(total, best, out=np.zeros(best.size), where=best > 0)
    rest_s = np.divide(problem.remaining[:, None], usable, out=np.full(usable.shape, np.inf), where=usable > 0)
    moved = np.arange(problem.n_columns) != problem.held[:, None]
    until_s = problem.age_s[:, None] + rest_s + move_cost_s[:, None] * moved
    value = np.where(until_s > 0, alone_s[:, None] / np.maximum(until_s, 1e-9), 1.0)
    return np.where(usable > 0, problem.scale[:, None] * problem.weight[:, None] * value, -np.inf)


def prices(problem: Problem, usable: Matrix, worths: Matrix) -> Prices:
    """Full rows are priced so that nobody pays, empty ones so that anybody does (hadar.md 1).

    With 1/eta the longest GPU time of a job over all GPUs, the lowest price is what a GPU of the job would be worth
    that counts least if all work were done before it, over four times all GPUs.
    """
    most = np.array(
        [(worths[:, used > 0].max(axis=1, initial=0.0) / problem.scale).max(initial=0.0) for used in problem.uses]
    )
    able = np.asarray(usable.any(axis=1))
    left, speed = problem.remaining[able], usable[able]
    best = speed.max(axis=1, initial=0.0)
    slowest = np.where(speed > 0, speed, np.inf).min(axis=1, initial=np.inf)
    gpus = float(problem.capacity.sum()) or 1.0
    end_s = float((left / slowest) @ problem.scale[able]) / gpus + float((left / best).max(initial=0.0))
    late = np.divide(left / best, problem.age_s[able] + end_s, out=np.ones(left.size), where=left > 0)
    least = max(LEAST_PRICE, float((problem.weight[able] * late).min(initial=1.0)) / (4.0 * gpus))
    most = np.maximum(most, LEAST_PRICE)
    return Prices(np.minimum(least, most), most)


def _by_payoff(problem: Problem, usable: Matrix, worths: Matrix, of_column: list[list[_Row]]) -> list[int]:
    """Jobs that can run, best payoff per GPU first; of equal ones that with the most left to do."""
    cost = np.array([_cost(rows, 1.0) for rows in of_column])
    net = np.where(usable > 0, worths / problem.scale[:, None] - cost, -np.inf).max(axis=1, initial=-np.inf)
    jobs = np.flatnonzero(usable.any(axis=1))
    rest_s = problem.remaining[jobs] / usable[jobs].max(axis=1, initial=0.0)
    return [int(job) for job in jobs[np.lexsort((-rest_s, -net[jobs]))]]


def _by_rest(problem: Problem, usable: Matrix, column: NDArray[np.int64]) -> list[int]:
    """Jobs without a column that could run, least left to do first."""
    best = usable.max(axis=1, initial=0.0)
    jobs = np.flatnonzero((column < 0) & (best > 0))
    return [int(job) for job in jobs[np.argsort(problem.remaining[jobs] / best[jobs], kind="stable")]]


def _fitting_now(values: list[float], gpus: float, of_column: list[list[_Row]]) -> list[tuple[int, float]]:
    """Columns with room for the gang, and what it is worth there."""
    return [
        (j, value) for j, value in enumerate(values) if value >= 0 and all(row.free >= gpus for row in of_column[j])
    ]


def _cost(rows: list[_Row], gpus: float) -> float:
    return sum(row.cost(gpus) for row in rows)


def _take(rows: list[_Row], gpus: float) -> None:
    for row in rows:
        row.free -= gpus
