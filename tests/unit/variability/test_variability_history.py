# SPDX-License-Identifier: MIT
"""EWMA, jumps and their confirmation, sigma."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.params import Params
from slurm_pal.variability.runs import sweeps
from slurm_pal.variability.track import Track, observe, repeat_sd, sigma

from ...doubles.records_factory import DAY_S, NOW_S, record

P = Params()


def run(*slowdowns: float, step_d: float = 1.0, repeatability: float = 0.0, **changes: object) -> Track:
    """The track of one GPU after one sweep per slowdown."""
    track = None
    start = NOW_S - len(slowdowns) * step_d * DAY_S
    for i, slow in enumerate(slowdowns):
        made = record(slowdown=slow, ts=start + i * step_d * DAY_S, sweep=f"s{i}", **changes)  # type: ignore[arg-type]
        (seen,) = sweeps([made], NOW_S, P._replace(retention_d=1e6))[0].observations
        track = observe(track, seen, P, repeatability)
    assert track is not None
    return track


def held(track: Track) -> float:
    return 250.0 / math.exp(track.speed)


def test_small_changes_are_averaged_in_log_space() -> None:
    assert held(run(1.0, 1.005)) == pytest.approx(math.exp(0.6 * math.log(1.005)))
    assert held(run(1.0, 1.005, steady=False)) == pytest.approx(math.exp(0.15 * math.log(1.005)))


def test_one_slow_run_is_kept_aside_and_then_discarded() -> None:
    jumped = run(1.0, 1.0, 2.8)
    assert held(jumped) == pytest.approx(1.0)
    assert jumped.pending is not None
    back = run(1.0, 1.0, 2.8, 1.001)
    assert back.pending is None
    assert held(back) == pytest.approx(1.001, abs=1e-3)


def test_a_second_run_confirms_and_resets() -> None:
    track = run(1.0, 1.0, 1.3, 1.301)
    assert track.pending is None
    assert held(track) == pytest.approx(1.301)
    assert track.runs == 2


def test_what_departs_follows_from_the_noise_of_the_group() -> None:
    """2 % is far where runs scatter by .12 %, and nothing special where they scatter by .5 %."""
    quiet, noisy = run(1.0, 1.0, 1.02), run(1.0, 1.0, 1.02, repeatability=0.005)
    assert quiet.pending is not None and noisy.pending is None
    assert run(1.0, 1.0, 1.08, repeatability=0.005).pending is not None
    assert run(1.0, 1.02, 1.02, repeatability=0.0002) == run(1.0, 1.02, 1.02), "never less than by default"
    assert noisy.variance > 10 * run(1.0, 1.0, 1.0).variance


def test_a_third_value_starts_the_doubt_anew() -> None:
    track = run(1.0, 1.0, 1.3, 1.6)
    assert held(track) == pytest.approx(1.0)
    assert track.pending is not None and 250 / math.exp(track.pending.speed) == pytest.approx(1.6)


def test_of_two_contradicting_first_runs_the_faster_is_held() -> None:
    assert held(run(2.8, 1.0)) == pytest.approx(1.0)
    assert held(run(1.0, 2.8)) == pytest.approx(1.0)
    assert held(run(2.8, 1.0, 1.0)) == pytest.approx(1.0)
    assert held(run(2.8, 1.0, 2.8)) == pytest.approx(2.8)


def test_a_new_environment_starts_anew() -> None:
    first = run(1.0, 1.0)
    (seen,) = sweeps([record(slowdown=1.4, vbios="2.0", sweep="new")], NOW_S, P)[0].observations
    track = observe(first, seen, P)
    assert held(track) == pytest.approx(1.4)
    assert (track.runs, len(track.recent)) == (1, 1)


def test_sigma_follows_the_figure_at_28_days() -> None:
    track = run(1.0)
    assert sigma(track, track.ts, P) == pytest.approx(P.repeatability)
    assert sigma(track, track.ts + 28 * DAY_S, P) == pytest.approx(P.sigma_28d)
    assert sigma(run(1.0, 1.0, 1.0), NOW_S, P) < sigma(run(1.0), NOW_S, P)
    assert sigma(run(1.0, steady=False), NOW_S - DAY_S, P) == pytest.approx(2 * P.repeatability)


def test_age_widens_what_counts_as_the_same() -> None:
    assert run(1.0, 1.015, step_d=1.0).pending is not None
    assert run(1.0, 1.015, step_d=28.0).pending is None


def test_repeatability_needs_repeats() -> None:
    assert repeat_sd(run(1.0, 1.001)) is None
    assert repeat_sd(run(1.0, 1.001, 0.999)) == pytest.approx(0.001 / 0.838, rel=0.01)  # three mostly seem closer


@given(st.lists(st.floats(0.5, 3.0), min_size=1, max_size=12))
def test_the_held_score_never_leaves_what_was_seen(slowdowns: list[float]) -> None:
    track = run(*slowdowns)
    assert min(slowdowns) * (1 - 1e-9) <= held(track) <= max(slowdowns) * (1 + 1e-9)
    assert len(track.recent) <= P.quarantine_n
    assert math.isfinite(sigma(track, NOW_S, P))
