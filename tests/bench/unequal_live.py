# SPDX-License-Identifier: MIT
"""Three partitions of unequal GPUs on one real Slurm: plain sbatch with a list of partitions, and an allocation policy.

    python tests/bench/unequal_live.py [--jobs 200] [--load 1.0] [--seed 1] [--arms plain,gavel:max-min,...]
    python tests/bench/unequal_live.py --dry 6 --load 0.8 --new shortened|ordered|listed --arms ...

Partitions v100, a100 and h100 of 8 nodes x 4 emulated GPUs. An application of class A runs 1 : 2.5 : 6
as fast on them, one of class B 1 : 1.8 : 3, one of class C 1 : 1.3 : 1.8; within a partition GPUs
differ as in any lab. The same jobs arrive at the same moments in each arm, and all may run in all three
partitions, the fastest named first. Arm `plain` is sbatch; the others are palsub with pal-rebalance beside it,
which shares out partitions by that policy, from a table of throughputs accurate to 5 %.
The simulator replays the same jobs, arms beside it. Times are those of a lab: jobs of a minute, ticks of two seconds.
With --dry it replays so many seeds, and nothing runs: what new jobs get there is where they belong (`shortened`), all
partitions with those first (`ordered`), or all as their users listed them until a tick has looked (`listed`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Allocation, Problem, Vector
from slurm_pal.allocation.steady import STEADY
from slurm_pal.emulation.gpus import draw_registry
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.research import unequal
from slurm_pal.research.unequal_queue import Belonging, Listed

NODES, GPUS_PER_NODE, TICK_S, PASS_S = 8, 4, 2.0, 1.0
SPEEDS = {
    "A": {"v100": 1.0, "a100": 2.5, "h100": 6.0},
    "B": {"v100": 1.0, "a100": 1.8, "h100": 3.0},
    "C": {"v100": 1.0, "a100": 1.3, "h100": 1.8},
}
LIST = "h100,a100,v100"
TUNED = {"SLURM_PAL_REBALANCE_MOVES": "false", "SLURM_PAL_REBALANCE_INTERVAL_S": f"{TICK_S:g}"}


class Job(NamedTuple):
    at_s: float
    sensitivity: str
    gpus: int
    seconds: float  # on a median h100

    @property
    def limit_min(self) -> int:
        """Enough for the slowest partition, as Slurm wants it: whole minutes."""
        return 1 + int(2 * self.seconds * SPEEDS[self.sensitivity]["h100"] / 60)


class Ran(NamedTuple):
    completion_s: float
    ended_s: float  # since the first submission
    partition: str


def draw(seed: int, count: int, load: float) -> list[Job]:
    """Poisson arrivals; sizes 1, 2, 4; a third of each class. Load 1 keeps all GPUs busy if jobs are spread by GPUs."""
    rng = random.Random(seed)
    shapes = [(rng.choice("ABC"), rng.choice((1, 1, 2, 4, 4)), rng.uniform(8, 24)) for _ in range(count)]
    work = [gpus * seconds / mean_speed(kind) for kind, gpus, seconds in shapes]
    rate = load * 3 * NODES * GPUS_PER_NODE / statistics.fmean(work)
    at_s, jobs = 0.0, []
    for shape in shapes:
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, *shape))
    return jobs


def mean_speed(kind: str) -> float:
    """Over the partitions, in units of the h100's."""
    return statistics.fmean(SPEEDS[kind].values()) / SPEEDS[kind]["h100"]


def gpu_table(path: str, seed: int) -> None:
    """The lab's GPUs: slowdowns as drawn for one kind, times how much slower the partition is for each class."""
    names = [f"n{k}" for k in range(3 * NODES)]
    drawn = draw_registry(names, GPUS_PER_NODE, seed)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("node", "index", "A", "B", "C", "uuid", "model"))
        for gpu in drawn.gpus:
            kind = LIST.split(",")[int(gpu.node[1:]) // NODES]
            slow = [gpu.true_slowdown(c) * SPEEDS[c]["h100"] / SPEEDS[c][kind] for c in "ABC"]
            writer.writerow((gpu.node, gpu.index, *(f"{x:.4f}" for x in slow), gpu.uuid, f"EMU {kind}"))


def throughput_table(path: str, seed: int) -> None:
    """What the site believes: each application's speeds, each wrong by 5 % or so."""
    rng = random.Random(seed + 99)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("application", "gpus", "type", "relative_speed", "relative_error"))
        for c, speeds in SPEEDS.items():
            for gpus in (1, 2, 4):
                for kind, speed in speeds.items():
                    writer.writerow((f"app{c}", gpus, kind, f"{speed * rng.lognormvariate(0, 0.05):.3f}", 0.05))


