# SPDX-License-Identifier: MIT
"""What one step of each job is worth, from the order in which jobs end.

In the best preemptive schedule for the sum of (weighted) completion times, a step of a job keeps one value for
as long as the job lives, and at every moment the GPUs go to the jobs so that the value made per second is
highest (the maximum principle of the fluid problem). At its end a job stops costing its weight and gives its
GPUs back, so

    value_i T_ij = weight_i + scale_i price_j        on the column j where job i ends,

price_j being what one more GPU of j would earn with the jobs that end after i. So the values follow from the order of
the ends alone, from the last one back. On one column that is Smith's rule; on columns that differ by a factor
only, the shortest job on the fastest GPUs. In between, a job that hardly cares leaves the fast GPUs to one that does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix, Vector

TINY = 1e-12
FREE, DROP = -1, -2  # ends of a chain of moves: a free GPU, or a job that gives up its share


class Worth(NamedTuple):
    step: Vector  # (m,) value of one step of each job, in weights; 0 for a job that can run nowhere
    price: Vector  # (n,) value of one more GPU of each column for a second, with all jobs present


class _Market:
    """The most valuable sharing of GPUs among some jobs, kept while jobs are added.

    A gang counts as `scale` single GPUs here, which may lie in several columns. A job takes
    its GPUs by the best chain of moves of others, so the sharing stays optimal (successive
    shortest paths). Prices only rise, so a job that lost its GPUs never gets them back.
    """

    def __init__(self, n_jobs: int, gpus: Vector) -> None:
        n = gpus.size
        self.free = gpus.astype(np.float64)
        self.value = np.zeros((n_jobs, n))  # of one GPU of the column for a second, to each job
        self.held = np.zeros((n_jobs, n))
        self.holders: list[set[int]] = [set() for _ in range(n)]
        self.stale = set(range(n))
        self.gain = np.full((n, n), -np.inf)  # of moving one GPU's worth of some job from column to column
        self.mover = np.zeros((n, n), dtype=np.int64)  # that job
        self.loss = np.full(n, np.inf)  # of taking a GPU away from the least valuable user of the column
        self.loser = np.zeros(n, dtype=np.int64)
        self._find_chains()

    def _refresh(self) -> None:
        for j in self.stale:
            self.gain[j], self.loss[j] = -np.inf, np.inf
            if self.holders[j]:
                jobs = np.fromiter(sorted(self.holders[j]), dtype=np.int64)
                values = self.value[jobs]
                changes = values - values[:, [j]]
                best = changes.argmax(axis=0)
                self.gain[j], self.mover[j] = changes[best, np.arange(self.free.size)], jobs[best]
                least = values[:, j].argmin()
                self.loss[j], self.loser[j] = values[least, j], jobs[least]
            self.gain[j, j] = -np.inf
        self.stale.clear()

    def _find_chains(self) -> None:
        """price: the least loss that frees a GPU of each column; after: the column to which its user moves."""
        self._refresh()
        self.price = np.where(self.free > TINY, 0.0, self.loss)
        self.after = np.where(self.free > TINY, FREE, DROP)
        for _ in range(self.free.size):
            through = self.price - self.gain
            best = through.argmin(axis=1)
            price = through[np.arange(best.size), best]
            lower = price + TINY * (1.0 + np.abs(price)) < self.price
            if not lower.any():
                break
            self.price, self.after = np.where(lower, price, self.price), np.where(lower, best, self.after)

    def add(self, job: int, value: Vector, scale: float) -> None:
        """Give a job as much as pays. `value` (n,) is what one GPU makes per second, -inf where it cannot run."""
        self.value[job] = value
        left = scale
        while left > TINY:
            surplus = value - self.price
            j = int(surplus.argmax())
            if not surplus[j] > TINY:
                break
            left -= self._take(job, j, left)
            self._find_chains()

    def _take(self, job: int, column: int, wanted: float) -> float:
        moves, at, amount = [], column, wanted
        while self.after[at] != FREE:
            to = int(self.after[at])
            user = int(self.loser[at] if to == DROP else self.mover[at, to])
            amount = min(amount, self.held[user, at])
            moves.append((user, at, to))
            if to == DROP:
                break
            at = to
        else:
            amount = min(amount, self.free[at])
            self.free[at] -= amount
        for user, source, target in moves:
            self._change(user, source, -amount)
            if target != DROP:
                self._change(user, target, amount)
        self._change(job, column, amount)
        return float(amount)

    def _change(self, job: int, column: int, amount: float) -> None:
        self.held[job, column] += amount
        if self.held[job, column] > TINY:
            self.holders[column].add(job)
        else:
            self.held[job, column] = 0.0
            self.holders[column].discard(job)
        self.stale.add(column)


def worth(throughput: Matrix, scale: Vector, gpus: Vector, weight: Vector, order: NDArray[np.int64]) -> Worth:
    """Values of the steps of m jobs on n columns. `order` holds the jobs as they end, the last first.

    throughput (m, n) in steps/s, 0 where a job cannot run; scale and gpus in GPUs; weight is
    the cost of a second until the job ends.
    """
    market = _Market(scale.size, gpus)
    step = np.zeros(scale.size)
    for i in order:
        speed = throughput[i]
        can = (speed > 0) & np.isfinite(market.price)
        if not can.any():
            continue
        step[i] = ((weight[i] + scale[i] * market.price[can]) / speed[can]).min()
        market.add(int(i), np.where(can, step[i] * speed / scale[i], -np.inf), float(scale[i]))
    return Worth(step, market.price.copy())
