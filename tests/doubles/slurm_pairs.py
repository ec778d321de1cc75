# SPDX-License-Identifier: MIT
"""Jobs as Slurm would show them with these key=value pairs, too."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm import parse

_OF = {
    "Priority": ("priority",), "EligibleTime": ("eligible_s",), "BatchFlag": ("batch",), "Requeue": ("may_requeue",),
    "QOS": ("qos",), "Account": ("account",), "AdminComment": ("admin_comment",), "HetJobId": ("het",),
    "ArrayJobId": ("array_job_id",), "ArrayTaskId": ("array_task_id",), "UserId": ("uid",), "ExitCode": ("exit_code",),
    "TimeLimit": ("time_limit_s", "unlimited"), "Partition": (), "Reason": ("reason",),
}  # fmt: skip


def shown(job: SlurmJob, pairs: Mapping[str, str]) -> SlurmJob:
    """The job with these pairs beside what it has; what none of them speaks of stays."""
    whole = {**job.raw, **pairs}
    known = parse.decisive(whole)
    found = {name: known[name] for key in pairs for name in _OF.get(key, ())}
    return job._replace(raw=whole, asks=known["asks"], **found)
