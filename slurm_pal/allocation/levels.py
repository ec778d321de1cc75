# SPDX-License-Identifier: MIT
"""The highest level that all jobs can reach together: max-min, makespan and finish-time fairness (gavel.md 10).

The three ask for the same thing: raise one number, the level, on which the throughput that a
job needs depends, until capacity or one job alone forbids more. At a fixed level, the least
load max_k use_k / capacity_k is a linear program whose dual has one price for each capacity.
At any prices the cheapest plans of the jobs cost no more than that load, so the level at which
they cost 1 is a bound from above, and any shares with a load of at most 1 reach their level:
where the two meet, the optimum is proved.

There are few prices and many jobs. So the prices of a part of the jobs are a good start for
all, and only the jobs whose plans may change nearby are left to the solver. The others keep
their plans as constants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, Solution, together
from slurm_pal.allocation.plans import Plans, cheapest
from slurm_pal.allocation.problem import Matrix, Problem, Vector

WHOLE = 160  # groups that go to the solver at once
SAMPLE = 4  # every 4th group gives the first prices
FREE = 0.15  # part of the groups whose plans the solver chooses
REACH = 2.0  # how far prices may move at first, in units within which no fixed plan changes
ROUNDS = 60  # of any loop; by parts, all groups go to the solver after them
TOLERANCE = 1e-9  # of a load
LEAST = 1e-9  # share of time, as a unit of a program


class LevelProblem(NamedTuple):
    """g groups with needs, n columns, k capacities. At level L a group needs work * L / (span - age * L) steps/s."""

    throughput: Matrix  # (g, n) steps/s, 0 where the group cannot run; above 0 somewhere
    demand: Vector  # (g,) GPUs of all members
    uses: Matrix  # (k, n)
    capacity: Vector  # (k,) GPUs
    work: Vector  # (g,) above 0
    span: Vector  # (g,) above 0
    age: Vector  # (g,)

    def best(self) -> Vector:
        """(g,) steps/s in the fastest column."""
        return np.asarray(self.throughput.max(axis=1))

    def bound(self) -> float:
        """The level that each group could reach if it were alone."""
        return float((self.span / (self.age + self.work / self.best())).min())

    def need(self, level: float) -> tuple[Vector, Vector]:
        """(g,) steps/s needed at a level up to `bound`, and their increase by the level."""
        # For a job that is old and nearly done, rounding leaves nothing of the difference; at `bound` it is this much.
        rest = np.maximum(self.span - self.age * level, self.work * level / self.best())
        return np.minimum(self.work * level / rest, self.best()), self.work * self.span / rest**2

    def prices(self, price: Vector) -> Matrix:
        """(g, n) price of a group's whole time in a column, from the prices (k,) of a GPU."""
        return np.asarray(self.demand[:, None] * (price @ self.uses))

    def load(self, shares: Matrix) -> float:
        """The largest part of a capacity that is used; above 1 it does not suffice."""
        return float((self.uses @ (self.demand @ shares) / self.capacity).max(initial=0.0))

    def sample(self) -> LevelProblem:
        """Every 4th group, with its part of the capacity."""
        part = slice(None, None, SAMPLE)
        ratio = self.demand[part].sum() / self.demand.sum()
        rows = (self.throughput[part], self.demand[part])
        return LevelProblem(*rows, self.uses, self.capacity * ratio, self.work[part], self.span[part], self.age[part])


class HighestLevel(NamedTuple):
    """The highest level, shares that reach it, and the prices that prove it."""

    level: float
    shares: Matrix  # (g, n); over a limit by the solver's tolerance at most
    price: Vector  # (k,) of a GPU, such that all capacity together costs 1


def plain(found: Groups) -> tuple[Vector, Vector]:
    """`span` and `age` where the need is work * level."""
    return np.ones_like(found.count), np.zeros_like(found.count)


def highest_shares(problem: Problem, found: Groups, work: Vector, span: Vector, age: Vector) -> Matrix:
    """(m, n) shares at the highest level; `work`, `span` and `age` are (g,), see LevelProblem.

    Groups that can run nowhere or have no work get nothing. Raises UnsolvedError where the solver fails.
    """
    throughput = base.fitting(problem)[found.first]
    asks = np.flatnonzero(throughput.any(axis=1) & (work > 0))
    shares = np.zeros_like(throughput)
    if asks.size:
        demand = (problem.scale[found.first] * found.count)[asks]
        limits = (problem.uses, problem.capacity)
        shares[asks] = highest(
            LevelProblem(throughput[asks], demand, *limits, work[asks], span[asks], age[asks])
        ).shares
    return np.asarray(base.within_limits(problem, found, shares)[found.member])


