# SPDX-License-Identifier: MIT
"""Moves that are booked in one plan: what was found for each job, and whether fewer moves save as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.decide.network import together
from slurm_pal.decide.scene import rows
from slurm_pal.moves.money import Money
from slurm_pal.moves.survey import Survey, Want
from slurm_pal.moves.worth import Movable, MoveLimits, Planner, Slots, slots
from slurm_pal.placement import place
from slurm_pal.placement.view import Placement, Rule


class Way(NamedTuple):
    """One way to place a running job anew."""

    want: Want
    movable: Movable
    kept_off: tuple[int, ...]  # nodes to leave: its GPUs there are slow, or it changes its partition
    speed: float = 1.0  # its throughput on median GPUs there over that on median ones of its own partition
    money: Money | None = None  # its user wants the cheaper place: `movable` counts an hour there as its price

    @property
    def factor(self) -> float:
        """The time factor where it runs, relative to median GPUs of where it goes."""
        return self.movable.factor / (self.money.cheaper if self.money else 1.0)

    def left_s(self, product: float) -> tuple[float, float]:
        """Run time to come where it runs, and on GPUs with this product."""
        return self.movable.remaining_s * self.factor, self.movable.remaining_s * product

    def why_not(self, product: float) -> str:
        """Why a move to such GPUs saves too little money; "" where it does not, or is not for money."""
        return self.money.why_not(*self.left_s(product), self.movable.cost_s) if self.money else ""


class Found(NamedTuple):
    """Where a job would go, and what that is worth."""

    way: Way
    placed: Placement

    @property
    def job_id(self) -> int:
        return self.way.want.job.job_id

    @property
    def gain_s(self) -> float:
        """Expected run time saved, cost not deducted; for money in hours at the price of where it goes."""
        movable = self.way.movable
        return movable.remaining_s * (movable.factor - self.placed.product)

    @property
    def sooner_s(self) -> float:
        """Expected run time saved, whatever it costs; less than nothing where the job runs longer there."""
        return self.way.movable.remaining_s * (self.way.factor - self.placed.product)

    @property
    def saving(self) -> float:
        """Money saved, cost not deducted; 0.0 of a move for time."""
        return self.way.money.saving(*self.way.left_s(self.placed.product)) if self.way.money else 0.0

    @property
    def worth(self) -> float:
        """GPU-seconds saved after the cost."""
        return self.way.movable.shape.total * (self.gain_s - self.way.movable.cost_s)


class Traffic(NamedTuple):
    """Nodes (by position) that moves of earlier ticks, still under way, go to and leave."""

    arriving: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()


class Bookings:
    """The moves booked so far, by job id.

    No move counts on GPUs that another one has not given up yet, nor on a node where that
    may happen first: Slurm hands out the lowest free index, so the job would get other GPUs.
    """

    def __init__(self, survey: Survey, policy: str, limits: MoveLimits, traffic: Traffic) -> None:
        self._survey, self._policy, self._margin, self._traffic = survey, policy, limits.margin, traffic
        self._planner = Planner(survey.occupancy, policy, limits._replace(chained=False))
        self.moves: dict[int, Found] = {}

    def best(self, ways: Sequence[Way]) -> Found | None:
        """The placement worth most to one job now, of those that pay."""
        planned = self._planned()
        found = [one for one in (self._try(way, planned) for way in ways) if one is not None]
        return max(found, key=lambda one: one.worth, default=None)

    def in_the_way(self, found: Found) -> list[int]:
        """Nodes where a move depends on who comes or goes first: it waits for the next tick."""
        leaving = {node for other in self.moves.values() for node, _ in other.way.movable.slots}
        arriving = {node for other in self.moves.values() for node in other.placed.nodes}
        traffic, here, there = self._traffic, {node for node, _ in found.way.movable.slots}, set(found.placed.nodes)
        nodes = (leaving | traffic.leaving | traffic.arriving) & there | (arriving | traffic.arriving) & here
        return sorted(nodes.union(node for node in arriving & there if self._order_matters(found, node)))

    def _order_matters(self, found: Found, node: int) -> bool:
        """Whether a job that comes to a node gains nothing with the GPUs that others expect."""
        coming = [found, *(other for other in self.moves.values() if node in other.placed.nodes)]
        gpus = [k for one in coming for k in dict(slots(one.placed))[node]]
        for one in coming:
            movable, row = one.way.movable, self._survey.occupancy.believed(one.way.movable.rule.sensitivity)[node]
            worst = max(one.placed.slowdown, *(row[k] for k in gpus)) * one.placed.locality
            if movable.remaining_s * (movable.factor - worst) <= self._margin * movable.cost_s:
                return True
        return False

    def book(self, found: Found) -> None:
        """Count on this move."""
        self._planner.book(found.way.movable, found.placed)
        self.moves[found.job_id] = found

    def unbook(self, job_id: int) -> Found:
        """Stop counting on it."""
        self._planner.unbook(str(job_id))
        return self.moves.pop(job_id)

    def undo(self) -> None:
        """Leave the occupancy as it was; `moves` stay to be read."""
        self._planner.undo()

    def instead(self, old: Found, lost: Found) -> Found | None:
        """The best for a job if another one did not move: to choose anew, or to go in its place. Both unbooked."""
        found = [one for one in (self.best([old.way]), self._in_place(old.way, lost)) if one is not None]
        free = [one for one in found if not self.in_the_way(one)]
        return max(free, key=lambda one: one.worth, default=None)

    def _try(self, way: Way, planned: Mapping[int, tuple[int, int]]) -> Found | None:
        barred = {*way.kept_off, *(node for node in planned if not self._survey.holds(way.want, node, planned))}
        placed = self._planner.attempt(way.movable, barred, lambda placed: self._nearer(way, placed))
        if placed is None or way.why_not(placed.product):
            return None
        return Found(way, placed) if self._is_gain(way, placed) else None

    def _nearer(self, way: Way, placed: Placement) -> Placement:
        """The placement on as few leaves of the network as can be, with the locality penalty that it has there."""
        survey, job = self._survey, way.movable
        if len(placed.nodes) > 1 and survey.network.switches:
            kept = survey.occupancy.permitted(job.shape, job.partition)
            view = rows(survey.occupancy.view(job.rule.sensitivity), kept)
            here = placed._replace(nodes=tuple(map(kept.index, placed.nodes)))
            found = together(
                view, here, job.shape, survey.network, job.rule,
                lambda some: place(self._policy, some, job.shape, job.rule), way.want.request.segment,
            )  # fmt: skip
            if found is not None:
                placed = found._replace(nodes=tuple(kept[row] for row in found.nodes))
        return placed._replace(locality=survey.locality(placed.nodes, job.rule))

    def _is_gain(self, way: Way, placed: Placement) -> bool:
        """Whether the move pays by belief, too, where the job keeps some GPU: what was measured may be that one's."""
        movable, held = way.movable, dict(way.movable.slots)
        if not any(k in held.get(node, ()) for node, gpus in slots(placed) for k in gpus):
            return True
        believed = product(self._survey, way.want, movable.slots, movable.rule)
        gain_s = movable.remaining_s * (min(believed, movable.factor) - placed.product)
        return gain_s > self._margin * movable.cost_s

    def _in_place(self, way: Way, lost: Found) -> Found | None:
        """The job on the GPUs that the other one does not take, where they may be exchanged and that pays."""
        mine, its = way.movable, lost.way.movable
        alike = (mine.shape, mine.rule, mine.partition) == (its.shape, its.rule, its.partition)
        if not alike:
            return None
        found = Found(way, lost.placed)
        # Not those that the other one holds and has not left.
        lowest = all(self._lowest(node, gpus) for node, gpus in slots(lost.placed))
        pays = found.gain_s > self._margin * mine.cost_s and not way.why_not(lost.placed.product)
        return found if lowest and pays else None

    def _lowest(self, node: int, gpus: Sequence[int]) -> bool:
        """Whether these are the GPUs that Slurm would hand out now."""
        return sorted(self._survey.occupancy.free_indexes(node))[: len(gpus)] == list(gpus)

    def _planned(self) -> dict[int, tuple[int, int]]:
        """Node -> CPUs and memory that booked moves take there; what they leave elsewhere is not free yet."""
        taken: dict[int, tuple[int, int]] = {}
        for found in self.moves.values():
            for node in found.placed.nodes:
                share = self._survey.more(found.way.want, node)
                before = taken.get(node, (0, 0))
                taken[node] = before[0] + share[0], before[1] + share[1]
        return taken


