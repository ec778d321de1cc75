# SPDX-License-Identifier: MIT
"""FIFO, FIFO by performance, shortest job first, and FIFO with pairs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import Allocation, Problem, problem
from slurm_pal.research.fifo import fifo, fifo_packing, fifo_perf, sjf

from ...doubles.allocation_limits import violation


def _columns(found: Allocation) -> list[int]:
    return [int(row.argmax()) if row.any() else -1 for row in found.shares]


class _First(random.Random):
    """Always the first choice, and how many were made."""

    drawn = 0

    def randrange(self, *_: Any, **__: Any) -> int:  # noqa: ANN401  # as the standard library has it
        self.drawn += 1
        return 0


def test_fifo_keeps_who_runs_and_stops_at_the_first_without_room() -> None:
    draws = _First()
    found = fifo(problem(np.ones((5, 2)), [2, 1, 1, 3, 1], [2, 2], held=[-1, 1, -1, -1, -1]), draws)
    assert _columns(found) == [0, 1, 1, -1, -1]
    assert draws.drawn == 2


def test_fifo_draws_among_the_columns_with_room_that_can_run_it() -> None:
    given_ = problem([[1, 1, 0, 1]], [2], [2, 1, 2, 2])
    seen = {_columns(fifo(given_, random.Random(seed)))[0] for seed in range(40)}
    assert seen == {0, 3}


def test_fifo_perf_takes_the_fastest_column_with_room_and_starts_anew() -> None:
    speeds = [[1, 5], [1, 5], [9, 2], [1, 3]]
    found = fifo_perf(problem(speeds, [1, 1, 1, 1], [2, 1], held=[0, -1, 1, -1]))
    assert _columns(found) == [1, 0, 0, -1]


def test_fifo_perf_stops_at_the_first_job_that_fits_nowhere() -> None:
    assert _columns(fifo_perf(problem(np.ones((3, 1)), [1, 4, 1], [4]))) == [0, -1, -1]


def test_fifo_perf_takes_no_column_that_cannot_run_the_job() -> None:
    assert _columns(fifo_perf(problem([[2, 0], [2, 0], [0, 1]], [1, 1, 1], [1, 2]))) == [0, -1, -1]


@pytest.mark.parametrize("job", [([0, 0], 1), ([1, 1], 5)])
def test_a_job_that_can_run_nowhere_stops_nobody(job: tuple[list[int], int]) -> None:
    """Neither the one that no column runs nor the one that is wider than all of them."""
    given_ = problem([job[0], [1, 2], [1, 2]], [job[1], 1, 1], [1, 1], kind=[0, 0, 0], pairs=np.ones((1, 1, 2)))
    for found in (fifo(given_, _First()), fifo_perf(given_), fifo_packing(given_), sjf(given_)):
        assert sorted(_columns(found)) == [-1, 0, 1] and _columns(found)[0] == -1
        assert found.notes == ("1 of 3 jobs fit no column and get no share (rows 0)",)


def test_sjf_orders_by_time_left_at_the_best_speed_and_passes_over() -> None:
    given_ = problem([[1, 2], [1, 8], [1, 1], [0, 0]], [1, 1, 3, 1], [1, 1], remaining=[6, 16, 1, 1])
    assert _columns(sjf(given_)) == [0, 1, -1, -1]  # 3 s, 2 s, 1 s but too large, cannot run


def _sharing(threshold_speed: float, scale: list[int]) -> Problem:
    pairs = np.full((1, 1, 1), threshold_speed)
    m = len(scale)
    return problem(np.full((m, 1), 2.0), scale, [2 * max(scale)], kind=np.zeros(m), pairs=pairs)


def test_fifo_packing_shares_in_order_while_it_pays() -> None:
    found = fifo_packing(_sharing(1.6, [1, 1, 1, 1, 1]))
    assert [(pair.first, pair.second, pair.shares.tolist()) for pair in found.pairs] == [(0, 2, [1.0]), (1, 3, [1.0])]
    assert not found.shares.any()


@pytest.mark.parametrize(("speed", "scale"), [(1.5, [1, 1, 1]), (0.0, [1, 1, 1]), (1.9, [2, 2, 1])])
def test_fifo_packing_leaves_alone_what_does_not_pay(speed: float, scale: list[int]) -> None:
    found = fifo_packing(_sharing(speed, scale))
    assert not found.pairs
    assert _columns(found) == [0, 0, -1]


@given(st.data())
def test_whole_columns_within_the_cluster(data: st.DataObject) -> None:
    m, n = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    speeds = data.draw(
        st.lists(st.lists(st.sampled_from([0, 1, 2, 5]), min_size=n, max_size=n), min_size=m, max_size=m)
    )
    scale = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=m, max_size=m))
    gpus = data.draw(st.lists(st.integers(0, 8), min_size=n, max_size=n))
    given_ = problem(speeds, scale, gpus, remaining=np.arange(m), kind=np.arange(m), pairs=np.ones((m, m, n)))
    seed = data.draw(st.integers(0, 5))
    for found in (fifo(given_, random.Random(seed)), fifo_perf(given_), sjf(given_), fifo_packing(given_, 0.5)):
        assert violation(given_, found) == 0
        assert set(np.unique(found.shares)) <= {0.0, 1.0}
        assert (found.shares[given_.throughput == 0] == 0).all()


def test_nobody_to_serve() -> None:
    given_ = problem(np.ones((0, 2)), [], [1, 1])
    for found in (fifo(given_, random.Random(0)), fifo_perf(given_), sjf(given_), fifo_packing(given_)):
        assert found.shares.shape == (0, 2)
