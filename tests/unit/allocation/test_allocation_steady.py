# SPDX-License-Identifier: MIT
"""Policies for a scheduler that stops no job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.allocation import steady
from slurm_pal.allocation.problem import Problem, effective, problem
from slurm_pal.allocation.steady import ALL_LEVELS, STEADY, by_entity
from slurm_pal.allocation.water_filling import hierarchical

from ...doubles.allocation_limits import violation
from ...doubles.trials import trials


def random_problem(seed: int, jobs: int, types: int = 3, entities: int = 2) -> Problem:
    draw = np.random.default_rng(seed)
    return problem(
        np.exp(draw.normal(0, 1, (jobs, types))) * (draw.random((jobs, types)) < 0.9),
        draw.choice([1.0, 2.0, 4.0], jobs),
        draw.choice([4.0, 8.0, 16.0], types),
        remaining=draw.exponential(1000.0, jobs),
        age_s=draw.exponential(100.0, jobs),
        entity=draw.integers(0, entities, jobs),
        entity_weight=draw.choice([1.0, 2.0], entities),
    )


@pytest.mark.parametrize("policy", STEADY)
@trials(25)
@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 12))
def test_shares_are_shares(policy: str, seed: int, jobs: int) -> None:
    made = random_problem(seed, jobs)
    shares = STEADY[policy](made).shares
    assert np.isfinite(shares).all() and shares.min() >= -1e-9 and shares.sum(axis=1).max() <= 1 + 1e-6
    assert not shares[made.throughput == 0].any()
    assert violation(made, STEADY[policy](made)) <= 1e-6


def test_a_job_that_hardly_cares_leaves_the_fast_gpus_to_one_that_does() -> None:
    made = problem([[1.0, 8.0], [1.0, 1.1]], [1, 1], [1, 1], remaining=[1000.0, 1000.0])
    assert STEADY["gavel:max-sum"](made).shares == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("policy", STEADY)
def test_a_job_alone_belongs_where_it_is_fastest(policy: str) -> None:
    alone = problem([[1.0, 2.0, 0.5]], [1], [1, 1, 1], remaining=[1000.0])
    assert STEADY[policy](alone).shares == pytest.approx(np.array([[0.0, 1.0, 0.0]]), abs=5e-3)  # second_stage.SLACK
    nowhere = problem([[0.0, 0.0]], [1], [1, 1], remaining=[1000.0])
    assert STEADY[policy](nowhere).shares.tolist() == [[0.0, 0.0]]


def test_what_max_min_leaves_open_is_spent_on_throughput() -> None:
    # The first job alone bounds the minimum; the other may have all that is left.
    made = problem([[1.0, 0.0], [1.0, 4.0]], [1, 1], [0.5, 8.0])
    shares = STEADY["gavel:max-min"](made).shares
    assert effective(made, shares)[1] == pytest.approx(4.0, rel=0.01)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_many_jobs_have_the_lowest_level_of_the_hierarchy(seed: int) -> None:
    made = random_problem(seed, 20, entities=3)
    exact = hierarchical(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "ALL_LEVELS", 5)
        found = by_entity(made)
    runs = made.throughput.any(axis=1)
    total = np.bincount(made.entity, np.where(runs, made.weight, 0.0), minlength=3)
    weight = made.entity_weight[made.entity] / np.maximum(total[made.entity], 1.0)
    reference = steady.second_stage.base.reference_throughput(made)
    heights = (made.scale * effective(made, found.shares))[runs] / (weight * reference)[runs]
    assert heights.min() == pytest.approx(exact.objective, rel=2e-3)  # the second stage may give up a thousandth
    assert found.shares.shape == exact.shares.shape and violation(made, found) <= 1e-6


def test_few_jobs_have_every_level() -> None:
    made = random_problem(3, 12)
    assert made.n_jobs <= ALL_LEVELS and np.array_equal(by_entity(made).shares, hierarchical(made).shares)


@pytest.mark.parametrize("jobs", [5, ALL_LEVELS + 1])
def test_an_entity_without_a_job_that_runs(jobs: int) -> None:
    made = random_problem(1, jobs)
    nothing = made._replace(throughput=np.where(made.entity[:, None] == 0, 0.0, made.throughput))
    shares = by_entity(nothing).shares
    assert np.isfinite(shares).all() and not shares[made.entity == 0].any()


@pytest.mark.parametrize("policy", ["hadar", "sia", "pal-sia"])
def test_whoever_is_left_out_of_one_deal_is_dealt_all_gpus_in_the_next(policy: str) -> None:
    """Two GPUs, of which the first is held: a job would rather wait for it than take the slow one, and says so."""
    made = problem([[4.0, 0.0], [4.0, 1.0], [4.0, 1.0]], [1, 1, 1], [1, 1], remaining=[1e4] * 3, held=[0, -1, -1])
    shares = STEADY[policy](made).shares
    assert shares[0].tolist() == [0.5, 0.0]  # it stays, in the first of two deals
    assert sorted(map(tuple, shares[1:].tolist())) == [(0.0, 0.5), (0.5, 0.0)]
    waits = made._replace(throughput=np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]))
    assert STEADY[policy](waits).shares[:, 0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("policy", STEADY)
def test_where_a_job_runs_does_not_bind_the_linear_programs(policy: str) -> None:
    made = random_problem(3, 9)
    column = np.where(made.throughput[:, 1] > 0, 1, -1)
    column[2:] = -1
    held, free = STEADY[policy](made._replace(held=column)).shares, STEADY[policy](made).shares
    if policy.startswith(("gavel:", "nonpreemptive-makespan")):
        assert held.tolist() == free.tolist()
    else:
        assert all(held[k, column[k]] > 0 for k in np.flatnonzero(column >= 0))
