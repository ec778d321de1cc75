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
from slurm_pal.cli import common
from slurm_pal.cli.job_names import FoundJob, JobName, find_jobs, job_names
from slurm_pal.cli.job_record import class_of, decision_of, started_of
from slurm_pal.decide.facts import UNMARKED, appends, facts_of
from slurm_pal.journal import paths, story
from slurm_pal.journal.journal import open_journal
from slurm_pal.report import actual, continued, filter_mark, loan_words
from slurm_pal.report import headline as headlines
from slurm_pal.report import story as stories
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import decision as decisions
from slurm_pal.tick.deciding import terms_of
from slurm_pal.tick.role import OPERATOR, role_of

FORGOTTEN = "Slurm has forgotten it, and palsub did not submit it"


class _Told(NamedTuple):
    """One job: for --json, and for people."""

    body: dict[str, Any]
    lines: list[str]


@click.command()
@click.argument("job", required=False, metavar="JOBID")
@click.option("--last", is_flag=True, help="The job that palsub submitted last.")
@common.json_option
@common.verbose_option
def explain(job: str | None, last: bool, as_json: bool) -> None:
    """Explain why a job runs where it runs: what it got, what was decided, what Slurm and the ticks did since.

    \b
    JOBID is like
      4711              a job that waits, runs or has ended
      4711_2            a task of an array, as squeue shows it
      4711,4713-4715    several jobs: a line for each
      4711_[1-3]        several tasks

    The first sentence compares with the median GPU of the same model, and with the GPUs that Slurm alone would have
    given when the job was submitted.

    You see of other users' jobs what Slurm shows you of them. For a job that neither palsub nor the submit filter saw,
    only the GPUs are shown and what is known about them.
    """
    if (job is None) != last:
        raise UsageError("give either a job id or --last: pal explain 4711, pal explain --last")
    config = settings.load()
    client = connect(config)
    decision = decisions.last("") if job is None else None
    if job is None and decision is None:
        raise DataError("palsub has recorded no decision on this cluster: submit a job with palsub first")
    named = job_names(job) if job is not None else [JobName(int(decision["job_id"]))] if decision else []
    found = find_jobs(client, named)
    snapshot = published()
    if len(named) > 1:
        _explain_each(config, named, found, snapshot, as_json)
        return
    told = _told(config, client, named[0], found[0], snapshot)
    if as_json:
        common.print_json("explain", told.body)
        return
    for line in told.lines:
        common.say(line)


def _explain_each(
    config: Config, named: list[JobName], found: list[FoundJob], snapshot: snapshots.Snapshot | None, as_json: bool
) -> None:
    """Several jobs, a sentence for each. Raises UsageError where nothing is known of any."""
    rows: list[dict[str, Any]] = []
    for name, one in zip(named, found, strict=True):
        decision = decision_of(one.number, one.job)
        seen = actual.actual(one.job, snapshot, time.time(), _started(config, name, decision, one.job))
        if one.job is None and decision is None and seen is None:
            text = f"Job {name} is unknown: {one.trouble or FORGOTTEN}"
            row: dict[str, Any] = {"job": str(name), "job_id": None, "actual": None}
            rows.append(row | {"verdict": headlines.Headline(0, "A", None, "", None, False, text).shown})
            continue
        head = headlines.headline(f"Job {name}", one.job, seen, class_of(config, one.job, decision), decision)
        rows.append({"job": str(name), "job_id": one.number, "actual": seen, "verdict": head.shown})
    if all(row["job_id"] is None for row in rows):
        raise UsageError(f"none of these {len(rows)} jobs is known: Slurm has forgotten them, or never had them")
    if as_json:
        common.print_json("explain_jobs", {"jobs": rows})
        return
    common.say(headlines.of_several([row["verdict"] | {"job": row["job"]} for row in rows]))
    for row in rows:
        common.say(row["verdict"]["text"])


def _whose(named: JobName, job: SlurmJob | None, decision: decisions.Record | None) -> str:
    """How the first sentence names the job."""
    if job is None:
        return "Your job" if decision is not None else f"Job {named}"
    return "Your job" if job.user == paths.user_name() else f"Job {named} of {job.user}"


