"""What the report of a site's GPUs costs in CPU time and memory: `pal report`, its page, the map in the terminal.

    python tests/bench/report_scale.py [--nodes 125 1250] [--sweeps 2]

Nodes of 8 GPUs, made-up records of three benchmarks a GPU, classified as `publish` does it. Each size runs in a process
of its own. The records are made in memory: reading them from the database comes on top.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from slurm_pal.report.inventory import GpuRow
from slurm_pal.variability.classify import classify
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record, Result

GPUS_PER_NODE, EVERY_S, NOW_S = 8, 14 * 86400.0, 1_800_000_000.0
BENCHMARKS = {"gemm_bf16": ("A", 0.02), "tblock": ("B", 0.007), "hbm_triad": ("C", 0.0005)}  # class, spread of the GPUs
NOISE = 0.0005
T = TypeVar("T")


def records(nodes: int, sweeps: int) -> list[Record]:
    """By time; each GPU is as fast in every sweep, but for noise."""
    env = EnvInfo("550.1", "torch", "1", power_limit_w=300.0, default_power_limit_w=300.0)
    found = []
    for sweep in range(sweeps):
        draw = random.Random(sweep)
        for node in range(nodes):
            end_s = NOW_S - (sweeps - sweep) * EVERY_S + node
            for k in range(GPUS_PER_NODE):
                gpu = GpuInfo(f"GPU-{node:05d}-{k}", "nvidia", "H100", k, vbios="1", mem_bytes=80 * 2**30)
                for name, (kind, spread) in BENCHMARKS.items():
                    slowdown = random.Random(f"{gpu.uuid} {name}").gauss(1.0, spread)
                    value = 250.0 / (slowdown * draw.gauss(1.0, NOISE))
                    sensors = {"power_w": 297.0, "temp_c": draw.gauss(65.0, 4.0), "sm_clk_mhz": 1365.0 / slowdown}
                    found.append(
                        Record(
                            run_id=f"{end_s:.0f}-{node}-{k}-{name}",
                            sweep_id=f"s{sweep}",
                            ts_start=end_s - 30,
                            ts_end=end_s,
                            cluster="bench",
                            node_name=f"n{node:04d}",
                            host="",
                            slurm_job_id=1,
                            gpu=gpu,
                            env=env,
                            bench=BenchInfo(name, kind, 1, "hash", "bf16", "8192"),
                            result=Result(value, "TFLOP/s", 20, 0.75, 0.1, 0.1, 0.05, 15.0, True, "ci"),
                            telemetry={sensor: {"p50": x} for sensor, x in sensors.items()},
                        )
                    )
    return found


def rows_of(found: list[Record]) -> list[GpuRow]:
    """What `pal gpus` shows after publishing."""
    return [
        GpuRow(g.node, g.slot, g.uuid, g.model, g.slowdown, {c: f"v{n}" for c, n in g.variability_class.items()},
               NOW_S - g.measured_s, None, tuple(sorted(g.flags)))
        for g in classify(found, NOW_S).gpus
    ]  # fmt: skip


def timed(figures: dict[str, float], what: str, done: Callable[[], T]) -> T:
    start = time.process_time()
    found = done()
    figures[f"{what}_s"] = round(time.process_time() - start, 2)
    return found


def one(nodes: int, sweeps: int) -> dict[str, float]:
    from slurm_pal.report.gpus.heatmap import printed, render
    from slurm_pal.report.gpus.page import page
    from slurm_pal.report.gpus.site import site
    from slurm_pal.report.gpus.text import text

    found = records(nodes, sweeps)
    rows = rows_of(found)
    figures: dict[str, float] = {"gpus": len(rows), "records": len(found)}
    newest = timed(figures, "text_site", lambda: site(rows, found, NOW_S, Params(), sweeps=1))
    timed(figures, "text", lambda: text(newest))
    all_of_it = timed(figures, "page_site", lambda: site(rows, found, NOW_S, Params()))
    html = timed(figures, "page", lambda: page(all_of_it))
    timed(figures, "map", lambda: printed(render(rows, "A", 120), colored=True))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return figures | {"page_mb": round(len(html.encode()) / 1e6, 2), "peak_mib": peak_kib // 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[125, 1250])
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(one(chosen.one, chosen.sweeps)))
        return
    for nodes in chosen.nodes:
        argv = [sys.executable, "-P", __file__, "--one", str(nodes), "--sweeps", str(chosen.sweeps)]
        subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
