# SPDX-License-Identifier: MIT
"""What it cost guests that owners had their nodes back, by the journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import MoveOutcome
from slurm_pal.moves.steps import LOST

BEGUN = "reclaim"
STAYED, ENDED = "reclaim-stayed", "reclaim-ended"
WORDS = {outcome: outcome.value for outcome in MoveOutcome} | {
    MoveOutcome.OPEN: BEGUN, MoveOutcome.ABANDONED: STAYED, MoveOutcome.ENDED: ENDED,
}  # fmt: skip
"""How a reclaim ended -> the word for it in the log and on the job: those of moves would be taken for moves."""


def gpus_of(source: str) -> int:
    """The GPUs in "n3:0,1 n4:2"; 0 of a job without GPUs."""
    return sum(len(word.partition(":")[2].split(",")) for word in source.split() if ":" in word)


def saved(move: Move) -> bool:
    """Whether the job was asked for a checkpoint and, where it has left, acknowledged one."""
    return move.checkpoint and LOST not in move.detail


def lost_s(move: Move) -> float:
    """Work of its own that a guest loses by leaving, s: as decided, or all of its run where no checkpoint came.

    0.0 where it was not stopped.
    """
    if move.outcome in (MoveOutcome.ABANDONED, MoveOutcome.ENDED):
        return 0.0
    return move.cost_s if saved(move) or not move.checkpoint else max(move.cost_s, move.ran_s)


def lost_gpu_s(move: Move) -> float:
    """The same times its GPUs."""
    return lost_s(move) * gpus_of(move.source)


def total_lost_gpu_s(moves: Iterable[Move]) -> float:
    """The sum over guests that have left."""
    return sum(lost_gpu_s(move) for move in moves if move.outcome is MoveOutcome.RECLAIMED)
