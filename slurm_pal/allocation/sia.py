# SPDX-License-Identifier: MIT
"""Sia: who runs in which configuration now, by one integer program (SOSP'23; sia-and-bar.md 1).

A configuration is a column and a number of GPUs there. A job counts by how much faster each of its configurations is
than its slowest, to a power below 0: so the program gives everybody something before it gives anybody the
best. A running job's other configurations count less the more it has been restarted and the more a restart costs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import WHOLE, Time, fitting, left_out, limit_rows, whole_gangs
from slurm_pal.allocation.linear import LinearProgram, Rows, UnsolvedError
from slurm_pal.allocation.problem import Allocation, Problem, Vector
from slurm_pal.base.errors import UsageError

LEAST_FACTOR = 0.01
"""Restart factors are not less: a job that was restarted often could never move again."""


class SiaSettings(NamedTuple):
    """Parameters of the program, as published, and limits of the solver."""

    power: float = -0.5  # of fairness: below 0 nobody is left out for speed, above 0 the fast get more
    waiting: float = 1.1  # what a job that waits costs; one in its slowest configuration costs 1
    change: float = 0.01  # what it costs to start or stop a job
    gap: float = 1e-3  # a solution so near to the optimum is good enough
    nodes: int = 1000  # of the search for whole numbers; the best found so far counts then
    limit_s: float = 10.0  # solver time, against a search that no number of nodes ends: what comes then may differ

    def check(self) -> None:
        """Raises UsageError for a value that means nothing."""
        if not np.isfinite(self.power) or self.power == 0:
            raise UsageError(f"sia: power is {self.power}; it must be a number other than 0, like -0.5")
        for name in ("waiting", "nodes", "limit_s"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise UsageError(f"sia: {name} is {value}; it must be a number above 0")


class Configurations(NamedTuple):
    """v ways in which jobs may run, in the order of the jobs."""

    job: NDArray[np.int64]  # (v,)
    column: NDArray[np.int64]  # (v,)
    gpus: Vector  # (v,) GPUs held
    goodput: Vector  # (v,) useful work per second, above 0, in a unit of each job's own
    held: NDArray[np.bool_]  # (v,) how it runs now


class Standing(NamedTuple):
    """What m jobs have behind them."""

    restarts: Vector  # (m,) so far
    restart_s: Vector  # (m,) what one more costs, s
    pinned: NDArray[np.bool_]  # (m,) a running job that stays as it is


def standing(n_jobs: int, restart_s: float = 0.0) -> Standing:
    """Jobs that were never restarted and may all move."""
    return Standing(np.zeros(n_jobs), np.full(n_jobs, float(restart_s)), np.zeros(n_jobs, dtype=bool))


def sia(problem: Problem, now: Standing, settings: SiaSettings | None = None) -> Allocation:
    """Shares of 1 and 0: the column of each job for this round; a job without one waits.

    Uses throughput, scale, uses, capacity, weight, age_s and held of the problem. Pinned jobs must fit.
    Raises UsageError for a setting that means nothing.
    """
    settings = settings or SiaSettings()
    options = rigid(problem)
    picked, notes = choose(problem, options, now, settings)
    shares = np.zeros((problem.n_jobs, problem.n_columns))
    rows = np.flatnonzero(picked >= 0)
    shares[rows, options.column[picked[rows]]] = 1.0
    pinned = np.flatnonzero(now.pinned)
    shares[pinned, problem.held[pinned]] = 1.0
    runs = np.asarray(fitting(problem).any(axis=1))
    return Allocation(shares, notes=(*left_out(runs | now.pinned), *notes))


def rigid(problem: Problem) -> Configurations:
    """Each job's columns, with the number of GPUs that it asks for."""
    usable = fitting(problem)
    job, column = np.nonzero(usable)
    return Configurations(job, column, problem.scale[job], usable[job, column], problem.held[job] == column)


