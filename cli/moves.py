# SPDX-License-Identifier: MIT
"""pal moves: which running jobs were moved, and what that brought."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.cli import common
from slurm_pal.cli.reading import complain
from slurm_pal.profiling.sweep.plan import duration_s
from slurm_pal.report import move_rows, table
from slurm_pal.report.move_rows import MoveRow


@click.command()
@click.option(
    "--since", default="7d", show_default=True, metavar="AGE", help="Only moves of the last AGE, e.g. 90d, 12h."
)
@click.option("--job", "job_id", type=click.IntRange(min=1), metavar="N", help="Moves of this job only.")
@common.noheader_option
@common.parsable_option
@common.csv_option
@common.json_option
@common.verbose_option
def moves(since: str, job_id: int | None, noheader: bool, parsable2: bool, as_csv: bool, as_json: bool) -> None:
    """One line for each move of a running job: where it went, gain predicted and observed, cost, outcome.

    root and SlurmUser see all moves. Other users see those of their own jobs: the ones that their
    own pal-rebalance --mine made, and of the site's moves what Slurm still shows.
    """
    since_s = time.time() - duration_s(since)
    rows, calibration = move_rows.read(settings.load(), since_s, job_id, complain)
    sums = move_rows.totals(rows, calibration)
    if as_json:
        common.print_json("moves", {"moves": [row._asdict() for row in rows], "total": sums})
        return
    if as_csv:
        common.print_csv(MoveRow._fields, [row._asdict() for row in rows], noheader)
        return
    for line in _text(rows, sums, noheader, parsable2):
        common.say(line)


def _text(rows: list[MoveRow], sums: dict[str, Any], noheader: bool, parsable2: bool) -> list[str]:
    if not rows:
        return [] if parsable2 else ["no moves"]
    made = (table.parsable if parsable2 else table.columns)(
        move_rows.HEADER, list(map(move_rows.cells, rows)), noheader
    )
    return made if parsable2 else [*made, move_rows.summary(sums)]
