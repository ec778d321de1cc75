# SPDX-License-Identifier: MIT
"""Class grouping and the rows that all exact policies share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import base
from slurm_pal.allocation.grouping import alone, groups
from slurm_pal.allocation.problem import Allocation, problem

from ...doubles.allocation_limits import violation
from ...doubles.allocation_oracle import instance
from ...doubles.trials import trials


@trials(60)
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 4), st.integers(1, 6))
def test_groups_are_equal_rows(seed: int, m: int, n: int, equal: int) -> None:
    rng = np.random.default_rng(seed)
    given_ = problem(rng.integers(0, 3, (m, n)), rng.choice([1, 2], m), np.ones(n))
    weight = rng.integers(0, equal, m)
    found = groups(given_, weight)
    keys = [(*row, scale, extra) for row, scale, extra in zip(given_.throughput, given_.scale, weight, strict=True)]
    assert len(found.first) == len(set(keys))
    assert found.count.sum() == m
    for job in range(m):
        first = int(found.first[found.member[job]])
        assert keys[first] == keys[job]
        assert first == keys.index(keys[job])
    assert (found.count == np.bincount(found.member, minlength=len(found.first))).all()


def test_alone() -> None:
    found = alone(problem(np.ones((3, 2)), np.ones(3), np.ones(2)))
    assert found.first.tolist() == found.member.tolist() == [0, 1, 2]
    assert found.count.tolist() == [1.0, 1.0, 1.0]


def test_a_wide_gang_has_no_cell() -> None:
    """Nested capacities, as for variability classes: the second column may use the GPUs of the first."""
    nested = np.array([[1.0, 0.0], [1.0, 1.0]])
    given_ = problem([[1, 1], [1, 1], [1, 0]], [2, 4, 4], [2, 3], uses=nested, capacity=[2, 5])
    assert base.fitting(given_).tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0]]
    assert base.cells(given_, alone(given_)).best.tolist() == [1.0, 1.0, 0.0]


def test_base_rows_are_time_and_capacity() -> None:
    nested = np.array([[1.0, 0.0], [1.0, 1.0]])
    given_ = problem([[1, 2], [1, 2], [3, 0]], [2, 2, 1], [4, 3], uses=nested, capacity=[4, 7])
    found = groups(given_)
    rows = base.base_rows(given_, found, base.cells(given_, found))
    dense = np.zeros((4, 3))
    dense[rows.row, rows.column] = rows.value
    pair, single = (int(found.member[job]) for job in (0, 2))
    cells = base.cells(given_, found)
    want = np.array([
        *(np.where(cells.group == group, 1.0, 0.0) for group in (0, 1)),
        np.where(cells.column == 0, np.where(cells.group == pair, 4.0, 1.0), 0.0),
        np.where(cells.group == pair, 4.0, 1.0),
    ])  # fmt: skip
    assert {pair, single} == {0, 1}
    assert dense.tolist() == want.tolist()
    assert rows.upper.tolist() == [1.0, 1.0, 4.0, 7.0]


@trials(60)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4), st.floats(0.5, 3.0))
def test_within_limits(seed: int, m: int, n: int, much: float) -> None:
    given_ = instance(seed, m, n, equal=5)
    found = groups(given_, given_.weight)
    shares = np.random.default_rng(seed).uniform(-0.1, much / n, (len(found.first), n))
    limited = base.within_limits(given_, found, shares)[found.member]
    assert violation(given_, Allocation(limited)) <= 1e-12 * given_.capacity.max()
    inside = np.clip(shares, 0.0, None) * 1e-3
    assert base.within_limits(given_, found, inside) == pytest.approx(inside, rel=1e-12)


def test_reference_where_the_columns_have_no_gpus() -> None:
    given_ = problem([[2, 0], [2, 6], [0, 6]], [1, 1, 1], [4, 0], uses=[[1, 1]], capacity=[4])
    assert base.reference_throughput(given_).tolist() == [2.0, 2.0, 6.0]


def test_note_on_jobs_left_out() -> None:
    assert base.left_out(np.array([True, True])) == ()
    assert base.left_out(np.array([True, False])) == ("1 of 2 jobs fit no column and get no share (rows 1)",)
    assert base.left_out(np.zeros(7, dtype=bool))[0].endswith("(rows 0, 1, 2, 3, 4, ...)")
