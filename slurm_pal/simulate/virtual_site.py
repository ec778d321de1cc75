# SPDX-License-Identifier: MIT
"""This site as a virtual cluster: Slurm's nodes and partitions, and the published scores of their GPUs.

The virtual cluster knows no GPU types. So each (partition, type) is a partition of its own
here, and a node with GPUs of several types is one node per type. Notes say what is
left out or assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Gpu, Node, Partition
from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.simulate.job_room import NodeSize, share
from slurm_pal.simulate.virtual import VirtualCluster
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable

Scores = Callable[[str, str, int], float | None]
"""(sensitivity class, node, GPU index) -> slowdown; None where it was never measured."""

NOT_THERE = "FUTURE"
"""The state of a node that slurm.conf only promises: no job can have run on it."""

POWERED_OFF = frozenset({"POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"})
"""States of a node that Slurm switches on when a job needs it."""


class NodePart(NamedTuple):
    """The GPUs of one type in one node: a node of the virtual cluster."""

    node: str
    gpu_type: str  # "" where the GRES has no type
    indexes: tuple[int, ...]  # Slurm's


class VirtualSite(NamedTuple):
    """A site's GPU nodes as the simulator takes them."""

    cluster: VirtualCluster
    parts: tuple[NodePart, ...]  # one for each node of `cluster`
    limits_s: Mapping[str, float | None]  # Slurm partition -> limit of a job that has none of its own
    default: str  # where jobs go whose partition is gone
    notes: tuple[str, ...]  # one sentence each
    rules: Mapping[str, Partition] = {}  # Slurm partition -> what slurm.conf says of it

    @property
    def typed(self) -> bool:
        """Whether any GPU has a type."""
        return any(part.gpu_type for part in self.parts)

    def sizes(self, place: str) -> list[int]:
        """GPUs of each node of a virtual partition; "" is the whole cluster."""
        nodes = self.cluster.partitions[place] if place else range(len(self.parts))
        return [len(self.parts[node].indexes) for node in nodes]

    def nodes(self, place: str) -> list[tuple[int, NodeSize]]:
        """(GPUs, CPUs and memory) of each node of a virtual partition."""
        rows = self.cluster.partitions[place] if place else range(len(self.parts))
        return [(len(self.parts[row].indexes), self.cluster.sizes[row]) for row in rows]

    def gpus(self) -> list[Gpu]:
        """The physical GPUs, in the order of the virtual cluster's."""
        return [(part.node, index) for part in self.parts for index in part.indexes]


def site_of(overview: Overview, faulty: Collection[Gpu] = ()) -> VirtualSite:
    """The GPU nodes of a site, in Slurm's order, without `faulty` GPUs: no job does well on these, whoever sends it.

    Nodes that are down, drained or switched off, and partitions that are down, count by their
    configuration: over the weeks that are replayed they mostly worked, and a smaller cluster
    would queue more than the real one did.

    Raises UsageError when no node has GPUs and a partition.
    """
    served = {name for partition in overview.partitions for name in partition.nodes}
    nodes = [node for node in overview.nodes if node.n_gpus and node.name in served and NOT_THERE not in node.states]
    if not nodes:
        raise UsageError(
            f"none of Slurm's {len(overview.nodes)} nodes has GPUs and a partition: nothing to simulate; "
            "scontrol show node shows what Slurm knows (Gres=)"
        )
    parts = [part for node in nodes for part in _parts(node, faulty)]
    if not parts:
        raise UsageError("every GPU was seen to fail: nothing to simulate; pal gpus shows what to do about each")
    places = _places(overview.partitions, parts)
    sizes = _sizes(nodes, parts)
    cluster = VirtualCluster(tuple(_names(parts)), tuple(len(part.indexes) for part in parts), places, sizes=sizes)
    notes = [*_left_out(overview, served), *_kept(overview, nodes), *_split(nodes)]
    lost = sum((node.name, k) in faulty for node in nodes for k in range(node.n_gpus))
    notes += [f"Left out: {lost} GPU{'s' * (lost > 1)} that were seen to fail (pal gpus -f)."] if lost else []
    return VirtualSite(
        cluster, tuple(parts), _limits(overview.partitions), _default(overview, parts, places), tuple(notes),
        {partition.name: partition for partition in overview.partitions},
    )  # fmt: skip


class Scored(NamedTuple):
    """What is known of a site's GPUs."""

    slowdown: dict[str, tuple[float, ...]]  # class -> one for each of `VirtualSite.gpus`; 1.0 where there is no score
    unscored: int  # GPUs that lack a score


def scored(site: VirtualSite, scores: Scores) -> Scored:
    """The slowdowns of a site's GPUs; a GPU without a score counts as a median one."""
    gpus = site.gpus()
    known = {c: [scores(c, node, index) for node, index in gpus] for c in SENSITIVITY_CLASSES}
    lacking = sum(any(column[k] is None for column in known.values()) for k in range(len(gpus)))
    return Scored({c: tuple(1.0 if x is None else x for x in column) for c, column in known.items()}, lacking)


