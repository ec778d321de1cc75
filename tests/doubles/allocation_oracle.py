# SPDX-License-Identifier: MIT
"""The programs of the allocation policies as their definitions have them, in cvxpy, and random instances.

Slow and plain on purpose: one row of shares for each job, no grouping, no scaling, another solver.
"""

from __future__ import annotations

import numpy as np
import pytest

from slurm_pal.allocation.problem import (
    Matrix,
    Problem,
    Vector,
    isolated_throughput,
    problem,
    proportional_throughput,
)

try:
    import cvxpy as cp
except ImportError:
    cp = None

needs_oracle = pytest.mark.skipif(cp is None, reason="cvxpy is not installed; it solves the programs a second time")
CLOSE = {"rel": 2e-6, "abs": 1e-9}


def instance(seed: int, m: int, n: int, *, equal: int = 0, bars: float = 0.15, room: float = 0.4) -> Problem:
    """m jobs on n columns: speeds of all sizes, some columns barred, `equal` different rows of speeds (0: all).

    `room` is GPUs over what the jobs hold at once. Every job runs somewhere.
    """
    rng = np.random.default_rng(seed)
    speeds = 10 ** rng.uniform(-1.5, 1.5, (m, 1)) * rng.uniform(0.1, 1.0, (m, n))
    if equal:
        speeds = speeds[rng.integers(0, min(equal, m), m)]
    barred = rng.uniform(size=(m, n)) < bars
    barred[np.arange(m), rng.integers(0, n, m)] = False
    scale = rng.choice([1.0, 1.0, 2.0, 4.0], m)
    gpus = np.maximum(4, np.round(room * scale.sum() * rng.dirichlet(np.full(n, 3.0))))
    made = problem(np.where(barred, 0.0, speeds), scale, gpus, weight=rng.choice([1.0, 1.0, 5.0], m))
    rest = made.throughput.max(axis=1) * 10 ** rng.uniform(2.5, 4.5, m)
    earned_s = rest / isolated_throughput(made) * rng.uniform(0.0, 1.0, m)
    return made._replace(
        remaining=rest, earned_s=earned_s, age_s=earned_s * rng.uniform(0.5, 1.5, m), price=rng.uniform(0.1, 3.0, n)
    )


def max_min(given: Problem) -> float:
    """max min_i s_i thr_i / (w_i Tbar_i)."""
    _, throughput, rules = _base(given)
    factor = given.scale / (given.weight * proportional_throughput(given))
    return _solved(cp.Maximize(cp.min(cp.multiply(factor, throughput))), rules)


def makespan(given: Problem) -> float:
    """min M with thr_i >= r_i / M, s; by the largest 1 / M in units of the longest job alone."""
    _, throughput, rules = _base(given)
    alone_s = given.remaining / given.throughput.max(axis=1)
    rate = cp.Variable()
    best = given.throughput.max(axis=1)
    rules.append(cp.multiply(1 / best, throughput) >= rate * (alone_s / alone_s.max()))
    return float(alone_s.max() / _solved(cp.Maximize(rate), rules))


def finish_time(given: Problem) -> float:
    """min max_i (t_i + r_i / thr_i) / (C_i + r_i / isolated throughput)."""
    _, throughput, rules = _base(given)
    best = given.throughput.max(axis=1)
    isolated_s = given.earned_s + given.remaining / isolated_throughput(given)
    ends = cp.multiply(given.remaining / best / isolated_s, cp.inv_pos(cp.multiply(1 / best, throughput)))
    return _solved(cp.Minimize(cp.max(given.age_s / isolated_s + ends)), rules, tolerance=1e-8)


def largest_sum(given: Problem, value: Matrix) -> float:
    """max sum_ij value_ij X_ij."""
    shares, _, rules = _base(given)
    top = value.max()
    return float(top * _solved(cp.Maximize(cp.sum(cp.multiply(value / top, shares))), rules))


def least_missing(given: Problem, asked: Vector) -> float:
    """The least sum over the jobs of the missing part of `asked`, (m,) steps/s; 0 asks for nothing."""
    _, throughput, rules = _base(given)
    due = np.flatnonzero(asked)
    missing = cp.pos(1 - cp.multiply(1 / asked[due], throughput[due]))
    return _solved(cp.Minimize(cp.sum(missing)), rules)


def _base(given: Problem) -> tuple[cp.Variable, cp.Expression, list[cp.Constraint]]:
    shares = cp.Variable((given.n_jobs, given.n_columns), nonneg=True)
    rules = [cp.sum(shares, axis=1) <= 1, given.uses @ (given.scale @ shares) <= given.capacity]
    wide = given.scale[:, None] > np.where(given.uses[:, None, :] > 0, given.capacity[:, None, None], np.inf).min(
        axis=0
    )
    barred = wide | (given.throughput == 0)
    if barred.any():
        rules.append(cp.multiply(barred.astype(float), shares) == 0)
    return shares, cp.sum(cp.multiply(given.throughput, shares), axis=1), rules


def _solved(objective: cp.Minimize | cp.Maximize, rules: list[cp.Constraint], tolerance: float = 1e-10) -> float:
    program = cp.Problem(objective, rules)
    program.solve(
        solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance, max_iter=200
    )  # fmt: skip
    assert program.status == "optimal"
    return float(program.value)
