# SPDX-License-Identifier: MIT
"""What an allocation policy decides on, and its answer: jobs x columns, as arrays (Gavel, OSDI'20, section 3).

A column is one kind of GPUs: a partition, or a part of one (packed or spread, variability
class). Rows are jobs in the order in which they were given.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.base.errors import DataError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


class Problem(NamedTuple):
    """m jobs, n columns, k capacity rows. Build it with `problem`, which fills in what is not given."""

    throughput: Matrix  # (m, n) steps/s of the whole job on `scale` GPUs; 0: it cannot run there
    scale: Vector  # (m,) GPUs that the job holds at once
    gpus: Vector  # (n,) GPUs of each column, for the reference shares
    uses: Matrix  # (k, n) 1 where a column draws on a capacity row
    capacity: Vector  # (k,) GPUs
    weight: Vector  # (m,) priority weight
    remaining: Vector  # (m,) steps
    age_s: Vector  # (m,) since arrival
    earned_s: Vector  # (m,) isolated time already earned (finish-time fairness)
    held: NDArray[np.int64]  # (m,) column that the job runs on now, -1 where it waits
    price: Vector  # (n,) money per GPU and hour
    deadline_s: Vector  # (m,) from now, inf where there is none
    entity: NDArray[np.int64]  # (m,) whose job it is, as a row of `entity_weight`
    entity_weight: Vector  # (e,)
    kind: NDArray[np.int64]  # (m,) which row of `pairs` the job is; jobs of a kind have the same throughput and scale
    pairs: NDArray[np.float64]  # (kinds, kinds, n) steps/s of the first beside the second; 0: they cannot share

    @property
    def n_jobs(self) -> int:
        return int(self.throughput.shape[0])

    @property
    def n_columns(self) -> int:
        return int(self.throughput.shape[1])


class PairShare(NamedTuple):
    """Two jobs (rows, first < second) that share their GPUs, and the fraction of time in each column."""

    first: int
    second: int
    shares: Vector  # (n,)


class Allocation(NamedTuple):
    """The answer of a policy."""

    shares: Matrix  # (m, n) in [0, 1]: fraction of wall time that the job has the GPUs of the column to itself
    objective: float = float("nan")  # of the policy's own program; nan where it has none
    pairs: tuple[PairShare, ...] = ()
    notes: tuple[str, ...] = ()  # one line each, e.g. deadlines that cannot be met


def problem(throughput: Any, scale: Any, gpus: Any, **given: Any) -> Problem:  # noqa: ANN401  # anything like an array
    """A checked problem. `given` are further fields of Problem.

    By default each column has its own capacity row, weights are 1, nothing is left to do,
    earned or held, there is no deadline, all jobs are of one entity and no pairs exist.
    Raises DataError for shapes that do not fit, for values that are negative or no number, and for a
    column, entity or kind that does not exist.
    """
    speeds = np.array(throughput, dtype=np.float64, ndmin=2)
    m, n = speeds.shape
    columns = np.array(gpus, dtype=np.float64, ndmin=1)
    defaults: dict[str, Any] = {
        "uses": np.eye(n), "capacity": columns, "weight": np.ones(m), "remaining": np.zeros(m), "age_s": np.zeros(m),
        "earned_s": np.zeros(m), "held": np.full(m, -1), "price": np.ones(n), "deadline_s": np.full(m, np.inf),
        "entity": np.zeros(m), "entity_weight": np.ones(1), "kind": np.arange(m), "pairs": np.zeros((0, 0, n)),
    }  # fmt: skip
    unknown = given.keys() - defaults.keys()
    if unknown:
        raise DataError(f"an allocation problem has no field {min(unknown)!r}; it has {', '.join(Problem._fields)}")
    values = {"throughput": speeds, "scale": scale, "gpus": columns, **defaults, **given}
    whole = ("held", "entity", "kind")
    arrays: dict[str, Any] = {
        name: np.asarray(values[name], dtype=np.int64 if name in whole else np.float64) for name in Problem._fields
    }
    made = Problem(**arrays)
    _check_shapes(made)
    _check_values(made)
    _check_indexes(made)
    return made


def _check_shapes(made: Problem) -> None:
    m, n, rows = made.n_jobs, made.n_columns, made.capacity.size
    if not n:
        raise DataError(f"an allocation problem needs at least one column; its throughput has the shape {(m, n)}")
    kinds = made.pairs.shape[0]
    shapes = {
        "scale": (m,), "gpus": (n,), "uses": (rows, n), "capacity": (rows,), "weight": (m,), "remaining": (m,),
        "age_s": (m,), "earned_s": (m,), "held": (m,), "price": (n,), "deadline_s": (m,), "entity": (m,),
        "entity_weight": (made.entity_weight.size,), "kind": (m,), "pairs": (kinds, kinds, n),
    }  # fmt: skip
    for name, shape in shapes.items():
        found = getattr(made, name)
        if found.shape != shape:
            raise DataError(f"{name} has the shape {found.shape}; with {m} jobs and {n} columns it must be {shape}")


def _check_values(made: Problem) -> None:
    for name in ("throughput", "gpus", "uses", "capacity", "remaining", "age_s", "earned_s", "price", "pairs"):
        found = getattr(made, name)
        wrong = found[~(np.isfinite(found) & (found >= 0))]
        if wrong.size:
            raise DataError(f"{name} must hold finite numbers of at least 0; it holds {wrong[0]}")
    for name in ("scale", "weight", "entity_weight"):
        found = getattr(made, name)
        wrong = found[~(np.isfinite(found) & (found > 0))]
        if wrong.size:
            raise DataError(f"{name} must hold finite numbers above 0; it holds {wrong[0]}")
    unclear = np.flatnonzero(np.isnan(made.deadline_s))
    if unclear.size:
        raise DataError(f"job {unclear[0]} has the deadline nan; inf says that it has none")


def _check_indexes(made: Problem) -> None:
    checks = [
        ("holds column", made.held, -1, made.n_columns, "-1 says that it waits, and there are columns"),
        ("is of entity", made.entity, 0, made.entity_weight.size, "there are weights for entities"),
    ]
    if made.pairs.size:
        checks.append(("is of kind", made.kind, 0, made.pairs.shape[0], "there are pairs for kinds"))
    for what, found, first, count, there in checks:
        wrong = (found < first) | (found >= count)
        if wrong.any():
            job = int(wrong.argmax())
            raise DataError(f"job {job} {what} {found[job]}; {there} 0 to {count - 1}")


def rows_of(made: Problem, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Problem:
    """The problem of some of the jobs."""
    per_job = (
        "throughput", "scale", "weight", "remaining", "age_s", "earned_s", "held", "deadline_s", "entity", "kind",
    )  # fmt: skip
    return made._replace(**{name: getattr(made, name)[rows] for name in per_job})


def effective(made: Problem, shares: Matrix) -> Vector:
    """(m,) effective throughput, steps/s: the time-weighted mean over the columns."""
    return np.asarray(np.einsum("ij,ij->i", made.throughput, shares))


def proportional_shares(made: Problem) -> Vector:
    """(n,) the time of a job that is always running and spread over the columns by their GPUs; 0 where none has any."""
    return np.asarray(made.gpus / (made.gpus.sum() or 1.0))


def proportional_throughput(made: Problem) -> Vector:
    """(m,) steps/s at proportional shares: what throughput is measured against (gavel.md 1)."""
    return np.asarray(made.throughput @ proportional_shares(made))


def isolated_shares(made: Problem, parts: int | None = None) -> Matrix:
    """(m, n) what a job had on its own part of every column, of as many parts as there are jobs (or `parts`)."""
    shares = np.outer(1.0 / made.scale, made.gpus / max(1, made.n_jobs if parts is None else parts))
    return np.asarray(shares / np.maximum(1.0, shares.sum(axis=1, keepdims=True)))


def isolated_throughput(made: Problem) -> Vector:
    """(m,) steps/s of a job on its own 1/m of every column."""
    return effective(made, isolated_shares(made))
