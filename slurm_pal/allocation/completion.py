# SPDX-License-Identifier: MIT
"""Estimates for the entries of a throughput table that nobody has measured (gavel.md 5 does so for pairs).

All numbers are natural logarithms of throughputs. Rows are applications at a number of GPUs,
columns are types of GPUs. A row is an offset of its own (its unit of steps), the offsets of
the columns, and a few factors that all rows of one application share: low-rank completion by
alternating least squares with a ridge. What the factors leave is then taken from the nearest
references: rows of the same application, and rows that differ from this one by the same
factor wherever both were seen. The rank and the errors come from entries that were hidden.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.base.errors import DataError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST_RANK = 2
RIDGE = 0.5  # on row and column factors; rows have few entries
ROUNDS, OFFSET_ROUNDS = 25, 20  # of the alternating steps; the fit changes little beyond
NOISE = 0.2  # an entry of this error counts half of one without
REFERENCE_SCALE = 0.2  # rows whose differences scatter by more than this are not references
OTHER_APPLICATION = 0.3  # weight of a reference of another application, which needs two columns in common
NO_REFERENCE = 0.5  # references of this strength are half believed
MOST_LEFT_OUT, FOLDS, MOST_HIDDEN = 20, 10, 500  # one at a time up to the first, then in folds; at most the last
SIMPLER = 1.02  # a higher rank must improve the hidden entries by this factor
LEAST_SEEN = 0.1  # entries of a row at least, where the only one is very old
ASSUMED_ERROR, ASSUMED_COUNT = 0.5, 3.0  # before any entry could be hidden; weighs as much as this many
UNSEEN_ERROR = 1.0  # of a column that nobody has seen: a factor of e


class Completion(NamedTuple):
    """A table without gaps."""

    value: Matrix  # (m, n); entries that were seen are as they were seen
    error: Matrix  # (m, n) standard deviation; of seen entries as given
    relative: Vector  # (n,) speed of a column, over all rows; the mean of the seen columns is 0
    relative_error: Vector  # (n,) how far a row is from that
    rank: int


class _Data(NamedTuple):
    seen: Matrix  # (m, n), 0 where unknown
    known: Flags  # (m, n)
    weight: Matrix  # (m, n), 0 where unknown
    group: NDArray[np.int64]  # (m,) number of the application

    def without(self, hidden: Flags) -> _Data:
        left = self.known & ~hidden
        return self._replace(seen=np.where(left, self.seen, 0.0), known=left, weight=np.where(left, self.weight, 0.0))


class _Fit(NamedTuple):
    offset: Vector  # (m,)
    column: Vector  # (n,)
    row: Matrix  # (m, r)
    factor: Matrix  # (n, r)

    @property
    def value(self) -> Matrix:
        return np.asarray(self.offset[:, None] + self.column + self.row @ self.factor.T)


class _Hidden(NamedTuple):
    column: NDArray[np.int64]  # (h,) of each hidden entry
    residual: Vector  # (h,) estimate minus what was seen
    doubt: Vector  # (h,) see `_doubt`


def complete(seen: Matrix, error: Matrix | None = None, group: Sequence[Hashable] | None = None) -> Completion:
    """Fill the gaps (NaN) of `seen` (m, n), whose entries have the standard deviations `error` (default 0).

    `group` (m) says which rows are of one application (default: each row its own). The same
    input gives the same answer. Raises DataError for shapes that do not fit, for a row without any entry,
    for an entry that is infinite and for an error that is not a number of at least 0.
    """
    data, errors = _checked(seen, error, group)
    trials = [_hide(data, rank) for rank in range(_most_rank(data) + 1)]
    rank = _best(trials)
    fitted = _fit(data, rank).value
    rows = [_row(data, fitted, i) for i in range(len(data.seen))]
    value = np.array([row[0] for row in rows]).reshape(data.seen.shape)
    doubt = np.array([row[1] for row in rows]).reshape(data.seen.shape)
    spread = np.sqrt(doubt) * _scale(data, trials[rank])
    spread[:, ~data.known.any(axis=0)] = np.hypot(spread, UNSEEN_ERROR)[:, ~data.known.any(axis=0)]
    relative, relative_error = _relative(data)
    return Completion(
        np.where(data.known, data.seen, value), np.where(data.known, errors, spread), relative, relative_error, rank
    )


def _checked(seen: Matrix, error: Matrix | None, group: Sequence[Hashable] | None) -> tuple[_Data, Matrix]:
    values = np.asarray(seen, dtype=np.float64)
    if values.ndim != 2 or not values.shape[1]:
        raise DataError(f"a table to complete must have rows and at least one column; its shape is {values.shape}")
    known = ~np.isnan(values)
    errors = np.zeros(values.shape) if error is None else np.asarray(error, dtype=np.float64)
    names = list(range(len(values))) if group is None else list(group)
    if errors.shape != values.shape or len(names) != len(values):
        raise DataError(f"a table of {values.shape} has errors of {errors.shape} and {len(names)} applications")
    if np.isinf(values).any():
        raise DataError("an entry of the table is infinite; a throughput must be above 0 and finite")
    if not (np.isfinite(errors[known]) & (errors[known] >= 0)).all():
        raise DataError("an error in the table is not a finite number of at least 0")
    if not known.any(axis=1).all():
        raise DataError(f"row {int(np.argmin(known.any(axis=1)))} has no entry; leave out rows that nobody has seen")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    weight = np.where(known, NOISE**2 / (NOISE**2 + np.where(known, errors, 0.0) ** 2), 0.0)
    codes = np.array([numbers[name] for name in names], dtype=np.int64)
    return _Data(np.where(known, values, 0.0), known, weight, codes), errors


def _most_rank(data: _Data) -> int:
    """Offsets take one of the columns that were seen."""
    return min(MOST_RANK, max(0, int(data.known.any(axis=0).sum()) - 1))


# -- low rank -----------------------------------------------------------------------------


def _fit(data: _Data, rank: int) -> _Fit:
    offset, column = _offsets(data)
    m, n = data.seen.shape
    if rank == 0:
        return _Fit(offset, column, np.zeros((m, 0)), np.zeros((n, 0)))
    rest = np.where(data.known, data.seen - offset[:, None] - column, 0.0)
    directions = np.asarray(np.linalg.svd(_by_group(data, rest), full_matrices=False)[2], dtype=np.float64)
    factor = np.zeros((n, rank))
    factor[:, : len(directions[:rank])] = directions[:rank].T
    row = np.zeros((m, rank))
    for _ in range(ROUNDS):
        row, offset = _row_step(data, column, factor)
        column, factor = _column_step(data, offset, row)
    return _Fit(offset, column, row, factor)


def _offsets(data: _Data) -> tuple[Vector, Vector]:
    """Rank 0: one number for each row and one for each column. Those of the seen columns have the mean 0."""
    offset, column = np.zeros(len(data.seen)), np.zeros(data.seen.shape[1])
    per_row, per_column = data.weight.sum(axis=1), data.weight.sum(axis=0)
    used = per_column > 0
    for _ in range(OFFSET_ROUNDS):
        offset = (data.weight * (data.seen - column)).sum(axis=1) / np.where(per_row > 0, per_row, 1.0)
        column = (data.weight * (data.seen - offset[:, None])).sum(axis=0) / np.where(used, per_column, 1.0)
        column = np.where(used, column - column[used].mean() if used.any() else 0.0, 0.0)
    return offset, column


def _by_group(data: _Data, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums over the rows of each application."""
    sums = np.zeros((int(data.group.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(sums, data.group, values)
    return sums


def _row_step(data: _Data, column: Vector, factor: Matrix) -> tuple[Matrix, Vector]:
    """Row factors and offsets for given columns. The offsets bear no ridge: each row has its own unit."""
    total = data.weight.sum(axis=1)
    total = np.where(total > 0, total, 1.0)
    rest = np.where(data.known, data.seen - column, 0.0)
    about_mean = rest - ((data.weight * rest).sum(axis=1) / total)[:, None]
    centred = factor[None] - (data.weight @ factor / total[:, None])[:, None]
    normal = _by_group(data, np.einsum("ij,ija,ijb->iab", data.weight, centred, centred))
    right = _by_group(data, np.einsum("ij,ija->ia", data.weight * about_mean, centred))
    ridge = RIDGE * np.eye(factor.shape[1])
    row = np.asarray(np.linalg.solve(normal + ridge, right[..., None])[..., 0], dtype=np.float64)[data.group]
    offset = (data.weight * (rest - row @ factor.T)).sum(axis=1) / total
    return row, offset


def _column_step(data: _Data, offset: Vector, row: Matrix) -> tuple[Vector, Matrix]:
    """Column offsets and factors for given rows. A column that nobody has seen gets 0."""
    design = np.hstack([np.ones((len(row), 1)), row])
    ridge = np.diag([1e-3, *[RIDGE] * row.shape[1]])
    normal = np.einsum("ij,ia,ib->jab", data.weight, design, design) + ridge
    right = (data.weight * (data.seen - offset[:, None])).T @ design
    found: Matrix = np.linalg.solve(normal, right[..., None])[..., 0]
    return found[:, 0], found[:, 1:]


# -- nearest references -------------------------------------------------------------------


def _row(data: _Data, value: Matrix, i: int) -> tuple[Vector, Vector]:
    """The estimates (n,) of row i from the low-rank `value` (m, n) and its nearest references, and their doubt."""
    rest = np.where(data.known, data.seen - value, 0.0)
    common = data.known & data.known[i]
    count = common.sum(axis=1)
    apart = np.where(common, rest[i] - rest, 0.0)
    mean = apart.sum(axis=1) / np.maximum(count, 1)
    variance = (np.where(common, apart - mean[:, None], 0.0) ** 2).sum(axis=1) / np.maximum(count - 1, 1)
    same = data.group == data.group[i]
    trust = np.where(same, count > 0, OTHER_APPLICATION * (count > 1))
    trust = trust * np.exp(-variance / (2 * REFERENCE_SCALE**2))
    each = trust[:, None] * data.known
    strength = each.sum(axis=0)
    moved = (each * (rest + mean[:, None])).sum(axis=0) / (strength + NO_REFERENCE)
    return value[i] + moved, _doubt(float(data.weight[i].sum()), strength)


def _doubt(seen: float, strength: Vector) -> Vector:
    """By how much the variance of an estimate (n,) is larger where little is known.

    `seen` entries of the row fix its offset; references of a `strength` explain part of the rest.
    """
    return np.asarray(1.0 / max(seen, LEAST_SEEN) + NO_REFERENCE / (NO_REFERENCE + strength))


# -- what it is worth ---------------------------------------------------------------------


def _folds(data: _Data) -> Iterator[Flags]:
    """Sets of entries to hide; never the only entry of a row, and never all of a row at once."""
    rows, columns = np.nonzero(data.known & (data.known.sum(axis=1) > 1)[:, None])
    step = max(1, -(-len(rows) // MOST_HIDDEN))
    rows, columns = rows[::step], columns[::step]
    folds = len(rows) if len(rows) <= MOST_LEFT_OUT else FOLDS
    for fold in range(folds):
        hidden = np.zeros(data.known.shape, dtype=np.bool_)
        hidden[rows[fold::folds], columns[fold::folds]] = True
        yield hidden


def _hide(data: _Data, rank: int) -> _Hidden:
    """Errors at entries that the estimate did not see."""
    columns: list[int] = []
    residual: list[float] = []
    doubt: list[float] = []
    for hidden in _folds(data):
        left = data.without(hidden)
        fitted = _fit(left, rank).value
        for i in np.flatnonzero(hidden.any(axis=1)):
            value, unsure = _row(left, fitted, int(i))
            for j in np.flatnonzero(hidden[i]):
                columns.append(int(j))
                residual.append(float(value[j] - data.seen[i, j]))
                doubt.append(float(unsure[j]))
    return _Hidden(np.array(columns, dtype=np.int64), np.array(residual), np.array(doubt))


def _best(trials: Sequence[_Hidden]) -> int:
    """The smallest rank that is nearly the best at the hidden entries."""
    errors = [float(np.abs(trial.residual).mean()) if trial.residual.size else 0.0 for trial in trials]
    return next(rank for rank, error in enumerate(errors) if error <= SIMPLER * min(errors))


def _scale(data: _Data, hidden: _Hidden) -> Vector:
    """(n,) factor on the root of the doubt, such that two thirds of the hidden errors are below the product."""
    sizes = np.abs(hidden.residual) / np.sqrt(hidden.doubt)
    pooled = _blended(sizes, ASSUMED_ERROR)
    return np.array([_blended(sizes[hidden.column == j], pooled) for j in range(data.seen.shape[1])])


def _blended(sizes: Vector, assumed: float) -> float:
    """The 68 % quantile of some sizes, with what was assumed before as a few more of them."""
    found = float(np.quantile(sizes, 0.68)) if sizes.size else assumed
    return float(np.sqrt((ASSUMED_COUNT * assumed**2 + sizes.size * found**2) / (ASSUMED_COUNT + sizes.size)))


def _relative(data: _Data) -> tuple[Vector, Vector]:
    """(n,) speeds of the columns over all rows, and how far single rows are from them."""
    offset, column = _offsets(data)
    apart = np.abs(data.seen - offset[:, None] - column)
    several = (data.known.sum(axis=1) > 1)[:, None] & data.known
    error = np.array([_blended(apart[several[:, j], j], ASSUMED_ERROR) for j in range(len(column))])
    return column, np.where(data.known.any(axis=0), error, UNSEEN_ERROR)
