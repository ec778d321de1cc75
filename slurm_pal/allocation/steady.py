"""Policies for a scheduler that stops no job: where each job belongs, as shares of time. A row is a policy.

The LP policies are followed by the second stage, since what they leave open would change from
one tick to the next. Where a job belongs by `pal-share` is told by prices: the columns in
which what its steps are worth exceeds most what its GPUs would earn with others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurm_pal.allocation import second_stage
from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.pal_share import Settings, standing, values
from slurm_pal.allocation.problem import Allocation, Problem, Vector
from slurm_pal.allocation.throughput_sum import max_sum
from slurm_pal.allocation.water_filling import hierarchical
from slurm_pal.errors import PalError

NEARLY = 0.02
"""Columns whose surplus is so much (of the job's own value) below the best one's are as good."""


def _then(
    first: Callable[[Problem], Allocation], floor: Callable[[Problem, float], Vector]
) -> Callable[[Problem], Allocation]:
    """A first stage, and what it leaves open spent on throughput."""

    def policy(problem: Problem) -> Allocation:
        found = first(problem)
        if not np.isfinite(found.objective) or found.objective <= 0:
            return found
        try:
            return second_stage.second_stage(problem, floor(problem, found.objective))._replace(notes=found.notes)
        except PalError:  # the floor is at the edge of what there is: the first stage's own shares are as good
            return found

    return policy


def by_price(problem: Problem) -> Allocation:
    """Each job wholly in the columns where it is worth most, at the prices of the best sharing among all (worth.py)."""
    found = values(problem, standing(problem.n_jobs), Settings())
    earned = found.worth.step[:, None] * found.usable
    surplus = np.where(found.usable > 0, earned - problem.scale[:, None] * found.worth.price, -np.inf)
    best = surplus.max(axis=1, initial=-np.inf, keepdims=True)
    near = surplus >= best - NEARLY * earned.max(axis=1, initial=0.0, keepdims=True)
    belongs = near & (found.usable > 0)
    return Allocation(belongs / np.maximum(1, belongs.sum(axis=1, keepdims=True)))


STEADY: dict[str, Callable[[Problem], Allocation]] = {
    "pal-share": by_price,
    "gavel:max-min": _then(max_min, second_stage.level_floor),
    "gavel:ftf": _then(finish_time_fairness, second_stage.finish_time_floor),
    "gavel:makespan": _then(makespan, second_stage.makespan_floor),
    "gavel:max-sum": max_sum,
    "gavel:hierarchical": hierarchical,
}
"""Name in `rebalance.allocation` -> policy."""
