# SPDX-License-Identifier: MIT
"""Warm-up, measurement and stop rules: the same on every device.

The runner sees a kernel (`run_block(n) -> seconds of device time`) and a watch over the
sensors, nothing else. All times here are device time, so that an emulated device
with a virtual clock is measured by exactly this code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_pal.base.errors import one_line
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import DeviceError, Kernel, SensorSample, Watch
from slurm_pal.variability.records import Result

MAD_TO_SIGMA = 1.4826  # of a normal distribution
MEDIAN_TO_MEAN = 1.2533  # sqrt(pi / 2): standard error of a median over that of a mean


MIN_JUDGED = 3  # blocks: fewer have no spread worth the name
SCATTER_S = 1.0
"""Scatter is that of blocks joined to this length, s: under the power cap the clock swings with about this period,
and a value, the median of many seconds, does not feel it."""
MIN_JOINED = 5
GROWTH = 8  # of a trial block: a short one says little of a long one


class StopRules(NamedTuple):
    """When a device is warm and when enough has been measured."""

    block_s: float = 0.75  # a block lasts 0.5 to 1 s: one event pair, no per-kernel sync
    warmup_min_s: float = 15.0
    warmup_max_s: float = 60.0
    slope_blocks: int = 10
    slope_pct_per_s: float = 0.02
    rise_c: float = 1.0  # largest temperature rise over `rise_window_s`
    rise_window_s: float = 10.0
    min_blocks: int = 10
    measure_min_s: float = 10.0
    measure_max_s: float = 30.0
    ci_pct: float = 0.1  # wanted 95 % half-width of the median
    cv_pct: float = 0.5  # above this scatter a run is noisy


DRIFT_PCT = 0.2
"""A run that passes the test for steadiness drifts by less than this while it is measured."""


def rules_for(spec: Benchmark, hot: bool) -> StopRules:
    """The rules of one run.

    The first benchmark of a GPU heats it up and has the long warm-up. On a hot device the
    tests are the same, in shorter blocks: ten of them to warm up and ten to measure are
    what `spec.seconds` stands for, and each half may take three times as long. Health
    checks wait neither for heat nor for a narrow interval.
    """
    s = spec.seconds
    if spec.is_health:
        return StopRules(
            block_s=s / 40, warmup_min_s=s / 4, warmup_max_s=s / 4, slope_pct_per_s=math.inf, rise_c=math.inf,
            min_blocks=5, measure_min_s=s / 2, measure_max_s=s * 0.75, cv_pct=math.inf,
        )  # fmt: skip
    if not hot:
        return StopRules()
    return StopRules(
        block_s=s / 20, warmup_min_s=s / 2, warmup_max_s=s * 1.5, slope_pct_per_s=DRIFT_PCT / (s / 2),
        measure_min_s=s / 2, measure_max_s=s * 1.5,
    )  # fmt: skip


class BenchRun(NamedTuple):
    """What one benchmark on one device gave."""

    result: Result
    samples: tuple[SensorSample, ...]  # sensors during the measurement
    flags: tuple[str, ...]
    reason: str = ""  # why it failed, "" when it did not


def measure(kernel: Kernel, spec: Benchmark, watch: Watch, rules: StopRules | None = None) -> BenchRun:
    """Warm up, measure, judge. A device error becomes a result with stop_reason `error`.

    The kernel stays open; its owner closes it.
    """
    rules = rules or StopRules()
    spec = spec._replace(work=kernel.work)  # a kernel may have had to round its array
    try:
        n, spent_s = block_size(kernel, rules)
        warmup_s, steady = _warm_up(kernel, watch, rules, n, spent_s)
        watch.take()  # looks at the warm-up say nothing about the measurement
        times, stop_reason = _blocks(kernel, rules, n)
    except DeviceError as error:
        return failed(spec, error)
    result = summarise(times, n, spec, warmup_s, steady, stop_reason)
    flags = [*([] if steady else ["unsteady"]), *(["noisy"] if result.cv_pct > rules.cv_pct else [])]
    return BenchRun(result, watch.take(), tuple(flags))


def nothing(spec: Benchmark, stop_reason: str) -> Result:
    """The result of a run that gave no value."""
    return Result(0.0, spec.unit, 0, 0.0, 0.0, 0.0, 0.0, 0.0, False, stop_reason)


def failed(spec: Benchmark, error: DeviceError) -> BenchRun:
    """A run that ended in an error of the device."""
    return BenchRun(nothing(spec, "error"), (), (error.flag,) if error.flag else (), one_line(error))


def _timed(kernel: Kernel, n: int) -> float:
    seconds = kernel.run_block(n)
    if not (math.isfinite(seconds) and seconds > 0):
        raise DeviceError(f"a block of {n} launches reported {seconds!r} s of device time")
    return seconds


def block_size(kernel: Kernel, rules: StopRules) -> tuple[int, float]:
    """Launches per block, and the device time spent on finding out.

    The first launch counts for nothing: a library may load or choose its kernel in it. Then the block grows until
    half of its time is seen, not extrapolated.
    """
    n, spent_s = 1, _timed(kernel, 1)
    while True:
        seconds = _timed(kernel, n)
        spent_s += seconds
        wanted = max(1, round(rules.block_s * n / seconds))
        if 2 * seconds >= rules.block_s:
            return wanted, spent_s
        n = min(wanted, GROWTH * n)


def _warm_up(kernel: Kernel, watch: Watch, rules: StopRules, n: int, spent_s: float) -> tuple[float, bool]:
    """Run until block time and temperature are steady; (device seconds, whether they did)."""
    clock_s, times, ends = spent_s, list[float](), list[float]()
    heat: list[tuple[float, float]] = []  # (s, degC)
    while True:
        times.append(_timed(kernel, n))
        clock_s += times[-1]
        ends.append(clock_s)
        temperature = watch.sample().temp_c
        if temperature is not None:
            heat.append((clock_s, temperature))
        if (
            clock_s >= rules.warmup_min_s
            and _flat(ends, times, rules)
            and _rise_c(heat, rules.rise_window_s) <= rules.rise_c
        ):
            return clock_s, True
        if clock_s >= rules.warmup_max_s:
            return clock_s, False


def _flat(ends: Sequence[float], times: Sequence[float], rules: StopRules) -> bool:
    if math.isinf(rules.slope_pct_per_s):
        return True
    if len(times) < rules.slope_blocks:
        return False
    return abs(slope_pct_per_s(ends[-rules.slope_blocks :], times[-rules.slope_blocks :])) < rules.slope_pct_per_s


def slope_pct_per_s(at_s: Sequence[float], times: Sequence[float]) -> float:
    """Least-squares slope of block time over time, in % of the mean block per second."""
    mean_at, mean = sum(at_s) / len(at_s), sum(times) / len(times)
    spread = sum((t - mean_at) ** 2 for t in at_s)
    slope = sum((t - mean_at) * (y - mean) for t, y in zip(at_s, times, strict=True)) / spread
    return 100.0 * slope / mean


def _rise_c(heat: Sequence[tuple[float, float]], window_s: float) -> float:
    """Temperature now minus that of `window_s` ago; 0 for a device without a sensor."""
    if not heat:
        return 0.0
    now_s, now_c = heat[-1]
    before = [c for t, c in heat if t <= now_s - window_s]
    return now_c - (before[-1] if before else heat[0][1])


def _blocks(kernel: Kernel, rules: StopRules, n: int) -> tuple[list[float], str]:
    times: list[float] = []
    clock_s = 0.0
    while True:
        times.append(_timed(kernel, n))
        clock_s += times[-1]
        if len(times) >= rules.min_blocks and clock_s >= rules.measure_min_s and half_width_pct(times) <= rules.ci_pct:
            return times, "ci"
        if clock_s >= rules.measure_max_s and len(times) >= MIN_JUDGED:
            return times, "max_time"


def median(values: Sequence[float]) -> float:
    """The middle value (mean of the two middle ones)."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, not scaled to a sigma."""
    middle = median(values)
    return median([abs(v - middle) for v in values])


