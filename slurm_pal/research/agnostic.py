# SPDX-License-Identifier: MIT
"""The heterogeneity-agnostic twin of a problem: the same one, with all columns alike."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation.problem import Problem
from slurm_pal.base.errors import UsageError


def flattened(problem: Problem, reference: int | None = None, *, as_published: bool = False) -> Problem:
    """The problem with one throughput per job for all columns (gavel.md 1), and without pairs.

    That is the throughput in the column `reference` (published: V100 for finish-time fairness and
    makespan), for a job that cannot run there its best one; without a reference 1 step/s (published for
    max-min and water filling). A column on which a job cannot run stays at 0; `as_published` fills it too,
    and shares may then fall where the job cannot run. Raises UsageError for a column that does not exist.
    """
    if reference is None:
        one = np.ones((problem.n_jobs, 1))
    elif not 0 <= reference < problem.n_columns:
        raise UsageError(f"column {reference} does not exist; the problem has columns 0 to {problem.n_columns - 1}")
    else:
        there, best = problem.throughput[:, [reference]], problem.throughput.max(axis=1, keepdims=True)
        one = np.where(there > 0, there, best)
    able = np.ones_like(problem.throughput) if as_published else (problem.throughput > 0).astype(np.float64)
    kind, pairs = np.arange(problem.n_jobs), np.zeros((0, 0, problem.n_columns))
    return problem._replace(throughput=one * able, kind=kind, pairs=pairs)
