# SPDX-License-Identifier: MIT
"""What bringing jobs together is worth: the tick in the twin with and without `rebalance.gather`, beside stock Slurm.

    python tests/study/gather_gain.py --sia DATA [--philly DATA] [--jobs N] [--seeds N] [--first N] [--interval 60]
        [--traces NAME ...] [--alike]

DATA of --sia is the folder with the reference traces and profiles (traces/, profiles/), that of --philly has traces
of two clusters of Philly, of which the first N jobs are taken. Every job may be moved. All arms meet the same GPUs
(medians of Longhorn) and submissions. With --alike also the placebo: all GPUs are identical, so that scores have no
part. Prints a row for each trace and seed, then the mean of each ratio to stock Slurm (`slurm-twin`) by trace.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import fmean

from slurm_pal.base.config import Config
from slurm_pal.simulate.experiment import IDENTICAL, TRUE, Experiment, ReplayTask
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.profiles import profile_of
from slurm_pal.simulate.virtual import parse_cluster
from slurm_pal.twin.run import Twin

SIA = {f"Sia-Philly {number}": (f"workload-{number}.csv", "16x4") for number in (1, 2, 3, 4, 7)}
PHILLY = {"b436b2 open": ("b436b2-open.csv", "8x8"), "6c71a0 open": ("6c71a0-open.csv", "9x8")}
OFF, ON = "gather off", "gather on"


def experiment(path: str, size: str, profiles: str, jobs: int, gather: bool, interval_s: float) -> Experiment:
    """One trace with one setting."""
    config = Config()
    config.set("rebalance", "interval_s", interval_s, "--interval")
    config.set("rebalance", "gather", gather, "--gather")
    trace = read(path, "auto", ReaderOptions())
    if jobs:
        trace = trace._replace(jobs=trace.jobs[:jobs])
    fitted = fit(trace, parse_cluster(size))
    return Experiment((fitted.trace,), fitted.cluster, source=profile_of(profiles), program=Twin(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sia", required=True)
    parser.add_argument("--philly", default="")
    parser.add_argument("--jobs", type=int, default=300, help="of a Philly trace")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=1, help="seed")
    parser.add_argument("--interval", type=float, default=60.0, help="s between two ticks")
    parser.add_argument("--traces", nargs="*", default=[])
    parser.add_argument("--alike", action="store_true")
    asked = parser.parse_args()
    profiles = f"medians:{os.path.join(asked.sia, 'profiles')}"
    rows = {name: (os.path.join(asked.sia, "traces", file), size, 0) for name, (file, size) in SIA.items()}
    if asked.philly:
        rows |= {name: (os.path.join(asked.philly, file), size, asked.jobs) for name, (file, size) in PHILLY.items()}
    print("| trace | GPUs | seed | arm | mean JCT h | of slurm | P99 JCT of slurm | moves | spread | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios: dict[tuple[str, str, str], list[float]] = {}
    for name, (path, size, jobs) in rows.items():
        if asked.traces and name not in asked.traces:
            continue
        made = {arm: experiment(path, size, profiles, jobs, arm == ON, asked.interval) for arm in (OFF, ON)}
        for seed in range(asked.first, asked.first + asked.seeds):
            for scores in (TRUE, IDENTICAL) if asked.alike else (TRUE,):
                tasks = {"slurm": (OFF, "slurm-twin"), OFF: (OFF, "tick"), ON: (ON, "tick")}
                stock = None
                for arm, (setting, policy) in tasks.items():
                    began_s = time.process_time()
                    m = measure(made[setting].run(ReplayTask(policy, seed, scores=scores)))
                    stock = stock or m
                    ratio, late = m.mean_jct_s / stock.mean_jct_s, m.p99_jct_s / stock.p99_jct_s
                    ratios.setdefault((name, scores, arm), []).append(ratio)
                    cells = (
                        name, scores, seed, arm, f"{m.mean_jct_s / 3600:.2f}", f"{ratio:.3f}", f"{late:.3f}", m.moves,
                        f"{m.spread_share or 0.0:.2f}", f"{time.process_time() - began_s:.1f}",
                    )  # fmt: skip
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for (name, scores, arm), found in ratios.items():
        if arm != "slurm":
            span = f"{min(found):.3f} to {max(found):.3f}"
            print(f"{name}, {scores} GPUs, {arm}: {fmean(found):.3f} of stock Slurm ({span})")


if __name__ == "__main__":
    main()
