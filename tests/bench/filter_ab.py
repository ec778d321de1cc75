# SPDX-License-Identifier: MIT
"""The same jobs on one lab with and without the submit filter: completion, and whether waiting paid.

    python tests/bench/filter_ab.py [--jobs 200] [--load 0.8] [--seeds 1 2] [--json]

A lab of 8 x 4 emulated GPUs with the filter, measured by pal-profile, and `pal publish-table --every 1`
beside it. For each seed the same jobs arrive at the same moments twice, by plain sbatch:
once with SLURM_PAL_OFF=1, once without, in random order. A job that waited over a second longer for its
start than in the other run counts as later; its wait paid if it still ended no later.
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
from typing import NamedTuple

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab

GPUS = 32
LATER_S = 1.0


class Job(NamedTuple):
    at_s: float
    sensitivity: str
    gpus: int
    seconds: float


class Ran(NamedTuple):
    waited_s: float
    completion_s: float
    slowdown: float
    mark: str


def draw(seed: int, count: int, load: float) -> list[Job]:
    """Poisson arrivals; sizes 1, 2, 4; run times of 6 to 24 s; a third of each class."""
    rng = random.Random(seed)
    shapes = [(rng.choice("ABC"), rng.choice((1, 1, 1, 2, 2, 4)), rng.uniform(6, 24)) for _ in range(count)]
    rate = load * GPUS / statistics.fmean(gpus * seconds for _, gpus, seconds in shapes)
    at_s, jobs = 0.0, []
    for shape in shapes:
        at_s += rng.expovariate(rate)
        jobs.append(Job(at_s, *shape))
    return jobs


def play(jobs: list[Job], env: dict[str, str], directory: str) -> list[Ran]:
    """Submit all jobs at their moments and wait for their ends."""
    os.mkdir(directory)
    began, ids, submitted = time.time(), [], []
    for job in jobs:
        time.sleep(max(0.0, began + job.at_s - time.time()))
        work = f"exec {program('pal')} lab work --class {job.sensitivity} --seconds {job.seconds:.2f} --json"
        script = f"#!/bin/sh\n#PAL class={job.sensitivity}\n{work}\n"
        words = ["sbatch", "--parsable", "-o", os.path.join(directory, "%j"), f"--gres=gpu:{job.gpus}", "--time=1"]
        submitted.append(time.time())
        done = subprocess.run(words, input=script, env=env, capture_output=True, text=True, check=True)
        ids.append(int(done.stdout.split(";")[0]))
    while subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(0.5)
    marks = {}
    shown = subprocess.run(["scontrol", "-o", "show", "job"], env=env, capture_output=True, text=True, check=True)
    for line in shown.stdout.splitlines():
        words_of = dict(word.partition("=")[::2] for word in line.split())
        marks[words_of["JobId"]] = words_of.get("AdminComment", "")
    return [result(directory, job_id, at_s, marks[str(job_id)]) for job_id, at_s in zip(ids, submitted, strict=True)]


def result(directory: str, job_id: int, at_s: float, mark: str) -> Ran:
    with open(os.path.join(directory, str(job_id)), encoding="utf-8") as stream:
        text = stream.read()
    if not text.startswith("{"):
        raise SystemExit(f"job {job_id} left no result: {text.strip()}")
    said = json.loads(text)
    slowdown = said["slowdown"] * said["locality"]
    return Ran(said["started_s"] - at_s, said["ended_s"] - at_s, slowdown, mark)


def compare(jobs: list[Job], plain: list[Ran], ours: list[Ran]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in ("A", "B", "C", "all"):
        pairs = [(p, o) for job, p, o in zip(jobs, plain, ours, strict=True) if name in ("all", job.sensitivity)]
        found[f"completion_{name}"] = round(
            statistics.fmean(o.completion_s for _, o in pairs) / statistics.fmean(p.completion_s for p, _ in pairs), 3
        )
        found[f"slowdown_{name}"] = [
            round(statistics.fmean(r.slowdown for r in side), 3) for side in zip(*pairs, strict=True)
        ]
    later = [(p, o) for p, o in zip(plain, ours, strict=True) if o.waited_s > p.waited_s + LATER_S]
    earlier = sum(p.waited_s > o.waited_s + LATER_S for p, o in zip(plain, ours, strict=True))
    leased = [(p, o) for p, o in later if "act=exclude" in o.mark or "act=nodelist" in o.mark]
    found["waited_s"] = [round(statistics.fmean(r.waited_s for r in side), 2) for side in (plain, ours)]
    found |= {"later": len(later), "earlier": earlier, "later_with_lease": len(leased)}
    for name, group in (("later", later), ("later_with_lease", leased)):
        found[f"{name}_paid"] = sum(o.completion_s <= p.completion_s for p, o in group)
    for act in ("nodelist", "exclude", "none"):
        found[f"act_{act}"] = sum(f"act={act}" in o.mark for o in ours)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="pal")
    try:
        for seed in args.seeds:
            jobs, first = draw(seed, args.jobs, args.load), random.Random(seed).choice(("plain", "ours"))
            with Lab.up(os.path.join(root, "lab"), nodes=8, gpus=4, seed=seed, submit_filter=True) as lab:
                env = lab.environ()
                subprocess.run(
                    [program("pal-profile"), "run", "--yes", "--max-parallel", "8"],
                    env=env,
                    check=True,
                    capture_output=True,
                )
                publisher = subprocess.Popen([program("pal"), "publish-table", "--every", "1"], env=env)
                try:
                    time.sleep(3)
                    ran = {}
                    for side in (first, "ours" if first == "plain" else "plain"):
                        off = {"SLURM_PAL_OFF": "1"} if side == "plain" else {}
                        ran[side] = play(jobs, env | off, os.path.join(root, f"{seed}-{side}"))
                finally:
                    publisher.terminate()
                    publisher.wait()
            found = {"seed": seed, "first": first, **compare(jobs, ran["plain"], ran["ours"])}
            print(json.dumps(found) if args.json else "\n".join(f"{k}: {v}" for k, v in found.items()), flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
