# SPDX-License-Identifier: MIT
"""Whether a partition has room for a job now, and whether a node must boot for it. Pure, standard library only.

Slurm gives nodes that are powered down to jobs as if they were free, boots them, and starts the job then.
"""

from __future__ import annotations

from slurm_pal.base.cluster import Node
from slurm_pal.decide import steering
from slurm_pal.decide.candidates import sleeping
from slurm_pal.decide.request import Request
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import asleep, usable, woken


def fits_now(overview: Overview, request: Request, partition: str) -> bool:
    """Whether all that the job asks for is surely free there now, on nodes that are up."""
    if request.leave or request.reservation or request.req_nodes:
        return False
    if request.shape is not None:
        return steering.places(overview, request).get(partition, False)
    up = [one for one in overview.partitions if one.name == partition and one.up]
    if not up or (up[0].max_time_s is not None and (request.time_limit_s or 0) > up[0].max_time_s):
        return False
    inside = set(up[0].nodes)
    fitting = [node for node in overview.nodes if node.name in inside and _holds(node, request)]
    return len(fitting) >= request.nodes_min and not request.constraint and not request.others


def _holds(node: Node, request: Request) -> bool:
    """Whether what one node has to give a job without GPUs is free there now."""
    tasks = -(-max(1, request.tasks) // max(1, request.nodes_min))
    cpus = tasks * max(1, request.cpus_per_task)
    memory_mib = request.mem_per_node_mib or request.mem_per_cpu_mib * cpus
    free = node.cpus - node.cpus_used >= cpus and node.memory_mib - node.memory_used_mib >= memory_mib
    return free and usable(node.states) and not (request.empty_nodes and node.cpus_used)


def awake(overview: Overview) -> Overview:
    """The cluster once the nodes that are powered down have booted."""
    nodes = tuple(node._replace(states=woken(node.states)) if asleep(node.states) else node for node in overview.nodes)
    return overview._replace(nodes=nodes)


def must_boot(overview: Overview, request: Request, partition: str) -> bool:
    """Whether a job that Slurm would start there now waits until a node has booted."""
    if not sleeping(overview, (partition,)):
        return False
    if request.leave or (request.shape is None and (request.constraint or request.others)):  # nobody can say
        inside = {name for one in overview.partitions if one.name == partition for name in one.nodes}
        return not any(n.name in inside and usable(n.states) and "IDLE" in n.states for n in overview.nodes)
    return not fits_now(overview, request._replace(partitions=(partition,)), partition)