def highest(problem: LevelProblem) -> HighestLevel:
    """The highest level of a problem. Raises UnsolvedError where the solver fails."""
    taken = (problem.capacity > 0) & (problem.uses > 0).any(axis=1)
    problem = problem._replace(uses=problem.uses[taken], capacity=problem.capacity[taken])
    price = _normal(np.zeros(len(problem.capacity)), problem)
    level, plans = _lowered(problem, problem.bound(), price)
    shares = plans.shares(problem.throughput.shape[1])
    if problem.load(shares) <= 1 + TOLERANCE:
        return HighestLevel(level, shares, price)
    if len(problem.work) > WHOLE:
        found = _by_parts(problem, level, _normal(highest(problem.sample()).price, problem))
        level = found.level
        if problem.load(found.shares) <= 1 + TOLERANCE:
            return found
    return _whole(problem, level)


def _normal(price: Vector, problem: LevelProblem) -> Vector:
    """Prices at which all capacity costs 1; even ones where all are 0."""
    worth = price @ problem.capacity
    return price / worth if worth > 0 else 1.0 / (len(price) * problem.capacity)


def _lowered(problem: LevelProblem, level: float, price: Vector) -> tuple[float, Plans]:
    """The bound by these prices: a level at most the given one, where the cheapest plans cost at most all capacity."""
    prices = problem.prices(price)
    for _ in range(ROUNDS):  # Newton: the cost is convex in the level, so it comes down to the root and not below it
        need, slope = problem.need(level)
        plans = cheapest(problem.throughput, prices, need)
        over = plans.cost.sum() - 1.0
        if over <= TOLERANCE / 10:
            break
        level -= over / float(plans.slope @ slope)
    return level, plans


def _whole(problem: LevelProblem, level: float) -> HighestLevel:
    """All groups in one program, solved again at each lower level."""
    everything = np.ones(len(problem.work), dtype=bool)
    part = _Part(problem, everything, problem.need(level)[0], np.zeros(len(problem.capacity)))
    for _ in range(ROUNDS):
        solution = part.program.solve()
        shares, price = part.shares(solution, np.zeros_like(problem.throughput)), part.price(solution)
        lower = _lowered(problem, level, price)[0]
        if problem.load(shares) <= 1 + TOLERANCE or lower == level:
            break
        level = lower
        part.change_need(problem.need(level)[0])
    return HighestLevel(level, shares, price)


class _Trust(NamedTuple):
    """How far prices may move in one round, in units of the reach within which no fixed plan changes."""

    reach: float
    kept: NDArray[np.bool_]  # (g,) groups left to the solver from now on


def _by_parts(problem: LevelProblem, level: float, price: Vector) -> HighestLevel:
    """Rounds of programs over the groups whose plans may change; ends unproved after many."""
    g, n = problem.throughput.shape
    trust = _Trust(REACH, np.zeros(g, dtype=bool))
    level, plans = _lowered(problem, level, price)
    for _ in range(ROUNDS):
        free, distance = _near(problem, plans, price, trust)
        shares = np.where(free[:, None], 0.0, plans.shares(n))
        low, high = np.maximum(0.0, price - distance), price + distance
        part = _Part(problem, free, problem.need(level)[0], problem.uses @ (problem.demand @ shares), (low, high))
        solution = part.program.solve()
        shares, new = part.shares(solution, shares), part.price(solution)
        if problem.load(shares) <= 1 + TOLERANCE:
            return HighestLevel(level, shares, new)
        at_new = cheapest(problem.throughput, problem.prices(new), problem.need(level)[0])
        changed = ~free & ((at_new.high != plans.high) | (at_new.low != plans.low))
        if at_new.cost.sum() < plans.cost.sum():  # a plan that was held changed: leave it to the solver
            trust = _Trust(trust.reach / 2, trust.kept | changed)
            continue
        at_edge = bool(((new <= low) & (low > 0) | (new >= high * (1 - TOLERANCE))).any())
        trust = _Trust(trust.reach * 2, trust.kept) if at_edge else _Trust(trust.reach, trust.kept | changed)
        price = new
        level, plans = _lowered(problem, level, price)
    return HighestLevel(level, shares, price)


