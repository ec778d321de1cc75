# SPDX-License-Identifier: MIT
"""What palsub costs through slurmrestd: wall time beside sbatch and palsub by Slurm's commands, on one controller.

    python tests/bench/palsub_rest.py [--nodes 8] [--rounds 40]

Each round runs each command once, in random order. Reported: medians, and their ratios to sbatch's and to palsub's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile

from palsub_cost import JOB, interval, run, scores

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.rest_program import stand_in


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="pal")
    lab = Lab.up(os.path.join(directory, "lab"), nodes=asked.nodes, gpus=4, seed=1, rest=True)
    try:
        snapshot = os.path.join(directory, "snapshot")
        own = {"XDG_STATE_HOME": os.path.join(directory, "state"), "SLURM_PAL_PATHS_SNAPSHOT": snapshot}
        env = lab.environ() | own
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        rest = env | {"SLURM_PAL_SLURM_BACKEND": "rest", "SLURM_PAL_SLURM_REST": f"unix:{lab.directory.rest_socket}"}
        scores(snapshot, asked.nodes, 4)
        commands = {
            "sbatch": (["sbatch", *JOB], env),
            "the stand-in alone": (stand_in().argv(["sbatch", *JOB]), rest),
            "palsub": ([program("palsub"), *JOB], env),
            "palsub by slurmrestd": ([program("palsub"), *JOB], rest),
            "palsub --pal-off": ([program("palsub"), "--pal-off", *JOB], env),
        }
        spent: dict[str, list[float]] = {name: [] for name in commands}
        for name in commands:
            run(*commands[name])  # byte code and page cache are warm from here on
        rng = random.Random(1)
        for _ in range(asked.rounds):
            for name in rng.sample([*commands], len(commands)):
                spent[name].append(run(*commands[name]).wall_ms)
    finally:
        lab.down()
        shutil.rmtree(directory, ignore_errors=True)
    middle = {name: statistics.median(values) for name, values in spent.items()}
    print(f"{'command':<22} {'ms [95 %]':>22} {'x sbatch':>9} {'x palsub':>9}")
    for name, values in spent.items():
        low, high = interval(values)
        shown = f"{middle[name]:.1f} [{low:.1f}, {high:.1f}]"
        print(f"{name:<22} {shown:>22} {middle[name] / middle['sbatch']:>9.1f} {middle[name] / middle['palsub']:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
