# SPDX-License-Identifier: MIT
"""Guests that were taken off nodes whose owners wanted them back: rows, and one of them as a sentence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal import story
from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import REQUEUED, MoveOutcome
from slurm_pal.moves import reclaimed
from slurm_pal.moves.steps import RUNS_ON
from slurm_pal.report.move_rows import stamp
from slurm_pal.report.table import lasting
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_ENDED, JOB_WAITING
from slurm_pal.slurm.told import NOTHING

_OF_WORDS = {word: outcome for outcome, word in reclaimed.WORDS.items() if outcome in (
    MoveOutcome.OPEN, MoveOutcome.ABANDONED, MoveOutcome.ENDED, MoveOutcome.RECLAIMED,
)}  # fmt: skip
STAYED = "stayed"


class ReclaimRow(NamedTuple):
    """One guest that left, or was to leave. What a job's own words do not say is None or ""."""

    made_s: float  # Unix s
    job_id: int
    user: str
    source: str  # GPUs, "n3:0,1 n4:2"
    owners: str  # partitions, "a,b"
    ran_s: float | None  # how long the run had lasted
    checkpoint: bool | None  # it was asked for one, and acknowledged it where it has left
    asked: bool | None  # it was asked for one
    lost_s: float | None  # work of its own that it lost
    lost_gpu_s: float | None
    restarted: str  # nodes on which it runs again
    outcome: MoveOutcome
    why: str

    @property
    def nodes(self) -> str:
        """The nodes that it left, as a hostlist."""
        return fold([word.partition(":")[0] for word in self.source.split()])

    @property
    def shown(self) -> str:
        """The outcome in one word."""
        return {MoveOutcome.OPEN: "under way", MoveOutcome.ABANDONED: STAYED}.get(self.outcome, self.outcome)


def of_journal(moves: Iterable[Move], jobs: Mapping[int, SlurmJob]) -> list[ReclaimRow]:
    """Rows of a journal, in its order; `jobs`: what Slurm still knows of them."""
    return [
        ReclaimRow(
            move.made_s, move.job_id, move.user, move.source, move.owners, move.ran_s, reclaimed.saved(move),
            move.checkpoint, reclaimed.lost_s(move), reclaimed.lost_gpu_s(move),
            _restarted(move, jobs.get(move.job_id)), move.outcome, move.detail,
        )
        for move in moves
    ]  # fmt: skip


def _restarted(move: Move, job: SlurmJob | None) -> str:
    if move.outcome is not MoveOutcome.RECLAIMED:
        return ""
    if move.detail.startswith(RUNS_ON):
        return move.detail.removeprefix(RUNS_ON).partition(";")[0]
    again = job is not None and job.restarts == move.restarts + 1 and job.state not in JOB_WAITING
    return fold(job.nodes) if job is not None and again else ""


def of_words(job: SlurmJob) -> list[ReclaimRow]:
    """Rows of the words in a job's admin comment; the word of its end completes the word of its begin."""
    rows: list[ReclaimRow] = []
    for event in story.events(job.admin_comment):
        outcome = _OF_WORDS.get(event["what"])
        if outcome is None:
            continue
        begun = rows.pop() if outcome and rows and not rows[-1].outcome else None
        source, lost_s = str(event.get("from", "")), event.get("lost_s")
        kept = _flag(event.get("checkpoint"))
        rows.append(
            ReclaimRow(
                begun.made_s if begun else event["at_s"], job.job_id, job.user, source, str(event.get("to", "")),
                event.get("ran_s"), kept, begun.asked if begun else kept, lost_s,
                None if lost_s is None else lost_s * reclaimed.gpus_of(source), "", outcome, "",
            )
        )  # fmt: skip
    return rows


def _flag(value: float | None) -> bool | None:
    return None if value is None else bool(value)


HEADER = (
    "WHEN", "JOBID", "USER", "FROM", "FOR", "RAN", "CHECKPOINT", "LOST_S", "LOST_GPU_S", "RESTARTED", "OUTCOME", "WHY",
)  # fmt: skip


def cells(row: ReclaimRow) -> list[str]:
    """The cells of a row under `HEADER`."""
    numbers = ["-" if value is None else f"{value:.0f}" for value in (row.lost_s, row.lost_gpu_s)]
    ran = lasting(row.ran_s) if row.ran_s else "-"
    where = [row.source or "-", row.owners or "-", ran, _checkpoint(row) or "-"]
    return [
        stamp(row.made_s), str(row.job_id), row.user, *where, *numbers, row.restarted or "-", row.shown,
        _more(row) or "-",
    ]  # fmt: skip


def _more(row: ReclaimRow) -> str:
    """What the other columns do not say yet."""
    first, _, rest = row.why.partition("; ")
    return rest if row.restarted else first


def _checkpoint(row: ReclaimRow) -> str:
    if row.checkpoint is None:
        return ""
    return "yes" if row.checkpoint else "none came" if row.asked else "no"


