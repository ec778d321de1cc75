"""Sensor samples of a run as the record keeps them: quantiles, duty, and the flags they raise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_pal.profiling import devices as bits
from slurm_pal.profiling.devices import Counters, Sample, Static

_DUTIES = {
    "power_cap": bits.SW_POWER_CAP,
    "sw_thermal": bits.SW_THERMAL,
    "hw_thermal": bits.HW_THERMAL,
    "hw_slowdown": bits.HW_SLOWDOWN,
    "power_brake": bits.POWER_BRAKE,
    "idle": bits.IDLE,
}
_DEGRADED_DUTY = 0.01  # of hardware slowdown, hardware thermal or power brake
_THERMAL_DUTY = 0.05  # of software thermal


def summary(samples: Sequence[Sample], before: Counters, after: Counters) -> dict[str, object]:
    """The record's `telemetry` table; what the device does not tell is left out."""
    table: dict[str, object] = {}
    span_s = samples[-1].t_s - samples[0].t_s if samples else 0.0
    if span_s > 0:
        table["hz"] = round((len(samples) - 1) / span_s, 2)
    for name in ("sm_clk_mhz", "mem_clk_mhz", "power_w", "mem_temp_c"):
        spread = _spread(getattr(s, name) for s in samples)
        if spread:
            table[name] = spread
    degrees = [s.temp_c for s in samples if s.temp_c is not None]
    if degrees:
        table["temp_c"] = {
            "start": round(degrees[0], 2),
            "p50": round(quantile(degrees, 0.5), 2),
            "end": round(degrees[-1], 2),
        }
    if before.energy_j is not None and after.energy_j is not None:
        table["energy_j"] = round(after.energy_j - before.energy_j, 1)
    shares = duty(samples)
    if shares:
        table["duty"] = shares
    return table


def duty(samples: Sequence[Sample]) -> dict[str, float]:
    """Share of the samples in which each throttle reason was given; {} where none is told."""
    masks = [s.reasons for s in samples if s.reasons is not None]
    if not masks:
        return {}
    return {name: round(sum(1 for m in masks if m & bit) / len(masks), 4) for name, bit in _DUTIES.items()}


def _spread(values: Iterable[float | None]) -> dict[str, float]:
    known = [v for v in values if v is not None]
    if not known:
        return {}
    return {name: round(quantile(known, q), 2) for name, q in (("p5", 0.05), ("p50", 0.5), ("p95", 0.95))}


def quantile(values: Sequence[float], q: float) -> float:
    """Linearly interpolated quantile, 0 <= q <= 1."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def flags(samples: Sequence[Sample], static: Static, before: Counters, after: Counters) -> tuple[str, ...]:
    """Flags that sensors and counters raise, by the thresholds in docs/measuring.md."""
    shares = duty(samples)
    raised: list[str] = []
    if (
        max((shares.get(name, 0.0) for name in ("hw_slowdown", "hw_thermal", "power_brake")), default=0.0)
        > _DEGRADED_DUTY
    ):
        raised.append("degraded")
    if shares.get("sw_thermal", 0.0) > _THERMAL_DUTY:
        raised.append("thermal_limited")
    if (after.ecc_uncorrected or 0) > (before.ecc_uncorrected or 0):
        raised.append("ecc")
    if after.others:
        raised.append("foreign_process")
    if config_group(static) != "default":
        raised.append("config_differs")
    return tuple(raised)


def config_group(static: Static) -> str:
    """Settings that keep a GPU from being compared with its peers; "default" where there are none."""
    parts = []
    if static.app_clocks_mhz is not None:
        parts.append(f"clocks{static.app_clocks_mhz:g}")
    if static.power_limit_w != static.default_power_limit_w:
        parts.append(f"limit{static.power_limit_w or 0:g}")
    return "+".join(parts) or "default"
