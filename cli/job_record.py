# SPDX-License-Identifier: MIT
"""What has been written down of one job: palsub's record, where it started, its class."""

from __future__ import annotations

from typing import Any

from slurm_pal.base.config import Config
from slurm_pal.base.jobs import UNKNOWN_CLASS, SlurmJob
from slurm_pal.decide.facts import facts_of
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store import starts
from slurm_pal.submit import decision as decisions
from slurm_pal.tick.deciding import terms_of

SAME_START_S = 1.0
"""Two times of a start that differ by more are those of two runs."""


def decision_of(number: int, job: SlurmJob | None) -> decisions.Record | None:
    """palsub's record of a job; one submission, one decision for all tasks of an array. Raises DataError."""
    decision = decisions.load("", number)
    if decision is None and job is not None and job.array_job_id not in (None, number):
        decision = decisions.load("", job.array_job_id or 0)
    return decision


def class_of(config: Config, job: SlurmJob | None, decision: decisions.Record | None) -> str:
    """The sensitivity class by which its GPUs are judged, "?" where nobody knows."""
    sensitivity = facts_of(job, terms_of(config, appends=False)).sensitivity if job else UNKNOWN_CLASS
    return str(decision["sensitivity"]["class"]) if sensitivity == UNKNOWN_CLASS and decision else sensitivity


def started_of(
    config: Config, job_id: int, task: int | None, decision: decisions.Record | None, job: SlurmJob | None
) -> dict[str, Any] | None:
    """Where the job started, as palsub or the publisher noted then; None where it waits or has run again since.

    Raises DataError for a file that cannot be trusted.
    """
    if job is not None and job.state in JOB_WAITING:
        return None
    found: list[dict[str, Any]] = []
    if decision and decision.get("started") and task is None:
        found.append(decision["started"])
    if job is None or not any(job.gpus.values()):
        start = starts.find(config.snapshot_path, job_id, task)
        found += [starts.noted(start)] if start else []
    if job is not None:
        found = [noted for noted in found if abs(job.start_s - noted["at_s"]) <= SAME_START_S]
    return max(found, key=lambda noted: float(noted["at_s"]), default=None)
