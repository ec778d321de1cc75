# SPDX-License-Identifier: MIT
"""`pal-share` on Gavel's traces: completion time and makespan with charged moves, against bounds and published figures.

Usage: unequal_types.py [--data DIR] [--only TEXT] [--seeds N] [--move-cost S]. Prints four tables:
the seed-0 traces; further seeds drawn by the published recipe, beside max-min fairness in
published rounds; remaining steps wrong by a log-normal factor; and what charged moves do to
max-min. One setting of the policy throughout. Times are in hours.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from doubles.completion_bound import completion_bound_s

from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import Problem, problem
from slurm_pal.research.bounds import makespan_bound_s
from slurm_pal.research.rounds import Account, ChosenRow, RoundQueue, select
from slurm_pal.research.unequal import GangJob, Moment, UnequalResult, pal_share_policy, simulate
from slurm_pal.simulate.inputs.gavel import read_rows
from slurm_pal.simulate.throughput_file import Throughputs, read_throughputs

TYPES = ("v100", "p100", "k80")
SMALL, LARGE = (12.0, 12.0, 12.0), (36.0, 36.0, 36.0)
HOUR = 3600.0
ROUND_S, RESET_S, CREDIT_S, REVIEW_S = 360.0, 1920.0, 180.0, 60.0
EDGES = 40  # intervals of the fluid bound
SIGMAS = (0.0, 0.5, 1.0)


class Trace(NamedTuple):
    gpus: tuple[float, ...]
    first: int  # jobs first..end-1 count
    end: int
    best_h: float  # the best published mean completion time, moves free (gavel.md 13); nan: none
    best: str


TRACES = {
    "static_single_n100_s0": Trace(SMALL, 0, 100, 19.06, "allox"),
    "static_multi_n100_s0": Trace(SMALL, 0, 100, 27.73, "max_min_perf"),
    "cont_single_lam1800_n400_s0": Trace(SMALL, 100, 300, 15.32, "max_min_perf"),
    "cont_single_lam2400_n400_s0": Trace(SMALL, 100, 300, 13.49, "max_min_perf"),
    "cont_multi_lam6000_n300_s0": Trace(SMALL, 80, 220, 11.79, "fifo_perf"),
    "cont_multi_lam4500_n300_s0": Trace(SMALL, 80, 220, math.nan, ""),
    "paper_static_multi_n500_s0": Trace(LARGE, 0, 500, 73.57, "fifo"),
}


class Recipe(NamedTuple):
    """Arguments of the published generator, and the jobs that count."""

    n_jobs: int
    gangs: bool
    gap_s: float
    first: int
    end: int


RECIPES = {
    "static, single GPUs": Recipe(100, False, 0.0, 0, 100),
    "static, gangs": Recipe(100, True, 0.0, 0, 100),
    "1800 s, single GPUs": Recipe(300, False, 1800.0, 100, 250),
    "2400 s, single GPUs": Recipe(300, False, 2400.0, 100, 250),
    "4500 s, gangs": Recipe(200, True, 4500.0, 60, 160),
}
FAMILIES = (
    ("ResNet-18", 16, 5),
    ("ResNet-50", 16, 4),
    ("Transformer", 16, 5),
    ("LM", 5, 5),
    ("Recommendation", 512, 5),
)
MODELS = [f"{name} (batch size {least << i})" for name, least, count in FAMILIES for i in range(count)]
MODELS += ["A3C", "CycleGAN"]
SCALES = ((0.7, 1), (0.8, 2), (0.95, 4), (math.inf, 8))


def read(data: Path, name: str, table: Throughputs) -> list[GangJob]:
    rows = read_rows(str(data / "traces" / f"{name}.trace"))
    return [
        GangJob(str(i), r.arrival_s, r.total_steps, r.scale_factor, table.rates(r.job_type, r.scale_factor, TYPES))
        for i, r in enumerate(rows)
    ]


def draw(recipe: Recipe, seed: int, table: Throughputs) -> list[GangJob]:
    """The published generator (README of the data), steps cut to whole ones."""
    kinds, gaps = random.Random(seed + 2), random.Random(seed + 3)
    jobs, now_s = [], 0.0
    for number in range(recipe.n_jobs):
        drawn = kinds.uniform(0, 1)
        scale = next(size for limit, size in SCALES if drawn < limit)
        scale = scale if recipe.gangs else 1
        duration_s = 60.0 * 10 ** (kinds.uniform(3, 4) if kinds.random() >= 0.8 else kinds.uniform(1.5, 3))
        model = kinds.choice(MODELS)
        while (model, scale) not in table.packed:
            model = kinds.choice(MODELS)
        rates = table.rates(model, scale, TYPES)
        if number and recipe.gap_s:
            now_s -= math.log(1.0 - gaps.random()) * recipe.gap_s
        jobs.append(GangJob(str(number), now_s, max(1, int(duration_s * rates[0])), scale, rates))
    return jobs


def as_problem(jobs: Sequence[GangJob], gpus: Sequence[float]) -> tuple[Problem, NDArray[np.float64]]:
    made = problem([j.throughput for j in jobs], [j.scale for j in jobs], gpus, remaining=[j.steps for j in jobs])
    return made, np.array([job.arrival_s for job in jobs])


def least_mean_h(jobs: Sequence[GangJob], gpus: Sequence[float]) -> float:
    """The lower bound on the mean completion time; fluid where all jobs are there at 0, else each job on its own."""
    made, release_s = as_problem(jobs, gpus)
    if release_s.max() > 0 or len(jobs) > 100:
        return float((made.remaining / made.throughput.max(axis=1)).mean()) / HOUR
    end_s = 1.3 * makespan_bound_s(made, release_s)
    edges_s = np.concatenate(([0.0], np.geomspace(600.0, end_s, EDGES)))
    return completion_bound_s(made, release_s, edges_s) / HOUR


class MaxMinRounds:
    """Max-min fairness in the published rounds, for simulate(): shares anew after changes, priorities X/f."""

    def __init__(self) -> None:
        self.account, self.ids = Account(len(TYPES)), np.zeros(0, dtype=np.int64)
        self.shares = np.zeros((0, len(TYPES)))
        self.changed = False
        self.round_s = self.reset_s = -math.inf

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        found = moment.problem.held.copy()
        if moment.now_s < self.round_s + ROUND_S - 1e-6:
            return found
        self._follow(moment)
        if self.changed and moment.now_s >= self.reset_s + RESET_S:
            elapsed_s = moment.now_s - self.reset_s if self.reset_s >= 0 else 0.0
            self.account.reset(self.shares, elapsed_s, CREDIT_S)
            self.shares = max_min(moment.problem).shares
            self.reset_s, self.changed = moment.now_s, False
        self.round_s = moment.now_s
        able = moment.problem.throughput > 0
        queue = RoundQueue(tuple((int(i), -1) for i in moment.job), moment.problem.scale.astype(np.int64), able)
        found[:] = -1
        for chosen in select(
            queue, self.shares, self.account, [int(g) for g in moment.problem.gpus], range(len(TYPES))
        ):
            found[chosen.row] = chosen.column
        return found

    def _follow(self, moment: Moment) -> None:
        """Book the round that ended, drop jobs that left, add those that came."""
        for row, job in enumerate(self.ids.tolist()):
            here = np.flatnonzero(moment.job == job)
            if here.size and moment.problem.held[here[0]] >= 0:
                self.account.charge(ChosenRow(row, int(moment.problem.held[here[0]])), moment.now_s - self.round_s)
        stay = np.isin(self.ids, moment.job)
        self.account.keep(stay)
        self.shares = self.shares[stay]
        new = moment.job.size - int(stay.sum())
        self.account.add(np.full(new, CREDIT_S))
        self.shares = np.concatenate((self.shares, np.zeros((new, len(TYPES)))))
        self.changed = self.changed or new > 0 or not bool(stay.all())
        self.ids = moment.job.copy()


def cells(found: UnequalResult, trace: Trace, bound_h: float) -> str:
    """Columns that all tables share: mean, p99, makespan over its bound, moves, GPU hours lost to them."""
    mean_h = found.mean_jct_s(trace.first, trace.end) / HOUR
    p99_h = found.percentile_jct_s(99, trace.first, trace.end) / HOUR
    makespan_h = found.makespan_s / HOUR
    shares = f"{makespan_h:.1f} | {makespan_h / bound_h:.3f} | {found.utilisation:.3f}"
    return f"{mean_h:.2f} | {p99_h:.1f} | {shares} | {found.moves.sum()} | {found.lost_gpu_h:.0f}"


HEAD = "mean | p99 | makespan | / bound | util | moves | GPU h lost"


def head(title: str, *more: str) -> None:
    names = ["trace", *HEAD.split(" | "), *more]
    print(f"\n{title}\n\n| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)


def given_traces(jobs: dict[str, list[GangJob]], move_cost_s: float) -> None:
    head("pal-share, seed-0 traces", "best published", "ratio", "bound on the ratio", "CPU s")
    for name, trace in jobs.items():
        settings = TRACES[name]
        begun_s = time.process_time()
        found = simulate(trace, settings.gpus, pal_share_policy(), move_cost_s=move_cost_s)
        cpu_s = time.process_time() - begun_s
        ratio = found.mean_jct_s(settings.first, settings.end) / HOUR / settings.best_h
        least = least_mean_h(trace[settings.first : settings.end], settings.gpus) / settings.best_h
        row = cells(found, settings, bound_h(trace, settings.gpus))
        best = f"{settings.best_h:.2f} {settings.best}"
        print(f"| {name} | {row} | {best} | {ratio:.3f} | {least:.3f} | {cpu_s:.1f} |", flush=True)


def bound_h(jobs: Sequence[GangJob], gpus: Sequence[float]) -> float:
    return makespan_bound_s(*as_problem(jobs, gpus)) / HOUR


def further_seeds(table: Throughputs, seeds: int, move_cost_s: float) -> None:
    more = ("max-min mean", "ratio", "max-min makespan / bound")
    head("Further seeds, 12:12:12; beside max-min in published rounds, moves free", *more)
    summary = []
    for name, recipe in RECIPES.items():
        ratios, over = [], []
        for seed in range(1, seeds + 1):
            jobs = draw(recipe, seed, table)
            found = simulate(jobs, SMALL, pal_share_policy(), move_cost_s=move_cost_s)
            other = simulate(jobs, SMALL, MaxMinRounds(), move_cost_s=0.0, review_s=REVIEW_S)
            other_h = other.mean_jct_s(recipe.first, recipe.end) / HOUR
            least_h = bound_h(jobs, SMALL)
            ratios.append(found.mean_jct_s(recipe.first, recipe.end) / HOUR / other_h)
            over.append(found.makespan_s / HOUR / least_h)
            row = cells(found, Trace(SMALL, recipe.first, recipe.end, math.nan, ""), least_h)
            beside = f"{other_h:.2f} | {ratios[-1]:.3f} | {other.makespan_s / HOUR / least_h:.3f}"
            print(f"| {name}, seed {seed} | {row} | {beside} |", flush=True)
        summary.append(f"{name}: mean ratio {statistics.fmean(ratios):.3f}, makespan / bound at most {max(over):.3f}")
    print("", *summary, sep="\n", flush=True)


def wrong_estimates(jobs: dict[str, list[GangJob]], move_cost_s: float) -> None:
    head("Remaining steps wrong by a log-normal factor", "ratio to best published")
    for name, trace in jobs.items():
        settings = TRACES[name]
        for sigma in SIGMAS:
            draws = np.random.default_rng(1).standard_normal(len(trace))
            told = [j._replace(believed_steps=j.steps * math.exp(sigma * x)) for j, x in zip(trace, draws, strict=True)]
            found = simulate(told, settings.gpus, pal_share_policy(), move_cost_s=move_cost_s)
            ratio = found.mean_jct_s(settings.first, settings.end) / HOUR / settings.best_h
            row = cells(found, settings, bound_h(trace, settings.gpus))
            print(f"| {name}, sigma {sigma:g} | {row} | {ratio:.3f} |", flush=True)


def charged_rounds(jobs: dict[str, list[GangJob]], move_cost_s: float) -> None:
    head("Max-min fairness in published rounds, moves free and charged")
    for name, trace in jobs.items():
        settings = TRACES[name]
        for cost_s in (0.0, move_cost_s):
            found = simulate(trace, settings.gpus, MaxMinRounds(), move_cost_s=cost_s, review_s=REVIEW_S)
            print(f"| {name}, {cost_s:g} s | {cells(found, settings, bound_h(trace, settings.gpus))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "gavel")
    parser.add_argument("--only", default="", help="traces whose name contains this")
    parser.add_argument("--seeds", type=int, default=5, help="further seeds 1 to N")
    parser.add_argument("--move-cost", type=float, default=180.0, help="s, for each move")
    parser.add_argument("--tables", default="given,seeds,wrong,rounds", help="which tables, by name")
    asked = parser.parse_args()
    table = read_throughputs(str(asked.data / "throughputs_null.csv"))
    jobs = {name: read(asked.data, name, table) for name in TRACES if asked.only in name}
    tables = {
        "given": lambda: given_traces(jobs, asked.move_cost),
        "seeds": lambda: further_seeds(table, asked.seeds, asked.move_cost),
        "wrong": lambda: wrong_estimates(jobs, asked.move_cost),
        "rounds": lambda: charged_rounds(jobs, asked.move_cost),
    }
    for name in asked.tables.split(","):
        tables[name]()


if __name__ == "__main__":
    main()
