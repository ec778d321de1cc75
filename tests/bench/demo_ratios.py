# SPDX-License-Identifier: MIT
"""Mean completion under palsub over that under sbatch, on several labs: figures for docs/benchmarks.md.

Usage: demo_ratios.py [--seeds N]. Each seed is one run of `pal demo`: one lab, the same
16 jobs with sbatch and then with palsub. Prints one row per seed and the geometric mean.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys


def ratios(seed: int) -> dict[str, float]:
    """The ratios of one run, by sensitivity class and for "all"."""
    pal = os.path.join(os.path.dirname(sys.executable), "pal")
    argv = [pal, "demo", "--seed", str(seed), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"pal demo --seed {seed} failed: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)["completion_ratio"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="seeds 1 to N")
    seeds = range(1, parser.parse_args().seeds + 1)
    rows = {}
    print("| seed | A | B | C | all |\n|---|---|---|---|---|")
    for seed in seeds:
        rows[seed] = ratios(seed)
        print(
            f"| {seed} | " + " | ".join(f"{rows[seed][name]:.3f}" for name in ("A", "B", "C", "all")) + " |", flush=True
        )
    means = {
        name: math.exp(sum(math.log(row[name]) for row in rows.values()) / len(rows)) for name in ("A", "B", "C", "all")
    }
    print("| geometric mean | " + " | ".join(f"{value:.3f}" for value in means.values()) + " |")


if __name__ == "__main__":
    main()