def _near(problem: LevelProblem, plans: Plans, price: Vector, trust: _Trust) -> tuple[NDArray[np.bool_], float]:
    """Groups whose plan is the first to change with the prices, and how far prices may move."""
    g, top = len(plans.gap), float(price.max())
    gap = plans.gap / (problem.demand * top)
    wanted = min(g - 1, max(WHOLE // 2, int(FREE * g)))
    reach = max(float(np.partition(gap, wanted)[wanted]), 1e-4)
    return (gap <= reach) | trust.kept, min(trust.reach * reach, 1.0) * top


class _Part:
    """The program over the free groups at one level: the least load, the use of the others given.

    Variables: the cells of the free groups, the load, and with `between` what is bought of each
    capacity at the upper price and sold at the lower one, which keeps the duals between them. The
    unit of a cell is the time that the group needs in its best column, so that the tolerances of
    the solver mean the same for small jobs and large ones.
    Rows: time and throughput of each free group, then the capacities.
    """

    def __init__(
        self,
        problem: LevelProblem,
        free: NDArray[np.bool_],
        need: Vector,
        used: Vector,
        between: tuple[Vector, Vector] | None = None,
    ) -> None:
        self._problem, self._free = problem, np.flatnonzero(free)
        throughput, self._best = problem.throughput[self._free], problem.best()[self._free]
        self._need, self._unit = need[self._free], np.maximum(need[self._free] / self._best, LEAST)
        self._group, self._column = np.nonzero(throughput)
        cells, g = len(self._group), len(self._free)
        each = np.arange(cells)
        speed = throughput[self._group, self._column] / self._best[self._group]
        groups = Rows(
            np.concatenate([self._group, self._group + g]), np.concatenate([each, each]),
            np.concatenate([np.ones(cells), speed]), np.concatenate([np.full(g, -INFINITE), self._scaled()]),
            np.concatenate([1.0 / self._unit, np.full(g, INFINITE)]),
        )  # fmt: skip
        capacities, trade = self._capacities(used), np.zeros(0)
        if between is not None:
            capacities, trade = _traded(capacities, cells, problem.capacity), np.concatenate([between[1], -between[0]])
        cost = np.concatenate([np.zeros(cells), [1.0], trade])
        self.program = LinearProgram(cost, together(groups, capacities), maximise=False)

    def _scaled(self) -> Vector:
        return np.asarray(self._need / (self._best * self._unit))

    def _capacities(self, used: Vector) -> Rows:
        """Use / capacity - load <= what the other groups leave."""
        uses, capacity, cells = self._problem.uses, self._problem.capacity, len(self._group)
        row, cell = np.nonzero(uses[:, self._column])
        load = np.arange(len(capacity))
        demand = (self._problem.demand[self._free] * self._unit)[self._group[cell]]
        part = demand * uses[row, self._column[cell]] / capacity[row]
        return Rows(
            np.concatenate([row, load]), np.concatenate([cell, np.full(len(load), cells)]),
            np.concatenate([part, -np.ones(len(load))]), np.full(len(load), -INFINITE), -used / capacity,
        )  # fmt: skip

    def change_need(self, need: Vector) -> None:
        """Ask for other throughputs, (g,) steps/s."""
        self._need = need[self._free]
        for row, value in enumerate(self._scaled(), start=len(self._free)):
            self.program.change_row(row, float(value), INFINITE)

    def shares(self, solution: Solution, others: Matrix) -> Matrix:
        """(g, n) `others` with the shares of the free groups, scaled to exactly the throughput asked for."""
        times = np.zeros((len(self._free), others.shape[1]))
        times[self._group, self._column] = np.maximum(solution.x[: len(self._group)], 0.0) * self._unit[self._group]
        throughput = self._problem.throughput[self._free]
        nothing = np.flatnonzero((times * throughput).sum(axis=1) == 0)  # a need so small that the solver rounds it off
        times[nothing, throughput[nothing].argmax(axis=1)] = 1.0
        times *= (self._need / (times * throughput).sum(axis=1))[:, None]
        shares = others.copy()
        shares[self._free] = times
        return shares

    def price(self, solution: Solution) -> Vector:
        """(k,) prices of a GPU."""
        capacity = self._problem.capacity
        return _normal(np.maximum(-solution.dual[2 * len(self._free) :], 0.0) / capacity, self._problem)


def _traded(rows: Rows, cells: int, capacity: Vector) -> Rows:
    """Capacity rows with a variable for each GPU bought, then one for each sold."""
    k = len(capacity)
    each = np.arange(k)
    return rows._replace(
        row=np.concatenate([rows.row, each, each]),
        column=np.concatenate([rows.column, cells + 1 + each, cells + 1 + k + each]),
        value=np.concatenate([rows.value, -1.0 / capacity, 1.0 / capacity]),
    )
