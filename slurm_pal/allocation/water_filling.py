# SPDX-License-Identifier: MIT
"""Water filling: fairness at every level, not only at the lowest, within and between entities (gavel.md 3 and 10.5).

All jobs rise together, each at its own pace. Where one can rise no more, it is frozen at its
level and the others go on. The published code finds the frozen ones by a mixed-integer
program. Here the duals of the level's own program name them: a row with a price is tight in
every optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, Problem, Vector

Flags = NDArray[np.bool_]

SLACK = 1e-9  # how far below its level a frozen row may fall, of the group's best throughput
STUCK = 1e-6  # less than this to gain, of its best throughput: it can rise no more
GAIN = 1e-2  # as far as the search for stuck groups looks


def hierarchical(problem: Problem, in_order: Collection[int] = ()) -> Allocation:
    """Water filling between entities by `entity_weight`, and within each by the weights of its jobs. Exact, by groups.

    A job that is frozen leaves its weight to its entity. The jobs of the entities `in_order`
    are served one after the other in row order, each until it is frozen. The objective is the
    height at which the first jobs are frozen: s * throughput / (share of the entity's weight * reference).
    """
    queued = np.isin(problem.entity, np.array([*in_order], dtype=np.int64))
    found = groups(problem, problem.weight, problem.entity, np.where(queued, np.arange(problem.n_jobs), -1))
    return _fill(problem, found, _Entities(problem, found, queued[found.first]).weights)


class _Entities(NamedTuple):
    """What is needed to share the weight of an entity among its jobs."""

    problem: Problem
    found: Groups
    queued: Flags  # (g,) groups of entities that are served in order

    def weights(self, frozen: Flags) -> Vector:
        """(g,) the weight of each member of the groups that rise now, 0 for the others."""
        first, known = self.found.first, self.problem.entity_weight.size
        entity = self.problem.entity[first]
        live = np.where(frozen, 0.0, self.problem.weight[first])
        total = np.bincount(entity, live * self.found.count, minlength=known)[entity]
        part = np.divide(live, total, out=np.zeros(len(first)), where=total > 0)
        place = np.where(frozen, self.problem.n_jobs, first)
        head = np.full(known, self.problem.n_jobs)
        np.minimum.at(head, entity, place)
        part = np.where(self.queued, (place == head[entity]) & ~frozen, part)
        return np.asarray(self.problem.entity_weight[entity] * part)


def _fill(problem: Problem, found: Groups, weights: Callable[[Flags], Vector]) -> Allocation:
    variables = base.cells(problem, found)
    frozen = variables.best == 0
    notes = base.left_out(~frozen[found.member])
    water, objective = _Water(problem, found, variables), float("nan")
    while (weight := weights(frozen)).any():
        risen, tight = water.rise(weight)
        objective = risen if np.isnan(objective) else objective
        frozen = frozen | tight
        if water.gained <= SLACK:
            frozen = frozen | water.stuck(~frozen)
    return Allocation(base.shares_of(problem, found, variables, water.x), objective, notes=notes)


class _Water:
    """The program of one level, solved again for the next one from where it stands.

    Variables: the cells, then the height c. One row for each group, in units of its best
    throughput: throughput - c * pace >= level, with pace = weight * reference / s.
    """

    def __init__(self, problem: Problem, found: Groups, variables: base.Cells) -> None:
        g = len(found.first)
        self._variables = variables
        self._best = np.where(variables.best > 0, variables.best, 1.0)
        self._unit = (base.reference_throughput(problem) / problem.scale)[found.first] / self._best
        self._level = np.zeros(g)
        self._pace = np.zeros(g)
        self._scale = 0.0  # of c, so that paces are around 1
        self._base = base.base_rows(problem, found, variables)
        self._start = len(self._base.lower)
        self._program: LinearProgram | None = None
        self.x: Vector = np.zeros(variables.size)
        self.gained = 0.0  # of the best throughput, by the group that gained most in the last step

    def rise(self, weight: Vector) -> tuple[float, Flags]:
        """Raise all groups with a weight as far as they can rise together; by how much, and who is tight then."""
        if not self._scale:
            self._scale = float((weight * self._unit).max())
        pace = weight * self._unit / self._scale
        solution = self._changed(pace).solve()
        height, self.x = max(0.0, float(solution.x[-1])), solution.x[:-1]
        self.gained = height * float(pace.max())
        self._level = self._level + height * pace
        price = np.abs(solution.dual[self._start :]) * pace
        rising = pace > 0
        tight = rising & (price > 1e-7)
        return height / self._scale, tight if tight.any() else rising

    def stuck(self, candidates: Flags) -> Flags:
        """Which of the groups cannot rise at all while the others keep their levels.

        Maximises what all candidates gain together; those that gain are out, and the search goes
        on among the rest until none gains.
        """
        left = np.flatnonzero(candidates)
        while left.size:
            gains = self._gains(left)
            if gains.max() <= STUCK:
                break
            left = left[gains <= STUCK]
        flags = np.zeros(len(self._level), dtype=bool)
        flags[left] = True
        return flags

    def _changed(self, pace: Vector) -> LinearProgram:
        """The program at the present levels and paces."""
        if self._program is None:
            self._program = self._built(np.arange(len(pace)), -pace, np.append(np.zeros(self._variables.size), 1.0))
        else:
            column = self._variables.size
            for row in np.flatnonzero(pace != self._pace):
                self._program.change_value(self._start + int(row), column, -float(pace[row]))
            for row in np.flatnonzero(self._level):
                self._program.change_row(self._start + int(row), float(self._level[row]) - SLACK, INFINITE)
        self._pace = pace
        return self._program

    def _gains(self, left: NDArray[np.int64]) -> Vector:
        cost = np.concatenate([np.zeros(self._variables.size), np.ones(left.size)])
        upper = np.concatenate([np.full(self._variables.size, INFINITE), np.full(left.size, GAIN)])
        program = self._built(left, np.full(left.size, -1.0), cost, upper)
        return program.solve().x[self._variables.size :]

    def _built(
        self, rows: NDArray[np.int64], values: Vector, cost: Vector, upper: Vector | None = None
    ) -> LinearProgram:
        """A program whose variables after the cells stand with `values` in the throughput rows `rows`."""
        cells, extra = self._variables.size, len(cost) - self._variables.size
        later = cells + (np.arange(rows.size) if extra == rows.size else np.zeros(rows.size, dtype=np.int64))
        throughput = Rows(
            np.concatenate([self._variables.group, rows]),
            np.concatenate([np.arange(cells), later]),
            np.concatenate([self._variables.throughput / self._best[self._variables.group], values]),
            np.maximum(self._level - SLACK, 0.0),
            np.full(len(self._level), INFINITE),
        )
        return LinearProgram(cost, together(self._base, throughput), upper=upper)
