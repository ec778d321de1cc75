# SPDX-License-Identifier: MIT
"""All-reduce in a ring: who sends which chunk to whom, and what waits for what.

The ring algorithm (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009): every device's
array is cut into n chunks; in n - 1 steps each device adds what its left neighbour sends
(reduce-scatter), in n - 1 more the finished chunks go round (all-gather). Every link carries
one chunk per step: 2 (n - 1) / n times the array in all, which is the "bus" traffic by which
collectives over different numbers of devices compare.

Each device sends in one stream and receives in another: with one for both, the devices would
send one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from slurm_pal.profiling.node.in_flight import Clock

Foreign: TypeAlias = Any
"""Arrays and streams of the library that moves the data."""


class Transfer(NamedTuple):
    """One chunk from one device to its right neighbour."""

    source: int
    target: int
    chunk: int
    add: bool  # the target adds it to its own; False: it is finished and kept as it is
    first: bool  # the source sends its own input; False: what it has summed or received


def steps(n: int) -> tuple[tuple[Transfer, ...], ...]:
    """The 2 (n - 1) steps over `n` >= 2 devices; the moves of one step go at the same time."""
    reduce = (
        tuple(Transfer(i, (i + 1) % n, (i - step) % n, True, step == 0) for i in range(n)) for step in range(n - 1)
    )
    gather = (
        tuple(Transfer(i, (i + 1) % n, (i + 1 - step) % n, False, False) for i in range(n)) for step in range(n - 1)
    )
    return (*reduce, *gather)


def link_bytes(chunk_bytes: int, n: int) -> float:
    """Bytes that pass over each link in one all-reduce of chunks of this many bytes."""
    return float(2 * (n - 1) * chunk_bytes)


class Member(NamedTuple):
    """One device of the ring. Arrays are (n, items), `stage` (items,)."""

    input: Foreign
    sum: Foreign  # beside the input, which stays as it is: sums of sums would overflow in time
    stage: Foreign
    send: Foreign  # streams
    receive: Foreign


class Lanes(Protocol):
    """Streams of a library: everything is only queued."""

    @property
    def main(self) -> Foreign:
        """The first device's own stream: inputs are made in it, and time is taken there."""
        ...

    def member(self, first: Foreign, device: Foreign) -> Member:
        """A device of the ring, its input a copy of the array `first`."""
        ...

    def after(self, later: Foreign, earlier: Foreign) -> None:
        """What `later` gets from now on starts when `earlier` has done what it has so far."""
        ...

    def copy(self, target: Foreign, source: Foreign, send: Foreign, receive: Foreign) -> None:
        """Copy in `send`, after what `receive` has so far and before what it gets from now on."""
        ...

    def add(self, a: Foreign, b: Foreign, out: Foreign, lane: Foreign) -> None:
        """out = a + b in `lane`."""
        ...


class AllReduce:
    """Afterwards every member's `sum` is the sum of all inputs. Also a `Clock`, with marks after all streams."""

    def __init__(self, members: Sequence[Member], lanes: Lanes, clock: Clock[Foreign]) -> None:
        self.members = members
        self._lanes = lanes
        self._clock = clock  # of the main stream
        self._steps = steps(len(members))
        self._streams = [stream for member in members for stream in (member.send, member.receive)]
        for stream in self._streams:
            lanes.after(stream, lanes.main)

    def launch(self) -> None:
        """Queue one all-reduce."""
        for member in self.members:
            self._lanes.after(member.receive, member.send)  # a sum may still be on its way out
        for moves in self._steps:
            for member in self.members:
                self._lanes.after(member.send, member.receive)  # what is sent now came in the step before
            for move in moves:
                self._move(move, self.members[move.source], self.members[move.target])

    def _move(self, move: Transfer, source: Member, target: Member) -> None:
        chunk = (source.input if move.first else source.sum)[move.chunk]
        goal = target.sum[move.chunk]
        self._lanes.copy(target.stage if move.add else goal, chunk, source.send, target.receive)
        if move.add:
            self._lanes.add(target.input[move.chunk], target.stage, goal, target.receive)

    def mark(self) -> Foreign:
        for stream in self._streams:
            self._lanes.after(self._lanes.main, stream)
        return self._clock.mark()

    def wait(self, mark: Foreign) -> None:
        self._clock.wait(mark)

    def elapsed_s(self, start: Foreign, end: Foreign) -> float:
        return self._clock.elapsed_s(start, end)
