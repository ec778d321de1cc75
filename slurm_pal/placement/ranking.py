# SPDX-License-Identifier: MIT
"""Candidates that are kept between jobs: a heap for each number of GPUs that was ever asked for."""

from __future__ import annotations

from collections.abc import Container
from heapq import heappop, heappush

from slurm_pal.placement.candidates import Key, Preference

Entry = tuple[Key, int, int]
"""Key, node, and the node's edition when the key was taken: void once the node has a newer one."""


class Ranking:
    """Candidates over nodes whose GPUs come and go.

    `changed(node)` must follow every change of what the preference looks at. A change
    itself costs nothing: nodes are looked at again when something is asked, once however
    often they changed, and are entered into the heap that was asked, in O(log nodes).
    """

    def __init__(self, n_nodes: int, preference: Preference) -> None:
        self._preference = preference
        self.usable, self.key = preference
        self._usable = [0] * n_nodes
        self._edition = [0] * n_nodes
        self._nodes_with: list[int] = [n_nodes]  # by number of usable GPUs: how many nodes have it
        self._late = set(range(n_nodes))  # changed since something was asked
        self._log: list[int] = []  # nodes in the order of their new editions
        self._fitting: dict[int, _Heap] = {}  # count -> nodes with at least that many
        self._exact: dict[int, _Heap] = {}  # count -> nodes with exactly that many

    def changed(self, node: int) -> None:
        """Take note that the GPUs of a node, or what is known of them, have changed."""
        self._late.add(node)

    def best(self, count: int, used: Container[int]) -> int | None:
        self._catch_up()
        if not any(self._nodes_with[count:]):
            return None
        return self._first(self._fitting, count, used)

    def fullest(self, used: Container[int]) -> tuple[int, int] | None:
        self._catch_up()
        for count in range(len(self._nodes_with) - 1, 0, -1):
            node = self._first(self._exact, count, used) if self._nodes_with[count] else None
            if node is not None:
                return node, count
        return None

    def _catch_up(self) -> None:
        for node in self._late:
            usable = self._preference.usable(node)
            if usable >= len(self._nodes_with):
                self._nodes_with += [0] * (usable + 1 - len(self._nodes_with))
            self._nodes_with[self._usable[node]] -= 1
            self._nodes_with[usable] += 1
            self._usable[node] = usable
            self._edition[node] += 1
            self._log.append(node)
        self._late.clear()
        if len(self._log) > 4 * len(self._usable) + 64:  # most entries are void: start again
            self._log.clear()
            self._fitting.clear()
            self._exact.clear()

    def _first(self, heaps: dict[int, _Heap], count: int, used: Container[int]) -> int | None:
        """The best node for `count` GPUs outside `used`, by the heap for that number."""
        entries = self._up_to_date(heaps, count)
        aside: list[Entry] = []
        found: int | None = None
        while entries:
            _, node, edition = entries[0]
            if edition != self._edition[node]:
                heappop(entries)
            elif node in used:
                aside.append(heappop(entries))
            else:
                found = node
                break
        for entry in aside:
            heappush(entries, entry)
        return found

    def _up_to_date(self, heaps: dict[int, _Heap], count: int) -> list[Entry]:
        key, usable, edition = self._preference.key, self._usable, self._edition
        heap = heaps.get(count)
        if heap is None:
            heap, nodes = _Heap(), set(range(len(usable)))
            heaps[count] = heap
        else:
            nodes = set(self._log[heap.read :])
        heap.read = len(self._log)
        most = len(self._nodes_with) if heaps is self._fitting else count
        for node in nodes:
            if count <= usable[node] <= most:
                heappush(heap.entries, (key(node, count), node, edition[node]))
        return heap.entries


class _Heap:
    """Entries in heap order, and how much of the log they are from."""

    __slots__ = ("entries", "read")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.read = 0
