# SPDX-License-Identifier: MIT
"""Completion of throughput tables: what is recovered, what is left alone, and what the errors are worth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import completion
from slurm_pal.allocation.completion import ASSUMED_ERROR, UNSEEN_ERROR, Matrix, complete
from slurm_pal.base.errors import DataError

from ...doubles.trials import trials


def generated(seed: int, rows: int, columns: int, rank: int, noise: float = 0.0) -> Matrix:
    random = np.random.default_rng(seed)
    base = random.uniform(-5, 5, (rows, 1)) + random.uniform(-1, 1, columns)
    return np.asarray(
        base + random.normal(0, 0.5, (rows, rank)) @ random.normal(0, 1, (rank, columns))
        + random.normal(0, noise, (rows, columns))
    )  # fmt: skip


def hidden(table: Matrix, share: float, seed: int) -> Matrix:
    """The table with a share of its entries hidden, at least one left in each row."""
    random = np.random.default_rng(seed)
    gone = random.random(table.shape) < share
    gone[np.arange(len(table)), random.integers(table.shape[1], size=len(table))] = False
    return np.where(gone, np.nan, table)


def test_offsets_alone_are_recovered_exactly() -> None:
    table = generated(1, 20, 4, 0)
    found = complete(hidden(table, 0.4, 1))
    assert found.rank == 0
    assert np.abs(found.value - table).max() < 1e-4


def test_one_factor_is_found_and_beats_offsets() -> None:
    table = generated(2, 60, 8, 1)
    seen = hidden(table, 0.25, 2)
    found = complete(seen)
    gap = np.isnan(seen)
    offsets = np.nanmean(seen - np.nanmean(seen, axis=1, keepdims=True), axis=0) + np.nanmean(seen, axis=1)[:, None]
    assert found.rank >= 1
    assert np.abs(found.value - table)[gap].mean() < 0.3 * np.abs(offsets - table)[gap].mean()


def test_seen_entries_stay_and_the_answer_repeats() -> None:
    seen = hidden(generated(3, 12, 5, 2, 0.1), 0.4, 3)
    errors = np.full(seen.shape, 0.07)
    first, second = complete(seen, errors), complete(seen, errors)
    known = ~np.isnan(seen)
    assert (first.value[known] == seen[known]).all() and (first.error[known] == 0.07).all()
    assert np.array_equal(first.value, second.value) and np.array_equal(first.error, second.error)
    assert np.isfinite(first.value).all() and (first.error > 0).all()


@trials(16, deadline=None)
@given(seed=st.integers(0, 1000), row=st.integers(0, 9), shift=st.floats(-8, 8))
def test_a_row_has_its_own_unit(seed: int, row: int, shift: float) -> None:
    seen = hidden(generated(seed, 10, 4, 1, 0.1), 0.3, seed)
    other = seen.copy()
    other[row] += shift
    one, two = complete(seen), complete(other)
    moved = two.value - one.value
    assert moved[row] == pytest.approx(shift, abs=1e-6)
    assert np.abs(np.delete(moved, row, axis=0)).max() < 1e-6
    assert two.error == pytest.approx(one.error, abs=1e-6)


@pytest.mark.parametrize(("rows", "columns", "rank", "share"), [(80, 3, 1, 0.3), (60, 6, 1, 0.5), (150, 4, 2, 0.3)])
def test_errors_cover_two_thirds(rows: int, columns: int, rank: int, share: float) -> None:
    inside: list[bool] = []
    for seed in range(4):
        table = generated(seed, rows, columns, rank, 0.15)
        seen = hidden(table, share, seed)
        found = complete(seen)
        inside += list((np.abs(found.value - table) <= found.error)[np.isnan(seen)])
    assert 0.6 <= np.mean(inside) <= 0.8


def test_a_row_of_the_same_application_is_the_nearest_reference() -> None:
    table = generated(5, 30, 4, 0, 0.02)
    odd = np.array([0.0, 2.0, -2.0, 1.0])
    table[0] += odd
    table[1] = table[0] + 3.0
    seen = table.copy()
    seen[1, 1:] = np.nan
    alone, together = complete(seen), complete(seen, group=["a", "a", *range(28)])
    apart = [np.abs(found.value[1] - table[1])[1:].mean() for found in (alone, together)]
    assert apart[1] < 0.5 * apart[0]
    assert (together.error[1, 1:] < alone.error[1, 1:]).all()


def test_rows_that_differ_by_one_factor_are_references(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(8)
    kinds = random.normal(0, 1, (6, 7))  # more than the factors can tell
    table = np.repeat(kinds, 8, axis=0) + random.uniform(-5, 5, (48, 1)) + random.normal(0, 0.02, (48, 7))
    seen = table.copy()
    seen[::8, 4:] = np.nan

    def error() -> float:
        return float(np.abs(complete(seen).value - table)[np.isnan(seen)].mean())

    with_references = error()
    monkeypatch.setattr(completion, "OTHER_APPLICATION", 0.0)
    assert with_references < 0.6 * error()


def test_an_unsure_row_gives_unsure_estimates() -> None:
    seen = generated(9, 20, 3, 1, 0.1)
    seen[0, 2] = np.nan
    sure, unsure = np.full(seen.shape, 0.01), np.full(seen.shape, 0.01)
    unsure[0] = 0.8
    assert complete(seen, unsure).error[0, 2] > 1.5 * complete(seen, sure).error[0, 2]


def test_a_sure_entry_counts_more_than_an_unsure_one() -> None:
    seen = generated(6, 30, 3, 0)
    seen[0] = [seen[0, 0], seen[0, 1] + 2.0, np.nan]
    errors = np.full(seen.shape, 0.01)
    errors[0, 1] = 2.0
    right = seen[1, 2] - seen[1, 0] + seen[0, 0]
    assert abs(complete(seen, errors).value[0, 2] - right) < 0.1
    assert abs(complete(seen).value[0, 2] - right) > 0.3


def test_little_is_known_of_a_row_with_few_entries_and_of_a_column_without_any() -> None:
    table = generated(7, 30, 5, 1, 0.1)
    seen = table.copy()
    seen[0, 1:] = np.nan
    seen[1, 1] = np.nan
    seen[:, 4] = np.nan
    found = complete(seen)
    assert found.error[0, 1] > found.error[1, 1]
    assert (found.error[:, 4] >= UNSEEN_ERROR).all() and found.relative_error[4] == UNSEEN_ERROR
    assert found.relative[4] == 0.0 and found.relative[:4].mean() == pytest.approx(0.0, abs=1e-12)


def test_one_entry_says_nothing_of_the_errors() -> None:
    found = complete(np.array([[1.5, np.nan]]))
    assert found.rank == 0
    assert found.value[0, 0] == 1.5 and found.value[0, 1] == pytest.approx(1.5)
    assert found.error[0, 1] >= ASSUMED_ERROR


@pytest.mark.parametrize(
    ("seen", "given", "said"),
    [
        ([[1.0, np.nan], [np.nan, np.nan]], {}, "row 1 has no entry"),
        ([[1.0, np.inf]], {}, "infinite"),
        ([[1.0, 2.0]], {"error": np.array([[0.1, -0.1]])}, "at least 0"),
        ([[1.0, 2.0]], {"error": np.array([[0.1]])}, "errors of"),
        ([[1.0, 2.0]], {"group": ["a", "b"]}, "2 applications"),
        ([1.0, 2.0], {}, "shape"),
    ],
)
def test_bad_tables(seen: list[float], given: dict[str, Matrix], said: str) -> None:
    with pytest.raises(DataError, match=said):
        complete(np.array(seen), **given)  # type: ignore[arg-type]
