# SPDX-License-Identifier: MIT
"""Class fit at the start against stock Slurm and against packing, trace by trace: a table of docs/benchmarks.md.

Usage: start_fit.py --sia DATA [--philly DATA] [--seeds N] [--first N] [--jobs N] [--policies ...]
    [--traces ...] [--slow ...]

DATA of --sia is the folder with the reference traces and profiles (traces/, profiles/), that of --philly has the
traces of two clusters of Philly, on an open and on a stated number of nodes; the profiles come from the first.
Each pair is one trace, one draw of the cluster and submissions moved by up to 600 s; all policies meet the same
ones. FIFO, EASY backfill, nothing moves. A table for medians of Longhorn, one for the same with slow GPUs.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics

from slurm_pal.simulate.experiment import Experiment, ReplayTask
from slurm_pal.simulate.inputs import read
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.pool import processors, run_all
from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import Ratio, summary
from slurm_pal.simulate.virtual import parse_cluster

SIA = {f"Sia-Philly {number}": (f"workload-{number}.csv", "16x4", 2.0) for number in (1, 2, 3, 4, 7)}
"""Trace -> file, cluster, further jobs per hour after its end."""
PHILLY = {
    f"{cluster} {shape}": (f"{cluster}-{shape}.csv", size, 0.0)
    for cluster, size in (("b436b2", "8x8"), ("6c71a0", "9x8"))
    for shape in ("open", "stated")
}
OTHERS = ("slurm", "packed")
OURS = ("class-fit",)


class Traces:
    """All traces under one profile as one pool of tasks: (trace, task)."""

    def __init__(self, sia: str, philly: str, slow: str, only: list[str]) -> None:
        source = profile_of(f"medians:{os.path.join(sia, 'profiles')}")
        rows = {name: (os.path.join(sia, "traces", file), *rest) for name, (file, *rest) in SIA.items()}
        if philly:
            rows |= {name: (os.path.join(philly, file), *rest) for name, (file, *rest) in PHILLY.items()}
        self.experiments = {
            name: Experiment(
                traces=(read(path),), cluster=parse_cluster(str(size)), source=source,
                slow=parse_slow(slow) if slow else SlowShare(), background_per_h=float(per_h),
            )
            for name, (path, size, per_h) in rows.items()
            if not only or name in only
        }  # fmt: skip

    def run(self, task: tuple[str, ReplayTask], progress: object) -> Replay:
        return self.experiments[task[0]].run(task[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sia", required=True)
    parser.add_argument("--philly", default="")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=1, help="the first of the seeds")
    parser.add_argument("--jobs", type=int, default=processors())
    parser.add_argument("--policies", nargs="+", default=list(OURS))
    parser.add_argument("--traces", nargs="+", default=[], help="only these rows of the table")
    parser.add_argument("--slow", nargs="*", default=["", "0.03:1.5"])
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    for slow in given.slow:
        work = Traces(given.sia, given.philly, slow, given.traces)
        policies = dict.fromkeys((*OTHERS, *given.policies))
        tasks = [(name, ReplayTask(policy, s)) for name in work.experiments for s in seeds for policy in policies]
        jct_s, spread = {}, {}
        for (name, task), replay in run_all(work, tasks, given.jobs):
            found = measure(replay)
            jct_s[name, task.policy, task.seed] = found.mean_jct_s
            spread[name, task.policy, task.seed] = found.value("slowdown.A")
        print(f"\n### Medians of Longhorn{f', {slow}' if slow else ''}: {given.seeds} seeds\n")
        head = [f"{policy} / {other}" for policy in given.policies for other in OTHERS]
        print(
            "| trace | "
            + " | ".join([*head, "A slowdown x locality / slurm"])
            + " |\n"
            + "|---" * (len(head) + 2)
            + "|"
        )
        groups = {name: [name] for name in work.experiments}
        for title, several in (("all Sia-Philly", SIA), ("all of both clusters", PHILLY)):
            if all(name in work.experiments for name in several):
                groups[title] = list(several)
        for title, names in groups.items():
            cells = [
                cell(summary([jct_s[n, policy, s] / jct_s[n, other, s] for n in names for s in seeds]))
                for policy in given.policies
                for other in OTHERS
            ]
            logs = [math.log(spread[n, given.policies[-1], s] / spread[n, "slurm", s]) for n in names for s in seeds]
            print(f"| {title} | " + " | ".join([*cells, f"{math.exp(statistics.fmean(logs)):.3f}"]) + " |", flush=True)


def cell(found: Ratio) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


if __name__ == "__main__":
    main()
