# SPDX-License-Identifier: MIT
"""The least makespan of the jobs at hand (gavel.md 2 and 10.2)."""

from __future__ import annotations

from slurm_pal.allocation import base, levels
from slurm_pal.allocation.grouping import groups
from slurm_pal.allocation.problem import Allocation, Problem, effective


def makespan(problem: Problem) -> Allocation:
    """The shares with which the last job ends as early as it can, if they are held to the end.

    The objective is that time, s: 0 where nothing remains, nan where no job with work left can
    run. Jobs with nothing left get no share. What is left above the need is arbitrary.
    """
    found = groups(problem, problem.remaining)
    shares = levels.highest_shares(problem, found, problem.remaining[found.first], *levels.plain(found))
    runs = base.running(problem)
    asks = runs & (problem.remaining > 0)
    ends_s = problem.remaining[asks] / effective(problem, shares)[asks]
    objective = float(ends_s.max()) if asks.any() else float("nan") if problem.remaining.any() else 0.0
    return Allocation(shares, objective, notes=base.left_out(runs))
