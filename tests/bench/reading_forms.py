# SPDX-License-Identifier: MIT
"""The cost of each way to read nodes and jobs from a real slurmctld: time of the command, size of its answer.

    python tests/bench/reading_forms.py [--nodes 1000] [--pending 5000] [--repeats 5]

A slurmctld of nodes that never come up, filled as by rebalance_tick.py: one job on each node, and jobs that wait.
One JSON line for each form: the median and the least wall time, s, the answer, MiB, and how the command ended.
The last two are what a tick and palsub do: run squeue and scontrol at the same time, and read their answers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

sys.path.insert(0, os.path.dirname(__file__))
from rebalance_tick import Controller

from slurm_pal.slurm import told
from slurm_pal.slurm.cli import CliClient, subprocess_runner


def timed(work: Callable[[], None], repeats: int) -> dict[str, float]:
    """Wall time and our own CPU time of some work, several times."""
    walls, cpus = [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - started)
        cpus.append(time.process_time() - used)
    found = {"median_s": statistics.median(walls), "least_s": min(walls), "own_cpu_s": min(cpus)}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def command(argv: Sequence[str], stdin: str, environment: dict[str, str], repeats: int) -> dict[str, float]:
    """One form, several times."""
    done: list[subprocess.CompletedProcess[bytes]] = []

    def run() -> None:
        env = told.clean_environment(environment)
        done.append(subprocess.run(argv, input=stdin.encode(), env=env, capture_output=True, check=False))

    return timed(run, repeats) | {"mib": round(len(done[-1].stdout) / 2**20, 2), "code": done[-1].returncode}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=4, help="per node")
    parser.add_argument("--pending", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="pal")
    controller = Controller(root, args.nodes, args.gpus)
    try:
        controller.fill(args.nodes, args.gpus, args.pending)
        running = controller.run("squeue", "-h", "-t", "RUNNING,CONFIGURING", "-o", "%A").split()
        word = told.mark()
        each = [line for job_id in running for line in (f"job {job_id}", f"hostnames {word}")]
        forms: dict[str, tuple[list[str], str]] = {
            "scontrol: nodes, partitions, jobs": (["scontrol", "-d", "-o"], told.shown(told.kinds(False))),
            "squeue: fields of a tick": (told.argv(told.ALL, word), ""),
            "squeue: fields of palsub": (told.argv(told.FEW, word), ""),
            "squeue --json": (["squeue", "-a", "-t", "all", "--json"], ""),
            "scontrol show job --json": (["scontrol", "show", "job", "--json"], ""),
            f"scontrol: {len(running)} running jobs one by one": (["scontrol", "-d", "-o"], told.shown(each)),
        }
        for name, (argv, stdin) in forms.items():
            print(json.dumps({"form": name} | command(argv, stdin, controller.environment, args.repeats)), flush=True)
        client = CliClient(subprocess_runner(60.0, controller.environment))
        for name, marked in (("both, read: tick", True), ("both, read: palsub", False)):

            def look(marked: bool = marked) -> None:
                client.overview(marked=marked)

            print(json.dumps({"form": name} | timed(look, args.repeats)), flush=True)
    finally:
        controller.end()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
