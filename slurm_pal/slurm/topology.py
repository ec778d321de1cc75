# SPDX-License-Identifier: MIT
"""The network as Slurm knows it: switches of topology/tree, blocks of topology/block (topology.conf(5)).

Read from `scontrol show topology`, which is the same whether the site has a topology.conf or a topology.yaml, or from
a topology.conf. Standard library only.
"""

from __future__ import annotations

from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.light import Collection, NamedTuple, Sequence
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.releases import Release

TREE, BLOCK, FLAT = "tree", "block", ""


class Switch(NamedTuple):
    """One leaf, block, or switch above them."""

    name: str
    level: int  # 0: a leaf or a block
    nodes: tuple[str, ...]


class Topology(NamedTuple):
    """All of it; without switches every node is as near as any other."""

    kind: str = FLAT
    switches: tuple[Switch, ...] = ()
    sizes: tuple[int, ...] = ()  # BlockSizes: nodes that Slurm plans with in a block, and in blocks together
    release: Release = (0, 0)  # of Slurm, where there are blocks; (0, 0): not known

    @property
    def leaves(self) -> tuple[Switch, ...]:
        """The lowest level."""
        return tuple(switch for switch in self.switches if switch.level == 0)

    def leaf_of(self) -> dict[str, str]:
        """Node -> its leaf or block."""
        return {node: switch.name for switch in self.leaves for node in switch.nodes}

    def level(self, nodes: Collection[str]) -> int | None:
        """How far apart nodes are: 0 one node, 1 one leaf or block (or a flat network), 2 a switch of level 1, ...

        None where no switch or block holds them all.
        """
        apart = set(nodes)
        if len(apart) < 2 or not self.switches:
            return min(1, max(0, len(apart) - 1))
        first = next(iter(apart))
        holding = (one for one in self.switches if first in one.nodes and apart.issubset(one.nodes))
        return min((1 + switch.level for switch in holding), default=None)

    def span(self, nodes: Collection[str]) -> int:
        """The level of a job's nodes: as `level`, and above all switches where none holds them all."""
        level = self.level(nodes)
        return 2 + max(switch.level for switch in self.switches) if level is None else level


def parse(text: str) -> Topology:
    """Lines of `scontrol show topology`, which names the nodes of each switch."""
    found: list[Switch] = []
    sizes: set[int] = set()
    kind = FLAT
    for line in text.splitlines():
        if "Name=" not in line and "AggregatedBlock=" not in line:
            continue
        pairs = dict(word.partition("=")[::2] for word in line.split())
        nodes = tuple(expand(pairs.get("Nodes", "")))
        if "SwitchName" in pairs and nodes:
            kind = TREE
            found.append(Switch(pairs["SwitchName"], digits(pairs.get("Level", "")) or 0, nodes))
        elif ("BlockName" in pairs or "AggregatedBlock" in pairs) and nodes:
            kind = BLOCK
            above = "AggregatedBlock" in pairs
            name = pairs.get("BlockName") or pairs["AggregatedBlock"]
            found.append(Switch(name, 1 if above else 0, nodes))
            sizes.add(digits(pairs.get("BlockSize", "")) or len(nodes))
    return Topology(kind, tuple(found), tuple(sorted(sizes)))


def of_conf(text: str, nodes: Sequence[str]) -> Topology:
    """A topology.conf for these nodes. Raises UsageError, with the line that is wrong."""
    below: dict[str, tuple[int, tuple[str, ...]]] = {}
    kinds: set[str] = set()
    sizes: list[int] = []
    known = set(nodes)
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        pairs = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        if "blocksizes" in pairs:
            sizes = [digits(size) or 0 for size in pairs["blocksizes"].split(",")]
            if not all(sizes):
                raise UsageError(f"line {number}: {line.strip()!r:.80} is not BlockSizes= and numbers of nodes")
            continue
        kind = TREE if "switchname" in pairs else BLOCK if "blockname" in pairs else ""
        name = pairs.get("switchname") or pairs.get("blockname", "")
        if not kind or not name or not (pairs.get("nodes") or pairs.get("switches")):
            raise UsageError(f"line {number}: {line.strip()!r:.80} is not SwitchName=... or BlockName=... with Nodes=")
        kinds.add(kind)
        if name in below:
            raise UsageError(f"line {number}: {name} is there twice")
        if "switches" in pairs:
            parts = expand(pairs["switches"])
            missing = [part for part in parts if part not in below]
            if missing:
                raise UsageError(f"line {number}: {missing[0]} is not a switch of an earlier line")
            level = 1 + max(below[part][0] for part in parts)
            below[name] = level, tuple(node for part in parts for node in below[part][1])
        else:
            inside = tuple(expand(pairs["nodes"]))
            foreign = [node for node in inside if node not in known]
            if foreign:
                raise UsageError(f"line {number}: {fold(foreign)} is no node of the lab")
            below[name] = 0, inside
    if len(kinds) != 1:
        raise UsageError("it needs lines of one kind: SwitchName=... (a tree) or BlockName=... (blocks)")
    return Topology(kinds.pop(), tuple(Switch(name, *row) for name, row in below.items()), tuple(sorted(sizes)))
