"""What a policy leaves open, spent on throughput without moving jobs about (gavel.md 15.1, 15.2 and 15.5).

Max-min, makespan and finish-time fairness fix the least that each job gets, and leave the rest
to the solver's whim. The second stage keeps that floor and maximises

    sum_i value_i throughput_i / reference_i  -  sum_i penalty_i sum_j |X_ij - previous_ij|

The share of a cell is split into what is kept, at most the previous share, and what is new;
then |X - previous| is linear without rows of its own, and the program stays as small as the
first stage's. Jobs are grouped where they agree in everything that enters it, previous shares
included: by symmetry and convexity that is exact.

`pin` takes jobs that may not move out of both stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, InfeasibleError, Program, Rows, together
from slurm_pal.allocation.problem import Allocation, Matrix, PairShare, Problem, Vector, effective, isolated_throughput
from slurm_pal.errors import DataError

SLACK = 1e-3
"""How much of the floor the second stage may give up: between 1e-4 and 1e-2 (gavel.md 15.1)."""
PRIMAL = 4
"""HiGHS' primal simplex: on these programs 2 to 6 times as fast as its dual one (1,500 to 3,000 jobs)."""
FLOOR_RANGE = 1e3
"""Largest coefficient of a floor row: beyond it the program would be badly scaled."""


# -- floors: what the first stage promised each job, steps/s -------------------------------


def level_floor(problem: Problem, level: float) -> Vector:
    """(m,) of max-min: s throughput / (w reference) >= level."""
    return np.asarray(level * problem.weight * base.reference_throughput(problem) / problem.scale)


def makespan_floor(problem: Problem, makespan_s: float) -> Vector:
    """(m,) of makespan: all remaining steps within `makespan_s`."""
    return np.asarray(problem.remaining / makespan_s)


def finish_time_floor(problem: Problem, rho: float) -> Vector:
    """(m,) of finish-time fairness: (age + remaining / throughput) / (earned + remaining / isolated) <= rho.

    A job whose age alone is over that bound has no floor: no throughput would keep it.
    """
    alone = isolated_throughput(problem)
    time_s = np.divide(problem.remaining, alone, out=np.zeros_like(alone), where=alone > 0)
    left_s = rho * (problem.earned_s + time_s) - problem.age_s
    return np.divide(problem.remaining, left_s, out=np.zeros_like(left_s), where=left_s > 0)


# -- the price of a move -------------------------------------------------------------------


def move_penalty(move_cost_s: Vector, horizon_s: float) -> Vector:
    """(m,) in normalised throughput per share that changes: the time that a move costs over that between solves.

    A whole move changes two shares by 1, the one left and the one entered. Raises DataError
    for a horizon that is not above 0.
    """
    if not horizon_s > 0:
        raise DataError(f"the time between solves must be above 0 s, not {horizon_s}")
    return np.asarray(move_cost_s, dtype=np.float64) / horizon_s


def held_shares(problem: Problem) -> Matrix:
    """(m, n) the whole time in the column that a job holds; 0 for one that waits."""
    shares = np.zeros((problem.n_jobs, problem.n_columns))
    rows = np.flatnonzero(problem.held >= 0)
    shares[rows, problem.held[rows]] = 1.0
    return shares


# -- the program ---------------------------------------------------------------------------


def second_stage(
    problem: Problem,
    floor: Vector,
    *,
    previous: Matrix | None = None,
    penalty: Vector | None = None,
    value: Vector | None = None,
    slack: float = SLACK,
) -> Allocation:
    """The best shares among those that give every job (1 - slack) of its floor; exact.

    `floor` (m,) steps/s; `previous` (m, n) shares, by default what the jobs hold; `penalty` (m,)
    as of `move_penalty`, by default 0; `value` (m,) of throughput / reference, by default 1. A job
    without previous shares starts free of charge. The objective is the difference above.
    Raises DataError for shapes that do not fit, InfeasibleError where no shares give the floors.
    """
    task = _task(problem, floor, previous, penalty, value)
    found = groups(problem, task.floor, task.gain, task.penalty, *task.previous.T)
    variables, kept = _cells(problem, found, task.previous)
    runs = (variables.best > 0)[found.member]
    if not variables.size:
        return Allocation(np.zeros_like(task.previous), 0.0, notes=base.left_out(runs))
    x = _program(problem, found, variables, kept, task, slack)
    shares = base.shares_of(problem, found, variables, x)
    moved = np.abs(shares - task.previous).sum(axis=1)
    objective = float(task.gain @ effective(problem, shares) - task.penalty @ moved)
    return Allocation(shares, objective, notes=base.left_out(runs))


class Task(NamedTuple):
    """What the program is given about each job."""

    floor: Vector  # (m,) steps/s
    gain: Vector  # (m,) objective per step/s
    penalty: Vector  # (m,) objective per changed share
    previous: Matrix  # (m, n)


