# SPDX-License-Identifier: MIT
"""`pal-share`: which job runs on which column now, every move charged.

Completion times first: a job counts by what its steps are worth (worth.py). The makespan is
kept by a promise: when a job comes, all present jobs are promised to be done a little after
the least time that they need. A job with less slack than that grows urgent, and its weight
with it. A running job keeps its column unless the gain pays for the move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.problem import Matrix, Problem, Vector
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.research.bounds import drain_s
from slurm_pal.research.selection import select
from slurm_pal.research.worth import Worth, worth


class PalShareSettings(NamedTuple):
    """What a site may change."""

    slack: float = 0.03  # part of the least time for all present work by which it may end later
    urgency: float = 20.0  # how many times its weight a job gains when its slack is used up
    horizon_s: float = 3600.0  # the longest time over which a move must pay

    def check(self) -> None:
        """Raises UsageError for a value that means nothing."""
        for name, value in self._asdict().items():
            if not (np.isfinite(value) and value > 0):
                raise UsageError(f"pal-share: {name} is {value}; it must be a number above 0")


class MoveCosts(NamedTuple):
    """What moving means for each of m jobs. Build it with `move_costs`."""

    may_move: NDArray[np.bool_]  # (m,) a running job that may not keeps its column
    move_cost_s: Vector  # (m,) lost at a move, or at a stop and the start after it
    promised_s: Vector  # (m,) `ShareDecision.promised_s` of before, less the time since; nan for a new job


class ShareDecision(NamedTuple):
    """The answer: where each of m jobs runs from now on."""

    column: NDArray[np.int64]  # (m,) -1: it waits
    promised_s: Vector  # (m,) from now, when all present work shall be done; inf for a job that can run nowhere


def move_costs(n_jobs: int, **given: Any) -> MoveCosts:  # noqa: ANN401  # anything like an array
    """A checked standing. By default all jobs may move at no cost, and nothing was promised.

    Raises DataError for shapes that do not fit, and for a cost that is negative or not finite.
    """
    defaults = {"may_move": True, "move_cost_s": 0.0, "promised_s": np.nan}
    values = {**defaults, **given}
    arrays: dict[str, Any] = {
        name: np.array(np.broadcast_to(values[name], (n_jobs,)), dtype=bool if name == "may_move" else np.float64)
        for name in MoveCosts._fields
        if np.shape(values[name]) in ((), (n_jobs,))
    }
    for name in MoveCosts._fields:
        if name not in arrays:
            raise DataError(f"{name} has the shape {np.shape(values[name])}; with {n_jobs} jobs it must be {(n_jobs,)}")
    made = MoveCosts(**arrays)
    wrong = made.move_cost_s[~(np.isfinite(made.move_cost_s) & (made.move_cost_s >= 0))]
    if wrong.size:
        raise DataError(f"move_cost_s must hold finite numbers of at least 0; it holds {wrong[0]} s")
    return made


def decide(problem: Problem, now: MoveCosts, settings: PalShareSettings | None = None) -> ShareDecision:
    """Who runs where until the next decision. Ask again when a job comes or ends, and now and then in between.

    Uses throughput, scale, gpus, uses, capacity, weight, remaining and held of the problem. Running jobs must fit.
    What is chosen fits all capacity rows. Where a column draws on several, values are those of `gpus` alone.
    Raises UsageError for a setting that means nothing.
    """
    settings = settings or PalShareSettings()
    settings.check()
    found = values(problem, now, settings)
    reward = found.worth.step[:, None] * found.usable
    reward += _keeping(problem, now, reward, found.seconds, settings)
    column = _chosen(problem, reward, found.worth.price, found.pinned)
    runs = np.asarray(found.usable.any(axis=1))
    return ShareDecision(column, np.where(runs, found.promised_s, np.inf))


class ShareInputs(NamedTuple):
    """What a decision is made of."""

    usable: Matrix  # (m, n) throughput where a job may run, steps/s
    pinned: NDArray[np.bool_]  # (m,) it runs and stays
    seconds: Matrix  # (m, n) what it still needs there, inf where it may not run
    worth: Worth
    promised_s: float  # from now, when all present work shall be done


def values(problem: Problem, now: MoveCosts, settings: PalShareSettings) -> ShareInputs:
    """What steps are worth and GPUs cost, by which `decide` ranks jobs."""
    usable, pinned = _usable(problem, now)
    able = problem._replace(throughput=usable)
    runs = np.asarray(usable.any(axis=1))
    seconds = np.divide(problem.remaining[:, None], usable, out=np.full(usable.shape, np.inf), where=usable > 0)
    least_s = np.where(runs, seconds.min(axis=1, initial=np.inf), 0.0)
    promised_s = _promise(able, now, runs, settings)
    weight = problem.weight * _urgency(problem, promised_s, least_s, runs & ~pinned, settings)
    # Free GPUs: the shortest job ends first. Scarce GPUs: the least work does. This order lies between the two.
    order = np.argsort(-least_s * np.sqrt(problem.scale), kind="stable")
    return ShareInputs(usable, pinned, seconds, _worth(able, weight, order), promised_s)


def _usable(problem: Problem, now: MoveCosts) -> tuple[Matrix, NDArray[np.bool_]]:
    """(m, n) throughput where a job may run, and (m,) the running jobs that stay: also those without a known speed."""
    usable = fitting(problem)
    held = np.flatnonzero(problem.held >= 0)
    column = problem.held[held]
    pinned = np.zeros(problem.n_jobs, dtype=bool)
    pinned[held] = ~now.may_move[held] | (usable[held, column] == 0)
    only_held = np.zeros(usable.shape, dtype=bool)
    only_held[held, column] = True
    return np.where(pinned[:, None] & ~only_held, 0.0, usable), pinned


def _promise(problem: Problem, now: MoveCosts, runs: NDArray[np.bool_], settings: PalShareSettings) -> float:
    """When all work shall be done, s from now. Only a new job puts it off, or work that cannot be done by then."""
    least_s = drain_s(problem)
    made_s = float(now.promised_s.max(initial=0.0, where=np.isfinite(now.promised_s)))
    new = runs & np.isnan(now.promised_s)
    return max(made_s, least_s * (1.0 + settings.slack if new.any() else 1.0))


def _urgency(
    problem: Problem, promised_s: float, least_s: Vector, ours: NDArray[np.bool_], settings: PalShareSettings
) -> Vector:
    """(m,) 1 for a job with slack, rising as the slack falls below what was granted to the work at hand.

    The promise is the same for all, so a gang's urgency counts for each of its GPUs: by its weight alone it
    would give way to as many single jobs.
    """
    span_s = promised_s + float(problem.age_s.max(initial=0.0, where=ours))
    granted_s = max(1.0, settings.slack * span_s)
    short = np.clip(1.0 - (promised_s - least_s) / granted_s, 0.0, 1.0)
    return np.asarray(1.0 + settings.urgency * short * problem.scale)


def _worth(problem: Problem, weight: Vector, order: NDArray[np.int64]) -> Worth:
    """Values of steps, and a price for each column; columns that share GPUs are one, as fast as the best of them."""
    if not (problem.uses.sum(axis=0) == 1).all() or not (problem.uses.max(axis=0, initial=0) == 1).all():
        return worth(problem.throughput, problem.scale, problem.gpus, weight, order)
    pool = problem.uses.argmax(axis=0)
    speed = np.stack([problem.throughput[:, pool == k].max(axis=1, initial=0) for k in range(problem.capacity.size)], 1)
    found = worth(speed, problem.scale, problem.capacity, weight, order)
    return Worth(found.step, found.price[pool])


def _keeping(problem: Problem, now: MoveCosts, reward: Matrix, seconds: Matrix, settings: PalShareSettings) -> Matrix:
    """(m, n) added to the reward of the column held: what a move loses, spread over the time in which it can pay."""
    held = np.flatnonzero(problem.held >= 0)
    column = problem.held[held]
    pays_s = np.clip(seconds[held, column], 1.0, settings.horizon_s)
    kept = np.zeros(reward.shape)
    kept[held, column] = reward[held, column] * now.move_cost_s[held] / pays_s
    return kept


def _chosen(problem: Problem, reward: Matrix, price: Vector, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(m,) pinned jobs stay, the others share what these leave."""
    used = problem.uses[:, problem.held[pinned]] @ problem.scale[pinned]
    rest = problem._replace(capacity=np.maximum(0.0, problem.capacity - used))
    column = select(rest, np.where(pinned[:, None], 0.0, reward), price)
    return np.where(pinned, problem.held, column)