def choose(
    problem: Problem, options: Configurations, now: Standing, settings: SiaSettings
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(m,) number of each job's configuration, -1 where it waits or is pinned; and notes, one line each.

    Of the problem it uses uses, capacity, weight, age_s, held and, for pinned jobs, scale. What is chosen fits all
    capacity rows, and leaves no room for a configuration of a job that waits.
    """
    settings.check()
    picked: NDArray[np.int64] = np.full(problem.n_jobs, -1)
    free = np.flatnonzero(~now.pinned[options.job])
    if not free.size:
        return picked, ()
    options = _some(options, free)
    used = problem.uses[:, problem.held[now.pinned]] @ problem.scale[now.pinned]
    rest = problem._replace(capacity=np.maximum(0.0, problem.capacity - used))
    value = gain(problem, options, now, settings)
    taken, notes = _solved(rest, options, value, settings)
    picked[options.job[taken]] = free[taken]
    return picked, notes


def _some(options: Configurations, which: NDArray[np.int64]) -> Configurations:
    job, column, gpus, goodput, held = (values[which] for values in options)
    return Configurations(job, column, gpus, goodput, held)  # type: ignore[arg-type]


def gain(problem: Problem, options: Configurations, now: Standing, settings: SiaSettings) -> Vector:
    """(v,) what the program gains by each configuration, above 0, beside leaving its job waiting."""
    m, job = problem.n_jobs, options.job
    least, gpus, most = np.full(m, np.inf), np.full(m, np.inf), np.zeros(m)
    np.minimum.at(least, job, options.goodput)
    np.minimum.at(gpus, job, options.gpus)
    runs = problem.held >= 0
    factor = np.where(runs, restart_factor(problem.age_s, now.restarts, now.restart_s), 1.0)
    good = options.goodput / least[job] * gpus[job] * np.where(options.held, 1.0, factor[job])
    powered = good**settings.power
    np.maximum.at(most, job, powered)
    # Below 0 the program minimises: a job always runs rather than waits, so waiting costs more than any way to run.
    waits = settings.waiting * (np.maximum(1.0, most) if settings.power < 0 else np.ones(m))
    change = np.where(runs, settings.change, -settings.change)
    value = waits[job] + change[job] + (-powered if settings.power < 0 else powered)
    return np.asarray(problem.weight[job] * value)


def restart_factor(age_s: Vector, restarts: Vector, restart_s: Vector) -> Vector:
    """By how much a running job's other configurations count less: (T - N S) / (T + S), within 0.01 to 1."""
    whole = age_s + restart_s
    factor = np.divide(age_s - restarts * restart_s, whole, out=np.ones(age_s.size), where=whole > 0)
    return np.clip(factor, LEAST_FACTOR, 1.0)


def _solved(
    problem: Problem, options: Configurations, value: Vector, settings: SiaSettings
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Configurations that fit together, and a note where they may be further than the gap from the optimum.

    The linear program splits at most as many jobs as there are capacity rows. Where there are many jobs it is near
    enough to keep what it settles, and to search for whole numbers among the others only.
    """
    kept = np.flatnonzero(_undominated(problem, options, value) | options.held)
    options, value = _some(options, kept), value[kept]
    try:
        relaxed = LinearProgram(value, _rows(problem, options), upper=np.ones(value.size)).solve()
    except UnsolvedError as error:
        return kept[_fitting(problem, options, value, np.zeros(value.size))], (f"by value per GPU: {error}",)
    enough = (1.0 - settings.gap) * relaxed.objective
    best = _fitting(problem, options, value, options.held.astype(np.float64))
    if value[best].sum() >= enough:
        return kept[best], ()  # who runs stays where nothing is better by more than the gap
    best = _fitting(problem, options, value, relaxed.x)
    settled = np.flatnonzero(relaxed.x > 1 - WHOLE)
    why = ""
    for certain in (settled, np.zeros(0, dtype=np.int64)):
        if value[best].sum() >= enough:
            return kept[best], ()
        try:
            found, ended = _whole(problem, options, value, certain, settings)
        except UnsolvedError as error:
            why = f"the linear program was rounded: {error}"
            continue
        if value[found].sum() > value[best].sum():
            best = found
        why = f"the best found counts: the search ended ({ended})" if ended else ""
    return kept[best], (why,) if why else ()


def _undominated(problem: Problem, options: Configurations, value: Vector) -> NDArray[np.bool_]:
    """(v,) false where another configuration of the job gains as much with a part of the same GPUs."""
    m, n = problem.n_jobs, problem.n_columns
    keep = np.ones(value.size, dtype=bool)
    # [a, b]: a takes nothing that b does not
    within = np.asarray((problem.uses[:, :, None] <= problem.uses[:, None, :]).all(axis=0))
    for gpus in np.unique(options.gpus):
        some = np.flatnonzero(options.gpus == gpus)
        table = np.full((m, n), -np.inf)
        table[options.job[some], options.column[some]] = value[some]
        worse = np.zeros((m, n), dtype=bool)
        for b in range(n):
            for a in np.flatnonzero(within[:, b]).tolist():
                first = a < b or not within[b, a]  # of equal ones the first stays
                worse[:, b] |= (table[:, a] > table[:, b]) | (first and a != b) & (table[:, a] == table[:, b])
        keep[some] = ~worse[options.job[some], options.column[some]]
    return keep


def _whole(
    problem: Problem, options: Configurations, value: Vector, certain: NDArray[np.int64], settings: SiaSettings
) -> tuple[NDArray[np.int64], str]:
    """The best configurations beside those that are `certain`, and which limit ended the search.

    Raises UnsolvedError where a limit is reached before anything is found.
    """
    left = np.flatnonzero(~np.isin(options.job, options.job[certain]))
    some = _some(options, left)
    used = problem.uses[:, options.column[certain]] @ options.gpus[certain]
    rest = problem._replace(capacity=np.maximum(0.0, problem.capacity - used))
    program = LinearProgram(value[left], _rows(rest, some), upper=np.ones(left.size), integers=left.size)
    program.option("mip_rel_gap", settings.gap)
    program.option("mip_max_nodes", settings.nodes)
    program.option("time_limit", settings.limit_s)
    x, solved = np.zeros(value.size), program.solve()
    x[left], x[certain] = solved.x, 1.0
    return _fitting(problem, options, value, x), solved.ended


def _rows(problem: Problem, options: Configurations) -> Rows:
    """A job runs in one configuration; the capacities."""
    time = Time(options.job, np.arange(options.job.size), np.ones(options.job.size))
    return limit_rows(problem, time, np.ones(problem.n_jobs), options.column, options.gpus)


def _fitting(problem: Problem, options: Configurations, value: Vector, x: Vector) -> NDArray[np.int64]:
    return whole_gangs(problem, x, value, options.job, options.column, options.gpus)
