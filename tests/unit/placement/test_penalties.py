# SPDX-License-Identifier: MIT
"""Locality penalties by level, from what is known of some levels and from all-reduces between nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.placement.penalties import MOST, at, completed, expected
from slurm_pal.placement.view import Rule


def test_without_measurements_all_levels_are_the_sites_own_factor() -> None:
    assert expected(1.7, {}) == (1.7,)
    assert [at((1.7,), level) for level in range(4)] == [1.0, 1.7, 1.7, 1.7]
    assert at((), 3) == 1.0


def test_all_reduces_say_how_the_levels_differ() -> None:
    # A tenth of the time in communication: seven times slower between nodes, 13 times between leaves.
    assert expected(1.6, {1: 7.0, 2: 13.0}) == pytest.approx((1.6, 2.2))
    assert expected(1.7, {1: 1.0, 2: 1.0}) == (1.7, 1.7)  # nothing to go by
    assert expected(1.7, {1: 1.4, 2: 2.6}) == pytest.approx((1.7, 2.6))  # it cannot communicate all the time and more
    assert expected(1.7, {1: 1.4, 2: 1.5}) == pytest.approx((1.7, 1.7))
    assert completed({2: 2.2}, {1: 7.0, 2: 13.0, 3: 19.0}, (1.7,)) == pytest.approx((1.6, 2.2, 2.8))


def test_levels_of_which_nothing_is_known_are_as_those_below() -> None:
    assert completed({1: 1.3}, {}, (1.7,)) == (1.3,)
    assert completed({1: 1.3, 3: 1.9}, {}, (1.7,)) == (1.3, 1.3, 1.9)
    assert completed({2: 1.4}, {}, (1.7,)) == (1.4, 1.4)  # the nearer one is not slower
    assert completed({2: 2.4}, {}, (1.7,)) == (1.7, 2.4)


def test_a_rule_has_the_factor_of_each_level() -> None:
    rule = Rule("A", 1.3, 1.05, farther=(1.6, 2.0))
    assert [rule.locality(level) for level in range(6)] == [1.0, 1.3, 1.6, 2.0, 2.0, 2.0]
    assert [Rule("A", 1.3, 1.05).locality(level) for level in range(4)] == [1.0, 1.3, 1.3, 1.3]


levels = st.dictionaries(st.integers(1, 5), st.floats(0.5, 100.0), max_size=5)


@given(levels, levels, st.floats(1.0, 10.0))
def test_whatever_is_known_a_penalty_is_one(known: dict[int, float], ratios: dict[int, float], constant: float) -> None:
    found = completed(known, ratios, (constant,))
    assert len(found) == max((*known, *ratios, 1)) and all(1.0 <= factor <= MOST for factor in found)
    assert all(found[level - 1] == min(max(factor, 1.0), MOST) for level, factor in known.items())
