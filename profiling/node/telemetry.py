# SPDX-License-Identifier: MIT
"""Sensor samples of a run as the record keeps them: quantiles, duty, and the flags they raise."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TypeVar

from slurm_pal.profiling.node import throttle
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static, Telemetry
from slurm_pal.profiling.node.host import Host, noise
from slurm_pal.variability.power_limit import limit_text

_Count = TypeVar("_Count", int, float)
_DUTIES = {
    "power_cap": throttle.SW_POWER_CAP,
    "sw_thermal": throttle.SW_THERMAL,
    "hw_thermal": throttle.HW_THERMAL,
    "hw_slowdown": throttle.HW_SLOWDOWN,
    "power_brake": throttle.POWER_BRAKE,
    "idle": throttle.IDLE,
}
_SPREADS = {  # field -> digits kept
    "sm_clk_mhz": 2,
    "mem_clk_mhz": 2,
    "power_w": 2,
    "power_avg_w": 2,
    "mem_temp_c": 2,
    "utilisation": 4,
    "dram": 4,
    "tensor": 4,
}
_DEGRADED_DUTY = 0.01  # of hardware slowdown, hardware thermal or power brake
_THERMAL_DUTY = 0.05  # of software thermal
_IDLE_BYTES = 500 * 2**20  # a GPU nobody uses holds less than this
_IDLE_UTILISATION = 0.05
_IDLE_WATCHES = 3  # of a GPU that is busy: starting it takes a few seconds


def summary(samples: Sequence[SensorSample], before: Counters, after: Counters) -> dict[str, object]:
    """The record's `telemetry` table; what the device does not show is left out."""
    table: dict[str, object] = {}
    span_s = samples[-1].t_s - samples[0].t_s if samples else 0.0
    if span_s > 0:
        table["hz"] = round((len(samples) - 1) / span_s, 2)
    for name, digits in _SPREADS.items():
        spread = _spread((getattr(s, name) for s in samples), digits)
        if spread:
            table[name] = spread
    degrees = [s.temp_c for s in samples if s.temp_c is not None]
    if degrees:
        table["temp_c"] = {
            "start": round(degrees[0], 2),
            "p50": round(quantile(degrees, 0.5), 2),
            "end": round(degrees[-1], 2),
        }
    link = {name: value for name in ("gen", "width") if (value := _lowest(samples, f"pcie_{name}")) is not None}
    if link:
        table["pcie"] = link
    shares = duty(samples)
    if shares:
        table["duty"] = shares
    return table | _growth(before, after)


def _growth(before: Counters, after: Counters) -> dict[str, object]:
    """What the counters did between two looks; one that either look lacks is left out."""
    table: dict[str, object] = {}
    energy_j = _grown(before.energy_j, after.energy_j)
    if energy_j is not None:
        table["energy_j"] = round(energy_j, 1)
    slowed = {
        name: round(grown, 3)
        for name, seconds in after.violation_s.items()
        if (grown := _grown(before.violation_s.get(name), seconds)) is not None
    }
    if slowed:
        table["violation_s"] = slowed
    for name in ("ecc_corrected", "ecc_uncorrected", "pcie_replays"):
        more = _grown(getattr(before, name), getattr(after, name))
        if more is not None:
            table[name] = more
    if after.remap_failed is not None:
        table["remap_failed"] = after.remap_failed
    xids = _new_xids(before, after)
    if xids:
        table["xids"] = list(xids)
    return table


def _grown(before: _Count | None, after: _Count | None) -> _Count | None:
    """None where that is unknown: a counter that is smaller now has restarted, as after a reset or an overflow."""
    return None if before is None or after is None or after < before else after - before


def _new_xids(before: Counters, after: Counters) -> tuple[int, ...]:
    return after.xids[len(before.xids) :]


