"""pal explain: why a job runs where it runs."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_pal import config as settings
from slurm_pal.cli import common
from slurm_pal.errors import DataError, SlurmError, UsageError, one_line
from slurm_pal.jobs import SlurmJob
from slurm_pal.report import actual
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.store import snapshot as snapshots
from slurm_pal.submit import decision as decisions


@click.command()
@click.argument("job_id", type=click.IntRange(min=1), required=False, metavar="JOBID")
@click.option("--last", is_flag=True, help="The job that palsub submitted last.")
@common.json_option
@common.verbose_option
def explain(job_id: int | None, last: bool, as_json: bool) -> None:
    """Why a job runs where it runs: the decision palsub took, and what Slurm did with it.

    Also for jobs that never saw palsub: then only their GPUs and what is known of them.
    """
    if (job_id is None) != last:
        raise UsageError("give a job id or --last: pal explain 4711, pal explain --last")
    client = connect(settings.load())
    decision = decisions.last("") if last else decisions.load("", job_id or 0)
    if last and decision is None:
        raise DataError("no decision of palsub is recorded for this cluster: submit with palsub first")
    number = job_id or int(decision["job_id"] if decision else 0)
    job, trouble = _job(client, number)
    if job is None and decision is None:
        raise UsageError(
            f"job {number} is unknown: {trouble or 'Slurm has forgotten it, and palsub did not submit it'}"
        )
    snapshot = _snapshot()
    found = actual.actual(job, snapshot, time.time()) if job else None
    if as_json:
        common.print_json("explain", {"job_id": number, "decision": decision, "actual": found})
        return
    for line in _text(number, job, found, decision, trouble):
        click.echo(line)


def _text(
    number: int, job: SlurmJob | None, found: dict[str, Any] | None, decision: dict[str, Any] | None, trouble: str
) -> list[str]:
    if job is not None and found is not None:
        lines = actual.lines(job, found)
    else:
        lines = [f"Job {number}: {trouble or 'Slurm no longer knows it'}"]
    lines.append("")
    if decision is None:
        return [*lines, "palsub took no decision for this job (plain sbatch, or submitted by another user)."]
    return [*lines, "What palsub decided:", *(f"  {line}" for line in decisions.render(decision))]


def _job(client: SlurmClient, number: int) -> tuple[SlurmJob | None, str]:
    try:
        return client.job(number), ""
    except SlurmError as error:
        return None, one_line(error)


def _snapshot() -> snapshots.Snapshot | None:
    try:
        return snapshots.read(settings.load().snapshot_path)
    except DataError as error:
        click.echo(f"pal: {one_line(error)}", err=True)
        return None
