# SPDX-License-Identifier: MIT
"""pal demo: what `make demo` runs."""

from __future__ import annotations

import signal
import sys
import tempfile

import click

from slurm_pal.cli import common
from slurm_pal.lab.demo import demonstrate


@click.command()
@click.option("--seed", default=1, show_default=True, help="Draws the true slowdowns of the emulated GPUs.")
@common.json_option
@common.verbose_option
def demo(seed: int, as_json: bool) -> None:
    """Start a lab, sweep it, run the same jobs with sbatch and with palsub, compare, clean up."""
    # Ended by a signal, the demonstration still takes its lab down.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="pal-demo-", ignore_cleanup_errors=True) as directory:
        ratios = demonstrate(directory, seed, say=(lambda line: None) if as_json else common.say)
    if as_json:
        common.print_json("demo", {"seed": seed, "completion_ratio": ratios})
