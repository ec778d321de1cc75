# SPDX-License-Identifier: MIT
"""pal moves: which running jobs were moved, and what that brought."""

from __future__ import annotations

import time

import click

from slurm_pal.base import config as settings
from slurm_pal.cli import common, tables
from slurm_pal.cli.reading import complain
from slurm_pal.profiling.sweep.plan import duration_s
from slurm_pal.report import move_rows


@click.command()
@click.option(
    "--since", default="7d", show_default=True, metavar="AGE", help="Only moves of the last AGE, e.g. 90d, 12h."
)
@click.option("--job", "job_id", type=click.IntRange(min=1), metavar="N", help="Moves of this job only.")
@tables.table_options
@common.verbose_option
def moves(since: str, job_id: int | None, form: tables.Form) -> None:
    """One line for each move of a running job: where it went, gain predicted and observed, cost, outcome.

    root and SlurmUser see all moves. Other users see those of their own jobs: the ones that their
    own pal-rebalance --mine made, and of the site's moves what Slurm still shows.
    """
    since_s = time.time() - duration_s(since)
    rows, calibration = move_rows.read(settings.load(), since_s, job_id, complain)
    sums = move_rows.totals(rows, calibration)
    tables.show(
        form, move_rows.listing(rows), "moves", lambda told: {"moves": told, "total": sums},
        notes=[move_rows.summary(sums)], empty="no moves",
    )  # fmt: skip
