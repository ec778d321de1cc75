# SPDX-License-Identifier: MIT
"""pal explain: why a job runs where it runs."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, PalError, SlurmError, UsageError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.cli import common
from slurm_pal.decide.facts import UNMARKED, appends, facts_of
from slurm_pal.journal import paths
from slurm_pal.journal.journal import open_journal
from slurm_pal.report import actual, continued, filter_mark, loan_words
from slurm_pal.report import story as stories
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import decision as decisions
from slurm_pal.tick.deciding import terms_of

SAME_START_S = 1.0
"""Two times of a start that differ by more are those of two runs."""


class JobName(NamedTuple):
    """A job as its user names it: 4711, or 4711_2 for a task of an array."""

    job_id: int
    task: int | None = None

    def __str__(self) -> str:
        return str(self.job_id) if self.task is None else f"{self.job_id}_{self.task}"


def job_name(text: str) -> JobName:
    """Read a JOBID. Raises UsageError."""
    number, sign, task = text.partition("_")
    job_id, index = digits(number), digits(task) if sign else None
    if not job_id or (sign and index is None):
        raise UsageError(f"JOBID {text!r} is neither a job like 4711 nor a task of an array like 4711_2: see squeue")
    return JobName(job_id, index)


@click.command()
@click.argument("job", required=False, metavar="JOBID")
@click.option("--last", is_flag=True, help="The job that palsub submitted last.")
@common.json_option
@common.verbose_option
def explain(job: str | None, last: bool, as_json: bool) -> None:
    """Explain why a job runs where it runs: what was decided, what Slurm did with it, what the ticks did since.

    A task of an array is 4711_2, as squeue shows it.

    For a job that neither palsub nor the submit filter saw, it shows only the GPUs and what is known about them.
    """
    if (job is None) != last:
        raise UsageError("give either a job id or --last: pal explain 4711, pal explain --last")
    _explain(job_name(job) if job is not None else None, as_json)


def _explain(named: JobName | None, as_json: bool) -> None:
    config = settings.load()
    client = connect(config)
    decision = decisions.load("", named.job_id) if named else decisions.last("")
    if named is None:
        if decision is None:
            raise DataError("palsub has recorded no decision on this cluster: submit a job with palsub first")
        named = JobName(int(decision["job_id"]))
    number, job, trouble = find_job(client, named)
    if decision is None and job is not None and job.array_job_id not in (None, number):
        decision = decisions.load("", job.array_job_id or 0)  # one submission, one decision for all its tasks
    ticks = _ticks(config, number, job)
    if job is None and decision is None and not ticks:
        raise UsageError(f"job {named} is unknown: {trouble or 'Slurm has forgotten it, and palsub did not submit it'}")
    if decision is not None and job is not None and job.gpus and job.array_job_id is None:
        with contextlib.suppress(PalError, OSError):
            decisions.started("", int(decision["job_id"]), job.gpus, job.start_s)
    snapshot = published()
    found = actual.actual(job, snapshot, time.time(), _started(named, decision, job))
    mark = filter_mark.decision(job) if job else None
    stays = _stays(config, client, job) if job else ""
    limits = continued.continued(job, decision)
    loans = loan_words.words_of(config, client, number, str(named), job, time.time())
    story = stories.in_order([*stories.of_submission(decision, mark, job.submit_s if job else 0.0), *ticks])
    if as_json:
        seen = observed.read(job.comment) if job else None
        body: dict[str, object] = {
            "job_id": number, "decision": decision, "filter": mark, "actual": found, "story": story,
        }  # fmt: skip
        of_array = job.array_job_id if job and job.array_job_id is not None else named.job_id
        task = named.task if named.task is not None else job.array_task_id if job else None
        body["array"] = {"job_id": of_array, "task": task} if task is not None else None
        body["palsub"] = filter_mark.by_palsub(job) if job else []
        body["observed"] = observed.evidence(seen)._asdict() if seen else None
        body["not_moved"], body["continued"] = stays or None, limits
        body["taken_off"], body["not_lent"] = loans.taken_off or None, loans.not_lent or None
        common.print_json("explain", body)
        return
    text = [
        *filter(None, (loans.taken_off,)),
        *_actual_text(named, job, found, decision, trouble),
        *_observed_text(job),
        *([continued.line(limits)] if limits else []),
        *filter(None, (loans.not_lent,)),
        "",
        *_decided_text(decision, mark, job),
        *([f"Not moved while it runs: {stays}"] if stays else []),
        *_story_text(story),
    ]
    for line in text:
        common.say(line)


def _stays(config: Config, client: SlurmClient, job: SlurmJob) -> str:
    """Why a tick would not move a job that somebody marked movable; "" where it would."""
    facts = facts_of(job, terms_of(config, appends=False))
    if job.state not in ("PENDING", "RUNNING") or not facts.ours or facts.why_not in ("", UNMARKED):
        return ""
    try:
        return facts_of(job, terms_of(config, appends(client.config()))).why_not
    except SlurmError:
        return facts.why_not


def _ticks(config: Config, number: int, job: SlurmJob | None) -> list[stories.Event]:
    """What the ticks did with a job: from the journal that this user may read, and from the marks on a job of theirs.

    The site's journal has all that the marks say. A user's own journal has only what their ticks did.
    """
    found: list[stories.Event] = []
    path = paths.readable_journal(config)
    if path is not None:
        try:
            with open_journal(path, write=False) as journal:
                found = stories.of_journal(journal, number)
        except PalError as error:
            common.say(f"pal: {one_line(error)}", err=True)
    if job is None or (paths.has_powers() and found) or not (paths.has_powers() or job.user == paths.user_name()):
        return found
    return [*found, *stories.of_words(job)]


def _story_text(story: list[stories.Event]) -> list[str]:
    if all(event["what"] == stories.SUBMITTED for event in story):
        return []
    return ["", "What the tick did:", *(f"  {line}" for line in stories.lines(story))]


def _actual_text(
    named: JobName, job: SlurmJob | None, found: dict[str, Any] | None, decision: dict[str, Any] | None, trouble: str
) -> list[str]:
    if found is None or (job is None and trouble):
        return [f"Job {named}: {trouble or 'Slurm no longer knows it, and nobody has noted its GPUs'}"]
    first, *rest = actual.lines(str(named), job, found)
    outcome = actual.verdict(found, decision)
    return [first, *([outcome] if outcome else []), *rest]


def _started(named: JobName, decision: dict[str, Any] | None, job: SlurmJob | None) -> dict[str, Any] | None:
    """Where the job started, as noted then; None for tasks of an array, and where it waits or has run again since."""
    noted: dict[str, Any] | None = (decision or {}).get("started")
    if noted is None or named.task is not None:
        return None
    if job is not None and (job.state in JOB_WAITING or abs(job.start_s - noted["at_s"]) > SAME_START_S):
        return None
    return noted


def _observed_text(job: SlurmJob | None) -> list[str]:
    """What an observer beside the job has measured, whatever class it was submitted with."""
    seen = observed.read(job.comment) if job else None
    if seen is None:
        return []
    label = observed.evidence(seen)
    return [f"Measured ({label.stage}): class {label.sensitivity}, confidence {label.confidence:.2f}: {label.why}"]


def _decided_text(decision: dict[str, Any] | None, mark: dict[str, Any] | None, job: SlurmJob | None) -> list[str]:
    text: list[str] = []
    left = decision or (filter_mark.by_palsub(job) if job else [])
    if decision is not None:
        text += ["What palsub decided:", *(f"  {line}" for line in decisions.render(decision))]
    elif left:
        text += ["What the palsub of its user decided (by its mark on the job):", *(f"  {line}" for line in left)]
    if filter_mark.left_to_palsub(mark, left):
        text.append("The submit filter left it to palsub.")
    elif mark is not None:
        where = "in slurmctld" if mark["by"] == "slurmctld" else "in the client"
        text += [f"What the submit filter decided ({where}):", *(f"  {line}" for line in filter_mark.lines(mark))]
    nobody = "Neither your palsub nor the submit filter decided about this job. (Another user's palsub may have.)"
    return text or [nobody]


def find_job(client: SlurmClient, named: JobName) -> tuple[int, SlurmJob | None, str]:
    """The job's own id, what Slurm knows of it, and why it does not answer. Raises UsageError for no array."""
    number = named.job_id
    try:
        if named.task is not None:
            found = client.task(named.job_id, named.task)
            if found is None:
                other = client.job(named.job_id)
                if other is not None and other.array_job_id is None:
                    raise UsageError(f"job {named.job_id} is no array: leave out _{named.task}")
                known = f"array {named.job_id} has no such task, or Slurm has forgotten it"
                return number, None, known if other else ""
            number = found
        return number, client.job(number), ""
    except SlurmError as error:
        return number, None, one_line(error)


def published() -> snapshots.Snapshot | None:
    """The snapshot in force; None where there is none, which is said on stderr."""
    try:
        return snapshots.read(settings.load().snapshot_path)
    except DataError as error:
        common.say(f"pal: {one_line(error)}", err=True)
        return None
