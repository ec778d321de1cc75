# SPDX-License-Identifier: MIT
"""The twin's policies beside two studies of the simulator: the same traces, GPUs and submissions.

    python tests/bench/twin_ratios.py TRACE... [--cluster 16x4] [--seeds 2] [--interval 60]

Prints a row for each trace, seed and policy, and the mean of each policy's ratio to stock Slurm (`slurm-twin`).
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import fmean

from slurm_pal.base.config import Config
from slurm_pal.simulate.experiment import Experiment, ReplayTask
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin.run import Twin

POLICIES = ("slurm", "packed", "slurm-twin", "palsub", "filter", "tick")
BASELINE = "slurm-twin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--cluster", default="16x4")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--interval", type=float, default=60.0, help="s between two ticks")
    asked = parser.parse_args()
    config = Config()
    config.set("rebalance", "interval_s", asked.interval, "--interval")
    jct_s: dict[tuple[str, int], dict[str, float]] = {}
    print("| trace | seed | policy | CPU s | mean JCT h | mean wait h | makespan h | moves | slowdown A | spread |")
    for path in asked.traces:
        fitted = fit(read(path, "auto", ReaderOptions()), parse_cluster(asked.cluster))
        made = Experiment(fitted.trace, fitted.cluster, program=Twin(config))
        for seed in range(1, asked.seeds + 1):
            for policy in POLICIES:
                began_s = time.process_time()
                m = measure(made.run(ReplayTask(policy, seed)))
                jct_s.setdefault((path, seed), {})[policy] = m.mean_jct_s
                cells = (
                    os.path.basename(path), seed, policy, f"{time.process_time() - began_s:.1f}",
                    f"{m.mean_jct_s / 3600:.2f}", f"{m.mean_wait_s / 3600:.2f}", f"{m.makespan_s / 3600:.1f}", m.moves,
                    f"{m.slowdown.get('A', 0.0):.3f}", f"{m.spread_share or 0.0:.2f}",
                )  # fmt: skip
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for policy in POLICIES:
        print(f"{policy}: {fmean(row[policy] / row[BASELINE] for row in jct_s.values()):.3f} of {BASELINE}'s mean JCT")


if __name__ == "__main__":
    main()
