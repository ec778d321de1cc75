# SPDX-License-Identifier: MIT
"""How surely a GPU that becomes a little slower is reported, and how many others are, by the noise of a run.

    python -P tests/bench/small_steps.py [--size 0.015] [--gpus N] [--sites N] [--json]

Half a year of sweeps, which is what is kept, goes through the real scoring one by one. A fifth of the GPUs become
slower by SIZE near its middle, each at a time of its own; the others stay as they are. All levels wander by 0.33 % in
28 days. A GPU counts as found if it has a flag (`step`, `drift`) after one of the sweeps that follow, and as falsely
reported if it has one after any sweep though nothing happened to it. `runs` is the median number of runs until the
flag, of all GPUs that changed. With `remeasured`, GPUs that are `unconfirmed` are run again on each of the three days
after a sweep, as long as they are; that is what a daily `pal-profile run --since` does. `more` is what that costs, in
runs per planned run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from slurm_pal.variability.classify import Classification, classify_each
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
AGAIN = 3  # days after a sweep on which doubtful GPUs are measured again
SPREAD = 0.02  # between GPUs
START_S = 1_700_000_000.0
CHANGED = {"step", "drift"}
ENVIRONMENT = Environment("550", "1", "300", "enabled", "disabled")
GROUP = Group("A", "gemm_bf16", "emu", "m", 80, "default", "h", "TFLOP/s")


class Site:
    """GPUs with known levels, some of which step."""

    def __init__(self, gpus: int, every_d: float, noise: float, size: float, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.every_d, self.noise, self.size = every_d, noise, size
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
            for k in range(AGAIN if again else 0):
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


def one(noise: float, every_d: float, size: float, gpus: int, again: bool, seed: int) -> dict[str, float | None]:
    """What happens on one site."""
    site = Site(gpus, every_d, noise, size, seed)
    until: dict[int, int] = {}  # GPU -> runs since its step when it was first flagged
    false: set[int] = set()
    for sweep, now in classify_each(site.sweeps(again), Params()):
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
    waits = sorted([*until.values(), *[10**6] * (changed - len(until))])
    median = waits[changed // 2]
    return {"found": len(until) / changed, "false": len(false) / (gpus - changed),
            "runs": median if median < 10**6 else None, "more": site.more / (site.number * gpus)}  # fmt: skip


def row(noise: float, every_d: float, size: float, gpus: int, again: bool, sites: int) -> dict[str, Any]:
    """One line of the table: the mean over some sites, the median for the runs."""
    found = [one(noise, every_d, size, gpus, again, seed) for seed in range(1, sites + 1)]
    means = {key: statistics.fmean(site[key] or 0.0 for site in found) for key in ("found", "false", "more")}
    runs = sorted(math.inf if site["runs"] is None else site["runs"] for site in found)[sites // 2]
    known = {"noise_pct": 100 * noise, "every_d": every_d, "size_pct": 100 * size, "remeasured": again}
    return known | means | {"runs": None if math.isinf(runs) else int(runs)}


def doubtful(now: Classification) -> list[int]:
    """The GPUs that the next sweep should confirm."""
    return [int(gpu.uuid[4:]) for gpu in now.gpus if "unconfirmed" in gpu.flags]


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description="Detection of small steps by the noise of a run.")
    options.add_argument("--size", type=float, default=0.015, help="relative, 0.015 is 1.5 %%")
    options.add_argument("--gpus", type=int, default=400, help="of a site")
    options.add_argument("--sites", type=int, default=1, help="whose mean is shown")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    rows = [
        row(noise, every_d, chosen.size, chosen.gpus, again, chosen.sites)
        for again in (False, True) for every_d in (7.0, 14.0) for noise in (0.0012, 0.0025, 0.005)
    ]  # fmt: skip
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print("remeasured every/d  noise  found  false  runs   more")
    for r in rows:
        print(f"{'yes' if r['remeasured'] else 'no':10} {r['every_d']:7g} {r['noise_pct']:5.2f}% {r['found']:6.1%} "
              f"{r['false']:6.1%} {r['runs'] or '-':>5} {r['more']:6.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
