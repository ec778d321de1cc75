"""The heterogeneity-agnostic twin of a problem: the same one, told that all columns are alike."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation.problem import Problem
from slurm_pal.errors import UsageError


def flattened(problem: Problem, to: float = 1.0, *, as_published: bool = False) -> Problem:
    """The problem with one throughput per job for all columns (gavel.md 1), and without pairs.

    `to` as a float is that throughput, steps/s (published: 1.0 for max-min and water
    filling). As an int it is the column whose throughput stands for all (published: V100
    for finish-time fairness and makespan). A column on which a job cannot run stays at 0;
    `as_published` fills it too, and shares may then fall where the job cannot run.
    Raises UsageError for a column that does not exist.
    """
    if isinstance(to, int):
        if not 0 <= to < problem.n_columns:
            raise UsageError(f"column {to} does not exist; the problem has columns 0 to {problem.n_columns - 1}")
        one = problem.throughput[:, [to]]
    else:
        one = np.full((problem.n_jobs, 1), to)
    able = np.ones_like(problem.throughput) if as_published else (problem.throughput > 0).astype(np.float64)
    kind, pairs = np.arange(problem.n_jobs), np.zeros((0, 0, problem.n_columns))
    return problem._replace(throughput=one * able, kind=kind, pairs=pairs)
