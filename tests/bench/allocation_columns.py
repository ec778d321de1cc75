# SPDX-License-Identifier: MIT
"""What locality and variability columns add, what the second stage saves in moves, and how both scale.

Usage: allocation_columns.py [ablation|moves|scaling] [--seeds N]

A made-up site: three partitions of speeds 1 : 2.5 : 6, nodes of 8 GPUs with the slowdowns of
`pal lab`, jobs of 1 to 16 GPUs of 26 applications. They ask for twice the GPUs that there are.
All is counted in the fluid model of shares. Weights are the GPUs of a job, so that the level
is the least normalised throughput.

ablation: every variant knows the speed that its jobs really have in its own columns. Where a
column does not say which GPUs of a partition, the gang's are drawn from it at random, and the
gang runs at the pace of the slowest; where it does not say packed, they are drawn from all
nodes, and the gang spans nodes (a placement that packs by itself makes "partition" equal to
"+ packed or spread"). "as booked" moves the share of packed gangs for which there are not
enough nodes into the columns that they would get instead.
moves: solve after solve with 2 % of the jobs replaced, each variant on its own history.
scaling: each size in a process of its own, total CPU seconds and peak memory.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import columns
from slurm_pal.allocation import problem as problems
from slurm_pal.allocation.base import reference_throughput
from slurm_pal.allocation.columns import Columns, PartitionCapacity, PartitionGpus, PartitionJobs
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import Matrix, Problem, Vector, effective
from slurm_pal.allocation.second_stage import level_floor, second_stage
from slurm_pal.emulation.gpus import draw_registry

SPEED = {"slow": 1.0, "middle": 2.5, "fast": 6.0}
PER_NODE = 8
BOUNDS = {2: (0.05,), 3: (0.0, 0.05)}  # slowdowns of class A between the variability classes, less 1
SIZES = {1: 0.45, 2: 0.15, 3: 0.05, 4: 0.13, 6: 0.03, 8: 0.1, 12: 0.03, 16: 0.06}  # GPUs of a job: probability
N_APPS = 26
MOVE_COST_S, HORIZON_S = 180.0, 3600.0


# -- the made-up site ------------------------------------------------------------------------


def site(seed: int, nodes: int, levels: int, widen: float = 1.0) -> Columns:
    """Three partitions of `nodes` nodes each; the level of a class is the mean slowdown of its GPUs.

    Slowdowns are those of `pal lab` (SD 2 %, 5 % outliers), or `widen` times as far from 1, up to 1.5.
    """
    found = []
    for number, name in enumerate(SPEED):
        names = [f"{name}{k}" for k in range(nodes)]
        registry = draw_registry(names, PER_NODE, 10 * seed + number)
        gpus = [
            [
                {c: min(1.5, 1 + widen * (value - 1)) for c, value in gpu.slowdown.items()}
                for gpu in registry.on_node(node)
            ]
            for node in names
        ]
        in_class = [[sum(gpu["A"] > 1 + widen * bound for bound in BOUNDS[levels]) for gpu in node] for node in gpus]
        flat = [(gpu, v) for node, row in zip(gpus, in_class, strict=True) for gpu, v in zip(node, row, strict=True)]
        slowdown = {
            c: tuple(statistics.fmean(gpu[c] for gpu, v in flat if v == level) for level in range(levels))
            for c in "ABC"
        }
        found.append(PartitionGpus(name, [[row.count(v) for v in range(levels)] for row in in_class], slowdown))
    return columns.columns(found)


class App(NamedTuple):
    steps: float  # per second on one GPU of the slow partition
    exponent: float  # how much of a partition's speed it sees
    spread: float
    sensitivity: str


def apps(generator: random.Random) -> list[App]:
    return [
        App(
            math.exp(generator.uniform(-1, 4)), generator.uniform(0.6, 1.1), generator.uniform(0.3, 1.0),
            generator.choice("ABC"),
        )
        for _ in range(N_APPS)
    ]  # fmt: skip


Job = tuple[App, int]


def draw(generator: random.Random, known: list[App], m: int) -> list[Job]:
    sizes = generator.choices(list(SIZES), weights=list(SIZES.values()), k=m)
    return [(generator.choice(known), size) for size in sizes]


def table(jobs: list[Job]) -> PartitionJobs:
    speed = [[app.steps * size**0.9 * fast**app.exponent for fast in SPEED.values()] for app, size in jobs]
    spread = np.array([app.spread ** math.log2(max(2, size)) ** 0.5 for app, size in jobs])
    return PartitionJobs(
        np.array(speed), spread, [app.sensitivity for app, _ in jobs], np.array([float(s) for _, s in jobs])
    )


def waiting(generator: random.Random, nodes: int) -> tuple[list[App], list[Job]]:
    """Jobs that ask for twice the GPUs of the site."""
    known = apps(generator)
    mean = sum(size * share for size, share in SIZES.items())
    return known, draw(generator, known, round(2 * len(SPEED) * nodes * PER_NODE / mean))


# -- columns that say less -------------------------------------------------------------------


def at_random(room: PartitionCapacity, partition: PartitionGpus, scale: float, packed: bool) -> Vector:
    """(V,) probability of each level as the worst of `scale` GPUs, drawn from one node or from all of them."""
    size = int(scale)
    pools = np.cumsum(np.array(partition.nodes), axis=1) if packed else room.upto[None, :].astype(int)
    upto = np.array([[math.comb(int(n), size) / math.comb(int(pool[-1]), size) for n in pool] for pool in pools])
    return np.diff(upto.mean(axis=0), prepend=0.0)


def class_blind(made: Columns, jobs: PartitionJobs, locality: bool) -> Problem:
    """Columns = partition, or partition x {packed, spread}."""
    parts, uses = [], []
    for k, (partition, room) in enumerate(zip(made.partitions, made.rooms, strict=True)):
        speed = np.zeros((len(jobs.scale), 2))
        for i, (scale, sensitivity) in enumerate(zip(jobs.scale, jobs.sensitivity, strict=True)):
            slowdown = np.array(partition.slowdown[sensitivity])
            fits = scale <= PER_NODE
            anywhere = float((at_random(room, partition, scale, packed=False) / slowdown).sum())
            in_node = float((at_random(room, partition, scale, packed=True) / slowdown).sum()) if fits else 0.0
            ratio = jobs.spread[i] if scale > 1 else 1.0
            packed = in_node if fits else anywhere * ratio
            speed[i] = (packed, anywhere * ratio if fits and scale > 1 else 0.0) if locality else (anywhere * ratio, 0)
            speed[i] *= jobs.throughput[i, k]
        parts.append(speed if locality else speed[:, :1])
        uses += [k] * (2 if locality else 1)
    rows = (np.arange(len(made.rooms))[:, None] == np.array(uses)[None, :]).astype(float)
    capacity = np.array([room.upto[-1] for room in made.rooms])
    gpus = np.concatenate([[n, 0.0] if locality else [n] for n in capacity])
    return problems.problem(np.hstack(parts), jobs.scale, gpus, uses=rows, capacity=capacity)


def locality_blind(made: Columns, jobs: PartitionJobs) -> Problem:
    """Columns = partition x variability class; gangs span nodes."""
    spread = np.where(jobs.scale > 1, jobs.spread, 1.0)[:, None]
    full = columns.problem(made, jobs._replace(throughput=jobs.throughput * spread, spread=np.ones(len(spread))))
    packed = [at for at, name in enumerate(made.names) if not name.spread]
    return full._replace(
        throughput=full.throughput[:, packed], gpus=full.gpus[packed], uses=full.uses[:, packed],
        price=full.price[packed], pairs=full.pairs[:, :, packed],
    )  # fmt: skip


VARIANTS: dict[str, Callable[[Columns, PartitionJobs], Problem]] = {
    "partition": lambda made, jobs: class_blind(made, jobs, locality=False),
    "+ packed or spread": lambda made, jobs: class_blind(made, jobs, locality=True),
    "+ variability class": locality_blind,
    "both": lambda made, jobs: columns.problem(made, jobs),
}
PACKS = ("+ packed or spread", "both")


# -- what of it there are nodes for -----------------------------------------------------------


def as_booked(made: Columns, problem: Problem, shares: Matrix, levels: bool) -> Matrix:
    """Shares after what packed gangs cannot have has gone to the next level, and from the last one to spread.

    A node with g GPUs of the classes up to v holds at most g // k packed gangs of k or more
    GPUs. `levels` says whether the columns of a partition have variability classes.
    """
    booked, at = shares.copy(), 0
    for partition, room in zip(made.partitions, made.rooms, strict=True):
        width = room.levels if levels else 1
        good = np.cumsum(np.array(partition.nodes), axis=1)[:, -width:]
        for v in range(width):
            for size in range(PER_NODE, 1, -1):
                gangs = np.flatnonzero((problem.scale >= size) & (problem.scale <= PER_NODE))
                in_one_node = problem.scale[gangs, None] <= good.max(axis=0)[: v + 1]
                held = booked[gangs, at : at + v + 1] * in_one_node
                slots = float((good[:, v] // size).sum())
                if held.sum() > slots:
                    lost = held * (1 - slots / held.sum())
                    booked[gangs, at : at + v + 1] -= lost
                    booked[gangs, at + v + 1 if v + 1 < width else at + width + v] += lost.sum(axis=1)
        at += 2 * width
    return booked


# -- ablation --------------------------------------------------------------------------------


class Found(NamedTuple):
    """Normalised by the reference of the full columns, for all variants."""

    level: float
    mean_first: float  # after the first stage alone
    mean: float  # after the second
    mean_at_base: float  # after the second, with no more for each job than partition columns give
    level_booked: float
    mean_booked: float


def evaluate(name: str, made: Columns, jobs: PartitionJobs, reference: Vector, base_level: float | None) -> Found:
    problem = VARIANTS[name](made, jobs)
    own = reference_throughput(problem)
    problem = problem._replace(weight=jobs.scale * reference / own)
    first = max_min(problem)

    def second(level: float) -> Matrix:
        return second_stage(problem, level_floor(problem, level), value=own / reference).shares

    def thr(found: Matrix) -> Vector:
        return effective(problem, found) / reference

    shares = second(first.objective)
    booked = as_booked(made, problem, shares, levels=name == "both") if name in PACKS else shares
    at_base = second(min(first.objective, base_level or first.objective))
    return Found(
        first.objective, float(thr(first.shares).mean()), float(thr(shares).mean()), float(thr(at_base).mean()),
        float(thr(booked).min()), float(thr(booked).mean()),
    )  # fmt: skip


TITLES = (
    "level",
    "mean, stage 1",
    "mean, stage 2",
    "mean at the level of partition",
    "level as booked",
    "mean as booked",
)
AGAINST = ("level", "mean_first", "mean", "mean", "level", "mean")
"""What each figure is divided by, of partition columns."""


def ablation(seeds: int, widen: float, nodes: int = 24, levels: int = 3) -> None:
    found: dict[str, list[Found]] = {name: [] for name in VARIANTS}
    base = found["partition"]
    for seed in range(1, seeds + 1):
        made = site(seed, nodes, levels, widen)
        jobs = table(waiting(random.Random(seed), nodes)[1])
        reference = reference_throughput(columns.problem(made, jobs))
        for name in VARIANTS:
            base_level = base[-1].level if len(base) == seed else None
            found[name].append(evaluate(name, made, jobs, reference, base_level))
    print(f"\n{seeds} sites, slowdowns x {widen:g}: normalised throughput, geometric mean of the ratio to partition")
    print(f"| columns | {' | '.join(TITLES)} |\n{'|---' * (1 + len(TITLES))}|")
    for name, rows in found.items():
        cells = []
        for field, against in zip(Found._fields, AGAINST, strict=True):
            logs = [math.log(getattr(a, field) / getattr(b, against)) for a, b in zip(rows, base, strict=True)]
            cells.append(f"{math.exp(statistics.fmean(logs)):.3f}")
        print(f"| {name} | {' | '.join(cells)} |")


# -- moves -----------------------------------------------------------------------------------


class History(NamedTuple):
    moved: list[float]  # share of its time for which a job that stayed in the mix changes its column
    level: list[float]  # level over that of the first stage
    mean: list[float]


Solve = Callable[[Problem, Matrix], Matrix]


def with_second(move_cost_s: float) -> Solve:
    def solve(problem: Problem, previous: Matrix) -> Matrix:
        penalty = np.full(problem.n_jobs, move_cost_s / HORIZON_S)
        floor = level_floor(problem, max_min(problem).objective)
        return second_stage(problem, floor, previous=previous, penalty=penalty).shares

    return solve


SOLVES: dict[str, Solve] = {
    "stage 1 alone": lambda problem, previous: max_min(problem).shares,
    "stage 2, moves free": with_second(0.0),
    f"stage 2, moves {MOVE_COST_S:g} s an hour": with_second(MOVE_COST_S),
    f"stage 2, moves {4 * MOVE_COST_S:g} s an hour": with_second(4 * MOVE_COST_S),
}


def moves(seeds: int, nodes: int = 24, levels: int = 3, solves: int = 15, replaced: float = 0.02) -> None:
    found = {name: History([], [], []) for name in SOLVES}
    for seed in range(1, seeds + 1):
        generator = random.Random(seed)
        made = site(seed, nodes, levels)
        known, jobs = waiting(generator, nodes)
        previous = {name: np.zeros((len(jobs), len(made.names))) for name in SOLVES}
        new: NDArray[np.bool_] = np.ones(len(jobs), dtype=bool)
        for turn in range(solves):
            problem = columns.problem(made, table(jobs))
            problem = problem._replace(weight=problem.scale)
            best = max_min(problem).objective
            for name, solve in SOLVES.items():
                previous[name][new] = 0.0
                shares = solve(problem, previous[name])
                if turn:
                    _note(found[name], problem, shares, previous[name], new, best)
                previous[name] = shares
            new = np.array([generator.random() < replaced for _ in jobs])
            jobs = [draw(generator, known, 1)[0] if gone else job for job, gone in zip(jobs, new, strict=True)]
    print(
        "| solve | moved share of a job per solve | level / stage 1 | mean normalised throughput |\n|---|---|---|---|"
    )
    for name, history in found.items():
        cells = (statistics.fmean(history.moved), min(history.level), statistics.fmean(history.mean))
        print(f"| {name} | {cells[0]:.4f} | {cells[1]:.5f} | {cells[2]:.3f} |")


def _note(
    history: History, problem: Problem, shares: Matrix, previous: Matrix, new: NDArray[np.bool_], best: float
) -> None:
    history.moved.append(float(np.abs(shares - previous)[~new].sum(axis=1).mean() / 2))
    normalised = effective(problem, shares) / reference_throughput(problem)
    history.level.append(float(normalised.min() / best))
    history.mean.append(float(normalised.mean()))


# -- scaling ---------------------------------------------------------------------------------

CASES = {"by application": 0.0, "no two jobs alike": 0.2}  # spread of the throughput between jobs of an application


def one(m: int, noise: float) -> dict[str, float]:
    """CPU seconds of each step for m jobs on 12 columns, and the peak of memory, MiB."""
    generator = random.Random(m)
    mean = sum(size * share for size, share in SIZES.items())
    made = site(1, max(4, round(m * mean / (2 * len(SPEED) * PER_NODE))), 2)
    jobs = table(draw(generator, apps(generator), m))
    factor = np.array([[math.exp(noise * generator.gauss(0, 1)) for _ in SPEED] for _ in range(m)])
    jobs = jobs._replace(throughput=jobs.throughput * factor)
    empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    at = [time.process_time()]

    def lap() -> float:
        at.append(time.process_time())
        return at[-1] - at[-2]

    problem = columns.problem(made, jobs, weight=jobs.scale)
    found = {"columns": lap()}
    first = max_min(problem)
    found["stage 1"] = lap()
    can = [np.flatnonzero(row) for row in problem.throughput]
    held = [int(generator.choice(row)) if len(row) and generator.random() < 0.5 else -1 for row in can]
    problem, floor = problem._replace(held=np.array(held)), level_floor(problem, first.objective)
    penalty = np.full(m, MOVE_COST_S / HORIZON_S)
    lap()
    second_stage(problem, floor, penalty=penalty)
    found["stage 2, held"] = lap()
    second_stage(problem, floor, previous=first.shares, penalty=penalty)
    found["stage 2, shares"] = lap()
    found["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - empty
    return found


def scaling(sizes: tuple[int, ...] = (1_000, 3_000, 10_000)) -> None:
    head = ""
    for case, noise in CASES.items():
        for m in sizes:
            argv = [sys.executable, __file__, "one", "--jobs", str(m), "--noise", str(noise)]
            done = subprocess.run(argv, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            if not head:
                head = f"| throughputs | jobs | {' | '.join(found)} |\n{'|---' * (len(found) + 2)}|"
                print(head)
            print(f"| {case} | {m} | {' | '.join(f'{value:.3g}' for value in found.values())} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("ablation", "moves", "scaling", "one"), default="ablation")
    parser.add_argument("--seeds", type=int, default=8, help="sites 1 to N")
    parser.add_argument("--jobs", type=int, default=1_000, help="of `one`, a single row of scaling, as JSON")
    parser.add_argument("--noise", type=float, default=0.0, help="of `one`: spread of throughput between jobs")
    given = parser.parse_args()
    if given.part == "one":
        print(json.dumps(one(given.jobs, given.noise)))
    elif given.part == "scaling":
        scaling()
    elif given.part == "moves":
        moves(given.seeds)
    else:
        ablation(given.seeds, widen=1.0)
        ablation(given.seeds, widen=4.0)


if __name__ == "__main__":
    main()
