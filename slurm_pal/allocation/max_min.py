# SPDX-License-Identifier: MIT
"""Max-min fairness (least attained service), exactly, over groups of equal jobs."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation import base, levels
from slurm_pal.allocation.grouping import Groups, groups
from slurm_pal.allocation.linear import INFINITE, PRIMAL, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Allocation, Matrix, Problem, Vector, effective


def max_min(problem: Problem) -> Allocation:
    """Make the least s * throughput / (w * reference) as large as it can be (LAS of gavel.md 2).

    The factor s makes GPU time equal, not time. The objective is that least value, nan where no
    job can run. What is left above the minimum is arbitrary: see `second_stage`.
    """
    found = groups(problem, problem.weight)
    variables = base.cells(problem, found)
    runs = (variables.best > 0)[found.member]
    if not variables.size:
        return base.nothing(problem, notes=base.left_out(runs))
    unit = problem.weight * base.reference_throughput(problem) / problem.scale
    if len(found.first) > levels.WHOLE:
        shares = levels.highest_shares(problem, found, unit[found.first], *levels.plain(found))
    else:
        shares = _directly(problem, found, variables, unit[found.first])
    values = effective(problem, shares)[runs] / unit[runs]
    return Allocation(shares, float(values.min()), notes=base.left_out(runs))


def _directly(problem: Problem, found: Groups, variables: base.Cells, unit: Vector) -> Matrix:
    """(m, n) shares at the largest L with throughput_i >= L * unit_i, by one program: the cells, then L."""
    g, runs = len(found.first), np.flatnonzero(variables.best)
    rows = Rows(
        np.concatenate([variables.group, runs]),
        np.concatenate([np.arange(variables.size), np.full(len(runs), variables.size)]),
        np.concatenate([variables.throughput / variables.best[variables.group], -(unit[runs] / variables.best[runs])]),
        np.zeros(g),
        np.full(g, INFINITE),
    )
    cost = np.zeros(variables.size + 1)
    cost[-1] = 1.0
    program = LinearProgram(cost, together(base.base_rows(problem, found, variables), rows))
    program.option("simplex_strategy", PRIMAL)
    return base.shares_of(problem, found, variables, program.solve().x)
