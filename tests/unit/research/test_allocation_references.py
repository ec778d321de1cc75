# SPDX-License-Identifier: MIT
"""Reference shares: within the cluster, and what they are by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import Allocation, Problem, problem
from slurm_pal.research.references import isolated, proportional

from ...doubles.allocation_limits import violation


def test_isolated_by_hand() -> None:
    found = isolated(problem(np.ones((4, 2)), [1, 1, 2, 4], [4, 2]))
    # 4/4 and 2/4 of a GPU: more than one job of 1 GPU can use, so its row is cut to a sum of 1.
    assert found.shares == pytest.approx(np.array([[2 / 3, 1 / 3], [2 / 3, 1 / 3], [0.5, 0.25], [0.25, 0.125]]))


def test_proportional_gives_equal_time_and_cuts_it_to_what_there_is() -> None:
    found = proportional(problem(np.ones((2, 2)), [1, 1], [3, 1]))
    assert found.shares == pytest.approx(np.array([[0.75, 0.25]] * 2))
    found = proportional(problem(np.ones((3, 2)), [2, 2, 4], [3, 1]))
    assert found.shares == pytest.approx(np.array([[0.375, 0.125]] * 3))


@pytest.mark.parametrize("policy", [isolated, proportional])
@pytest.mark.parametrize("m", [0, 2])
def test_no_gpus_and_no_jobs(policy: Callable[[Problem], Allocation], m: int) -> None:
    found = policy(problem(np.ones((m, 2)), np.ones(m), [0, 0]))
    assert found.shares.tolist() == [[0, 0]] * m


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=20), st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.booleans(),
)  # fmt: skip
def test_both_are_within_the_cluster(scale: list[int], gpus: list[int], shared: bool) -> None:
    """Also where columns share their GPUs (packed and spread of one partition)."""
    n = len(gpus)
    uses = np.ones((1, n)) if shared else np.eye(n)
    given_ = problem(np.ones((len(scale), n)), scale, gpus, uses=uses, capacity=[max(gpus)] if shared else gpus)
    for policy in (isolated, proportional):
        found = policy(given_)
        assert violation(given_, found) <= 1e-9
        assert found.shares.min() > 0
