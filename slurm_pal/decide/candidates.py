# SPDX-License-Identifier: MIT
"""The nodes that a request permits and that could start it now: everything AND-ed, nothing overridden."""

from __future__ import annotations

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import Iterable, Mapping, NamedTuple
from slurm_pal.decide.constraint import Predicate, compile_constraint
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_ACTIVE, asleep, usable
from slurm_pal.store.snapshot import Snapshot

RESERVED = frozenset({"RESERVED", "RES"})
_PLANNED = "PLANNED"  # backfill keeps the node for another job


class Candidates(NamedTuple):
    """Where the request may look: one or more partitions, and the nodes that Slurm could ever give."""

    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]  # permitted by the request, whatever runs on them; with what the partitions leave of them
    request: Request = Request()  # with what Slurm adds to it in these partitions


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
    limited = [p for p in wanted if p.counting.most_cpus]
    if limited and request.shape is not None and request.shape.whole_nodes:
        return f"partition {limited[0].name} allows {limited[0].counting.most_cpus} CPUs on a node, not a whole one"
    taken = {p.name: cpus_of(p, overview.jobs) for p in limited}
    return [
        Candidates(
            group,
            tuple(left_of(node, group, taken) for node in _permitted(request, overview, group, predicate, reserved)),
            counted(request, group),
        )
        for group in groups
    ]


def counted(request: Request, partitions: Iterable[Partition]) -> Request:
    """The request with what Slurm adds to it in these partitions: of several the most, since any may take it."""
    counting = [partition.counting for partition in partitions]
    if not counting:
        return request
    if request.mem_per_node_mib is None and not request.mem_per_cpu_mib and not request.mem_per_gpu_mib:
        per_node = max(c.mem_node_mib for c in counting)
        request = request._replace(
            mem_per_node_mib=per_node or None,
            mem_per_cpu_mib=max(c.mem_cpu_mib for c in counting),
            mem_per_gpu_mib=max(c.mem_gpu_mib for c in counting),
        )
        if any(c.memory and not (c.mem_node_mib or c.mem_cpu_mib or c.mem_gpu_mib) for c in counting):
            request = request._replace(mem_per_node_mib=0)
    if not request.cpus_per_gpu and request.cpus_per_task == 1:
        request = request._replace(cpus_per_gpu=max(c.cpus_gpu for c in counting))
    if not request.tasks_per_core and any(c.one_task_per_core for c in counting):
        request = request._replace(tasks_per_core=1)
    limits = [c.most_mem_cpu_mib for c in counting if c.most_mem_cpu_mib]
    return request._replace(most_mem_cpu_mib=min(limits, default=0))


def cpus_of(partition: Partition, jobs: Iterable[SlurmJob]) -> dict[str, int]:
    """Node -> CPUs that running jobs of a partition have there; of one on several nodes an equal share, rounded up."""
    taken: dict[str, int] = {}
    for job in jobs:
        if job.partition == partition.name and job.state in JOB_ACTIVE and job.nodes:
            for name in job.nodes:
                taken[name] = taken.get(name, 0) - (-job.asks.cpus // len(job.nodes))
    return taken


def left_of(node: Node, partitions: Iterable[Partition], taken: Mapping[str, Mapping[str, int]]) -> Node:
    """The node with the CPUs that all of these partitions may still use of it (MaxCPUsPerNode)."""
    for partition in partitions:
        if partition.name in taken and node.name in partition.nodes:
            most = min(node.cpus, partition.counting.most_cpus)
            free = min(node.cpus - node.cpus_used, most - taken[partition.name].get(node.name, 0))
            node = node._replace(cpus=most, cpus_used=most - free)
    return node


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


def sleeping(overview: Overview, partitions: Iterable[str]) -> bool:
    """Whether these partitions have nodes that Slurm would boot for a job.

    Unless a site says PrivateData=cloud, Slurm does not show cloud nodes that are powered down.
    """
    names = frozenset(partitions)
    inside = {name for one in overview.partitions if one.name in names for name in one.nodes}
    seen = [node for node in overview.nodes if node.name in inside]
    return len(seen) < len(inside) or any(asleep(node.states) for node in seen)


def startable(nodes: Iterable[Node], request: Request, tasks_on_node: int, gpus_on_node: int) -> list[Node]:
    """The nodes whose state, CPUs and memory let `tasks_on_node` tasks start now."""
    return [node for node in nodes if may_start(node) and _holds(node, request, tasks_on_node, gpus_on_node)]


def could_hold(nodes: Iterable[Node], request: Request, tasks_on_node: int, gpus_on_node: int) -> list[Node]:
    """The nodes that Slurm would surely give the job once nothing runs there; without any it refuses the job.

    Other resources than GPUs count as they are in use now: how many a node has in all is not kept.
    """
    empty = [node._replace(states=node.states - {_PLANNED}, cpus_used=0, memory_used_mib=0) for node in nodes]
    return startable(empty, request, tasks_on_node, gpus_on_node)


def share(node: Node, request: Request, tasks: int, gpus: int) -> tuple[int, int]:
    """(CPUs, memory in MiB) that so many tasks with so many GPUs take of a node: never less than Slurm counts.

    A core goes to one job, with all its threads; in doubt two tasks do not share one.
    """
    used = min(node.threads, request.threads_per_core or node.threads)  # threads of a core on which its tasks may run
    each = request.cpus_per_task
    cores = tasks * -(-each // used) if each > 1 or request.tasks_per_core == 1 else -(-tasks * each // used)
    if request.tasks_per_core > 1:
        cores = max(cores, -(-tasks // request.tasks_per_core))
    cores = max(1, cores, -(-request.cpus_per_gpu * gpus // used), -(-request.min_cpus // used))
    cpus = cores * node.threads
    if request.shape is not None and request.shape.whole_nodes:
        cpus = node.cpus
    if request.mem_per_node_mib == 0:  # sbatch(1): --mem=0 is all of the node's memory
        return cpus, node.memory_mib
    memory_mib = max(request.mem_per_node_mib or 0, request.mem_per_cpu_mib * cpus, request.mem_per_gpu_mib * gpus)
    if request.most_mem_cpu_mib:  # what is more costs CPUs instead
        cpus = max(cpus, -(-memory_mib // request.most_mem_cpu_mib // node.threads) * node.threads)
    return cpus, memory_mib


def _holds(node: Node, request: Request, tasks: int, gpus: int) -> bool:
    cpus, memory_mib = share(node, request, tasks, gpus)
    if request.empty_nodes and node.cpus_used:
        return False
    others = dict(node.others_free) if request.others else {}
    if any(others.get(name, 0) < count for name, count in request.others):
        return False
    return cpus <= node.cpus - node.cpus_used and memory_mib <= node.memory_mib - node.memory_used_mib
