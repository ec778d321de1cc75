# SPDX-License-Identifier: MIT
"""Slowdowns and the figures of spread."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.spread import icc, measure, slowdowns


@given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=40))
def test_median_gpu_is_one_and_units_agree(times: list[float]) -> None:
    slow = slowdowns(times, is_time=True)
    assert float(np.median(slow)) == pytest.approx(1.0)
    if len(times) % 2:
        # With an odd number of GPUs the median is one of them, so both units say the same.
        assert slowdowns([1 / t for t in times], is_time=False).tolist() == pytest.approx(slow.tolist())


def test_slower_is_larger_in_both_units() -> None:
    assert slowdowns([100.0, 110.0, 90.0], is_time=True).tolist() == pytest.approx([1.0, 1.1, 0.9])
    assert slowdowns([100.0, 50.0, 200.0], is_time=False).tolist() == pytest.approx([1.0, 2.0, 0.5])


def test_icc_is_one_without_noise_and_low_without_gpus() -> None:
    assert icc([np.array([1.0, 1.0]), np.array([2.0, 2.0])]) == pytest.approx(1.0)
    assert icc([np.array([1.0, 2.0]), np.array([1.0, 2.0])]) < 0
    assert math.isnan(icc([np.array([1.0, 2.0])]))


def test_figures_of_a_small_group() -> None:
    found = measure({"a": [99.0, 101.0], "b": [110.0, 110.0], "c": [90.0, 90.0], "none": []})
    assert (found.gpus, found.runs_per_gpu) == (3, 2.0)
    assert found.slowest == pytest.approx(1.1)
    assert found.whisker == pytest.approx(0.2)
    assert found.within_cv_pct == pytest.approx(0.0)


RUNS = st.lists(st.lists(st.floats(1.0, 1e3), max_size=12), min_size=1, max_size=12).filter(any)


@given(RUNS)
def test_figures_are_those_of_each_gpu_by_itself(runs: list[list[float]]) -> None:
    """By the standard library; GPUs of different numbers of runs stand in any order."""
    found = measure({str(i): own for i, own in enumerate(runs)})
    known = [own for own in runs if own]
    medians = [statistics.median(own) for own in known]
    middle = statistics.median(medians)
    assert found.slowest == pytest.approx(max(medians) / middle)
    assert found.between_sd_pct == pytest.approx(100 * statistics.pstdev(m / middle for m in medians), abs=1e-9)
    cvs = [100 * statistics.stdev(own) / statistics.fmean(own) for own in known if len(own) > 1]
    assert math.isnan(found.within_cv_pct) if not cvs else found.within_cv_pct == pytest.approx(statistics.median(cvs))


def test_no_repeats_have_no_icc_and_no_run_is_refused() -> None:
    assert math.isnan(measure({"a": [1.0], "b": [2.0]}).icc)
    with pytest.raises(ValueError, match="no run"):
        measure({"a": []})
