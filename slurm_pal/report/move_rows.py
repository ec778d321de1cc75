# SPDX-License-Identifier: MIT
"""Moves of running jobs, for people and programs: predicted against observed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal import paths, story
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.journal.move_states import CARRIED_OUT, ENDS, MoveOutcome
from slurm_pal.moves import learning
from slurm_pal.report.listing import Listing
from slurm_pal.report.table import counted
from slurm_pal.slurm.cli import CliClient

ASK_TIMEOUT_S = 10.0
HEADER = (
    "WHEN", "JOBID", "USER", "FROM", "TO", "FACTOR", "PREDICTED_S", "OBSERVED_S", "COST_S", "OUTCOME", "WHY",
)  # fmt: skip
_SHOWS = {
    "WHEN": "made_s", "JOBID": "job_id", "FROM": "source", "TO": "target", "FACTOR": "after", "PREDICTED_S": "gain_s",
    "OBSERVED_S": "observed_gain_s",
}  # fmt: skip


class MoveRow(NamedTuple):
    """One move. What a job's own marks do not say is None or ""."""

    made_s: float  # Unix s
    job_id: int
    user: str
    source: str  # GPUs, "n3:0,1 n4:2"
    target: str
    before: float | None  # believed time factor (slowdown x locality)
    after: float | None
    gain_s: float | None  # predicted, cost not deducted
    observed_gain_s: float | None
    cost_s: float | None  # predicted
    outcome: MoveOutcome
    step: str  # the last step taken
    why: str
    partition: str = ""  # that it is sent to, if not its own
    saving: float = 0.0  # money, predicted, cost not deducted; 0.0 of a move for time


def read(
    config: Config, since_s: float, job_id: int | None, tell: Callable[[str], None]
) -> tuple[list[MoveRow], float | None]:
    """The moves that this user may see, by time, and the calibration of the journal, None without a journal.

    `tell` gets what is missing because Slurm does not answer. Raises DataError if the journal cannot be read.
    """
    rows, calibration = _journalled(config, since_s, job_id)
    if not paths.has_powers():
        rows += [row for row in _told(job_id, tell) if row.made_s >= since_s]
    return sorted(rows, key=lambda row: row.made_s), calibration


def _journalled(config: Config, since_s: float, job_id: int | None) -> tuple[list[MoveRow], float | None]:
    """Rows and calibration of the journal that this user may read."""
    path = paths.readable_journal(config)
    if path is None:
        return [], None
    with open_journal(path, write=False) as journal:
        return of_journal(journal.moves(since_s, job_id)), learning.calibration(journal.moves())


def _told(job_id: int | None, tell: Callable[[str], None]) -> list[MoveRow]:
    """What the marks on this user's own jobs say."""
    client = CliClient(timeout_s=ASK_TIMEOUT_S)
    user = paths.user_name()
    try:
        mine = client.job_states(user=user)
        known = client.jobs_of([number for number in mine if job_id in (None, number)])
    except SlurmError as error:
        tell(f"moves that the site's ticks made are not shown: {one_line(error)}")
        return []
    return [row for job in known.values() if job.user == user for row in of_words(job)]


def of_journal(moves: Iterable[Move]) -> list[MoveRow]:
    """Rows of the moves of a journal, in its order."""
    return [
        MoveRow(
            move.made_s, move.job_id, move.user, move.source, move.target_gpus or ",".join(move.target), move.before,
            move.after, move.gain_s, learning.observed_gain_s(move), move.cost_s, move.outcome, move.step, move.detail,
            move.partition, move.saving,
        )
        for move in moves
    ]  # fmt: skip


def of_words(job: SlurmJob) -> list[MoveRow]:
    """Rows of the moves in a job's admin comment; the mark of its end completes the mark of its begin."""
    rows: list[MoveRow] = []
    for event in story.events(job.admin_comment):
        ended = MoveOutcome(event["what"]) if event["what"] in ENDS else MoveOutcome.OPEN
        if not ended and event["what"] != "move":
            continue
        if ended and rows and not rows[-1].outcome:
            before = rows.pop()
            told = {"source": event.get("from"), "target": event.get("to"), "gain_s": event.get("gain_s")}
            rows.append(before._replace(outcome=ended, **{key: value for key, value in told.items() if value}))
            continue
        rows.append(
            MoveRow(
                event["at_s"], job.job_id, job.user, event.get("from", ""), event.get("to", ""), None, None,
                event.get("gain_s"), None, None, ended, "", "",
            )
        )  # fmt: skip
    return rows


def listing(rows: Sequence[MoveRow]) -> Listing:
    """The rows as a table."""
    return Listing(MoveRow._fields, [row._asdict() for row in rows], HEADER, list(map(cells, rows)), _SHOWS)


def cells(row: MoveRow) -> list[str]:
    """The cells of a row under `HEADER`."""
    factor = "-" if row.before is None or row.after is None else f"{row.before:.3f} -> {row.after:.3f}"
    numbers = ["-" if value is None else f"{value:.0f}" for value in (row.gain_s, row.observed_gain_s, row.cost_s)]
    outcome = row.outcome or (f"under way ({row.step})" if row.step else "under way")
    where = [row.source or "-", (row.target or "-") + (f" in {row.partition}" if row.partition else "")]
    why = [f"to save {row.saving:.2f} of money"] * bool(row.saving) + [row.why] * bool(row.why)
    return [stamp(row.made_s), str(row.job_id), row.user, *where, factor, *numbers, outcome, "; ".join(why) or "-"]


def totals(rows: Sequence[MoveRow], calibration: float | None) -> dict[str, Any]:
    """Sums over rows. `gain_s` counts the moves that were carried out, `told_gain_s` those of them whose job
    reported its pace, and `observed_gain_s` what these gained. `calibration` multiplies the predictions of
    later ticks; None without a journal.
    """
    done = [row for row in rows if row.outcome in CARRIED_OUT]
    told = [row for row in done if row.observed_gain_s is not None]
    return {
        "moves": len(rows),
        "moved": sum(row.outcome is MoveOutcome.MOVED for row in rows),
        "gain_s": round(sum(row.gain_s or 0.0 for row in done), 1),
        "told": len(told),
        "told_gain_s": round(sum(row.gain_s or 0.0 for row in told), 1),
        "observed_gain_s": round(sum(row.observed_gain_s or 0.0 for row in told), 1),
        "calibration": None if calibration is None else round(calibration, 3),
    }


def summary(sums: dict[str, Any]) -> str:
    """The last line of the table."""
    count = f"{sums['moves']} {'move' if sums['moves'] == 1 else 'moves'}"
    text = f"{count}, {sums['moved']} to the planned GPUs; gain predicted {sums['gain_s']:.0f} s"
    if sums["told"]:
        share = f" ({sums['observed_gain_s'] / sums['told_gain_s']:.2f})" if sums["told_gain_s"] > 0 else ""
        text += f"; observed {sums['observed_gain_s']:.0f} of {sums['told_gain_s']:.0f} s{share}"
        text += f" for {counted(sums['told'], 'move')} with a reported pace"
    if sums["calibration"] is not None:
        text += f"; predictions now count {sums['calibration']:.2f}"
    return text


def stamp(at_s: float) -> str:
    """Local time as Slurm writes it, 2026-11-21T07:39:03."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at_s))
