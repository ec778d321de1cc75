# SPDX-License-Identifier: MIT
"""How `pal simulate` grows: CPU time and memory of one replay for growing traces and clusters.

Usage: simulate_scale.py [--jobs N,N,..] [--gpus N,N,..] [--policies NAME,..] [--queue NAME] [--load X] [--seed N]

One line for each policy, cluster and trace, each replayed in a process of its own. Traces
are generated (the default mix of sizes and run times) at `load` of the
cluster; nodes have 8 GPUs, one GPU in a hundred is an outlier. RSS is the process's
peak; "trace MiB" is what it had before the replay began.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.inputs.generate import TraceSpec, generate
from slurm_pal.simulate.replay import ReplayPlan, replay

NODE_GPUS = 8
SIGMA = {"A": 0.03, "B": 0.02, "C": 0.005, "D": 0.005}
OUTLIER_SHARE, OUTLIER_FACTOR = 0.01, {"A": 1.5, "B": 1.4, "C": 1.02, "D": 1.0}
COLUMNS = "policy        jobs    GPUs  load   CPU s  us/job  moves  timeline rows  trace MiB  peak MiB  bytes/job"


def cluster(gpus: int, seed: int) -> Hardware:
    """Log-normal slowdowns per class, with a few outliers that are slow for all compute-bound classes."""
    rng = np.random.default_rng(seed)
    nodes = gpus // NODE_GPUS
    slow = rng.random((nodes, NODE_GPUS)) < OUTLIER_SHARE
    tables = {
        name: np.where(slow, OUTLIER_FACTOR[name], 1.0) * rng.lognormal(0.0, sigma, (nodes, NODE_GPUS))
        for name, sigma in SIGMA.items()
    }
    return hardware({name: np.round(table, 4).tolist() for name, table in tables.items()})


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(policy: str, queue: str, jobs: int, gpus: int, load: float, seed: int) -> str:
    """Replay once; the line of the table."""
    machine = cluster(gpus, seed)
    trace = generate(TraceSpec(jobs=jobs, seed=seed, load=load, cluster_gpus=gpus))
    before_mib, start = rss_mib(), time.process_time()
    run = replay(ReplayPlan(trace, machine, policy, queue, seed))
    cpu_s = time.process_time() - start
    peak_mib = rss_mib()
    return (
        f"{policy:<10} {jobs:>7} {gpus:>7} {load:>5.2f} {cpu_s:>7.1f} {cpu_s / jobs * 1e6:>7.0f} {run.moves:>6}"
        f" {len(run.timeline.time_s):>14} {before_mib:>10.0f} {peak_mib:>9.0f}"
        f" {(peak_mib - before_mib) * 2**20 / jobs:>10.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="1000,5000,20000")
    parser.add_argument("--gpus", default="1000,10000")
    parser.add_argument("--policies", default="packed,pal-fit")
    parser.add_argument("--queue", default="fifo")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="replay the only combination in this process")
    asked = parser.parse_args()
    combinations = [
        (policy, jobs, gpus)
        for policy in asked.policies.split(",")
        for gpus in map(int, asked.gpus.split(","))
        for jobs in map(int, asked.jobs.split(","))
    ]
    if asked.alone:
        ((policy, jobs, gpus),) = combinations
        print(one(policy, asked.queue, jobs, gpus, asked.load, asked.seed), flush=True)
        return
    print(COLUMNS, flush=True)
    for policy, jobs, gpus in combinations:
        argv = [sys.executable, __file__, "--alone", f"--policies={policy}", f"--jobs={jobs}", f"--gpus={gpus}"]
        subprocess.run([*argv, f"--queue={asked.queue}", f"--load={asked.load}", f"--seed={asked.seed}"], check=True)


if __name__ == "__main__":
    main()
