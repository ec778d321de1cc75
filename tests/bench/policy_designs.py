# SPDX-License-Identifier: MIT
"""Designs of a policy against backfilled packing in real mode: tables of docs/benchmarks.md and docs/placement.md.

Usage: policy_designs.py DATA [--seeds N] [--jobs N] [--policies ...] [--scenarios ...]

DATA is the folder with the reference traces and profiles (traces/, profiles/). Each pair
is one trace, one draw of the cluster (16 x 4 GPUs), submissions moved by up to 600 s and
its own background of 2 jobs/h; both policies meet the same ones. FIFO, EASY backfill
with limits of 1.5 x 1.7 x ideal, moves charged 180 s.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections import defaultdict

from slurm_pal.simulate.experiment import Experiment, ReplayTask
from slurm_pal.simulate.inputs import read
from slurm_pal.simulate.metrics import measure
from slurm_pal.simulate.pool import processors, run_all
from slurm_pal.simulate.profiles import SlowShare, parse_slow, profile_of
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.statistics import summary
from slurm_pal.simulate.virtual import parse_cluster

TRACES = (1, 2, 3, 4, 7)
BASELINE = "packed"
POLICIES = (
    "slurm", "random", "pm-first", "pal", "pal-ns", "threshold", "class-fit", "class-fit-move", "class-fit-wait",
    "packed-wait", "pal-fit", "packed-order", "pal-fit-order", "alone",
)  # fmt: skip
SCENARIOS = {
    "medians of Longhorn": ("medians", ""),
    "medians of Frontera, whole nodes": ("joint", ""),
    "medians of Longhorn, 3 % of GPUs at 1.5x": ("medians", "0.03:1.5"),
    "single runs of Longhorn": ("runs", ""),
}
SHORT_S = 3600.0


class AllTraces:
    """All traces of one scenario as one pool of tasks: (trace, task)."""

    def __init__(self, data: str, kind: str, slow: str, settings: ReplaySettings) -> None:
        source = profile_of(f"{kind}:{os.path.join(data, 'profiles')}")
        self.experiments = {
            number: Experiment(
                traces=(read(os.path.join(data, "traces", f"workload-{number}.csv")),),
                cluster=parse_cluster("16x4"), source=source, slow=parse_slow(slow) if slow else SlowShare(),
                settings=settings, background_per_h=2.0,
            )
            for number in TRACES
        }  # fmt: skip

    def run(self, task: tuple[int, ReplayTask], progress: object) -> Replay:
        return self.experiments[task[0]].run(task[1])


def group(gpus: int, ideal_s: float) -> tuple[str, str]:
    """(size, length) of a job."""
    size = "1" if gpus == 1 else "2-4" if gpus <= 4 else "5-8" if gpus <= 8 else "9-16" if gpus <= 16 else "> 16"
    return size, "< 1 h" if ideal_s < SHORT_S else ">= 1 h"


def by_group(replay: Replay) -> dict[str, float]:
    """Mean completion time per size and per length."""
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in replay.outcomes:
        for name in group(outcome.gpus, outcome.ideal_s):
            found[name].append(outcome.jct_s)
    return {name: statistics.fmean(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=processors())
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--scenarios", nargs="+", type=int, default=list(range(len(SCENARIOS))))
    parser.add_argument("--bar", type=float, default=ReplaySettings().barred_slowdown)
    parser.add_argument("--move-cost", type=float, default=ReplaySettings().move_cost_s)
    parser.add_argument("--wait-share", type=float, default=ReplaySettings().wait_share)
    parser.add_argument("--steer", choices=("start", "submit"), default=ReplaySettings().steer)
    arguments = parser.parse_args()
    settings = ReplaySettings(
        barred_slowdown=arguments.bar,
        move_cost_s=arguments.move_cost,
        wait_share=arguments.wait_share,
        steer=arguments.steer,
    )
    for number in arguments.scenarios:
        name, (kind, slow) = list(SCENARIOS.items())[number]
        work = AllTraces(arguments.data, kind, slow, settings)
        tasks = [
            (trace, ReplayTask(policy, seed))
            for trace in TRACES
            for seed in range(1, arguments.seeds + 1)
            for policy in dict.fromkeys((BASELINE, *arguments.policies))
        ]
        results = dict(run_all(work, tasks, arguments.jobs))
        print(f"\n### {name}: {len(TRACES)} traces x {arguments.seeds} seeds\n")
        table(results, arguments.policies, arguments.seeds)
        groups(
            results,
            [policy for policy in arguments.policies if policy in ("packed-wait", "pal-fit", "pal-fit-order", "alone")],
        )


def table(results: dict[tuple[int, ReplayTask], Replay], policies: list[str], seeds: int) -> None:
    head = ["policy", "mean JCT ratio [95 %]", "geomean", *(f"trace {n}" for n in TRACES), "without trace 2 [95 %]",
            "A slowdown x locality", "moves a run"]  # fmt: skip
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for policy in policies:
        ratio: dict[int, list[float]] = {}
        work, moves = [], 0
        for trace in TRACES:
            for seed in range(1, seeds + 1):
                base, mine = (
                    measure(results[trace, ReplayTask(BASELINE, seed)]),
                    measure(results[trace, ReplayTask(policy, seed)]),
                )
                ratio.setdefault(trace, []).append(mine.mean_jct_s / base.mean_jct_s)
                work.append(math.log(mine.value("slowdown.A") / base.value("slowdown.A")))
                moves += mine.moves
        every = summary([x for values in ratio.values() for x in values])
        some = summary([x for trace, values in ratio.items() if trace != 2 for x in values])
        cells = [
            policy, f"{every.mean:.3f} [{every.low:.3f}, {every.high:.3f}]", f"{every.geomean:.3f}",
            *(f"{statistics.fmean(ratio[trace]):.3f}" for trace in TRACES),
            f"{some.mean:.3f} [{some.low:.3f}, {some.high:.3f}]", f"{math.exp(statistics.fmean(work)):.3f}",
            f"{moves / (len(TRACES) * seeds):.1f}",
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |", flush=True)


def groups(results: dict[tuple[int, ReplayTask], Replay], policies: list[str]) -> None:
    """Who gains and who pays: geometric mean over pairs of the ratio of the group's mean completion time."""
    names = ["1", "2-4", "5-8", "9-16", "> 16", "< 1 h", ">= 1 h"]
    print("\n| policy | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for policy in policies:
        logs: dict[str, list[float]] = defaultdict(list)
        for (trace, task), replay in results.items():
            if task.policy == policy:
                base = by_group(results[trace, ReplayTask(BASELINE, task.seed)])
                for name, value in by_group(replay).items():
                    logs[name].append(math.log(value / base[name]))
        print(f"| {policy} | " + " | ".join(f"{math.exp(statistics.fmean(logs[name])):.3f}" for name in names) + " |")


if __name__ == "__main__":
    main()
