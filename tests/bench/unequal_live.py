# SPDX-License-Identifier: MIT
"""Three partitions of unequal GPUs on one real Slurm: plain sbatch with a list of partitions, and an allocation policy.

    python tests/bench/unequal_live.py [--jobs 200] [--load 1.0] [--seed 1] [--arms plain,gavel:max-min,...] [--moves]
    python tests/bench/unequal_live.py --dry 8 --load 0.8 --arms nonpreemptive-completion,...

Partitions v100, a100 and h100 of 8 nodes x 4 emulated GPUs. An application of class A runs 1 : 2.5 : 6
as fast on them, one of class B 1 : 1.8 : 3, one of class C 1 : 1.3 : 1.8; within a partition GPUs
differ as in any lab. The same jobs arrive at the same moments in each arm, and all may run in all three
partitions, the fastest named first. Arm `plain` is sbatch; the others are palsub with pal-rebalance beside it,
which shares out partitions by that policy, from a table of throughputs accurate to 5 %.
The twin replays the same jobs in each arm: the same programs over a virtual Slurm with the lab's settings. Times are
those of a lab: jobs of a minute, ticks of two seconds. With --dry there is no lab, only the twin, for so many seeds.
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
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, GpuShape
from slurm_pal.emulation.gpus import draw_registry
from slurm_pal.lab.conf import SCHEDULER
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.replay import ReplayPlan
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.trial.prediction import config_of, pairs_of
from slurm_pal.twin.run import Arm, Twin, replay

NODES, GPUS_PER_NODE, TICK_S, SAVE_S = 8, 4, 2.0, 1.0
SPEEDS = {
    "A": {"v100": 1.0, "a100": 2.5, "h100": 6.0},
    "B": {"v100": 1.0, "a100": 1.8, "h100": 3.0},
    "C": {"v100": 1.0, "a100": 1.3, "h100": 1.8},
}
LIST = "h100,a100,v100"
MOVING = {"minimum_s": 5.0, "end_guard_s": 5.0, "move_cost_s": 8.0, "moves_per_tick": 8, "moves_per_user": 8}
"""Settings of [rebalance] where jobs of a minute may be moved; the others are the defaults."""


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


def throughput_table(path: str, seed: int, placebo: str = "") -> None:
    """What the site believes: each application's speeds, each wrong by 5 % or so; or those of a placebo."""
    rng = random.Random(seed + 99)
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("application", "gpus", "type", "relative_speed", "relative_error"))
        for c, speeds in SPEEDS.items():
            for gpus in (1, 2, 4):
                swapped = {**speeds, "v100": speeds["h100"], "h100": speeds["v100"]}
                told = {"": speeds, "alike": dict.fromkeys(speeds, 1.0), "swapped": swapped}
                for kind, speed in told[placebo].items():
                    writer.writerow((f"app{c}", gpus, kind, f"{speed * rng.lognormvariate(0, 0.05):.3f}", 0.05))


def settings_of(arm: str, table: str, *, moves: bool) -> dict[str, str]:
    """Those of [rebalance], of an arm with a tick."""
    found = {"moves": str(moves).lower(), "interval_s": f"{TICK_S:g}", "allocation": arm, "throughputs": table}
    return found | ({name: f"{value:g}" for name, value in MOVING.items()} if moves else {})


def submit(job: Job, number: int, arm: str, directory: str, env: dict[str, str]) -> None:
    moves = env.get("SLURM_PAL_REBALANCE_MOVES") == "true"
    work = f"{program('pal')} lab work --class {job.sensitivity} --seconds {job.seconds:.2f} --json"
    work += f" --checkpoint {directory}/saved-{number}" if moves else ""
    words = [f"--job-name=app{job.sensitivity}", "-p", LIST, "-N1", f"--gres=gpu:{job.gpus}"]
    words += [f"--time={job.limit_min}", "-o", os.path.join(directory, f"out-{number}")]
    command = ["sbatch"] if arm == "plain" else [program("palsub"), f"--pal-class={job.sensitivity}"]
    command += ["--pal-checkpoint=USR1"] if moves else []
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


def arm_of(arm: str, jobs: Sequence[Job], env: dict[str, str], root: str, *, moves: bool) -> list[Ran]:
    directory = os.path.join(root, arm.replace(":", "-"))
    if arm == "plain":
        return play(jobs, arm, env, directory)
    settings = settings_of(arm, os.path.join(root, "throughputs.csv"), moves=moves)
    tuned = env | {f"SLURM_PAL_REBALANCE_{name.upper()}": value for name, value in settings.items()}
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


# -- the same jobs by the twin --------------------------------------------------------------


