# SPDX-License-Identifier: MIT
"""Streams of a GPU without the GPU: work is queued, and done in any order that waiting allows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple


class _Entry(NamedTuple):
    number: int  # of this work, or of the work that is waited for
    action: Callable[[], object] | None  # None: wait


def _signal() -> None:
    """No work: a place in a stream that others wait for."""


class Streams:
    """Queues by number; `seed` decides the order among those that could go on."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._queues: list[list[_Entry]] = []
        self._places: list[int] = []
        self._rank: list[int] = []
        self._done: set[int] = set()
        self._count = 0

    def new(self) -> int:
        self._queues.append([])
        self._places.append(0)
        self._rank.append(len(self._rank))
        self._draw.shuffle(self._rank)
        return len(self._queues) - 1

    def put(self, stream: int, action: Callable[[], object]) -> int:
        """Queue work; its number."""
        self._count += 1
        self._queues[stream].append(_Entry(self._count, action))
        return self._count

    def wait_for(self, stream: int, number: int) -> None:
        """What the stream gets from now on starts when that work is done."""
        self._queues[stream].append(_Entry(number, None))

    def after(self, later: int, earlier: int) -> None:
        """What `later` gets from now on starts when `earlier` has done what it has."""
        self.wait_for(later, self.put(earlier, _signal))

    def first_work(self) -> set[int]:
        """The streams that get to do work before any other stream has done some."""
        found: set[int] = set()
        passed = set(self._done)
        moving = True
        places = list(self._places)
        while moving:
            moving = False
            for stream in self._unfinished():
                queue = self._queues[stream]
                while places[stream] < len(queue) and stream not in found:
                    entry = queue[places[stream]]
                    if entry.action is not None and entry.action is not _signal:
                        found.add(stream)
                        break
                    if entry.action is None and entry.number not in passed:
                        break
                    passed.add(entry.number)
                    places[stream] += 1
                    moving = True
        return found

    def run(self, until: int | None = None) -> None:
        """Do everything, or what it takes until work number `until` is done."""
        while until not in self._done and (left := self._unfinished()):
            ready = [s for s in left if self._next(s).action or self._next(s).number in self._done]
            if self._draw.random() < 0.05:
                self._draw.shuffle(self._rank)
            stream = min(ready, key=self._rank.index)  # one runs far ahead: more telling than a fair draw
            entry = self._next(stream)
            self._queues[stream][self._places[stream]] = _Entry(entry.number, None)  # keeps no array alive
            self._places[stream] += 1
            if entry.action:
                entry.action()
                self._done.add(entry.number)

    def _next(self, stream: int) -> _Entry:
        return self._queues[stream][self._places[stream]]

    def _unfinished(self) -> list[int]:
        return [s for s, queue in enumerate(self._queues) if self._places[s] < len(queue)]
