# SPDX-License-Identifier: MIT
"""The free GPUs of a cluster, kept so that the published picks read off their answer.

Nodes are marked in integers used as bit sets, one set per question that a pick asks:
"which nodes have exactly c free GPUs of this level", "on which nodes does the k-th best
free GPU have this level". Taking GPUs moves a node between few sets, and a pick looks at
a few sets instead of at all GPUs. Levels are ranks 0, 1, ... of rising binned slowdowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from slurm_pal.placement.lxv import lxv

Piece = tuple[int, int]
"""GPUs of one node: (node, bit set of positions within it)."""


@cache
def bits(mask: int) -> tuple[int, ...]:
    """Positions of the set bits, ascending, for the mask of one node."""
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of a mask that has at least as many."""
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest


class _OfRanks(dict[tuple[int, ...], tuple[int, ...]]):
    """Ascending ranks of the free GPUs of a node -> the numbers of the sets that it is in; filled on demand."""

    def __init__(self, size: int, n_levels: int) -> None:
        self.size, self.n_levels = size, n_levels

    def __missing__(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        size, n_levels = self.size, self.n_levels
        kth = [k * n_levels + rank for k, rank in enumerate(ranks)]
        having = [(n_levels + rank) * size + ranks.count(rank) - 1 for rank in dict.fromkeys(ranks)]
        found = self[ranks] = (*kth, *having)
        return found


class _Marks(dict[int, tuple[int, ...]]):
    """For one kind of node: the same by the bit set of its free GPUs."""

    def __init__(self, ranks: Sequence[int], of_ranks: _OfRanks) -> None:
        self.own = [(1 << i, rank) for i, rank in enumerate(ranks) if rank >= 0]
        self.of_ranks = of_ranks

    def __missing__(self, free: int) -> tuple[int, ...]:
        found = self[free] = self.of_ranks[tuple(sorted([rank for bit, rank in self.own if free & bit]))]
        return found


class RankTable:
    """What one class thinks of each GPU: static, shared by all rounds.

    `levels` (n_gpus,) are binned slowdowns, None for a GPU barred from the class.
    The sets of a `Free` that follows this table are numbered. kth(k, rank), number
    k * n_levels + rank, holds the nodes whose k-th best free GPU (from 0) has that rank;
    having(rank, c), number (n_levels + rank) * size + c - 1, those with exactly c >= 1 free
    GPUs of that rank.
    """

    def __init__(self, levels: Sequence[float | None], gpus_per_node: int, locality_penalty: float) -> None:
        known = [level for level in levels if level is not None]
        ascending = sorted(set(known))
        rank_of: dict[float | None, int] = {level: rank for rank, level in enumerate(ascending)} | {None: -1}
        self.size = gpus_per_node
        self.n_levels = len(ascending)
        self.usable = len(known)
        self.n_sets = 2 * gpus_per_node * self.n_levels
        ranks = [rank_of[level] for level in levels]
        nodes = [tuple(ranks[g : g + gpus_per_node]) for g in range(0, len(ranks), gpus_per_node)]
        of_ranks = _OfRanks(self.size, self.n_levels)
        kinds = {node: _Marks(node, of_ranks) for node in nodes}
        self.marks = [kinds[node] for node in nodes]
        # at_rank[rank][node] and up_to[rank][node]: bit sets of the node's GPUs of that rank, and of that or less.
        self.at_rank = [[_where(node, rank, rank) for node in nodes] for rank in range(self.n_levels)]
        self.up_to = [[_where(node, 0, rank) for node in nodes] for rank in range(self.n_levels)]
        self.full = self.sets([(1 << gpus_per_node) - 1] * len(nodes))
        walk = [(rank_of[level], within) for level, within, _ in lxv(known, locality_penalty)]
        self.within_turn = [walk.index((rank, True)) for rank in range(self.n_levels)]
        self.across_turn = [walk.index((rank, False)) for rank in range(self.n_levels)]

    def sets(self, free: Sequence[int]) -> list[int]:
        """The sets for the given free GPUs, one bit set per node."""
        sets = [0] * self.n_sets
        mark = 1
        for marks, mask in zip(self.marks, free, strict=True):
            if mask:
                for i in marks[mask]:
                    sets[i] |= mark
            mark <<= 1
        return sets


def _where(ranks: Sequence[int], first: int, last: int) -> int:
    return sum(1 << i for i, rank in enumerate(ranks) if first <= rank <= last)


class Free:
    """The GPUs that nobody holds, as one class at a time sees them."""

    __slots__ = ("left", "node", "sets", "table")

    def __init__(self, table: RankTable) -> None:
        self.node = [(1 << table.size) - 1] * len(table.marks)  # bit set of the free GPUs of each node
        self.left = len(self.node) * table.size
        self.table = table
        self.sets = table.full.copy()

    def follow(self, table: RankTable) -> None:
        """Look at the free GPUs as another class does."""
        self.table = table
        all_free = self.left == len(self.node) * table.size
        self.sets = table.full.copy() if all_free else table.sets(self.node)

    def toggle(self, pieces: Sequence[Piece]) -> None:
        """Take free GPUs, or give back held ones."""
        sets, marks, free = self.sets, self.table.marks, self.node
        for node, mask in pieces:
            before = free[node]
            after = free[node] = before ^ mask
            self.left += after.bit_count() - before.bit_count()
            own, marks_of = 1 << node, marks[node]
            for i in marks_of[before]:
                sets[i] ^= own
            for i in marks_of[after]:
                sets[i] ^= own

    def take(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Hold the GPUs of `pieces`; their ids, ascending."""
        self.toggle(pieces)
        size = self.table.size
        return tuple(sorted([node * size + i for node, mask in pieces for i in bits(mask)]))

    def flip(self, gpus: Sequence[int]) -> None:
        """Take or give back GPUs by id."""
        size = self.table.size
        self.toggle([(g // size, 1 << g % size) for g in gpus])
