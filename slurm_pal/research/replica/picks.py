# SPDX-License-Identifier: MIT
"""The placement rules of the published simulator: which free GPUs one job is given (pal.md 3).

Each is `pick(free, n, generator)`: n GPUs as pieces of nodes, or None when the class that
`free` follows cannot have n. Nothing is taken yet; only `shuffled` draws, and not when it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random

from slurm_pal.research.replica.free import Free, Piece, bits, lowest

Pick = Callable[[Free, int, Random], list[Piece] | None]


def pm_first(free: Free, n: int, generator: Random) -> list[Piece] | None:
    """Best GPUs first; of equal ones those of nodes whose number of them is nearest to n, then lowest id."""
    table, sets = free.table, free.sets
    pieces: list[Piece] = []
    missing = n
    rings = _rings(n, table.size)
    before = table.size * table.n_levels - 1  # having(0, 1) is the next
    for at_rank in table.at_rank:
        for counts in rings:
            found = 0
            for c in counts:
                found |= sets[before + c]
            missing -= _gather(free, at_rank, found, missing, pieces)
            if not missing:
                return pieces
        before += table.size
    return None


def pal(free: Free, n: int, generator: Random) -> list[Piece] | None:
    """Walk the (level, locality) products upwards; one GPU, or more than a node holds: PM-First.

    Among the entries of one locality the walk only rises, so the first level at which one node has n good
    enough GPUs and the first at which the cluster has them decide; the smaller product wins.
    """
    table, sets = free.table, free.sets
    if n == 1 or n > table.size:
        return pm_first(free, n, generator)
    nth = (n - 1) * table.n_levels
    for rank in range(table.n_levels):
        if sets[nth + rank]:
            if _across_first(free, n, table.within_turn[rank]):
                break
            return [_fullest(free, n, rank)]
    return pm_first(free, n, generator)


def _across_first(free: Free, n: int, turn: int) -> bool:
    """Whether the walk finds n good enough GPUs somewhere in the cluster before entry `turn`."""
    table, size, found = free.table, free.table.size, 0
    for rank, own in enumerate(table.across_turn):
        if own > turn:
            return False
        first = (table.n_levels + rank) * size
        found += sum(c * nodes.bit_count() for c, nodes in enumerate(free.sets[first : first + size], 1))
        if found >= n:
            return True
    return False


def _fullest(free: Free, n: int, rank: int) -> Piece:
    """Worst fit, as published: of the nodes whose n-th best GPU has `rank`, the one with most GPUs up to it."""
    table, sets = free.table, free.sets
    nodes = sets[(n - 1) * table.n_levels + rank]
    for k in range(n, table.size):
        more = nodes & sets[k * table.n_levels + rank]
        if not more:
            break
        nodes = more
    node = (nodes & -nodes).bit_length() - 1
    return node, lowest(free.node[node] & table.up_to[rank][node], n)


def packed(free: Free, n: int, generator: Random) -> list[Piece] | None:
    """Best fit on one node; else the nodes with most free GPUs. Needs a table with one level."""
    size, sets = free.table.size, free.sets
    usable = free.table.at_rank[0]
    for c in range(n, size + 1):
        nodes = sets[size + c - 1]
        if nodes:
            node = (nodes & -nodes).bit_length() - 1
            return [(node, lowest(free.node[node] & usable[node], n))]
    pieces: list[Piece] = []
    missing = n
    for c in range(size, 0, -1):
        missing -= _gather(free, usable, sets[size + c - 1], missing, pieces)
        if not missing:
            return pieces
    return None


def shuffled(free: Free, n: int, generator: Random) -> list[Piece] | None:
    """n of the free GPUs as `random.sample` picks them from their ascending ids. Needs a table with one level."""
    size, usable = free.table.size, free.table.at_rank[0]
    ids = [node * size + i for node, mask in enumerate(free.node) for i in bits(mask & usable[node])]
    if n > len(ids):
        return None
    return [(g // size, 1 << g % size) for g in generator.sample(ids, n)]


def _gather(free: Free, wanted: list[int], nodes: int, n: int, pieces: list[Piece]) -> int:
    """Add the wanted free GPUs of `nodes` to the pieces, by ascending id up to n; how many that were."""
    left = n
    while nodes and left:
        low = nodes & -nodes
        nodes ^= low
        node = low.bit_length() - 1
        mask = free.node[node] & wanted[node]
        count = mask.bit_count()
        if count > left:
            mask, count = lowest(mask, left), left
        pieces.append((node, mask))
        left -= count
    return n - left


@cache
def _rings(n: int, size: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of like GPUs that a node may have, 1..size, by rising distance from n."""
    distances = sorted({abs(c - n) for c in range(1, size + 1)})
    return tuple(tuple(c for c in range(1, size + 1) if abs(c - n) == d) for d in distances)
