# SPDX-License-Identifier: MIT
"""pal explain: why a job runs where it runs."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, PalError, SlurmError, UsageError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli import common
from slurm_pal.decide.facts import UNMARKED, appends, facts_of
from slurm_pal.journal import paths
from slurm_pal.journal.journal import open_journal
from slurm_pal.report import actual, filter_mark
from slurm_pal.report import story as stories
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import decision as decisions
from slurm_pal.tick.deciding import terms_of


@click.command()
@click.argument("job_id", type=click.IntRange(min=1), required=False, metavar="JOBID")
@click.option("--last", is_flag=True, help="The job that palsub submitted last.")
@common.json_option
@common.verbose_option
def explain(job_id: int | None, last: bool, as_json: bool) -> None:
    """Explain why a job runs where it runs: what was decided, what Slurm did with it, what the ticks did since.

    For a job that neither palsub nor the submit filter saw, it shows only the GPUs and what is known about them.
    """
    if (job_id is None) != last:
        raise UsageError("give either a job id or --last: pal explain 4711, pal explain --last")
    config = settings.load()
    client = connect(config)
    decision = decisions.last("") if last else decisions.load("", job_id or 0)
    if last and decision is None:
        raise DataError("palsub has recorded no decision on this cluster: submit a job with palsub first")
    number = job_id or int(decision["job_id"] if decision else 0)
    job, trouble = _job(client, number)
    ticks = _ticks(config, number, job)
    if job is None and decision is None and not ticks:
        raise UsageError(
            f"job {number} is unknown: {trouble or 'Slurm has forgotten it, and palsub did not submit it'}"
        )
    snapshot = _snapshot()
    found = actual.actual(job, snapshot, time.time()) if job else None
    mark = filter_mark.decision(job) if job else None
    stays = _stays(config, client, job) if job else ""
    story = stories.in_order([*stories.of_submission(decision, mark, job.submit_s if job else 0.0), *ticks])
    if as_json:
        seen = observed.read(job.comment) if job else None
        body: dict[str, object] = {
            "job_id": number, "decision": decision, "filter": mark, "actual": found, "story": story,
        }  # fmt: skip
        body["observed"] = observed.evidence(seen)._asdict() if seen else None
        body["not_moved"] = stays or None
        common.print_json("explain", body)
        return
    text = [
        *_actual_text(number, job, found, decision, trouble),
        *_observed_text(job),
        "",
        *_decided_text(decision, mark),
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
    number: int, job: SlurmJob | None, found: dict[str, Any] | None, decision: dict[str, Any] | None, trouble: str
) -> list[str]:
    if job is not None and found is not None:
        first, *rest = actual.lines(job, found)
        outcome = actual.verdict(found, decision)
        return [first, *([outcome] if outcome else []), *rest]
    return [f"Job {number}: {trouble or 'Slurm no longer knows it'}"]


def _observed_text(job: SlurmJob | None) -> list[str]:
    """What an observer beside the job has measured, whatever class it was submitted with."""
    seen = observed.read(job.comment) if job else None
    if seen is None:
        return []
    label = observed.evidence(seen)
    return [f"Measured ({label.stage}): class {label.sensitivity}, confidence {label.confidence:.2f}: {label.why}"]


def _decided_text(decision: dict[str, Any] | None, mark: dict[str, Any] | None) -> list[str]:
    if decision is None and mark is None:
        return ["Neither your palsub nor the submit filter decided about this job. (Another user's palsub may have.)"]
    text: list[str] = []
    if decision is not None:
        text += ["What palsub decided:", *(f"  {line}" for line in decisions.render(decision))]
    if mark is not None:
        where = "in slurmctld" if mark["by"] == "slurmctld" else "in the client"
        text += [f"What the submit filter decided ({where}):", *(f"  {line}" for line in filter_mark.lines(mark))]
    return text


def _job(client: SlurmClient, number: int) -> tuple[SlurmJob | None, str]:
    try:
        return client.job(number), ""
    except SlurmError as error:
        return None, one_line(error)


def _snapshot() -> snapshots.Snapshot | None:
    try:
        return snapshots.read(settings.load().snapshot_path)
    except DataError as error:
        common.say(f"pal: {one_line(error)}", err=True)
        return None
