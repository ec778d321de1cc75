# SPDX-License-Identifier: MIT
"""A line for people in the admin comment of each job that has started, where the site wants that
(`submit.admin_note`)."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import gpu_note
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.placement.faulty import is_faulty
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store.snapshot import Snapshot, known_class

MOST = 20
"""Orders to Slurm in one publication; the others wait for the next one."""
MOST_WAITING = 2000


class JobNotes:
    """What is still to be written, and writing it."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._waiting: dict[int, SlurmJob] = {}

    def add(self, started: Iterable[SlurmJob]) -> None:
        """These jobs have just started; beyond `MOST_WAITING` some get no line."""
        for job in started:
            if len(self._waiting) < MOST_WAITING:
                self._waiting[job.job_id] = job

    def write(self, running: Iterable[SlurmJob], scores: Snapshot) -> list[str]:
        """Write those of the jobs that still run; what went wrong, one line each."""
        now = {job.job_id: job for job in running if job.job_id in self._waiting and any(job.gpus.values())}
        self._waiting = {job_id: job for job_id, job in now.items()}
        for job_id, job in list(now.items())[:MOST]:
            del self._waiting[job_id]
            text = text_of(job, scores)
            comment = gpu_note.put(job.admin_comment, text) if text else None
            if comment is None or comment == job.admin_comment:
                continue
            try:
                self._client.update_job(job_id, AdminComment=comment)
            except SlurmError as error:
                return [f"the admin comment of job {job_id} stays without a line about its GPUs: {error}"]
        return []


def text_of(job: SlurmJob, scores: Snapshot) -> str:
    """The line about a running job's GPUs, "" where one of them fails or none was ever measured. Pure."""
    slots = [(node, index) for node, indexes in job.gpus.items() for index in indexes]
    rows = [row for slot in slots if (row := scores.row(*slot)) is not None]
    c = known_class(facts_of(job, MoveSettings()).sensitivity)
    known = [score.slowdown[c] for score in map(scores.gpu, rows) if c in score.slowdown]
    if not known or is_faulty(max(known)) or any(scores.gpu(row).state != "ok" for row in rows):
        return ""
    return gpu_note.line(len(slots), max(known), gpu_note.alone(job))
