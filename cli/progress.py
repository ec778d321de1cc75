# SPDX-License-Identifier: MIT
"""pal progress and pal ack: what a job reports about itself while it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import click

from slurm_pal.base import marks
from slurm_pal.base.errors import PalError, one_line
from slurm_pal.cli import common
from slurm_pal.slurm.client import Runner
from slurm_pal.submit import inside

TIMEOUT_S = 10.0
LEAST_S = 10.0
MOST = 10**15

_CLASH = "pal: ITER {} is beyond TOTAL {}: reported without the total"


def _put(word: Callable[[str], dict[str, str]], *, culprit: bool = False) -> None:
    from slurm_pal.submit.processes import runner

    run, job = runner(TIMEOUT_S), inside.named(os.environ)
    slow = _slow(run) if culprit else {}
    comment = inside.comment_of(run, job)
    if slow and slow["x"] == "1.000" and not marks.read(comment, marks.SLOW):
        slow = {}  # nobody is waited for, nor was before
    inside.put(run, job, comment, word(comment), slow)


def _slow(run: Runner) -> dict[str, str]:
    """Whom the job's ranks wait for, by the records of their collectives; {} where there are none."""
    from slurm_pal.online import word

    try:
        folder = word.folder_of(os.environ, os.getcwd())
        if not os.path.isdir(folder):
            return {}
        from slurm_pal.slurm.cli import CliClient

        job = CliClient(run).job(inside.job_id(os.environ))
        return word.word(word.look(folder, job), job, time.time()) if job is not None else {}
    except (PalError, OSError) as error:
        common.say(f"pal: records of collectives not read: {one_line(error)}", err=True)
        return {}


@click.command()
@click.argument("iteration", type=click.IntRange(0, MOST), metavar="ITER")
@click.argument("total", type=click.IntRange(1, MOST), metavar="[TOTAL]", required=False)
@click.option(
    "--every", type=click.FloatRange(min=LEAST_S), default=60.0, metavar="SECONDS",
    help="Report to Slurm at most this often (default 60, at least 10); in between do nothing.",
)  # fmt: skip
def progress(iteration: int, total: int | None, every: float) -> None:
    """Inside a job: report that ITER iterations (steps, epochs) of TOTAL are done.

    The number is put into the job's own comment, beside your text. It gives the time of
    a step, and so shows whether the job's GPUs are as slow as expected and whether a move has helped.
    Where the job writes records of its collectives (the inspector plug-in of NCCL or RCCL, in
    $NCCL_INSPECTOR_DUMP_DIR or nccl-inspector-JOBID), it also reports which GPU the others wait for.

    \b
    Examples:
      pal progress 1200           1200 done
      pal progress 1200 5000      1200 of 5000 done

    Call it as often as is convenient. Only the first task of a step reports. If Slurm does not
    answer, it prints one line on stderr and exits with code 0: a job never fails because of this.
    """
    job = inside.job_id(os.environ)
    if not inside.speaks(os.environ):
        return
    if total is not None and iteration > total:
        common.say(_CLASH.format(iteration, total), err=True)
        total = None
    now_s, restart = time.time(), inside.restarts(os.environ)
    try:
        if inside.due(job, restart, every, now_s, os.environ):
            _put(lambda _: inside.progress_word(iteration, total, now_s, restart), culprit=True)
    except (PalError, OSError) as error:
        common.say(f"pal: progress not reported: {one_line(error)}", err=True)


@click.command()
@click.option("--failed", is_flag=True, help="No checkpoint was written: give up the move.")
def ack(failed: bool) -> None:
    """Inside a job: report that the requested checkpoint is written.

    Under `palsub --pal-checkpoint` with a signal, the program calls it (or creates the file $SLURM_PAL_ACK).
    A script that handles SIGUSR1 itself calls it too. Only the first task of a step reports. If Slurm
    does not answer, it prints one line on stderr and exits with code 0: a job never fails because of this.
    """
    inside.job_id(os.environ)
    if not inside.speaks(os.environ) or (not failed and inside.touch_ack(os.environ)):
        return
    try:
        _put(lambda comment: inside.ack_word(comment, inside.restarts(os.environ), failed))
    except (PalError, OSError) as error:
        common.say(f"pal: checkpoint not acknowledged: {one_line(error)}", err=True)
