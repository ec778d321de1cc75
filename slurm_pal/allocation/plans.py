# SPDX-License-Identifier: MIT
"""The cheapest way for every job to reach a throughput, at given prices of the columns.

With prices, the jobs of an allocation problem come apart: each one mixes at most two columns,
or one column and idling, namely the ends of the edge of its lower convex hull of (throughput,
price) on which the throughput lies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix, Vector


class Plans(NamedTuple):
    """A plan for each of g groups. Points are columns counted from 1; point 0 is idling, at no price."""

    low: NDArray[np.int64]  # (g,) point of the edge with the lower throughput
    high: NDArray[np.int64]  # (g,) the other one
    mix: Vector  # (g,) fraction of time at `high`; the rest goes to `low`
    cost: Vector  # (g,) price of the mix
    slope: Vector  # (g,) price of one more step/s
    gap: Vector  # (g,) how much cheaper another column must become before the plan changes

    def shares(self, n_columns: int) -> Matrix:
        """(g, n) the plans as shares of time."""
        rows = np.arange(len(self.low))
        points = np.zeros((len(rows), n_columns + 1))
        points[rows, self.low] = 1.0 - self.mix
        points[rows, self.high] = self.mix
        return points[:, 1:]


def cheapest(throughput: Matrix, price: Matrix, need: Vector) -> Plans:
    """Plans that reach `need`, (g,) steps/s, above 0 and at most the best of the group.

    `throughput` and `price` are (g, n): steps/s and the price of all the time in a column.
    A throughput of 0 bars the column.
    """
    g = len(need)
    rows, zero, asked = np.arange(g), np.zeros((g, 1)), need[:, None]
    speed, cost = np.concatenate([zero, throughput], axis=1), np.concatenate([zero, price], axis=1)
    usable = speed > 0
    usable[:, 0] = True
    below, above = usable & (speed < asked), speed >= asked
    low, high = np.zeros(g, dtype=np.int64), np.full(g, -1)
    for _ in range(2 * speed.shape[1]):  # each end in turn, the other held: ends where no point lies under the edge
        up = (cost - cost[rows, low][:, None]) / np.where(above, speed - speed[rows, low][:, None], 1.0)
        new = np.argmin(np.where(above, up, np.inf), axis=1)
        if (new == high).all():
            break
        high = new
        down = (cost[rows, high][:, None] - cost) / np.where(below, speed[rows, high][:, None] - speed, 1.0)
        new = np.argmax(np.where(below, down, -np.inf), axis=1)
        if (new == low).all():
            break
        low = new
    return _plans(speed, np.where(usable, cost, np.inf), need, low, high)


def _plans(speed: Matrix, cost: Matrix, need: Vector, low: NDArray[np.int64], high: NDArray[np.int64]) -> Plans:
    rows = np.arange(len(need))
    slow, base = speed[rows, low], cost[rows, low]
    width = speed[rows, high] - slow
    slope = (cost[rows, high] - base) / width
    gap = cost - (base[:, None] + slope[:, None] * (speed - slow[:, None]))
    gap[rows, low] = gap[rows, high] = np.inf
    return Plans(low, high, (need - slow) / width, base + slope * (need - slow), slope, gap.min(axis=1))
