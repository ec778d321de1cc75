# SPDX-License-Identifier: MIT
"""Idle nodes that a sweep leaves to whoever comes next: where a job may start, and which jobs leave early. Pure."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.profiling.sweep.leaving import EARLY, HeldNode, idle_nodes
from slurm_pal.slurm.states import usable

LONGEST_BARRED_S = 300.0
"""A sweep that has found no room for so long measures one node all the same."""

MANY = 16
_ENDING = frozenset({"IDLE", "COMPLETING"})


def stays(leavings: int, max_leavings: int) -> bool:
    """Whether the next job on a node that was left so often stays until a user's job waits for it."""
    return leavings >= max(1, max_leavings // 2)


class NodeKind(NamedTuple):
    """What decides which jobs a node can take."""

    partitions: frozenset[str]
    gpu_types: frozenset[str]
    gpus: int

    def serves(self, other: NodeKind) -> bool:
        """Whether a node of this kind can take any job that one of the other kind can take."""
        return self.partitions >= other.partitions and self.gpu_types >= other.gpu_types and self.gpus >= other.gpus


class SpareNodes:
    """How many idle nodes users find beside a node, as of one look and what was done since.

    Those count that could take any job that the node could take; its membership of the sweep's own partition
    does not matter. Where Slurm has too few such nodes, all of them are wanted.
    """

    def __init__(self, nodes: Iterable[Node] = (), wanted: int = 0, own_partition: str = "") -> None:
        self._wanted = wanted
        self._kind: dict[str, NodeKind] = {}
        self._usable: dict[NodeKind, int] = {}
        self._idle: dict[NodeKind, int] = {}
        known = list(nodes) if wanted else []
        # A reserved node is idle for some only.
        self._free = set(idle_nodes(n for n in known if not n.states & {"RESERVED", "RES"}))
        self._ending = frozenset(n.name for n in known if n.states == _ENDING)
        for node in known:
            partitions = frozenset(node.partitions)
            theirs = partitions - {own_partition} or partitions
            kind = self._kind[node.name] = NodeKind(theirs, frozenset(node.gpu_types), node.n_gpus)
            self._usable[kind] = self._usable.get(kind, 0) + usable(node.states)
            self._idle[kind] = self._idle.get(kind, 0) + (node.name in self._free)
        self._peers = {kind: [other for other in self._usable if other.serves(kind)] for kind in self._usable}

    def short(self, name: str) -> bool:
        """Whether fewer nodes than wanted are idle beside this one."""
        return self._lacks(name, 0)

    def bars(self, name: str) -> bool:
        """Whether a job of the sweep would leave too few: a node that is in use now may become the next idle one."""
        return self._lacks(name, 0 if name in self._free else 1)

    def bars_all(self, names: Sequence[str]) -> bool:
        """Whether one job on all of these would."""
        if len(names) == 1:
            return self.bars(names[0])
        for name in names:
            rest = self._copy()
            for other in names:
                if other != name:
                    rest.take(other)
            if rest.bars(name):
                return True
        return False

    def _lacks(self, name: str, more: int) -> bool:
        kind = self._kind.get(name)
        if kind is None:
            return False
        others = sum(self._usable[peer] for peer in self._peers[kind]) - 1
        return self._beside(name) < min(self._wanted + more, others)

    def many(self, name: str) -> bool:
        """Whether so many are idle beside this one that users do not take them all in a moment."""
        return name not in self._kind or self._beside(name) >= self._wanted + MANY

    def _beside(self, name: str) -> int:
        return sum(self._idle[peer] for peer in self._peers[self._kind[name]]) - (name in self._free)

    def soon(self, more: Iterable[str]) -> SpareNodes:
        """The same, once the jobs that are ending have ended, and with `more` idle."""
        found = self._copy()
        for name in (*self._ending, *more):
            found.give(name)
        return found

    def _copy(self) -> SpareNodes:
        found = copy.copy(self)
        found._free, found._idle = self._free.copy(), self._idle.copy()
        return found

    def take(self, name: str) -> None:
        """A job of the sweep goes to this node."""
        if name in self._free:
            self._free.discard(name)
            self._idle[self._kind[name]] -= 1

    def give(self, name: str) -> None:
        """This node becomes idle."""
        if name in self._kind and name not in self._free:
            self._free.add(name)
            self._idle[self._kind[name]] += 1


def early_leavers(spare: SpareNodes, held: Sequence[HeldNode], leaving: Collection[str]) -> list[str]:
    """The nodes that are left before anybody waits for them: as few as make up the spare ones.

    `held`: in the order in which they are asked; `leaving`: nodes that this look leaves for users' jobs.
    A node counts as idle here once it is being left early, or its last job is ending.
    """
    soon = spare.soon(one.node for one in held if one.leaves_for == EARLY)
    found = []
    for one in held:
        if not one.leaves_for and not one.stays and one.node not in leaving and soon.short(one.node):
            found.append(one.node)
            soon.give(one.node)
    return found
