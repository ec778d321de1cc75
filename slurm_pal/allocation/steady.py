# SPDX-License-Identifier: MIT
"""Policies for a scheduler that stops no job: where each job belongs, as shares of time. A row is a policy.

The LP policies are followed by the second stage, since what they leave open would change from
one tick to the next. Ours are NONPREEMPTIVE_COMPLETION (`sufferage`: the least mean completion time) and
NONPREEMPTIVE_MAKESPAN, that of least makespan and then most throughput: no job belongs where it would hold
up the end of all work, and apart from that each column goes to the jobs that gain most by it. The prices
of `pal-share` (research) have no use where no job can be moved on later, and most throughput alone leaves
long jobs on slow GPUs (docs/benchmarks.md).

Hadar and Sia say who runs now, and the others wait. Here nobody is stopped, and whoever waits needs an
answer as well: those left out are dealt anew on all GPUs, as if everybody before them had ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import second_stage
from slurm_pal.allocation.base import fitting, left_out, running
from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.hadar import hadar
from slurm_pal.allocation.linear import InfeasibleError, UnsolvedError
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import Allocation, Problem, Vector, rows_of
from slurm_pal.allocation.sia import SiaSettings, sia, standing
from slurm_pal.allocation.sufferage import least_completion
from slurm_pal.allocation.throughput_sum import cost, max_sum
from slurm_pal.allocation.water_filling import hierarchical

NONPREEMPTIVE_MAKESPAN, NONPREEMPTIVE_COMPLETION = "nonpreemptive-makespan", "nonpreemptive-completion"
COST = "gavel:cost"
HADAR, SIA, PAL_SIA = "hadar", "sia", "pal-sia"
UNAWARE = frozenset({HADAR, SIA})
"""Published policies that know types of GPUs only: to them the GPUs of a partition are alike, and so are its nodes."""
ALL_LEVELS = 150
"""Jobs up to which every level of water filling is solved: .2 s for jobs that are all different."""

SIA_TERMS = SiaSettings(gap=0.01, nodes=50, limit_s=2.0)
"""A tick has many deals to make, and must decide alike when it is decided again."""


def _then(
    first: Callable[[Problem], Allocation], floor: Callable[[Problem, float], Vector]
) -> Callable[[Problem], Allocation]:
    """A first stage, and what it leaves open spent on throughput."""

    def policy(problem: Problem) -> Allocation:
        found = first(problem)
        if not np.isfinite(found.objective) or found.objective <= 0:
            return found
        anew = np.zeros_like(problem.throughput)  # where jobs run does not count, and who is alike stays one row
        try:
            second = second_stage.second_stage(problem, floor(problem, found.objective), previous=anew)
            return second._replace(notes=found.notes)
        except (InfeasibleError, UnsolvedError):
            return found  # the floor is at the edge of what there is: the first stage's own shares are as good

    return policy


def by_entity(problem: Problem) -> Allocation:
    """Fairness between entities, and within each between its jobs.

    Water filling takes a program for each level: seconds for several hundred jobs that are all
    different. Beyond ALL_LEVELS jobs only the lowest level is fair, and the rest is spent on throughput.
    """
    if problem.n_jobs <= ALL_LEVELS:
        return hierarchical(problem)
    weight = np.where(fitting(problem).any(axis=1), problem.weight, 0.0)
    total = np.bincount(problem.entity, weight, minlength=problem.entity_weight.size)[problem.entity]
    part = np.divide(weight, total, out=np.zeros(problem.n_jobs), where=total > 0)
    return fair(problem._replace(weight=problem.entity_weight[problem.entity] * part))


def _dealt(
    one: Callable[[Problem, NDArray[np.bool_]], NDArray[np.int64]],
) -> Callable[[Problem], Allocation]:
    """A policy that answers with columns, asked until all jobs have one.

    In the first deal running jobs keep what they hold. Each of k deals has 1/k of the time, so all capacities hold.
    """

    def policy(problem: Problem) -> Allocation:
        shares = np.zeros((problem.n_jobs, problem.n_columns))
        runs = running(problem)
        left, deals = np.flatnonzero(runs), 0
        while left.size:
            now = rows_of(problem, left)
            pinned = (now.held >= 0) & (deals == 0)
            found = one(now, pinned)
            placed = found >= 0
            if not placed.any():
                break
            shares[left[placed], found[placed]] = 1.0
            left, deals = left[~placed], deals + 1
        return Allocation(shares / max(1, deals), notes=left_out(runs))

    return policy


def _for_money(problem: Problem) -> Allocation:
    """The most work for the money. Each job's throughputs are in a unit of its own: shares of its best one count."""
    best = problem.throughput.max(axis=1, initial=0.0, keepdims=True)
    return cost(problem._replace(throughput=problem.throughput / np.where(best > 0, best, 1.0)))


def _hadar(problem: Problem, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    return hadar(problem, problem.remaining, np.zeros(problem.n_jobs), pinned)


def _sia(problem: Problem, pinned: NDArray[np.bool_]) -> NDArray[np.int64]:
    shares = sia(problem, standing(problem.n_jobs)._replace(pinned=pinned), SIA_TERMS).shares
    return np.where(shares.any(axis=1), shares.argmax(axis=1), -1)


fair = _then(max_min, second_stage.level_floor)
soon = _then(makespan, second_stage.makespan_floor)
STEADY: dict[str, Callable[[Problem], Allocation]] = {
    NONPREEMPTIVE_COMPLETION: least_completion,
    NONPREEMPTIVE_MAKESPAN: soon,
    "gavel:max-min": fair,
    "gavel:ftf": _then(finish_time_fairness, second_stage.finish_time_floor),
    "gavel:makespan": soon,
    "gavel:max-sum": max_sum,
    COST: _for_money,
    "gavel:hierarchical": by_entity,
    HADAR: _dealt(_hadar),
    SIA: _dealt(_sia),
    PAL_SIA: _dealt(_sia),
}
"""Name in `rebalance.allocation` -> policy. `gavel:makespan` is the same as `nonpreemptive-makespan`.

`pal-sia` is Sia's program; it knows single GPUs, since its columns do.
"""
