# SPDX-License-Identifier: MIT
"""Which running jobs are worth moving, among very many of whom little changes from one plan to the next.

The plan is that of trying all jobs one by one, those with most GPU-time at stake first. Nearly none can pay, and
which those are is found out for many jobs at once by bounds (reach.py) that are kept from plan to plan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slurm_pal.moves.job_rows import Floats, JobRows
from slurm_pal.moves.worth import CandidateMove, Movable, MoveLimits, Planner
from slurm_pal.placement.first_choice import Choice, FirstChoice
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Placement

COLUMNS = ("kind", "node", "gpus", "believed", "cost_s", "floor", "here", "stale")
"""What `Prospects` keeps of each job: what its placement depends on, its only node or -1, its GPUs, its time factor,
the cost of a move, no placement's product is below `floor`, nor that of one on its own nodes below `here`."""
_FIRST, _MOST = 32, 512  # jobs that are looked at together: first and after a move, and at most


class Prospects:
    """Running jobs on an occupancy, whose rows in `columns` the caller adds and removes."""

    def __init__(self, occupancy: Occupancy, policy: str, limits: MoveLimits, columns: JobRows) -> None:
        self._occupancy, self._policy, self._limits, self._columns = occupancy, policy, limits, columns
        self._planner = Planner(occupancy, policy, limits)
        self._reach = self._planner.reach
        self._changed = occupancy.watched()
        self._on: list[set[int]] = [set() for _ in occupancy.names]  # node -> jobs
        self._movable: dict[int, Movable] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._like: list[Movable] = []  # a job of each kind
        self._floors: list[float] = []
        self._product = np.zeros(0)  # by kind: of the placement elsewhere
        self._nodes: dict[int, frozenset[int]] = {}  # kind -> its nodes, as long as nothing has changed
        self._node = np.zeros(0, np.intp)  # by kind: that node, where it is one
        self._choices: list[FirstChoice | None] = []  # by kind
        self._best: dict[int, Choice | None] = {}  # kind -> the node liked best, as long as nothing has changed
        self._own: dict[int, Choice | None] = {}  # job -> what its own node would be to it, its GPUs given back

    def add(self, number: int, job: Movable) -> tuple[float, ...]:
        """A job that gets a row: its values for COLUMNS."""
        self._movable[number] = job
        for node, _ in job.slots:
            self._on[node].add(number)
        kind = self._kind(job)
        node = job.slots[0][0] if len(job.slots) == 1 else -1
        return (kind, node, job.shape.total, job.factor, job.cost_s, self._floors[kind], 0.0, 1.0)

    def remove(self, number: int) -> None:
        """A job whose row is removed, and that may have been added here."""
        job = self._movable.pop(number, None)
        self._own.pop(number, None)
        for node, _ in job.slots if job else ():
            self._on[node].discard(number)

    def plan(
        self, remaining_s: Floats, ripe: NDArray[np.bool_], ids: Callable[[int], str] = str
    ) -> list[tuple[int, CandidateMove]]:
        """The moves to make now, with the number of the job; `remaining_s` and `ripe`, who may be moved, by row."""
        columns, planner, limits = self._columns, self._planner, self._limits
        moves: list[tuple[int, CandidateMove]] = []
        rows = self._in_order(remaining_s, ripe, ids)
        left_s, margin_s = remaining_s[rows], limits.margin * columns["cost_s"][rows]
        factor = columns["believed"][rows]
        kind, node = columns["kind"][rows].astype(np.intp), columns["node"][rows].astype(np.intp)
        self._forget()
        at, size = 0, _FIRST
        while at < len(rows) and len(moves) < limits.per_tick:
            part = slice(at, at + size)
            least = self._least(rows[part], kind[part], node[part])
            paying = np.flatnonzero(left_s[part] * (factor[part] - least) > margin_s[part])
            at, size = min(at + size, len(rows)), min(2 * size, _MOST)
            for position in (paying + part.start).tolist():
                number = columns.jobs[rows[position]]
                job = self._movable[number]._replace(remaining_s=float(left_s[position]))
                placed = self._placed(number, job, int(kind[position]))
                if placed is not None:
                    planner.book(job, placed)
                    self._forget()
                    gain_s = job.remaining_s * (job.factor - placed.product)
                    moves.append((number, CandidateMove(job.job_id, placed, gain_s)))
                    at, size = position + 1, _FIRST
                    break
        planner.undo()
        return moves

    def _in_order(self, remaining_s: Floats, ripe: NDArray[np.bool_], ids: Callable[[int], str]) -> NDArray[np.intp]:
        """Rows of the jobs that might gain anywhere, those with most at stake first; ties by job id."""
        columns = self._columns
        factor = columns["believed"]
        some = remaining_s * (factor - columns["floor"]) > self._limits.margin * columns["cost_s"]
        rows = np.flatnonzero(some & ripe)
        stake = -columns["gpus"][rows] * remaining_s[rows] * factor[rows]
        order = np.argsort(stake, kind="stable")
        rows, stake = rows[order], stake[order]
        for start in np.flatnonzero(stake[1:] == stake[:-1]).tolist():
            if start and stake[start - 1] == stake[start]:
                continue  # of a run that is in order already
            end = int(np.searchsorted(stake, stake[start], side="right"))
            rows[start:end] = sorted(rows[start:end].tolist(), key=lambda row: ids(columns.jobs[row]))
        return rows

    # Bounds

    def _least(self, rows: NDArray[np.intp], kind: NDArray[np.intp], node: NDArray[np.intp]) -> Floats:
        """What no placement of these jobs, their own GPUs given back, is below (see Reach.least_product)."""
        columns, reach = self._columns, self._reach
        here, stale = columns["here"], columns["stale"]
        self._take_note()
        for row in rows[stale[rows] > 0].tolist():
            job = self._movable[columns.jobs[row]]
            here[row] = reach.here(job.shape, job.rule, job.slots)
            stale[row] = 0.0
        kinds = set(kind.tolist())
        for number in kinds - self._nodes.keys():
            self._look_elsewhere(number)
        least = np.minimum(here[rows], self._product[kind])
        least[node == self._node[kind]] = 0.0
        jobs = columns.jobs
        for position in (node < 0).nonzero()[0].tolist():
            nodes = self._nodes[int(kind[position])]
            if nodes and any(held in nodes for held, _ in self._movable[jobs[rows[position]]].slots):
                least[position] = 0.0
        for number in kinds:
            if len(self._nodes[number]) > 1:
                least[(kind == number) & np.isin(node, list(self._nodes[number]))] = 0.0
        return least

    def _placed(self, number: int, job: Movable, kind: int) -> Placement | None:
        """Where the job would go, its own GPUs given back, if that pays (see Planner.attempt)."""
        choice = self._choices[kind]
        if choice is not None and len(job.slots) == 1:
            node, given = job.slots[0]
            if number not in self._own:
                self._own[number] = choice.own(node, given)
            own, best = self._own[number], self._best[kind]
            if best is not None and best.node == node:
                best = choice.best(frozenset((node,)))
            found = own if best is None or (own is not None and own < best) else best
            if found is not None and choice.is_final(found):
                return found.placement if self._planner.pays(job, found.slowdown) else None
        together = choice is None or self._best[kind] is not None
        if not self._planner.pays(job, self._reach.anywhere(job.shape, job.rule, job.slots, together)):
            return None
        placed = self._planner.attempt(job)
        self._changed.clear()  # that left all as it was
        return placed

    def _look_elsewhere(self, kind: int) -> None:
        choice, like = self._choices[kind], self._like[kind]
        best = self._best[kind] = choice.best() if choice else None
        if choice and best and choice.is_final(best):
            self._product[kind], self._node[kind], self._nodes[kind] = best.slowdown, best.node, frozenset((best.node,))
            return
        if choice and not best:  # on several nodes, if at all, unless a node is used where the job gives GPUs back
            self._product[kind] = self._floors[kind] * like.rule.locality_penalty
            self._node[kind], self._nodes[kind] = -2, frozenset()
            return
        placed = self._reach.elsewhere(like.shape, like.rule, like.partition)
        nodes = frozenset(placed.nodes if placed is not None else ())
        self._product[kind] = np.inf if placed is None else placed.product
        self._node[kind], self._nodes[kind] = next(iter(nodes)) if len(nodes) == 1 else -2, nodes

    def _forget(self) -> None:
        """The occupancy has changed."""
        self._reach.forget()
        self._nodes.clear()

    def _take_note(self) -> None:
        """Bounds of jobs on nodes that have changed count no longer."""
        row_of, stale = self._columns.row_of, self._columns["stale"]
        for node in self._changed:
            for number in self._on[node]:
                stale[row_of[number]] = 1.0
                self._own.pop(number, None)
        self._changed.clear()

    def _kind(self, job: Movable) -> int:
        rule = job.rule
        key = (
            job.shape, rule.sensitivity, rule.measured, rule.locality_penalty, rule.barred_slowdown, job.partition
        )  # fmt: skip
        if key not in self._kinds:
            self._kinds[key] = len(self._like)
            self._like.append(job)
            best = min(min(row) for row in self._occupancy.believed(rule.sensitivity) if row)
            self._floors.append(best * min(1.0, rule.locality_penalty))
            found = self._occupancy.first_choice(self._policy, job.shape, rule, job.partition)
            spreads = job.shape.nodes is None
            self._choices.append(FirstChoice(self._occupancy, *found, rule, spreads) if found else None)
            self._product, self._node = np.zeros(len(self._like)), np.full(len(self._like), -2)
            self._nodes.clear()
        return self._kinds[key]
