# SPDX-License-Identifier: MIT
"""AlloX: heads of the queues, running jobs keep their GPU, and the same choice as on the published full matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from slurm_pal.allocation.problem import Allocation, Problem, problem
from slurm_pal.base.errors import DataError
from slurm_pal.research.allox import allox

from ...doubles.allocation_limits import violation


def _columns(found: Allocation) -> list[int]:
    return [int(row.argmax()) if row.any() else -1 for row in found.shares]


def test_the_shortest_goes_first_on_the_gpu_that_it_gains_most_from() -> None:
    given_ = problem([[4, 1], [1, 1], [4, 1]], [1, 1, 1], [1, 1], remaining=[400, 90, 100])
    assert _columns(allox(given_)) == [-1, 1, 0]


def test_running_jobs_keep_their_gpu() -> None:
    given_ = problem([[4, 1], [4, 1]], [1, 1], [1, 1], remaining=[1e6, 1], held=[0, -1])
    assert _columns(allox(given_)) == [0, 1]


def test_a_full_cluster_starts_nobody() -> None:
    assert _columns(allox(problem(np.ones((2, 1)), [1, 1], [1], held=[0, -1]))) == [0, -1]


def test_nobody_to_serve() -> None:
    assert allox(problem(np.ones((0, 2)), [], [1, 1])).shares.shape == (0, 2)


def test_alpha_leaves_the_young_out() -> None:
    given_ = problem(np.ones((4, 1)), np.ones(4), [1], remaining=[40, 30, 20, 10], age_s=[1, 4, 3, 2])
    assert _columns(allox(given_)) == [-1, -1, -1, 0]
    assert _columns(allox(given_, alpha=0.5)) == [-1, -1, 0, -1]
    assert _columns(allox(given_, alpha=0.0)) == [-1, 0, -1, -1]  # never fewer than the free GPUs


def test_nobody_is_put_where_he_cannot_run() -> None:
    assert _columns(allox(problem([[0, 0], [1, 0]], [1, 1], [1, 1], remaining=[5, 5]))) == [-1, 0]


def test_gangs_are_refused() -> None:
    with pytest.raises(DataError, match=r"job 1 needs 2 GPUs; AlloX places jobs of 1 GPU only: use another policy"):
        allox(problem(np.ones((2, 1)), [1, 2], [4]))


def _full_matrix(given_: Problem) -> list[int]:
    """The published way: jobs x (GPUs x jobs)."""
    column = np.repeat(np.arange(given_.n_columns), given_.gpus.astype(int))
    once = given_.remaining[:, None] / given_.throughput[:, column]
    cost = np.concatenate([k * once for k in range(1, given_.n_jobs + 1)], axis=1) + given_.age_s[:, None]
    head: dict[int, tuple[int, int]] = {}
    for job, slot in zip(*linear_sum_assignment(cost), strict=True):
        place, gpu = divmod(int(slot), column.size)
        head[gpu] = max(head.get(gpu, (-1, -1)), (place, int(job)))
    chosen = [-1] * given_.n_jobs
    for gpu, (_, job) in head.items():
        chosen[job] = int(column[gpu])
    return chosen


@given(st.integers(0, 10_000), st.integers(1, 15), st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_as_on_the_full_matrix(seed: int, m: int, gpus: list[int]) -> None:
    numbers = np.random.default_rng(seed)
    given_ = problem(
        numbers.uniform(0.5, 8, (m, 3)), np.ones(m), gpus, remaining=numbers.uniform(1, 1e5, m),
        age_s=np.sort(numbers.uniform(0, 1e5, m))[::-1],
    )  # fmt: skip
    found = allox(given_)
    assert violation(given_, found) == 0
    if sum(gpus):
        assert _columns(found) == _full_matrix(given_)
