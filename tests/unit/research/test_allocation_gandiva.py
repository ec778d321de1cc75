# SPDX-License-Identifier: MIT
"""Gandiva: equal time, random pairs of equal scale that last while they pay."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import problem
from slurm_pal.research.gandiva import gandiva, partners, split

from ...doubles.allocation_limits import violation


def _problem(scale: list[int], gpus: list[int], **given_: Any) -> Any:  # noqa: ANN401  # fields of any type
    m, n = len(scale), len(gpus)
    return problem(
        np.full((m, n), 2.0), scale, gpus, **{"kind": np.zeros(m), "pairs": np.full((1, 1, n), 1.5), **given_}
    )


def test_equal_time_if_all_fit() -> None:
    found = gandiva(_problem([1, 1, 2], [3, 1]), random.Random(0))
    assert not found.pairs
    assert found.shares == pytest.approx(np.array([[0.75, 0.25], [0.75, 0.25], [0.5, 1 / 6]]))


def test_pairs_and_the_job_left_over_share_equally_if_not() -> None:
    given_ = _problem([1, 1, 1], [1, 1])
    found = gandiva(given_, random.Random(0))
    (pair,) = found.pairs
    assert pair.shares == pytest.approx([0.5, 0.5])
    left = ({0, 1, 2} - {pair.first, pair.second}).pop()
    assert found.shares[left] == pytest.approx([0.5, 0.5])
    assert found.shares.sum() == pytest.approx(1.0)


def test_draws_two_of_those_without_partner_per_attempt() -> None:
    draws, again = random.Random(7), random.Random(7)
    now = partners(_problem([1] * 6, [2]), draws, np.array([5, -1, -1, -1, -1, 0]))
    single = [1, 2, 3, 4]
    first = again.sample(single, 2)
    second = again.sample([job for job in single if job not in first], 2)
    assert now[first[0]] == first[1]
    assert now[second[1]] == second[0]
    assert now[5] == 0
    assert draws.random() == again.random()


def test_unequal_scales_stay_single_after_as_many_attempts_as_jobs() -> None:
    draws, again = random.Random(3), random.Random(3)
    assert partners(_problem([1, 2, 4], [2]), draws).tolist() == [-1, -1, -1]
    for _ in range(3):
        again.sample([0, 1, 2], 2)
    assert draws.random() == again.random()


@pytest.mark.parametrize(
    ("speeds", "stays"), [((0.6, 0.4), True), ((0.5, 0.4), False), ((3.0, 0.0), False), ((1.9, 1.9), True)]
)
def test_a_pair_ends_when_it_does_not_pay(speeds: tuple[float, float], stays: bool) -> None:
    """(0.6 + 0.4) / 2 twice is just 1: the published sum goes over all columns."""
    given_ = _problem([1, 1], [4, 4], pairs=np.array([[speeds]]))
    assert partners(given_, random.Random(0), np.array([1, 0])).tolist() == ([1, 0] if stays else [-1, -1])


def test_nobody_to_serve() -> None:
    assert gandiva(problem(np.ones((0, 2)), [], [1, 1]), random.Random(0)).shares.shape == (0, 2)


def test_a_pair_rests_while_all_fit() -> None:
    given_ = _problem([1, 1], [4])
    kept = partners(given_, random.Random(0), np.array([1, 0]))
    assert kept.tolist() == [1, 0]
    assert not split(given_, kept).pairs


@given(
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=20),
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.booleans(),
)
def test_everybody_is_served_within_the_cluster(scale: list[int], gpus: list[int], shared: bool) -> None:
    few = {"uses": np.ones((1, len(gpus))), "capacity": [max(gpus)]} if shared else {}  # columns on the same GPUs
    given_ = _problem(scale, gpus, **few)
    found = gandiva(given_, random.Random(1))
    assert violation(given_, found) <= 1e-9
    served = {pair.first for pair in found.pairs} | {pair.second for pair in found.pairs}
    assert served.isdisjoint(np.flatnonzero(found.shares.any(axis=1)))
    assert len(served) + int(found.shares.any(axis=1).sum()) == len(scale)
    assert all(scale[pair.first] == scale[pair.second] for pair in found.pairs)
