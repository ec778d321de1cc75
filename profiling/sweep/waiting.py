# SPDX-License-Identifier: MIT
"""Whether a user's job waits for what a sweep would take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.sweep_job import is_ours
from slurm_pal.slurm.states import JOB_WAITING

WAITS = frozenset({"Resources", "Priority"})
"""Reasons (squeue(1)) that end when GPUs become free; others (dependency, hold, limits) do not."""


def user_waiting(jobs: Iterable[SlurmJob], nodes: Iterable[ChosenNode], own_uid: int) -> SlurmJob | None:
    """The first pending GPU job that is not a sweep's and could use one of `nodes`; None: nobody waits.

    `own_uid` is the user that the sweep runs as. Nodes are looked at by kind (partitions and GPU
    types), of which a cluster has few.
    """
    kinds: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for node in nodes:
        kinds.setdefault((node.partitions, node.gpu_types), []).append(node.node)
    for job in jobs:
        if waits(job, own_uid) and any(could_use(job, *kind, names) for kind, names in kinds.items()):
            return job
    return None


def waits(job: SlurmJob, own_uid: int) -> bool:
    """Whether it is a user's GPU job that starts as soon as there are GPUs for it."""
    return (
        job.state in JOB_WAITING
        and job.reason in WAITS
        and not is_ours(job, own_uid)
        and (job.gpus_per_node > 0 or job.asks.gpus)
    )


def could_use(job: SlurmJob, partitions: Sequence[str], types: Sequence[str], names: Sequence[str]) -> bool:
    """Whether it may run on one of the nodes `names`, all in these partitions and with GPUs of these types."""
    if partitions and not set(job.partition.split(",")) & set(partitions):
        return False
    if types and job.asks.gpu_types and not job.asks.gpu_types & set(types):
        return False
    if not job.req_nodes and not job.exc_nodes:
        return True
    bound = bool(job.req_nodes) and job.asks.nodes_min <= len(job.req_nodes)
    return any((not bound or name in job.req_nodes) and name not in job.exc_nodes for name in names)
