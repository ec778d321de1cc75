# SPDX-License-Identifier: MIT
"""What palsub costs over sbatch: wall time and memory, on one controller, interleaved pairs.

    python tests/bench/palsub_cost.py [--nodes 8 256] [--pairs 60] [--json]

Starts a lab of each size, publishes made-up scores, and submits the same job with sbatch
and with palsub in turn, each pair in random order. Reported: the median of the paired
differences with a 95 % interval by bootstrap over pairs, and palsub's largest resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.store.snapshot import GpuScore, publish

JOB = ("-o", "/dev/null", "--gres=gpu:1", "--wrap", "true")
VARIANTS = {"palsub": (), "palsub --pal-watch": ("--pal-watch",), "palsub --pal-off": ("--pal-off",)}


HIGH_WATER = """
import os, sys
from slurm_pal.cli.palsub import main
code = main()
with open("/proc/self/status") as status, open(os.environ["HIGH_WATER"], "w") as out:
    out.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
sys.exit(code)
"""


def memory_mib(words: Sequence[str], environment: dict[str, str], directory: str) -> float:
    """The largest resident set of a palsub process, by its own account.

    What wait4 tells would count the memory of the process that started it as well.
    """
    note = os.path.join(directory, "high-water")
    run([sys.executable, "-P", "-c", HIGH_WATER, *words, *JOB], environment | {"HIGH_WATER": note})
    with open(note, encoding="utf-8") as stream:
        return int(stream.read()) / 1024


def run(argv: Sequence[str], environment: dict[str, str]) -> float:
    """Wall time in ms of one command, which must succeed."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    started = time.perf_counter()
    pid = os.posix_spawnp(argv[0], list(argv), environment, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    wall_ms = (time.perf_counter() - started) * 1e3
    if status:
        raise SystemExit(f"{argv[0]} failed with status {status}")
    return wall_ms


def scores(path: str, nodes: int, gpus: int) -> None:
    """Made-up scores: the first node is the slowest, so that palsub has a reason to choose."""
    rng = random.Random(1)
    table = []
    for i in range(nodes):
        for k in range(gpus):
            a = 1.15 if i == 0 else 1.0 + 0.02 * rng.random()
            slowdown = {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0}
            table.append(GpuScore(f"n{i}", k, f"GPU-{i}-{k}", "m", slowdown, {"A": "v0"}, time.time(), 1.0, ()))
    publish(path, table, cluster="lab", epoch=1, now_s=time.time())


def interval(values: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(1000))
    return medians[25], medians[974]


def measure(palsub: str, environment: dict[str, str], pairs: int, directory: str) -> list[dict[str, object]]:
    """One row for each variant."""
    rng = random.Random(2)
    rows: list[dict[str, object]] = []
    for name, words in VARIANTS.items():
        plain = ("sbatch", *JOB)
        ours = (palsub, *words, *JOB)
        run(plain, environment)
        run(ours, environment)  # byte code and page cache are warm from here on
        found: dict[tuple[str, ...], list[float]] = {plain: [], ours: []}
        for _ in range(pairs):
            for argv in rng.sample([plain, ours], 2):
                found[argv].append(run(argv, environment))
        differences = [b - a for a, b in zip(found[plain], found[ours], strict=True)]
        low, high = interval(differences)
        rows.append(
            {
                "variant": name,
                "sbatch_ms": statistics.median(found[plain]),
                "palsub_ms": statistics.median(found[ours]),
                "difference_ms": statistics.median(differences),
                "low_ms": low,
                "high_ms": high,
                "rss_mib": memory_mib(words, environment, directory) if "--pal-off" not in words else None,
            }
        )
    return rows


def size(mib: object) -> str:
    """A resident set, or that the process has become sbatch."""
    return f"{mib:.1f}" if isinstance(mib, float) else "-"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 256])
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    for nodes in asked.nodes:
        directory = tempfile.mkdtemp(prefix="pal")
        lab = Lab.up(os.path.join(directory, "lab"), nodes=nodes, gpus=asked.gpus, seed=1, wait_s=120)
        try:
            environment = lab.environ() | {
                "XDG_STATE_HOME": os.path.join(directory, "state"),
                "SLURM_PAL_PATHS_SNAPSHOT": os.path.join(directory, "snapshot"),
            }
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            scores(os.path.join(directory, "snapshot"), nodes, asked.gpus)
            found = measure(program("palsub"), environment, asked.pairs, directory)
            rows += [{"nodes": nodes, **row} for row in found]
        finally:
            lab.down()
            shutil.rmtree(directory, ignore_errors=True)
    if asked.json:
        print(json.dumps({"schema": "pal.bench.palsub/1", "rows": rows}))
        return 0
    print(f"{'nodes':>5} {'variant':<20} {'sbatch ms':>9} {'palsub ms':>9} {'difference ms [95 %]':>24} {'RSS MiB':>9}")
    for row in rows:
        spread = f"{row['difference_ms']:.1f} [{row['low_ms']:.1f}, {row['high_ms']:.1f}]"
        print(
            f"{row['nodes']:>5} {row['variant']:<20} {row['sbatch_ms']:>9.1f} {row['palsub_ms']:>9.1f} "
            f"{spread:>24} {size(row['rss_mib']):>9}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
