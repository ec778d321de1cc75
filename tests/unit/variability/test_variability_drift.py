# SPDX-License-Identifier: MIT
"""Steps, drifts and transients in the history of one GPU, and the flags that they become."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.store.snapshot import FLAGS
from slurm_pal.variability import drift
from slurm_pal.variability.drift import of_records
from slurm_pal.variability.finding import DRIFT, STEP, TRANSIENT, UNCONFIRMED, Finding, flagged
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import sweeps
from slurm_pal.variability.track import observe

from ...bench.small_steps import Plan, one
from ...doubles.records_factory import DAY_S, NOW_S, classify, record, sweep

EVERY_D = 7.0
P = Params()


def history(slowdowns: Sequence[float], every_d: float = EVERY_D, noise: float = 0.0, seed: int = 1) -> list[Record]:
    """Runs of one GPU, the last one an hour ago."""
    draw = random.Random(seed)
    first_s = NOW_S - 3600.0 - (len(slowdowns) - 1) * every_d * DAY_S
    return [
        record(slowdown=s * (1.0 + draw.gauss(0.0, noise)), ts=first_s + i * every_d * DAY_S, sweep=f"s{i:03d}")
        for i, s in enumerate(slowdowns)
    ]


def found(slowdowns: Sequence[float], **how: float) -> list[Finding]:
    return of_records(history(slowdowns, **how), NOW_S)  # type: ignore[arg-type]


def test_a_step_is_known_after_its_second_run_and_dated_to_its_first() -> None:
    level = [1.0] * 6 + [1.021]
    (doubt,) = found(level)
    assert doubt.kind == UNCONFIRMED and doubt.change == pytest.approx(0.021, abs=1e-4)
    (step,) = found([*level, 1.021])
    assert step.kind == STEP and step.change == pytest.approx(0.021, abs=1e-4) and step.sigmas > 5
    assert step.since_s == NOW_S - 3600.0 - 7 * DAY_S and step.seen_s == NOW_S - 3600.0


def test_a_transient_is_told_and_is_no_step() -> None:
    (transient,) = found([1.0] * 5 + [2.8, 1.0, 1.0])
    assert transient.kind == TRANSIENT and transient.change == pytest.approx(1.8, abs=1e-3)


def test_a_faster_gpu_has_a_negative_change() -> None:
    (step,) = found([1.0] * 5 + [0.97, 0.97])
    assert step.kind == STEP and step.change == pytest.approx(-0.03, abs=1e-4)


def test_a_slow_drift_is_found_by_its_slope() -> None:
    slow = [1.0 + 0.03 * i / 25 for i in range(26)]  # 3 % in 175 days, never 1 % at once
    (slope,) = found(slow, noise=0.0006)
    assert slope.kind == DRIFT and slope.change == pytest.approx(0.03, abs=0.004)
    assert slope.since_s == NOW_S - 3600.0 - 175 * DAY_S and slope.seen_s == NOW_S - 3600.0


@given(st.integers(0, 10_000))
def test_noise_alone_is_nothing(seed: int) -> None:
    assert found([1.0] * 20, noise=0.0012, seed=seed) == []


def flagged_after(slowdowns: Sequence[float], first: int, noise: float, seed: int) -> int | None:
    """How many runs at the new level, which begins with run `first`, it took until the GPU had the flag of a step."""
    runs = history(slowdowns, noise=noise, seed=seed)
    for n in range(1, len(runs) + 1):
        now_s = runs[n - 1].ts_end
        steps = [f for f in of_records(runs[:n], now_s) if f.kind == STEP and flagged(f, now_s)]
        if steps:
            assert steps[-1].seen_s == now_s, "known from the run that shows it"
            return n - first
    return None


@pytest.mark.parametrize(("noise", "share"), [(0.0012, 0.95), (0.0025, 0.9), (0.005, 0.8)])
def test_a_small_step_becomes_a_flag(noise: float, share: float) -> None:
    """However late it is known, the flag begins then."""
    until = [flagged_after([1.0] * 11 + [1.015] * 11, 11, noise, seed) for seed in range(60)]
    assert sum(n is not None and n >= 2 for n in until) >= share * len(until)


def test_a_noisy_benchmark_gives_no_events() -> None:
    """What counts as far away follows from how much the runs of the group scatter."""
    runs: list[Record] = []
    for week in range(20, -1, -1):
        ts = NOW_S - 3600.0 - week * 7 * DAY_S
        runs += sweep({"A": [1.0 + i / 3000 for i in range(60)]}, f"s{week:02d}", ts=ts, noise=0.005)
    kinds = Counter(f.kind for f in classify(runs, NOW_S).findings)
    assert kinds[STEP] + kinds[DRIFT] <= 1 and kinds[TRANSIENT] <= 3


def test_the_scatter_of_a_gpu_is_its_own_and_its_group_s() -> None:
    draw = random.Random(3)
    runs = [draw.gauss(0.0, 0.004) for _ in range(2000)]
    changes = [b - a for a, b in pairwise(runs)]
    assert drift.scatter(changes, 0.0012, P) == pytest.approx(0.004, rel=0.05)
    assert drift.scatter(changes[:5], 0.0012, P) == 0.0012, "too few"
    assert 0.0015 < drift.scatter(changes[:12], 0.0012, P) < 0.004
    spoilt = [*changes[:20], 1.03, -1.03, 0.05]  # a transient and a step
    assert drift.scatter(spoilt, 0.0012, P) == pytest.approx(drift.scatter(changes[:20], 0.0012, P), rel=0.1)


def test_a_noisy_gpu_among_quiet_ones_has_few_transients() -> None:
    """It was judged by the noise of its group: every other run was called far away."""
    runs: list[Record] = []
    draw = random.Random(0)
    for week in range(20, -1, -1):
        values = [(1.0 + i / 3000) * (1.0 + (draw.gauss(0.0, 0.006) if i < 4 else 0.0)) for i in range(40)]
        runs += sweep({"A": values}, f"s{week:02d}", ts=NOW_S - 3600.0 - week * 7 * DAY_S, noise=0.0005)
    found = [f for f in classify(runs, NOW_S).findings if f.kind == TRANSIENT]
    assert len([f for f in found if f.seen_s > NOW_S - 100 * DAY_S]) <= 4


def test_runs_stay_in_order_of_time() -> None:
    """The slower of two first runs is held back, and taken in once the noise is known to be larger."""
    params, course, track = Params(), drift.Course(), None
    seen = [o for one in sweeps(history([1.012, 1.0, 1.001, 1.0]), NOW_S, params) for o in one.observations]
    for now, noise in zip(seen, (0.0012, 0.0012, 0.005, 0.005), strict=True):
        before, track = track, observe(track, now, params, noise)
        course.follow(before, track, now, noise, params)
    times = list(course.points[::3])
    assert times == sorted(times) and len(times) == 4


@pytest.mark.parametrize(("noise", "again", "share"), [(0.0012, True, 0.95), (0.005, False, 0.8)])
def test_small_steps_of_a_site_are_found_and_few_others(noise: float, again: bool, share: float) -> None:
    found = one(Plan(noise, 7.0, again), 0.015, 100, 0.0, 77)
    assert found.found >= share * found.changed
    assert found.false <= 0.08 * found.same and found.more <= 0.05


def test_a_step_too_small_for_a_jump_is_suspected_first_and_then_confirmed() -> None:
    """0.98 % is believed at once by the score; the first run of it asks for another one."""
    level = [1.0] * 10 + [1.0098]
    (suspected,) = found(level, noise=0.0003)
    assert suspected.kind == UNCONFIRMED and suspected.change == pytest.approx(0.0098, abs=0.001)
    (step,) = found([*level, 1.0098, 1.0098], noise=0.0003)
    assert step.kind == STEP and step.since_s == suspected.since_s - 2 * EVERY_D * DAY_S
    assert found([*level, 1.0, 1.0], noise=0.0003) == []


def test_a_suspected_step_asks_for_another_run() -> None:
    runs: list[Record] = []
    for week in range(10, -1, -1):
        values = {"A": [1.0098 if not week and i == 1 else s for i, s in enumerate([1.0, 1.0, 1.01, 0.99])]}
        runs += sweep(values, f"s{week}", ts=NOW_S - 3600.0 - week * 7 * DAY_S, noise=0.0002)
    now = classify(runs, NOW_S)
    assert ["unconfirmed" in g.flags for g in now.gpus] == [False, True, False, False]
    assert not any("step" in g.flags for g in now.gpus)


def test_daily_runs_of_half_a_year_cost_no_more_than_weekly_ones() -> None:
    params, course, track = Params(), drift.Course(), None
    runs = history([1.0] * 120 + [1.01] * 50, every_d=1.0, noise=0.0012)
    seen = [o for one in sweeps(runs, NOW_S, params) for o in one.observations]
    for now in seen:
        before, track = track, observe(track, now, params)
        course.follow(before, track, now, params.repeatability, params)
        assert len(course.points) <= 3 * drift.MOST_RUNS
    (step,) = course.events
    assert step.kind == STEP and step.change == pytest.approx(0.01, abs=0.002)
    assert abs(step.since_s - seen[120].ts) <= 3 * DAY_S


def test_a_step_is_no_drift() -> None:
    assert [f.kind for f in found([1.0] * 10 + [1.03] * 10, noise=0.0006)] == [STEP]


def test_another_environment_begins_anew() -> None:
    runs = history([1.0] * 5 + [1.1] * 5)
    from dataclasses import replace

    changed = [*runs[:5], *(replace(r, env=replace(r.env, power_limit_w=250.0)) for r in runs[5:])]
    assert of_records(changed, NOW_S) == []


def test_the_slower_of_two_first_runs_is_not_called_a_step_when_it_comes_back() -> None:
    kinds = [f.kind for f in found([1.1, 1.0, 1.1, 1.1])]
    assert STEP not in kinds


def test_health_checks_have_no_findings() -> None:
    runs = [record(sensitivity="", slowdown=s, ts=NOW_S - (9 - i) * DAY_S, sweep=f"s{i}")
            for i, s in enumerate([1.0] * 5 + [1.5] * 4)]  # fmt: skip
    assert of_records(runs, NOW_S) == []


def test_steps_become_flags_of_the_gpu_and_leave_after_a_month() -> None:
    true = {"A": [1.0, 1.0, 1.01, 0.99]}
    runs: list[Record] = []
    for week in range(8, -1, -1):
        values = {"A": [1.03 if week <= 3 and i == 1 else s for i, s in enumerate(true["A"])]}
        runs += sweep(values, f"s{week}", ts=NOW_S - 3600.0 - week * 7 * DAY_S, noise=0.0002)
    now = classify(runs, NOW_S)
    by_slot = {g.slot: g.flags for g in now.gpus}
    assert "step" in by_slot[1] and not any("step" in by_slot[i] for i in (0, 2, 3))
    (finding,) = now.findings
    assert finding.kind == STEP and finding.change == pytest.approx(0.03, abs=0.002)
    later = classify(runs, NOW_S + 20 * DAY_S)
    assert not any("step" in g.flags for g in later.gpus) and later.findings == now.findings
    assert {STEP, DRIFT} <= set(FLAGS) and len(FLAGS) <= 32


@given(st.permutations(range(12)))
def test_the_order_of_the_records_does_not_matter(order: list[int]) -> None:
    runs = history([1.0] * 6 + [1.04] * 3 + [1.0] * 3)
    assert of_records([runs[i] for i in order], NOW_S) == of_records(runs, NOW_S)


@given(st.floats(0.02, 0.5), st.integers(3, 12), st.booleans())
def test_every_large_step_is_found_once_with_its_size(size: float, before: int, faster: bool) -> None:
    level = 1.0 / (1.0 + size) if faster else 1.0 + size
    steps = [f for f in found([1.0] * before + [level] * 4, noise=0.0006) if f.kind == STEP]
    assert len(steps) == 1
    assert math.log1p(steps[0].change) == pytest.approx(math.log(level), abs=0.006)
