# SPDX-License-Identifier: MIT
"""Is the makespan bound of gangs loose? It beside one that knows which gangs fit together on a type.

Usage: gang_bounds.py [--data DIR] [--seeds 10]. On c GPUs of a type run patterns: sets of gangs with at most c. The
second bound is the least time in which all jobs find their time in patterns, of which each type has one at a time.
Gavel's recipe of static gangs, 100 jobs on 12 and on 8 GPUs of each of three types, and 500 jobs on 12.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from unequal_types import RECIPES, as_problem, draw

from slurm_pal.allocation.linear import INFINITE, LinearProgram, Rows, together
from slurm_pal.allocation.problem import Problem
from slurm_pal.research.bounds import makespan_bound_s, upto
from slurm_pal.simulate.throughput_file import read_throughputs


def patterns(gpus: int, sizes: Sequence[int]) -> list[list[int]]:
    """How many gangs of each size may run together, of all sets to which no gang can be added."""
    if not sizes:
        return [[]]
    first, rest = sizes[0], sizes[1:]
    found = [[k, *more] for k in range(gpus // first + 1) for more in patterns(gpus - k * first, rest)]
    return [one for one in found if gpus - sum(k * s for k, s in zip(one, sizes, strict=True)) < min(sizes)]


def pattern_bound_s(made: Problem) -> float:
    """For jobs that are all there at 0. Variables: time of each job on each type, of each pattern there; makespan."""
    job, kind = np.nonzero((made.throughput > 0) & (made.scale[:, None] <= made.gpus))
    sizes = sorted({int(size) for size in made.scale}, reverse=True)
    sets = [(j, one) for j, gpus in enumerate(made.gpus) for one in patterns(int(gpus), sizes)]
    n, m, types = job.size, made.n_jobs, made.gpus.size
    end = n + len(sets)
    best = made.throughput.max(axis=1)
    alone_s = made.remaining / best
    unit_s = alone_s.max()
    work = Rows(
        job, np.arange(n), made.throughput[job, kind] / best[job], alone_s / unit_s, np.full(m, INFINITE)
    )  # fmt: skip
    at_once = upto(  # a job runs on one type at a time
        np.concatenate([job, np.arange(m)]), np.concatenate([np.arange(n), np.full(m, end)]),
        np.concatenate([np.ones(n), -np.ones(m)]), np.zeros(m),
    )  # fmt: skip
    in_turn = upto(
        np.array([*(j for j, _ in sets), *range(types)]), np.array([*range(n, end), *[end] * types]),
        np.array([1.0] * len(sets) + [-1.0] * types), np.zeros(types),
    )  # fmt: skip
    place = {size: k for k, size in enumerate(sizes)}
    held = [types * place[int(made.scale[i])] + j for i, j in zip(job, kind, strict=True)]
    room = [(types * k + j, n + p, -float(count)) for p, (j, one) in enumerate(sets) for k, count in enumerate(one)]
    row, column, value = zip(*room, strict=True)
    inside = upto(
        np.array([*held, *row]), np.array([*range(n), *column]), np.array([*[1.0] * n, *value]),
        np.zeros(types * len(sizes)),
    )  # fmt: skip
    cost = np.zeros(end + 1)
    cost[end] = 1.0
    found = LinearProgram(cost, together(work, at_once, in_turn, inside), maximise=False).solve()
    return float(unit_s * max(1.0, found.objective))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[3] / "shared" / "data" / "gavel")
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    table = read_throughputs(str(asked.data / "throughputs_null.csv"))
    print("| jobs | GPUs of each type | longest job / bound | bound by patterns / bound |\n|---|---|---|---|")
    for jobs, gpus in ((100, 12), (100, 8), (500, 12)):
        longest, ratios = [], []
        for seed in range(1, asked.seeds + 1):
            made, release_s = as_problem(
                draw(RECIPES["static, gangs"]._replace(n_jobs=jobs), seed, table), [float(gpus)] * 3
            )
            bound_s = makespan_bound_s(made, release_s)
            longest.append((made.remaining / made.throughput.max(axis=1)).max() / bound_s)
            ratios.append(pattern_bound_s(made) / bound_s)
        spans = (f"{min(some):.3f} to {max(some):.3f}" for some in (longest, ratios))
        print(f"| {jobs} | {gpus} | {' | '.join(spans)} |", flush=True)


if __name__ == "__main__":
    main()