def lag1(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation, clipped to [0, 0.99]."""
    mean = sum(values) / len(values)
    total = sum((v - mean) ** 2 for v in values)
    if total == 0:
        return 0.0
    pairs = sum((a - mean) * (b - mean) for a, b in pairwise(values))
    return min(max(pairs / total, 0.0), 0.99)


def half_width_pct(values: Sequence[float]) -> float:
    """95 % half-width of the median, in % of it: 1.96 * 1.2533 * (1.4826 MAD) / sqrt(n_eff).

    Neighbouring blocks resemble each other, so n counts as n (1 - r1) / (1 + r1).
    """
    r1 = lag1(values)
    n_eff = len(values) * (1 - r1) / (1 + r1)
    return 100.0 * 1.96 * MEDIAN_TO_MEAN * MAD_TO_SIGMA * mad(values) / math.sqrt(n_eff) / median(values)


def cv_pct(values: Sequence[float]) -> float:
    """Standard deviation (n - 1) over the mean, in %."""
    mean = sum(values) / len(values)
    return 100.0 * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / mean


def joined(values: Sequence[float], block_s: float) -> list[float]:
    """Means of consecutive blocks (of `block_s` each) that last SCATTER_S together; at least MIN_JOINED where possible.

    What is left over at the end belongs to none.
    """
    size = max(1, min(round(SCATTER_S / block_s), len(values) // MIN_JOINED))
    return [sum(values[at : at + size]) / size for at in range(0, len(values) - size + 1, size)]


def summarise(
    times: Sequence[float], n: int, spec: Benchmark, warmup_s: float, steady: bool, stop_reason: str
) -> Result:
    """Block times (s, of `n` launches each) as a result in the benchmark's unit."""
    values = [spec.value(n, seconds) for seconds in times]
    return Result(
        value=median(values),
        unit=spec.unit,
        n_blocks=len(times),
        block_s=round(median(times), 6),
        mad=mad(values),
        cv_pct=cv_pct(joined(values, median(times))),
        ci95_pct=half_width_pct(values),
        warmup_s=round(warmup_s, 3),
        steady=steady,
        stop_reason=stop_reason,
        samples=tuple(float(f"{v:.7g}") for v in values),
    )
