# SPDX-License-Identifier: MIT
"""How surely a GPU that becomes a little slower is reported, and how many others are, by the noise of a run.

    python -P tests/bench/small_steps.py [--size 0.015] [--gpus N] [--sites N] [--seed N] [--uneven 0.3] [--json]
    python -P tests/bench/small_steps.py --limit

Half a year of sweeps, which is what is kept, goes through the real scoring one by one. A fifth of the GPUs become
slower by SIZE near its middle, each at a time of its own; the others stay as they are. All levels wander by 0.33 % in
28 days. A GPU counts as found if it has a flag (`step`, `drift`) after one of the sweeps that follow, and as falsely
reported if it has one after any sweep though nothing happened to it. `runs` is the median number of runs until the
flag, of all GPUs that changed. With `remeasured`, GPUs that are `unconfirmed` are run again on each day until the next
sweep, as long as they are; that is what a daily `pal-profile run --since` does. `more` is what that costs, in
runs per planned run. With `--uneven` the noise of a run differs between GPUs; the table has that of the median GPU.

`--limit`: what any detector could find in the planned sweeps alone, with as many false reports: a simulation of the
likelihood ratio, summed over all times of a step of known size, with noise and wandering known exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from slurm_pal.variability.classify import Classification, classify_each
from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.packed import Packed
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.runs import (
    OBSERVATIONS,
    SIGHTINGS,
    Environment,
    Group,
    Sighting,
    SweepObservation,
    SweepRuns,
)

SPAN_D, STEP_D = 180.0, (70.0, 96.0)  # so much is kept; when the steps come
MEMORY_D = 28.0
WANDER = math.sqrt((0.0033**2 - 0.0012**2) / (2.0 * (1.0 - math.exp(-1.0))))  # SD about a GPU's own level
SPREAD = 0.02  # between GPUs
START_S = 1_700_000_000.0
CHANGED = {"step", "drift"}
ENVIRONMENT = Environment("550", "1", "300", "enabled", "disabled")
GROUP = Group("A", "gemm_bf16", "emu", "m", 80, "default", "h", "TFLOP/s")


class Site:
    """GPUs with known levels, some of which step."""

    def __init__(self, gpus: int, every_d: float, noise: float, size: float, seed: int, uneven: float = 0.0) -> None:
        self.draw = np.random.default_rng(seed)
        self.every_d, self.size = every_d, size
        self.noise = noise * np.exp(uneven * np.random.default_rng([seed, 1]).normal(0.0, 1.0, gpus))
        self.level = self.draw.normal(0.0, SPREAD, gpus)
        self.wander = self.draw.normal(0.0, WANDER, gpus)
        self.number = int(SPAN_D // every_d) + 1
        # The sweep from which a GPU is slower.
        self.first = np.ceil(self.draw.uniform(*STEP_D, gpus) / every_d).astype(int)
        self.first[gpus // 5 :] = self.number
        self.day = 0.0
        self.runs = np.zeros(gpus, dtype=int)
        self.doubtful: list[int] = []
        self.more = 0

    def sweeps(self, again: bool) -> Iterator[SweepRuns]:
        """Planned sweeps, and with `again` sweeps of the doubtful GPUs on the days after each."""
        for i in range(self.number):
            self._pass(i * self.every_d - self.day)
            yield self._sweep(i, f"s{i:03d}", range(len(self.level)))
            for k in range(int(self.every_d) - 1 if again else 0):
                if self.doubtful:
                    self._pass(1.0)
                    self.more += len(self.doubtful)
                    yield self._sweep(i, f"s{i:03d}-{k}", tuple(self.doubtful))

    def _pass(self, days: float) -> None:
        self.day += days
        keep = math.exp(-days / MEMORY_D)
        self.wander = keep * self.wander + self.draw.normal(0.0, WANDER * math.sqrt(1.0 - keep**2), len(self.wander))

    def _sweep(self, number: int, name: str, which: Iterable[int]) -> SweepRuns:
        ts = START_S + self.day * DAY_S
        slower = self.level + self.wander + np.where(number >= self.first, math.log1p(self.size), 0.0)
        slower = slower + self.draw.normal(0.0, self.noise, len(slower))
        observations, sightings = Packed[SweepObservation](OBSERVATIONS), Packed[Sighting](SIGHTINGS)
        for g in which:
            uuid, speed = f"GPU-{g:06d}", -float(slower[g])
            self.runs[g] += number >= self.first[g]
            observations.append(
                SweepObservation(uuid, GROUP, ts, speed, 1.0, 0.0005, None, frozenset(), None, ENVIRONMENT)
            )
            place = (uuid, f"n{g // 8:05d}", g % 8, "emu", "m")
            sightings.append(Sighting(ts, f"{name}-{g}", *place, ENVIRONMENT, ("default",), frozenset(), True))
        return SweepRuns(ts, name, observations, sightings)


class Plan(NamedTuple):
    """One line of the table."""

    noise: float  # relative SD of a run, of the median GPU
    every_d: float
    remeasured: bool


class Found(NamedTuple):
    """What happens on some sites."""

    changed: int
    found: int
    same: int  # GPUs to which nothing happened
    false: int
    until: tuple[int, ...]  # runs since its step, of each found
    more: float  # runs per planned run


def one(plan: Plan, size: float, gpus: int, uneven: float, seed: int) -> Found:
    """What happens on one site."""
    site = Site(gpus, plan.every_d, plan.noise, size, seed, uneven)
    until: dict[int, int] = {}  # GPU -> runs since its step when it was first flagged
    false: set[int] = set()
    for sweep, now in classify_each(site.sweeps(plan.remeasured), Params()):
        site.doubtful = doubtful(now)
        number = int(sweep.sweep_id[1:4])
        for gpu in now.gpus:
            g = int(gpu.uuid[4:])
            if not gpu.flags & CHANGED or g in until:
                continue
            if site.first[g] == site.number:
                false.add(g)
            elif site.first[g] <= number:
                until[g] = int(site.runs[g])
    changed = gpus // 5
    waits = tuple(until.values())
    return Found(changed, len(until), gpus - changed, len(false), waits, site.more / (site.number * gpus))


def row(plan: Plan, size: float, gpus: int, uneven: float, seeds: Iterable[int]) -> dict[str, Any]:
    """One line of the table, all sites together; `runs` is the median, None where less than half are found."""
    sites = [one(plan, size, gpus, uneven, seed) for seed in seeds]
    changed, found, same, false = (sum(site[i] for site in sites) for i in range(4))  # type: ignore[misc]
    until = sorted(n for site in sites for n in site.until)
    return {
        "noise_pct": 100 * plan.noise, "every_d": plan.every_d, "size_pct": 100 * size, "remeasured": plan.remeasured,
        "found": found / changed, "found_95": interval(found, changed),
        "false": false / same, "false_95": interval(false, same),
        "runs": until[changed // 2] if len(until) > changed // 2 else None,
        "more": statistics.fmean(site.more for site in sites),
    }  # fmt: skip


def interval(count: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson)."""
    z, share = 1.96, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2))
    return max(0.0, middle - half), min(1.0, middle + half)


