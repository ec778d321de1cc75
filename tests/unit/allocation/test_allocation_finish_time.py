# SPDX-License-Identifier: MIT
"""Finish-time fairness: against the convex program of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.problem import Problem, effective, isolated_throughput, problem

from ...doubles import allocation_oracle as oracle
from ...doubles.allocation_limits import violation
from ...doubles.trials import trials


@oracle.needs_oracle
@trials(25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4), st.sampled_from([0, 3]), st.floats(0.1, 1.0))
def test_is_the_optimum(seed: int, m: int, n: int, equal: int, room: float) -> None:
    given_ = oracle.instance(seed, m, n, equal=equal, room=room)
    found = finish_time_fairness(given_)
    assert violation(given_, found) <= 1e-9
    isolated_s = given_.earned_s + given_.remaining / isolated_throughput(given_)
    rho = (given_.age_s + given_.remaining / effective(given_, found.shares)) / isolated_s
    assert found.objective == pytest.approx(rho.max(), rel=1e-12)
    assert found.objective == pytest.approx(oracle.finish_time(given_), **oracle.CLOSE)


@oracle.needs_oracle
@pytest.mark.parametrize(("seed", "equal"), [(0, 0), (1, 9), (2, 60)])
def test_many_jobs(seed: int, equal: int) -> None:
    given_ = oracle.instance(seed, 400, 3 + seed, equal=equal, room=0.3)
    found = finish_time_fairness(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(oracle.finish_time(given_), **oracle.CLOSE)


def test_never_worse_than_isolated() -> None:
    """Nobody earned or waited: with its own part of the cluster everybody has rho = 1."""
    for seed in range(5):
        given_ = oracle.instance(seed, 25, 3)
        started = given_._replace(age_s=np.zeros(25), earned_s=np.zeros(25))
        assert finish_time_fairness(started).objective <= 1 + 1e-9


def test_who_waited_longer_gets_more() -> None:
    given_ = problem([[1.0], [1.0]], [1, 1], [1], remaining=[100, 100], age_s=[300, 0], earned_s=[100, 100])
    shares = finish_time_fairness(given_).shares[:, 0]
    assert shares[0] > 0.6
    assert shares.sum() == pytest.approx(1.0)


def test_a_job_that_is_old_and_nearly_done() -> None:
    """What it may still take is lost in the rounding of its age."""
    given_ = problem(
        np.ones((3, 2)), [1, 1, 1], [1, 1], remaining=[1e6, 1e-6, 1e-9], age_s=[1e3, 1e9, 1e9], earned_s=[0, 1e3, 1e3]
    )
    found = finish_time_fairness(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(1e9 / 1e3, rel=1e-6)
    assert effective(given_, found.shares).min() > 0


def test_a_job_with_nothing_left() -> None:
    given_ = problem([[2.0], [2.0], [0.0]], [1, 1, 1], [1], remaining=[0, 10, 5])
    found = finish_time_fairness(given_)
    assert found.shares[:, 0] == pytest.approx([0.0, 1.0, 0.0])
    assert found.objective == pytest.approx(1 / 3)
    assert found.notes == ("1 of 3 jobs fit no column and get no share (rows 2)",)


@pytest.mark.parametrize(
    "given_",
    [
        problem(np.zeros((0, 2)), np.zeros(0), [1, 1]),
        problem(np.ones((2, 2)), [1, 1], [4, 4]),
        problem(np.ones((2, 2)), [1, 1], [0, 0], remaining=[1, 1]),
        problem(np.zeros((2, 2)), [1, 1], [4, 4], remaining=[1, 1]),
    ],
)
def test_nothing_to_share(given_: Problem) -> None:
    found = finish_time_fairness(given_)
    assert not found.shares.any()
    assert np.isnan(found.objective)


def test_a_column_that_the_reference_does_not_count() -> None:
    given_ = problem([[2.0, 0.0], [0.0, 6.0]], [1, 1], [1, 0], uses=[[1, 1]], capacity=[1], remaining=[10, 10])
    found = finish_time_fairness(given_)
    assert np.isfinite(found.objective)
    assert effective(given_, found.shares).min() > 0
