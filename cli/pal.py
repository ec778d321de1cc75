# SPDX-License-Identifier: MIT
"""pal: everything there is to look at."""

from __future__ import annotations

import click

from slurm_pal.cli import common, start
from slurm_pal.cli.aliases import renamed


@click.group()
@common.version_option
@common.verbose_option
def pal() -> None:
    """See what slurm-pal knows about this cluster's GPUs, and what it did for a job.

    \b
    Examples:
      pal gpus -f              flagged GPUs only
      pal nodes -w n[1-4]      four nodes
      pal heatmap              every GPU in one picture
      pal top                  GPUs, jobs, lists and moves, again and again
      pal report --html F.html what the GPUs are worth, on one page
      pal explain 4711         why job 4711 runs where it runs
      pal whatif job.sh        when it would start now and on which GPUs, and with other requests
      pal why-slow 4711        which GPU holds job 4711 up
      pal setup                slurm-pal on this site, by one command; --undo takes it back
      pal doctor               whether jobs are placed here, what is wrong, and what mends it
      pal lab up               a private Slurm with emulated GPUs to play with
    """


for word in start.MODULES:
    pal.add_command(start.command(word))
renamed(pal, pal.commands["publish-table"], "publish")


def main() -> None:
    """Entry point of the program `pal`."""
    common.run(pal, "pal")
