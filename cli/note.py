# SPDX-License-Identifier: MIT
"""pal note: one line on the GPUs of a job, for its output."""

from __future__ import annotations

import os
import time

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.cli import common
from slurm_pal.cli.job_names import job_name
from slurm_pal.submit import inside

TIMEOUT_S = 10.0


@click.command()
@click.argument("job", required=False, metavar="[JOBID]")
@common.verbose_option
def note(job: str | None) -> None:
    """Print one line: on how many GPUs a job runs, how slow the slowest is, what Slurm alone would have given.

    \b
    Examples, the first as the last line of a job's script:
      pal note
      pal note 4711       also 4711_2 for a task of an array

    1.00 is the time of a median GPU of that model, 1.31 takes 31 % longer. Where nothing is known nothing is printed.
    Inside a job, without JOBID, the exit code is always 0: a job never fails because of this.
    `palsub --pal-note`, `#PAL note` and, with the plug-in, `sbatch --pal-note` print the same line at the end of a
    job, however it ends.
    """
    if job is not None:
        _print(job)
        return
    named = inside.named(os.environ)
    try:
        _print(named)
    except (PalError, OSError) as error:
        common.say(f"pal: {one_line(error)}", err=True)


def _print(named: str) -> None:
    from slurm_pal.cli.job_names import find_job
    from slurm_pal.cli.job_record import class_of, decision_of, started_of
    from slurm_pal.report import actual
    from slurm_pal.report.headline import headline
    from slurm_pal.slurm.cli import CliClient
    from slurm_pal.store import snapshot as snapshots

    config, name = settings.load(), job_name(named)
    found = find_job(CliClient(timeout_s=TIMEOUT_S), name)
    decision = decision_of(found.number, found.job)
    started = started_of(config, name.job_id, name.task, decision, found.job)
    seen = actual.actual(found.job, snapshots.read(config.snapshot_path), time.time(), started)
    made = headline(f"Job {name}", found.job, seen, class_of(config, found.job, decision), decision)
    if made.note:
        common.say(made.note)


if __name__ == "__main__":
    common.run(note, "pal note")
