# SPDX-License-Identifier: MIT
"""Leases that stand on the jobs themselves: which are over, and what puts the user's own lists back.

The submit filter (in the admin comment) and palsub (in the comment) leave a mark beside a
hard node list: `pal:lease=60;req=;exc=n3;...`. All users can write such a mark on a job of
their own, so nothing in it is believed beyond that job: at worst it clears their own lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED, verdict
from slurm_pal.decide.offers import named_in_vain
from slurm_pal.decide.ownership import Whose, listed, names, whose
from slurm_pal.decide.partition_mark import mark_of

_KEY = "lease"
_UNKNOWN: Mapping[str, Node] = {}
_LIST = {"nodelist": REQUIRED, "exclude": EXCLUDED}
"""Which list a decision has set."""


class Mark(NamedTuple):
    """The mark of one lease."""

    lease_s: float
    user_req: str  # the user's own lists, as they wrote them
    user_exc: str
    action: str  # nodelist, exclude, prefer or none
    ours: str  # what was set: for nodelist and exclude the list
    words: dict[str, str]  # all of it


class Update(NamedTuple):
    """What ends one job's lease: fields for one `scontrol update`."""

    job_id: int
    fields: dict[str, str]


def mark_in(text: str) -> Mark | None:
    """The first mark in a comment, whatever else stands there; None where there is none."""
    return next(iter(_marks_in(text)), None)


def _marks_in(text: str) -> list[Mark]:
    return [mark for pairs in marks.words(text, _KEY) if (mark := _mark(pairs)) is not None]


def _mark(pairs: Mapping[str, str]) -> Mark | None:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,3})?", pairs.get(_KEY, "")):
        return None
    own = pairs.get("req", ""), pairs.get("exc", "")
    return Mark(float(pairs[_KEY]), *own, pairs.get("act", ""), pairs.get("set", ""), dict(pairs))


def marks_of(job: SlurmJob) -> list[Mark]:
    """The marks on a job: the filter's, palsub's, which has two where it has set a node list and an exclusion."""
    return [*_marks_in(job.admin_comment), *_marks_in(job.comment)]


def in_force(job: SlurmJob) -> dict[str, str]:
    """The lists on a job that a mark has set and nobody has changed since, each with the user's own instead."""
    found: dict[str, str] = {}
    for mark in marks_of(job):
        found |= _restored(job, mark)
    parted = mark_of(job)
    return found | {PARTITION: parted.own} if parted is not None else found


def ending(
    job: SlurmJob, now_s: float, pass_s: float, nodes: Mapping[str, Node] = _UNKNOWN, *, shared: bool = False
) -> Update | None:
    """The update that takes back those leases of a job that are over; None where none is. Pure.

    `nodes` are the cluster's, as they are now. `pass_s` is the time of one scheduling pass, granted to a job that
    Slurm has not looked at. A held job is left alone, and so is one that waits for another job or for a time, and
    every list that is no longer as we set it. Jobs with a lease of the tick (pending/retarget.py) must not be given:
    an old mark may name the same nodes. With `shared` the tick has set the partitions that the job has now.
    """
    if job.state != "PENDING" or job.held:
        return None
    fields: dict[str, str] = {}
    for mark in marks_of(job):
        in_vain = _LIST.get(mark.action) == REQUIRED and named_in_vain(job, nodes, now_s)
        if _over(job, mark.lease_s, now_s, pass_s, in_vain):
            fields |= _restored(job, mark)
    parted = None if shared else mark_of(job)
    if parted is not None and _over(job, parted.lease_s, now_s, pass_s):
        fields = in_force(job)  # the nodes that palsub has named are all in the partition that it has set
    return Update(job.job_id, fields) if fields else None


def judged(
    jobs: Iterable[SlurmJob], judge: Callable[[SlurmJob], Update | None]
) -> tuple[list[Update], list[tuple[SlurmJob, Exception]]]:
    """What `judge` returns for each job, and the jobs on which it fails, so that they do not stop the others."""
    found: list[Update] = []
    broken: list[tuple[SlurmJob, Exception]] = []
    for job in jobs:
        try:
            update = judge(job)
        except Exception as error:  # whatever a user may have written there
            broken.append((job, error))
            continue
        if update is not None:
            found.append(update)
    return found, broken


def _over(job: SlurmJob, lease_s: float, now_s: float, pass_s: float, in_vain: bool = False) -> bool:
    """The lease runs from when the job may start; a promise for one start ends with a requeue."""
    made_s = max(job.submit_s, job.eligible_s)
    if job.restarts:
        lease_s = 0.0
    if now_s < job.submit_s - CLOCK_SKEW_S:  # the clock was set back: nobody knows how long it has waited
        made_s, lease_s = now_s - pass_s, 0.0
    return verdict(job.reason, made_s, made_s + lease_s, pass_s, now_s, in_vain) == "clear"


def _restored(job: SlurmJob, mark: Mark) -> dict[str, str]:
    """The user's own list in place of the one that the mark has set, where that still stands as we set it."""
    key = _LIST.get(mark.action, "")
    own = {REQUIRED: mark.user_req, EXCLUDED: mark.user_exc}.get(key, "")
    theirs, ours = names(own), names(mark.ours)
    if not key or theirs is None or not ours:
        return {}
    return {key: own} if whose(listed(job, key), theirs, [ours, ours | theirs]) is Whose.OURS else {}
