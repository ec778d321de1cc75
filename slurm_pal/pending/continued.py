# SPDX-License-Identifier: MIT
"""Which jobs wait only for Slurm's delay after their own requeue before their time limits (--pal-save-before). Pure.

Slurm begins that delay when the run that was stopped has ended, so the job itself cannot shorten it.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits

LEAST_S = 3.0
"""A shorter rest of the delay is left as it is."""
_EXACT_S = 1.0


def delayed(jobs: Iterable[SlurmJob], delay_s: float, now_s: float) -> list[SlurmJob]:
    """Those of the jobs; `delay_s` is what Slurm waits after a requeue.

    A job that somebody holds, that waits for another one, or for a time of its user's, stays as it is: Slurm's own
    delay is known by its length. So does the last task of an array, whose number means all of them.
    """
    return [
        job
        for job in jobs
        if job.state == "PENDING" and not job.held and job.reason.startswith("BeginTime") and job.restarts
        and abs(job.eligible_s - job.submit_s - delay_s) <= _EXACT_S and job.eligible_s >= now_s + LEAST_S
        and job.job_id != job.array_job_id and _has_saved(job)
    ]  # fmt: skip


def _has_saved(job: SlurmJob) -> bool:
    """Whether its last run made its checkpoint, and it was continued after its time limit before."""
    answer = marks.read(job.comment, marks.ACK)
    last = answer.get(marks.ACK, "").partition(".")[0] == str(job.restarts - 1) and not answer.get("failed")
    return last and bool(digits(marks.read(job.comment, marks.CONTINUED).get(marks.CONTINUED, "")))
