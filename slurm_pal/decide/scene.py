# SPDX-License-Identifier: MIT
"""How a request's shape may be read on a set of nodes: the views that a placement rule is asked about."""

from __future__ import annotations

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape
from slurm_pal.base.light import NamedTuple, Sequence, TypeVar
from slurm_pal.decide.candidates import Candidates, startable
from slurm_pal.decide.offers import build_view
from slurm_pal.decide.request import Request
from slurm_pal.placement.view import Placement, Rule, View
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.topology import Topology
from slurm_pal.store.snapshot import Snapshot

T = TypeVar("T")


class Scene(NamedTuple):
    """Nodes that the request permits with the view of what is free there, and how the shape was read on them."""

    candidates: Candidates
    view: View
    shape: GpuShape
    fixed: tuple[str, ...]  # nodes of the user's own list, in addition to the view
    nodes: dict[str, Node]
    network: Topology = Topology()

    def locality(self, placed: Placement, rule: Rule) -> float:
        """The locality penalty of a placement, by how far apart its nodes are, the user's own among them."""
        return rule.locality(self.network.span([*self.fixed, *(self.view.names[row] for row in placed.nodes)]))


def scenes(overview: Overview, snapshot: Snapshot, sensitivity: str, candidates: Candidates) -> list[Scene]:
    """The readings of the request's shape to try on these nodes, the one that Slurm tries first coming first."""
    request = candidates.request

    def view(shape: GpuShape, tasks: int) -> View:
        nodes = startable(candidates.nodes, request, tasks, shape.per_node or 1)
        names = [node.name for node in nodes if node.name not in request.req_nodes]
        return build_view(overview, snapshot, shape, sensitivity, names)

    by_name = {node.name: node for node in candidates.nodes}
    own = any(partition.topology for partition in candidates.partitions)  # another network of topology.yaml
    network = Topology() if own else overview.network
    if not set(request.req_nodes) <= set(by_name):
        return []
    found = []
    for shape, tasks in _readings(request):
        seen = view(shape, tasks)
        if shape.per_node is not None and request.nodes_max is not None and request.nodes_max > request.nodes_min:
            # sbatch(1), --nodes: of a range Slurm takes as many nodes as it can.
            fitting = sum(len(free) >= shape.per_node for free in seen.free)
            count = max(request.nodes_min, min(request.nodes_max, fitting))
            shape = shape._replace(nodes=count, total=count * shape.per_node)
        found.append(Scene(candidates, seen, shape, request.req_nodes, by_name, network))
    return found


def _readings(request: Request) -> list[tuple[GpuShape, int]]:
    """(shape, tasks that each node must hold) of what is still to be chosen."""
    shape, fixed = request.shape, len(request.req_nodes)
    if shape is None:
        return []
    if shape.per_node is not None:
        count = shape.nodes or 1
        tasks = request.tasks_per_node or -(-request.tasks // count)
        return [(shape._replace(nodes=count - fixed, total=(count - fixed) * shape.per_node), tasks)]
    if shape.nodes is not None and (shape.nodes > 1 or request.nodes_max == 1):
        return [(shape, request.tasks_per_node or -(-request.tasks // shape.nodes))]
    # An open number of nodes: one that holds all tasks, else several with one task each at least.
    free = shape._replace(nodes=None)
    return [(free, request.tasks)] if request.tasks == 1 else [(free, request.tasks), (free, 1)]


def rows(view: View, kept: Sequence[int]) -> View:
    """The view of some of its nodes."""
    return View(
        names=_at(view.names, kept),
        free=_at(view.free, kept),
        slowdown=_at(view.slowdown, kept),
        level=_at(view.level, kept),
        slowdown_a=_at(view.slowdown_a, kept),
        node_gpus=_at(view.node_gpus, kept),
        weight=_at(view.weight, kept),
        position=_at(view.position, kept),
        cpus_free=_at(view.cpus_free, kept),
    )


def _at(column: Sequence[T], kept: Sequence[int]) -> list[T]:
    return [column[i] for i in kept] if column else []
