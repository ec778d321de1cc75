# SPDX-License-Identifier: MIT
"""CPU time of the exact allocation policies against the same programs in cvxpy, solved by ECOS.

Usage: allocation_solvers.py [--data DIR] [--policies ...] [--sizes ...] [--packed-up-to M] [--json | --wide]
DIR holds the reference data of Gavel (default: $PAL_REFERENCE_DATA/gavel, or ../shared/data/gavel beside the
checkout); the instances are described in its README. "ours" is arrays in, Allocation out. "cvxpy" is model
building and solving, in the form that the published code has: makespan by bisection to 5 %, finish-time fairness
with one expression for each job ("vectors": the same with one for all, faster to build), packing with one row for
each pair of jobs. Best of several, one process, process time. "difference" is the relative difference of the
objectives: above 0 where ours is larger; the published makespan is not the least one. --wide takes no data: ours
alone on up to 10,000 made-up jobs, no two alike, and 12 columns, with the memory that the solve needs at its peak.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # both as a script and for tests/reference
from doubles.allocation_limits import violation

from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import (
    Allocation,
    Problem,
    isolated_throughput,
    problem,
    proportional_throughput,
)
from slurm_pal.allocation.throughput_sum import cost

TYPES = ("k80", "p100", "v100")
PRICE = (0.135, 0.43, 0.74)
SIZES = (32, 64, 128, 256, 512, 1024, 2048)
SEVERAL_UP_TO = 512  # jobs; larger programs in cvxpy run once


class Jobs(NamedTuple):
    """The jobs behind the instances."""

    throughput: Any  # (2048, 3) steps/s
    scale: Any
    steps: Any
    kind: Any  # (2048,) row of `pairs`
    names: list[tuple[str, int]]  # of each kind: model and scale


@cache
def jobs(data: Path, multi: bool) -> Jobs:
    """All jobs, read once."""
    with open(data / "throughputs_null.csv", newline="", encoding="utf-8") as stream:
        table = {
            (row["model"], int(row["scale_factor"])): [float(row[name] or 0) for name in TYPES]
            for row in csv.DictReader(stream)
        }
    name = "solver_jobs_multi.csv" if multi else "solver_jobs_single.csv"
    with open(data / name, newline="", encoding="utf-8") as stream:
        rows = [
            (row["job_type"], int(row["scale_factor"]), float(row["total_steps"])) for row in csv.DictReader(stream)
        ]
    names = sorted({row[:2] for row in rows})
    return Jobs(
        np.array([table[row[:2]] for row in rows]), np.array([row[1] for row in rows], dtype=float),
        np.array([row[2] for row in rows]), np.array([names.index(row[:2]) for row in rows]), names,
    )  # fmt: skip


def instance(data: Path, policy: str, multi: bool, m: int) -> Problem:
    """One of the instances behind solve_objectives.csv (README of the data)."""
    all_jobs, first = jobs(data, multi), np.random.RandomState(2)
    left, age_s = first.uniform(0.05, 1, m), first.uniform(0, 2e5, m)
    gpus = [m // 64 if policy == "makespan_tight" else m // 4] * len(TYPES)
    made = problem(
        all_jobs.throughput[:m], all_jobs.scale[:m], gpus, price=PRICE, age_s=age_s,
        remaining=np.maximum(1.0, all_jobs.steps[:m] * left),
    )  # fmt: skip
    isolated, second = isolated_throughput(made), np.random.RandomState(3)
    if policy == "ftf_warm":
        part = second.uniform(0.05, 1, m)
        earned_s = made.remaining * (1 - part) / part / isolated
        made = made._replace(earned_s=earned_s, age_s=earned_s * second.uniform(0.5, 2, m))
    if policy == "ftf_tight":
        earned_s = made.remaining / isolated * second.uniform(0, 0.5, m)
        made = made._replace(earned_s=earned_s, age_s=earned_s * second.uniform(0.8, 1.2, m))
    return with_pairs(data, made, all_jobs, m) if policy == "max_min_packed" else made


def with_pairs(data: Path, made: Problem, all_jobs: Jobs, m: int) -> Problem:
    """The same with the throughputs of all pairs of equal scale."""
    table = json.loads((data / "simulation_throughputs.json").read_text(encoding="utf-8"))
    pairs = np.zeros((len(all_jobs.names), len(all_jobs.names), len(TYPES)))
    keys = [f"('{model}', {scale})" for model, scale in all_jobs.names]
    for column, worker in enumerate(TYPES):
        for i, first in enumerate(keys):
            for j, second in enumerate(keys):
                if all_jobs.names[i][1] == all_jobs.names[j][1]:
                    pairs[i, j, column] = table[worker][first].get(second, (0.0, 0.0))[0]
    return made._replace(kind=all_jobs.kind[:m], pairs=pairs)


# The programs in the published form.


def published_max_min(cp: ModuleType, given: Problem) -> float:
    shares, rules = _base(cp, given)
    factor = (given.scale / (given.weight * proportional_throughput(given)))[:, None] * given.throughput
    return _solve(cp, cp.Maximize(cp.min(cp.sum(cp.multiply(factor, shares), axis=1))), rules)


def published_cost(cp: ModuleType, given: Problem) -> float:
    shares, rules = _base(cp, given)
    return _solve(cp, cp.Maximize(cp.sum(cp.sum(cp.multiply(given.throughput / given.price, shares), axis=1))), rules)


def published_finish_time(cp: ModuleType, given: Problem) -> float:
    shares, rules = _base(cp, given)
    isolated_s = given.earned_s + given.remaining / isolated_throughput(given)
    ratios = [
        (given.age_s[i] + given.remaining[i] * cp.inv_pos(cp.sum(cp.multiply(given.throughput[i], shares[i]))))
        / isolated_s[i]
        for i in range(given.n_jobs)
    ]
    return _solve(cp, cp.Minimize(cp.maximum(*ratios)), rules)


def finish_time_in_vectors(cp: ModuleType, given: Problem) -> float:
    shares, rules = _base(cp, given)
    isolated_s = given.earned_s + given.remaining / isolated_throughput(given)
    ends = cp.multiply(given.remaining, cp.inv_pos(cp.sum(cp.multiply(given.throughput, shares), axis=1)))
    return _solve(cp, cp.Minimize(cp.max(cp.multiply(1 / isolated_s, given.age_s + ends))), rules)


def published_makespan(cp: ModuleType, given: Problem) -> float:
    low_s, high_s = 100.0, 1e6
    found_s, limit_s = float("nan"), high_s
    while np.isnan(found_s):
        while 1.05 * low_s < high_s:
            middle_s = (low_s + high_s) / 2
            shares, rules = _base(cp, given)
            rules.append(cp.sum(cp.multiply(given.throughput, shares), axis=1) >= given.remaining / middle_s)
            if np.isnan(_solve(cp, cp.Maximize(1), rules)):
                low_s = middle_s
            else:
                found_s = high_s = middle_s
        low_s, high_s, limit_s = limit_s, 10 * limit_s, 10 * limit_s
    return found_s


def published_packing(cp: ModuleType, given: Problem) -> float:
    """One row for each job and each pair of equal scale that runs somewhere."""
    from scipy.sparse import coo_matrix

    m, n = given.throughput.shape
    first, second = np.triu_indices(m, 1)
    equal = given.scale[first] == given.scale[second]
    first, second = first[equal], second[equal]
    speeds = (given.pairs[given.kind[first], given.kind[second]], given.pairs[given.kind[second], given.kind[first]])
    runs = (speeds[0] + speeds[1]).any(axis=1)
    first, second, one, other = first[runs], second[runs], speeds[0][runs], speeds[1][runs]
    count = m + len(first)
    shares = cp.Variable((count, n))
    row, each = np.arange(m, count), np.arange(m)
    member = np.concatenate([each, first, second]), np.concatenate([each, row, row])
    times = coo_matrix((np.ones(len(member[0])), member), shape=(m, count)).tocsr()
    width = np.concatenate([given.scale, given.scale[first]])
    reached = 0
    for column in range(n):
        speed = np.concatenate([given.throughput[:, column], one[:, column], other[:, column]])
        reached = reached + coo_matrix((speed, member), shape=(m, count)).tocsr() @ shares[:, column]
    rules = [shares >= 0, times @ cp.sum(shares, axis=1) <= 1, width @ shares <= given.gpus]
    factor = given.scale / (given.weight * proportional_throughput(given))
    return _solve(cp, cp.Maximize(cp.min(cp.multiply(factor, reached))), rules)


def _base(cp: ModuleType, given: Problem) -> tuple[Any, list[Any]]:
    shares = cp.Variable(given.throughput.shape)
    wide = np.repeat(given.scale[:, None], given.n_columns, axis=1)
    return shares, [
        shares >= 0,
        cp.sum(cp.multiply(wide, shares), axis=0) <= given.gpus,
        cp.sum(shares, axis=1) <= 1,
    ]


def _solve(cp: ModuleType, objective: object, rules: list[Any]) -> float:
    """The optimum; nan where ECOS finds none, infeasible programs included."""
    program = cp.Problem(objective, rules)
    try:
        program.solve(solver=cp.ECOS)
    except cp.error.SolverError:
        return float("nan")
    return float(program.value) if program.status == "optimal" else float("nan")


def packing(given: Problem) -> Allocation:
    from slurm_pal.research.pairs import max_min_packing

    return max_min_packing(given)


class Case(NamedTuple):
    """A policy, ours and as published; the largest size that the published form is given."""

    ours: Callable[[Problem], Allocation]
    published: Callable[[ModuleType, Problem], float]
    sizes: tuple[int, ...] = SIZES


CASES = {
    "max_min": Case(max_min, published_max_min),
    "makespan": Case(makespan, published_makespan),
    "makespan_tight": Case(makespan, published_makespan, SIZES[1:]),
    "cost": Case(cost, published_cost),
    "ftf": Case(finish_time_fairness, published_finish_time),
    "ftf_vectors": Case(finish_time_fairness, finish_time_in_vectors),
    "ftf_tight": Case(finish_time_fairness, published_finish_time, SIZES[1:]),
    "ftf_tight_vectors": Case(finish_time_fairness, finish_time_in_vectors, SIZES[1:]),
    "max_min_packed": Case(packing, published_packing),
}


class Timing(NamedTuple):
    """One line of the table."""

    policy: str
    multi: bool
    jobs: int
    ours_s: float
    cvxpy_s: float | None
    ratio: float | None
    difference: float | None
    violation: float


def cpu_s(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The least CPU time of several calls, and what the last one gave."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        given = work()
        best = min(best, time.process_time() - start)
    return best, given


def measure(args: argparse.Namespace, policy: str, m: int) -> Timing:
    import cvxpy as cp

    case, multi = CASES[policy], args.multi
    given = instance(args.data, policy.removesuffix("_vectors"), multi, m)
    ours_s, found = cpu_s(lambda: case.ours(given), args.repeats)
    broken = violation(given, found)
    if policy == "max_min_packed" and m > args.packed_up_to:
        return Timing(policy, multi, m, ours_s, None, None, None, broken)
    several = args.repeats if m <= SEVERAL_UP_TO and policy != "max_min_packed" else 1
    cvxpy_s, objective = cpu_s(lambda: case.published(cp, given), several)
    return Timing(policy, multi, m, ours_s, cvxpy_s, cvxpy_s / ours_s, found.objective / objective - 1, broken)


WIDE = ("max_min", "makespan", "ftf", "cost")
COLUMNS = 12


def wide(seed: int, m: int) -> Problem:
    """Jobs of 1 to 8 GPUs, twice as many as there is room for; speeds of columns and applications differ freely."""
    random = np.random.default_rng(seed)
    speed = random.uniform(1, 6, COLUMNS) * random.lognormal(0, 0.4, (m, COLUMNS))
    scale = random.choice([1.0, 2.0, 4.0, 8.0], m, p=[0.7, 0.1, 0.15, 0.05])
    gpus = np.full(COLUMNS, np.ceil(scale.sum() / 2 / COLUMNS))
    remaining = random.lognormal(9, 1.5, m)
    return problem(speed, scale, gpus, price=random.uniform(0.1, 1, COLUMNS), remaining=remaining,
                   age_s=random.uniform(0, 1e5, m), earned_s=random.uniform(0, 1e5, m))  # fmt: skip


def print_wide(seeds: int = 3) -> None:
    print(f"{'policy':10} {'jobs':>6} {'CPU s, worst of seeds':>22} {'peak MiB':>9} {'violation':>10}")
    for policy in WIDE:
        for m in (1_000, 3_000, 10_000):
            worst_s = most = broken = 0.0
            for seed in range(seeds):
                given = wide(seed, m)
                worst_s = max(worst_s, cpu_s(lambda: CASES[policy].ours(given), 1)[0])  # noqa: B023
                tracemalloc.start()
                broken = max(broken, violation(given, CASES[policy].ours(given)))
                most = max(most, tracemalloc.get_traced_memory()[1] / 2**20)
                tracemalloc.stop()
            print(f"{policy:10} {m:6} {worst_s:22.2f} {most:9.0f} {broken:10.0e}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    beside = os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(beside) / "gavel")
    parser.add_argument("--policies", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--packed-up-to", type=int, default=512, help="largest packed program for cvxpy (minutes)")
    parser.add_argument("--multi", action="store_true", help="jobs of 1 to 8 GPUs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--wide", action="store_true", help="10,000 jobs on 12 columns instead")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.wide:
        print_wide()
        return
    heads = (
        f"{'policy':18} {'jobs':>5} {'ours ms':>9} {'cvxpy ms':>10} {'ratio':>8} {'difference':>11} {'violation':>10}"
    )
    print("" if args.json else heads, end="" if args.json else "\n")
    lines = []
    for policy in args.policies:
        for m in (size for size in args.sizes if size in CASES[policy].sizes):
            line = measure(args, policy, m)
            lines.append(line._asdict())
            if not args.json:
                rest = (
                    "-"
                    if line.cvxpy_s is None
                    else f"{line.cvxpy_s * 1e3:10.1f} {line.ratio:8.1f} {line.difference:11.1e}"
                )
                print(f"{policy:18} {m:5} {line.ours_s * 1e3:9.2f} {rest:>31} {line.violation:10.0e}", flush=True)
    if args.json:
        print(json.dumps({"schema": "pal.allocation-solvers/1", "timings": lines}, indent=1))


if __name__ == "__main__":
    main()
