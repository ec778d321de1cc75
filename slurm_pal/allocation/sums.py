# SPDX-License-Identifier: MIT
"""The largest sum of values over shares: as one program, or by prices where there are many groups.

With prices for the capacities, every group takes the column in which its value exceeds the
price most, or none, and what it gains so, with the price of all capacity, bounds the sum from
above. As in `levels`, few prices decide about many groups: those of a part of them are a good
start, and only groups that are near a change of column are left to the solver.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.linear import INFINITE, PRIMAL, LinearProgram, Rows
from slurm_pal.allocation.problem import Matrix, Vector

WHOLE = 300  # groups that go to the solver at once
SAMPLE = 4  # every 4th group gives the first prices
FREE = 0.15  # part of the groups whose columns the solver chooses
REACH = 2.0  # how far prices may move at first, in units within which no held group changes
ROUNDS = 60  # before all groups go to the solver
TOLERANCE = 1e-9  # relative, of the sum and of a load


class Market(NamedTuple):
    """g groups, n columns, k capacities."""

    value: Matrix  # (g, n) of all the time of all members in a column; 0 where the group cannot run, above 0 somewhere
    demand: Vector  # (g,) GPUs of all members
    uses: Matrix  # (k, n)
    capacity: Vector  # (k,) GPUs, above 0

    def load(self, shares: Matrix) -> float:
        """The largest part of a capacity that is used."""
        return float((self.uses @ (self.demand @ shares) / self.capacity).max(initial=0.0))

    def sample(self) -> Market:
        """Every 4th group, with its part of the capacity."""
        part = slice(None, None, SAMPLE)
        ratio = self.demand[part].sum() / self.demand.sum()
        return Market(self.value[part], self.demand[part], self.uses, self.capacity * ratio)


class Sum(NamedTuple):
    """Shares with the largest sum, and the prices that prove it."""

    shares: Matrix  # (g, n); over a limit by the solver's tolerance at most
    price: Vector  # (k,) of a GPU


class _Choice(NamedTuple):
    """What the groups take at some prices."""

    shares: Matrix  # (g, n) 0 and 1
    gap: Vector  # (g,) what the next best choice lacks
    bound: float  # no shares have a larger sum

    def differs(self, other: _Choice) -> NDArray[np.bool_]:
        return np.asarray((self.shares != other.shares).any(axis=1))


def largest(market: Market) -> Sum:
    """The shares with the largest sum. Raises UnsolvedError where the solver fails."""
    taken = (market.capacity > 0) & (market.uses > 0).any(axis=1)
    market = market._replace(uses=market.uses[taken], capacity=market.capacity[taken])
    if len(market.demand) > WHOLE:
        found = _by_parts(market, largest(market.sample()).price)
        if found is not None:
            return found
    everything = np.ones(len(market.demand), dtype=bool)
    return _solved(market, everything, np.zeros_like(market.value), None)


def _choice(market: Market, price: Vector) -> _Choice:
    g, n = market.value.shape
    gain = np.zeros((g, n + 1))
    prices = market.demand[:, None] * (price @ market.uses)
    gain[:, 1:] = np.where(market.value > 0, market.value - prices, -np.inf)
    taken = np.argmax(gain, axis=1)
    rows = np.arange(g)
    best = gain[rows, taken]
    gain[rows, taken] = -np.inf
    shares = np.zeros((g, n + 1))
    shares[rows, taken] = 1.0
    return _Choice(shares[:, 1:], best - gain.max(axis=1), float(best.sum() + price @ market.capacity))


def _by_parts(market: Market, price: Vector) -> Sum | None:
    """Rounds of programs over the groups near a change; None where many of them prove nothing."""
    choice, reach, kept = _choice(market, price), REACH, np.zeros(len(market.demand), dtype=bool)
    unit = float((market.value.max(axis=1) / market.demand).max())
    for _ in range(ROUNDS):
        near = choice.gap / market.demand
        minds = max(float(np.partition(near, int(FREE * len(near)))[int(FREE * len(near))]), 1e-6 * unit)
        free, distance = (near <= minds) | kept, reach * minds
        low, high = np.maximum(0.0, price - distance), price + distance
        found = _solved(market, free, np.where(free[:, None], 0.0, choice.shares), (low, high))
        new = _choice(market, found.price)
        reached = float((market.value * found.shares).sum())
        if market.load(found.shares) <= 1 + TOLERANCE and reached >= new.bound * (1 - TOLERANCE):
            return found
        changed = ~free & new.differs(choice)
        if new.bound > choice.bound:  # a choice that was held changed: leave it to the solver
            reach, kept = reach / 2, kept | changed
            continue
        if ((found.price <= low) & (low > 0) | (found.price >= high * (1 - TOLERANCE))).any():
            reach *= 2
        else:
            kept = kept | changed
        price, choice = found.price, new
    return None


def _solved(market: Market, free: NDArray[np.bool_], held: Matrix, between: tuple[Vector, Vector] | None) -> Sum:
    """The program over the free groups, with the shares of the others held.

    With `between`, GPUs are bought at the upper price and sold at the lower one, which keeps the
    prices between them.
    """
    rows_of, capacity = np.flatnonzero(free), market.capacity
    group, column = np.nonzero(market.value[rows_of])
    gain, k = market.value[rows_of[group], column], len(capacity)
    top = float(gain.max(initial=0.0)) or 1.0
    row, cell = np.nonzero(market.uses[:, column])
    use = market.demand[rows_of[group[cell]]] * market.uses[row, column[cell]]
    trade = np.zeros(0) if between is None else np.concatenate([-between[1], between[0]])
    traded = np.arange(len(trade))
    program = LinearProgram(
        np.concatenate([gain, trade]) / top,
        Rows(
            np.concatenate([group, len(rows_of) + row, len(rows_of) + np.tile(np.arange(k), 2)[traded]]),
            np.concatenate([np.arange(len(group)), cell, len(group) + traded]),
            np.concatenate([np.ones(len(group)), use, np.where(traded < k, -1.0, 1.0)]),
            np.full(len(rows_of) + k, -INFINITE),
            np.concatenate([np.ones(len(rows_of)), capacity - market.uses @ (market.demand @ held)]),
        ),
    )
    program.option("simplex_strategy", PRIMAL)
    solution = program.solve()
    shares = held.copy()
    shares[rows_of[group], column] = np.clip(solution.x[: len(group)], 0.0, 1.0)
    return Sum(shares, np.maximum(solution.dual[len(rows_of) :], 0.0) * top)
