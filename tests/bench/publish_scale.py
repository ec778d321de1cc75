# SPDX-License-Identifier: MIT
"""What a publication costs in time and memory, by the number of nodes: records of sweeps every two weeks for 180 days.

    python tests/bench/publish_scale.py [--nodes 125 250 500] [--benchmarks 11]

Nodes of 8 GPUs, made-up records in a database in a temporary directory: levels 2 % apart in class A, each measured
again within 0.1 %. `first` is a publication that reads all records, as the first one of a new version does; `next`
is one during the newest sweep, when older ones are known. Each runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from slurm_pal.base.config import Config
from slurm_pal.store.database import open_database
from slurm_pal.store.publish import publish
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record, Result

GPUS_PER_NODE, SWEEPS, EVERY_S = 8, 12, 14 * 86400.0
NAMES = (
    ("gemm_bf16", "A"), ("gemm_tf32", "A"), ("gemm_fp32", "A"), ("tblock", "B"), ("hbm_triad", "C"), ("hbm_copy", "C"),
    ("pcie_h2d", ""), ("pcie_d2h", ""), ("launch_latency", ""), ("p2p", ""), ("allreduce", ""),
)  # fmt: skip
TELEMETRY = {
    "sm_clk_mhz": {"p5": 1350.0, "p50": 1360.0, "p95": 1380.0}, "power_w": {"p5": 290.0, "p50": 297.0, "p95": 300.0},
    "temp_c": {"start": 60.0, "p50": 64.0, "end": 65.0}, "duty": {"power_cap": 1.0, "sw_thermal": 0.0}, "hz": 10.0,
}  # fmt: skip


def records(nodes: int, benchmarks: int, sweep: int, now_s: float, rng: random.Random) -> Iterator[Record]:
    at_s = now_s - (SWEEPS - 1 - sweep) * EVERY_S - nodes  # the newest sweep ends now
    env = EnvInfo("550.1", "torch", "1", power_limit_w=300.0, default_power_limit_w=300.0)
    for node in range(nodes):
        for k in range(GPUS_PER_NODE):
            gpu = GpuInfo(f"GPU-{node:05d}-{k}", "nvidia", "H100", k, vbios="1", mem_bytes=80 * 2**30)
            for name, kind in NAMES[:benchmarks]:
                end_s = at_s + node
                level = random.Random(f"{node}-{k}-{name}").gauss(1.0, 0.02 if kind == "A" else 0.001)
                value = 250.0 * level * rng.gauss(1.0, 0.001)
                yield Record(
                    run_id=f"{end_s:.0f}-{node}-{k}-{name}", sweep_id=f"s{sweep}", ts_start=end_s - 30, ts_end=end_s,
                    cluster="bench", node_name=f"n{node}", host=f"n{node}", slurm_job_id=1, gpu=gpu, env=env,
                    bench=BenchInfo(name, kind, 1, "hash", "bf16", "8192"),
                    result=Result(value, "GB/s", 20, 0.75, 0.1, 0.1, 0.05, 15.0, True, "ci"), telemetry=TELEMETRY,
                )  # fmt: skip


def published(place: str, now_s: float) -> dict[str, float]:
    """What one publication costs this process."""
    config = Config()
    for name, value in (("state_dir", place), ("snapshot", f"{place}/snapshot"), ("gpus", f"{place}/gpus.txt")):
        config.set("paths", name, value, "bench")
    began_s = time.process_time()
    publish(config, now_s)
    rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu_s": round(time.process_time() - began_s, 1), "rss_mib": round(rss_mib)}


def one(nodes: int, benchmarks: int) -> None:
    rng, now_s = random.Random(nodes), time.time()
    with tempfile.TemporaryDirectory() as place:
        with open_database(place, write=True) as database:
            for sweep in range(SWEEPS):
                database.insert(records(nodes, benchmarks, sweep, now_s, rng), now_s)
        count = nodes * GPUS_PER_NODE * benchmarks * SWEEPS
        told: dict[str, object] = {"nodes": nodes, "records": count}
        for which in ("first", "next"):
            command = [sys.executable, "-P", os.path.abspath(__file__), "--publish", place, str(now_s)]
            told[which] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[125, 250, 500])
    parser.add_argument("--benchmarks", type=int, default=len(NAMES))
    parser.add_argument("--publish", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.publish:
        print(json.dumps(published(args.publish[0], float(args.publish[1]))))
        return
    for nodes in args.nodes:
        one(nodes, args.benchmarks)


if __name__ == "__main__":
    main()
