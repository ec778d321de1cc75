# SPDX-License-Identifier: MIT
"""Jobs of several nodes on a network with switches or blocks: as near together as plain Slurm would have them, and
there on the best GPUs. Pure, standard library only.

PAL's walk over locality and variability (SC'24) has two levels of locality, within a node and across nodes. Here the
walk goes on: the fewest leaves (or blocks), of these below the lowest switch, then the lowest variability class that
so few leaves can give, then the leaves of which least is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from slurm_pal.base.jobs import GpuShape
from slurm_pal.decide.scene import rows
from slurm_pal.placement.view import Placement, Rule, View
from slurm_pal.slurm.topology import Topology

Place = Callable[[View], Placement | None]
"""What a placement rule chooses of a view."""


def leaves(network: Topology, nodes: Sequence[str]) -> int:
    """How many leaves or blocks these nodes are on; 0 where the network is flat, or one of them is on none."""
    leaf_of = network.leaf_of()
    found = [leaf_of.get(name, "") for name in nodes]
    return 0 if not all(found) else len(set(found))


def together(
    view: View, placed: Placement, shape: GpuShape, network: Topology, rule: Rule, place: Place
) -> Placement | None:
    """The placement on as few leaves as can be; `placed` where the network is flat or it is on one; None where fewer
    than those of `placed` may do and it is not known how many, or no switch has room.

    GPUs up to `rule.barred_slowdown` count as alike.
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
    chosen = _least(network, leaf_of, fitting, need)
    if chosen is None:
        return None
    kept = [i for i, name in enumerate(view.names) if name in chosen]
    found = place(rows(view, kept))
    if found is None:
        return None
    return found._replace(nodes=tuple(kept[row] for row in found.nodes))


def _least(
    network: Topology, leaf_of: Mapping[str, str], fitting: Mapping[str, float], need: int
) -> frozenset[str] | None:
    """The nodes to choose from: of the fewest leaves, those below the lowest switch, up to the lowest class."""
    inside_of = {switch: [name for name in switch.nodes if name in fitting] for switch in network.switches}
    counts = {switch: _count(_sizes(names, leaf_of), need) for switch, names in inside_of.items() if len(names) >= need}
    if not counts:
        return None
    fewest = min(counts.values())
    level = min(switch.level for switch, count in counts.items() if count == fewest)
    below = [inside_of[switch] for switch, count in counts.items() if count == fewest and switch.level == level]
    limits = sorted({fitting[name] for inside in below for name in inside})
    low, high = 0, len(limits) - 1
    while low < high:  # the lowest class with which so few leaves suffice
        middle = (low + high) // 2
        if any(_enough(_up_to(inside, fitting, limits[middle]), leaf_of, need, fewest) for inside in below):
            high = middle
        else:
            low = middle + 1
    found: list[list[str]] = [
        _best_fit(inside, leaf_of, need, fewest)
        for one in below
        if _enough(inside := _up_to(one, fitting, limits[low]), leaf_of, need, fewest)
    ]
    smallest = min(found, key=len)
    return frozenset(smallest)


def _up_to(names: Sequence[str], fitting: Mapping[str, float], limit: float) -> list[str]:
    return [name for name in names if fitting[name] <= limit]


def _sizes(names: Sequence[str], leaf_of: Mapping[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[leaf_of[name]] = found.get(leaf_of[name], 0) + 1
    return found


def _count(sizes: Mapping[str, int], need: int) -> int:
    """The fewest leaves that hold so many nodes, the fullest first."""
    for number, size in enumerate(sorted(sizes.values(), reverse=True), start=1):
        need -= size
        if need <= 0:
            return number
    return len(sizes) + 1


def _enough(names: Sequence[str], leaf_of: Mapping[str, str], need: int, most: int) -> bool:
    return len(names) >= need and _count(_sizes(names, leaf_of), need) <= most


def _best_fit(names: Sequence[str], leaf_of: Mapping[str, str], need: int, most: int) -> list[str]:
    """The nodes of at most so many leaves: the fullest, and last the one that leaves least over."""
    sizes = _sizes(names, leaf_of)
    order = sorted(sizes, key=lambda leaf: -sizes[leaf])
    taken: list[str] = []
    left = need
    while left > 0:
        last = [leaf for leaf in order if leaf not in taken and sizes[leaf] >= left]
        if last:
            taken.append(min(last, key=lambda leaf: sizes[leaf]))
            break
        taken.append(next(leaf for leaf in order if leaf not in taken))
        left -= sizes[taken[-1]]
    assert len(taken) <= most
    return [name for name in names if leaf_of[name] in taken]
