# SPDX-License-Identifier: MIT
"""What the commands that read all records cost in CPU time and memory, by the number of nodes: the report, its page.

    python tests/bench/report_scale.py [--nodes 25 100 250] [--sweeps 12] [--benchmarks 11]

Nodes of 8 GPUs, made-up records of a sweep every two weeks, taken in and published; Slurm is not asked. Each command is
a process of its own and reads the database as a user does. `mib` is its peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from slurm_pal.base.config import Config
from slurm_pal.store.database import open_database
from slurm_pal.store.publish import publish
from slurm_pal.variability.records import BenchInfo, EnvInfo, GpuInfo, Record, Result

GPUS_PER_NODE, EVERY_S, NOISE = 8, 14 * 86400.0, 0.0005
BENCHMARKS = (
    ("gemm_bf16", "A", 0.02), ("tblock", "B", 0.007), ("hbm_triad", "C", 0.0005), ("gemm_tf32", "A", 0.02),
    ("gemm_fp32", "A", 0.02), ("hbm_copy", "C", 0.0005), ("pcie_h2d", "", 0.001), ("pcie_d2h", "", 0.001),
    ("launch_latency", "", 0.001), ("p2p", "", 0.001), ("allreduce", "", 0.001),
)  # fmt: skip
"""(name, sensitivity class, spread of the GPUs)"""
COMMANDS = {
    "text": ("report",),
    "page": ("report", "--html", "page.html"),
    "gpu_page": ("report", "--gpu", "GPU-00001-3", "--html", "gpu.html"),
    "evidence": ("evidence", "GPU-00001-3", "-o", "evidence.tar.gz"),
    "map": ("heatmap", "--color", "always"),
}


def records(nodes: int, benchmarks: int, age_s: float, now_s: float) -> Iterator[Record]:
    """Of one sweep; each GPU is as fast in every sweep, but for noise."""
    env = EnvInfo("550.1", "torch", "1", power_limit_w=300.0, default_power_limit_w=300.0)
    draw = random.Random(age_s)
    for node in range(nodes):
        end_s = now_s - age_s - nodes + node
        for k in range(GPUS_PER_NODE):
            gpu = GpuInfo(f"GPU-{node:05d}-{k}", "nvidia", "H100", k, vbios="1", mem_bytes=80 * 2**30)
            for name, kind, spread in BENCHMARKS[:benchmarks]:
                slowdown = random.Random(f"{gpu.uuid} {name}").gauss(1.0, spread)
                value = 250.0 / (slowdown * draw.gauss(1.0, NOISE))
                sensors = {"power_w": 297.0, "temp_c": draw.gauss(65.0, 4.0), "sm_clk_mhz": 1365.0 / slowdown}
                yield Record(
                    run_id=f"{end_s:.0f}-{node}-{k}-{name}", sweep_id=f"s{age_s:.0f}", ts_start=end_s - 30,
                    ts_end=end_s, cluster="bench", node_name=f"n{node:04d}", host=f"n{node:04d}", slurm_job_id=1,
                    gpu=gpu, env=env, bench=BenchInfo(name, kind, 1, "hash", "bf16", "8192"),
                    result=Result(value, "TFLOP/s", 20, 0.75, 0.1, 0.1, 0.05, 15.0, True, "ci"),
                    telemetry={sensor: {"p5": x, "p50": x, "p95": x} for sensor, x in sensors.items()},
                )  # fmt: skip


def cost(place: str, paths: dict[str, str], words: tuple[str, ...]) -> dict[str, float]:
    """CPU time and peak memory of one command."""
    code = "from slurm_pal.cli.start import main; main()"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | {"PATH": "/none", "HOME": place}
    environment |= {f"SLURM_PAL_PATHS_{name.upper()}": path for name, path in paths.items()}
    done = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *words], cwd=place, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    if done.returncode:
        raise SystemExit(f"pal {' '.join(words)} ended with {done.returncode}")
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 1), "mib": used.ru_maxrss // 1024}


def one(nodes: int, sweeps: int, benchmarks: int) -> dict[str, object]:
    now_s, config = time.time(), Config()
    with tempfile.TemporaryDirectory() as place:
        paths = {"state_dir": place, "snapshot": f"{place}/snapshot", "gpus": f"{place}/gpus.txt"}
        for name, path in paths.items():
            config.set("paths", name, path, "bench")
        with open_database(place, write=True) as database:
            for number in reversed(range(sweeps)):
                database.insert(records(nodes, benchmarks, 86400.0 + number * EVERY_S, now_s), now_s)
            publish(config, now_s, database)
        told: dict[str, object] = {"nodes": nodes, "records": nodes * GPUS_PER_NODE * benchmarks * sweeps}
        told |= {what: cost(place, paths, words) for what, words in COMMANDS.items()}
        return told | {"page_mb": round(os.path.getsize(f"{place}/page.html") / 1e6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[25, 100, 250])
    parser.add_argument("--sweeps", type=int, default=12)
    parser.add_argument("--benchmarks", type=int, default=len(BENCHMARKS))
    chosen = parser.parse_args()
    for nodes in chosen.nodes:
        print(json.dumps(one(nodes, chosen.sweeps, chosen.benchmarks)), flush=True)


if __name__ == "__main__":
    main()
