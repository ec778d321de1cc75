# SPDX-License-Identifier: MIT
"""A made-up site for the tests of pictures and reports: GPUs with known slowdowns, sensors, and two sweeps."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from slurm_pal.report.gpus.course import SweepChange, steps
from slurm_pal.report.gpus.gpu_report import GpuReport, gpu_report
from slurm_pal.report.inventory import GpuRow
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import sweeps

from .records_factory import DAY_S, NOW_S, classify, sweep, truth


def records(gpus: int = 48, sweeps: int = 2, seed: int = 3) -> list[Record]:
    """Two GPUs are slow; clocks fall with class A slowdown, power is the same for all."""
    true = truth(gpus, seed=seed, outliers=[1.2, 1.1] if gpus > 8 else [])
    found = []
    for number in range(sweeps):
        ts = NOW_S - DAY_S * (1 + 14 * (sweeps - 1 - number))
        found += sweep(true, f"s{number}", ts=ts, noise=0.0008, seed=number)
    return [replace(r, telemetry=sensors(r)) for r in found]


def sensors(record: Record) -> dict[str, Mapping[str, float]]:
    draw = random.Random(record.run_id)
    slowdown = 250.0 / record.result.value
    clock = 1365.0 / slowdown if record.bench.sensitivity_class == "A" else 1530.0
    return {
        "power_w": {"p50": 297.0 + draw.gauss(0, 1)},
        "temp_c": {"p50": 65.0 + draw.gauss(0, 4)},
        "sm_clk_mhz": {"p50": clock},
    }


def rows_of(found: Sequence[Record], now_s: float = NOW_S) -> list[GpuRow]:
    """The rows of the inventory after publishing these records, without Slurm."""
    return [
        GpuRow(
            node=g.node,
            gpu_index=g.slot,
            uuid=g.uuid,
            model=g.model,
            slowdown=g.slowdown,
            variability_class={c: f"v{n}" for c, n in g.variability_class.items()},
            age_s=now_s - g.measured_s if g.measured_s else None,
            in_use=None,
            flags=tuple(sorted(g.flags)),
        )
        for g in classify(found, now_s).gpus
    ]


def by_time(found: Sequence[Record]) -> list[Record]:
    """As the database gives them."""
    return sorted(found, key=lambda r: (r.ts_end, r.run_id))


def steps_of(
    found: Sequence[Record], present: Collection[str] | None = None, now_s: float = NOW_S
) -> list[SweepChange]:
    """What changed in all sweeps."""
    return steps(sweeps(found, now_s, Params()), Params(), present)


def site_of(found: Sequence[Record], now_s: float = NOW_S, uuid: str = "") -> GpuReport:
    rows = rows_of(found, now_s)
    changed = steps_of(found, {row.uuid for row in rows}, now_s)
    return gpu_report(rows, by_time(found), changed, now_s, Params(), "lab", uuid=uuid)
