# SPDX-License-Identifier: MIT
"""A lower bound on completion times that no schedule can beat, with free moves."""

from __future__ import annotations

import numpy as np

from slurm_pal.allocation.base import fitting
from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Problem, Vector
from slurm_pal.research.bounds import gangs, upto


def completion_bound_s(problem: Problem, release_s: Vector, edges_s: Vector) -> float:
    """A lower bound on the mean of (end - release), s, of jobs (at least one) with work left that can run somewhere.

    The fluid LP over the intervals between `edges_s`, from 0 to a time by which all can be done. A job ends no sooner
    than alone on its fastest column, p after its release, and no sooner than p/2 after the mean time of its work,
    since it never works faster than there. Work counts at the start of its interval, so finer edges bound better.
    """
    speed = fitting(problem)
    shortest_s = problem.remaining / speed.max(axis=1)
    job, column, span = np.nonzero((speed > 0)[:, :, None] & (edges_s[1:] > release_s[:, None])[:, None, :])
    m, entries = problem.n_jobs, np.arange(job.size)
    part = speed[job, column] / problem.remaining[job]  # of the job's work, per second
    since_s = np.maximum(edges_s[span] - release_s[job], 0.0)
    work = Rows(job, entries, part, np.ones(m), np.full(m, INFINITE))
    # Variable job.size + i: by how much job i ends after release + p.
    mean = Rows(
        np.concatenate((np.arange(m), job)),
        np.concatenate((job.size + np.arange(m), entries)),
        np.concatenate((np.ones(m), -part * since_s)),
        -shortest_s / 2,
        np.full(m, INFINITE),
    )
    own = job * (edges_s.size - 1) + span
    free_s = np.clip(edges_s[None, 1:] - np.maximum(edges_s[None, :-1], release_s[:, None]), 0.0, None).ravel()
    time = upto(own, entries, np.ones(job.size), free_s)
    room = [
        upto(span[e], e, use[e], capacity * np.diff(edges_s))
        for use, capacity in gangs(problem, problem.scale[job], column)
        for e in [np.flatnonzero(use)]
    ]
    cost = np.concatenate((np.zeros(job.size), np.ones(m)))
    found = LinearProgram(cost, together(work, mean, time, *room), maximise=False).solve()
    return float((found.objective + shortest_s.sum()) / m)
