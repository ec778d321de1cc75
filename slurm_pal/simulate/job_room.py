# SPDX-License-Identifier: MIT
"""CPUs and memory of nodes and jobs, as far as a trace and a cluster know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.simulate.trace import TraceJob


class NodeSize(NamedTuple):
    """What a node has beside its GPUs."""

    cpus: int
    memory_mib: int
    threads: int = 1  # CPUs that Slurm counts for each core
    weight: int = 1  # nodes of a higher one are taken last


class Needed(NamedTuple):
    """What a job takes with each node that it has, or, where `by_gpu`, with each GPU; 0: not known."""

    cpus: int
    memory_mib: int
    by_gpu: bool = False


def wanted(job: TraceJob) -> Needed:
    """What a job takes, spread evenly. One with fewer CPUs than GPUs has one for each node."""
    shape = job.shape
    if shape.nodes is not None and (shape.per_node is not None or shape.nodes == 1):
        return Needed(-(-job.cpus // shape.nodes), -(-job.memory_mib // shape.nodes))
    if shape.total == 1:
        return Needed(job.cpus, job.memory_mib)
    return Needed(job.cpus // shape.total, -(-job.memory_mib // shape.total), by_gpu=True)


def holds(job: TraceJob, nodes: Sequence[tuple[int, NodeSize]]) -> bool:
    """Whether these nodes (GPUs, the rest) hold the job when nothing else runs, as far as CPUs and memory decide."""
    shape, need = job.shape, wanted(job)
    if need.by_gpu:
        return sum(min(gpus, *_times(size, need, gpus)) for gpus, size in nodes) >= shape.total
    each = shape.per_node or shape.total
    return sum(gpus >= each and min(_times(size, need, 1)) >= 1 for gpus, size in nodes) >= (shape.nodes or 1)


def _times(size: NodeSize, need: Needed, most: int) -> tuple[int, int]:
    """How often a node has what is wanted, by CPUs and by memory."""
    return (
        size.cpus // need.cpus if need.cpus else most,
        size.memory_mib // need.memory_mib if need.memory_mib else most,
    )


def without(job: TraceJob) -> TraceJob:
    """The job as one whose CPUs and memory are not known."""
    return job._replace(cpus=0, memory_mib=0)


def share(size: NodeSize, gpus: int, of: int) -> NodeSize:
    """What belongs to so many of a node's GPUs."""
    cores = size.cpus // size.threads * gpus // of
    return size._replace(cpus=max(1, cores) * size.threads, memory_mib=size.memory_mib * gpus // of)
