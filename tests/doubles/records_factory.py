# SPDX-License-Identifier: MIT
"""Synthetic records for tests: a cluster with known true slowdowns, measured with known noise."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_pal.variability.classify import Classification, classify_sweeps
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record, Result
from slurm_pal.variability.runs import sweeps

NOW_S = 1_800_000_000.0
DAY_S = 86400.0
BENCHMARK = {"A": "gemm_bf16", "B": "tblock", "C": "hbm_triad", "": "pcie_h2d"}


def record(
    uuid: str = "GPU-0",
    node: str = "n1",
    index: int = 0,
    slowdown: float = 1.0,
    *,
    sensitivity: str = "A",
    ts: float = NOW_S - 3600.0,
    sweep: str = "s1",
    run_id: str = "",
    unit: str = "TFLOP/s",
    steady: bool = True,
    ci95_pct: float = 0.05,
    cv_pct: float = 0.1,
    telemetry: Mapping[str, Any] | None = None,
    flags: Sequence[str] = (),
    valid: bool = True,
    bench: str = "",
    model: str = "Emu V100",
    **changes: Any,  # noqa: ANN401 - fields of GpuInfo, EnvInfo and BenchInfo
) -> Record:
    """One record; `slowdown` becomes a throughput of 250 / slowdown (or a time of 250 * slowdown)."""
    name = bench or BENCHMARK[sensitivity]
    value = 250.0 * slowdown if unit in ("s", "ms") else 250.0 / slowdown
    made = Record(
        run_id=run_id or f"{ts:.3f}-{sweep}-{uuid}-{name}",
        sweep_id=sweep,
        ts_start=ts - 60.0,
        ts_end=ts,
        cluster="lab",
        node_name=node,
        host=node,
        slurm_job_id=7,
        gpu=GpuInfo(uuid=uuid, vendor="emu", model=model, slurm_index=index, vbios="1.0", mem_bytes=16 * 2**30),
        env=EnvInfo("550.1", "emu", "1", power_limit_w=300.0, default_power_limit_w=300.0),
        bench=BenchInfo(name, sensitivity, 1, "hash", "bf16", "8192"),
        result=Result(value, unit, 20, 0.75, 0.1, cv_pct, ci95_pct, 15.0, steady, "ci"),
        telemetry=dict(telemetry or {}),
        flags=tuple(flags),
        valid=valid,
    )
    for part in ("gpu", "env", "bench"):
        info = getattr(made, part)
        mine = {k: v for k, v in changes.items() if hasattr(info, k)}
        made = replace(made, **{part: replace(info, **mine)})
    return made


def uuid_of(position: int) -> str:
    """A UUID whose order is not the order of the slots."""
    return f"GPU-{random.Random(position).getrandbits(48):012x}"


def truth(gpus: int, seed: int = 1, sd: float = 0.02, outliers: Sequence[float] = ()) -> dict[str, list[float]]:
    """True slowdowns by sensitivity class: class A spread by `sd`, B a third of it, C by 0.05 %.

    The last GPUs are slow by the factors in `outliers`, for class A.
    """
    draw = random.Random(seed)
    a = [1.0 + draw.gauss(0.0, sd) for _ in range(gpus)]
    b = [1.0 + 0.35 * (x - 1.0) + draw.gauss(0.0, sd / 4) for x in a]
    c = [1.0 + draw.gauss(0.0, 0.0005) for _ in a]
    for i, factor in enumerate(outliers):
        a[gpus - 1 - i] = factor
    return {"A": a, "B": b, "C": c}


def sweep(
    true: Mapping[str, Sequence[float]],
    sweep_id: str = "s1",
    *,
    ts: float = NOW_S - 3600.0,
    noise: float = 0.0005,
    seed: int = 7,
    per_node: int = 4,
    only: Iterable[int] | None = None,
    **changes: Any,  # noqa: ANN401 - passed to `record`
) -> list[Record]:
    """Records of one sweep over GPUs 0..n-1 (or `only` some), `per_node` to a node."""
    draw = random.Random(f"{seed}-{sweep_id}")
    chosen = None if only is None else set(only)
    made: list[Record] = []
    for sensitivity, values in true.items():
        for i, value in enumerate(values):
            measured = value * (1.0 + draw.gauss(0.0, noise))
            if chosen is None or i in chosen:
                place = {"uuid": uuid_of(i), "node": f"n{i // per_node + 1:04d}", "index": i % per_node}
                place |= {"slowdown": measured, "sensitivity": sensitivity, "ts": ts + i / 1000, "sweep": sweep_id}
                made.append(record(**{**place, **changes}))
    return made


def classify(records: Iterable[Record], now_s: float, params: Params | None = None) -> Classification:
    """Every GPU seen within the retention horizon, as of `now_s` (Unix s)."""
    params = params or Params()
    return classify_sweeps(sweeps(records, now_s, params), now_s, params)