def submit(job: Job, number: int, arm: str, directory: str, env: dict[str, str]) -> None:
    work = f"{program('pal')} lab work --class {job.sensitivity} --seconds {job.seconds:.2f} --json"
    words = [f"--job-name=app{job.sensitivity}", "-p", LIST, "-N1", f"--gres=gpu:{job.gpus}"]
    words += [f"--time={job.limit_min}", "-o", os.path.join(directory, f"out-{number}")]
    command = ["sbatch"] if arm == "plain" else [program("palsub"), f"--pal-class={job.sensitivity}"]
    script = f'#!/bin/sh\necho "{{\\"partition\\": \\"$SLURM_JOB_PARTITION\\"}}"\nexec {work}\n'
    subprocess.run([*command, *words], input=script, env=env, capture_output=True, text=True, check=True)


def play(jobs: Sequence[Job], arm: str, env: dict[str, str], directory: str) -> list[Ran]:
    """Submit all jobs at their moments and wait for their ends."""
    os.mkdir(directory)
    began, submitted = time.time(), []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at_s - time.time()))
        submitted.append(time.time())
        submit(job, number, arm, directory, env)
    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(0.5)
    ran = []
    for number, at_s in enumerate(submitted):
        with open(os.path.join(directory, f"out-{number}"), encoding="utf-8") as stream:
            said = {k: v for line in stream if line.startswith("{") for k, v in json.loads(line).items()}
        ran.append(Ran(said["ended_s"] - at_s, said["ended_s"] - began, said["partition"]))
    return ran


def arm_of(arm: str, jobs: Sequence[Job], env: dict[str, str], root: str) -> list[Ran]:
    directory = os.path.join(root, arm.replace(":", "-"))
    if arm == "plain":
        return play(jobs, arm, env, directory)
    tuned = env | TUNED | {"SLURM_PAL_REBALANCE_ALLOCATION": arm}
    tuned |= {"SLURM_PAL_REBALANCE_THROUGHPUTS": os.path.join(root, "throughputs.csv")}
    with open(f"{directory}.log", "w", encoding="utf-8") as log:
        tick = subprocess.Popen(
            [program("pal-rebalance"), "--daemon", "--act", f"--every={TICK_S:g}"], env=tuned, stderr=log
        )
        try:
            time.sleep(3)
            return play(jobs, arm, tuned, directory)
        finally:
            tick.terminate()
            tick.wait()


def summary(jobs: Sequence[Job], ran: Sequence[Ran]) -> dict[str, object]:
    found: dict[str, object] = {"makespan_s": round(max(one.ended_s for one in ran), 1)}
    for name in ("A", "B", "C", "all"):
        mine = [one for job, one in zip(jobs, ran, strict=True) if name in ("all", job.sensitivity)]
        found[f"completion_{name}_s"] = round(statistics.fmean(one.completion_s for one in mine), 2)
    for kind in LIST.split(","):
        counts = [sum(one.partition == kind and job.sensitivity == c for job, one in zip(jobs, ran, strict=True))
                  for c in "ABC"]  # fmt: skip
        found[kind] = "/".join(map(str, counts))
    return found


# -- the same jobs by the simulator ---------------------------------------------------------


class NewJobs(Belonging):
    """Jobs get the lists of `Belonging` from their second look on; at the first they are `listed`, or `ordered`."""

    def __init__(self, limit_s: Vector, allocate: Callable[[Problem], Allocation], *, ordered: bool) -> None:
        super().__init__(limit_s, allocate)
        self._ordered, self._seen = ordered, set[int]()

    def __call__(self, moment: unequal.Moment) -> NDArray[np.int64]:
        found = super().__call__(moment)
        self._seen |= set(moment.job.tolist())
        return found

    def _list(self, moment: unequal.Moment, row: int, speed: Vector, shares: Vector) -> list[int]:
        if int(moment.job[row]) in self._seen:
            return super()._list(moment, row, speed, shares)
        able = np.flatnonzero(speed)
        return [int(j) for j in (able[np.argsort(-shares[able], kind="stable")] if self._ordered else able)]


