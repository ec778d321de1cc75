# SPDX-License-Identifier: MIT
"""Moves of running jobs: what was predicted, and what they brought."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from slurm_pal.base import config as settings
from slurm_pal.frames.columns import CATEGORY, COUNT, NUMBER, TEXT, TIME, Column, described, frame
from slurm_pal.frames.measured import unix_s
from slurm_pal.frames.missing import warn
from slurm_pal.journal.move_states import ENDS, MoveOutcome
from slurm_pal.report import move_rows as reported

if TYPE_CHECKING:
    import pandas as pd

MOVES = (
    Column("made_time", TIME, "when the move was decided"),
    Column("job_id", COUNT, "Slurm's job id"),
    Column("user", TEXT, "the job's user"),
    Column("source", TEXT, "GPUs it held, node:index,index"),
    Column("target", TEXT, "GPUs it was to get, or nodes"),
    Column("partition", TEXT, "partition it was sent to; NA: its own"),
    Column("before", NUMBER, "believed slowdown x locality where it was (ratio)"),
    Column("after", NUMBER, "the same where it was to go (ratio)"),
    Column("gain_s", NUMBER, "gain predicted, cost not deducted (s)"),
    Column("observed_gain_s", NUMBER, "gain by the job's own steps (s); NA: it does not report its pace"),
    Column("cost_s", NUMBER, "cost predicted (s)"),
    Column("saving", NUMBER, "money saved by prediction, cost not deducted; 0: a move for time"),
    Column("outcome", CATEGORY, "how it ended; NA: it is under way", (*ENDS, MoveOutcome.UNKNOWN.value)),
    Column("step", TEXT, "last step that was taken; NA: not known"),
    Column("why", TEXT, "details of the outcome"),
)


@described(MOVES)
def moves(since: datetime.datetime | str | float | None = None) -> pd.DataFrame:
    """One row for each move that this user may know of, by time, as `pal moves` shows them.

    root and SlurmUser see all moves, anybody else those of their own jobs. `since`: as for `records`. Warns where
    Slurm does not answer. Raises UsageError for another `since`, DataError when the journal cannot be read,
    BusyError, ConfigError.
    """
    rows, _ = reported.read(settings.load(), 0.0 if since is None else unix_s(since), None, warn)
    return frame(MOVES, map(_row, rows))


def _row(row: reported.MoveRow) -> tuple[object, ...]:
    texts = (row.source or None, row.target or None, row.partition or None)
    numbers = (row.before, row.after, row.gain_s, row.observed_gain_s, row.cost_s, row.saving)
    return (row.made_s, row.job_id, row.user, *texts, *numbers, row.outcome, row.step or None, row.why or None)
