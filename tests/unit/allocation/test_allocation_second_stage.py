# SPDX-License-Identifier: MIT
"""The second stage: floors kept, what is left spent on throughput, moves priced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from slurm_pal.allocation import second_stage as s
from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.grouping import alone
from slurm_pal.allocation.linear import InfeasibleError
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import (
    Matrix,
    Problem,
    Vector,
    effective,
    isolated_throughput,
    problem,
    proportional_throughput,
)
from slurm_pal.base.errors import DataError, PalError

from ...doubles.allocation_limits import violation
from ...doubles.trials import trials


def drawn(seed: int, m: int = 8, n: int = 3, kinds: int = 4, **given: NDArray[Any]) -> Problem:
    """A tight problem: `kinds` different rows, jobs of 1 to 4 GPUs, nested rows over the first two columns."""
    random = np.random.default_rng(seed)
    kind = random.integers(0, kinds, m)
    speeds = random.uniform(0.5, 8, (kinds, n))[kind]
    speeds[random.random((m, n)) < 0.1] = 0
    speeds[:, 0] = np.maximum(speeds[:, 0], 0.5)
    scale = random.choice([1.0, 2.0, 4.0], kinds)[kind]
    uses = np.eye(n)
    uses[1, 0] = 1
    return problem(speeds, scale, np.full(n, 4.0), uses=uses, capacity=[4.0, 8.0, *[4.0] * (n - 2)], **given)


def normalised(made: Problem, shares: Matrix) -> Vector:
    return effective(made, shares) / proportional_throughput(made)


def oracle(made: Problem, floor: Vector, previous: Matrix, penalty: Vector, slack: float) -> float:
    """The optimum of the program as the specification writes it: X and d as variables, one row per job."""
    m, n = made.throughput.shape
    gain = made.throughput / proportional_throughput(made)[:, None]
    cost = np.concatenate([-gain.ravel(), np.repeat(penalty, n)])
    eye = np.eye(m * n)
    per_job = np.kron(np.eye(m), np.ones((1, n)))
    speed = np.kron(np.eye(m), np.ones((1, n))) * made.throughput.ravel()
    capacity = np.hstack([made.uses * scale for scale in made.scale])

    def with_d(rows: Matrix) -> Matrix:
        return np.hstack([rows, np.zeros((len(rows), m * n))])

    left = np.vstack([np.hstack([eye, -eye]), np.hstack([-eye, -eye]), *map(with_d, (per_job, -speed, capacity))])
    right = np.concatenate([previous.ravel(), -previous.ravel(), np.ones(m), -(1 - slack) * floor, made.capacity])
    found = linprog(cost, A_ub=left, b_ub=right)
    assert found.status == 0
    return -found.fun


@trials(60)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.5]), st.sampled_from([1e-4, 1e-2]))
def test_it_is_the_optimum_of_the_program_as_specified(seed: int, price: float, slack: float) -> None:
    random = np.random.default_rng(seed + 1)
    made = drawn(seed)
    floor = s.level_floor(made, max_min(made).objective)
    previous = max_min(drawn(seed, weight=random.uniform(0.5, 2, made.n_jobs))).shares
    previous[random.integers(0, made.n_jobs)] = 0
    penalty = np.where(previous.sum(axis=1) > 0, price, 0.0)
    found = s.second_stage(made, floor, previous=previous, penalty=np.full(made.n_jobs, price), slack=slack)
    assert violation(made, found) <= 1e-9
    assert (effective(made, found.shares) >= (1 - slack) * floor - 1e-7).all()
    assert found.objective == pytest.approx(oracle(made, floor, previous, penalty, slack), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_change_neither_optimum_nor_limits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(seed, m=200, kinds=6, held=np.random.default_rng(seed).integers(-1, 3, 200))
    made = made._replace(capacity=made.capacity * 20)
    floor = s.level_floor(made, max_min(made).objective)
    penalty = np.full(200, 0.05)
    grouped = s.second_stage(made, floor, penalty=penalty)
    monkeypatch.setattr(s, "groups", lambda problem, *_: alone(problem))
    single = s.second_stage(made, floor, penalty=penalty)
    assert grouped.objective == pytest.approx(single.objective, rel=1e-7)
    assert max(violation(made, grouped), violation(made, single)) <= 1e-9


def test_leftover_capacity_is_spent() -> None:
    """Max-min is bound by job 0, which runs on one column only; the other column is left to whim."""
    made = problem([[1, 0], [2, 4], [2, 4]], [1, 1, 1], [1, 2])
    first = max_min(made)
    floor = s.level_floor(made, first.objective)
    found = s.second_stage(made, floor)
    assert normalised(made, found.shares).sum() >= normalised(made, first.shares).sum() - 1e-9
    assert found.shares[1:, 1] == pytest.approx([1, 1])


def test_floors_of_all_three_first_stages_are_met_and_tight() -> None:
    random = np.random.default_rng(3)
    made = drawn(5, m=12, remaining=random.uniform(1e3, 1e5, 12), age_s=random.uniform(0, 1e4, 12))
    isolated = isolated_throughput(made)
    fair, span, rho = max_min(made), makespan(made), finish_time_fairness(made)
    ends_s = made.remaining / effective(made, rho.shares)
    ratio = (made.age_s + ends_s) / (made.earned_s + made.remaining / isolated)
    assert ratio.max() == pytest.approx(rho.objective, rel=1e-6)
    for floor, first in (
        (s.level_floor(made, fair.objective), fair),
        (s.makespan_floor(made, span.objective), span),
        (s.finish_time_floor(made, rho.objective), rho),
    ):
        margin = effective(made, first.shares) / floor
        assert margin.min() == pytest.approx(1, rel=1e-5)
        found = s.second_stage(made, floor)
        assert (effective(made, found.shares) >= (1 - s.SLACK) * floor * (1 - 1e-6)).all()


def test_a_job_past_its_bound_has_no_floor() -> None:
    made = problem([[1.0], [1.0]], [1, 1], [2], remaining=[10, 10], age_s=[1e6, 0])
    assert s.finish_time_floor(made, 2.0) == pytest.approx([0, 0.5])


def test_the_finish_time_floor_counts_isolated_time_as_the_policy_does() -> None:
    """The first column has no GPUs of its own, so the second job's part of the cluster is 1/2 of its best."""
    made = problem([[2.0, 0.0], [0.0, 6.0]], [1, 1], [1, 0], uses=[[1, 1]], capacity=[1], remaining=[10, 10])
    first = finish_time_fairness(made)
    assert s.finish_time_floor(made, first.objective) == pytest.approx(effective(made, first.shares), rel=1e-6)


