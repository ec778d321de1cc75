# SPDX-License-Identifier: MIT
"""Leases of the tick: what each is on, and which list it has set. palsub, which loads `lease`, has no use for them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED


class Sort(StrEnum):
    """What a lease is on; a job may have one of each."""

    NODES = "nodes"
    PARTITIONS = "partitions"
    FENCES = "fences"


class LeaseKind(StrEnum):
    """Which list a lease has set, and how."""

    NODELIST = "nodelist"
    EXCLUDE = "exclude"
    MOVE = "move"  # a node list that a move has left on its job
    PARTITION = "partition"
    FENCE = "fence"  # no list: a reservation of nodes that nobody may use, see `pending.head`

    @property
    def key(self) -> str:
        """Slurm's name of the list."""
        return {LeaseKind.EXCLUDE: EXCLUDED, LeaseKind.PARTITION: PARTITION}.get(self, REQUIRED)

    @property
    def sort(self) -> Sort:
        return {LeaseKind.PARTITION: Sort.PARTITIONS, LeaseKind.FENCE: Sort.FENCES}.get(self, Sort.NODES)


class TickLease(NamedTuple):
    """A list of nodes or of partitions that the tick set on a pending job, or a fence for it; it may have one of each.

    A fence has no list on the job: `ours` are the nodes that it keeps, and `own` is empty.
    """

    job_id: int
    kind: LeaseKind
    ours: str  # hostlist as set (with the user's own names), or partitions with commas
    own: str  # the user's own list, put back
    made_s: float
    until_s: float
    restarts: int  # of the job when set
    reason: str  # one sentence

    @property
    def reservation(self) -> str:
        """The name in Slurm of the reservation that is this fence; no other fence ever has it."""
        return f"pal_wait_{self.job_id}_{self.made_s:.0f}"

    @property
    def own_req(self) -> str | None:
        """The node list that the user requires, where the job's present one may be ours; None: the present one."""
        return self.own if self.kind in (LeaseKind.NODELIST, LeaseKind.MOVE) else None

    @property
    def own_exc(self) -> str | None:
        """The same of the nodes that they exclude."""
        return self.own if self.kind is LeaseKind.EXCLUDE else None
