# SPDX-License-Identifier: MIT
"""How much the blocks of a benchmark scatter, by their length: one long run of short blocks on a hot GPU, cut anew.

    python tests/bench/block_lengths.py [--seconds 40] [--fine 0.05] [--json FILE]

For each length, consecutive short blocks are joined to blocks of that length; the scatter is the standard deviation
over the mean of these. So all lengths are compared on one card in one run, and on the same seconds of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

BENCHES = "gemm_bf16,gemm_tf32,gemm_fp32,tblock,hbm_triad"
LENGTHS_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
HEAT_S = 15.0


def joined(times: Sequence[float], length_s: float) -> list[float]:
    """Mean time of a short block in each block of about `length_s`."""
    size = max(1, round(length_s / statistics.median(times)))
    return [statistics.fmean(times[at : at + size]) for at in range(0, len(times) - size + 1, size)]


def scatter(times: Sequence[float]) -> dict[str, float]:
    """Scatter in % by block length in s; a length with fewer than five blocks has none."""
    rows = {}
    for length_s in LENGTHS_S:
        blocks = joined(times, length_s)
        if len(blocks) >= 5 and length_s >= 0.9 * statistics.median(times):
            rows[f"{length_s:g}"] = round(100 * statistics.stdev(blocks) / statistics.fmean(blocks), 3)
    return rows


def main() -> None:
    from slurm_pal.profiling.node import binding
    from slurm_pal.profiling.node.backends import open_backend, resolve
    from slurm_pal.profiling.node.benchmarks import select
    from slurm_pal.profiling.node.runner import StopRules, block_size

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--fine", type=float, default=0.05)
    parser.add_argument("--bench", default=BENCHES)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--registry", default="")
    parser.add_argument("--node", default=os.uname().nodename)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    backend = open_backend(resolve(args.backend, os.environ, args.registry))
    device = backend.devices(args.node, (0,))[0]
    binding.bind(device)
    binding.show(device, ())
    watch = backend.telemetry.watch(device)
    raw: dict[str, object] = {"model": device.model, "uuid": device.uuid, "backend": backend.name, "runs": []}
    hot = False
    for spec in select(args.bench):
        kernel = backend.prepare(device, spec)
        n, _ = block_size(kernel, StopRules(block_s=args.fine))
        spent_s = 0.0
        while spent_s < (HEAT_S / 3 if hot else HEAT_S):
            spent_s += kernel.run_block(n)
        hot = True
        watch.take()
        times = list[float]()
        while sum(times) < args.seconds:
            times.append(kernel.run_block(n))
        looks = watch.take()
        kernel.close()
        row = {
            "bench": spec.id,
            "value": round(spec._replace(work=kernel.work).value(n * len(times), sum(times)), 2),
            "block_s": round(statistics.median(times), 4),
            "scatter_pct": scatter(times),
            "clock_mhz": [look.sm_clk_mhz for look in looks],
            "power_w": [look.power_w for look in looks],
            "times": [float(f"{seconds:.6g}") for seconds in times],
        }
        raw["runs"] = [*raw["runs"], row]  # type: ignore[misc]
        shown = {key: row[key] for key in ("bench", "value", "block_s", "scatter_pct")}
        print(json.dumps(shown), flush=True)
        if args.json:
            args.json.write_text(json.dumps(raw))
    watch.close()


if __name__ == "__main__":
    sys.exit(main())
