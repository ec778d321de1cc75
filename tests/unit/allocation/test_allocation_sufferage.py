# SPDX-License-Identifier: MIT
"""Least completion time without preemption: prices, loads, and whom it lets go first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_pal.allocation import sufferage
from slurm_pal.allocation.linear import UnsolvedError
from slurm_pal.allocation.problem import Problem, problem
from slurm_pal.allocation.sufferage import CONGESTION, least_completion, prices, run_times, too_slow

from ...doubles.trials import trials


def chosen(made: Problem) -> list[int]:
    shares = least_completion(made).shares
    return [int(row.argmax()) if row.any() else -1 for row in shares]


def drawn(seed: int, jobs: int, columns: int = 3) -> Problem:
    draw = np.random.default_rng(seed)
    kinds = np.exp(draw.normal(0, 1, (3, columns)))
    kind = draw.integers(0, 3, jobs)
    return problem(
        kinds[kind], draw.choice([1.0, 2.0], 3)[kind], draw.choice([2.0, 4.0, 8.0], columns),
        remaining=draw.exponential(1000.0, jobs) + 1.0,
    )  # fmt: skip


def test_a_job_that_loses_little_makes_way_for_one_that_loses_much() -> None:
    made = problem([[2.0, 1.8], [2.0, 0.2]], [1, 1], [1, 1], remaining=[1000.0, 1000.0])
    assert chosen(made) == [1, 0]
    swapped = problem([[2.0, 0.2], [2.0, 1.8]], [1, 1], [1, 1], remaining=[1000.0, 1000.0])
    assert chosen(swapped) == [0, 1]


def test_gpus_cost_nothing_where_there_is_room() -> None:
    made = problem([[2.0, 1.0], [2.0, 1.5]], [1, 1], [8, 8], remaining=[100.0, 100.0])
    assert prices(made, run_times(made))[0].tolist() == [0.0, 0.0] and chosen(made) == [0, 0]


def test_jobs_that_run_keep_their_gpus_busy_until_they_end() -> None:
    """A free slow GPU is better than one that is fast but taken for long, and worse than one that is free soon."""
    for left, column in ((8000.0, 1), (100.0, 0)):
        work, held = [left] * 30 + [1000.0], [0] * 30 + [-1]
        made = problem([[2.0, 0.0]] * 30 + [[2.0, 1.0]], np.ones(31), [30, 8], remaining=work, held=held)
        assert chosen(made) == [0] * 30 + [column]


@trials(60)
@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 14))
def test_prices_are_duals_of_the_program_over_all_jobs(seed: int, jobs: int) -> None:
    """Jobs of a kind may be one: SciPy's program has a row for each, and its optimum is the bound of the prices."""
    made = drawn(seed, jobs)
    run_s = run_times(made)
    m, n = run_s.shape
    gpu_s = (made.scale[:, None] * run_s).ravel()
    rows = np.array([np.where(np.tile(np.arange(n), m) == j, gpu_s, 0.0) for j in range(n)])
    each = np.repeat(np.eye(m), n, axis=1)
    least = linprog(
        np.append(np.zeros(m * n), 1.0), A_ub=np.hstack([rows, -made.capacity[:, None]]), b_ub=np.zeros(n),
        A_eq=np.hstack([each, np.zeros((m, 1))]), b_eq=np.ones(m),
    ).fun  # fmt: skip
    time_s = max(CONGESTION * least, float(run_s.min(axis=1) @ made.scale / made.scale.sum()))
    found = linprog(run_s.ravel(), A_ub=rows, b_ub=made.capacity * time_s, A_eq=each, b_eq=np.ones(m))
    price, common_s = prices(made, run_s)
    assert common_s == pytest.approx(time_s, rel=1e-6)
    best = (run_s * (1 + made.scale[:, None] * price)).min(axis=1).sum() - time_s * (price @ made.capacity)
    assert price.min() >= 0 and best == pytest.approx(found.fun, rel=1e-6)


def test_a_long_job_is_not_sent_where_it_would_be_for_days() -> None:
    """Ten short jobs and a long one, which is seven times as fast on the two GPUs that all want."""
    speeds, work = [[7.0, 1.0]] * 11, [600.0] * 10 + [70000.0]
    made = problem(speeds, np.ones(11), [2, 8], remaining=work)
    assert too_slow(run_times(made), 1000.0)[:, 1].tolist() == [False] * 10 + [True]
    found = chosen(made)
    assert found[10] == 0 and 1 in found[:10]
    assert chosen(made._replace(held=np.array([-1] * 10 + [1])))[10] == 1  # one that runs there stays


def test_it_is_near_the_best_of_all_assignments() -> None:
    """Of 1-GPU jobs on two columns, all there at once, by list scheduling in the order of the run times."""
    ratios = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        kinds = np.array([[1.0, 6.0], [1.0, 2.0], [1.0, 1.2]])[draw.integers(0, 3, 9)]
        made = problem(kinds, np.ones(9), [2, 2], remaining=draw.uniform(500, 1500, 9))
        run_s = run_times(made)

        def mean_s(column: tuple[int, ...], run_s: np.ndarray = run_s) -> float:
            ends = []
            for j in range(2):
                free = [0.0, 0.0]
                for value in sorted(run_s[k, j] for k in range(9) if column[k] == j):
                    at = free.index(min(free))
                    free[at] += value
                    ends.append(free[at])
            return float(np.mean(ends))

        best = min(map(mean_s, itertools.product(range(2), repeat=9)))
        ratios.append(mean_s(tuple(chosen(made))) / best)
    assert np.mean(ratios) < 1.06 and max(ratios) < 1.25


def test_nested_columns_are_one_place_with_one_load() -> None:
    """Two levels of one partition: what runs on the better GPUs is load for both, and sufferage looks elsewhere."""
    uses, capacity = [[1, 0, 0], [1, 1, 0], [0, 0, 1]], [1, 2, 2]
    given = {"uses": uses, "capacity": capacity}
    made = problem([[2.0, 1.9, 0.5], [2.0, 1.0, 1.0]], [2, 2], [1, 1, 2], remaining=[1000.0, 1000.0], **given)
    assert chosen(made) == [1, 2]  # a gang of two has no room on the one good GPU


def test_no_job_belongs_where_it_cannot_run_and_a_failing_solver_costs_the_prices_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = problem([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], [1, 1, 1], [1, 1], remaining=[10.0, 10.0, 0.0])
    found = least_completion(made)
    assert chosen(made) == [1, -1, 0] and len(found.notes) == 1

    def fail(*args: object) -> float:
        raise UnsolvedError("time limit")

    monkeypatch.setattr(sufferage, "_least_s", fail)
    assert chosen(made) == [1, -1, 0]
    assert least_completion(made._replace(remaining=np.zeros(3))).shares.sum() > 0
