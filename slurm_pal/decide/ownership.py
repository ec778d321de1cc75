# SPDX-License-Identifier: MIT
"""Whose a list on a job is: of nodes, or of partitions. The one answer for palsub, publisher, tick and moves."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from slurm_pal.base.errors import UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED
from slurm_pal.decide.tick_lease import TickLease


class Whose(StrEnum):
    """Who wanted a list as it is now."""

    OWN = "own"  # the job's user, or nobody: there is none
    OURS = "ours"
    OLD = "old"  # ours, from before a move
    OTHER = "other"  # somebody has changed it since


Names = frozenset[str]


def whose(present: Names, own: Names | None, ours: Iterable[Names | None], old: Iterable[Names | None] = ()) -> Whose:
    """Whose a list is. `own` is what the user asked for: where ours says the same, it is theirs."""
    if present == own:
        return Whose.OWN
    if present in ours:
        return Whose.OURS
    return Whose.OLD if present in old else Whose.OTHER


def of_lease(job: SlurmJob, lease: TickLease | None) -> Whose:
    """Whose the list of a job is that this lease has set; without a lease its user's own."""
    if lease is None:
        return Whose.OWN
    key = lease.kind.key
    return whose(listed(job, key), names(lease.own, key), [names(lease.ours, key)])


def listed(job: SlurmJob, key: str) -> Names:
    """The list on a job, by Slurm's name for it: ReqNodeList, ExcNodeList or Partition."""
    if key == PARTITION:
        return names(job.partition, key) or frozenset()
    return frozenset(job.exc_nodes if key == EXCLUDED else job.req_nodes)


def names(text: str, key: str = REQUIRED) -> Names | None:
    """The names in such a list; None where a text that a user may have written cannot be read, or is absurdly long."""
    if key == PARTITION:
        return frozenset(text.split(","))
    try:
        return frozenset(expand(text))
    except UsageError:
        return None
