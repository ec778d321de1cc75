# SPDX-License-Identifier: MIT
"""How often a job was continued after its time limit (palsub --pal-save-before), and why it went on no further."""

from __future__ import annotations

from typing import Any

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits

OVER_TIME = ("TIMEOUT", "DEADLINE")


def continued(job: SlurmJob | None, decision: dict[str, Any] | None) -> dict[str, Any] | None:
    """`times`, `most`, all `restarts`, and `why` the job has ended or waits; None for one that is not to be continued.

    The mark is the wrapper's; `decision` is palsub's record, which is there before the first continuation.
    """
    if job is None:
        return None
    said = marks.read(job.comment, marks.CONTINUED)
    asked = (decision or {}).get("saving")
    if not said and not asked:
        return None
    times = digits(said.get(marks.CONTINUED, "")) or 0
    most = digits(said.get("of", "")) or (asked or {}).get("times", times)
    return {"times": times, "most": most, "restarts": job.restarts, "why": _why(job, times, most)}


def _why(job: SlurmJob, times: int, most: int) -> str:
    """Why it runs no more, "" while it runs or before it has run."""
    if job.state == "PENDING":
        return "it waits to go on from its checkpoint" if times and job.restarts else ""
    if job.state in ("COMPLETED", "FAILED"):
        return f"its script has ended by itself ({job.state})"
    if job.state not in OVER_TIME:
        return "" if job.state in ("RUNNING", "COMPLETING") else f"it is {job.state}"
    if times >= most:
        return "its time limit ended it, since it was continued as often as it may be"
    answer = marks.read(job.comment, marks.ACK)
    if answer.get(marks.ACK, "").partition(".")[0] != str(job.restarts):
        return "its time limit ended it before it had made its checkpoint"
    if answer.get("failed"):
        return "its time limit ended it, since its checkpoint had failed"
    return "its time limit ended it after its checkpoint: it could not be requeued (its output says why)"


def line(found: dict[str, Any]) -> str:
    """The same as a sentence."""
    text = f"Continued after its time limit: {found['times']} of at most {found['most']} times"
    if found["restarts"] > found["times"]:
        text += f" (requeued {found['restarts']} times in all)"
    return f"{text}; {found['why']}" if found["why"] else text
