# SPDX-License-Identifier: MIT
"""Jobs of several nodes on a network with switches or blocks: as near together as plain Slurm would have them, and
there on the best GPUs. Pure, standard library only.

PAL's walk over locality and variability (SC'24) has two levels of locality, within a node and across nodes. Here the
walk goes on: the fewest leaves (or blocks), of these below the lowest switch, then the lowest variability class that
so few leaves can give, then the leaves of which least is left over.

topology/block gives a job of N nodes one block of the smallest of its BlockSizes that holds N, and there as few of the
next smaller ones as hold N when empty (24.11 and 26.05, measured): a list that is not so is refused.
"""

from __future__ import annotations

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import Callable, Iterable, Mapping, Sequence
from slurm_pal.decide.request import Request
from slurm_pal.decide.scene import rows
from slurm_pal.placement.view import Placement, Rule, View
from slurm_pal.slurm import releases
from slurm_pal.slurm.topology import BLOCK, Switch, Topology

_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})

Place = Callable[[View], Placement | None]
"""What a placement rule chooses of a view."""


def leaves(network: Topology, nodes: Sequence[str]) -> int:
    """How many leaves or blocks these nodes are on; 0 where the network is flat, or one of them is on none."""
    leaf_of = network.leaf_of()
    found = [leaf_of.get(name, "") for name in nodes]
    return 0 if not all(found) else len(set(found))


def refusal(request: Request, network: Topology) -> str:
    """Why Slurm must choose the nodes of such a request on this network; "" where it need not."""
    if network.kind != BLOCK:
        asked = "--segment" if request.segment else "--exclusive=topo" if request.own_blocks else ""
        return f"{asked}: Slurm knows of no blocks here" if asked else ""
    if request.req_nodes:
        return "the user's own --nodelist names some of the nodes, and Slurm weighs the network"
    if request.nodes_max not in (None, request.nodes_min):
        return "of a range of nodes Slurm takes as many as one block has"
    if request.nodes_min < 2:
        return ""
    steerable = releases.has(network.release, "segments with node lists")
    release = f"Slurm {releases.text(network.release)}" if network.release > (0, 0) else "Slurm"
    if not request.submitted and not steerable:
        return f"{release} does not show whether the job has --segment"
    if request.segment > _base(network):
        return f"--segment={request.segment}: a segment is larger than a block, and Slurm weighs the network"
    if 0 < request.segment < request.nodes_min and not steerable:
        return f"--segment={request.segment}: {release} takes no node list of several segments"
    return ""


def unshared(nodes: Iterable[Node], network: Topology) -> frozenset[str]:
    """The nodes of the blocks on which no job runs."""
    busy = {node.name for node in nodes if node.states & _BUSY or node.cpus_used or node.gpus_used}
    return frozenset(name for block in network.leaves if not busy & set(block.nodes) for name in block.nodes)


def on_network(network: Topology, partitions: Iterable[Partition]) -> bool:
    """Whether these partitions are on the cluster's own network, not on another of topology.yaml."""
    return not network.switches or not any(partition.topology for partition in partitions)


