# SPDX-License-Identifier: MIT
"""Warm-up and stop rules, statistics, telemetry: on scripted kernels, in device time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.profiling.node import runner, telemetry
from slurm_pal.profiling.node.benchmarks import (
    BENCHMARKS,
    GIB,
    by_id,
    fitted,
    method_hash,
    node_device_s,
    on_the_bus,
    select,
)
from slurm_pal.profiling.node.devices import DeviceError, SensorSample, Static
from slurm_pal.profiling.node.runner import StopRules, block_size, measure, rules_for

GEMM = BENCHMARKS[0]
LAUNCH_S = 0.005


class Scripted:
    """A kernel whose launch time is a function of the device time so far, and its sensors."""

    work, unit = GEMM.work, GEMM.unit

    def __init__(
        self, launch_s: Callable[[float], float], temp_c: Callable[[float], float | None] = lambda t: 65.0
    ) -> None:
        self.clock_s = 0.0
        self.launches = 0
        self._launch_s, self._temp_c = launch_s, temp_c
        self._looks: list[SensorSample] = []

    def run_block(self, n: int) -> float:
        seconds = n * self._launch_s(self.clock_s)
        self.clock_s += seconds
        self.launches += n
        self._looks.append(self.sample())
        return seconds

    def sample(self) -> SensorSample:
        return SensorSample(self.clock_s, temp_c=self._temp_c(self.clock_s))

    def take(self) -> tuple[SensorSample, ...]:
        taken, self._looks = tuple(self._looks), []
        return taken

    def close(self) -> None:
        pass


def wobble(size: float) -> Callable[[float], float]:
    """Launch times of constant mean whose neighbours are unrelated."""
    draw = np.random.default_rng(1)
    return lambda t: LAUNCH_S * (1 + size * draw.standard_normal())


def test_a_steady_device_stops_at_the_minimum_times() -> None:
    kernel = Scripted(wobble(0.0003))
    found = measure(kernel, GEMM, kernel)
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
    result = measure(kernel, GEMM, kernel).result
    assert result.steady and 27.0 < result.warmup_s < 36.0


def test_warm_up_waits_for_the_temperature_alone() -> None:
    kernel = Scripted(wobble(0.0001), lambda t: 40.0 + min(t, 40.0))
    result = measure(kernel, GEMM, kernel).result
    assert result.steady and 48.0 <= result.warmup_s < 51.0  # ramp ends at 40 s, then at most 1 degC in 10 s
    kernel = Scripted(wobble(0.0001), lambda t: None)
    assert measure(kernel, GEMM, kernel).result.warmup_s < 17.0


def test_a_device_that_never_settles_is_kept_and_flagged() -> None:
    kernel = Scripted(lambda t: LAUNCH_S * (1 + 0.001 * t))
    found = measure(kernel, GEMM, kernel)
    assert not found.result.steady and "unsteady" in found.flags
    assert 60.0 <= found.result.warmup_s < 61.5 and found.result.value > 0


def test_a_noisy_device_is_measured_for_the_longest_time() -> None:
    kernel = Scripted(wobble(0.05))
    found = measure(kernel, GEMM, kernel)
    assert found.result.stop_reason == "max_time" and "noisy" in found.flags
    assert found.result.cv_pct > 0.5 and found.result.ci95_pct > 0.1
    assert 30.0 <= found.result.n_blocks * found.result.block_s < 33.0


def test_a_clock_that_swings_within_a_second_is_not_noise() -> None:
    """On an H200 blocks of half a second scattered by .6 %, of a second by .27 %: nothing of it is in the value."""
    kernel = Scripted(lambda t: LAUNCH_S * (1 + 0.02 * math.cos(2 * math.pi * t)))
    found = measure(kernel, GEMM, kernel, StopRules(block_s=0.5, slope_pct_per_s=math.inf))
    assert found.flags == () and found.result.cv_pct <= 0.1
    assert runner.cv_pct(found.result.samples) > 0.5


@pytest.mark.parametrize(
    ("blocks", "block_s", "left"),
    [(20, 0.5, 10), (21, 0.5, 10), (10, 0.2, 5), (7, 0.1, 7), (17, 0.75, 17), (3, 0.1, 3)],
)
def test_blocks_are_joined_to_a_second_but_not_to_fewer_than_five(blocks: int, block_s: float, left: int) -> None:
    found = runner.joined([float(n) for n in range(blocks)], block_s)
    size = blocks // left
    assert len(found) == left and found[0] == pytest.approx((size - 1) / 2)


def test_power_capped_samples_are_not_discarded() -> None:
    # Halfway through, the clock falls by 30 %: the median is that of all blocks.
    kernel = Scripted(lambda t: LAUNCH_S if t < 20.0 else LAUNCH_S / 0.7)
    result = measure(kernel, GEMM, kernel).result
    assert min(result.samples) == pytest.approx(0.7 * max(result.samples), rel=1e-3)


def test_looks_of_the_warm_up_do_not_count() -> None:
    kernel = Scripted(wobble(0.0003))
    found = measure(kernel, GEMM, kernel)
    assert min(look.t_s for look in found.samples) > found.result.warmup_s


def test_a_hot_device_takes_what_the_table_says() -> None:
    for spec in select(""):
        if spec.is_health:
            continue
        kernel = Scripted(wobble(0.0003))
        result = measure(kernel, spec, kernel, rules_for(spec, hot=True)).result
        assert result.steady and result.n_blocks >= 10
        assert spec.seconds <= kernel.clock_s < 1.6 * spec.seconds, spec.id
        assert rules_for(spec, hot=False) == StopRules()


def test_a_hot_run_that_drifts_is_unsteady_as_a_long_one_is() -> None:
    spec = by_id("hbm_triad")
    for slope, steady in ((0.0005, True), (0.005, False)):  # of the launch time, per s; 0.2 % in 2 s is the limit
        kernel = Scripted(lambda t, slope=slope: LAUNCH_S * (1 + slope * t))  # type: ignore[misc]
        found = measure(kernel, spec, kernel, rules_for(spec, hot=True))
        assert found.result.steady is steady and ("unsteady" in found.flags) is not steady


@pytest.mark.parametrize("launch_s", [3e-6, 0.01, 0.02])
def test_health_checks_are_short_and_neither_noisy_nor_unsteady(launch_s: float) -> None:
    draw = np.random.default_rng(2)
    for spec in (b for b in BENCHMARKS if b.is_health):
        kernel = Scripted(lambda t: launch_s * (1 + 0.02 * draw.standard_normal()), lambda t: 40.0 + t)
        found = measure(kernel, spec, kernel, rules_for(spec, hot=True))
        assert found.flags == () and found.result.value > 0, spec.id
        assert kernel.clock_s < 1.5 * spec.seconds + 3 * launch_s, spec.id


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_time_is_an_error_not_a_result(bad: float) -> None:
    kernel = Scripted(lambda t: bad)
    found = measure(kernel, GEMM, kernel)
    assert found.result.stop_reason == "error" and found.result.value == 0 and "device time" in found.reason


def test_a_device_error_in_the_middle_keeps_its_flag() -> None:
    def launch(t: float) -> float:
        if t > 20.0:
            raise DeviceError("gone\nwith a line break", "xid")
        return LAUNCH_S

    kernel = Scripted(launch)
    found = measure(kernel, GEMM, kernel)
    assert found.result.stop_reason == "error" and found.flags == ("xid",) and found.reason == "gone with a line break"


@pytest.mark.parametrize("launch_s", [1e-6, 0.003, 0.4, 5.0])
def test_blocks_last_half_a_second_to_one_whatever_a_launch_takes(launch_s: float) -> None:
    kernel = Scripted(lambda t: launch_s)
    block_s = measure(kernel, GEMM, kernel).result.block_s
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
    for like in (299.7, 300.2, 302.4):  # what boards report for one limit
        assert method_hash(GEMM, "emu", Static("550.1", power_limit_w=like).comparable()) == base
    assert method_hash(GEMM._replace(nominal=1.0), "emu", Static("550.1", power_limit_w=300.0).comparable()) == base


def test_benchmarks_are_chosen_by_id_and_come_in_the_order_of_the_table() -> None:
    default = select("")
    assert [b.sensitivity_class for b in default if not b.is_health] == ["A", "A", "A", "B", "C", "C"]
    assert default[0].id == "gemm_bf16" and "gemm_fp64" not in {b.id for b in default}
    short = select("", quick=True)
    assert [b.id for b in short if not b.below_cap] == ["gemm_bf16", "tblock", "hbm_triad"]
    assert [b.id for b in short if b.below_cap] == ["gemm_fp32"] == [b.id for b in short[1:2]]
    assert not any(b.below_cap for b in (*default, *select("gemm_fp32", quick=True)))
    assert [b.id for b in select("hbm_triad, gemm_bf16", quick=True)] == ["gemm_bf16", "hbm_triad"]
    with pytest.raises(Exception, match="unknown benchmark 'nope'; there are: gemm_bf16"):
        select("gemm_bf16,nope")


def test_a_slow_first_launch_does_not_shorten_the_blocks() -> None:
    """A library that loads itself in the first launch: on an H100 blocks came out twelve times too short."""

    class Loading:
        work = 1.0
        launched = 0

        def run_block(self, n: int) -> float:
            first, self.launched = self.launched == 0, self.launched + n
            return n * 0.0127 + (2.0 if first else 0.0)

        def close(self) -> None:
            pass

    n, spent_s = block_size(Loading(), StopRules())
    assert n == round(0.75 / 0.0127)
    assert spent_s < 4.0


def test_the_budget_of_a_node() -> None:
    assert 110.0 <= node_device_s(select(""), 8) <= 120.0
    assert node_device_s(select("", quick=True), 8) == node_device_s(select("gemm_bf16,tblock,hbm_triad"), 8) == 60.0
    assert node_device_s(select("p2p"), 8) - node_device_s((), 8) == pytest.approx(56 * by_id("p2p").seconds)
    assert node_device_s(select("p2p,allreduce"), 1) == node_device_s((), 1)
    gemm, setup_s = select("gemm_bf16"), node_device_s((), 4)
    assert node_device_s(gemm, 4, solo=True) - setup_s == pytest.approx(4 * (node_device_s(gemm, 4) - setup_s))


def test_shapes_follow_the_device() -> None:
    gemm, triad = by_id("gemm_fp32"), by_id("hbm_triad")
    small, large = fitted(gemm, 40 * 10**9), fitted(gemm, 80 * GIB)
    assert (small.shape, small.work) == ("8192x8192x8192", 2.0 * 8192**3)
    assert (large.shape, large.work) == ("16384x16384x16384", 8 * small.work)
    assert large.value(1, 8.0) == pytest.approx(small.value(1, 1.0))
    assert fitted(triad, 80 * GIB) == triad and triad.work == 3.0 * GIB
    assert on_the_bus(by_id("allreduce"), 4).work == pytest.approx(1.5 * GIB)
    assert by_id("launch_latency").value(1000, 0.003) == pytest.approx(3.0)


def test_shape_and_work_of_every_row_agree() -> None:
    """Backends read the shape, values come from the work."""
    from slurm_pal.profiling.node.inputs import array_bytes, matrix

    for row in BENCHMARKS:
        spec = fitted(row, 100 * GIB)
        if spec.id.startswith("gemm_"):
            m, n, k = matrix(spec.shape)
            assert spec.work == 2.0 * m * n * k
        elif spec.unit == "GB/s":
            arrays = {"hbm_triad": 3, "hbm_copy": 2}.get(spec.id, 1)
            assert spec.work == arrays * array_bytes(spec.shape), spec.id