def _task(
    problem: Problem, floor: Vector, previous: Matrix | None, penalty: Vector | None, value: Vector | None
) -> Task:
    m, n = problem.n_jobs, problem.n_columns
    before = held_shares(problem) if previous is None else np.asarray(previous, dtype=np.float64)
    price = np.zeros(m) if penalty is None else np.asarray(penalty, dtype=np.float64)
    worth = np.ones(m) if value is None else np.asarray(value, dtype=np.float64)
    for name, found, shape in (
        ("floor", floor, (m,)), ("previous", before, (m, n)), ("penalty", price, (m,)), ("value", worth, (m,)),
    ):  # fmt: skip
        if found.shape != shape or (found.size and not (np.isfinite(found).all() and found.min() >= 0)):
            raise DataError(
                f"{name} must be finite numbers of at least 0 of shape {shape}; it has the shape {found.shape} and "
                f"the least value {found.min(initial=np.inf)}"
            )
    reference = base.reference_throughput(problem)
    gain = np.divide(worth, reference, out=np.zeros(m), where=reference > 0)
    return Task(floor, gain, np.where(before.sum(axis=1) > 0, price, 0.0), before)


def _cells(problem: Problem, found: Groups, previous: Matrix) -> tuple[base.Cells, NDArray[np.int64]]:
    """The cells of new shares, and which of them have a share to keep as well."""
    variables = base.cells(problem, found)
    kept = np.flatnonzero(previous[found.first[variables.group], variables.column] > 0)
    return variables, kept


def _program(
    problem: Problem, found: Groups, variables: base.Cells, kept: NDArray[np.int64], task: Task, slack: float
) -> Vector:
    """(v,) the share of each cell. The program has the new shares, then the kept ones, as its variables."""
    every = np.concatenate([np.arange(variables.size), kept])
    fields = ("group", "column", "throughput")
    twice = variables._replace(**{name: getattr(variables, name)[every] for name in fields})
    job = found.first[twice.group]
    sign = np.concatenate([-np.ones(variables.size), np.ones(len(kept))])
    cost = found.count[twice.group] * (task.gain[job] * twice.throughput + sign * task.penalty[job])
    upper = np.full(twice.size, INFINITE)
    upper[variables.size :] = task.previous[job[variables.size :], twice.column[variables.size :]]
    rows = together(base.base_rows(problem, found, twice), _floor_rows(found, twice, (1.0 - slack) * task.floor))
    program = Program(cost, rows, upper=upper)
    program.option("simplex_strategy", PRIMAL)
    try:
        x = program.solve().x
    except InfeasibleError as error:
        raise InfeasibleError("no shares give all jobs their floor; take the floor from a first stage") from error
    total = x[: variables.size].copy()
    total[kept] += x[variables.size :]
    return total


def _floor_rows(found: Groups, variables: base.Cells, floor: Vector) -> Rows:
    """Rows throughput_i >= floor_i, one for each group that runs and has a floor.

    In units of the floor, so that the solver's tolerance is a part of it, but with
    coefficients of at most FLOOR_RANGE.
    """
    least = floor[found.first]
    asks = (variables.best > 0) & (least > 0)
    unit = np.maximum(least, variables.best / FLOOR_RANGE)
    row = np.cumsum(asks) - 1
    cells = np.flatnonzero(asks[variables.group])
    group = variables.group[cells]
    lower = (least / np.where(asks, unit, 1.0))[asks]
    return Rows(row[group], cells, variables.throughput[cells] / unit[group], lower, np.full(len(lower), INFINITE))


# -- jobs that may not move ----------------------------------------------------------------


class Pinned(NamedTuple):
    """A problem without the jobs that stay where they are."""

    problem: Problem  # the free jobs, and what the others leave of the capacity
    rows: NDArray[np.int64]  # row of each of its jobs in the whole problem
    stay: Matrix  # (m, n) of the whole problem: 1 in the column of a pinned job
    notes: tuple[str, ...]

    def merge(self, free: Allocation) -> Allocation:
        """The allocation of the whole problem, from that of the free jobs."""
        shares = self.stay.copy()
        shares[self.rows] = free.shares
        pairs = tuple(
            PairShare(int(self.rows[pair.first]), int(self.rows[pair.second]), pair.shares) for pair in free.pairs
        )
        return Allocation(shares, free.objective, pairs, (*free.notes, *self.notes))


PER_JOB = ("throughput", "scale", "weight", "remaining", "age_s", "earned_s", "held", "deadline_s", "entity", "kind")
"""Fields of a Problem with a row for each job."""


def pin(problem: Problem, may_move: NDArray[np.bool_]) -> Pinned:
    """Fix running jobs that may not move (`may_move` (m,) false) to the column that they hold, for both stages.

    A job that waits is free in any case. References stay those of the whole problem: the
    proportional ones depend on the ratios of `gpus` alone, and 1/m of the GPUs stays 1/m,
    because `gpus` shrinks with the number of jobs. Where pinned jobs hold more than there is
    (a GPU was lost or changed its class), nothing is left there and a note says so.
    """
    pinned = ~np.asarray(may_move, dtype=bool) & (problem.held >= 0)
    stay = np.where(pinned[:, None], held_shares(problem), 0.0)
    left = problem.capacity - problem.uses @ (problem.scale @ stay)
    rows = np.flatnonzero(~pinned)
    fields = {name: getattr(problem, name)[rows] for name in PER_JOB}
    gpus = problem.gpus * (len(rows) / max(1, problem.n_jobs))
    smaller = problem._replace(**fields, gpus=gpus, capacity=np.maximum(left, 0.0))
    notes = tuple(
        f"jobs that may not move hold {problem.capacity[k] - left[k]:g} GPUs of capacity row {k}, which has "
        f"{problem.capacity[k]:g}"
        for k in np.flatnonzero(left < 0)
    )
    return Pinned(smaller, rows, stay, notes)