def permitted(network: Topology, nodes: Sequence[str], segment: int = 0) -> bool:
    """Whether Slurm takes such a list for a job of so many nodes, as far as its blocks are concerned."""
    if network.kind != BLOCK:
        return True
    index = {name: number for number, block in enumerate(network.leaves) for name in block.nodes}
    on = [index.get(name, -1) for name in nodes]
    if -1 in on:
        return False
    if 0 < segment < len(nodes):
        return all(on.count(number) % segment == 0 for number in set(on))
    within, below = _spans(network, len(nodes))
    parts = {number * _base(network) // below for number in on} if below else set()
    one = not within or len({number * _base(network) // within for number in on}) == 1
    return one and (not below or len(parts) <= -(-len(nodes) // below))


def together(
    view: View, placed: Placement, shape: GpuShape, network: Topology, rule: Rule, place: Place, segment: int = 0
) -> Placement | None:
    """The placement on as few leaves as can be; `placed` where the network is flat or it is on one; None where fewer
    than those of `placed` may do and it is not known how many, or no switch has room.

    GPUs up to `rule.barred_slowdown` count as alike. With `segment` each leaf has a multiple of so many nodes.
    """
    if not network.switches or len(placed.nodes) < 2:
        return placed
    if shape.per_node is None or shape.nodes is None:  # equal parts only
        return placed if leaves(network, [view.names[i] for i in placed.nodes]) == 1 else None
    need, each = shape.nodes, shape.per_node
    leaf_of = network.leaf_of()
    fitting = {
        name: max(max(row if shape.whole_nodes else row[:each]), rule.barred_slowdown)
        for name, free, row in zip(view.names, view.free, view.level, strict=True)
        if len(free) >= each and name in leaf_of
    }
    if not all(view.names[i] in leaf_of for i in placed.nodes):
        return None  # some nodes are on no switch: Slurm alone knows how it counts them
    chosen = _least(network, leaf_of, fitting, need, segment if segment < need else 0)
    if chosen is None:
        return None
    kept = [i for i, name in enumerate(view.names) if name in chosen]
    found = place(rows(view, kept))
    if found is None:
        return None
    found = found._replace(nodes=tuple(kept[row] for row in found.nodes))
    return found if permitted(network, [view.names[i] for i in found.nodes], segment) else None


def _base(network: Topology) -> int:
    """How many nodes Slurm plans with in a block."""
    return network.sizes[0] if network.sizes else max((len(block.nodes) for block in network.leaves), default=0)


def _spans(network: Topology, need: int) -> tuple[int, int]:
    """BlockSizes: of the blocks one of which holds a job of so many nodes (0: all of them), and of the next smaller
    ones, of which it gets no more than need be (0: there are none)."""
    sizes = network.sizes or (_base(network),)
    within = next((size for size in sizes if size >= need), 0)
    return within, max((size for size in sizes if size < need), default=0)


def _places(network: Topology, need: int) -> list[Switch]:
    """The switches or blocks one of which is to hold all nodes of a job, or of each segment of it."""
    if network.kind != BLOCK:
        return list(network.switches)
    # `scontrol show topology` leaves out groups of blocks that are not complete; Slurm uses them.
    blocks, within = network.leaves, _spans(network, need)[0]
    count = within // _base(network) if within else len(blocks)
    return [
        Switch(blocks[first].name, 0, tuple(name for block in blocks[first : first + count] for name in block.nodes))
        for first in range(0, len(blocks), count)
    ]


def _least(
    network: Topology, leaf_of: Mapping[str, str], fitting: Mapping[str, float], need: int, segment: int
) -> frozenset[str] | None:
    """The nodes to choose from: of the fewest leaves, those below the lowest switch, up to the lowest class.

    With `segment` so many as are needed, since those of one leaf may not stand in for those of another.
    """
    part = segment or 1
    places = _places(network, need) if not segment else [Switch("", 0, tuple(leaf_of))]
    inside_of = [(place, [name for name in place.nodes if name in fitting]) for place in places]
    counts = [
        (count, place.level, names)
        for place, names in inside_of
        if (count := _count(_sizes(names, leaf_of, part), need))
    ]
    if not counts:
        return None
    fewest, level = min((count, level) for count, level, _ in counts)
    below = [names for count, at, names in counts if (count, at) == (fewest, level)]
    limits = sorted({fitting[name] for inside in below for name in inside})
    low, high = 0, len(limits) - 1
    while low < high:  # the lowest class with which so few leaves suffice
        middle = (low + high) // 2
        if any(_enough(_up_to(inside, fitting, limits[middle]), leaf_of, need, fewest, part) for inside in below):
            high = middle
        else:
            low = middle + 1
    found: list[list[str]] = [
        _best_fit(inside, leaf_of, need, fewest, part, fitting if segment else {})
        for one in below
        if _enough(inside := _up_to(one, fitting, limits[low]), leaf_of, need, fewest, part)
    ]
    smallest = min(found, key=len)
    return frozenset(smallest)


def _up_to(names: Sequence[str], fitting: Mapping[str, float], limit: float) -> list[str]:
    return [name for name in names if fitting[name] <= limit]


def _sizes(names: Sequence[str], leaf_of: Mapping[str, str], part: int) -> dict[str, int]:
    """Leaf -> how many of the nodes are on it, in whole parts."""
    found: dict[str, int] = {}
    for name in names:
        found[leaf_of[name]] = found.get(leaf_of[name], 0) + 1
    return {leaf: size - size % part for leaf, size in found.items() if size >= part}


def _count(sizes: Mapping[str, int], need: int) -> int:
    """The fewest leaves that hold so many nodes, the fullest first; 0 where all of them do not."""
    for number, size in enumerate(sorted(sizes.values(), reverse=True), start=1):
        need -= size
        if need <= 0:
            return number
    return 0


def _enough(names: Sequence[str], leaf_of: Mapping[str, str], need: int, most: int, part: int) -> bool:
    return 0 < _count(_sizes(names, leaf_of, part), need) <= most


def _best_fit(
    names: Sequence[str], leaf_of: Mapping[str, str], need: int, most: int, part: int, order_by: Mapping[str, float]
) -> list[str]:
    """The nodes of at most so many leaves: the fullest, and last the one that leaves least over.

    With `order_by` as many of them as are needed, on each leaf the lowest.
    """
    sizes = _sizes(names, leaf_of, part)
    order = sorted(sizes, key=lambda leaf: -sizes[leaf])
    taken: dict[str, int] = {}
    left = need
    while left > 0:
        last = [leaf for leaf in order if leaf not in taken and sizes[leaf] >= left]
        chosen = min(last, key=lambda leaf: sizes[leaf]) if last else next(leaf for leaf in order if leaf not in taken)
        taken[chosen] = min(left, sizes[chosen])
        left -= taken[chosen]
    assert len(taken) <= most
    if not order_by:
        return [name for name in names if leaf_of[name] in taken]
    return [
        name
        for leaf, count in taken.items()
        for name in sorted((one for one in names if leaf_of[one] == leaf), key=lambda one: order_by[one])[:count]
    ]
