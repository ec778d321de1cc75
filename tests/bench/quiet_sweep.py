# SPDX-License-Identifier: MIT
"""What users feel of a sweep: the same jobs on one real Slurm without and with a sweep beside them, in turns.

    python tests/bench/quiet_sweep.py [--jobs 50] [--seeds 1 2] [--load 0.75] [--spare-nodes 1] [--max-leavings 5]
    python tests/bench/quiet_sweep.py --find 40     # which seeds make users wait, and which hardly

A lab of 8 x 4 emulated GPUs. Whole-node jobs arrive at the same random moments in each arm. In the arm with a sweep
`pal-profile run --max-parallel 4` measures all nodes over and over, with jobs of about 22 s (--wall-scale). The jobs of
each seed are played in both arms: without, with, with, without a sweep and so on, so that the machine's own load
meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab

GPUS = 4
WALL_SCALE = 0.18  # a job of 111 s of device time takes 22 s
AROUND_S = 2.0
"""What a job occupies its node besides its work in a lab: start and end. It counts for the load."""


class Job(NamedTuple):
    at_s: float
    seconds: float


class Swept(NamedTuple):
    """What the sweeps of one arm did."""

    done: int  # nodes
    left: int  # leavings
    jobs: int
    gpu_h: float  # of all its jobs, also those that left
    seconds: float


def draw(seed: int, count: int, nodes: int, load: float) -> list[Job]:
    """Poisson arrivals of jobs of 4 to 12 s, each for a whole node."""
    rng = random.Random(seed)
    lengths = [rng.uniform(4, 12) for _ in range(count)]
    rate, at_s, jobs = load * nodes / (statistics.fmean(lengths) + AROUND_S), 0.0, []
    for length in lengths:
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, length))
    return jobs


def play(jobs: Sequence[Job], env: dict[str, str]) -> list[float]:
    """Submit all jobs at their moments, wait for their ends; the seconds that each waited."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        began, submitted = time.time(), list[float]()
        for number, job in enumerate(jobs):
            time.sleep(max(0.0, began + job.at_s - time.time()))
            words = [
                "--exclusive",
                "-N1",
                f"--gres=gpu:{GPUS}",
                "-t",
                "1",
                "-o",
                "/dev/null",
                "--parsable",
                "-J",
                "user",
            ]
            script = f"#!/bin/sh\ndate +%s.%N > {folder}/{number}\nexec sleep {job.seconds:.2f}\n"
            submitted.append(time.time())
            subprocess.run(["sbatch", *words], input=script, env=env, capture_output=True, text=True, check=True)
        while True:
            ask = ["squeue", "-h", "-n", "user", "-o", "%A"]
            if not subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout.strip():
                break
            time.sleep(0.5)
        waits = []
        for number, at_s in enumerate(submitted):
            with open(os.path.join(folder, str(number)), encoding="utf-8") as stream:
                waits.append(float(stream.read()) - at_s)
        return waits


class Sweeper(threading.Thread):
    """Sweeps one after the other until the end; the last one is ended by SIGTERM, and its jobs are cancelled."""

    def __init__(self, env: dict[str, str], parallel: int) -> None:
        super().__init__()
        self._env, self._parallel = env, parallel
        self._held_s, self._began_s = 0.0, time.monotonic()  # node-seconds
        self._stop_now = threading.Event()
        self.found: list[dict[str, object]] = []

    def run(self) -> None:
        """One sweep after the other."""
        argv = [program("pal-profile"), "run", "-y", "--json", f"--max-parallel={self._parallel}"]
        argv.append(f"--wall-scale={WALL_SCALE}")
        while not self._stop_now.is_set():
            sweep = subprocess.Popen(argv, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            looked_s = time.monotonic()
            while sweep.poll() is None and not self._stop_now.wait(1.0):
                now_s = time.monotonic()
                self._held_s += self._running() * (now_s - looked_s)
                looked_s = now_s
            if sweep.poll() is None:
                sweep.terminate()
            sweep.wait()
            self.found += self._status()
            self._stop_now.wait(0.5)

    def _running(self) -> int:
        """How many nodes the sweep occupies."""
        argv = ["squeue", "-h", "-t", "R,CG", "-o", "%j"]
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, check=True)
        return sum(name.startswith("pal-profile:") for name in done.stdout.splitlines())

    def _status(self) -> list[dict[str, object]]:
        argv = [program("pal-profile"), "status", "--json"]
        done = subprocess.run(argv, env=self._env, capture_output=True, text=True, check=False)
        return list(json.loads(done.stdout)["nodes"]) if done.returncode == 0 else []

    def end(self) -> Swept:
        """Stop, and sum up."""
        self._stop_now.set()
        self.join()
        names = subprocess.run(
            ["squeue", "-h", "-o", "%A %j"], env=self._env, capture_output=True, text=True, check=True
        ).stdout
        ours = [line.split()[0] for line in names.splitlines() if line.split()[1].startswith("pal-profile:")]
        if ours:
            subprocess.run(["scancel", *ours], env=self._env, check=True)
        counts = [sum(int(str(n[key])) for n in self.found) for key in ("leavings", "attempts")]
        done, seconds = sum(n["state"] == "done" for n in self.found), time.monotonic() - self._began_s
        return Swept(done, *counts, round(self._held_s * GPUS / 3600.0, 3), round(seconds, 1))


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def find(count: int, jobs: int, nodes: int, load: float) -> None:
    """Print what the jobs of each seed would wait on their own, first come first served, by plain arithmetic."""
    for seed in range(1, count + 1):
        free_s, waits = [0.0] * nodes, []
        for job in draw(seed, jobs, nodes, load):
            start_s = max(job.at_s, min(free_s))
            free_s[free_s.index(min(free_s))] = start_s + job.seconds + AROUND_S / 2
            waits.append(start_s - job.at_s)
        print(f"seed {seed}: p95 {percentile(waits, 0.95):.2f} s, mean {statistics.fmean(waits):.2f} s")


