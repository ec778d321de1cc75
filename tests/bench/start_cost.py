# SPDX-License-Identifier: MIT
"""What our programs cost to start: `--help` of commands, this version and another one in turn.

python tests/bench/start_cost.py [--rounds N] [--other VENV/bin]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

COMMANDS = ("pal gpus", "pal doctor", "pal explain", "pal", "pal-profile run", "pal-profile", "pal-rebalance")


def cpu_ms(argv: list[str]) -> float:
    """Processor time of one process, in ms; numpy, where it is loaded, with one thread."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000.0 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--other", type=Path, help="bin folder of an environment with another version")
    options = parser.parse_args()
    folders = [Path(sys.executable).parent, *([options.other] if options.other else [])]
    print("| command | this version, ms |" + (" the other, ms | ratio |" if options.other else ""))
    print("|---|---|" + ("---|---|" if options.other else ""))
    for command in COMMANDS:
        program, *words = command.split()
        costs: list[list[float]] = [[] for _ in folders]
        for _ in range(options.rounds):
            for cost, folder in zip(costs, folders, strict=True):
                cost.append(cpu_ms([str(folder / program), *words, "--help"]))
        middle = [statistics.median(cost) for cost in costs]
        shown = [f"{ms:.0f}" for ms in middle] + ([f"{middle[0] / middle[1]:.2f}"] if options.other else [])
        print(f"| `{command}` | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
