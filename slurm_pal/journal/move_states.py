# SPDX-License-Identifier: MIT
"""How far a move of a running job is, and how it ended: the words of the journal."""

from __future__ import annotations

from enum import StrEnum


class MoveStep(StrEnum):
    """The step that a move has entered, see `moves.steps`."""

    NONE = ""
    PLANNED = "planned"
    SIGNALLING = "signalling"
    REQUEUEING = "requeueing"
    TARGETING = "targeting"
    CLEARING = "clearing"
    FREEING = "freeing"  # the list is taken back, and the delay after the requeue is ended
    UNKNOWN = "unknown"  # a word of a later release

    @classmethod
    def _missing_(cls, value: object) -> MoveStep:
        return cls.UNKNOWN


class MoveOutcome(StrEnum):
    """How a move ended."""

    OPEN = ""  # it has not
    MOVED = "moved"
    ELSEWHERE = "elsewhere"  # it was requeued, and started on other nodes than its target
    ABANDONED = "abandoned"  # before the requeue: the job runs on where it was
    ENDED = "ended"  # the job ended during the move
    WAITING = "waiting"  # it was requeued, and waits in the queue without our list
    RECLAIMED = "reclaimed"  # it was requeued, since its owner wanted the nodes back
    UNKNOWN = "unknown"  # a word of a later release

    @classmethod
    def _missing_(cls, value: object) -> MoveOutcome:
        return cls.UNKNOWN


CARRIED_OUT = frozenset({MoveOutcome.MOVED, MoveOutcome.ELSEWHERE})
"""The job was requeued and started again."""
REQUEUED = CARRIED_OUT | {MoveOutcome.WAITING}
"""Its run was stopped, whatever became of it then."""
ENDS = tuple(outcome.value for outcome in MoveOutcome if outcome not in ("", "unknown", "reclaimed"))
"""The words for how a move ended."""
