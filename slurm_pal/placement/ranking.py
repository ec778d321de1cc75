"""Candidates that are kept between jobs: a heap for each number of GPUs that was ever asked for."""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush

from slurm_pal.placement.candidates import Key, Preference

Entry = tuple[Key, int, int]  # key, node, the node's edition when the key was taken


class Ranking:
    """Candidates over nodes whose GPUs come and go.

    `changed(node)` must follow every change of what the preference looks at. An answer
    takes O(log nodes), a change O(log nodes) for each number of GPUs asked for so far.
    Entries of an older edition of a node are dropped when they come up.
    """

    def __init__(self, n_nodes: int, preference: Preference) -> None:
        self._preference = preference
        self._usable = [preference.usable(node) for node in range(n_nodes)]
        self._edition = [0] * n_nodes
        self._fitting: dict[int, list[Entry]] = {}  # count -> nodes with at least so many
        self._exact: dict[int, list[Entry]] = {}  # count -> nodes with exactly so many
        self._most = max(self._usable, default=0)

    def changed(self, node: int) -> None:
        """Take note that the GPUs of a node, or what is known of them, are other than before."""
        self._edition[node] += 1
        usable = self._usable[node] = self._preference.usable(node)
        self._most = max(self._most, usable)
        for count, heap in self._fitting.items():
            if count <= usable:
                self._push(heap, node, count)
        if usable in self._exact:
            self._push(self._exact[usable], node, usable)

    def best(self, count: int, used: Container[int]) -> int | None:
        heap = self._heap(self._fitting, count, lambda usable: usable >= count)
        return self._first(heap, count, used)

    def fullest(self, used: Container[int]) -> tuple[int, int] | None:
        for count in range(self._most, 0, -1):
            heap = self._heap(self._exact, count, lambda usable, count=count: usable == count)  # type: ignore[misc]
            node = self._first(heap, count, used)
            if node is not None:
                return node, count
        return None

    def _push(self, heap: list[Entry], node: int, count: int) -> None:
        heappush(heap, (self._preference.key(node, count), node, self._edition[node]))
        if len(heap) > 4 * len(self._usable) + 64:  # mostly stale
            heap[:] = [entry for entry in heap if entry[2] == self._edition[entry[1]]]
            heapify(heap)

    def _heap(self, heaps: dict[int, list[Entry]], count: int, fits: Callable[[int], bool]) -> list[Entry]:
        heap = heaps.get(count)
        if heap is None:
            key, edition = self._preference.key, self._edition
            heap = [(key(node, count), node, edition[node]) for node, usable in enumerate(self._usable) if fits(usable)]
            heapify(heap)
            heaps[count] = heap
        return heap

    def _first(self, heap: list[Entry], count: int, used: Container[int]) -> int | None:
        aside: list[Entry] = []
        found: int | None = None
        while heap:
            entry = heap[0]
            if entry[2] != self._edition[entry[1]]:
                heappop(heap)
            elif entry[1] in used:
                aside.append(heappop(heap))
            else:
                found = entry[1]
                break
        for entry in aside:
            heappush(heap, entry)
        return found
