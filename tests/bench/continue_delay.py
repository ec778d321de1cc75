# SPDX-License-Identifier: MIT
"""How long a job that saves before its time limit waits between two of its runs, on a real Slurm.

    python tests/bench/continue_delay.py [--jobs 8] [--seed 1] [--arms none,tick,mine] [--every 15]

A lab with Slurm's default delay after a requeue (cred_expire 120 s) and a free GPU for each job. Jobs with
--pal-save-before are told to save at moments drawn evenly over an interval of ticks, as Slurm's notice would, and
requeue themselves. `none` has no tick, `tick` a daemon of SlurmUser that acts, `mine` one of an ordinary user's means.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab

PARTITIONS = '[partitions.gpu]\nnodes = "ALL"\ndefault = true\ndefault_time_min = 2\n'
SCRIPT = """#!/bin/bash
echo "begins $(date +%s.%N)"
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
trap 'touch "$SLURM_PAL_ACK"' USR1
trap 'echo "ends $(date +%s.%N)"; exit' TERM
while :; do sleep 0.1; done
"""
WORDS = ["--pal-checkpoint=USR1", "--pal-save-before=100", "--gres=gpu:1", "--open-mode=append", "--parsable"]
ARMS = {"none": None, "tick": [], "mine": ["--mine"]}
PATIENCE_S = 240.0


@contextlib.contextmanager
def ticking(arm: str, every_s: float, env: dict[str, str]) -> Iterator[None]:
    """A daemon beside the jobs, in the arms that have one."""
    words = ARMS[arm]
    if words is None:
        yield
        return
    command = [program("pal-rebalance"), "--daemon", "--act", f"--every={every_s:g}", *words]
    daemon = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


def gaps(folder: str, jobs: int, rng: random.Random, every_s: float, env: dict[str, str]) -> list[float]:
    """Seconds from the end of the first run of each job to the begin of the next."""
    os.mkdir(folder)
    paths = [os.path.join(folder, f"out-{number}") for number in range(jobs)]
    for path in paths:
        argv = [program("palsub"), *WORDS, "-o", path]
        found = subprocess.run(argv, input=SCRIPT, env=env, cwd=folder, capture_output=True, text=True, check=True)
        time.sleep(rng.uniform(0, 2 * every_s / jobs))
        until(path, "begins", 1)
        subprocess.run(["scancel", "-b", "-s", "USR1", found.stdout.strip()], env=env, check=True)
    return [until(path, "begins", 2)[-1] - until(path, "ends", 1)[0] for path in paths]


def until(path: str, word: str, times: int) -> list[float]:
    """The moments that a job's output names, once there are so many."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        text = Path(path).read_text() if os.path.exists(path) else ""
        found = re.findall(rf"^{word} ([0-9.]+)$", text, re.MULTILINE)
        if len(found) >= times:
            return [float(moment) for moment in found]
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{path}: {text}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--every", type=float, default=15.0, help="time between two ticks, s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pal") as root:
        file = os.path.join(root, "partitions.toml")
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(PARTITIONS)
        usual = ((",cred_expire=5", ""),)
        lab_at = os.path.join(root, "lab")
        with Lab.up(lab_at, nodes=args.jobs, gpus=1, seed=args.seed, partitions=file, conf_edits=usual) as lab:
            env = lab.environ() | {"XDG_STATE_HOME": os.path.join(root, "state")}
            for arm in args.arms.split(","):
                with ticking(arm, args.every, env):
                    rng = random.Random(args.seed)
                    found = sorted(gaps(os.path.join(root, arm), args.jobs, rng, args.every, env))
                row = {"arm": arm, "jobs": len(found), "least_s": round(found[0], 1),
                       "median_s": round(statistics.median(found), 1), "most_s": round(found[-1], 1)}  # fmt: skip
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