def test_jobs_stay_unless_the_gain_pays() -> None:
    """The two jobs would gain a tenth each by changing places: worth it at .04 a share, not at .06."""
    made = problem([[1.1, 1.0], [1.0, 1.1]], [1, 1], [1, 1], held=[1, 0])
    moved = {
        price: np.abs(s.second_stage(made, np.zeros(2), penalty=np.full(2, price)).shares - s.held_shares(made)).sum()
        for price in (0.04, 0.06)
    }
    assert moved[0.04] == pytest.approx(4)
    assert moved[0.06] == pytest.approx(0)


def test_waiting_jobs_start_free_of_charge() -> None:
    made = problem([[1.0, 2.0]], [1], [1, 1])
    assert s.second_stage(made, np.zeros(1), penalty=np.full(1, 50.0)).shares == pytest.approx(np.array([[0, 1]]))


def test_the_floor_goes_before_the_penalty() -> None:
    made = problem([[1.0, 3.0]], [1], [1, 1], held=[0])
    found = s.second_stage(made, np.array([3.0]), penalty=np.full(1, 50.0), slack=0.0)
    assert found.shares == pytest.approx(np.array([[0, 1]]))


def test_value_says_who_gets_the_rest() -> None:
    made = problem([[1.0], [1.0]], [1, 1], [1])
    found = s.second_stage(made, np.array([0.2, 0.2]), value=np.array([1.0, 2.0]), slack=0.0)
    assert found.shares[:, 0] == pytest.approx([0.2, 0.8])


def test_previous_shares_in_a_column_that_closed_are_given_up() -> None:
    made = problem([[0.0, 1.0]], [1], [1, 1], held=[0])
    assert s.second_stage(made, np.zeros(1), penalty=np.ones(1) * 0.1).shares == pytest.approx(np.array([[0, 1]]))


def test_jobs_that_fit_nowhere_are_told() -> None:
    made = problem([[1.0], [1.0]], [1, 4], [2])
    found = s.second_stage(made, s.level_floor(made, max_min(made).objective))
    assert found.shares[:, 0] == pytest.approx([1, 0])
    assert found.notes


def test_no_job_at_all() -> None:
    made = problem(np.zeros((0, 2)), [], [1, 1])
    assert s.second_stage(made, np.zeros(0)).shares.shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda made: s.second_stage(made, np.zeros(3)), DataError, "floor must be"),
        (lambda made: s.second_stage(made, np.full(2, np.nan)), DataError, "floor must be"),
        (lambda made: s.second_stage(made, np.zeros(2), penalty=np.full(2, -1.0)), DataError, "penalty must be"),
        (lambda made: s.second_stage(made, np.full(2, 1.0)), InfeasibleError, "floor"),
    ],
)
def test_bad_input_is_one_clear_line(call: Callable[[Problem], object], error: type[PalError], words: str) -> None:
    with pytest.raises(error, match=words):
        call(problem([[1.0], [1.0]], [1, 1], [1]))