def totals(rows: Sequence[ReclaimRow]) -> dict[str, Any]:
    """Sums over rows; what is lost counts for guests that have left."""
    left = [row for row in rows if row.outcome is MoveOutcome.RECLAIMED]
    return {
        "reclaims": len(rows),
        "left": len(left),
        "with_checkpoint": sum(bool(row.checkpoint) for row in left),
        "stayed": sum(row.outcome is MoveOutcome.ABANDONED for row in rows),
        "under_way": sum(not row.outcome for row in rows),
        "lost_gpu_s": round(sum(row.lost_gpu_s or 0.0 for row in left), 1),
    }


def not_ours(job: SlurmJob, ours: Iterable[Move]) -> int:
    """How often a job was put back into the queue by somebody else, given its moves and reclaims in the journal.

    0 of a flexible worker: when we release one the journal says nothing of it.
    """
    if marks.read(job.comment, marks.COMPANION):
        return 0
    outcomes = REQUEUED | {MoveOutcome.RECLAIMED, MoveOutcome.OPEN}
    known = {one.restarts for one in ours if one.outcome in outcomes and one.restarts < job.restarts}
    return max(0, job.restarts - len(known))


# -- in a sentence ------------------------------------------------------------------------------


def sentence(rows: Sequence[ReclaimRow], name: str, job: SlurmJob | None, now_s: float) -> str:
    """What happened to a job the last time, by time; "" where it was never taken off a node."""
    if not rows:
        return ""
    row = rows[-1]
    at = moment(row.made_s, now_s)
    # `needed` at once: the owners may have had the nodes since.
    needed = _needed(row.owners)
    nodes = row.nodes or "its nodes"
    if not row.outcome:
        asked = "; it was asked for a checkpoint" if row.asked else ""
        return f"Job {name} leaves {nodes} since {at}, as {needed}{asked}"
    if row.outcome is not MoveOutcome.RECLAIMED:
        end = "stayed" if row.outcome is MoveOutcome.ABANDONED else "ended"
        return f"Job {name} was to leave {nodes} at {at}, as {needed}, and {end}{': ' if row.why else ''}{row.why}"
    left = sum(one.outcome is MoveOutcome.RECLAIMED for one in rows)
    times = f" (the last of {left} times)" if left > 1 else ""
    parts = [f"Job {name} was taken off {nodes} at {at}{times}, since {needed}", _cost(row), _went_on(row, job, now_s)]
    return "; ".join(filter(None, parts))


def _needed(owners: str) -> str:
    names = owners.split(",")
    if len(names) == 1:
        return f"partition {owners} needed its nodes back" if owners else "their owners needed them back"
    return f"partitions {', '.join(names)} needed their nodes back"


def _cost(row: ReclaimRow) -> str:
    if row.lost_s is None:
        return ""
    ran = f"it had run for {lasting(row.ran_s)} and " if row.ran_s else "it "
    if row.checkpoint:
        saved = "made a checkpoint" if not row.lost_s else f"lost at most {lasting(row.lost_s)} (checkpoint)"
        return ran + saved
    none = "no checkpoint came in time" if row.asked else "no checkpoint"
    most = "at most " if row.ran_s and row.lost_s < row.ran_s else ""
    return f"{ran}lost {most}{lasting(row.lost_s)} ({none})"


def _went_on(row: ReclaimRow, job: SlurmJob | None, now_s: float) -> str:
    if job is None or (job.state not in JOB_WAITING and job.start_s < row.made_s):
        return f"it went on on {row.restarted}" if row.restarted else ""
    if job.state in JOB_WAITING:
        stated = job.reason not in NOTHING  # Slurm has looked at it since
        return f"it waits in the queue ({job.reason})" if stated else "it waits in the queue"
    nodes, at = fold(job.nodes), moment(job.start_s, now_s)
    if job.state in JOB_ACTIVE:
        return f"it runs on {nodes} since {at}"
    return f"its last run began at {at} on {nodes}, and it is {job.state}" if job.state in JOB_ENDED else ""


def moment(at_s: float, now_s: float) -> str:
    """Local time as a person says it: 14:03, on another day 2026-11-21 14:03."""
    at = time.localtime(at_s)
    return time.strftime("%H:%M" if at[:3] == time.localtime(now_s)[:3] else "%Y-%m-%d %H:%M", at)


def often(times: int) -> str:
    """How often something happened."""
    return "once" if times == 1 else f"{times} times"


def by_slurm(name: str, job: SlurmJob, times: int, guest: str, owners: Sequence[str]) -> str:
    """What is known of a guest that somebody else put back into the queue; "" where nobody has."""
    if not times or guest not in job.partition.split(","):
        return ""
    return (
        f"Job {name} was put back into the queue {often(times)}, not by us: Slurm itself does that to guests of "
        f"partition {guest} when jobs of {', '.join(owners)} need their nodes; after a failed node or a requeue by "
        "hand it looks the same"
    )