def machine(seed: int) -> Hardware:
    """The lab's GPUs. What is measured of a GPU is relative to its model."""
    names, kinds = [f"n{k}" for k in range(3 * NODES)], LIST.split(",")
    true = {c: [[0.0] * GPUS_PER_NODE for _ in names] for c in SENSITIVITY_CLASSES}
    believed = {c: [[0.0] * GPUS_PER_NODE for _ in names] for c in SENSITIVITY_CLASSES}
    for gpu in draw_registry(names, GPUS_PER_NODE, seed).gpus:
        node, index = names.index(gpu.node), gpu.index
        for c in SENSITIVITY_CLASSES:
            believed[c][node][index] = gpu.true_slowdown(c)
            true[c][node][index] = gpu.true_slowdown(c) * SPEEDS[c]["h100"] / SPEEDS[c][kinds[node // NODES]]
    partitions = {kind: range(k * NODES, (k + 1) * NODES) for k, kind in enumerate(kinds)}
    return hardware(true, believed, names, partitions, [kinds[node // NODES] for node in range(len(names))])


class Terms(NamedTuple):
    """How an arm is run by the twin."""

    moves: bool = False
    submits: str = "palsub"
    placebo: str = ""


def simulated(jobs: Sequence[Job], arm: str, seed: int, terms: Terms) -> tuple[float, float]:
    """(mean completion, makespan), s, by the same programs over a virtual Slurm with the lab's settings."""
    rows = [
        TraceJob(
            str(k), job.at_s, GpuShape(job.gpus, nodes=1), job.seconds, job.sensitivity, 60.0 * job.limit_min,
            app=f"app{job.sensitivity}", partition=LIST, movable=terms.moves,
        )
        for k, job in enumerate(jobs)
    ]  # fmt: skip
    settings: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="pal") as folder:
        if arm != "plain":
            table = os.path.join(folder, "throughputs.csv")
            throughput_table(table, seed, terms.placebo)
            wanted = settings_of(arm, table, moves=terms.moves)
            settings = {f"rebalance.{name}": value for name, value in wanted.items()}
        twin = Twin(config_of(settings), pairs_of(()) | {"SchedulerParameters": SCHEDULER})
        plain = arm == "plain"
        plan = ReplayPlan(
            Trace("jobs", tuple(rows)), machine(seed), "tick", seed=seed, settings=ReplaySettings(move_cost_s=SAVE_S)
        )  # fmt: skip
        ran = replay(plan, twin, Arm("plain") if plain else Arm(terms.submits, ticks=True)).outcomes
    mean_s = statistics.fmean(one.finish_s - one.submit_s for one in ran)
    return round(mean_s, 2), round(max(one.finish_s for one in ran), 1)


def dry(arms: Sequence[str], count: int, load: float, seeds: int, terms: Terms) -> None:
    """Of each arm what the twin says over plain: of each seed, and the mean."""
    traces = [(draw(seed, count, load), seed) for seed in range(1, seeds + 1)]
    plain = [simulated(jobs, "plain", seed, Terms()) for jobs, seed in traces]
    for arm in arms:
        pairs = zip((simulated(jobs, arm, seed, terms) for jobs, seed in traces), plain, strict=True)
        ratios = [(jct_s / other_s, end_s / last_s) for (jct_s, end_s), (other_s, last_s) in pairs]
        completion, makespan = (round(statistics.fmean(some), 3) for some in zip(*ratios, strict=True))
        each = [round(ratio, 3) for ratio, _ in ratios]
        print(json.dumps({"arm": arm, "completion": completion, "makespan": makespan, "each": each}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", default="plain,nonpreemptive-makespan,gavel:max-min")
    parser.add_argument("--dry", type=int, default=0, metavar="SEEDS", help="only what the twin says, over plain")
    parser.add_argument("--submits", choices=("palsub", "filter"), default="palsub", help="with --dry: by what")
    parser.add_argument(
        "--placebo", choices=("alike", "swapped"), default="", help="with --dry: the policy is told that all types are "
        "alike, or the fastest one for the slowest and the reverse",
    )  # fmt: skip
    parser.add_argument("--moves", action="store_true", help="all jobs have a checkpoint, and running ones are moved")
    parser.add_argument("--keep", action="store_true", help="leave logs and results")
    args = parser.parse_args()
    if args.dry:
        dry(args.arms.split(","), args.jobs, args.load, args.dry, Terms(args.moves, args.submits, args.placebo))
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
            run(jobs, args.seed, args.arms.split(","), lab.environ(), root, moves=args.moves)
    finally:
        if args.keep:
            print(f"kept in {root}")
        else:
            shutil.rmtree(root)


def run(jobs: Sequence[Job], seed: int, arms: Sequence[str], env: dict[str, str], root: str, *, moves: bool) -> None:
    for k, kind in enumerate(LIST.split(",")):
        nodes = f"Nodes=n[{k * NODES}-{(k + 1) * NODES - 1}]"
        subprocess.run(["scontrol", "create", f"PartitionName={kind}", nodes, "State=UP"], env=env, check=True)
    sweep = [program("pal-profile"), "run", "--yes", "--max-parallel", "8"]
    subprocess.run(sweep, env=env, check=True, capture_output=True)
    for arm in arms:
        ran = arm_of(arm, jobs, env, root, moves=moves)
        found = {"arm": arm, **summary(jobs, ran), "simulated": simulated(jobs, arm, seed, Terms(moves))}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
