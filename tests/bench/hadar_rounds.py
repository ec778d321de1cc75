# SPDX-License-Identifier: MIT
"""Hadar beside Gavel's policies and ours where all jobs are there at 0 and the end of the last one counts.

Usage: hadar_rounds.py [--data DIR] [--seeds 3] [--move-cost 10] [--speed]. Traces drawn by the published recipe, on
clusters on which the longest job alone is what bounds the makespan (12 GPUs of each type), and on smaller ones on
which the work is: there a schedule can be far from the bound. --speed times one round instead, CPU time, best of five.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from unequal_types import HOUR, RECIPES, REVIEW_S, as_problem, draw

from slurm_pal.allocation.hadar import hadar
from slurm_pal.allocation.problem import problem
from slurm_pal.research import allocation_policies
from slurm_pal.research.anew_rounds import AnewRounds, HadarPlace
from slurm_pal.research.bounds import makespan_bound_s
from slurm_pal.research.unequal import GangJob, Policy, pal_share_policy, simulate
from slurm_pal.research.unequal_rounds import Rounds
from slurm_pal.simulate.throughput_file import read_throughputs

CASES = (("static, single GPUs", 12.0), ("static, gangs", 12.0), ("static, single GPUs", 4.0), ("static, gangs", 8.0))
GAVEL = ("gavel:max-min", "gavel:makespan", "gavel:sjf")


def rounds(name: str, n_jobs: int) -> Policy:
    ones = np.ones(n_jobs)
    return Rounds(
        allocation_policies.policy(name), ones, ones * np.inf, np.zeros(n_jobs, dtype=np.int64), np.ones(3), 1
    )


def policies(n_jobs: int) -> dict[str, Callable[[], Policy]]:
    return {
        "hadar": lambda: AnewRounds(HadarPlace(n_jobs)),
        **{name: (lambda name=name: rounds(name, n_jobs)) for name in GAVEL},
        "pal-share": pal_share_policy,
    }


def longest_h(jobs: Sequence[GangJob]) -> float:
    return max(job.steps / max(job.throughput) for job in jobs) / HOUR


def makespans(data: Path, seeds: int, move_cost_s: float) -> None:
    table = read_throughputs(str(data / "throughputs_null.csv"))
    print("| trace, GPUs of each type | longest job / bound | policy | makespan / bound | max-min's over it | mean, h |"
          " restarts per job |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for name, each in CASES:
        gpus = (each,) * 3
        traces = [draw(RECIPES[name], seed, table) for seed in range(1, seeds + 1)]
        bounds = [makespan_bound_s(*as_problem(jobs, gpus)) / HOUR for jobs in traces]
        alone = statistics.fmean(longest_h(jobs) / bound for jobs, bound in zip(traces, bounds, strict=True))
        ends: dict[str, list[float]] = {}
        rows = []
        for policy in policies(0):
            found = [
                simulate(jobs, gpus, policies(len(jobs))[policy](), move_cost_s=move_cost_s, review_s=REVIEW_S)
                for jobs in traces
            ]
            ends[policy] = [run.makespan_s / HOUR for run in found]
            over = [end / bound for end, bound in zip(ends[policy], bounds, strict=True)]
            moves = statistics.fmean(float(run.moves.mean()) for run in found)
            rows.append((policy, over, statistics.fmean(run.mean_jct_s() for run in found) / HOUR, moves))
        for policy, over, mean_h, moves in rows:
            gain = statistics.fmean(b / a for a, b in zip(ends[policy], ends["gavel:max-min"], strict=True))
            shown = f"{statistics.fmean(over):.3f} ({min(over):.3f} to {max(over):.3f})"
            row = (
                f"{name}, {each:g}",
                f"{alone:.2f}",
                f"`{policy}`",
                shown,
                f"{gain:.2f}",
                f"{mean_h:.1f}",
                f"{moves:.1f}",
            )
            print(f"| {' | '.join(row)} |", flush=True)


def speed() -> None:
    for jobs, gpus in ((480, 60), (10_000, 10_000)):
        draws = np.random.default_rng(1)
        made = problem(
            draws.uniform(0.1, 1.0, (jobs, 3)), draws.choice([1, 1, 1, 2, 4, 8], jobs), np.full(3, gpus / 3),
            remaining=draws.uniform(1e3, 1e5, jobs), age_s=draws.uniform(0, 1e5, jobs), held=np.full(jobs, -1),
        )  # fmt: skip
        best_s = np.inf
        for _ in range(5):
            begun_s = time.process_time()
            hadar(made, made.remaining * 2, np.zeros(jobs), np.zeros(jobs, dtype=bool))
            best_s = min(best_s, time.process_time() - begun_s)
        print(f"{jobs} jobs, {gpus} GPUs: {1000 * best_s:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "gavel")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--move-cost", type=float, default=10.0, help="s")
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    if asked.speed:
        speed()
    else:
        makespans(asked.data, asked.seeds, asked.move_cost)


if __name__ == "__main__":
    main()
