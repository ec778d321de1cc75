"""Candidates that are kept between jobs: a heap for each number of GPUs that was ever asked for."""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush

from slurm_pal.placement.candidates import Key, Preference

Entry = tuple[Key, int, int]  # key, node, the node's edition when the key was taken


class Ranking:
    """Candidates over nodes whose GPUs come and go.

    `changed(node)` must follow every change of what the preference looks at. A change
    costs next to nothing: a heap enters the nodes that changed when it is asked again,
    each in O(log nodes), however often they changed. Entries of an older edition of a
    node are dropped when they come up.
    """

    def __init__(self, n_nodes: int, preference: Preference) -> None:
        self._preference = preference
        self._usable = [preference.usable(node) for node in range(n_nodes)]
        self._edition = [0] * n_nodes
        self._fitting: dict[int, _Heap] = {}  # count -> nodes with at least so many
        self._exact: dict[int, _Heap] = {}  # count -> nodes with exactly so many
        self._late: list[set[int]] = []  # of each heap
        self._most = max(self._usable, default=0)

    def changed(self, node: int) -> None:
        """Take note that the GPUs of a node, or what is known of them, are other than before."""
        self._edition[node] += 1
        usable = self._usable[node] = self._preference.usable(node)
        self._most = max(self._most, usable)
        for late in self._late:
            late.add(node)

    def best(self, count: int, used: Container[int]) -> int | None:
        heap = self._heap(self._fitting, count, lambda usable: usable >= count)
        return self._first(heap, used)

    def fullest(self, used: Container[int]) -> tuple[int, int] | None:
        for count in range(self._most, 0, -1):
            heap = self._heap(self._exact, count, lambda usable, count=count: usable == count)  # type: ignore[misc]
            node = self._first(heap, used)
            if node is not None:
                return node, count
        return None

    def _heap(self, heaps: dict[int, _Heap], count: int, fits: Callable[[int], bool]) -> list[Entry]:
        """The heap for so many GPUs, with the nodes that changed since it was last asked."""
        key, edition, usable = self._preference.key, self._edition, self._usable
        heap = heaps.get(count)
        if heap is None:
            heap = heaps[count] = _Heap()
            heap.late.update(range(len(usable)))
            self._late.append(heap.late)
        for node in heap.late:
            if fits(usable[node]):
                heappush(heap.entries, (key(node, count), node, edition[node]))
        heap.late.clear()
        if len(heap.entries) > 4 * len(usable) + 64:  # mostly stale
            heap.entries[:] = [entry for entry in heap.entries if entry[2] == edition[entry[1]]]
            heapify(heap.entries)
        return heap.entries

    def _first(self, heap: list[Entry], used: Container[int]) -> int | None:
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


class _Heap:
    """Entries in heap order, and the nodes whose newest entry is not among them yet."""

    __slots__ = ("entries", "late")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.late: set[int] = set()