def duty(samples: Sequence[SensorSample]) -> dict[str, float]:
    """Share of the samples in which each throttle reason was given; {} where none is reported."""
    masks = [s.reasons for s in samples if s.reasons is not None]
    if not masks:
        return {}
    return {name: round(sum(1 for m in masks if m & bit) / len(masks), 4) for name, bit in _DUTIES.items()}


def _spread(values: Iterable[float | None], digits: int) -> dict[str, float]:
    known = [v for v in values if v is not None]
    if not known:
        return {}
    return {name: round(quantile(known, q), digits) for name, q in (("p5", 0.05), ("p50", 0.5), ("p95", 0.95))}


def _lowest(samples: Sequence[SensorSample], field: str) -> int | None:
    return min((value for s in samples if (value := getattr(s, field)) is not None), default=None)


def quantile(values: Sequence[float], q: float) -> float:
    """Linearly interpolated quantile, 0 <= q <= 1."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def flags(
    samples: Sequence[SensorSample],
    static: Static,
    before: Counters,
    after: Counters,
    host: tuple[Host, Host] | None = None,
    idle: Sequence[str] = (),
) -> tuple[str, ...]:
    """Flags that sensors and counters raise, by the thresholds in docs/measuring.md.

    `host` is the node before and after the run, `idle` what `preflight` found.
    """
    shares = duty(samples)
    hardware = max((shares.get(name, 0.0) for name in ("hw_slowdown", "hw_thermal", "power_brake")), default=0.0)
    lanes = _lowest(samples, "pcie_width")
    raised = {
        "degraded": hardware > _DEGRADED_DUTY,
        "thermal_limited": shares.get("sw_thermal", 0.0) > _THERMAL_DUTY,
        "ecc": (_grown(before.ecc_uncorrected, after.ecc_uncorrected) or 0) > 0 or bool(after.remap_failed),
        "xid": bool(_new_xids(before, after)),
        "foreign_process": bool(before.others or after.others or idle),
        "config_differs": config_group(static) != "default",
        "host_noise": host is not None and bool(noise(*host)),
        "pcie_link": lanes is not None and static.pcie_max_width is not None and lanes < static.pcie_max_width,
    }
    return tuple(name for name, true in raised.items() if true)


def config_group(static: Static) -> str:
    """Settings that keep a GPU from being compared with its peers; "default" where there are none."""
    parts = []
    if static.app_clocks_mhz is not None:
        parts.append(f"clocks{static.app_clocks_mhz:g}")
    limit, default = limit_text(static.power_limit_w), limit_text(static.default_power_limit_w)
    if limit and default and limit != default:
        parts.append(f"limit{limit}")
    return "+".join(parts) or "default"


def preflight(telemetry: Telemetry, device: DeviceInfo, seconds: float = 2.0) -> tuple[str, ...]:
    """Who is on a GPU that should be idle, one line each; () when nobody is.

    Foreign processes; or much memory in use with no visible process; or a GPU that is busy
    over `seconds` of watching (median, so that what ended just before does not count), and stays so: without
    persistence mode the driver starts the GPU for us, and clearing its memory counts as busy (NVML reference,
    nvmlDeviceGetUtilizationRates). Raises DeviceError when the GPU is lost.
    """
    seen = telemetry.counters(device)
    found = list(seen.others)
    if not found and (seen.used_bytes or 0) > _IDLE_BYTES:
        found.append(f"a process that is not shown ({(seen.used_bytes or 0) // 2**20} MiB before the start)")
    watch, share = (
        telemetry.watch(device),
        0.0,
    )  # one for all looks: with the last user of the GPU its driver stops, too
    try:
        for _ in range(_IDLE_WATCHES):
            time.sleep(seconds)
            busy = [s.utilisation for s in watch.take() if s.utilisation is not None]
            share = quantile(busy, 0.5) if busy else 0.0
            if share <= _IDLE_UTILISATION:
                break
    finally:
        watch.close()
    if share > _IDLE_UTILISATION:
        found.append(f"a process that is not shown (busy {100 * share:.0f} % of the time before the start)")
    return tuple(found)
