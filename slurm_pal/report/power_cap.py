# SPDX-License-Identifier: MIT
"""Models whose class A was measured below the power cap, and models on which A and B are one class, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base.hostlist import fold
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.table import counted
from slurm_pal.variability.regime import NOT_CAPPED, one_class

PRODUCTS = "gemm_bf16,gemm_bf16_cublas,gemm_fp16,gemm_tf32,gemm_fp32"
LONGEST_LIST = 60  # characters of a host list


class PowerFinding(NamedTuple):
    """What is to be known about one model; `cure` is "" where nothing is wrong."""

    model: str
    text: str
    cure: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.text}: {self.cure}" if self.cure else self.text


def power_findings(rows: Iterable[GpuRow], met_cap: Mapping[str, Mapping[str, float]]) -> list[PowerFinding]:
    """By model; `met_cap` is the snapshot's. Those to be cured come first."""
    by_model: dict[str, list[GpuRow]] = {}
    for row in rows:
        if "A" in row.slowdown:
            by_model.setdefault(row.model, []).append(row)
    below = [_below(model, gpus) for model, gpus in sorted(by_model.items())]
    same = [
        PowerFinding(model, f"{model}: A and B are one class here, {why}")
        for model in sorted(by_model)
        if (why := one_class(met_cap.get(model, {})))
    ]
    return [*(found for found in below if found is not None), *same]


def _below(model: str, gpus: list[GpuRow]) -> PowerFinding | None:
    mine = [row for row in gpus if NOT_CAPPED in row.flags]
    if not mine:
        return None
    who = f"on {len(mine)} of {counted(len(gpus), 'GPU')}" if len(mine) < len(gpus) else f"on all {len(gpus)} GPUs"
    text = f"{model}: class A was measured below the power cap {who}; GPUs differ only at the cap"
    names = fold(sorted({row.node for row in mine}))
    where = f" -w {names}" if len(mine) < len(gpus) and len(names) <= LONGEST_LIST else ""
    cure = f"pal-profile run{where} --bench {PRODUCTS}: what meets it counts; or pal.toml: [profile] backend = 'torch'"
    return PowerFinding(model, text, cure)
