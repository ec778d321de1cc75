# SPDX-License-Identifier: MIT
"""The thin layer over the solver: triplets in any order, changes between solves, what it says when it fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_pal.allocation.linear import (
    INFINITE,
    InfeasibleError,
    LinearProgram,
    Rows,
    Solution,
    UnsolvedError,
    together,
)

from ...doubles.trials import trials


def rows(entries: list[tuple[int, int, float]], lower: list[float], upper: list[float]) -> Rows:
    row, column, value = zip(*entries, strict=True)
    return Rows(np.array(row), np.array(column), np.array(value, dtype=float), np.array(lower), np.array(upper))


def small() -> Rows:
    return rows([(1, 0, 1.0), (0, 1, 2.0), (0, 0, 1.0), (1, 1, 1.0)], [-INFINITE] * 2, [4.0, 3.0])


def test_triplets_in_any_order() -> None:
    found = LinearProgram(np.array([3.0, 5.0]), small()).solve()
    assert found.x == pytest.approx([2.0, 1.0])
    assert found.objective == pytest.approx(11.0)
    assert found.dual == pytest.approx([2.0, 1.0])  # one more of a bound is worth that much


def test_minimise_and_upper() -> None:
    at_least = rows([(0, 0, 1.0), (0, 1, 1.0)], [3.0], [INFINITE])
    found = LinearProgram(np.array([1.0, 4.0]), at_least, upper=np.array([2.0, INFINITE]), maximise=False).solve()
    assert found.x == pytest.approx([2.0, 1.0])


def test_changes() -> None:
    program = LinearProgram(np.array([3.0, 5.0]), small())
    program.solve()
    program.change_row(0, -INFINITE, 3.0)
    assert program.solve().x == pytest.approx([3.0, 0.0])
    program.change_value(0, 1, 1.0)
    program.change_cost(np.array([1.0, 2.0]))
    assert program.solve().x == pytest.approx([0.0, 3.0])
    program.option("solver", "ipm")
    assert program.solve().objective == pytest.approx(6.0)


def test_no_rows_in_a_part() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    empty = Rows(nothing, nothing, np.zeros(0), np.zeros(0), np.zeros(0))
    assert LinearProgram(np.array([3.0, 5.0]), together(empty, small())).solve().objective == pytest.approx(11.0)


def test_a_row_without_entries() -> None:
    blank = Rows(
        np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.array([0.0]), np.array([1.0])
    )
    assert LinearProgram(np.array([3.0, 5.0]), together(small(), blank)).solve().objective == pytest.approx(11.0)


def test_infeasible() -> None:
    both = rows([(0, 0, 1.0), (1, 0, 1.0)], [2.0, -INFINITE], [INFINITE, 1.0])
    with pytest.raises(InfeasibleError, match="no allocation meets all conditions"):
        LinearProgram(np.ones(1), both).solve()


def test_unbounded() -> None:
    with pytest.raises(UnsolvedError, match=r"not solved: Unbounded"):
        LinearProgram(np.ones(1), rows([(0, 0, -1.0)], [-INFINITE], [1.0])).solve()


@trials(60)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_against_scipy(seed: int, n: int, k: int, maximise: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.where(rng.uniform(size=(k, n)) < 0.6, rng.uniform(0.1, 2.0, (k, n)), 0.0)
    cost, limit, upper = rng.uniform(-1.0, 1.0, n), rng.uniform(0.5, 2.0, k), rng.uniform(0.5, 3.0, n)
    row, column = np.nonzero(matrix)
    mixed = rng.permutation(len(row))
    triplets = Rows(row[mixed], column[mixed], matrix[row, column][mixed], np.full(k, -INFINITE), limit)
    found = LinearProgram(cost, triplets, upper=upper, maximise=maximise).solve()
    sign = -1.0 if maximise else 1.0
    want = linprog(sign * cost, A_ub=matrix, b_ub=limit, bounds=list(zip(np.zeros(n), upper, strict=True)))
    assert found.objective == pytest.approx(sign * want.fun, rel=1e-9, abs=1e-9)
    assert (matrix @ found.x <= limit + 1e-9).all()


def test_a_search_that_a_limit_ends_gives_the_best_that_it_found_and_the_same_each_time() -> None:
    draws = np.random.default_rng(1)
    weights = draws.integers(1, 100, (5, 24)).astype(float)
    row, column = np.indices(weights.shape)
    most = np.floor(weights.sum(axis=1) / 2)
    rows = Rows(row.ravel(), column.ravel(), weights.ravel(), np.full(5, -INFINITE), most)

    def solved(nodes: int) -> Solution:
        program = LinearProgram(np.arange(50.0, 74.0), rows, upper=np.ones(24), integers=24)
        program.option("mip_max_nodes", nodes)
        return program.solve()

    first, again, whole = solved(3), solved(3), solved(100_000)
    assert first.ended == "Solution limit reached" and whole.ended == ""
    assert (first.x == again.x).all() and first.objective <= whole.objective + 1e-6
    assert (weights @ first.x <= most + 1e-6).all() and (np.abs(first.x - first.x.round()) < 1e-6).all()
