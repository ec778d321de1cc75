# SPDX-License-Identifier: MIT
"""Programs over groups of pairs against the published ones with a row per pair of jobs, on another solver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import Allocation, Problem, effective, problem, proportional_throughput
from slurm_pal.base.errors import DataError
from slurm_pal.research.pairs import cost_packing, effective_packed, max_min_packing, max_sum_packing

from ...doubles.allocation_limits import violation
from ...doubles.pairs_oracle import highest_level, largest_sum, random_problem, rows_of
from ...doubles.trials import trials


@trials(60)
@given(st.integers(0, 100_000), st.integers(1, 9))
def test_max_min_as_with_one_row_per_pair(seed: int, m: int) -> None:
    given_ = random_problem(seed, m)
    unit = given_.weight * proportional_throughput(given_) / given_.scale
    found = max_min_packing(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(highest_level(given_, unit), rel=1e-7)
    assert (effective_packed(given_, found) / unit).min() == pytest.approx(found.objective, rel=1e-9)


@trials(40)
@given(st.integers(0, 100_000), st.integers(1, 9))
def test_sums_as_with_one_row_per_pair(seed: int, m: int) -> None:
    given_ = random_problem(seed, m)
    reference, rows = proportional_throughput(given_), rows_of(given_)
    found = max_sum_packing(given_)
    assert violation(given_, found) <= 1e-9
    values = np.array([(row.speed / reference).sum() for row in rows])
    assert found.objective == pytest.approx(largest_sum(given_, values), rel=1e-7)
    assert (effective_packed(given_, found) / reference).sum() == pytest.approx(found.objective, rel=1e-9)
    found = cost_packing(given_)
    assert violation(given_, found) <= 1e-9
    values = np.array([row.speed.sum() / given_.price[row.column] for row in rows])
    assert found.objective == pytest.approx(largest_sum(given_, values), rel=1e-7)


def _crowd(counts: list[int]) -> tuple[Problem, Allocation]:
    """As many jobs of each kind, mixed in order, each faster together with any other than one after the other."""
    kind = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    speeds = np.linspace(1, 2, 2 * len(counts)).reshape(-1, 2)
    pairs = np.repeat(0.8 * speeds[:, None], len(counts), axis=1)
    given_ = problem(speeds[kind], np.ones(len(kind)), [3, 2], kind=kind, pairs=pairs)
    return given_, max_min_packing(given_)


@pytest.mark.parametrize("counts", [[7], [8], [40, 1], [40, 3, 29], [64, 64, 64, 64]])
def test_members_of_a_group_are_served_alike(counts: list[int]) -> None:
    given_, found = _crowd(counts)
    assert violation(given_, found) <= 1e-9
    assert found.pairs
    time = found.shares.copy()
    for pair in found.pairs:
        assert pair.first < pair.second
        time[pair.first] += pair.shares
        time[pair.second] += pair.shares
    speed = effective_packed(given_, found)
    for kind in range(len(counts)):
        members = given_.kind == kind
        assert np.ptp(speed[members]) <= 1e-12
        assert np.ptp(time[members], axis=0).max() <= 1e-12


@pytest.mark.parametrize("counts", [[40, 3, 29], [64, 64, 64, 64]])
def test_few_pairs_of_members_carry_what_two_groups_share(counts: list[int]) -> None:
    _, found = _crowd(counts)
    named = [(pair.first, pair.second) for pair in found.pairs]
    assert len(set(named)) == len(named)
    # At an optimum at most two variables per group and one per capacity are used; each gives at most
    # as many pairs as its two groups have members.
    assert len(named) <= (2 * len(counts) + 2) * 2 * max(counts)


def test_a_pair_no_faster_than_taking_turns_is_not_made() -> None:
    given_ = problem(np.ones((2, 1)), [1, 1], [1], kind=[0, 0], pairs=np.full((1, 1, 1), 0.5))
    found = max_min_packing(given_)
    assert not found.pairs
    assert found.objective == pytest.approx(0.5)


@pytest.mark.parametrize(("speeds", "scale"), [((0.9, 0.0), [1, 1]), ((0.9, 0.9), [1, 2])])
def test_one_direction_of_0_or_unequal_scale_cannot_share(speeds: tuple[float, float], scale: list[int]) -> None:
    pairs = np.zeros((2, 2, 1))
    pairs[0, 1], pairs[1, 0] = speeds
    assert not max_min_packing(problem(np.ones((2, 1)), scale, [2], kind=[0, 1], pairs=pairs)).pairs


def test_two_share_one_gpu() -> None:
    found = max_min_packing(problem(np.ones((2, 1)), [1, 1], [1], kind=[0, 0], pairs=np.full((1, 1, 1), 0.9)))
    (pair,) = found.pairs
    assert (pair.first, pair.second) == (0, 1)
    assert pair.shares == pytest.approx([1.0])
    assert found.objective == pytest.approx(0.9)


def test_without_pairs_it_is_the_plain_policy() -> None:
    given_ = problem([[1, 2], [2, 1]], [1, 1], [1, 1])
    assert max_min_packing(given_).objective == pytest.approx(4 / 3)
    assert effective(given_, max_sum_packing(given_).shares) == pytest.approx([2, 2])


@pytest.mark.parametrize("policy", [max_min_packing, max_sum_packing, cost_packing])
@pytest.mark.parametrize("m", [0, 2])
def test_nobody_to_serve(policy: Callable[[Problem], Allocation], m: int) -> None:
    found = policy(problem(np.zeros((m, 1)), np.ones(m), [1]))
    assert found.shares.shape == (m, 1)
    assert not found.shares.any()


def test_a_price_of_nothing() -> None:
    with pytest.raises(DataError, match=r"a price is 0\.0; .* must be above 0"):
        cost_packing(problem(np.ones((2, 1)), [1, 1], [1], price=[0]))


@pytest.mark.parametrize("policy", [max_min_packing, max_sum_packing, cost_packing])
def test_a_job_without_any_throughput_disturbs_nobody(policy: Callable[[Problem], Allocation]) -> None:
    """The last one, and of a kind with pairs: its reference throughput is 0."""
    found = policy(problem([[1, 2], [0, 0]], [1, 1], [1, 1], kind=[0, 1], pairs=np.ones((2, 2, 2))))
    assert found.shares.tolist() == [[0, 1], [0, 0]] and not found.pairs
    assert np.isfinite(found.objective)
    assert found.notes == ("1 of 2 jobs fit no column and get no share (rows 1)",)
