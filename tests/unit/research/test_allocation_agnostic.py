# SPDX-License-Identifier: MIT
"""The agnostic twin of a problem."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_pal.allocation.problem import problem
from slurm_pal.base.errors import UsageError
from slurm_pal.research.agnostic import flattened

SPEEDS = [[4.0, 2.0, 1.0], [9.0, 3.0, 0.0]]


def test_one_speed_for_all_columns_but_those_where_it_cannot_run() -> None:
    twin = flattened(problem(SPEEDS, [1, 2], [1, 1, 1]))
    assert twin.throughput.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_the_speed_in_one_column_stands_for_all() -> None:
    given = problem(SPEEDS, [1, 2], [1, 1, 1])
    assert flattened(given, 1).throughput.tolist() == [[2, 2, 2], [3, 3, 0]]
    assert flattened(given, np.array([1]).argmax()).throughput.tolist() == [[4, 4, 4], [9, 9, 0]]


def test_a_job_that_cannot_run_in_the_reference_column_keeps_the_others() -> None:
    assert flattened(problem(SPEEDS, [1, 2], [1, 1, 1]), 2).throughput.tolist() == [[1, 1, 1], [9, 9, 0]]


def test_as_published_every_column_looks_fit() -> None:
    assert flattened(problem(SPEEDS, [1, 2], [1, 1, 1]), 0, as_published=True).throughput.tolist() == [[4] * 3, [9] * 3]


def test_pairs_are_left_out_and_the_rest_stays() -> None:
    given = problem(SPEEDS, [1, 2], [1, 1, 1], kind=[0, 1], pairs=np.ones((2, 2, 3)), weight=[1, 5])
    twin = flattened(given)
    assert twin.pairs.shape == (0, 0, 3)
    assert twin.kind.tolist() == [0, 1]
    assert twin.weight.tolist() == [1, 5]


@pytest.mark.parametrize("column", [-1, 3])
def test_unknown_column(column: int) -> None:
    with pytest.raises(UsageError, match=rf"column {column} does not exist; the problem has columns 0 to 2"):
        flattened(problem(SPEEDS, [1, 2], [1, 1, 1]), column)
