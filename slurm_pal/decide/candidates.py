# SPDX-License-Identifier: MIT
"""The nodes that a request permits and that could start it now: everything AND-ed, nothing overridden."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.light import NamedTuple
from slurm_pal.decide.constraint import Predicate, compile_constraint
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import Snapshot

RESERVED = frozenset({"RESERVED", "RES"})
_PLANNED = "PLANNED"  # backfill keeps the node for another job


class Candidates(NamedTuple):
    """Where the request may look: one or more partitions, and the nodes that Slurm could ever give."""

    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]  # permitted by the request, whatever runs on them


def candidates(request: Request, overview: Overview) -> list[Candidates] | str:
    """The groups of nodes to look at, or why the choice must be left to Slurm.

    A job lies in one partition; only a job of one node may compare several at once.
    """
    wanted = _partitions(request, overview)
    if not wanted:
        return f"partition {','.join(request.partitions) or '(default)'} is not known or not up"
    predicate: Predicate | None = lambda features: True  # noqa: E731
    if request.constraint:
        predicate = compile_constraint(request.constraint)
    if predicate is None:
        return f"--constraint={request.constraint}: more than one node's features decide"
    reserved: frozenset[str] | None = None
    if request.reservation:
        if request.reservation not in overview.reservations:
            return f"reservation {request.reservation} is not known"
        reserved = frozenset(overview.reservations[request.reservation])
    groups = [tuple(wanted)] if (request.nodes_max or request.nodes_min) == 1 else [(p,) for p in wanted]
    return [Candidates(group, _permitted(request, overview, group, predicate, reserved)) for group in groups]


def _partitions(request: Request, overview: Overview) -> list[Partition]:
    if request.partitions:
        by_name = {p.name: p for p in overview.partitions}
        found = [by_name[name] for name in request.partitions if name in by_name]
        return [p for p in found if p.up] if len(found) == len(request.partitions) else []
    return [p for p in overview.partitions if p.default and p.up]


def _permitted(
    request: Request,
    overview: Overview,
    partitions: Iterable[Partition],
    predicate: Predicate,
    reserved: frozenset[str] | None,
) -> tuple[Node, ...]:
    inside = {name for p in partitions for name in p.nodes}
    barred = frozenset(request.exc_nodes)
    return tuple(
        node
        for node in overview.nodes
        if node.name in inside
        and node.name not in barred
        and (node.name in reserved if reserved is not None else not node.states & RESERVED)
        and predicate(node.features)
    )


def several_models(found: Iterable[Candidates], snapshot: Snapshot, gpu_type: str) -> str:
    """Which GPUs of different models or types the request permits, "" where they are all alike.

    Slowdowns are relative to the same model, so scores do not show which of several models is
    faster. An unmeasured GPU counts as the model of the others.
    """
    types: set[str] = set()
    models: set[int] = set()
    model, index = snapshot.columns["model"], snapshot.columns["index"]
    for node in {node.name: node for group in found for node in group.nodes}.values():
        named = {kind for kind in node.gpu_types if not gpu_type or kind == gpu_type}
        if not named:
            continue
        types |= named
        rows = snapshot.rows.get(node.name, range(0))
        if len(set(node.gpu_types)) == 1:
            models.update(model[rows.start : rows.stop])
        else:
            kinds = node.gpu_types
            models.update(model[row] for row in rows if index[row] < len(kinds) and kinds[index[row]] in named)
    if len(types) > 1:
        return ", ".join(sorted(name or "(no type)" for name in types))
    return f"{len(models)} models" if len(models) > 1 else ""


def may_start(node: Node) -> bool:
    """Whether a job could start on the node now, as far as its state shows."""
    return usable(node.states) and _PLANNED not in node.states


def startable(nodes: Iterable[Node], request: Request, tasks_on_node: int, gpus_on_node: int) -> list[Node]:
    """The nodes whose state, CPUs and memory let `tasks_on_node` tasks start now."""
    return [node for node in nodes if may_start(node) and _holds(node, request, tasks_on_node, gpus_on_node)]


def could_hold(nodes: Iterable[Node], request: Request, tasks_on_node: int, gpus_on_node: int) -> list[Node]:
    """The nodes that Slurm would surely give the job once nothing runs there; without any it refuses the job.

    A CPU of a core with two threads counts, and costs memory, twice, and which nodes have such is not known.
    """
    empty = [node._replace(states=node.states - {_PLANNED}, cpus_used=0, memory_used_mib=0) for node in nodes]
    whole = request.shape is not None and request.shape.whole_nodes

    def counted(node: Node) -> int:
        return node.cpus if whole else 2 * max(1, share(node, request, tasks_on_node, gpus_on_node)[0])

    holding = startable(empty, request, tasks_on_node, gpus_on_node)
    return [node for node in holding if request.mem_per_cpu_mib * counted(node) <= node.memory_mib]


def share(node: Node, request: Request, tasks: int, gpus: int) -> tuple[int, int]:
    """(CPUs, memory in MiB) that so many tasks with so many GPUs take of a node."""
    cpus = max(tasks * request.cpus_per_task, request.cpus_per_gpu * gpus, request.min_cpus)
    if request.mem_per_node_mib == 0:  # sbatch(1): --mem=0 is all of the node's memory
        return cpus, node.memory_mib
    return cpus, max(
        request.mem_per_node_mib or 0, request.mem_per_cpu_mib * max(1, cpus), request.mem_per_gpu_mib * gpus
    )


def _holds(node: Node, request: Request, tasks: int, gpus: int) -> bool:
    cpus, memory_mib = share(node, request, tasks, gpus)
    return cpus <= node.cpus - node.cpus_used and memory_mib <= node.memory_mib - node.memory_used_mib
