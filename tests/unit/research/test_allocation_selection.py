# SPDX-License-Identifier: MIT
"""Whole gangs: what is chosen fits, and nothing worth more does."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import problem
from slurm_pal.research.selection import GAP, select

FREE = np.zeros(1)


def test_a_gang_is_not_split() -> None:
    """By reward per GPU the 3-gang comes first, but then one GPU idles."""
    found = problem(np.ones((3, 1)), [3, 2, 2], [4])
    assert select(found, np.array([[3.3], [2.0], [2.0]]), FREE).tolist() == [-1, 0, 0]


def test_nothing_to_choose_from() -> None:
    assert select(problem(np.ones((2, 1)), [1, 1], [4]), np.zeros((2, 1)), FREE).tolist() == [-1, -1]


def test_columns_that_share_a_capacity() -> None:
    found = problem(np.ones((2, 2)), [1, 1], [1, 1], uses=[[1, 1]], capacity=[1])
    assert sorted(select(found, np.array([[1.0, 2.0], [3.0, 1.0]]), np.zeros(2)).tolist()) == [-1, 0]


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=2),
    st.lists(
        st.tuples(st.sampled_from((1, 2, 3, 4, 8)), st.floats(0.0, 9.0), st.floats(0.0, 9.0)), min_size=1, max_size=6
    ),
)
def test_as_good_as_any_choice(gpus: list[int], jobs: list[tuple[int, float, float]]) -> None:
    scale = [job[0] for job in jobs]
    reward = np.array([job[1:] for job in jobs])
    chosen = select(problem(np.ones((len(jobs), 2)), scale, gpus), reward, np.zeros(2))

    def worth_of(columns: tuple[int, ...]) -> float | None:
        used = [sum(s for s, c in zip(scale, columns, strict=True) if c == j) for j in (0, 1)]
        if used[0] > gpus[0] or used[1] > gpus[1]:
            return None
        return float(sum(reward[i, c] for i, c in enumerate(columns) if c >= 0))

    best = max(found for columns in product((-1, 0, 1), repeat=len(jobs)) if (found := worth_of(columns)) is not None)
    found = worth_of(tuple(chosen.tolist()))
    assert found is not None and found >= best * (1 - 2 * GAP) - 1e-9
