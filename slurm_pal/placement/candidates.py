# SPDX-License-Identifier: MIT
"""The nodes a job may go to, in the order of one preference.

A preference says of each node how many GPUs the job may use and how much the rule likes
it; candidates answer which node comes first. `Scan` looks at every node: right for one
job, as in palsub. `Ranking` (ranking.py) keeps the answers between jobs, for the tick and
the simulator. Both give the same answer.
"""

from __future__ import annotations

from slurm_pal.base.light import Callable, Container, NamedTuple, Protocol

Key = tuple[float, ...]


class Preference(NamedTuple):
    """What a rule wants: `usable(node)` leading free GPUs may be used; the least `key(node, count)` is liked best."""

    usable: Callable[[int], int]
    key: Callable[[int, int], Key]


class Candidates(Protocol):
    """Nodes in the order of a preference."""

    def best(self, count: int, used: Container[int]) -> int | None:
        """Of the nodes outside `used` with at least `count` usable GPUs the one liked best for them."""

    def fullest(self, used: Container[int]) -> tuple[int, int] | None:
        """Of the nodes outside `used` with most usable GPUs the one liked best for all of them, and their number."""


class Scan:
    """Candidates by looking at each of `n_nodes` nodes."""

    def __init__(self, n_nodes: int, preference: Preference) -> None:
        self._key = preference.key
        self._usable = [preference.usable(node) for node in range(n_nodes)]
        self._orders: dict[int, list[int] | None] = {}  # count -> nodes, best first, from the second question on

    def best(self, count: int, used: Container[int]) -> int | None:
        if count not in self._orders:  # most jobs ask once
            self._orders[count] = None
            fitting = [node for node, usable in enumerate(self._usable) if usable >= count and node not in used]
            return min(fitting, key=lambda node: self._key(node, count), default=None)
        order = self._orders[count]
        if order is None:
            every = (node for node, usable in enumerate(self._usable) if usable >= count)
            order = self._orders[count] = sorted(every, key=lambda node: self._key(node, count))
        return next((node for node in order if node not in used), None)

    def fullest(self, used: Container[int]) -> tuple[int, int] | None:
        most = max((usable for node, usable in enumerate(self._usable) if node not in used), default=0)
        if most == 0:
            return None
        alike = [node for node, usable in enumerate(self._usable) if usable == most and node not in used]
        return min(alike, key=lambda node: self._key(node, most)), most
