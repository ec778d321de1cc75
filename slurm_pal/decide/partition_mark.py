# SPDX-License-Identifier: MIT
"""The mark on a job whose list of partitions was made shorter: `pal:part=40;own=h100,a100;set=h100`.

palsub leaves it in the comment, the submit filter in the admin comment.

Whoever looks at the job sees whose list it is. The tick goes on from the user's own list; where no tick looks at
the job in time, the daemon that takes leases back puts that list back. All users can write such a mark on a job
of their own, so nothing in it is believed beyond that job.
"""

from __future__ import annotations

import re

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.light import NamedTuple

KEY = "part"
_NAME = r"[A-Za-z0-9_.:+@-]+"


class PartitionMark(NamedTuple):
    """One such lease."""

    lease_s: float
    own: str  # the user's own list, as they wrote it
    ours: str  # the partition that was set


def word(lease_s: float, own: tuple[str, ...], ours: str) -> str:
    """The mark; "" where a partition has a name that it cannot hold."""
    if not all(re.fullmatch(_NAME, name) for name in own):
        return ""
    return marks.word({KEY: f"{lease_s:.0f}", "own": ",".join(own), "set": ours})


def mark_of(job: SlurmJob) -> PartitionMark | None:
    """The mark on a job, as long as its list of partitions is the one that was set; else None."""
    mark = _read(job)
    return mark if mark is not None and job.partition == mark.ours else None


def _read(job: SlurmJob) -> PartitionMark | None:
    """The submit filter's mark, or palsub's."""
    pairs = marks.read(job.admin_comment, KEY) or marks.read(job.comment, KEY)
    own, ours = pairs.get("own", ""), pairs.get("set", "")
    names = own.split(",")
    if not re.fullmatch(r"\d{1,9}", pairs.get(KEY, "")) or len(names) < 2 or ours not in names:
        return None
    return PartitionMark(float(pairs[KEY]), own, ours) if all(re.fullmatch(_NAME, name) for name in names) else None


def noted_partitions(job: SlurmJob) -> tuple[str, ...]:
    """Its user's own list, of a job that runs in one of these partitions; () where no mark has it."""
    mark = _read(job)
    own = tuple(mark.own.split(",")) if mark is not None else ()
    return own if job.partition in own else ()


def own_partitions(job: SlurmJob) -> str:
    """The list of partitions that the job's user wants, as far as the job shows it."""
    mark = mark_of(job)
    return mark.own if mark is not None else job.partition
