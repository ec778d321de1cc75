"""Warm-up and stop rules, statistics, telemetry: on scripted kernels, in device time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.profiling import devices, runner, telemetry
from slurm_pal.profiling.benchmarks import BENCHMARKS, method_hash, select
from slurm_pal.profiling.devices import Counters, DeviceError, Sample, Static
from slurm_pal.profiling.runner import QUICK, Rules, measure

GEMM = BENCHMARKS[0]
LAUNCH_S = 0.005


class Scripted:
    """A kernel whose launch time is a function of the device time so far."""

    work, unit = GEMM.work, GEMM.unit

    def __init__(
        self, launch_s: Callable[[float], float], temp_c: Callable[[float], float | None] = lambda t: 65.0
    ) -> None:
        self.clock_s = 0.0
        self.launches = 0
        self._launch_s, self._temp_c = launch_s, temp_c

    def run_block(self, n: int) -> float:
        seconds = n * self._launch_s(self.clock_s)
        self.clock_s += seconds
        self.launches += n
        return seconds

    def sample(self) -> Sample:
        return Sample(self.clock_s, temp_c=self._temp_c(self.clock_s))


def wobble(size: float) -> Callable[[float], float]:
    """Launch times of constant mean whose neighbours are unrelated."""
    draw = np.random.default_rng(1)
    return lambda t: LAUNCH_S * (1 + size * draw.standard_normal())


def test_a_steady_device_stops_at_the_minimum_times() -> None:
    kernel = Scripted(wobble(0.0003))
    found = measure(kernel, GEMM, kernel.sample)
    result = found.result
    assert result.stop_reason == "ci" and result.steady and found.flags == ()
    assert 15.0 <= result.warmup_s < 17.0
    assert 10.0 <= sum(GEMM.work / 1e12 / v for v in result.samples) * round(0.75 / LAUNCH_S) < 11.5
    assert 0.5 <= result.block_s <= 1.0
    assert result.value == pytest.approx(GEMM.work / 1e12 / LAUNCH_S, rel=1e-3)
    assert result.n_blocks == len(result.samples) == len(found.samples) >= 10


def test_warm_up_waits_for_the_block_time_to_stand_still() -> None:
    # Speed approaches its end with tau = 10 s: slope falls below 0.02 %/s at ln(0.03/10/0.0002)*10 = 27 s.
    kernel = Scripted(lambda t: LAUNCH_S * (1 - 0.03 * math.exp(-t / 10.0)))
    result = measure(kernel, GEMM, kernel.sample).result
    assert result.steady and 27.0 < result.warmup_s < 36.0


def test_warm_up_waits_for_the_temperature_alone() -> None:
    kernel = Scripted(wobble(0.0001), lambda t: 40.0 + min(t, 40.0))
    result = measure(kernel, GEMM, kernel.sample).result
    assert result.steady and 48.0 <= result.warmup_s < 51.0  # ramp ends at 40 s, then at most 1 degC in 10 s
    kernel = Scripted(wobble(0.0001), lambda t: None)
    assert measure(kernel, GEMM, kernel.sample).result.warmup_s < 17.0


def test_a_device_that_never_settles_is_kept_and_flagged() -> None:
    kernel = Scripted(lambda t: LAUNCH_S * (1 + 0.001 * t))
    found = measure(kernel, GEMM, kernel.sample)
    assert not found.result.steady and "unsteady" in found.flags
    assert 60.0 <= found.result.warmup_s < 61.5 and found.result.value > 0


def test_a_noisy_device_is_measured_for_the_longest_time() -> None:
    kernel = Scripted(wobble(0.05))
    found = measure(kernel, GEMM, kernel.sample)
    assert found.result.stop_reason == "max_time" and "noisy" in found.flags
    assert found.result.cv_pct > 0.5 and found.result.ci95_pct > 0.1
    assert 30.0 <= found.result.n_blocks * found.result.block_s < 33.0


def test_power_capped_samples_are_not_discarded() -> None:
    # Halfway through, the clock falls by 30 %: the median is that of all blocks.
    kernel = Scripted(lambda t: LAUNCH_S if t < 20.0 else LAUNCH_S / 0.7)
    result = measure(kernel, GEMM, kernel.sample).result
    assert min(result.samples) == pytest.approx(0.7 * max(result.samples), rel=1e-3)


def test_quick_rules_are_the_same_tests_allowed_to_pass_earlier() -> None:
    kernel = Scripted(wobble(0.0003))
    result = measure(kernel, GEMM, kernel.sample, QUICK).result
    assert 8.0 <= result.warmup_s < 12.0 and result.n_blocks >= 10
    loose = {"warmup_min_s", "measure_min_s"}
    assert {f for f in Rules._fields if getattr(QUICK, f) != getattr(Rules(), f)} == loose


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_time_is_an_error_not_a_result(bad: float) -> None:
    kernel = Scripted(lambda t: bad)
    found = measure(kernel, GEMM, kernel.sample)
    assert found.result.stop_reason == "error" and found.result.value == 0 and "device time" in found.reason


def test_a_device_error_in_the_middle_keeps_its_flag() -> None:
    def launch(t: float) -> float:
        if t > 20.0:
            raise DeviceError("gone\nwith a line break", "xid")
        return LAUNCH_S

    kernel = Scripted(launch)
    found = measure(kernel, GEMM, kernel.sample)
    assert found.result.stop_reason == "error" and found.flags == ("xid",) and found.reason == "gone with a line break"


@pytest.mark.parametrize("launch_s", [1e-6, 0.003, 0.4, 5.0])
def test_blocks_last_half_a_second_to_one_whatever_a_launch_takes(launch_s: float) -> None:
    kernel = Scripted(lambda t: launch_s)
    block_s = measure(kernel, GEMM, kernel.sample).result.block_s
    assert 0.5 <= block_s <= 1.0 or block_s == pytest.approx(launch_s)


values = st.lists(st.floats(0.5, 2.0), min_size=3, max_size=60)


@given(values)
def test_statistics_agree_with_numpy(data: list[float]) -> None:
    array = np.array(data)
    assert runner.median(data) == pytest.approx(np.median(array))
    assert runner.mad(data) == pytest.approx(np.median(np.abs(array - np.median(array))))
    assert runner.cv_pct(data) == pytest.approx(100 * array.std(ddof=1) / array.mean())
    assert telemetry.quantile(data, 0.05) == pytest.approx(np.quantile(array, 0.05))
    at = np.cumsum(array)
    slope = 100 * np.polyfit(at, array, 1)[0] / array.mean()
    assert runner.slope_pct_per_s(list(at), data) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@given(values)
def test_half_width_follows_its_formula(data: list[float]) -> None:
    array = np.array(data)
    centred = array - array.mean()
    total = float((centred**2).sum())
    r1 = min(max(float((centred[1:] * centred[:-1]).sum()) / total, 0.0), 0.99) if total else 0.0
    n_eff = len(data) * (1 - r1) / (1 + r1)
    mad = np.median(np.abs(array - np.median(array)))
    expected = 196 * 1.2533 * 1.4826 * mad / math.sqrt(n_eff) / np.median(array)
    assert runner.half_width_pct(data) == pytest.approx(expected, rel=1e-6)
    assert 0.0 <= runner.lag1(data) <= 0.99


def test_neighbours_that_resemble_each_other_widen_the_interval() -> None:
    walk = [1.0 + 0.01 * math.sin(i / 6) for i in range(40)]
    shuffled = list(np.random.default_rng(3).permutation(walk))
    assert runner.half_width_pct(walk) > 2 * runner.half_width_pct(shuffled)


def test_telemetry_summary_has_quantiles_and_duty() -> None:
    masks = [devices.SW_POWER_CAP] * 9 + [devices.SW_POWER_CAP | devices.SW_THERMAL]
    samples = [Sample(0.5 * i, 1300.0 + i, None, 300.0, 60.0 + i, None, mask) for i, mask in enumerate(masks)]
    table = telemetry.summary(samples, Counters(100.0), Counters(1600.0))
    assert table["hz"] == 2.0 and table["energy_j"] == 1500.0
    assert table["sm_clk_mhz"] == {"p5": 1300.45, "p50": 1304.5, "p95": 1308.55}
    assert table["temp_c"] == {"start": 60.0, "p50": 64.5, "end": 69.0}
    duty = table["duty"]
    assert isinstance(duty, dict) and duty["power_cap"] == 1.0 and duty["sw_thermal"] == 0.1 and duty["idle"] == 0.0
    assert "mem_clk_mhz" not in table
    assert telemetry.summary([Sample(0.0)], Counters(), Counters()) == {}
    assert telemetry.summary([], Counters(), Counters()) == {}


@pytest.mark.parametrize(
    ("mask", "after", "static", "flag"),
    [
        (devices.HW_SLOWDOWN, Counters(), Static("1"), "degraded"),
        (devices.HW_THERMAL, Counters(), Static("1"), "degraded"),
        (devices.POWER_BRAKE, Counters(), Static("1"), "degraded"),
        (devices.SW_THERMAL, Counters(), Static("1"), "thermal_limited"),
        (0, Counters(ecc_uncorrected=1), Static("1"), "ecc"),
        (0, Counters(others=("pid 7",)), Static("1"), "foreign_process"),
        (0, Counters(), Static("1", power_limit_w=250, default_power_limit_w=300), "config_differs"),
        (0, Counters(), Static("1", app_clocks_mhz=1200), "config_differs"),
    ],
)
def test_each_flag_has_its_cause(mask: int, after: Counters, static: Static, flag: str) -> None:
    samples = [Sample(float(i), reasons=mask) for i in range(20)]
    assert telemetry.flags(samples, static, Counters(), after) == (flag,)
    assert telemetry.flags([Sample(0.0, reasons=devices.SW_POWER_CAP)], Static("1"), Counters(), Counters()) == ()


def test_a_short_thermal_event_is_below_its_threshold() -> None:
    samples = [Sample(float(i), reasons=devices.SW_THERMAL if i == 0 else 0) for i in range(30)]
    assert telemetry.flags(samples, Static("1"), Counters(), Counters()) == ()


def test_method_hash_tells_methods_apart() -> None:
    base = method_hash(GEMM, "emu", Static("550.1", power_limit_w=300.0).comparable())
    assert base == method_hash(GEMM, "emu", Static("550.9", power_limit_w=300.0).comparable())  # same driver major
    others = [
        method_hash(GEMM, "torch", Static("550.1", power_limit_w=300.0).comparable()),
        method_hash(GEMM, "emu", Static("551.1", power_limit_w=300.0).comparable()),
        method_hash(GEMM, "emu", Static("550.1", power_limit_w=250.0).comparable()),
        method_hash(GEMM, "emu", Static("550.1", power_limit_w=300.0, libs={"cublas": "12"}).comparable()),
        method_hash(GEMM._replace(version=2), "emu", Static("550.1", power_limit_w=300.0).comparable()),
        method_hash(BENCHMARKS[1], "emu", Static("550.1", power_limit_w=300.0).comparable()),
    ]
    assert len({base, *others}) == 7
    assert method_hash(GEMM._replace(nominal=1.0), "emu", Static("550.1", power_limit_w=300.0).comparable()) == base


def test_benchmarks_cover_the_classes_and_are_chosen_by_id() -> None:
    assert [b.sensitivity_class for b in select("")] == ["A", "B", "C"]
    assert [b.id for b in select("hbm_triad, gemm_bf16")] == ["gemm_bf16", "hbm_triad"]
    with pytest.raises(Exception, match="unknown benchmark 'nope'; there are: gemm_bf16"):
        select("gemm_bf16,nope")
