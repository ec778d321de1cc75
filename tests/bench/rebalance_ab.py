# SPDX-License-Identifier: MIT
"""The same jobs on one real Slurm four times: plain, palsub, with retargeting, with moves; and the simulator beside it.

    python tests/bench/rebalance_ab.py [--jobs 300] [--nodes 64] [--load 0.9] [--seed 1] [--arms plain,palsub,...]

A lab of 64 x 4 emulated GPUs, measured by pal-profile. The same jobs arrive at the same
moments in each arm: `plain` by sbatch; `palsub`; `retarget` with pal-rebalance beside it,
moves off; `moves` with all of it, every job movable with a checkpoint. Work is emulated by
`pal lab work`, which runs at the pace of its slowest GPU and resumes from its checkpoint.
The simulator replays the same jobs on the same GPUs under the policies nearest to the arms.
Times are those of the lab: jobs of half a minute, ticks of two seconds, moves that cost two.
"""

from __future__ import annotations

import argparse
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
from slurm_pal.emulation.gpus import Registry
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.moves.worth import MoveLimits
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.store import snapshot

GPUS_PER_NODE = 4
MINIMUM_S, TICK_S, COST_S, PASS_S = 6.0, 2.0, 2.0, 1.0
TUNED = {
    "SLURM_PAL_REBALANCE_MINIMUM_S": f"{MINIMUM_S}", "SLURM_PAL_REBALANCE_END_GUARD_S": "5",
    "SLURM_PAL_REBALANCE_MOVE_COST_S": f"{COST_S}", "SLURM_PAL_REBALANCE_MOVES_PER_TICK": "16",
    "SLURM_PAL_REBALANCE_MOVES_PER_USER": "16", "SLURM_PAL_SUBMIT_EXPECTED_RUN_SHARE": "0.5",
}  # fmt: skip
"""Half a minute stands for hours here, so the tick's patience is scaled as the jobs are."""
POLICIES = {"plain": "slurm", "palsub": "class-fit", "retarget": "class-fit-wait", "moves": "pal-fit"}


class Job(NamedTuple):
    at_s: float
    sensitivity: str
    gpus: int
    seconds: float  # on median GPUs

    @property
    def limit_min(self) -> int:
        """Time limits are whole minutes; half of it is what is expected."""
        return max(1, round(2 * self.seconds / 60 + 0.49))


class Ran(NamedTuple):
    job_id: int
    waited_s: float
    completion_s: float
    ended_s: float  # since the first submission
    resumed: float  # share of the work that was done when it was last moved
    slowdown: float  # where it ended
    gap_s: float  # from its last checkpoint until it ran again; 0.0 for a job that was not moved
    repeated: int  # ends of its work before the last one


def draw(seed: int, count: int, nodes: int, load: float) -> list[Job]:
    """Poisson arrivals; sizes 1, 2, 4; run times of 20 to 60 s; a third of each class."""
    rng = random.Random(seed)
    shapes = [(rng.choice("ABC"), rng.choice((1, 1, 2, 4, 4)), rng.uniform(20, 60)) for _ in range(count)]
    rate = load * nodes * GPUS_PER_NODE / statistics.fmean(gpus * seconds for _, gpus, seconds in shapes)
    at_s, jobs = 0.0, []
    for shape in shapes:
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, *shape))
    return jobs


def submit(job: Job, number: int, arm: str, directory: str, env: dict[str, str]) -> int:
    saved = os.path.join(directory, f"saved-{number}")
    work = f"{program('pal')} lab work --class {job.sensitivity} --seconds {job.seconds:.2f} --json"
    tail = f" --checkpoint {saved}" if arm == "moves" else ""
    words = ["--parsable", "-o", os.path.join(directory, f"out-{number}"), "--open-mode=append"]
    words += ["-N1", f"--gres=gpu:{job.gpus}", f"--time={job.limit_min}"]
    ours = [] if arm == "plain" else [f"--pal-class={job.sensitivity}"]
    ours += ["--pal-checkpoint=USR1"] if arm == "moves" else []
    command = ["sbatch"] if arm == "plain" else [program("palsub"), *ours]
    script = f"#!/bin/sh\nexec {work}{tail}\n"
    done = subprocess.run([*command, *words], input=script, env=env, capture_output=True, text=True, check=True)
    return int(done.stdout.split(";")[0])


def play(jobs: Sequence[Job], arm: str, env: dict[str, str], directory: str) -> list[Ran]:
    """Submit all jobs at their moments and wait for their ends."""
    os.mkdir(directory)
    began, submitted = time.time(), []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at_s - time.time()))
        at_s = time.time()
        submitted.append((submit(job, number, arm, directory, env), at_s))
    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(0.5)
    return [result(directory, number, *one, began) for number, one in enumerate(submitted)]


def result(directory: str, number: int, job_id: int, at_s: float, began: float) -> Ran:
    path, saved = (os.path.join(directory, f"{kind}-{number}") for kind in ("out", "saved"))
    with open(path, encoding="utf-8") as stream:
        said = [json.loads(line) for line in stream if line.startswith("{")]
    if not said:
        raise SystemExit(f"{path}: no result")
    # A job that ends by itself between its acknowledgement and the requeue runs once more from its checkpoint.
    start_s, end_s, resumed = said[-1]["started_s"], said[-1]["ended_s"], said[-1]["resumed"]
    gap_s = start_s - os.stat(saved).st_mtime if resumed else 0.0
    slowdown = said[-1]["slowdown"]
    return Ran(job_id, start_s - at_s, end_s - at_s, end_s - began, resumed, slowdown, gap_s, len(said) - 1)


