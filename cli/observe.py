# SPDX-License-Identifier: MIT
"""pal observe: inside a job, see what its GPUs do and how much it suffers from slow ones."""

from __future__ import annotations

import contextlib
import os
import time

import click

from slurm_pal.base.errors import PalError, one_line
from slurm_pal.cli import common


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=300.0, metavar="S", help="How long to watch (default 300)."
)
@common.json_option
def observe(seconds: float, as_json: bool) -> None:
    """Inside a job: watch its GPUs on this node once a second, and report its sensitivity class.

    \b
    Example, in a job's script:
      pal observe --seconds 300 > observed.txt &

    The result goes into the job's comment; palsub then uses it for your later jobs of this name.
    palsub --pal-observe does the same without changing the script. It needs no privileges, runs at
    nice 19 and ends with the script that started it. Any failure is one line on stderr and exit
    code 0: a job never fails because of this.
    """
    from slurm_pal.base.config import load
    from slurm_pal.profiling.node import observer
    from slurm_pal.sensitivity import observed
    from slurm_pal.sensitivity.behaviour import Timing
    from slurm_pal.store.kernels import path_of

    with contextlib.suppress(OSError):
        os.nice(19)
    try:
        config = load()
        active_s = config.number("sensitivity", "active_s")
        timing = Timing(active_s / 2, active_s)
        classifier, kernels = config.text("sensitivity", "classifier"), path_of(config.gpus_path)
        seen = observer.run(
            observer.ObserverOptions(seconds, timing, classifier, kernels, pid=os.getppid()), os.environ
        )
    except (PalError, OSError, ImportError) as error:
        common.say(f"pal observe: {one_line(error)}", err=True)
        return
    if as_json:
        common.print_json("observed", seen._asdict() | {"traits": seen.traits._asdict()})
    elif seen.sensitivity == "?":
        common.say(f"class unknown: {seen.active_s:.0f} s of activity seen, at least {active_s:g} s needed")
    else:
        told = observed.evidence(observed.of(seen, time.time()))
        common.say(f"class {told.sensitivity}, confidence {told.confidence:.2f}: {told.why}")
