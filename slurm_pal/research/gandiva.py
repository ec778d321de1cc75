# SPDX-License-Identifier: MIT
"""Gandiva as Gavel's authors compare with it: random pairs where the cluster is too small (gavel.md 2)."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Allocation, PairShare, Problem, isolated_shares
from slurm_pal.research.references import within_capacity

Partners = NDArray[np.int64]
"""(m,) the row of the job's partner, -1 for none."""


def gandiva(problem: Problem, draws: random.Random, partner: Partners | None = None) -> Allocation:
    """Time in equal parts: for the jobs if all fit, else for random pairs and the jobs left over.

    `partner` is what `partners` returned last time, its rows moved to the jobs of today;
    without it all pairs are drawn anew. Call `partners` and `split` where it must be kept.
    """
    return split(problem, partners(problem, draws, partner))


def partners(problem: Problem, draws: random.Random, partner: Partners | None = None) -> Partners:
    """Who shares GPUs with whom from now on.

    A pair stays until one of the two ends or it no longer pays. If all jobs fit, no new pairs
    are drawn, and the old ones rest. Draws one `sample` of two per attempt, among the jobs
    without a partner in row order, as many attempts as there were such jobs; two of unequal
    scale stay single.
    """
    now = np.full(problem.n_jobs, -1) if partner is None else partner.copy()
    for job in np.flatnonzero(now >= 0):
        if not _pays(problem, int(job), int(now[job])):
            now[job] = -1
    if fits(problem):
        return now
    single = [int(job) for job in np.flatnonzero(now < 0)]
    for _ in range(len(single)):
        if len(single) < 2:
            break
        one, other = draws.sample(single, 2)
        if problem.scale[one] != problem.scale[other]:
            continue
        single.remove(one)
        single.remove(other)
        now[one], now[other] = other, one
    return now


def fits(problem: Problem) -> bool:
    """Whether there is a GPU for every job at once."""
    return bool(problem.scale.sum() <= problem.gpus.sum())


def split(problem: Problem, partner: Partners) -> Allocation:
    """Equal parts of every column for each job, or for each pair and each job without a partner if not all fit."""
    together = np.full(problem.n_jobs, -1) if fits(problem) else partner
    rows = np.arange(problem.n_jobs)
    owners = (together < 0) | (rows < together)
    shares = within_capacity(problem, np.where(owners[:, None], isolated_shares(problem, int(owners.sum())), 0.0))
    pairs = tuple(PairShare(int(a), int(together[a]), shares[a]) for a in rows[owners & (together >= 0)])
    return Allocation(np.where((together < 0)[:, None], shares, 0.0), pairs=pairs)


def _pays(problem: Problem, first: int, second: int) -> bool:
    """The published test: relative speeds of both over ALL columns add up to at least 1, and none of them is 0."""
    if not problem.pairs.size:
        return False
    a, b = problem.kind[first], problem.kind[second]
    there, back = problem.pairs[a, b], problem.pairs[b, a]
    if min(there.min(), back.min(), problem.throughput[[first, second]].min()) <= 0:
        return False
    return bool((there / problem.throughput[first]).sum() + (back / problem.throughput[second]).sum() >= 1.0)
