# SPDX-License-Identifier: MIT
"""How long a job will run, by what earlier jobs of its user and name did. Pure."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

MOST = 20
"""Runs of one user and name that count: the last ones."""
LEAST = 3
"""With fewer, the limit says more."""


class EndedRun(NamedTuple):
    """One run that has ended. `limit_s` is 0 for a job without a time limit."""

    job_id: int
    user: str
    name: str
    gpus: int
    run_s: float
    limit_s: float
    ended_s: float  # Unix s

    @property
    def gpu_s(self) -> float:
        return self.gpus * self.run_s


class RunTimes:
    """The runs of a site, by user and job name."""

    def __init__(self, runs: Iterable[EndedRun] = ()) -> None:
        self._runs: dict[tuple[str, str], deque[EndedRun]] = defaultdict(lambda: deque(maxlen=MOST))
        for run in runs:
            self.add(run)

    def add(self, run: EndedRun) -> None:
        """Runs come in the order in which they ended."""
        self._runs[run.user, run.name].append(run)

    def expected_s(self, user: str, name: str, limit_s: float | None, usual_s: float) -> tuple[float, str]:
        """How long a job will run, and by what; `usual_s` is what its limit alone says."""
        known = [run for run in self._runs.get((user, name), ()) if run.run_s > 0]
        if len(known) < LEAST:
            return usual_s, "its limit"
        return expected_s(known, limit_s, usual_s)


def expected_s(runs: Sequence[EndedRun], limit_s: float | None, usual_s: float) -> tuple[float, str]:
    """What these runs say: their run times, or the share that they used of their limits, whichever differs less."""
    by_time = [math.log(run.run_s) for run in runs]
    found, why, error = math.exp(median(by_time)), "its earlier runs", _spread(by_time)
    if limit_s and all(run.limit_s > 0 for run in runs):
        shares = [math.log(run.run_s / run.limit_s) for run in runs]
        if _spread(shares) < error:
            found, why = limit_s * math.exp(median(shares)), "its limit and the share of it that earlier runs used"
    return min(found, limit_s or math.inf), why


def _spread(logs: Sequence[float]) -> float:
    """Mean distance from the median."""
    middle = median(logs)
    return sum(abs(value - middle) for value in logs) / len(logs)


def shares_of(recent: Iterable[tuple[str, float]]) -> Mapping[str, float]:
    """User -> part of the GPU time that these rows (user, GPU s) add up to, 0..1."""
    used: dict[str, float] = defaultdict(float)
    for user, gpu_s in recent:
        used[user] += gpu_s
    total = sum(used.values())
    return {user: gpu_s / total for user, gpu_s in used.items()} if total > 0 else {}
