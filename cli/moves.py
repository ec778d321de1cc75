# SPDX-License-Identifier: MIT
"""pal moves: which running jobs were moved, and what that brought."""

from __future__ import annotations

import time
from typing import Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, one_line
from slurm_pal.cli import common
from slurm_pal.journal import paths
from slurm_pal.journal.journal import open_journal
from slurm_pal.moves import learning
from slurm_pal.profiling.sweep.plan import duration_s
from slurm_pal.report import move_rows, table
from slurm_pal.report.move_rows import MoveRow
from slurm_pal.slurm.cli import CliClient

ASK_TIMEOUT_S = 10.0


@click.command()
@click.option("--since", default="7d", show_default=True, metavar="AGE", help="Moves of this last time, e.g. 90d, 12h.")
@click.option("--job", "job_id", type=click.IntRange(min=1), metavar="N", help="Moves of this job only.")
@common.noheader_option
@common.parsable_option
@common.json_option
@common.verbose_option
def moves(since: str, job_id: int | None, noheader: bool, parsable2: bool, as_json: bool) -> None:
    """One line for each move of a running job: where it went, gain predicted and observed, cost, outcome.

    root and SlurmUser see all moves. Anybody else sees those of his own jobs: the ones that his
    pal-rebalance --mine made, and what Slurm still shows of those that the site's made.
    """
    since_s = time.time() - duration_s(since)
    rows, calibration = _journalled(settings.load(), since_s, job_id)
    if not paths.has_powers():
        rows += [row for row in _told(job_id) if row.made_s >= since_s]
    rows.sort(key=lambda row: row.made_s)
    sums = move_rows.totals(rows, calibration)
    if as_json:
        common.print_json("moves", {"moves": [row._asdict() for row in rows], "total": sums})
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


def _journalled(config: Config, since_s: float, job_id: int | None) -> tuple[list[MoveRow], float | None]:
    """Rows and calibration of the journal that this user may read. Raises DataError when it cannot be read."""
    path = paths.readable_journal(config)
    if path is None:
        return [], None
    with open_journal(path, write=False) as journal:
        found = move_rows.of_journal(journal.moves(since_s, job_id))
        return found, learning.calibration(journal.moves())


def _told(job_id: int | None) -> list[MoveRow]:
    """What the words on this user's own jobs tell; none when Slurm does not answer, which is said."""
    client = CliClient(timeout_s=ASK_TIMEOUT_S)
    user = paths.user_name()
    try:
        mine = client.job_states(user=user)
        known = client.jobs_of([number for number in mine if job_id in (None, number)])
    except SlurmError as error:
        common.say(f"pal: moves that the site's ticks made are not shown: {one_line(error)}", err=True)
        return []
    return [row for job in known.values() if job.user == user for row in move_rows.of_words(job)]
