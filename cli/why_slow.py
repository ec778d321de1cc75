# SPDX-License-Identifier: MIT
"""pal why-slow: which GPU holds a job up."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base import marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, PalError, UsageError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.cli import common
from slurm_pal.cli.explain import published
from slurm_pal.cli.job_names import JobName, find_job, job_name
from slurm_pal.cli.job_record import class_of, decision_of, started_of
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Observation, open_journal
from slurm_pal.moves import learning
from slurm_pal.online import collectives, culprit, word
from slurm_pal.online.culprit import Found
from slurm_pal.placement import penalties
from slurm_pal.report import actual, why_slow
from slurm_pal.report.why_slow import Case, Steps
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.parse import work_dir
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.tick.deciding import MEMORY_S


@click.command("why-slow")
@click.argument("job", metavar="JOBID")
@click.option(
    "--records", metavar="DIR",
    help="Where the inspector plug-in wrote (default: nccl-inspector-JOBID where the job started, or here).",
)  # fmt: skip
@common.json_option
@common.verbose_option
def why_slow_command(job: str, records: str | None, as_json: bool) -> None:
    """Show which GPU holds a job up: one sentence, and the evidence below it.

    A task of an array is 4711_2, as squeue shows it. Running jobs and those that have ended can be asked about;
    of a job that Slurm has forgotten only what palsub noted and what its records show is left.

    \b
    Evidence, the strongest first:
      records of collectives  who waits for whom, by the inspector plug-in of NCCL or RCCL
      steps                   their time against that of like jobs (pal progress)
      measurements            slowdowns, flags and faults of its GPUs

    Only its own user, root and SlurmUser can ask about a job.
    """
    named = job_name(job)
    config = settings.load()
    case = _case(config, named, records)
    who = why_slow.held(case)
    if as_json:
        common.print_json("why_slow", why_slow.as_json(case, who))
        return
    common.say(*why_slow.lines(case, who))


def _case(config: Config, named: JobName, records: str | None) -> Case:
    number, job, trouble = find_job(connect(config), named)
    if job is not None and not (paths.has_powers() or job.user == paths.user_name()):
        raise UsageError(
            f"job {named} belongs to another user: you can ask about your own jobs (squeue --me), "
            "and admins about all of them"
        )
    decision = decision_of(number, job)
    remarks: list[str] = []
    found, folder = (None, "") if job and job.state in JOB_WAITING else _records(number, job, records, remarks)
    if job is None and decision is None and found is None:
        raise UsageError(
            f"job {named} is unknown: {trouble or 'Slurm has forgotten it; --records DIR reads its records'}"
        )
    snapshot = published()
    noted = started_of(config, named.job_id, named.task, decision, job)
    seen = actual.actual(job, snapshot, time.time(), noted)
    sensitivity = class_of(config, job, decision)
    return Case(
        str(named), job, seen, sensitivity, _steps(config, number, job, snapshot, remarks), found, folder,
        word.read(job) if job else None, tuple(remarks),
    )  # fmt: skip


def _records(number: int, job: SlurmJob | None, given: str | None, remarks: list[str]) -> tuple[Found | None, str]:
    """What the records of its collectives show, and where they are. Raises DataError for a folder that was named."""
    uid = job.uid if job is not None and job.uid not in (-1, os.geteuid()) else None
    name = word.FOLDER.format(number)
    started_in = work_dir(job) if job is not None else ""
    places = [given] if given is not None else [os.path.join(started_in, name)] if started_in else []
    if given is None and os.path.abspath(name) not in places:
        places.append(name)
    for place in places:
        if given is None and not os.path.isdir(place):
            continue
        try:
            held = collectives.read(place, uid, since_s=job.start_s if job is not None else 0.0)
        except DataError as error:
            if given is not None:
                raise
            remarks.append(one_line(error))
            continue
        if held.cut:
            remarks.append(f"{place}: {held.cut}")
        if held.refused:
            remarks.append(f"{place}: {held.refused} lines that are no records")
        return culprit.find(held.collectives), place
    return None, ""


def _steps(
    config: Config, number: int, job: SlurmJob | None, snapshot: Snapshot | None, remarks: list[str]
) -> Steps | None:
    """The job's own steps: by the journal that this user may read, else since its start."""
    said = marks.read(job.comment, marks.PROGRESS) if job else {}
    own, learnt = _observed(config, number, snapshot, remarks)
    done = digits(said.get("it", ""))
    if done is None and own is None:
        return None
    total = digits(said.get("of", ""))
    if own is not None:
        factor = learnt.jobs.get(number) if learnt else None
        return Steps(done or 0, total, own.step_s, factor, own.predicted)
    at_s = digits(said.get("at", ""))
    ran_s = at_s - job.start_s if job and at_s and job.start_s else 0.0
    mean_s = ran_s / done if done and ran_s > 0 and said.get("r") == str(job.restarts if job else 0) else None
    return Steps(done or 0, total, mean_s)


def _observed(
    config: Config, number: int, snapshot: Snapshot | None, remarks: list[str]
) -> tuple[Observation | None, Any]:
    """The newest observation of the job by a tick, and what all of them teach."""
    path = paths.readable_journal(config)
    if path is None:
        return None, None
    try:
        with open_journal(path, write=False) as journal:
            seen = journal.observations(time.time() - MEMORY_S)
    except PalError as error:
        remarks.append(one_line(error))
        return None, None
    own = [one for one in seen if one.job_id == number]
    if not own:
        return None, None
    ratios = snapshot.network if snapshot is not None else {}
    expected = penalties.expected(config.number("placement", "locality_penalty"), ratios)
    return own[-1], learning.corrections(seen, snapshot, expected=expected, ratios=ratios)
