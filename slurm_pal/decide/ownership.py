# SPDX-License-Identifier: MIT
"""Whose a list on a job is."""

from __future__ import annotations

from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import PARTITION, TickLease


def bears(job: SlurmJob, lease: TickLease) -> bool:
    """Whether the list of this lease is in force."""
    if lease.kind == PARTITION:
        return frozenset(job.partition.split(",")) == frozenset(lease.ours.split(","))
    present = job.exc_nodes if lease.kind == "exclude" else job.req_nodes
    return bool(present) and frozenset(present) == frozenset(expand(lease.ours))
