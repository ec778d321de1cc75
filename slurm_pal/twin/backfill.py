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


class Kept(NamedTuple):
    """Nodes kept for a planned job."""

    start_s: float
    end_s: float
    nodes: frozenset[int]


class Planned(NamedTuple):
    """Where a job starts, and when: now, or later."""

    start_s: float
    takes: tuple[Take, ...]


class BackfillPlan:
    """One cycle at `now_s` on what is free (`room`) and what running jobs give back (`ends`: moment, what)."""

    def __init__(
        self, picker: Picker, room: Room, ends: Iterable[tuple[float, Sequence[Take]]], now_s: float,
        resolution_s: float, window_s: float, reserved: Iterable[Kept] = (),
    ) -> None:  # fmt: skip
        """`reserved`: reservations that no job of the queue may use."""
        self._picker, self._now_s = picker, now_s
        self._resolution_s, self._window_s = resolution_s, window_s
        self._ends = sorted(ends, key=lambda end: end[0])
        self._stages: list[tuple[float, Room]] = [(now_s, room.copy())]
        self._given = 0  # of `_ends`
        self._kept: list[Kept] = [*reserved]
        self._looked: dict[tuple[object, ...], dict[int, list[dict[int, int]]]] = {}  # what jobs alike see, by stage
        self.nodes: set[int] = set()  # all that are kept

    def plan(self, wanted: Asking, limit_s: float) -> Planned | None:
        """Plan one job; its nodes are kept unless it starts now. None where it does not fit within the window."""
        scout = self._picker.scout(wanted)
        seen = self._looked.setdefault(scout.alike, {})

        def fits(stage: int, barred: Collection[int]) -> bool:
            if stage not in seen:
                seen[stage] = scout.look(self._stages[stage][1])
            return scout.fits(seen[stage], barred)

        later_s = self._now_s
        while True:
            barred = self._barred(later_s, later_s + limit_s)
            stage = self._earliest(fits, barred, later_s)
            if stage is not None:
                start_s = max(later_s, self._stages[stage][0])
                if start_s > self._now_s + self._window_s:
                    return None
                among = frozenset(wanted.rows).difference(barred) if barred else None
                takes = self._picker.pick(self._stages[stage][1], wanted, among)
                nodes = frozenset(take.node for take in takes or ())
                now = start_s <= self._now_s
                if takes and (now or nodes.isdisjoint(self._barred(start_s, start_s + limit_s))):
                    if not now:
                        self._kept.append(Kept(self._down(start_s), self._down(start_s + limit_s), nodes))
                        self.nodes |= nodes
                    return Planned(start_s, tuple(takes))
            next_s = min((kept.end_s for kept in self._kept if kept.end_s > later_s), default=math.inf)
            if next_s > self._now_s + self._window_s:
                return None
            later_s = next_s

    def started(self, takes: Sequence[Take], end_s: float) -> None:
        """A job has started now and ends at its limit at the latest."""
        room = self._stages[0][1]
        room.take(takes)
        insort(self._ends, (end_s, takes), key=lambda end: end[0])
        self._stages, self._given = [(self._now_s, room)], 0
        self._looked.clear()

    def _down(self, at_s: float) -> float:
        """Slurm's plan knows moments by the resolution only, and rounds them down."""
        return at_s // self._resolution_s * self._resolution_s

    def _barred(self, start_s: float, end_s: float) -> Collection[int]:
        found: set[int] = set()
        for kept in self._kept:
            if kept.start_s < end_s and start_s < kept.end_s:
                found |= kept.nodes
        return found

    def _earliest(
        self, fits: Callable[[int, Collection[int]], bool], barred: Collection[int], from_s: float
    ) -> int | None:
        """The first stage from then on where it fits; what is free only grows, so the stages can be halved."""
        first = self._stage_at(from_s)
        if fits(first, barred):
            return first
        self._all_stages()
        low, high = first + 1, len(self._stages)
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
        return bisect_right(self._stages, at_s, key=lambda stage: stage[0]) - 1

    def _all_stages(self) -> None:
        while self._given < len(self._ends):
            end_s, takes = self._ends[self._given]
            self._given += 1
            at_s = max(end_s, self._now_s + OVERDUE_S)
            if self._stages[-1][0] < at_s:
                self._stages.append((at_s, self._stages[-1][1].copy()))
            self._stages[-1][1].give(takes)
