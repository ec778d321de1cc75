# SPDX-License-Identifier: MIT
"""For which nodes jobs wait in the queue. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_pal.base.jobs import FOR_NODES
from slurm_pal.pending.retarget import Wish
from slurm_pal.slurm.client import Overview


def wanted(overview: Overview, wishes: Sequence[Wish], moving: Collection[int]) -> frozenset[str]:
    """Partitions with nodes for which jobs wait in the queue, their lists as they will be with these wishes.

    What is free there is theirs; where they do not fit, a requeued job would wait behind them.
    `moving` are jobs of moves under way.
    """
    new = {wish.job_id: wish.fields["Partition"] for wish in wishes if "Partition" in wish.fields}
    waiting = [
        (new.get(job.job_id, job.partition), job.reason)
        for job in overview.jobs
        if job.state == "PENDING" and not job.held and job.job_id not in moving
    ]
    found: set[str] = set()
    for partitions, words in (*waiting, *overview.queued):
        reason = words.lstrip("(").replace(" ", "_")
        if not reason or reason.startswith(FOR_NODES):
            found.update(partitions.split(","))
    nodes = {name for partition in overview.partitions if partition.name in found for name in partition.nodes}
    return frozenset(p.name for p in overview.partitions if not nodes.isdisjoint(p.nodes))