def main() -> None:
    """Print a line for each part, and the ratio."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    p.add_argument("--jobs", type=int, default=50, help="of each seed, in each arm")
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    p.add_argument(
        "--find",
        type=int,
        default=0,
        metavar="COUNT",
        help="only show how long the jobs of these seeds wait by themselves",
    )
    p.add_argument("--nodes", type=int, default=8)
    p.add_argument("--load", type=float, default=0.75)
    p.add_argument("--parallel", type=int, default=4)
    p.add_argument("--max-leavings", type=int, default=5)
    p.add_argument("--spare-nodes", type=int, default=1)
    options = p.parse_args()
    if options.find:
        find(options.find, options.jobs, options.nodes, options.load)
        return
    os.environ["SLURM_PAL_PROFILE_MAX_LEAVINGS"] = str(options.max_leavings)
    os.environ["SLURM_PAL_PROFILE_SPARE_NODES"] = str(options.spare_nodes)
    waits: dict[bool, list[float]] = {False: [], True: []}
    swept: list[Swept] = []
    with tempfile.TemporaryDirectory(prefix="pal") as folder:
        os.chmod(folder, 0o755)
        with Lab.up(f"{folder}/lab", nodes=options.nodes, gpus=GPUS, seed=2) as lab:
            env = lab.environ()
            for turn, seed in enumerate(options.seeds):
                jobs = draw(seed, options.jobs, options.nodes, options.load)
                for beside in (False, True) if turn % 2 == 0 else (True, False):
                    found, one = arm(env, jobs, options.parallel if beside else 0)
                    waits[beside] += found
                    swept += [one] if one else []
                    ends = ", ".join(f"{share:.0%} {percentile(found, share):.2f}" for share in (0.5, 0.9, 0.95, 1.0))
                    name = "with" if beside else "without"
                    print(f"seed {seed} {name:8} {len(found)} jobs waited, s: {ends}", flush=True)
                    print(f"         longest: {' '.join(f'{w:.2f}' for w in sorted(found)[-8:])}", flush=True)
                    if one:
                        print(f"         sweep: {one}", flush=True)
    p95 = {beside: percentile(found, 0.95) for beside, found in waits.items()}
    means = {beside: statistics.fmean(found) for beside, found in waits.items()}
    print(f"p95 without {p95[False]:.2f} s, with {p95[True]:.2f} s: ratio {p95[True] / p95[False]:.2f}")
    print(f"mean without {means[False]:.2f} s, with {means[True]:.2f} s")
    done, left, count, gpu_h, seconds = (sum(column) for column in zip(*swept, strict=True))
    print(f"nodes measured {done}, leavings {left}, jobs {count}, GPU-hours {gpu_h:.3f} in {seconds:.0f} s")


def arm(env: dict[str, str], jobs: Sequence[Job], parallel: int) -> tuple[list[float], Swept | None]:
    """The waits of these jobs, beside sweeps of so many nodes at once where that is not 0."""
    sweeper = Sweeper(env, parallel) if parallel else None
    swept = None
    if sweeper:
        sweeper.start()
        time.sleep(5)
    try:
        waits = play(jobs, env)
    finally:
        swept = sweeper.end() if sweeper else None
    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=True).stdout:
        time.sleep(0.5)
    return waits, swept


if __name__ == "__main__":
    main()