def arm_of(arm: str, jobs: Sequence[Job], lab: Lab, root: str) -> dict[str, object]:
    """One arm, with its tick where it has one."""
    env = lab.environ()
    directory = os.path.join(root, arm)
    if arm in ("plain", "palsub"):
        ran = play(jobs, arm, env, directory)
        return summary(jobs, ran)
    tuned = env | TUNED | {"SLURM_PAL_REBALANCE_MOVES": str(arm == "moves").lower()}
    command = [program("pal-rebalance"), "--daemon", "--act", f"--every={TICK_S:g}"]
    with open(os.path.join(root, f"{arm}.log"), "w", encoding="utf-8") as log:
        tick = subprocess.Popen(command, env=tuned, stderr=log)
        try:
            time.sleep(3)
            ran = play(jobs, arm, tuned, directory)
        finally:
            tick.terminate()
            tick.wait()
    return summary(jobs, ran) | moves(jobs, ran, lab.registry(), tuned)


def summary(jobs: Sequence[Job], ran: Sequence[Ran]) -> dict[str, object]:
    found: dict[str, object] = {"makespan_s": round(max(one.ended_s for one in ran), 1)}
    for name in (*SENSITIVITY_CLASSES, "all"):
        mine = [one for job, one in zip(jobs, ran, strict=True) if name in ("all", job.sensitivity)]
        found[f"completion_{name}_s"] = round(statistics.fmean(one.completion_s for one in mine), 2)
    found |= {"resumed": sum(one.resumed > 0 for one in ran), "repeated": sum(one.repeated for one in ran)}
    return found


def moves(jobs: Sequence[Job], ran: Sequence[Ran], registry: Registry, env: dict[str, str]) -> dict[str, object]:
    """What the tick predicted of its moves, and what they brought by the GPUs' true slowdowns and the clock.

    Of a job that was moved more than once only the last move can be seen from outside.
    """
    shown = subprocess.run([program("pal"), "moves", "--json"], env=env, capture_output=True, text=True, check=True)
    told = json.loads(shown.stdout)["moves"]
    last = {move["job_id"]: move for move in told if move["outcome"] == "moved"}
    predicted_s = true_s = gaps_s = 0.0
    for job, one in zip(jobs, ran, strict=True):
        if one.job_id in last and one.resumed:
            held = [place.partition(":") for place in last[one.job_id]["source"].split()]
            before = max(
                registry.gpu(node, int(k)).true_slowdown(job.sensitivity)
                for node, _, indexes in held
                for k in indexes.split(",")
            )
            predicted_s += last[one.job_id]["gain_s"]
            true_s += (1 - one.resumed) * job.seconds * (before - one.slowdown)
            gaps_s += one.gap_s
    return {
        "moves": len(told),
        "outcomes": {what: sum(m["outcome"] == what for m in told) for what in sorted({m["outcome"] for m in told})},
        "gain_predicted_s": round(predicted_s, 1),
        "gain_true_s": round(true_s, 1),
        "gap_s": round(gaps_s / max(1, len(last)), 2),
    }


def simulated(jobs: Sequence[Job], scores: snapshot.Snapshot, arms: Sequence[str], cost_s: float) -> dict[str, float]:
    """Mean completion of the arms' nearest policies by the simulator, s."""
    tables = {
        c: [
            [float(scores.slowdown(c, node, k) or 1.0) for k in range(len(scores.rows[node]))]
            for node in sorted(scores.nodes, key=lambda name: int(name.lstrip("n")))
        ]
        for c in SENSITIVITY_CLASSES
    }
    rows = [
        TraceJob(
            str(k),
            job.at_s,
            GpuShape(job.gpus, nodes=1, per_node=job.gpus),
            job.seconds,
            job.sensitivity,
            60.0 * job.limit_min,
        )
        for k, job in enumerate(jobs)
    ]
    found = {}
    for arm in arms:
        settings = ReplaySettings(
            steer="submit" if arm == "palsub" else "start",
            backfill_interval_s=PASS_S,
            tick_s=TICK_S,
            move_cost_s=cost_s,
            limits=MoveLimits(minimum_s=MINIMUM_S, per_tick=16, chained=False),
        )
        done = replay(ReplayPlan(Trace("bench", tuple(rows)), hardware(tables), POLICIES[arm], settings=settings))
        found[arm] = round(statistics.fmean(o.finish_s - o.submit_s for o in done.outcomes), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", default=",".join(POLICIES))
    parser.add_argument("--keep", action="store_true", help="leave logs and results")
    args = parser.parse_args()
    root, arms = tempfile.mkdtemp(prefix="pal"), args.arms.split(",")
    jobs = draw(args.seed, args.jobs, args.nodes, args.load)
    try:
        with Lab.up(os.path.join(root, "lab"), nodes=args.nodes, gpus=GPUS_PER_NODE, seed=args.seed) as lab:
            env = lab.environ()
            sweep = [program("pal-profile"), "run", "--yes", "--max-parallel", "16"]
            subprocess.run(sweep, env=env, check=True, capture_output=True)
            with open(lab.directory.pal_toml, encoding="utf-8") as stream:
                state_dir = next(line for line in stream if "state_dir" in line).split('"')[1]
            scores = snapshot.read(os.path.join(state_dir, "snapshot"))
            predicted = simulated(jobs, scores, arms, COST_S)
            for arm in arms:
                found = {"arm": arm, **arm_of(arm, jobs, lab, root), "simulated_s": predicted[arm]}
                print(json.dumps(found), flush=True)
    finally:
        if args.keep:
            print(f"kept in {root}")
        else:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
