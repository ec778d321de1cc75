# SPDX-License-Identifier: MIT
"""pal fork: the rounds of a forked job, called by its script."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

import click

from slurm_pal.base.errors import Exit, PalError, UsageError, one_line
from slurm_pal.cli import common
from slurm_pal.submit import fork as forks

TIMEOUT_S = 20.0
MOST = 10**15


@click.group()
def fork() -> None:
    """Inside a forked job (palsub --pal-fork): what this copy does next, and what came of it.

    Copies of the job train on idle nodes, each at its own speed. Round by round what they saved is merged.
    docs/fork.md has an example.
    """


@fork.command("next")
@click.option("--steps", type=click.IntRange(1, MOST), required=True, metavar="N", help="Steps of the whole job.")
@click.option("--merge", required=True, metavar="CMD", help="Shell command: CMD OUT STEPS DIR [STEPS DIR]...")
@click.option(
    "--round", "round_s", type=click.FloatRange(min=1.0), default=forks.ROUND_S, show_default=True, metavar="SECONDS",
    help="Length of a round.",
)  # fmt: skip
def next_(steps: int, merge: str, round_s: float) -> None:
    """End this copy's part of a round, and print the next one.

    What was to be saved must be saved. Prints variables for the shell: PAL_FORK_STEPS (steps to do), PAL_FORK_FROM
    (directory to load from, empty at the very start), PAL_FORK_TO (directory to save into). Exit code 0: go on;
    11: all steps are done; any other: an error, in one line.

    \b
    Example, in the job's script:
      while part=$(pal fork next --steps 100000 --merge 'python merge.py'); do
        eval "$part"
        python train.py --load "$PAL_FORK_FROM" --steps "$PAL_FORK_STEPS" --save "$PAL_FORK_TO" || exit
      done
      [ "$SLURM_PAL_ROLE" = base ] || exit 0
      final=$(pal fork result) && cp -r "$final" result
    """
    where = forks.place(os.environ)
    if not merge.strip():
        raise UsageError("--merge is empty; give a command such as --merge 'python merge.py'")
    one = forks.Fork(where, lambda text: common.say(f"pal fork: {text}", err=True))
    task = one.lead(steps, round_s, merge, _leaving) if where.copy == forks.BASE else None
    if where.copy != forks.BASE:
        task = one.follow()
    if task is None:
        sys.exit(Exit.FINISHED)
    for name, value in (("STEPS", str(task.steps)), ("FROM", task.source), ("TO", task.target)):
        common.say(f"PAL_FORK_{name}={shlex.quote(value)}")


def _leaving(copies: Sequence[str]) -> list[str]:
    from slurm_pal.submit.processes import runner

    try:
        return forks.making_way(runner(TIMEOUT_S), copies)
    except PalError as error:  # they stay for a round more
        common.say(f"pal fork: Slurm was not asked who waits: {one_line(error)}", err=True)
        return []


@fork.command()
def result() -> None:
    """Print the directory of what the job has come to. Exit code 1 as long as steps are left.

    It lies in .pal-fork-JOBID in the job's directory, which stays: remove it when you have what you need.
    """
    done, found = forks.result(forks.place(os.environ))
    if not done:
        raise PalError(f"steps are left{f'; so far: {found}' if found else ', and no round has ended'}")
    common.say(found)