FALSE = (0.006, 0.012, 0.022)


def limit(plan: Plan, size: float, seed: int, gpus: int = 10_000) -> dict[str, Any]:
    """What could be found in the planned sweeps, for some shares of false reports."""
    draw, n = np.random.default_rng(seed), int(SPAN_D // plan.every_d) + 1
    day = np.arange(n) * plan.every_d
    covariance = WANDER**2 * np.exp(-np.abs(np.subtract.outer(day, day)) / MEMORY_D) + plan.noise**2 * np.eye(n)
    first = np.ceil(draw.uniform(*STEP_D, gpus) / plan.every_d).astype(int)
    change = math.log1p(size) * (np.arange(n) >= first[:, None])
    same, changed = (draw.normal(size=(gpus, n)) @ np.linalg.cholesky(covariance).T for _ in range(2))
    odds = [_best_odds(runs, covariance, math.log1p(size)) for runs in (same, changed + change)]
    most = odds[0].max(axis=1)
    later = np.where(np.arange(n) >= first[:, None], odds[1], -np.inf).max(axis=1)
    found = {f"found_at_{100 * f:g}_pct_false": float(np.mean(later > np.quantile(most, 1.0 - f))) for f in FALSE}
    return {"noise_pct": 100 * plan.noise, "every_d": plan.every_d, **found}


def _best_odds(runs: Floats, covariance: Floats, change: float) -> Floats:
    """After each run of each GPU: logarithm of the likelihood ratio, summed over all times of a step either way."""
    odds = np.full(runs.shape, -np.inf)
    for n in range(3, runs.shape[1] + 1):
        weights = np.linalg.inv(covariance[:n, :n])
        weights -= np.outer(weights.sum(axis=0), weights.sum(axis=0)) / weights.sum()  # the level is not known
        after = np.tril(np.ones((n, n)), -1)[:, : n - 1]  # a step before each run but the first
        power, score = ((after.T @ weights) * after.T).sum(axis=1), runs[:, :n] @ weights @ after
        both = (np.logaddexp.reduce(s * score * change - change**2 * power / 2.0, axis=1) for s in (1.0, -1.0))
        odds[:, n - 1] = np.maximum(*both)
    return odds


def doubtful(now: Classification) -> list[int]:
    """The GPUs that the next sweep should confirm."""
    return [int(gpu.uuid[4:]) for gpu in now.gpus if "unconfirmed" in gpu.flags]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description="Detection of small steps by the noise of a run.")
    options.add_argument("--size", type=float, default=0.015, help="relative, 0.015 is 1.5 %%")
    options.add_argument("--gpus", type=int, default=400, help="of a site")
    options.add_argument("--sites", type=int, default=1, help="whose mean is shown")
    options.add_argument("--seed", type=int, default=1, help="of the first site")
    options.add_argument("--uneven", type=float, default=0.0, help="SD of the logarithm of GPUs' noise")
    options.add_argument("--limit", action="store_true", help="show what any detector could find")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    plans = [
        Plan(noise, every_d, again)
        for again in (False, True) for every_d in (7.0, 14.0) for noise in (0.0012, 0.0025, 0.005)
    ]  # fmt: skip
    if chosen.limit:
        limits = [limit(plan, chosen.size, chosen.seed) for plan in plans if not plan.remeasured]
        print(json.dumps(limits, indent=1) if chosen.json else "\n".join(map(_limit_line, limits)))
        return
    seeds = range(chosen.seed, chosen.seed + chosen.sites)
    rows = []
    if not chosen.json:
        print("remeasured every/d  noise  found    95%          false    95%         runs   more")
    for plan in plans:
        rows.append(row(plan, chosen.size, chosen.gpus, chosen.uneven, seeds))
        if not chosen.json:
            print(_line(rows[-1]), flush=True)
    if chosen.json:
        print(json.dumps(rows, indent=1))


def _line(r: dict[str, Any]) -> str:
    found, false = ("{:5.1%}..{:6.1%}".format(*r[key]) for key in ("found_95", "false_95"))
    return (f"{'yes' if r['remeasured'] else 'no':10} {r['every_d']:7g} {r['noise_pct']:5.2f}% {r['found']:6.1%} "
            f"{found} {r['false']:6.1%} {false} {r['runs'] or '-':>5} {r['more']:6.1%}")  # fmt: skip


def _limit_line(r: dict[str, Any]) -> str:
    shares = ", ".join(f"{r[f'found_at_{100 * f:g}_pct_false']:6.1%} at {f:.1%} false" for f in FALSE)
    return f"every {r['every_d']:g} d, noise {r['noise_pct']:.2f}%: at most {shares}"


if __name__ == "__main__":
    main()
