# SPDX-License-Identifier: MIT
"""The short line about a job's GPUs: at the end of its output, and for people in its admin comment. Pure."""

from __future__ import annotations

import re

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.facts import filter_marks
from slurm_pal.decide.lease_marks import marks_of
from slurm_pal.placement.faulty import is_faulty

BEGINS = "slurm-pal: ran on "
_OURS = re.compile(rf" ?{BEGINS}(?:a GPU|[0-9]+ GPUs)[a-z', ]*[0-9.]+ of a median GPU's time[^:]*?(?=$| pal:)")


def counted(number: int) -> str:
    """Like `4 GPUs`, `1 GPU`."""
    return f"{number} GPU{'' if number == 1 else 's'}"


def line(gpus: int, slowest: float, alone: float | None, same: bool = False) -> str:
    """`slowest` and `alone` are slowdowns: of the slowest GPU, and of that where plain Slurm would have put the job."""
    who = "a GPU" if gpus == 1 else f"{counted(gpus)}, the slowest"
    text = f"{BEGINS}{who} at {slowest:.2f} of a median GPU's time"
    if same:
        return f"{text}, as Slurm alone would have given"
    return f"{text}; Slurm alone would have given {alone:.2f}" if alone is not None and not is_faulty(alone) else text


def alone(job: SlurmJob) -> float | None:
    """The slowdown where plain Slurm would have put the job, by the mark of palsub or of the submit filter.

    None where they left the job to Slurm, for a job that runs again, and for words that they never write.
    """
    if job.restarts:
        return None
    for words in [mark.words for mark in marks_of(job)] + filter_marks(job):
        said = words.get(marks.ALONE, "")
        if re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,4}", said) and float(said):
            return float(said)
    return None


def put(admin_comment: str, text: str) -> str | None:
    """An admin comment with the line at its end, in place of an older one; None where it has no room or is not ours
    to write again."""
    if not admin_comment.isprintable():
        return None
    kept = _OURS.sub("", admin_comment).rstrip(" ")
    whole = f"{kept} {text}".lstrip(" ")
    return whole if len(whole.encode()) <= marks.MOST else None
