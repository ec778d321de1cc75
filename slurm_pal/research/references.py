# SPDX-License-Identifier: MIT
"""Shares that look at no throughput: what the policies are measured against (gavel.md 1 and 2)."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation.problem import Allocation, Matrix, Problem, isolated_shares, proportional_shares


def isolated(problem: Problem) -> Allocation:
    """Every job has its own 1/m of every column: equal GPU time."""
    return Allocation(within_capacity(problem, isolated_shares(problem)))


def proportional(problem: Problem) -> Allocation:
    """Every job has the same time, spread over the columns by their GPUs.

    The published one gives all of its time to every job, for use as a normaliser only
    (`proportional_shares`). Here the time is cut so that all of it can be had at once.
    """
    return Allocation(within_capacity(problem, np.tile(proportional_shares(problem), (problem.n_jobs, 1))))


def within_capacity(problem: Problem, shares: Matrix) -> Matrix:
    """The shares, all cut alike where columns that draw on the same GPUs ask for more than there are."""
    use = problem.uses @ (problem.scale @ shares)
    asked = use > problem.capacity
    return np.asarray(shares * (problem.capacity[asked] / use[asked]).min(initial=1.0))
