# SPDX-License-Identifier: MIT
"""Leases: lists of ours on a pending job that somebody must take back.

Two clearers. The **watcher** of the user reads lease files in their state folder (submit/lease_file). A
**daemon** that says in its heartbeat that it clears leases (store/heartbeat) finds them on the jobs
themselves: palsub then adds a comment, `pal:lease=<seconds>;req=...;exc=...;act=...;set=...`,
where `req` and `exc` are the lists the user asked for, to be put back, and `set` is ours.
"""

from __future__ import annotations

from enum import StrEnum

from slurm_pal.base.light import NamedTuple
from slurm_pal.base.marks import ALONE
from slurm_pal.slurm.parse import LEASE_MARK

REQUIRED, EXCLUDED, PARTITION = "ReqNodeList", "ExcNodeList", "Partition"
"""Slurm's names of the lists on a job that we may set (scontrol(1), update job)."""


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


_HELD = ("JobHeld", "job_requeued_in_held", "launch_failed_requeued_held")
_NOT_OURS = (*_HELD, "Dependency", "BeginTime")
_NEVER = ("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit")


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


def is_held(reason: str) -> bool:
    """Whether a job waits for a release, by the reason why it waits."""
    return reason.startswith(_HELD)


def verdict(reason: str, made_s: float, until_s: float, pass_s: float, now_s: float, in_vain: bool = False) -> str:
    """Whether a pending job's lease is over: "wait" or "clear". Pure.

    `reason` is why the job waits, in the form of `SlurmJob.reason`. A held job, or one that
    waits for another job or for a time, is left alone; one that its lists may keep from
    starting for ever gets one scheduling pass of `pass_s`, and so does a job that Slurm has
    not looked at yet. `in_vain` says that Slurm does not start it on GPUs which are free by our count
    (`offers.named_in_vain`): after one pass it must count something that we do not, and waiting cannot help.
    """
    if reason.startswith(_NOT_OURS):
        return "wait"
    if reason.startswith(_NEVER) or in_vain:
        return "clear" if now_s >= made_s + pass_s else "wait"
    grace_s = pass_s if reason in ("", "None") else 0.0
    return "clear" if now_s >= until_s + grace_s else "wait"


def comment(lease_s: float, user_req: str, user_exc: str, action: str, ours: str, alone: float | None = None) -> str:
    """The mark by which a daemon knows a lease on a job: the user's lists, what was done, and the list we set.

    `alone` is the slowdown where plain Slurm would have put the job, for whoever explains it.
    """
    said = f";{ALONE}={alone:.3f}" if alone is not None else ""
    return f"{LEASE_MARK}{lease_s:.0f};req={user_req};exc={user_exc};act={action};set={ours}{said}"
