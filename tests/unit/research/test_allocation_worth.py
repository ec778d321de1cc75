# SPDX-License-Identifier: MIT
"""Values of steps: Smith's rule, comparative advantage, and an optimal sharing at every moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.linear import LinearProgram, Rows
from slurm_pal.research.worth import _Market, worth


def test_one_gpu_gives_smiths_rule() -> None:
    """The job that ends k-th from last holds up k jobs: its second is worth k."""
    speed = np.array([[2.0], [5.0], [1.0]])
    found = worth(speed, np.ones(3), np.ones(1), np.ones(3), np.array([2, 0, 1]))
    assert found.step * speed[:, 0] == pytest.approx([2.0, 3.0, 1.0])
    assert found.price == pytest.approx([3.0])


def test_weights_add_up() -> None:
    found = worth(np.ones((2, 1)), np.ones(2), np.ones(1), np.array([5.0, 7.0]), np.array([0, 1]))
    assert found.step == pytest.approx([5.0, 12.0])


def test_enough_gpus_make_no_price() -> None:
    found = worth(np.array([[4.0, 2.0], [1.0, 2.0]]), np.ones(2), np.array([2.0, 2.0]), np.ones(2), np.array([0, 1]))
    assert found.step == pytest.approx([0.25, 0.5])
    assert found.price == pytest.approx([0.0, 0.0])


def test_a_job_that_hardly_cares_leaves_the_fast_gpu_even_if_it_is_shorter() -> None:
    """Two jobs, a fast and a slow GPU: the first to end is worth more there only if 1/a_0 - 1 > 1 - a_1."""
    speed = np.array([[1.0, 0.95], [1.0, 0.2]])
    step = worth(speed, np.ones(2), np.ones(2), np.ones(2), np.array([1, 0])).step
    reward = step[:, None] * speed
    assert reward[0, 1] + reward[1, 0] > reward[0, 0] + reward[1, 1]
    keen = np.array([[1.0, 0.5], [1.0, 0.6]])
    reward = worth(keen, np.ones(2), np.ones(2), np.ones(2), np.array([1, 0])).step[:, None] * keen
    assert reward[0, 0] + reward[1, 1] > reward[0, 1] + reward[1, 0]


def test_a_job_that_can_run_nowhere_is_worth_nothing() -> None:
    found = worth(np.array([[0.0, 0.0], [1.0, 0.0]]), np.ones(2), np.ones(2), np.ones(2), np.array([0, 1]))
    assert found.step.tolist() == [0.0, 1.0]


values = st.one_of(st.just(-np.inf), st.floats(0.01, 10.0))


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 9), min_size=n, max_size=n),
            st.lists(
                st.tuples(st.lists(values, min_size=n, max_size=n), st.sampled_from((1.0, 2.0, 4.0, 8.0))),
                min_size=1,
                max_size=8,
            ),
        )
    )
)
def test_the_sharing_stays_optimal(drawn: tuple[list[int], list[tuple[list[float], float]]]) -> None:
    """Against a linear program, after every job."""
    gpus, jobs = np.array(drawn[0], dtype=float), drawn[1]
    market = _Market(len(jobs), gpus)
    for i, (value, scale) in enumerate(jobs):
        market.add(i, np.array(value), scale)
        held = market.held
        assert (held >= 0).all() and (held.sum(axis=0) <= gpus + 1e-9).all()
        made = float((np.where(held > 0, market.value, 0.0) * held).sum())
        assert made == pytest.approx(best_value(jobs[: i + 1], gpus), rel=1e-7, abs=1e-7)


def best_value(jobs: list[tuple[list[float], float]], gpus: np.ndarray) -> float:
    cells = [(i, j, v) for i, (value, _) in enumerate(jobs) for j, v in enumerate(value) if v > 0]
    if not cells:
        return 0.0
    job, column, value = (np.array(x) for x in zip(*cells, strict=True))
    k, m = len(cells), len(jobs)
    limits = np.concatenate(([scale for _, scale in jobs], gpus))
    row, entry = np.concatenate((job, m + column)), np.tile(np.arange(k), 2)
    rows = Rows(row, entry, np.ones(2 * k), np.full(limits.size, -np.inf), limits)
    return LinearProgram(value.astype(float), rows).solve().objective
