# SPDX-License-Identifier: MIT
"""From records to observations: weights, groups, environments, wrong clocks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import environment_of, group_of, in_order, number, run_flags, sweeps, weight_of

from ...doubles.records_factory import DAY_S, NOW_S, record

P = Params()


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({}, 1.0),
        ({"steady": False}, 0.25),
        ({"cv_pct": 0.6}, 0.25),
        ({"valid": False}, 0.0),
        ({"flags": ["foreign_process"]}, 0.0),
        ({"flags": ["ecc"]}, 0.0),
        ({"flags": ["xid"]}, 0.0),
        ({"flags": ["host_noise"]}, 1.0),
        ({"flags": ["host_noise"], "sensitivity": "B"}, 0.0),
        ({"flags": ["host_noise"], "sensitivity": ""}, 0.0),
        ({"flags": ["quarantined", "nonsense"]}, 1.0),
    ],
)
def test_weight(changes: dict[str, object], weight: float) -> None:
    made = record(**changes)  # type: ignore[arg-type]
    assert weight_of(made, run_flags(made, NOW_S, P), P) == weight


@pytest.mark.parametrize(
    ("duty", "flags"),
    [
        ({"power_cap": 1.0, "hw_slowdown": 0.005}, set()),
        ({"hw_slowdown": 0.02}, {"degraded"}),
        ({"hw_thermal": 0.02}, {"degraded"}),
        ({"power_brake": 0.5}, {"degraded"}),
        ({"sw_thermal": 0.06}, {"thermal_limited"}),
        ({"sw_thermal": "much"}, set()),
        ([1, 2], set()),
    ],
)
def test_duty_tells_flags(duty: object, flags: set[str]) -> None:
    assert run_flags(record(telemetry={"duty": duty}), NOW_S, P) == flags


def test_flags_that_only_comparison_can_tell_are_not_taken_from_a_record() -> None:
    assert run_flags(record(flags=["quarantined", "outlier", "noisy"]), NOW_S, P) == {"noisy"}


def test_health_checks_may_jitter() -> None:
    assert run_flags(record(cv_pct=5.0), NOW_S, P) == {"noisy"}
    assert run_flags(record(cv_pct=5.0, sensitivity=""), NOW_S, P) == frozenset()


@pytest.mark.parametrize("value", [None, True, "x", float("nan"), {}, []])
def test_telemetry_that_is_no_number(value: object) -> None:
    assert number({"power_w": {"p50": value}}, "power_w", "p50") is None


def test_median_of_the_usable_runs_of_a_sweep() -> None:
    made = [record(slowdown=s, run_id=f"r{s}", ts=NOW_S - 10 - s) for s in (1.0, 1.1, 2.8)]
    made.append(record(slowdown=5.0, run_id="bad", valid=False))
    made.append(record(slowdown=3.0, run_id="shaky", steady=False))
    (sweep,) = sweeps(made, NOW_S, P)
    (seen,) = sweep.observations
    assert seen.speed == pytest.approx(math.log(250 / 1.1))
    assert seen.weight == 1.0
    assert seen.repeat_cv is not None and seen.repeat_cv > 0.1


def test_times_and_throughputs_have_opposite_sense() -> None:
    slow, fast = (record("GPU-1", slowdown=s, unit=u) for s, u in ((1.2, "s"), (1.0, "s")))
    speed = [sweeps([r], NOW_S, P)[0].observations[0].speed for r in (slow, fast)]
    assert speed[1] - speed[0] == pytest.approx(math.log(1.2))


def test_order_and_repetition_do_not_matter() -> None:
    made = [record(f"GPU-{i}", index=i, ts=NOW_S - i, sweep=f"s{i % 2}") for i in range(6)]
    assert sweeps(made, NOW_S, P) == sweeps([*reversed(made), *made], NOW_S, P)


def test_sweeps_come_in_time_order_and_old_ones_are_left_out() -> None:
    made = [record(ts=NOW_S - d * DAY_S, sweep=f"s{d}") for d in (1, 40, 3, 200)]
    assert [s.sweep_id for s in sweeps(made, NOW_S, P)] == ["s40", "s3", "s1"]


def test_a_run_from_the_future_counts_as_now_and_is_flagged() -> None:
    (sweep,) = sweeps([record(ts=NOW_S + 5 * DAY_S)], NOW_S, P)
    assert sweep.ts == sweep.observations[0].ts == sweep.sightings[0].ts == NOW_S
    assert "clock_skew" in sweep.sightings[0].flags
    assert "clock_skew" not in sweeps([record(ts=NOW_S + 60)], NOW_S, P)[0].sightings[0].flags


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other"},
        {"mem_bytes": 32 * 2**30},
        {"config_group": "limit250"},
        {"method_hash": "other"},
        {"bench": "gemm_fp32"},
        {"vendor": "nvidia"},
        {"unit": "ms"},
    ],
)
def test_what_may_not_be_compared_is_another_group(changes: dict[str, object]) -> None:
    assert group_of(record()) != group_of(record(**changes))  # type: ignore[arg-type]


def test_small_differences_of_reported_memory_are_the_same_group() -> None:
    assert group_of(record()) == group_of(record(mem_bytes=16 * 2**30 - 50 * 2**20))


@pytest.mark.parametrize(
    "changes",
    [{"driver": "560.1"}, {"vbios": "2.0"}, {"power_limit_w": 250.0}, {"ecc_mode": "enabled"}, {"mig_mode": "enabled"}],
)
def test_environment_changes(changes: dict[str, object]) -> None:
    old = environment_of(record(ecc_mode="disabled"))
    new = environment_of(record(**{"ecc_mode": "disabled", **changes}))  # type: ignore[arg-type]
    assert new.changed_since(old)


def test_a_minor_driver_or_a_silent_device_changes_nothing() -> None:
    old = environment_of(record())
    assert not environment_of(record(driver="550.99.1")).changed_since(old)
    assert not environment_of(record(power_limit_w=None, vbios="", ecc_mode="unknown")).changed_since(old)


RUNS = st.tuples(
    st.integers(0, 4), st.integers(0, 2), st.sampled_from("AB"), st.floats(-200 * DAY_S, 2 * DAY_S), st.floats(0.9, 1.2)
)


@given(st.lists(RUNS, max_size=30))
def test_sweep_by_sweep_is_the_same_as_all_at_once(runs: list[tuple[int, int, str, float, float]]) -> None:
    """Sweeps may overlap in time, begin before the retention, and come from a clock that is ahead."""
    records = [
        record(f"GPU-{gpu}", sweep=f"s{sweep}", sensitivity=c, ts=NOW_S + at_s, slowdown=slow, run_id=str(k))
        for k, (sweep, gpu, c, at_s, slow) in enumerate(runs)
    ]
    by_sweep: dict[str, list[Record]] = {}
    for one in records:
        by_sweep.setdefault(one.sweep_id, []).append(one)
    starts = sorted((min(one.ts_end for one in mine), name) for name, mine in by_sweep.items())
    batches = ((first_s, next(iter(sweeps(by_sweep[name], NOW_S, P)), None)) for first_s, name in starts)
    assert [*in_order(batches, NOW_S)] == sweeps(records, NOW_S, P)
