# SPDX-License-Identifier: MIT
"""The policies as Gavel's simulator runs them: the programs of gavel.md 2, solved as its solver does.

Where a published program leaves shares open, ours, an exact vertex, would be as good and give
other figures (gavel_cone says why). Policies that are not here are those of `allocation_policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.problem import (
    Allocation,
    Matrix,
    Problem,
    Vector,
    isolated_shares,
    isolated_throughput,
    proportional_throughput,
)
from slurm_pal.base.errors import UsageError
from slurm_pal.research import gandiva
from slurm_pal.research.allocation_policies import AllocationPolicy, policy
from slurm_pal.research.replica import gavel_cone
from slurm_pal.research.replica.gavel_jobs import GavelWorkload
from slurm_pal.research.replica.gavel_simulator import Decide, GavelMoment, GavelRules

PRICES = {"v100": 0.74, "p100": 0.43, "k80": 0.135}
"""$ per GPU and hour, the constants of the published code."""

SHORTEST_S, LONGEST_S, CLOSE = 100.0, 1e6, 1.05
"""Where the published search for the makespan begins, and the ratio at which it ends."""


def rules_of(name: str, work: GavelWorkload, seed: int) -> GavelRules:
    """A policy for one run; it may keep a memory. Raises UsageError for an unknown one, or one not for these jobs."""
    found = policy(name)
    wide = [job for job in work.jobs if job.gpus > 1]
    if found.one_gpu and wide:
        raise UsageError(f"{name} is for jobs of 1 GPU; job {wide[0].number} has {wide[0].gpus}: leave that policy out")
    if found.priced:
        prices_of(work)
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
        self._program = PROGRAMS.get(name)
        self._reference = work.turn[0]
        self._prices = prices_of(work) if found.priced else np.ones(len(work.columns))
        self._earned = Earned(len(work.jobs))

    def __call__(self, moment: GavelMoment) -> Allocation:
        seen = self._policy.seen(moment.problem._replace(price=self._prices), self._reference, as_published=True)
        seen = seen._replace(earned_s=self._earned.until_now(seen, np.array(moment.numbers)))
        if self._program is not None:
            try:
                return Allocation(self._program(seen))
            except gavel_cone.ConeError:
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


# -- programs -----------------------------------------------------------------------------


def _isolated(problem: Problem) -> Matrix:
    return isolated_shares(problem)


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


def _max_min(problem: Problem) -> Matrix:
    unit = problem.weight * proportional_throughput(problem) / problem.scale
    duty = problem.throughput / unit[:, None]
    return _solved(_rows(problem, duty, level=1.0, least=0.0)._replace(level_cost=-1.0), problem)


def _makespan(problem: Problem) -> Matrix:
    """Any shares that end all work within a time that a search by halves found, up to 5 % above the least."""
    time_s = searched(makespan(problem).objective)
    return _solved(_rows(problem, problem.throughput, level=0.0, least=problem.remaining / time_s), problem)


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


def _max_sum(problem: Problem) -> Matrix:
    return _solved(_rows(problem)._replace(cost=-problem.throughput), problem)


def _cost(problem: Problem) -> Matrix:
    return _solved(_rows(problem)._replace(cost=-problem.throughput / problem.price), problem)


def _rows(
    problem: Problem, duty: Matrix | None = None, level: float = 0.0, least: Vector | float = 0.0
) -> gavel_cone.ConeProgram:
    """The conditions B of gavel.md 1 and, with `duty` (m, n), rows duty_i X_i >= level * t + least_i."""
    m, n = problem.throughput.shape
    local = np.zeros((m, n + 1 + (duty is not None), n))
    tie, limit = np.zeros(local.shape[:2]), np.zeros(local.shape[:2])
    local[:, np.arange(n), np.arange(n)] = -1.0
    local[:, n], limit[:, n] = 1.0, 1.0
    if duty is not None:
        local[:, n + 1], tie[:, n + 1], limit[:, n + 1] = -duty, level, -np.asarray(least)
    return gavel_cone.ConeProgram(np.zeros((m, n)), local, tie, limit, _use(problem, n), problem.gpus)


def _use(problem: Problem, variables: int) -> gavel_cone.Array:
    """(m, n, variables) the GPUs of each type that a share takes."""
    return np.asarray(problem.scale[:, None, None] * np.eye(problem.n_columns, variables))


def _finish_time(problem: Problem) -> Matrix:
    """min t, t >= (age + remaining * y_i) / alone_i, with y_i >= 1 / throughput_i as a cone (rate + y, rate - y, 2)."""
    m, n = problem.throughput.shape
    alone_s = problem.earned_s + problem.remaining / isolated_throughput(problem)
    local = np.zeros((m, n + 5, n + 1))
    tie, limit = np.zeros((m, n + 5)), np.zeros((m, n + 5))
    local[:, np.arange(n), np.arange(n)] = -1.0
    local[:, n, :n], limit[:, n] = 1.0, 1.0
    local[:, n + 1, n], tie[:, n + 1], limit[:, n + 1] = problem.remaining / alone_s, -1.0, -problem.age_s / alone_s
    local[:, n + 2, :n], local[:, n + 2, n] = -problem.throughput, -1.0
    local[:, n + 3, :n], local[:, n + 3, n] = -problem.throughput, 1.0
    limit[:, n + 4] = 2.0
    program = gavel_cone.ConeProgram(
        np.zeros((m, n + 1)), local, tie, limit, _use(problem, n + 1), problem.gpus, level_cost=1.0, cone=True
    )
    return _solved(program, problem)


def _solved(program: gavel_cone.ConeProgram, problem: Problem) -> Matrix:
    return np.clip(gavel_cone.solve(program)[:, : problem.n_columns], 0.0, 1.0)


PROGRAMS: dict[str, Callable[[Problem], Matrix]] = {
    "gavel:fifo-perf": _fifo_perf,
    "gavel:max-min": _max_min,
    "gavel:max-min-agnostic": _max_min,
    "gavel:ftf": _finish_time,
    "gavel:ftf-agnostic": _finish_time,
    "gavel:makespan": _makespan,
    "gavel:makespan-agnostic": _makespan,
    "gavel:max-sum": _max_sum,
    "gavel:cost": _cost,
    "gavel:isolated": _isolated,
}