def simulated(jobs: Sequence[Job], arm: str, new: str = "shortened") -> tuple[float, float]:
    """(mean completion, makespan), s, with GPUs of a partition all alike and no nodes."""
    kinds = LIST.split(",")
    rows = [
        unequal.GangJob(str(k), job.at_s, job.seconds, job.gpus,
                    tuple(SPEEDS[job.sensitivity][kind] / SPEEDS[job.sensitivity]["h100"] for kind in kinds))
        for k, job in enumerate(jobs)
    ]  # fmt: skip
    limit_s = np.array([60.0 * job.limit_min for job in jobs])
    policy: unequal.Policy
    if arm == "plain":
        policy = Listed(limit_s)
    elif new == "shortened":
        policy = Belonging(limit_s, STEADY[arm])
    else:
        policy = NewJobs(limit_s, STEADY[arm], ordered=new == "ordered")
    found = unequal.simulate(rows, [NODES * GPUS_PER_NODE] * 3, policy, move_cost_s=0.0, review_s=TICK_S)
    return round(found.mean_jct_s(), 2), round(found.makespan_s, 1)


def dry(arms: Sequence[str], count: int, load: float, seeds: int, new: str) -> None:
    """Of each arm the mean over seeds of what the simulator says, over plain."""
    traces = [draw(seed, count, load) for seed in range(1, seeds + 1)]
    plain = [simulated(jobs, "plain") for jobs in traces]
    for arm in arms:
        pairs = zip((simulated(jobs, arm, new) for jobs in traces), plain, strict=True)
        ratios = [(jct_s / other_s, end_s / last_s) for (jct_s, end_s), (other_s, last_s) in pairs]
        completion, makespan = (round(statistics.fmean(some), 3) for some in zip(*ratios, strict=True))
        print(json.dumps({"arm": arm, "new": new, "completion": completion, "makespan": makespan}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", default="plain,nonpreemptive-makespan,gavel:max-min")
    parser.add_argument("--dry", type=int, default=0, metavar="SEEDS", help="only what the simulator says, over plain")
    parser.add_argument("--new", choices=("shortened", "ordered", "listed"), default="shortened")
    parser.add_argument("--keep", action="store_true", help="leave logs and results")
    args = parser.parse_args()
    if args.dry:
        dry(args.arms.split(","), args.jobs, args.load, args.dry, args.new)
        return
    jobs = draw(args.seed, args.jobs, args.load)
    root = tempfile.mkdtemp(prefix="pal")
    try:
        gpu_table(os.path.join(root, "gpus.csv"), args.seed)
        throughput_table(os.path.join(root, "throughputs.csv"), args.seed)
        up = [program("pal"), "lab", "up", "--dir", os.path.join(root, "lab"), "--nodes", str(3 * NODES),
              "--gpus", str(GPUS_PER_NODE), "--gpu-table", os.path.join(root, "gpus.csv")]  # fmt: skip
        subprocess.run(up, check=True, capture_output=True)
        with Lab(os.path.join(root, "lab")) as lab:
            run(jobs, args.arms.split(","), lab.environ(), root)
    finally:
        if args.keep:
            print(f"kept in {root}")
        else:
            shutil.rmtree(root)


def run(jobs: Sequence[Job], arms: Sequence[str], env: dict[str, str], root: str) -> None:
    for k, kind in enumerate(LIST.split(",")):
        nodes = f"Nodes=n[{k * NODES}-{(k + 1) * NODES - 1}]"
        subprocess.run(["scontrol", "create", f"PartitionName={kind}", nodes, "State=UP"], env=env, check=True)
    sweep = [program("pal-profile"), "run", "--yes", "--max-parallel", "8"]
    subprocess.run(sweep, env=env, check=True, capture_output=True)
    for arm in arms:
        found = {"arm": arm, **summary(jobs, arm_of(arm, jobs, env, root)), "simulated": simulated(jobs, arm)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
