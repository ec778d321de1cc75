# SPDX-License-Identifier: MIT
"""Max-min fairness: against the plain program, and where there is no room or no job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import levels
from slurm_pal.allocation.base import reference_throughput
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import Allocation, Problem, effective, problem

from ...doubles import allocation_oracle as oracle
from ...doubles.allocation_limits import violation
from ...doubles.trials import trials


def values(given_: Problem, found: Allocation) -> np.ndarray:
    return given_.scale * effective(given_, found.shares) / (given_.weight * reference_throughput(given_))


@oracle.needs_oracle
@trials(25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4), st.sampled_from([0, 3]), st.floats(0.2, 2.0))
def test_is_the_optimum(seed: int, m: int, n: int, equal: int, room: float) -> None:
    given_ = oracle.instance(seed, m, n, equal=equal, room=room)
    found = max_min(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(values(given_, found).min(), rel=1e-12)
    assert found.objective == pytest.approx(oracle.max_min(given_), **oracle.CLOSE)


@oracle.needs_oracle
@pytest.mark.parametrize("seed", range(4))
def test_many_different_jobs(seed: int) -> None:
    given_ = oracle.instance(seed, 400, 3 + seed)
    found = max_min(given_)
    assert len(given_.throughput) > levels.WHOLE
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(oracle.max_min(given_), **oracle.CLOSE)


def test_gpu_time_is_equal_not_time() -> None:
    """One column: a job with two GPUs gets half the time of a job with one, a weight of 2 doubles it."""
    given_ = problem([[5.0], [7.0], [1.0]], [1, 2, 1], [2], weight=[1, 1, 2])
    found = max_min(given_)
    assert found.shares[:, 0] == pytest.approx([0.5, 0.25, 1.0])
    assert found.objective == pytest.approx(0.5)


def test_equal_jobs_get_equal_shares() -> None:
    given_ = oracle.instance(3, 30, 3, equal=4)
    found = max_min(given_)
    for i in range(30):
        for j in range(i):
            same = (given_.throughput[i] == given_.throughput[j]).all() and given_.scale[i] == given_.scale[j]
            if same and given_.weight[i] == given_.weight[j]:
                assert (found.shares[i] == found.shares[j]).all()


def test_a_job_that_can_run_nowhere_is_left_out() -> None:
    given_ = problem([[2.0, 4.0], [0.0, 0.0], [2.0, 4.0]], [1, 1, 8], [2, 4])
    found = max_min(given_)
    assert found.shares[1:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert found.objective == pytest.approx(1.2)
    assert found.notes == ("2 of 3 jobs fit no column and get no share (rows 1, 2)",)


@pytest.mark.parametrize(
    "given_",
    [
        problem(np.zeros((0, 2)), np.zeros(0), [1, 1]),
        problem(np.ones((2, 2)), [1, 1], [0, 0]),
        problem(np.zeros((2, 2)), [1, 1], [4, 4]),
    ],
)
def test_nothing_to_share(given_: Problem) -> None:
    found = max_min(given_)
    assert not found.shares.any()
    assert np.isnan(found.objective)
    assert found.shares.shape == given_.throughput.shape


def test_a_column_without_gpus_is_not_used() -> None:
    found = max_min(problem([[2.0, 9.0], [4.0, 9.0]], [1, 1], [1, 0]))
    assert found.shares[:, 1].tolist() == [0.0, 0.0]
    assert found.objective == pytest.approx(0.5)
