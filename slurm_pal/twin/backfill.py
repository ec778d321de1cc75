# SPDX-License-Identifier: MIT
"""sched/backfill: every job of the queue is planned on named nodes, by priority, and starts if that is now.

As in Slurm (slurm.conf(5), bf_*): a planned job keeps its nodes whole from its planned start to the end of its limit,
so a later job may use them only before that, however many of their GPUs are free.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from slurm_pal.twin.picks import Asking, Picker
from slurm_pal.twin.room import Room, Take

OVERDUE_S = 1.0
"""A job that is beyond its limit, or completing, is taken to end so soon."""


TOGETHER_S = 30.0
"""Slurm takes jobs that end within so long after each other to end with the last of them, to look less often; twice as
long in each next step."""


class Kept(NamedTuple):
    """Nodes kept for a planned job."""

    start_s: float
    end_s: float
    nodes: frozenset[int]


class Planned(NamedTuple):
    """Where a job starts, and when: now, or later."""

    start_s: float
    takes: tuple[Take, ...]


Ending = tuple[float, int, Sequence[Take]]
"""A running job: when it ends at the latest, its number, and what it gives back."""


class BackfillPlan:
    """One cycle at `now_s` on what is free (`room`) and what running jobs give back."""

    def __init__(
        self, picker: Picker, room: Room, ends: Iterable[Ending], now_s: float,
        resolution_s: float, window_s: float, reserved: Iterable[Kept] = (),
    ) -> None:  # fmt: skip
        """`reserved`: reservations that no job of the queue may use."""
        self._picker, self._now_s, self._room = picker, now_s, room.copy()
        self._resolution_s, self._window_s = resolution_s, window_s
        self._ends = sorted(ends, key=lambda end: end[:2])
        self._courses: dict[frozenset[int], _Course] = {}
        self._kept: list[Kept] = [*reserved]
        self.nodes: set[int] = set()  # all that are kept

    def among(self, wanted: Asking, limit_s: float) -> Collection[int]:
        """Of its nodes those that no planned job keeps within its limit from now on."""
        return frozenset(wanted.rows).difference(self._barred(self._now_s, self._now_s + limit_s))

    def soon(self, wanted: Asking, limit_s: float) -> Planned | None:
        """As `plan`, for a job that starts now or as soon as those that complete have left; None for any other."""
        return self._plan(wanted, limit_s, frozenset(), self._now_s + OVERDUE_S)

    def plan(self, wanted: Asking, limit_s: float, gone: frozenset[int] = frozenset()) -> Planned | None:
        """Plan one job as if the running jobs `gone` ended now; its nodes are kept, unless it starts now by itself.

        None where it does not fit within the window.
        """
        return self._plan(wanted, limit_s, gone, self._now_s + self._window_s)

    def _plan(self, wanted: Asking, limit_s: float, gone: frozenset[int], latest_s: float) -> Planned | None:
        course = self._course(gone)
        scout = self._picker.scout(wanted)
        seen = course.looked.setdefault(scout.alike, {})

        def fits(stage: int, barred: Collection[int]) -> bool:
            if stage not in seen:
                seen[stage] = scout.look(course.stages[stage][1])
            return scout.fits(seen[stage], barred)

        later_s = self._now_s
        while True:
            barred = self._barred(later_s, later_s + limit_s)
            stage = course.earliest(fits, barred, later_s)
            if stage is not None:
                start_s = max(later_s, course.stages[stage][0])
                if start_s > latest_s:
                    return None
                among = frozenset(wanted.rows).difference(barred) if barred else None
                takes = self._picker.pick(course.stages[stage][1], wanted, among)
                nodes = frozenset(take.node for take in takes or ())
                now = start_s <= self._now_s
                if takes and (now or nodes.isdisjoint(self._barred(start_s, start_s + limit_s))):
                    if not now or gone:
                        self._kept.append(Kept(self._down(start_s), self._down(start_s + limit_s), nodes))
                        self.nodes |= nodes
                    return Planned(start_s, tuple(takes))
            next_s = min((kept.end_s for kept in self._kept if kept.end_s > later_s), default=math.inf)
            if next_s > latest_s:
                return None
            later_s = next_s

    def started(self, number: int, takes: Sequence[Take], end_s: float) -> None:
        """A job has started now and ends at its limit at the latest."""
        self._room.take(takes)
        insort(self._ends, (end_s, number, takes), key=lambda end: end[:2])
        self._courses.clear()

    def stopped(self, number: int) -> None:
        """A running job is being stopped."""
        found = next(end for end in self._ends if end[1] == number)
        self._ends.remove(found)
        insort(self._ends, (self._now_s, *found[1:]), key=lambda end: end[:2])
        self._courses.clear()

    def _course(self, gone: frozenset[int]) -> _Course:
        found = self._courses.get(gone)
        if found is None:
            room = self._room.copy()
            for _, number, takes in self._ends:
                if number in gone:
                    room.give(takes)
            ends = [end for end in self._ends if end[1] not in gone]
            found = self._courses[gone] = _Course(room, ends, self._now_s)
        return found

    def _down(self, at_s: float) -> float:
        """Slurm's plan knows moments by the resolution only, and rounds them down."""
        return at_s // self._resolution_s * self._resolution_s

    def _barred(self, start_s: float, end_s: float) -> Collection[int]:
        found: set[int] = set()
        for kept in self._kept:
            if kept.start_s < end_s and start_s < kept.end_s:
                found |= kept.nodes
        return found


class _Course:
    """What is free from now on, as running jobs end: stages, each with its beginning."""

    def __init__(self, room: Room, ends: Sequence[Ending], now_s: float) -> None:
        self._ends, self._now_s = ends, now_s
        self.stages: list[tuple[float, Room]] = [(now_s, room)]
        self._given = 0  # of `ends`
        self.looked: dict[tuple[object, ...], dict[int, list[dict[int, int]]]] = {}  # what jobs alike see, by stage

    def earliest(
        self, fits: Callable[[int, Collection[int]], bool], barred: Collection[int], from_s: float
    ) -> int | None:
        """The first stage from then on where it fits; what is free only grows, so the stages can be halved."""
        first = self._stage_at(from_s)
        if fits(first, barred):
            return first
        self._all_stages()
        low, high = first + 1, len(self.stages)
        if low >= high or not fits(high - 1, barred):
            return None
        while low < high - 1:
            middle = (low + high - 1) // 2
            if fits(middle, barred):
                high = middle + 1
            else:
                low = middle + 1
        return low

    def _stage_at(self, at_s: float) -> int:
        """The last stage that is not later."""
        if at_s > self._now_s:
            self._all_stages()
        return bisect_right(self.stages, at_s, key=lambda stage: stage[0]) - 1

    def _all_stages(self) -> None:
        until_s, window_s = self._now_s, TOGETHER_S / 2  # first those that complete, or are overdue
        while self._given < len(self._ends):
            room, before = self.stages[-1][1].copy(), self._given
            while self._given < len(self._ends) and self._ends[self._given][0] <= until_s:
                end_s, _, takes = self._ends[self._given]
                room.give(takes)
                self._given += 1
            if self._given > before:
                self.stages.append((max(end_s, self._now_s + OVERDUE_S), room))
            if self._given < len(self._ends):
                window_s *= 2
                until_s = self._ends[self._given][0] + window_s
