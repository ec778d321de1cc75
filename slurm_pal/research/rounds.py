# SPDX-License-Identifier: MIT
"""The published round mechanism: who runs in the next round, and on which GPUs (Gavel, OSDI'20, section 5; gavel.md 4).

A queue has k rows: jobs, and pairs of jobs that share their GPUs. Shares say how much of its
time a row should have in each of n columns; what it received since the last reset says how
much it had. The row that is furthest behind goes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Matrix, Vector

NEVER_RAN = 1e9
"""Priority of a share of 1 that has had no time at all; any row with some time is far below it."""

RowId = tuple[int, int]
"""The job numbers of a row, ascending; the second is -1 for a job alone."""


class RoundQueue(NamedTuple):
    """k rows in order of arrival: a job, then its pairs with the jobs before it."""

    ids: tuple[RowId, ...]
    scale: NDArray[np.int64]  # (k,) GPUs
    able: NDArray[np.bool_]  # (k, n) all jobs of the row make progress there


class ChosenRow(NamedTuple):
    """A row that gets GPUs of a column in the next round."""

    row: int
    column: int


class RoundLease(NamedTuple):
    """The GPUs of a row for one round, numbered from 0 within their column."""

    column: int
    gpus: frozenset[int]


class Account:
    """Seconds that the rows received since the last reset, and what they are owed from before; (k, n) each."""

    def __init__(self, n_columns: int) -> None:
        self.received_s: Matrix = np.zeros((0, n_columns))
        self.deficit_s: Matrix = np.zeros((0, n_columns))
        self.total_s: Vector = np.zeros(n_columns)  # all rows together; those that have left count until the reset

    def add(self, received_s: Vector) -> None:
        """New rows at the end, each with that much received in every column."""
        new = np.repeat(received_s[:, None], self.received_s.shape[1], axis=1)
        self.received_s = np.concatenate([self.received_s, new])
        self.deficit_s = np.concatenate([self.deficit_s, np.zeros_like(new)])

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Drop all rows but these; `rows` is (k,)."""
        self.received_s, self.deficit_s = self.received_s[rows], self.deficit_s[rows]

    def charge(self, chosen: ChosenRow, seconds: float) -> None:
        self.received_s[chosen.row, chosen.column] += seconds
        self.total_s[chosen.column] += seconds

    def reset(self, shares: Matrix, elapsed_s: float, credit_s: float) -> None:
        """Book what the shares up to now, (k, n), promised but did not give, and start again with a credit for all."""
        self.deficit_s += shares * elapsed_s - (self.received_s - credit_s)
        self.received_s = np.full_like(self.received_s, credit_s)
        self.total_s = self.received_s.sum(axis=0)


def priorities(shares: Matrix, account: Account, able: NDArray[np.bool_]) -> Matrix:
    """(k, n) share over fraction of the column's time received; 0 without a share or where the row cannot run."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        fraction = np.where(account.total_s > 0, account.received_s / account.total_s, 0.0)
        found = np.where(fraction > 0, shares / fraction, shares * NEVER_RAN)
    return np.where(able, found, 0.0)


def select(
    queue: RoundQueue,
    shares: Matrix,
    account: Account,
    gpus: Sequence[int],
    turn: Sequence[int],
    *,
    entitled_only: bool = False,
) -> list[ChosenRow]:
    """Who runs: columns in `turn`, in each the rows by priority, deficit, share, then arrival, as far as they fit.

    A row that does not fit is passed over; so is one with a job that runs already. Rows
    without a priority fill what is left, unless `entitled_only`. `gpus` are those of each column.
    """
    priority = priorities(shares, account, queue.able)
    taken: set[int] = {-1}
    found: list[ChosenRow] = []
    for column in turn:
        left = gpus[column]
        wanted = queue.able[:, column] & (queue.scale <= left)
        if entitled_only:
            wanted &= priority[:, column] > 0
        rows = np.flatnonzero(wanted)
        keys = (-shares[rows, column], -account.deficit_s[rows, column], -priority[rows, column])
        for row in rows[np.lexsort(keys)].tolist():
            first, second = queue.ids[row]
            size = int(queue.scale[row])
            if size <= left and first not in taken and (second < 0 or second not in taken):
                found.append(ChosenRow(row, column))
                taken.add(first)
                if second >= 0:
                    taken.add(second)
                left -= size
                if not left:
                    break
    return found


def lease(
    queue: RoundQueue, chosen: Sequence[ChosenRow], before: Mapping[RowId, RoundLease]
) -> dict[RowId, RoundLease]:
    """GPUs for the chosen rows: in each column the widest first, each width first those that can keep their GPUs.

    The others take free GPUs in order of their number, so servers fill one after the other.
    """
    found: dict[RowId, RoundLease] = {}
    for column in dict.fromkeys(each.column for each in chosen):
        rows = [each.row for each in chosen if each.column == column]
        used: set[int] = set()
        for width in sorted({int(queue.scale[row]) for row in rows}, reverse=True):
            of_width = [row for row in rows if queue.scale[row] == width]
            for row in of_width:
                old = before.get(queue.ids[row])
                if old is not None and old.column == column and not used & old.gpus:
                    found[queue.ids[row]] = old
                    used |= old.gpus
            for row in of_width:
                if queue.ids[row] not in found:
                    gpus = _lowest_free(used, width)
                    found[queue.ids[row]] = RoundLease(column, gpus)
                    used |= gpus
    return found


def _lowest_free(used: set[int], count: int) -> frozenset[int]:
    free: list[int] = []
    number = 0
    while len(free) < count:
        if number not in used:
            free.append(number)
        number += 1
    return frozenset(free)
