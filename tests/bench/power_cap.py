# SPDX-License-Identifier: MIT
"""What the power cap decides: emulated models measured by the real code, their scores against the hidden truth.

    python tests/bench/power_cap.py [--nodes 8] [--gpus 8] [--seed 1]

Each row is one sweep of gemm_bf16, gemm_fp32 and tblock in virtual time. "by the cap" is what is published; "by the
table" are the same records without sensors, so that the first benchmark of the table speaks for class A.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from doubles.records_factory import classify

from slurm_pal.emulation.gpus import Registry, draw_registry
from slurm_pal.emulation.models import MODELS
from slurm_pal.profiling.node.bench import measure_node
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.node.emu import EmuBackend
from slurm_pal.profiling.node.measurement import Order, RecordOrigin
from slurm_pal.variability.classify import Classification
from slurm_pal.variability.records import Record, from_json
from slurm_pal.variability.regime import NOT_CAPPED, one_class


def measured(registry: Registry, gpus: int, seed: int) -> list[Record]:
    """One sweep of all nodes."""
    order = Order(select("gemm_bf16,gemm_fp32,tblock"))
    found: list[Record] = []
    for node in registry.nodes:
        origin = RecordOrigin("s1", "bench", node, 1, seed, "emu")
        backend = EmuBackend(registry, seed, 0.0)
        found += map(from_json, measure_node(backend, origin, range(gpus), gpus, order, 120.0).lines)
    return found


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; 0 where one of them is constant."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return 0.0
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def against_truth(found: Classification, registry: Registry) -> str:
    """Classes, rank correlation with the truth, and the largest error of a score among the ordinary GPUs."""
    truth = {gpu.uuid: gpu.slowdown["A"] for gpu in registry.gpus}
    middle = float(np.median([*truth.values()]))
    scores = [gpu.slowdown["A"] for gpu in found.gpus]
    real = [truth[gpu.uuid] / middle for gpu in found.gpus]
    worst = max(abs(a / b - 1.0) for a, b in zip(scores, real, strict=True))
    classes = len({gpu.variability_class["A"] for gpu in found.gpus})
    return f"{classes} | {spearman(scores, real):.3f} | {100 * worst:.1f} %"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Scores of emulated models by the power cap and without it.")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    names = [f"n{i}" for i in range(options.nodes)]
    print("| model | `not_capped` | A and B | classes | rank | worst | classes | rank | worst | settled after |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in MODELS:
        registry = draw_registry(names, options.gpus, options.seed, model)
        records = measured(registry, options.gpus, options.seed)
        now_s = max(record.ts_end for record in records)
        found = classify(records, now_s)
        blind = classify([replace(record, telemetry={}) for record in records], now_s)
        flagged = sum(NOT_CAPPED in gpu.flags for gpu in found.gpus)
        one = "one class" if one_class(found.met_cap[model]) else "two"
        warm = [r.result.warmup_s for r in records if r.bench.id == "gemm_bf16"]
        cells = f"{flagged} of {len(found.gpus)} | {one} | {against_truth(found, registry)}"
        print(f"| {model} | {cells} | {against_truth(blind, registry)} | {min(warm):.0f} to {max(warm):.0f} s |")


if __name__ == "__main__":
    main()
