# SPDX-License-Identifier: MIT
"""sched/backfill: every job of the queue is planned on named nodes, by priority, and starts if that is now.

As in Slurm (slurm.conf(5), bf_*): a planned job keeps its nodes whole from its planned start to the end of its limit,
so a later job may use them only before that, however many of their GPUs are free.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from slurm_pal.twin.picks import Picker, Wanted
from slurm_pal.twin.room import Room, Take


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
        resolution_s: float, window_s: float,
    ) -> None:  # fmt: skip
        self._picker, self._now_s = picker, now_s
        self._resolution_s, self._window_s = resolution_s, window_s
        self._ends = sorted(ends, key=lambda end: end[0])
        self._stages: list[tuple[float, Room]] = [(now_s, room.copy())]
        self._given = 0  # of `_ends`
        self._kept: list[Kept] = []
        self.nodes: set[int] = set()  # all that are kept

    def plan(self, wanted: Wanted, limit_s: float) -> Planned | None:
        """Plan one job; its nodes are kept unless it starts now. None where it does not fit within the window."""
        later_s = self._now_s
        while True:
            barred = self._barred(later_s, later_s + limit_s)
            among = None if not barred else frozenset(wanted.rows).difference(barred)
            found = self._earliest(wanted, among, later_s)
            if found is not None:
                if found.start_s <= self._now_s:
                    return found
                if found.start_s > self._now_s + self._window_s:
                    return None
                nodes = frozenset(take.node for take in found.takes)
                if not nodes & self._barred(found.start_s, found.start_s + limit_s):
                    self._kept.append(Kept(found.start_s, found.start_s + limit_s, nodes))
                    self.nodes |= nodes
                    return found
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

    def _barred(self, start_s: float, end_s: float) -> Collection[int]:
        found: set[int] = set()
        for kept in self._kept:
            if kept.start_s < end_s and start_s < kept.end_s:
                found |= kept.nodes
        return found

    def _earliest(self, wanted: Wanted, among: Collection[int] | None, from_s: float) -> Planned | None:
        """The first moment from then on when it fits; what is free only grows, so the moments can be halved."""
        first = self._stage_at(from_s)
        takes = self._pick(first, wanted, among)
        if takes is not None:
            return Planned(max(from_s, self._stages[first][0]), tuple(takes))
        self._all_stages()
        low, high = first + 1, len(self._stages)
        best: list[Take] | None = None
        while low < high:
            middle = (low + high) // 2
            found = self._pick(middle, wanted, among)
            if found is None:
                low = middle + 1
            else:
                high, best = middle, found
        return None if best is None else Planned(max(from_s, self._stages[low][0]), tuple(best))

    def _pick(self, stage: int, wanted: Wanted, among: Collection[int] | None) -> list[Take] | None:
        return self._picker.pick(self._stages[stage][1], wanted, among)

    def _stage_at(self, at_s: float) -> int:
        """The last stage that is not later."""
        if at_s > self._now_s:
            self._all_stages()
        return bisect_right(self._stages, at_s, key=lambda stage: stage[0]) - 1

    def _all_stages(self) -> None:
        while self._given < len(self._ends):
            end_s, takes = self._ends[self._given]
            self._given += 1
            steps = math.ceil((end_s - self._now_s) / self._resolution_s)
            at_s = self._now_s + max(1, steps) * self._resolution_s
            if self._stages[-1][0] < at_s:
                self._stages.append((at_s, self._stages[-1][1].copy()))
            self._stages[-1][1].give(takes)
