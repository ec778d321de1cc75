# SPDX-License-Identifier: MIT
"""Leases: lists of ours on a pending job that somebody must take back.

Two clearers. The **watcher** of the user reads lease files in their state folder (submit/lease_file). A
**daemon** that says in its heartbeat that it clears leases (store/heartbeat) finds them on the jobs
themselves: palsub then adds a comment, `pal:lease=<seconds>;req=...;exc=...;act=...;set=...`,
where `req` and `exc` are the lists the user asked for, to be put back, and `set` is ours.
"""

from __future__ import annotations

from slurm_pal.base.marks import ALONE
from slurm_pal.slurm.parse import LEASE_MARK

REQUIRED, EXCLUDED, PARTITION = "ReqNodeList", "ExcNodeList", "Partition"
"""Slurm's names of the lists on a job that we may set (scontrol(1), update job)."""

_HELD = ("JobHeld", "job_requeued_in_held", "launch_failed_requeued_held")
_NOT_OURS = (*_HELD, "Dependency", "BeginTime")
_NEVER = ("ReqNodeNotAvail", "BadConstraints", "PartitionNodeLimit")


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
