# SPDX-License-Identifier: MIT
"""Which pairs of nodes show what the network costs at each of its levels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.slurm import releases
from slurm_pal.slurm.topology import BLOCK, Topology

Kind = tuple[int, tuple[str, ...]]
"""GPUs of a node and their types: an all-reduce is as slow as its slower half."""


class PairPlan(NamedTuple):
    """The pairs, each as a node of a sweep, and why a level has none."""

    chosen: tuple[ChosenNode, ...]
    skipped: dict[str, str]


def crosses_blocks(network: Topology) -> bool:
    """Whether Slurm gives a job nodes of several blocks by a list: where it takes a segment for each."""
    return network.kind == BLOCK and releases.has(network.release, "segments with node lists")


def choose_pairs(
    idle: Sequence[ChosenNode], network: Topology, per_level: int, have: Mapping[int, int], seconds: float
) -> PairPlan:
    """So many pairs of each level, less those that it has; of as many leaves, and with as many nodes, as there are.

    `idle`: the nodes that may be taken, in the order in which they should be. The two of a pair have as many GPUs of
    the same types, two at least, and a partition in common.
    """
    leaf_of = network.leaf_of() if network.switches else {node.node: "" for node in idle}
    leaves: dict[tuple[str, Kind], list[ChosenNode]] = {}
    for node in idle:
        if node.gpus > 1 and node.node in leaf_of:
            leaves.setdefault((leaf_of[node.node], (node.gpus, node.gpu_types)), []).append(node)
    at = _by_level(leaves, network)
    chosen: list[ChosenNode] = []
    skipped: dict[str, str] = {}
    for level in range(1, 2 + max((switch.level for switch in network.switches), default=0)):
        wanted = per_level - have.get(level, 0)
        if level > 1 and network.kind == BLOCK and not crosses_blocks(network):
            skipped[f"level {level}"] = "this release of Slurm takes no list of nodes of several blocks"
            continue
        found = _pairs(at.get(level, ()), leaves, wanted)
        chosen += [_pair(one, other, level, seconds) for one, other in found]
        if wanted > 0 and not found:
            skipped[f"level {level}"] = "no two idle nodes of a kind, of two GPUs or more, are so far apart"
    return PairPlan(tuple(chosen), skipped)


Place = tuple[str, Kind]


def _by_level(leaves: Mapping[Place, Sequence[ChosenNode]], network: Topology) -> dict[int, list[tuple[Place, Place]]]:
    """Level -> pairs of leaves with nodes of one kind that are so far apart."""
    above = {name: frozenset(k for k, s in enumerate(network.switches) if nodes[0].node in s.nodes)
             for (name, _), nodes in leaves.items()}  # fmt: skip
    found: dict[int, list[tuple[Place, Place]]] = {}
    for one, other in combinations_with_replacement(leaves, 2):
        if one[1] != other[1]:
            continue
        if one == other or not network.switches:
            found.setdefault(1, []).append((one, other))
        elif common := above[one[0]] & above[other[0]]:
            level = 1 + min(network.switches[k].level for k in common)
            found.setdefault(level, []).append((one, other))
    return found


def _pairs(
    places: Sequence[tuple[Place, Place]], leaves: Mapping[Place, Sequence[ChosenNode]], wanted: int
) -> list[tuple[ChosenNode, ChosenNode]]:
    """The leaves, and in them the nodes, that were used least come next."""
    used: dict[str, int] = {}  # node -> pairs
    turns: dict[Place, int] = {}
    found: list[tuple[ChosenNode, ChosenNode]] = []
    left = list(places)
    while left and len(found) < wanted:
        best = min(left, key=lambda p: turns.get(p[0], 0) + turns.get(p[1], 0))
        pair = _nodes(leaves[best[0]], leaves[best[1]], used, found)
        if pair is None:
            left.remove(best)
            continue
        found.append(pair)
        for place in best:
            turns[place] = turns.get(place, 0) + 1
        for node in pair:
            used[node.node] = used.get(node.node, 0) + 1
    return found


def _nodes(
    some: Sequence[ChosenNode],
    others: Sequence[ChosenNode],
    used: Mapping[str, int],
    known: Iterable[tuple[ChosenNode, ChosenNode]],
) -> tuple[ChosenNode, ChosenNode] | None:
    """Two nodes, used least before, that are not a pair yet."""
    taken = {frozenset((a.node, b.node)) for a, b in known}
    for one in sorted(some, key=lambda node: used.get(node.node, 0)):
        for other in sorted(others, key=lambda node: used.get(node.node, 0)):
            new = one.node != other.node and frozenset((one.node, other.node)) not in taken
            if new and set(one.partitions) & set(other.partitions):
                return one, other
    return None


def _pair(one: ChosenNode, other: ChosenNode, level: int, seconds: float) -> ChosenNode:
    first, second = sorted((one, other), key=lambda node: node.node)
    partitions = tuple(name for name in one.partitions if name in other.partitions)
    name, why = f"{first.node},{second.node}", f"level {level}"
    return ChosenNode(name, 2 * one.gpus, 0.0, seconds, why, partitions, one.gpu_types)
