# SPDX-License-Identifier: MIT
"""PAL's binning as intended and as shipped, and its L x V list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.placement.lxv import lxv
from slurm_pal.variability.published import as_intended, as_shipped, outliers

slowdowns = st.lists(st.floats(0.5, 3.0), min_size=1, max_size=60)


def test_outliers_are_one_sided() -> None:
    values = np.array([1.0] * 50 + [0.1, 3.0])
    assert np.flatnonzero(outliers(values)).tolist() == [51]
    assert not outliers(np.array([1.0])).any()


def test_as_intended_sets_outliers_apart() -> None:
    values = [c + d / 10000 for c in (0.95, 1.0, 1.05) for d in range(12)] + [2.5]
    bins = as_intended(values)
    assert bins.lone.tolist() == [False] * 36 + [True]
    assert len(bins.levels) == 4
    assert bins.sf[-1] == pytest.approx(2.5 / np.median(values))


def test_as_shipped_uses_two_and_the_outliers() -> None:
    assert len(as_shipped([1.0, 1.01] * 10).levels) == 2
    assert len(as_shipped([0.95, 1.0, 1.05] * 10 + [3.0]).levels) == 3
    assert as_shipped([1.0] * 5).sf.tolist() == [1.0] * 5


@given(slowdowns)
def test_levels_rise_and_every_gpu_has_one(values: list[float]) -> None:
    for bins in (as_intended(values), as_shipped(values)):
        assert len(bins.labels) == len(values)
        assert bins.levels.tolist() == sorted(bins.levels.tolist())
        assert set(bins.labels.tolist()) == set(range(len(bins.levels)))
        order = np.argsort(values, kind="stable")
        assert bins.labels[order].tolist() == sorted(bins.labels.tolist())


def test_lxv_is_sorted_by_product_and_stable() -> None:
    assert lxv([0.9, 1.0, 2.6], 1.7) == [
        (0.9, True, 0.9),
        (1.0, True, 1.0),
        (0.9, False, 1.7 * 0.9),
        (1.0, False, 1.7),
        (2.6, True, 2.6),
        (2.6, False, 1.7 * 2.6),
    ]
    assert [(level, within) for level, within, _ in lxv([1.1, 1.0, 1.1], 1.0)] == [
        (1.0, True), (1.0, False), (1.1, True), (1.1, False),
    ]  # fmt: skip


@given(st.lists(st.floats(0.5, 3.0), max_size=20), st.floats(1.0, 5.0))
def test_lxv_holds_each_level_twice(levels: list[float], penalty: float) -> None:
    found = lxv(levels, penalty)
    assert len(found) == 2 * len(set(levels))
    assert [p for _, _, p in found] == sorted(p for _, _, p in found)
    assert all(p == (level if within else penalty * level) for level, within, p in found)
