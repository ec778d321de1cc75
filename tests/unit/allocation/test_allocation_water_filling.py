# SPDX-License-Identifier: MIT
"""Water filling against the definition, carried out with one program per job and level by another solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import (
    Allocation,
    Problem,
    effective,
    problem,
    proportional_throughput,
)
from slurm_pal.allocation.water_filling import hierarchical

from ...doubles.allocation_limits import violation
from ...doubles.trials import trials

Vector = NDArray[np.float64]


def _levels(given_: Problem, found: Allocation) -> Vector:
    return np.asarray(effective(given_, found.shares) / proportional_throughput(given_))


def _largest(given_: Problem, least: Vector, rising: Vector) -> float:
    """The largest c with level_i >= least_i + c * rising_i."""
    m, n = given_.throughput.shape
    speed = given_.throughput / proportional_throughput(given_)[:, None]
    rows, bounds = [], []
    for i in range(m):
        own = np.zeros((m, n))
        own[i] = 1
        rows.append(np.append(own.ravel(), 0.0))
        bounds.append(1.0)
        own[i] = -speed[i]
        rows.append(np.append(own.ravel(), rising[i]))
        bounds.append(-least[i] + 1e-9)
    for use, limit in zip(given_.uses, given_.capacity, strict=True):
        rows.append(np.append(np.outer(given_.scale, use).ravel(), 0.0))
        bounds.append(limit)
    return float(-linprog(np.append(np.zeros(m * n), -1.0), np.array(rows), np.array(bounds)).fun)


def _by_definition(given_: Problem, queued: frozenset[int]) -> Vector:
    """Final levels: rise, then freeze each job that cannot rise alone, until none is left."""
    m = given_.n_jobs
    level, frozen = np.zeros(m), np.zeros(m, dtype=bool)
    while not frozen.all():
        weight = np.zeros(m)
        for entity in set(given_.entity[~frozen].tolist()):
            members = [i for i in range(m) if given_.entity[i] == entity and not frozen[i]]
            if entity in queued:
                weight[members[0]] = 1.0
            else:
                weight[members] = given_.weight[members] / given_.weight[members].sum()
            weight[members] *= given_.entity_weight[entity]
        level = level + max(0.0, _largest(given_, level, weight / given_.scale)) * weight / given_.scale
        for i in np.flatnonzero((weight > 0) & ~frozen):
            if _largest(given_, level, np.eye(m)[i]) <= 1e-6:
                frozen[i] = True
    return level


def _random(seed: int, m: int, entities: int) -> Problem:
    numbers = np.random.default_rng(seed)
    kinds = numbers.uniform(0.2, 4, (3, 2))
    return problem(
        kinds[numbers.integers(0, 3, m)] * numbers.choice([1, 1, 0], (m, 2), p=[0.5, 0.4, 0.1]) + [0.01, 0],
        numbers.choice([1, 1, 2], m), numbers.integers(2, 5, 2), weight=numbers.choice([1, 1, 5], m),
        entity=numbers.integers(0, entities, m), entity_weight=numbers.uniform(0.5, 3, entities),
    )  # fmt: skip


@trials(40)
@given(st.integers(0, 100_000), st.integers(1, 7), st.integers(1, 3), st.booleans())
def test_hierarchical_as_defined(seed: int, m: int, entities: int, in_order: bool) -> None:
    given_ = _random(seed, m, entities)
    queued = frozenset({0}) if in_order else frozenset()
    found = hierarchical(given_, queued)
    assert violation(given_, found) <= 1e-9
    assert _levels(given_, found) == pytest.approx(_by_definition(given_, queued), abs=1e-5)


@trials(30)
@given(st.integers(0, 100_000), st.integers(1, 8))
def test_one_entity_starts_at_max_min(seed: int, m: int) -> None:
    given_ = _random(seed, m, 1)
    found = hierarchical(given_)
    assert violation(given_, found) <= 1e-9
    level = found.objective * given_.entity_weight[0] / given_.weight.sum()
    assert level == pytest.approx(max_min(given_).objective, rel=1e-7)
    assert _levels(given_, found) == pytest.approx(_by_definition(given_, frozenset()), abs=1e-5)


def test_three_levels_by_hand() -> None:
    """Two jobs can only use the first GPU, one only the second, one the third two: each its own level."""
    given_ = problem(
        [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]], np.ones(6), [1, 1, 2], weight=np.ones(6)
    )
    found = hierarchical(given_)
    assert effective(given_, found.shares) == pytest.approx([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3, 1])


def test_the_weight_of_a_frozen_job_goes_to_its_siblings() -> None:
    """Entity 0 has weight 1 and a job that can use half a GPU's speed at most; entity 1 has weight 1.

    While all rise, the jobs of entity 0 have 1/2 each and the one of entity 1 has 1.
    """
    given_ = problem(np.ones((3, 1)), np.ones(3), [1.5], entity=[0, 0, 1], entity_weight=[1, 1])
    assert effective(given_, hierarchical(given_).shares) == pytest.approx([0.375, 0.375, 0.75])
    given_ = problem(np.ones((3, 1)), np.ones(3), [2.5], entity=[0, 0, 1], entity_weight=[1, 3])
    assert effective(given_, hierarchical(given_).shares) == pytest.approx([0.75, 0.75, 1.0])


def test_in_order_serves_the_first_job_before_the_next() -> None:
    given_ = problem(np.ones((5, 1)), np.ones(5), [3], entity=[0, 0, 0, 1, 1], entity_weight=[1, 1])
    # Both entities rise alike; when job 0 is full, job 1 of its entity rises with 3 and 4.
    assert effective(given_, hierarchical(given_, {0}).shares) == pytest.approx([1, 0.5, 0, 0.75, 0.75], abs=1e-7)


def test_many_waiting_jobs_in_order_end_soon_after_the_cluster_is_full() -> None:
    given_ = problem(np.ones((400, 2)), np.ones(400), [2, 3])
    found = hierarchical(given_, {0})
    assert effective(given_, found.shares) == pytest.approx([1.0] * 5 + [0.0] * 395, abs=1e-7)


def test_jobs_that_can_run_nowhere_are_left_out() -> None:
    found = hierarchical(problem([[0.0], [1.0]], [1, 1], [1]))
    assert found.shares.tolist() == [[0], [1]]
    assert found.notes


@pytest.mark.parametrize("m", [0, 2])
def test_nobody_to_serve(m: int) -> None:
    found = hierarchical(problem(np.zeros((m, 1)), np.ones(m), [1]))
    assert found.shares.shape == (m, 1)
    assert not found.shares.any()
