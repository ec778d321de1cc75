# SPDX-License-Identifier: MIT
"""What a site ordered about nodes of owners in the last days."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.journal import paths
from slurm_pal.journal.journal import LoanOrder, open_journal
from slurm_pal.journal.move_states import MoveOutcome

DAYS = 7.0
"""How far back it goes."""


class LoanCourse(NamedTuple):
    """The orders of the last days, oldest first, and when guests had to leave (Unix s)."""

    orders: tuple[LoanOrder, ...]
    reclaimed_s: tuple[float, ...] = ()


def read(config: Config, now_s: float) -> LoanCourse | None:
    """From the journal that this user may read; None without orders. Raises DataError, BusyError."""
    path = paths.readable_journal(config)
    if path is None:
        return None
    since_s = now_s - DAYS * 86400
    with open_journal(path, write=False) as journal:
        orders = journal.loan_orders(since_s)
        left = [move.made_s for move in journal.reclaims(since_s) if move.outcome is MoveOutcome.RECLAIMED]
    return LoanCourse(tuple(orders), tuple(left)) if orders else None
