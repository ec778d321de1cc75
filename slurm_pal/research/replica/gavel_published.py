# SPDX-License-Identifier: MIT
"""The policies as Gavel's simulator runs them: the programs of gavel.md 2, solved by its solver, ECOS.

A program fixes a level for all jobs and little more, so many shares are optimal, and the rounds depend on which of
them the solver returns (gavel.md 9, defect 9): an exact vertex moves mean completion times by 0.1 to 70 %, another
interior-point method by up to 1.4 %. ECOS is GPL-3.0: users install it themselves, and only this replica calls it.
Policies that are not here are those of `research.allocation_policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]

from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.problem import (
    Allocation,
    Matrix,
    Problem,
    Vector,
    isolated_shares,
    isolated_throughput,
    proportional_shares,
)
from slurm_pal.base.errors import MissingPackageError, PalError, UsageError
from slurm_pal.research import gandiva
from slurm_pal.research.allocation_policies import AllocationPolicy, policy
from slurm_pal.research.replica.gavel_jobs import GavelWorkload
from slurm_pal.research.replica.gavel_simulator import Decide, GavelMoment, GavelRules

PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}
"""$ per GPU and hour, the constants of the published code."""

SHORTEST_S, LONGEST_S, CLOSE = 100.0, 1e6, 1.05
"""Where the published search for the makespan begins, and the ratio at which it ends."""

OPTIMAL, NEARLY_OPTIMAL, INTERRUPTED = 0, 10, -4
"""How ECOS ends with a solution; at any other end it has none."""


class UnsolvedError(PalError):
    """ECOS ended without a solution."""


def rules_of(name: str, work: GavelWorkload, seed: int) -> GavelRules:
    """A policy for one run; it may keep a memory.

    Raises UsageError for an unknown one, or one not for these jobs, MissingPackageError where it needs ECOS.
    """
    found = policy(name)
    wide = [job for job in work.jobs if job.gpus > 1]
    if found.one_gpu and wide:
        raise UsageError(f"{name} is for jobs of 1 GPU; job {wide[0].number} has {wide[0].gpus}: leave that policy out")
    if found.priced:
        prices_of(work)
    if name in PROGRAMS:
        try:
            _ecos()
        except ImportError as error:
            text = f"{name} is solved by ECOS (GPL-3.0), as published: pip install ecos, or leave that policy out"
            raise MissingPackageError(text) from error
    decide: Decide = _Gandiva(seed) if name == "gavel:gandiva" else _Decide(name, found, work, seed)
    return GavelRules(decide, found.shuffled, found.entitled_only, found.pairs)


def prices_of(work: GavelWorkload) -> Vector:
    """(n,) the published prices. Raises UsageError for a type that has none."""
    for name in work.columns:
        if name not in PRICES:
            raise UsageError(f"GPU type {name!r} has no published price; those that have are {', '.join(PRICES)}")
    return np.array([PRICES[name] for name in work.columns])


class Earned:
    """The isolated time that each job has earned (finish-time fairness).

    Steps done from one time to the next, over what the job alone on its part made a second at the first of the two.
    """

    def __init__(self, n_jobs: int) -> None:
        self._earned_s, self._left, self._speed = np.zeros(n_jobs), np.full(n_jobs, np.nan), np.ones(n_jobs)

    def until_now(self, seen: Problem, job: NDArray[np.int64]) -> Vector:
        """(m,) s, of the jobs with these numbers; `seen` is the problem now."""
        done = np.where(np.isnan(self._left[job]), 0.0, self._left[job] - seen.remaining)
        self._earned_s[job] += np.maximum(0.0, done) / self._speed[job]
        self._left[job], self._speed[job] = seen.remaining, isolated_throughput(seen)
        return np.asarray(self._earned_s[job])


class _Decide:
    """A policy with what the published ones remember."""

    def __init__(self, name: str, found: AllocationPolicy, work: GavelWorkload, seed: int) -> None:
        self._policy, self._draws = found, Random(seed)
        self._rule, self._program = RULES.get(name), PROGRAMS.get(name)
        self._reference = work.turn[0]
        self._prices = prices_of(work) if found.priced else np.ones(len(work.columns))
        self._earned = Earned(len(work.jobs))

    def __call__(self, moment: GavelMoment) -> Allocation:
        seen = self._policy.seen(moment.problem._replace(price=self._prices), self._reference, as_published=True)
        seen = seen._replace(earned_s=self._earned.until_now(seen, np.array(moment.numbers)))
        if self._rule is not None:
            return Allocation(self._rule(seen))
        if self._program is not None:
            try:
                return Allocation(solved(self._program(seen), seen))
            except UnsolvedError:
                pass  # published: isolated shares or none; ours are at least optimal
        return self._policy.allocate(seen, self._draws)


class _Gandiva:
    """Pairs stay together until one of the two ends."""

    def __init__(self, seed: int) -> None:
        self._draws = Random(seed)
        self._partner: dict[int, int] = {}

    def __call__(self, moment: GavelMoment) -> Allocation:
        row = {number: place for place, number in enumerate(moment.numbers)}
        before = [row.get(self._partner.get(number, -1), -1) for number in moment.numbers]
        now = gandiva.partners(moment.problem, self._draws, np.array(before))
        self._partner = {
            number: moment.numbers[other] for number, other in zip(moment.numbers, now, strict=True) if other >= 0
        }
        return gandiva.split(moment.problem, now)


# -- rules and programs --------------------------------------------------------------------


def _fifo_perf(problem: Problem) -> Matrix:
    """In order, to the fastest type with room; a job that cannot run on what is left is passed over."""
    shares, free = np.zeros_like(problem.throughput), problem.gpus.copy()
    for job, speeds in enumerate(problem.throughput):
        room = np.flatnonzero(free >= problem.scale[job])
        if not room.size:
            break
        column = room[speeds[room].argmax()]
        if speeds[column] > 0:
            shares[job, column] = 1.0
            free[column] -= problem.scale[job]
    return shares


class Program(NamedTuple):
    """Minimise cost x subject to rows x <= limit; for the last rows, by three, <= is that of second-order cones.

    The variables are the level, where there is one, then the shares, type by type. This order, that of the rows and
    each rounding are those of the published code: another order moves mean completion times by up to .6 %.
    """

    cost: Vector
    rows: Any  # a sparse matrix
    limit: Vector
    cones: int = 0
    first: int = 0  # the variable with which the shares begin


def _max_min(problem: Problem) -> Program:
    """max t, with duty_i X_i >= t."""
    unit = 1.0 / problem.weight * (1.0 / (problem.throughput * proportional_shares(problem)).sum(axis=1))
    duty = _by_job(problem.throughput * unit[:, None] * problem.scale[:, None])
    rows, limit = _conditions(problem)
    rows = sparse.bmat([[np.ones((problem.n_jobs, 1)), -duty], [None, rows]])
    return Program(np.append(-1.0, np.zeros(duty.shape[1])), rows, np.append(np.zeros(problem.n_jobs), limit), first=1)


def _makespan(problem: Problem) -> Program:
    """Any shares that end all work within a time that a bisection found, up to 5 % above the least."""
    least = problem.remaining / searched(makespan(problem).objective)
    rows, limit = _conditions(problem)
    rows = sparse.vstack([rows, -_by_job(problem.throughput)])
    return Program(np.zeros(rows.shape[1]), rows, np.append(limit, -least))


def searched(least_s: float) -> float:
    """Where the published search ends: the last time it tried that is no less than `least_s`."""
    low, high, last, found = SHORTEST_S, LONGEST_S, LONGEST_S, 0.0
    while not found:
        while CLOSE * low < high:
            middle = (low + high) / 2.0
            if middle >= least_s:
                found = high = middle
            else:
                low = middle
        low, high, last = last, last * 10.0, last * 10.0
    return found


def _max_sum(problem: Problem) -> Program:
    return Program(-problem.throughput.T.ravel(), *_conditions(problem))


def _cost(problem: Problem) -> Program:
    return Program(-(problem.throughput / problem.price).T.ravel(), *_conditions(problem))


def _finish_time(problem: Problem) -> Program:
    """min t, t >= (age + remaining * y_i) / alone_i, with y_i >= 1 / throughput_i as a cone (rate + y, rate - y, 2)."""
    m = problem.n_jobs
    unit = 1.0 / (problem.earned_s + problem.remaining / isolated_throughput(problem))
    rows, limit = _conditions(problem)
    rates = sparse.kron(_by_job(problem.throughput), [[-1.0], [-1.0], [0.0]])
    inverses = sparse.kron(sparse.identity(m), [[-1.0], [1.0], [0.0]])
    rows = sparse.bmat(
        [
            [-np.ones((m, 1)), None, sparse.diags(problem.remaining * unit)],
            [None, rows, None],
            [None, rates, inverses],
        ]
    )
    limit = np.concatenate([-problem.age_s * unit, limit, np.tile([0.0, 0.0, 2.0], m)])
    return Program(np.append(1.0, np.zeros(rows.shape[1] - 1)), rows, limit, cones=m, first=1)


def _conditions(problem: Problem) -> tuple[Any, Vector]:
    """The conditions B of gavel.md 1 on the shares, as rows and limits: signs, time, GPUs."""
    m, n = problem.throughput.shape
    gpus = sparse.kron(sparse.identity(n), problem.scale[None, :])
    rows = sparse.vstack([-sparse.identity(m * n), gpus, _by_job(np.ones((m, n)))])
    return rows, np.concatenate([np.zeros(m * n), problem.gpus, np.ones(m)])


def _by_job(values: Matrix) -> Any:  # noqa: ANN401  # SciPy's matrices have no types
    """(m, m n) a row for each job with its values of (m, n) at its own shares."""
    return sparse.hstack([sparse.diags(column) for column in values.T])


def solved(program: Program, problem: Problem) -> Matrix:
    """(m, n) the shares with which ECOS ends. Raises UnsolvedError, and KeyboardInterrupt, which ECOS catches."""
    rows = sparse.csc_matrix(program.rows)
    rows.eliminate_zeros()
    dims = {"l": len(program.limit) - 3 * program.cones, "q": [3] * program.cones}
    found = _ecos().solve(program.cost, rows, program.limit, dims, verbose=False)
    ended = found["info"]["exitFlag"]
    if ended == INTERRUPTED:
        raise KeyboardInterrupt
    if ended not in (OPTIMAL, NEARLY_OPTIMAL):
        raise UnsolvedError(f"ECOS: {found['info']['infostring']} ({ended}); {problem.n_jobs} jobs")
    shares = found["x"][program.first :][: problem.throughput.size]
    return np.asarray(np.clip(shares.reshape(problem.throughput.T.shape).T, 0.0, 1.0))


def _ecos() -> ModuleType:
    return import_module("ecos")  # only when it is asked for: few users have it


RULES: dict[str, Callable[[Problem], Matrix]] = {"gavel:fifo-perf": _fifo_perf, "gavel:isolated": isolated_shares}
PROGRAMS: dict[str, Callable[[Problem], Program]] = {
    "gavel:max-min": _max_min,
    "gavel:max-min-agnostic": _max_min,
    "gavel:ftf": _finish_time,
    "gavel:ftf-agnostic": _finish_time,
    "gavel:makespan": _makespan,
    "gavel:makespan-agnostic": _makespan,
    "gavel:max-sum": _max_sum,
    "gavel:cost": _cost,
}