def _told(
    config: Config, client: SlurmClient, named: JobName, one: FoundJob, snapshot: snapshots.Snapshot | None
) -> _Told:
    """Everything about one job. Raises UsageError where nothing is known of it."""
    number, job, trouble = one
    decision = decision_of(number, job)
    ticks = _ticks(config, client, number, job)
    if decision is not None and job is not None and job.gpus and job.array_job_id is None:
        with contextlib.suppress(PalError, OSError):
            decisions.started("", int(decision["job_id"]), job.gpus, job.start_s)
    found = actual.actual(job, snapshot, time.time(), _started(config, named, decision, job))
    if job is None and decision is None and not ticks and found is None:
        raise UsageError(f"job {named} is unknown: {trouble or FORGOTTEN}")
    head = headlines.headline(_whose(named, job, decision), job, found, class_of(config, job, decision), decision)
    mark = filter_mark.decision(job) if job else None
    stays = _stays(config, client, job) if job else ""
    limits = continued.continued(job, decision)
    loans = loan_words.words_of(config, client, number, str(named), job, time.time())
    events = stories.in_order([*stories.of_submission(decision, mark, job.submit_s if job else 0.0), *ticks])
    seen = observed.read(job.comment) if job else None
    of_array = job.array_job_id if job and job.array_job_id is not None else named.job_id
    task = named.task if named.task is not None else job.array_task_id if job else None
    body: dict[str, Any] = {
        "job_id": number, "verdict": head.shown, "decision": decision, "filter": mark, "actual": found, "story": events,
        "array": {"job_id": of_array, "task": task} if task is not None else None,
        "palsub": filter_mark.by_palsub(job) if job else [],
        "observed": observed.evidence(seen)._asdict() if seen else None,
        "not_moved": stays or None, "continued": limits,
        "taken_off": loans.taken_off or None, "not_lent": loans.not_lent or None,
    }  # fmt: skip
    lines = [
        *filter(None, (loans.taken_off,)),
        *([f"{head.text}."] if found is not None and not (job is None and trouble) else []),
        *_actual_text(named, job, found, decision, trouble),
        *_observed_text(job),
        *([continued.line(limits)] if limits else []),
        *filter(None, (loans.not_lent,)),
        "",
        *_decided_text(decision, mark, job),
        *([f"Not moved while it runs: {stays}"] if stays else []),
        *_story_text(events),
    ]
    return _Told(body, lines)


def _stays(config: Config, client: SlurmClient, job: SlurmJob) -> str:
    """Why a tick would not move a job that somebody marked movable; "" where it would."""
    facts = facts_of(job, terms_of(config, appends=False))
    if job.state not in ("PENDING", "RUNNING") or not facts.ours or facts.why_not in ("", UNMARKED):
        return ""
    try:
        return facts_of(job, terms_of(config, appends(client.config()))).why_not
    except SlurmError:
        return facts.why_not


def _is_operator(client: SlurmClient) -> bool:
    """Whether slurmdbd knows this user as an operator or administrator of Slurm."""
    try:
        return role_of(client, {}, mine=False).name == OPERATOR
    except PalError:
        return False


def _ticks(config: Config, client: SlurmClient, number: int, job: SlurmJob | None) -> list[stories.Event]:
    """What the ticks did with a job: from the journal that this user may read, and from the marks on the job.

    The site's journal has all that the marks say. A user's own journal has only what their ticks did. The marks on
    jobs of others are for Slurm's operators, too, who help users.
    """
    found: list[stories.Event] = []
    path = paths.readable_journal(config)
    if path is not None:
        try:
            with open_journal(path, write=False) as journal:
                found = stories.of_journal(journal, number)
        except PalError as error:
            common.say(f"pal: {one_line(error)}", err=True)
    if job is None or (paths.has_powers() and found) or not story.events(job.admin_comment):
        return found
    if not (paths.has_powers() or job.user == paths.user_name() or _is_operator(client)):
        return found
    return [*found, *stories.of_words(job)]


def _story_text(events: list[stories.Event]) -> list[str]:
    if all(event["what"] == stories.SUBMITTED for event in events):
        return []
    return ["", "What the tick did:", *(f"  {line}" for line in stories.lines(events))]


def _actual_text(
    named: JobName, job: SlurmJob | None, found: dict[str, Any] | None, decision: dict[str, Any] | None, trouble: str
) -> list[str]:
    if found is None or (job is None and trouble):
        return [f"Job {named}: {trouble or 'Slurm no longer knows it, and nobody has noted its GPUs'}"]
    first, *rest = actual.lines(str(named), job, found)
    outcome = actual.verdict(found, decision)
    return [first, *([outcome] if outcome else []), *rest]


def _started(
    config: Config, named: JobName, decision: dict[str, Any] | None, job: SlurmJob | None
) -> dict[str, Any] | None:
    """Where the job started, as far as that is known; a file that cannot be trusted is reported on stderr."""
    try:
        return started_of(config, named.job_id, named.task, decision, job)
    except DataError as error:
        common.say(f"pal: {one_line(error)}", err=True)
        return None


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


def published() -> snapshots.Snapshot | None:
    """The snapshot in force; None where there is none, which is said on stderr."""
    try:
        return snapshots.read(settings.load().snapshot_path)
    except DataError as error:
        common.say(f"pal: {one_line(error)}", err=True)
        return None
