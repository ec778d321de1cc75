# SPDX-License-Identifier: MIT
"""What a job in Slurm asks for.

What Slurm shows of it is put back into options of sbatch and read by the same code as a submission, so
that a job is understood alike when it is submitted and while it waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from slurm_pal.base import marks
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import filter_marks
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.request import OURS_SOFT, Request, read
from slurm_pal.slurm.job_options import NodeRange, options_of


def request_of(job: SlurmJob, own_req: str | None = None, own_exc: str | None = None, gather: bool = False) -> Request:
    """The request of a job in the queue. Pure, never raises: doubts end in `leave`.

    With `gather` a total of GPUs on an open number of nodes is not left to Slurm where the user's own range is known:
    shown by Slurm until the first start, afterwards by the mark.

    `own_req` and `own_exc` are the user's own node lists where the job's present ones are
    not theirs; None: as they stand on the job, a list that a mark has set (`pal:lease=`)
    replaced by the one it holds. For a running job the number of nodes is the one it has, but for such a range.
    """
    marked = in_force(job)
    lists = {
        "nodelist": marked.get("ReqNodeList", fold(job.req_nodes)) if own_req is None else own_req,
        "exclude": marked.get("ExcNodeList", fold(job.exc_nodes)) if own_exc is None else own_exc,
    }
    options = options_of(job, gather, own_range(job) if gather else None)
    if isinstance(options, str):
        return Request(leave=options)
    if not any(name and not name.startswith(OURS_SOFT) for name in re.split(r"[|&]", options.get("prefer", ""))):
        options.pop("prefer", None)
    options |= {name: text for name, text in lists.items() if text}
    return _built(tuple(options.items()))


def request_at(job: SlurmJob, changed: Mapping[str, str]) -> Request:
    """The request that a job would be with other options of sbatch; "" takes one away. Never raises."""
    options = options_of(job)
    if isinstance(options, str):
        return Request(leave=options)
    kept = {name: text for name, text in {**options, **changed}.items() if text}
    return _built(tuple(kept.items()))


def own_range(job: SlurmJob) -> NodeRange | None:
    """The range of nodes that the job was submitted with, as the submit filter or palsub has written it down."""
    for mark in (*filter_marks(job), marks.read(job.comment, marks.JOB)):
        found = marks.read_range(mark.get(marks.NODES, ""))
        if found is not None:
            return NodeRange(*found)
    return None


@lru_cache(1024)  # of thousands of jobs most ask for the same few things
def _built(options: tuple[tuple[str, str], ...]) -> Request:
    return read(dict(options))
