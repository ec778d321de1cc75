# SPDX-License-Identifier: MIT
"""pal probe: a minute of a script on one GPU, to learn its sensitivity class before it runs for days."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import DataError, Exit, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.cli import common
from slurm_pal.cli.until_signal import Woken, until_signal
from slurm_pal.publisher.observed import add
from slurm_pal.sensitivity import observed
from slurm_pal.sensitivity.observed import Observed
from slurm_pal.slurm.backend import connect
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.rest_program import SbatchProgram, stand_in
from slurm_pal.slurm.states import JOB_ACTIVE
from slurm_pal.submit import checkpoint, probe
from slurm_pal.submit.known import own_labels
from slurm_pal.submit.options_table import from_help

LOOK_S = 2.0
TIMEOUT_S = 15.0
_WAITING = frozenset({"PENDING", "CONFIGURING"})


@click.command("probe", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--patience", type=click.FloatRange(min=0), default=600.0, metavar="S",
    help="Cancel the probe if it has not started within S seconds (default 600).",
)  # fmt: skip
@common.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SBATCH OPTIONS] SCRIPT [ARGS]")
def probe_command(patience: float, as_json: bool, words: tuple[str, ...]) -> None:
    """Run SCRIPT for a minute on one GPU, as an ordinary short job, and report its sensitivity class.

    \b
    Examples:
      pal probe train.sh
      pal probe -p gpu --account=me train.sh --epochs 90
      pal probe --wrap 'python3 train.py'

    The job is named pal-probe:NAME and has one GPU and a time limit of two minutes, whatever the script asks
    for. It ends as soon as enough was seen, or on Ctrl-C. The script really runs for that minute: it reads
    and writes its files. The class is kept, and palsub uses it for jobs of this name.
    """
    config = settings.load()
    client = connect(config, timeout_s=TIMEOUT_S)
    program = stand_in() if config.text("slurm", "backend") == "rest" else SbatchProgram("sbatch")
    made = probe.prepared(list(words), os.environ, config, _site_options)
    with until_signal() as woken:
        number = _submitted(made, program)
        common.say(f"pal: probe of {made.name}: job {number}", err=True)
        try:
            job, seen = _watched(client, number, patience, woken)
        finally:
            with contextlib.suppress(SlurmError):  # ours, and of no use to anybody from here on
                client.cancel([number])
    told = observed.evidence(seen)
    if as_json:
        common.print_json("probe", {"job_id": number, "name": made.name, **told._asdict()})
    else:
        common.say(f"{made.name}: class {told.sensitivity}, confidence {told.confidence:.2f} ({told.why})")
    add(own_labels(), job, seen, time.time())  # last: what took a minute to see is shown even where it cannot be kept


def _site_options() -> dict[str, int]:
    try:
        done = subprocess.run(
            ["sbatch", "--help"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError:  # slurmrestd takes the probe
        return {}
    return from_help(done.stdout)


def _submitted(made: probe.Prepared, program: SbatchProgram) -> int:
    """Submit a probe; return its job id. Raises SlurmError with sbatch's own words."""
    try:
        if made.path:
            checkpoint.write(made.path, made.text)
        done = subprocess.run(
            program.argv(made.argv), env=probe.environment_of(os.environ), capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise SlurmError(f"sbatch cannot be started: {error.strerror}: {error.filename}") from None
    finally:
        if made.path:
            checkpoint.remove(made.path)
    number = digits(done.stdout.strip().partition(";")[0])
    if done.returncode != 0 or number is None:
        said = done.stderr.strip().removeprefix("palsub: ").splitlines()
        raise SlurmError(f"sbatch refused the probe: {said[0] if said else f'exit code {done.returncode}'}")
    return number


def _watched(client: SlurmClient, number: int, patience_s: float, woken: Woken) -> tuple[SlurmJob, Observed]:
    """Wait for the observer's result. Raises DataError when the job ends without one, or does not start in time."""
    until_s = time.monotonic() + patience_s
    while True:
        job = client.job(number)
        seen = observed.read(job.comment) if job else None
        if job is not None and seen is not None:
            return job, seen
        if job is None or (job.state not in _WAITING and job.state not in JOB_ACTIVE):
            state = job.state if job else "gone"
            raise DataError(
                f"job {number} is {state}, and its GPU was not seen at work for long enough: run it with "
                "--output=FILE to see what it did, or have a whole job observed by palsub --pal-observe"
            )
        if job.state in _WAITING and time.monotonic() > until_s:
            raise DataError(f"job {number} has not started within {patience_s:g} s ({job.reason}): try --patience")
        if woken(LOOK_S):
            print("pal: interrupted", file=sys.stderr)
            sys.exit(Exit.INTERRUPTED)
