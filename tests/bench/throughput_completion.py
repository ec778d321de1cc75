# SPDX-License-Identifier: MIT
"""How well completion fills gaps in Gavel's throughput table, and what its errors cost.

Usage: throughput_completion.py [--data DIR] [--seeds N] [--jobs M]. DIR holds throughputs_null.csv (default:
$PAL_REFERENCE_DATA/gavel, or ../shared/data/gavel beside the checkout). An error is the larger over the
smaller of estimate and truth, minus 1. "level" is what the worst-off of M one-GPU jobs gets, by the
true throughputs, from the max-min allocation for the estimated ones, over the optimum; "mean" is the mean of all
jobs over that of the optimal allocation; "agnostic" is the same for the allocation that treats all types as equal.
CPU is that of one completion.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_pal.allocation.completion import Matrix, complete
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import effective, problem, proportional_throughput

PACKED = ("v100", "p100", "k80")
COLUMNS = {"3 types": PACKED, "3 types, packed and spread": (*PACKED, *(f"{name}_unconsolidated" for name in PACKED))}
SHARES = (0.1, 0.3, 0.5, 0.67)


def read(path: Path, columns: Sequence[str]) -> tuple[list[str], list[int], Matrix]:
    """Models, GPUs and logarithms of throughputs, NaN where there is none."""
    with open(path, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    rates = np.array([[float(row[name] or 0) for name in columns] for row in rows])
    logs = np.log(np.where(rates > 0, rates, np.nan))
    return [row["model"] for row in rows], [int(row["scale_factor"]) for row in rows], logs


def hidden(logs: Matrix, share: float, seed: int) -> Matrix:
    """A share of the entries hidden, at least one left in each row."""
    random = np.random.default_rng(seed)
    known = ~np.isnan(logs)
    seen = known & (random.random(known.shape) >= share)
    for i in np.flatnonzero(~seen.any(axis=1)):
        seen[i, random.choice(np.flatnonzero(known[i]))] = True
    return np.where(seen, logs, np.nan)


def worth(estimate: Matrix, truth: Matrix, gpus: Sequence[float]) -> tuple[float, float]:
    """(least, mean) normalised true throughput of the allocation for estimated ones, over those of the optimal one."""
    one = np.ones(len(truth))
    real = problem(truth, one, gpus)
    taken, best = (
        effective(real, max_min(problem(rates, one, gpus)).shares) / proportional_throughput(real)
        for rates in (estimate, truth)
    )
    return float(taken.min() / best.min()), float(taken.mean() / best.mean())


def errors_by_share(title: str, models: list[str], logs: Matrix, seeds: int) -> None:
    print(f"\n{title}: {np.count_nonzero(~np.isnan(logs))} entries in {len(logs)} rows")
    print("hidden  median error  90 %  inside 1 sigma  inside 2 sigma  ranks  CPU ms")
    for share in SHARES:
        errors: list[float] = []
        ratios: list[float] = []
        ranks: list[int] = []
        cpu_ms: list[float] = []
        for seed in range(seeds):
            seen = hidden(logs, share, seed)
            start = time.process_time()
            found = complete(seen, group=models)
            cpu_ms.append((time.process_time() - start) * 1e3)
            gaps = np.isnan(seen) & ~np.isnan(logs)
            apart = np.abs(found.value - logs)
            errors += list(np.expm1(apart[gaps]))
            ratios += list((apart / np.where(gaps, found.error, 1.0))[gaps])
            ranks.append(found.rank)
        within = [float(np.mean(np.array(ratios) <= sigmas)) for sigmas in (1, 2)]
        print(
            f"{share:>6.2f} {np.median(errors):>13.3f} {np.quantile(errors, 0.9):>5.2f} {within[0]:>15.2f} "
            f"{within[1]:>15.2f}  {','.join(map(str, sorted(set(ranks)))):>5} {min(cpu_ms):>7.0f}"
        )


def cost_by_share(models: list[str], sizes: list[int], logs: Matrix, n_jobs: int, seeds: int) -> None:
    print(f"\nMax-min level of {n_jobs} one-GPU jobs on {n_jobs // 4} GPUs of each type, over the optimum")
    print("hidden  level: median  least   mean  agnostic level  agnostic mean")
    single = np.flatnonzero(np.array(sizes) == 1)
    gpus = [n_jobs // 4] * logs.shape[1]
    for share in (0.0, *SHARES):
        ours: list[tuple[float, float]] = []
        agnostic: list[tuple[float, float]] = []
        for seed in range(seeds):
            rows = np.random.default_rng(1000 + seed).choice(single, n_jobs)
            truth = np.exp(logs[rows])
            found = complete(hidden(logs, share, seed), group=models)
            ours.append(worth(np.exp(found.value[rows]), truth, gpus))
            agnostic.append(worth(np.ones(truth.shape), truth, gpus))
        least, mean = (statistics.median(column) for column in zip(*ours, strict=True))
        flat, flat_mean = (statistics.median(column) for column in zip(*agnostic, strict=True))
        print(f"{share:>6.2f} {least:>14.3f} {min(ours)[0]:>6.3f} {mean:>6.3f} {flat:>15.3f} {flat_mean:>14.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(default) / "gavel")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=128)
    chosen = parser.parse_args()
    for title, columns in COLUMNS.items():
        models, sizes, logs = read(chosen.data / "throughputs_null.csv", columns)
        errors_by_share(title, models, logs, chosen.seeds)
        if columns == PACKED:
            cost_by_share(models, sizes, logs, chosen.jobs, chosen.seeds)


if __name__ == "__main__":
    main()
