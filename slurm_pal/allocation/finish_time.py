# SPDX-License-Identifier: MIT
"""Finish-time fairness (Themis): no job ends much later than on its own part of the cluster (gavel.md 2 and 10.3)."""

from __future__ import annotations

from slurm_pal.allocation import base, levels
from slurm_pal.allocation.grouping import groups
from slurm_pal.allocation.problem import Allocation, Problem, effective


def finish_time_fairness(problem: Problem) -> Allocation:
    """Make the largest rho_i = (age + remaining / throughput) / (earned + remaining / isolated throughput) least.

    Weights do not enter, as published. The objective is that rho, nan where no job with work
    left can run. Jobs with nothing left get no share. What is left above the need is arbitrary.

    At 1 / rho = L a job needs the throughput remaining * L / (D - age * L) with D the isolated
    time above, so this is the highest level of `levels`.
    """
    runs, span_s = base.running(problem), base.isolated_s(problem)
    asks = runs & (problem.remaining > 0)
    found = groups(problem, problem.remaining, span_s, problem.age_s)
    first = found.first
    shares = levels.highest_shares(problem, found, problem.remaining[first], span_s[first], problem.age_s[first])
    rho = (problem.age_s[asks] + problem.remaining[asks] / effective(problem, shares)[asks]) / span_s[asks]
    return Allocation(shares, float(rho.max()) if asks.any() else float("nan"), notes=base.left_out(runs))
