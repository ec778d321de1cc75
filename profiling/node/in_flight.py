# SPDX-License-Identifier: MIT
"""Two blocks in flight: the device starts the next block while the host reads the time of the last.

Launches are asynchronous on a GPU. Waiting for a block before the next one is queued would
leave the device idle for the time of a round trip, cool it and let the clock rise: not
what a job does. So one block more than was asked for is always queued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

Mark = TypeVar("Mark")


class Clock(Protocol[Mark]):
    """Time stamps that the device takes in the order of its work."""

    def mark(self) -> Mark:
        """Queue a time stamp after all work queued so far."""
        ...

    def wait(self, mark: Mark) -> None:
        """Block the host until the device has passed `mark`."""
        ...

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Device time between two passed marks, s."""
        ...


class _Block(NamedTuple, Generic[Mark]):
    n: int  # launches
    start: Mark
    end: Mark


class InFlight(Generic[Mark]):
    """Runs blocks of `launch()` and gives their device time, one block behind what is queued."""

    def __init__(self, launch: Callable[[], object], clock: Clock[Mark]) -> None:
        self._launch = launch
        self._clock = clock
        self._queued: _Block[Mark] | None = None

    def run_block(self, n: int) -> float:
        """Seconds of device time of a block of `n` launches; raises what launching raises.

        A block of another size that is still queued is waited for and discarded.
        """
        if self._queued is not None and self._queued.n != n:
            self.drain()
        block = self._queued or self._enqueue(n)
        self._queued = self._enqueue(n)
        self._clock.wait(block.end)
        return self._clock.elapsed_s(block.start, block.end)

    def drain(self) -> None:
        """Wait until nothing is queued."""
        block, self._queued = self._queued, None
        if block is not None:
            self._clock.wait(block.end)

    def _enqueue(self, n: int) -> _Block[Mark]:
        start = self._clock.mark()
        for _ in range(n):
            self._launch()
        return _Block(n, start, self._clock.mark())
