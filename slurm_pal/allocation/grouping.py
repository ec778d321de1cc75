# SPDX-License-Identifier: MIT
"""Jobs that a program cannot tell apart become one row of it (gavel.md 10.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Problem, Vector


@dataclass(frozen=True, slots=True)
class Groups:
    """g groups of m jobs. An optimum of the program over the groups, given to every member, is one over the jobs."""

    first: NDArray[np.int64]  # (g,) the job that stands for the group: its first in row order
    count: Vector  # (g,) members, at least 1
    member: NDArray[np.int64]  # (m,) the group of each job


def groups(problem: Problem, *columns: NDArray[Any]) -> Groups:
    """Jobs with the same throughputs and scale, and the same value in each of `columns`.

    Give as `columns`, (m,) each, whatever else of a job enters the program: its weight, its
    remaining work, a deadline. A program that has a term of its own for a job must not group it.
    """
    m = problem.n_jobs
    if any(len(np.unique(column)) == m for column in columns):
        return alone(problem)
    keys = (*problem.throughput.T, problem.scale, *columns)
    order = np.lexsort(keys)
    starts = np.zeros(m, dtype=bool)
    starts[:1] = True
    for key in keys:
        ordered = key[order]
        starts[1:] |= ordered[1:] != ordered[:-1]
    member = np.empty(m, dtype=np.int64)
    member[order] = np.cumsum(starts) - 1
    first = order[starts]
    return Groups(first, np.bincount(member, minlength=len(first)).astype(np.float64), member)


def alone(problem: Problem) -> Groups:
    """Every job as a group of its own."""
    rows = np.arange(problem.n_jobs)
    return Groups(rows, np.ones(problem.n_jobs), rows)