def product(survey: Survey, want: Want, held: Slots, rule: Rule) -> float:
    """The believed time factor (slowdown x locality) of a job on these GPUs."""
    table = survey.occupancy.believed(rule.sensitivity)
    whole = want.shape.whole_nodes
    slowest = max(max(table[node]) if whole else max(table[node][k] for k in gpus) for node, gpus in held)
    return slowest * survey.locality([node for node, _ in held], rule)


def thin_out(bookings: Bookings) -> dict[int, tuple[Found, int]]:
    """Drop every move without which the others save as much: jobs must not change places for nothing.

    Only a job of the same user makes up for it: no gain passes from one user to another.
    Returns dropped job -> (its move, the job that makes up for it).
    """
    dropped: dict[int, tuple[Found, int]] = {}
    again = True
    while again:
        again = False
        for lost in sorted(bookings.moves.values(), key=lambda found: (found.worth, found.job_id)):
            heir = _drop(bookings, lost.job_id)
            if heir is not None:
                dropped[lost.job_id], again = (lost, heir), True
                break
    return dropped


def _drop(bookings: Bookings, job_id: int) -> int | None:
    """Let this job stay if another one makes up for it; which, or None where all is as before."""
    lost = bookings.unbook(job_id)
    user = lost.way.want.job.user
    for other_id in [found.job_id for found in bookings.moves.values() if found.way.want.job.user == user]:
        old = bookings.unbook(other_id)
        new = None if _beside(bookings, old, lost) else bookings.instead(old, lost)
        if new is not None and new.worth >= old.worth + lost.worth:
            bookings.book(new)
            return other_id
        bookings.book(old)
    bookings.book(lost)
    return None


def _beside(bookings: Bookings, *gone: Found) -> bool:
    """Whether others go to a node of these moves: without them they would be handed lower indexes than expected."""
    nodes = {node for found in gone for node in found.placed.nodes}
    return any(nodes.intersection(found.placed.nodes) for found in bookings.moves.values())
