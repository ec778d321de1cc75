# SPDX-License-Identifier: MIT
"""The same jobs on one real Slurm four times: plain, palsub, with retargeting, with moves; and the simulator beside it.

    python tests/bench/rebalance_ab.py [--jobs 300] [--nodes 64] [--load 0.9] [--seed 1] [--arms plain,palsub,...]
    python tests/bench/rebalance_ab.py --arms moves --movable 1,0.2,0 [--slow 0.3:2] [--seconds 30:90] > seed-1.json
    python tests/bench/rebalance_ab.py --together seed-*.json

A lab of 64 x 4 emulated GPUs, measured by pal-profile. The same jobs arrive at the same
moments in each arm: `plain` by sbatch; `palsub`; `retarget` with pal-rebalance beside it,
moves off; `moves` with all of it, every job movable with a checkpoint. Work is emulated by
`pal lab work`, which runs at the pace of its slowest GPU and resumes from its checkpoint.
The simulator replays the same jobs on the same GPUs under the policies nearest to the arms.
With `--movable` there is an arm `moves` for each share of jobs with a checkpoint: a job of a smaller share is in each
larger one, too. `--together` compares these arms over the traces (seeds) of several runs with the share of 0.
Times are those of the lab: jobs of half a minute, ticks of two seconds, moves that cost two.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES, GpuShape
from slurm_pal.emulation.gpus import Registry
from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.moves.worth import MoveLimits
from slurm_pal.simulate.hardware import hardware
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.statistics import summary as ratio
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
    lot: float  # it is movable where the share of movable jobs is above this

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


def draw(seed: int, count: int, nodes: int, load: float, times: tuple[float, float] = (20.0, 60.0)) -> list[Job]:
    """Poisson arrivals; sizes 1, 2, 4; run times between these, s; a third of each class."""
    rng, lots = random.Random(seed), random.Random(-seed)
    shapes = [(rng.choice("ABC"), rng.choice((1, 1, 2, 4, 4)), rng.uniform(*times)) for _ in range(count)]
    rate = load * nodes * GPUS_PER_NODE / statistics.fmean(gpus * seconds for _, gpus, seconds in shapes)
    at_s, jobs = 0.0, []
    for shape in shapes:
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, *shape, lots.random()))
    return jobs


def write_gpus(path: str, nodes: int, share: float, factor: float, seed: int) -> None:
    """A table of GPUs of which a share is so much slower for class A, a third of that for B."""
    count = nodes * GPUS_PER_NODE
    slow = random.Random(seed).sample(range(count), round(share * count))
    with open(path, "w", encoding="utf-8") as stream:
        stream.write("node,index,A,B,C\n")
        for number in range(count):
            slower = factor - 1 if number in slow else 0.0
            node, index = divmod(number, GPUS_PER_NODE)
            stream.write(f"n{node},{index},{1 + slower},{1 + slower / 3:.4f},1\n")


def submit(job: Job, number: int, arm: str, share: float, directory: str, env: dict[str, str]) -> int:
    saved = os.path.join(directory, f"saved-{number}")
    work = f"{program('pal')} lab work --class {job.sensitivity} --seconds {job.seconds:.2f} --json"
    movable = arm == "moves" and job.lot < share
    tail = f" --checkpoint {saved}" if movable else ""
    words = ["--parsable", "-o", os.path.join(directory, f"out-{number}"), "--open-mode=append"]
    words += ["-N1", f"--gres=gpu:{job.gpus}", f"--time={job.limit_min}"]
    ours = [] if arm == "plain" else [f"--pal-class={job.sensitivity}"]
    ours += ["--pal-checkpoint=USR1"] if movable else []
    command = ["sbatch"] if arm == "plain" else [program("palsub"), *ours]
    script = f"#!/bin/sh\nexec {work}{tail}\n"
    done = subprocess.run([*command, *words], input=script, env=env, capture_output=True, text=True, check=True)
    return int(done.stdout.split(";")[0])


def play(jobs: Sequence[Job], arm: str, share: float, env: dict[str, str], directory: str) -> list[Ran]:
    """Submit all jobs at their moments and wait for their ends."""
    os.mkdir(directory)
    began, submitted = time.time(), []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at_s - time.time()))
        at_s = time.time()
        submitted.append((submit(job, number, arm, share, directory, env), at_s))
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


def arm_of(arm: str, share: float, jobs: Sequence[Job], lab: Lab, root: str) -> dict[str, object]:
    """One arm, with its tick where it has one."""
    env = lab.environ()
    directory = os.path.join(root, f"{arm}-{share:g}")
    if arm in ("plain", "palsub"):
        ran = play(jobs, arm, share, env, directory)
        return summary(jobs, ran)
    tuned = env | TUNED | {"SLURM_PAL_REBALANCE_MOVES": str(arm == "moves").lower()}
    command = [program("pal-rebalance"), "--daemon", "--act", f"--every={TICK_S:g}"]
    for left in glob.glob(os.path.join(state_of(lab), "rebalance.db*")):  # no arm learns from one before
        os.remove(left)
    with open(f"{directory}.log", "w", encoding="utf-8") as log:
        tick = subprocess.Popen(command, env=tuned, stderr=log)
        try:
            time.sleep(3)
            ran = play(jobs, arm, share, tuned, directory)
        finally:
            tick.terminate()
            tick.wait()
    return summary(jobs, ran) | moves(jobs, ran, lab.registry(), tuned)


def state_of(lab: Lab) -> str:
    with open(lab.directory.pal_toml, encoding="utf-8") as stream:
        return next(line for line in stream if "state_dir" in line).split('"')[1]


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
    ids = {one.job_id for one in ran}
    told = [move for move in json.loads(shown.stdout)["moves"] if move["job_id"] in ids]
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


def simulated(
    jobs: Sequence[Job], scores: snapshot.Snapshot, arm: str, share: float, cost_s: float
) -> dict[str, float]:
    """Mean completion of the arm's nearest policy by the simulator, s, and its moves."""
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
            movable=job.lot < share,
        )
        for k, job in enumerate(jobs)
    ]
    settings = ReplaySettings(
        steer="submit" if arm == "palsub" else "start",
        backfill_interval_s=PASS_S,
        tick_s=TICK_S,
        move_cost_s=cost_s,
        limits=MoveLimits(minimum_s=MINIMUM_S, per_tick=16, chained=False),
    )
    done = replay(ReplayPlan(Trace("bench", tuple(rows)), hardware(tables), POLICIES[arm], settings=settings))
    mean_s = statistics.fmean(o.finish_s - o.submit_s for o in done.outcomes)
    return {"simulated_s": round(mean_s, 2), "simulated_moves": sum(o.moves for o in done.outcomes)}


