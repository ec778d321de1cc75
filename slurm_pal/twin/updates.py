# SPDX-License-Identifier: MIT
"""scontrol update of a job of the virtual Slurm: all of it or nothing, as slurmctld does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.parse import unix_s, whole

if TYPE_CHECKING:
    from slurm_pal.base.cluster import Partition
    from slurm_pal.twin.virtual_job import VirtualJob
    from slurm_pal.twin.virtual_slurm import VirtualSlurm

PENDING_ONLY = frozenset({
    "ReqNodeList", "ExcNodeList", "Partition", "Features", "Prefer", "Priority",
})  # fmt: skip
ALWAYS = frozenset({"Comment", "AdminComment", "StartTime", "TimeLimit", "Nice", "SiteFactor"})
PARTITION = frozenset({"Nodes", "State", "PreemptMode", "PriorityTier", "GraceTime"})
LONGEST = 1024


def change(slurm: VirtualSlurm, job: VirtualJob, fields: Mapping[str, str]) -> None:
    """Carry an update out. Raises SlurmError with slurmctld's words."""
    if job.state not in ("PENDING", "RUNNING", "COMPLETING"):
        raise SlurmError(f"scontrol failed: Job has already finished for job {job.job_id}")
    if unknown := fields.keys() - PENDING_ONLY - ALWAYS:
        raise SlurmError(f"scontrol failed: Update of this parameter is not supported: {', '.join(sorted(unknown))}")
    if job.state != "PENDING" and fields.keys() & PENDING_ONLY and not _same(job, fields):
        raise SlurmError(f"scontrol failed: Job is no longer pending execution for job {job.job_id}")
    if job.state == "RUNNING" and "StartTime" in fields:
        raise SlurmError(f"scontrol failed: Job is no longer pending execution for job {job.job_id}")
    if len(fields.get("Comment", "").encode()) > LONGEST:
        raise SlurmError("scontrol failed: Pathname of a file, directory or other parameter too long")
    req, exc = (_nodes(slurm, fields.get(key)) for key in ("ReqNodeList", "ExcNodeList"))
    partitions = tuple(dict.fromkeys(fields["Partition"].split(","))) if "Partition" in fields else None
    if partitions is not None and not set(partitions) <= {p.name for p in slurm.partitions}:
        raise SlurmError(f"scontrol failed: Invalid partition name specified for job {job.job_id}")
    begin_s = _moment(fields["StartTime"], slurm.now_s) if "StartTime" in fields else None
    # From here on nothing fails.
    job.comment = fields.get("Comment", job.comment)
    job.admin_comment = fields.get("AdminComment", job.admin_comment)
    if job.state == "PENDING":
        job.req_nodes = job.req_nodes if req is None else req
        job.exc_nodes = job.exc_nodes if exc is None else exc
        job.partitions = partitions or job.partitions
        job.features, job.prefer = fields.get("Features", job.features), fields.get("Prefer", job.prefer)
        if begin_s is not None:
            slurm.begins(job, begin_s)
    _priorities(slurm, job, fields)
    job.changed()
    job.lists_changed()


def changed_partition(slurm: VirtualSlurm, name: str, fields: Mapping[str, str]) -> Partition:
    """A partition after an update. Raises SlurmError with slurmctld's words."""
    found = next((partition for partition in slurm.partitions if partition.name == name), None)
    if found is None:
        raise SlurmError("scontrol failed: slurm_update error: Invalid partition name specified")
    if unknown := fields.keys() - PARTITION:
        raise SlurmError(f"scontrol failed: Update of this parameter is not supported: {', '.join(sorted(unknown))}")
    nodes = found.nodes
    if "Nodes" in fields:
        every = fields["Nodes"].upper() == "ALL"
        wanted = slurm.hardware.names if every else _nodes(slurm, fields["Nodes"]) or ()
        nodes = tuple(sorted(wanted, key=lambda node: slurm.position[node]))
    return found._replace(
        nodes=nodes,
        up=fields.get("State", "UP" if found.up else "DOWN").upper() == "UP",
        preempt=fields.get("PreemptMode", found.preempt).upper(),
        tier=whole(fields.get("PriorityTier", ""), found.tier),
        grace_s=whole(fields.get("GraceTime", ""), found.grace_s),
    )


def _same(job: VirtualJob, fields: Mapping[str, str]) -> bool:
    """Whether lists of a running job, which have nodes, would stay as they are; slurmctld accepts that."""
    return fields.keys() & PENDING_ONLY <= {"ReqNodeList", "ExcNodeList"} and all(
        own and frozenset(expand(fields[key])) == frozenset(own)
        for key, own in (("ReqNodeList", job.req_nodes), ("ExcNodeList", job.exc_nodes))
        if key in fields
    )


def _nodes(slurm: VirtualSlurm, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        names = expand(text)
    except UsageError:
        names = (text,)
    if not set(names) <= slurm.position.keys():
        raise SlurmError("scontrol failed: Invalid node name specified")
    return names


def _moment(text: str, now_s: float) -> float:
    """`now`, `now+2` or a time stamp."""
    word, plus, seconds = text.partition("+")
    if word == "now":
        return float(int(now_s + (digits(seconds) or 0))) if plus else now_s
    return unix_s(text)


def _priorities(slurm: VirtualSlurm, job: VirtualJob, fields: Mapping[str, str]) -> None:
    if not fields.keys() & {"Nice", "SiteFactor", "Priority"}:
        return
    try:
        job.nice, job.site_factor = int(fields.get("Nice", job.nice)), int(fields.get("SiteFactor", job.site_factor))
        if "Priority" in fields:
            job.own_priority = int(fields["Priority"])
            job.held = job.own_priority == 0
    except ValueError:
        raise SlurmError("scontrol failed: Invalid numeric value") from None
    if job.state == "PENDING":
        slurm.priorities_changed(job)
