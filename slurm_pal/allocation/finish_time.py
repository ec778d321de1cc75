"""Finish-time fairness (Themis): nobody ends much later than on its own part of the cluster (gavel.md 2 and 10.3)."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation import base, levels
from slurm_pal.allocation.grouping import groups
from slurm_pal.allocation.problem import Allocation, Problem, effective, isolated_throughput


def finish_time_fairness(problem: Problem) -> Allocation:
    """Make the largest rho_i = (age + remaining / throughput) / (earned + remaining / isolated throughput) least.

    Weights do not enter, as published. The objective is that rho, nan where no job with work
    left can run. Jobs with nothing left get no share. What is left above the need is arbitrary.

    At 1 / rho = L a job needs the throughput remaining * L / (D - age * L) with D the isolated
    time above, so this is the highest level of `levels`.
    """
    isolated = isolated_throughput(problem)
    isolated = np.where(isolated > 0, isolated, base.reference_throughput(problem) / max(1, problem.n_jobs))
    runs = base.running(problem)
    asks = runs & (problem.remaining > 0)
    span_s = problem.earned_s + problem.remaining / np.where(isolated > 0, isolated, 1.0)
    found = groups(problem, problem.remaining, span_s, problem.age_s)
    first = found.first
    shares = levels.highest_shares(problem, found, problem.remaining[first], span_s[first], problem.age_s[first])
    rho = (problem.age_s[asks] + problem.remaining[asks] / effective(problem, shares)[asks]) / span_s[asks]
    return Allocation(shares, float(rho.max()) if asks.any() else float("nan"), notes=base.left_out(runs))