def together(paths: Sequence[str]) -> None:
    """Each share of movable jobs over the share of 0, from six traces on with 95 % intervals of the mean ratio."""
    rows: dict[float, dict[int, dict[str, float]]] = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            row = json.loads(line)
            rows.setdefault(row["movable"], {})[row["seed"]] = row
    for share in sorted(rows, reverse=True):
        whole = rows[share].keys() & rows[0.0].keys()
        said: dict[str, object] = {"movable": share, "traces": len(whole)}
        said |= {name: sum(rows[share][seed][name] for seed in whole) for name in ("resumed", "simulated_moves")}
        for name in ("completion_all_s", "completion_A_s", "simulated_s"):
            over = [rows[share][seed][name] / rows[0.0][seed][name] for seed in sorted(whole)]
            said[f"mean_{name}"] = round(statistics.fmean(rows[share][seed][name] for seed in whole), 2)
            if share:
                said[f"over_none_{name}"] = [one and round(one, 3) for one in ratio(over)[:3]]
                said[f"each_{name}"] = [round(one, 3) for one in over]
        live = [rows[share][seed]["completion_all_s"] / rows[share][seed]["simulated_s"] for seed in whole]
        print(json.dumps(said | {"live_over_simulated": round(statistics.fmean(live), 3)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", default=",".join(POLICIES))
    parser.add_argument("--movable", default="1", help="shares of movable jobs, an arm moves for each")
    parser.add_argument("--seconds", default="20:60", help="least and most run time of a job on median GPUs, s")
    parser.add_argument("--slow", default="", metavar="SHARE:FACTOR", help="so many GPUs slower (default: as drawn)")
    parser.add_argument("--together", nargs="+", metavar="FILE", help="compare what earlier runs have printed")
    parser.add_argument("--keep", action="store_true", help="leave logs and results")
    args = parser.parse_args()
    if args.together:
        together(args.together)
        return
    root, shares = tempfile.mkdtemp(prefix="pal"), [float(share) for share in args.movable.split(",")]
    wanted = [(arm, share) for arm in args.arms.split(",") for share in (shares if arm == "moves" else [1.0])]
    least_s, most_s = map(float, args.seconds.split(":"))
    jobs, table = draw(args.seed, args.jobs, args.nodes, args.load, (least_s, most_s)), ""
    if args.slow:
        share, factor = map(float, args.slow.split(":"))
        table = os.path.join(root, "gpus.csv")
        write_gpus(table, args.nodes, share, factor, args.seed)
    lab_at = os.path.join(root, "lab")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` leaves no lab
    try:
        with Lab.up(lab_at, nodes=args.nodes, gpus=GPUS_PER_NODE, seed=args.seed, gpu_table=table or None) as lab:
            env = lab.environ()
            sweep = [program("pal-profile"), "run", "--yes", "--max-parallel", "16"]
            subprocess.run(sweep, env=env, check=True, capture_output=True)
            scores = snapshot.read(os.path.join(state_of(lab), "snapshot"))
            for arm, share in wanted:
                said = {"seed": args.seed, "arm": arm} | ({"movable": share} if arm == "moves" else {})
                live = arm_of(arm, share, jobs, lab, root)
                found = {**said, **live, **simulated(jobs, scores, arm, share, COST_S)}
                print(json.dumps(found), flush=True)
    finally:
        if args.keep:
            print(f"kept in {root}")
        else:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
