# SPDX-License-Identifier: MIT
"""EASY backfill: the reservation of a blocked job, and whether another may start before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurm_pal.placement.need import Need
from slurm_pal.placement.occupancy import Slots


class Reservation:
    """The latest moment at which a blocked job can start, if all jobs use their whole time limit.

    `free[node]` counts the GPUs that suit the job; `ends` are the running jobs as (end of
    limit, GPUs), in order of their ends; `suits(node, index)` says whether a GPU counts
    (None: all do). With `whole`, the number of GPUs of each node, only nodes that are
    free altogether count. Without a moment at which it fits (nodes are down, say) `time_s` is infinite.
    """

    def __init__(
        self,
        need: Need,
        free: Sequence[int],
        ends: Iterable[tuple[float, Slots]],
        suits: Callable[[int, int], bool] | None,
        now_s: float,
        not_before_s: float = 0.0,
        whole: Sequence[int] | None = None,
    ) -> None:
        self._free = list(free)
        self._suits, self._whole = suits, whole
        usable = [self._usable(node, have) for node, have in enumerate(self._free)] if whole else self._free
        # With fixed counts it is met when, for each count, enough nodes hold at least that many.
        self._wanted = {count: sum(1 for other in need.counts if other >= count) for count in set(need.counts)}
        self._holding = {count: sum(1 for have in usable if have >= count) for count in self._wanted}
        self._missing = 0 if need.counts else need.total - sum(usable)
        self.time_s = max(now_s, not_before_s)
        for end_s, slots in ends:
            if end_s > self.time_s and self._met():
                break
            self._add(slots, 1)
            self.time_s = max(self.time_s, end_s)
        if not self._met():
            self.time_s = float("inf")

    def allows(self, slots: Slots, end_s: float) -> bool:
        """Whether a job may take these GPUs until `end_s`; if so, they are counted as taken."""
        if end_s <= self.time_s:
            return True
        self._add(slots, -1)
        if self._met():
            return True
        self._add(slots, 1)
        return False

    def release(self, slots: Slots, end_s: float) -> None:
        """Take back what `allows` counted, because another reservation was in the way."""
        if end_s > self.time_s:
            self._add(slots, 1)

    def _met(self) -> bool:
        return self._missing <= 0 and all(self._holding[count] >= most for count, most in self._wanted.items())

    def _add(self, slots: Slots, sign: int) -> None:
        for node, indexes in slots:
            counted = len(indexes) if self._suits is None else sum(1 for index in indexes if self._suits(node, index))
            before = self._usable(node, self._free[node])
            self._free[node] += sign * counted
            after = self._usable(node, self._free[node])
            if not self._wanted:
                self._missing -= after - before
            for count in self._wanted:
                self._holding[count] += (after >= count) - (before >= count)

    def _usable(self, node: int, free: int) -> int:
        return free if self._whole is None or free == self._whole[node] else 0