def place_name(partition: str, gpu_type: str = "") -> str:
    """The virtual partition for jobs of a Slurm partition that want GPUs of a type ("": any)."""
    return f"{partition}:{gpu_type.casefold()}" if gpu_type else partition


def _parts(node: Node, faulty: Collection[Gpu]) -> list[NodePart]:
    sound = {k: kind for k, kind in enumerate(node.gpu_types) if (node.name, k) not in faulty}
    return [
        NodePart(node.name, kind, tuple(k for k, other in sound.items() if other == kind))
        for kind in dict.fromkeys(sound.values())
    ]


def _sizes(nodes: Sequence[Node], parts: Sequence[NodePart]) -> tuple[NodeSize, ...]:
    """CPUs and memory, in proportion to the GPUs where a node has several types or failed ones."""
    by_name = {node.name: node for node in nodes}
    found = []
    for part in parts:
        node = by_name[part.node]
        whole = NodeSize(node.cpus, node.memory_mib, max(1, node.threads), node.weight)
        kinds = sum(other.node == part.node for other in parts) if len(set(node.gpu_types)) > 1 else 1
        found.append(whole if kinds == 1 else share(whole, len(part.indexes), node.n_gpus))
    return tuple(found)


def _names(parts: Sequence[NodePart]) -> list[str]:
    """The node's own name, and the type behind it where the node has several."""
    count = Counter(part.node for part in parts)
    return [part.node if count[part.node] == 1 else f"{part.node}:{part.gpu_type or 'gpu'}" for part in parts]


def _places(partitions: Iterable[Partition], parts: Sequence[NodePart]) -> dict[str, tuple[int, ...]]:
    """Virtual partitions: positions in `parts`. Those without GPUs are not there."""
    found: dict[str, list[int]] = {}
    for partition in partitions:
        names = frozenset(partition.nodes)
        for position, part in enumerate(parts):
            if part.node in names:
                for name in dict.fromkeys((partition.name, place_name(partition.name, part.gpu_type))):
                    found.setdefault(name, []).append(position)
    # Jobs whose history names no partition may use any node; those that want a type, any node with it.
    for position, part in enumerate(parts):
        if part.gpu_type:
            found.setdefault(place_name("", part.gpu_type), []).append(position)
    return {name: tuple(positions) for name, positions in found.items()}


def _limits(partitions: Iterable[Partition]) -> dict[str, float | None]:
    return {p.name: p.max_time_s if p.default_time_s is None else p.default_time_s for p in partitions}


def _default(overview: Overview, parts: Sequence[NodePart], places: Mapping[str, Sequence[int]]) -> str:
    """Slurm's default partition where it has GPUs, else the partition with most of them."""
    with_gpus = [partition for partition in overview.partitions if partition.name in places]

    def gpus(partition: Partition) -> int:
        return sum(len(parts[position].indexes) for position in places[partition.name])

    return max(with_gpus, key=lambda partition: (partition.default, gpus(partition))).name


# -- what a reader must know --------------------------------------------------------------


def _left_out(overview: Overview, served: set[str]) -> list[str]:
    plain = [node for node in overview.nodes if not node.n_gpus]
    future = [node for node in overview.nodes if node.n_gpus and NOT_THERE in node.states]
    orphans = [
        node for node in overview.nodes if node.n_gpus and NOT_THERE not in node.states and node.name not in served
    ]
    reasons = ((plain, "without GPUs"), (future, "in state FUTURE"), (orphans, "in no partition"))
    said = [f"{_nodes(nodes)} {why}" for nodes, why in reasons if nodes]
    return [f"Not simulated: {', '.join(said)}."] if said else []


def _kept(overview: Overview, nodes: Sequence[Node]) -> list[str]:
    """Nodes and partitions that are simulated although they start no job now."""
    out = [node for node in nodes if not usable(node.states - POWERED_OFF)]
    said = []
    if out:
        gpus = sum(node.n_gpus for node in out)
        names = fold([node.name for node in out])
        said.append(
            f"{_nodes(out)} with {gpus} GPUs ({names}) start no job now (down, drained); they count as working."
        )
    closed = [partition.name for partition in overview.partitions if not partition.up]
    if closed:
        said.append(f"Partitions that are not up count as up: {', '.join(closed)}.")
    return said


def _split(nodes: Sequence[Node]) -> list[str]:
    mixed = [node for node in nodes if len(set(node.gpu_types)) > 1]
    names = fold([node.name for node in mixed])
    return [f"Each GPU type counts as a node of its own on {_nodes(mixed)} ({names})."] if mixed else []


def _nodes(nodes: Sequence[Node]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
