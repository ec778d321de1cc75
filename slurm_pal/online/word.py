# SPDX-License-Identifier: MIT
"""The word `pal:slow=` in a job's comment: which of its GPUs the others wait for, as its own processes found.

Slurm lets only a job's owner change its comment, and the word is believed of the job's own GPUs only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.online import collectives, culprit
from slurm_pal.online.collectives import Limits
from slurm_pal.online.culprit import Found

NOBODY = "-"
"""In place of a GPU: the records show that no rank waits for another."""
FOLDER = "nccl-inspector-{}"
"""Where the plug-ins write, in the folder that the job started in, unless NCCL_INSPECTOR_DUMP_DIR names another."""
INSIDE = Limits(files=1024, bytes=16 << 20, seconds=1.0)
"""What a job's own report may read."""
MOST_FACTOR = 2.0
"""A job that loses more has other trouble."""

_FACTOR = re.compile(r"\d{1,3}\.\d{1,3}")
_WHOLE = re.compile(r"\d{1,12}")


class SlowWord(NamedTuple):
    """What the word says."""

    node: str  # "" where nobody is waited for
    index: int | None  # type: ignore[assignment]  # hides tuple.index, which nobody calls here; None: the whole node
    factor: float  # how many times longer the job takes
    collectives: int
    at_s: float  # Unix s, by the node's clock


def folder_of(environ: Mapping[str, str], cwd: str) -> str:
    """Where this job's processes write their records."""
    named = environ.get("NCCL_INSPECTOR_DUMP_DIR", "")
    return os.path.join(cwd, named or FOLDER.format(environ.get("SLURM_JOB_ID", "")))


def word(found: Found, job: SlurmJob, now_s: float) -> dict[str, str]:
    """The values of the word; {} where the records show nothing about the job's GPUs."""
    if found.why_not:
        return {}
    place, factor = NOBODY, 1.0
    if found.culprit is not None:
        node, indexes = culprit.place(found.culprit, job.gpus)
        if not node:
            return {}
        place = f"{node}:{indexes[0]}" if found.culprit.position is not None and len(indexes) == 1 else node
        factor = min(found.culprit.factor, MOST_FACTOR)
    return {
        marks.SLOW: place,
        "x": f"{factor:.3f}",
        "n": str(found.collectives),
        "at": f"{now_s:.0f}",
        "r": str(job.restarts),
    }


def look(folder: str, job: SlurmJob) -> Found:
    """What the records of this process's own job show. Raises DataError."""
    held = collectives.read(folder, limits=INSIDE, since_s=job.start_s)
    found = culprit.find(held.collectives)
    if held.cut and not found.why_not:
        # Of a node whose ranks were not all read no single GPU can be named; and who was not read may be late.
        late = found.culprit
        node, _ = ("", ()) if late is None else culprit.place(late, job.gpus)
        if late is None or late.of != len(job.gpus.get(node, ())):
            return found._replace(culprit=None, why_not=held.cut)
    return found


def read(job: SlurmJob) -> SlowWord | None:
    """The word on a job; None without one, for one that we never write, and for GPUs that are not the job's."""
    said = marks.read(job.comment, marks.SLOW)
    texts = said.get("n", ""), said.get("at", "")
    if not _FACTOR.fullmatch(said.get("x", "")) or not all(map(_WHOLE.fullmatch, texts)):
        return None
    if said.get("r") != str(job.restarts):
        return None
    node, sign, number = said[marks.SLOW].partition(":")
    factor = min(max(float(said["x"]), 1.0), MOST_FACTOR)
    if node == NOBODY:
        return SlowWord("", None, 1.0, int(texts[0]), float(texts[1]))
    index = digits(number) if sign else None
    known = any(job.gpus.values())  # not of a job that has ended
    if node not in (job.gpus if known else job.nodes) or (sign and index is None):
        return None
    if known and sign and index not in job.gpus[node]:
        return None
    return SlowWord(node, index, factor, int(texts[0]), float(texts[1]))
