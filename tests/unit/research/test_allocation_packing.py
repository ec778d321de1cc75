# SPDX-License-Identifier: MIT
"""Makespan and finish-time fairness with pairs against the published programs with a row per pair of jobs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import Allocation, Problem, isolated_throughput, problem
from slurm_pal.research.packing import finish_time_fairness_packing, makespan_packing
from slurm_pal.research.pairs import effective_packed

from ...doubles.allocation_limits import violation
from ...doubles.pairs_oracle import highest_level, random_problem
from ...doubles.trials import trials


@trials(60)
@given(st.integers(0, 100_000), st.integers(1, 9))
def test_makespan_as_with_one_row_per_pair(seed: int, m: int) -> None:
    given_ = random_problem(seed, m)
    found = makespan_packing(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(1 / highest_level(given_, given_.remaining), rel=1e-7)
    assert (given_.remaining / effective_packed(given_, found)).max() == pytest.approx(found.objective, rel=1e-12)


@trials(60)
@given(st.integers(0, 100_000), st.integers(1, 9))
def test_no_lower_ratio_can_be_had_with_one_row_per_pair(seed: int, m: int) -> None:
    given_ = random_problem(seed, m)
    found = finish_time_fairness_packing(given_)
    assert violation(given_, found) <= 1e-9
    alone_s = given_.earned_s + given_.remaining / isolated_throughput(given_)
    reached = (given_.age_s + given_.remaining / effective_packed(given_, found)) / alone_s
    assert reached.max() == pytest.approx(found.objective, rel=1e-12)
    lower_s = found.objective * (1 - 1e-6) * alone_s - given_.age_s
    assert lower_s.min() <= 0 or highest_level(given_, given_.remaining / lower_s) < 1


def _crowd(seed: int, m: int) -> Problem:
    numbers = np.random.default_rng(seed)
    speeds = numbers.uniform(1, 3, (4, 3))
    kind = numbers.integers(0, 4, m)
    return problem(
        speeds[kind], np.ones(m), [m / 6, m / 8, m / 8], remaining=numbers.uniform(10, 20, m), kind=kind,
        pairs=np.repeat(0.75 * speeds[:, None], 4, axis=1),
    )  # fmt: skip


@pytest.mark.parametrize("m", [24, 72])
def test_many_unlike_jobs_meet_in_few_pairs(m: int) -> None:
    given_ = _crowd(5, m)
    found = makespan_packing(given_)
    assert violation(given_, found) <= 1e-9
    named = [(pair.first, pair.second) for pair in found.pairs]
    assert named
    assert all(first < second for first, second in named)
    assert len(set(named)) == len(named)
    assert len(named) <= 4 * m


def test_one_long_job_of_a_kind_does_not_meet_itself() -> None:
    """Job 0 needs most of the time beside others of its kind; it cannot be its own partner."""
    given_ = problem(
        np.ones((3, 1)), np.ones(3), [1], remaining=[10, 1, 1], kind=np.zeros(3), pairs=np.full((1, 1, 1), 0.8)
    )
    found = makespan_packing(given_)
    # 2 steps of job 0 beside the others at 0.8, in 2.5 s; the other 8 alone.
    assert found.objective == pytest.approx(2.5 + 8.0)
    assert {(pair.first, pair.second) for pair in found.pairs} == {(0, 1), (0, 2)}


def test_jobs_with_nothing_left_get_no_share_and_are_nobodys_partner() -> None:
    given_ = problem(
        np.ones((3, 1)), np.ones(3), [1], remaining=[4, 0, 4], kind=np.zeros(3), pairs=np.full((1, 1, 1), 0.8)
    )
    found = makespan_packing(given_)
    assert [(pair.first, pair.second) for pair in found.pairs] == [(0, 2)]
    assert not found.shares[1].any()
    assert found.objective == pytest.approx(5.0)


@pytest.mark.parametrize("least", [1e-3, 1e-9])
@pytest.mark.parametrize(("pair", "makespan_s"), [(0.0, 1.5e9), (0.8, 1.125e9)])  # 1.6 steps/s while two last
def test_a_job_nearly_done_gets_what_it_needs_beside_long_ones(least: float, pair: float, makespan_s: float) -> None:
    """Its part of the time is below what a solver tells from nothing."""
    given_ = problem(
        np.ones((3, 1)), np.ones(3), [1], remaining=[1e9, least, 5e8], kind=np.zeros(3), pairs=np.full((1, 1, 1), pair)
    )
    found = makespan_packing(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(makespan_s, rel=1e-6)
    assert (given_.remaining / effective_packed(given_, found)).max() == pytest.approx(found.objective, rel=1e-12)


def test_a_job_that_is_old_and_nearly_done() -> None:
    """What it may still take is lost in the rounding of its age."""
    given_ = problem(
        np.ones((2, 1)), np.ones(2), [1], remaining=[1e6, 1e-8], age_s=[0, 1e9], earned_s=[0, 1e9], kind=[0, 0],
        pairs=np.full((1, 1, 1), 0.8),
    )  # fmt: skip
    found = finish_time_fairness_packing(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(1.0, rel=1e-9)
    assert effective_packed(given_, found).min() > 0


def test_without_pairs_it_is_the_plain_policy() -> None:
    given_ = problem(np.ones((2, 1)), [1, 1], [1], remaining=[1, 3])
    assert makespan_packing(given_).objective == pytest.approx(4)
    assert finish_time_fairness_packing(given_).objective == pytest.approx(1.0)


@pytest.mark.parametrize("policy", [makespan_packing, finish_time_fairness_packing])
@pytest.mark.parametrize(("m", "remaining", "objective"), [(0, 0.0, 0.0), (2, 0.0, 0.0), (2, 1.0, np.nan)])
def test_nobody_to_serve(policy: Callable[[Problem], Allocation], m: int, remaining: float, objective: float) -> None:
    found = policy(problem(np.zeros((m, 1)), np.ones(m), [1], remaining=np.full(m, remaining)))
    assert found.objective == pytest.approx(objective, nan_ok=True)
    assert found.shares.shape == (m, 1)
    assert bool(found.notes) == (m > 0)
