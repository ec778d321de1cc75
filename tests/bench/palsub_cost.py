# SPDX-License-Identifier: MIT
"""What palsub costs over sbatch: wall time and memory, on one controller, interleaved pairs.

    python tests/bench/palsub_cost.py [--nodes 8 256] [--pairs 60] [--other PALSUB] [--json]

Starts a lab of each size, publishes made-up scores, and submits the same job with sbatch
and with palsub in turn, each pair in random order. Reported: the median of the paired
differences with a 95 % interval by bootstrap over pairs, the median of its CPU time, which a busy machine
changes less, and palsub's largest resident set. `--other` measures one of another version beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

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


class Spent(NamedTuple):
    """What one command took, ms."""

    wall_ms: float
    cpu_ms: float


def cpu_ms() -> float:
    """CPU time of all children that have ended, ms."""
    seen = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (seen.ru_utime + seen.ru_stime) * 1e3


def run(argv: Sequence[str], environment: dict[str, str]) -> Spent:
    """Time of one command, which must succeed."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    before_ms, started = cpu_ms(), time.perf_counter()
    pid = os.posix_spawnp(argv[0], list(argv), environment, file_actions=quiet)
    _, status = os.waitpid(pid, 0)
    spent = Spent((time.perf_counter() - started) * 1e3, cpu_ms() - before_ms)
    if status:
        raise SystemExit(f"{argv[0]} failed with status {status}")
    return spent


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


def measure(
    programs: dict[str, str], environment: dict[str, str], pairs: int, directory: str
) -> list[dict[str, object]]:
    """One row for each variant of each program; those of one variant are measured together with sbatch."""
    rng = random.Random(2)
    rows: list[dict[str, object]] = []
    for name, words in VARIANTS.items():
        plain = ("sbatch", *JOB)
        ours = {(palsub, *words, *JOB): version for version, palsub in programs.items()}
        found: dict[tuple[str, ...], list[Spent]] = {argv: [] for argv in (plain, *ours)}
        for argv in found:
            run(argv, environment)  # byte code and page cache are warm from here on
        for _ in range(pairs):
            for argv in rng.sample([*found], len(found)):
                found[argv].append(run(argv, environment))
        for argv, version in ours.items():
            differences = [b.wall_ms - a.wall_ms for a, b in zip(found[plain], found[argv], strict=True)]
            low, high = interval(differences)
            rows.append(
                {
                    "variant": f"{version}{name}",
                    "sbatch_ms": statistics.median(spent.wall_ms for spent in found[plain]),
                    "palsub_ms": statistics.median(spent.wall_ms for spent in found[argv]),
                    "cpu_ms": statistics.median(spent.cpu_ms for spent in found[argv]),
                    "difference_ms": statistics.median(differences),
                    "low_ms": low,
                    "high_ms": high,
                    "rss_mib": None if version or "--pal-off" in words else memory_mib(words, environment, directory),
                }
            )
    return rows


def size(mib: object) -> str:
    """A resident set, or that it was not read: another version, or the process has become sbatch."""
    return f"{mib:.1f}" if isinstance(mib, float) else "-"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 256])
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--other", help="palsub of another version, shown as `other`")
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
            programs = {"": program("palsub")} | ({"other ": asked.other} if asked.other else {})
            found = measure(programs, environment, asked.pairs, directory)
            rows += [{"nodes": nodes, **row} for row in found]
        finally:
            lab.down()
            shutil.rmtree(directory, ignore_errors=True)
    if asked.json:
        print(json.dumps({"schema": "pal.bench.palsub/1", "rows": rows}))
        return 0
    head = f"{'nodes':>5} {'variant':<24} {'sbatch ms':>9} {'palsub ms':>9} {'difference ms [95 %]':>24} {'CPU ms':>7}"
    print(f"{head} {'RSS MiB':>8}")
    for row in rows:
        spread = f"{row['difference_ms']:.1f} [{row['low_ms']:.1f}, {row['high_ms']:.1f}]"
        print(
            f"{row['nodes']:>5} {row['variant']:<24} {row['sbatch_ms']:>9.1f} {row['palsub_ms']:>9.1f} "
            f"{spread:>24} {row['cpu_ms']:>7.1f} {size(row['rss_mib']):>8}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
