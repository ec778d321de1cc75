# SPDX-License-Identifier: MIT
"""The study of owners and guests, trace by trace: what is drawn, how many jobs there are, which policies there are.

The specification (aryl.md 7) asks for 3,600 jobs in 15 days on 256 GPUs and for a mean queue of 3,000 s in the
baseline. With the run times and GPUs that it asks for, 3,600 jobs need a quarter of these GPUs and nobody waits. The
number of jobs gives way here: it is tuned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import numpy as np

from slurm_pal.allocation.demand import DemandSample, predicted_nodes
from slurm_pal.base.errors import UsageError
from slurm_pal.research.loans import GRACE_S, ORDER_S, SERVER_GPUS, LoanFigures, LoanJob, LoanRules, LoanStudy, Owner
from slurm_pal.simulate.pool import Progress

DAY_S, HOUR_S = 86400.0, 3600.0
WEEKS = 4  # of the owner's past
MEDIAN_S, MEAN_S, LONGEST_S = 874.0, 18006.0, 15 * DAY_S  # run times of AcmeTrace's GPU jobs
WIDTHS, SHARES = (1, 2, 4, 8, 16), (0.735, 0.13, 0.075, 0.045, 0.015)  # GPUs: mean 1.9
LEAST_JOBS, MOST_JOBS, MOST_DAYS = 10, 100_000, 60
FULL = 1.5  # times the training GPUs: more jobs than any queue takes
NEAR, WITHIN = 0.01, 0.1  # of the wanted queue: where bisection ends, and what is good enough
STRETCHES, STRETCH = 100, 0.001  # tries around the number of jobs, each by so much: 5 % at most
DRAWS = 5  # of a seed: with some, a few jobs decide about all queueing, and no number of jobs makes the wanted queue
SHARE_OFF, SHARE_FAR = 0.001, 0.01  # of the elastic jobs' share of GPU time: what is good enough, and what is refused
EXCHANGES = 100
BASELINE = "aryl-none"
QUEUE_X, JCT_X, USAGE_PERCENT = 1.53, 1.48, 25.0
"""What Lyra reports (EuroSys 2023)."""

POLICIES = {
    BASELINE: LoanRules("FIFO, no loan, no scaling: the baseline", shortest=False, loan=False, scale=False),
    "aryl-sjf": LoanRules("shortest first alone", loan=False, scale=False),
    "aryl-more": LoanRules(
        "FIFO on as many own servers more as aryl borrows", shortest=False, loan=False, scale=False, more=True
    ),
    "aryl-more-sjf": LoanRules("aryl-more, shortest first", loan=False, scale=False, more=True),
    "aryl-loan-random": LoanRules(
        "FIFO and loans, random reclaim", shortest=False, scale=False, reclaim="random", split=False
    ),
    "aryl-loan-fewest": LoanRules(
        "FIFO and loans, fewest jobs first", shortest=False, scale=False, reclaim="jobs", split=False
    ),
    "aryl-noloan": LoanRules("shortest first and scaling, no loan", loan=False),
    "aryl": LoanRules("all: loans, scaling, reclaim by lost work, placement apart"),
    "aryl-noscale": LoanRules("aryl without scaling", scale=False),
    "aryl-random-reclaim": LoanRules("aryl with random reclaim", reclaim="random"),
    "aryl-fewest-reclaim": LoanRules("aryl that reclaims where fewest jobs are", reclaim="jobs"),
    "aryl-noplacement": LoanRules("aryl that places anything anywhere", split=False),
    "aryl-fifo": LoanRules("aryl with FIFO", shortest=False),
    "aryl-eager": LoanRules("aryl that changes workers without charge or cool-down", eager=True),
    "aryl-zero": LoanRules("aryl, and preempted jobs start from zero", from_zero=True),
}


class LoanSettings(NamedTuple):
    """What is drawn and charged."""

    jobs: int = 0  # 0: so many that the baseline's mean queue is `queue`
    days: float = 15.0  # in which they arrive
    queue: float = 3000.0  # s
    servers: int = 32  # of each group
    elastic: float = 0.05  # share of jobs
    elastic_time: float = 0.36  # their share of GPU time; at least `elastic`
    restart: float = 150.0  # s
    checkpoint: float = 1800.0  # s
    error: float = 0.0  # run times are believed to be up to this share longer or shorter
    headroom: float = 0.02

    def check(self) -> None:
        """Raises UsageError."""
        shares = self.elastic, self.elastic_time, self.error, self.headroom
        if not all(0 <= share <= 1 for share in shares) or self.error == 1:
            raise UsageError(
                f"elastic, elastic_time, error and headroom are {shares}; each must be 0 to 1, error below 1"
            )
        if not (self.jobs == 0 or LEAST_JOBS <= self.jobs <= MOST_JOBS):
            raise UsageError(f"jobs {self.jobs}: {LEAST_JOBS} to {MOST_JOBS:,}, or 0 for as many as make the queue")
        if not (2 <= self.servers <= 1000 and 0 < self.days <= MOST_DAYS):
            raise UsageError(f"servers {self.servers}, days {self.days}: 2 to 1,000, above 0 and up to {MOST_DAYS}")
        if not (0 <= self.restart < math.inf and 0 < self.checkpoint < math.inf and 0 < self.queue < math.inf):
            raise UsageError(
                f"restart {self.restart} s, checkpoint {self.checkpoint} s, queue {self.queue} s: restart must be at "
                "least 0, the others above 0"
            )


KEYS = {
    "jobs": "how many; 0: as many as make the baseline wait `queue`",
    "days": "in which they arrive, about",
    "queue": "the baseline's mean wait, s, to 10 %",
    "servers": "of each group, 8 GPUs each",
    "elastic": "share of jobs that can use up to twice their workers",
    "elastic_time": "their share of GPU time; at least `elastic`",
    "restart": "what a restart or a change of workers costs a job, s",
    "checkpoint": "how often jobs make one, s",
    "error": "run times are believed to be up to this share longer or shorter",
    "headroom": "share of its servers that the owner keeps beyond what it is predicted to need",
}
"""What each setting means."""


class LoanSeed(NamedTuple):
    """All policies on the trace of a seed, and what no policy can exceed on it."""

    draw: int  # 1, or more where no number of the jobs of earlier draws waits as long as wanted
    jobs: int
    days: float  # to the last arrival
    load: float  # GPU time of all jobs over that of the training servers in these days
    elastic: float  # share of jobs
    elastic_time: float  # share of GPU time
    jct_bound_s: float  # mean without any waiting, each elastic job with all of its workers from start to end
    usage_bound: float  # then, with as many servers as it takes, but no more than there are counted
    figures: dict[str, LoanFigures]


class Gate(NamedTuple):
    """What the specification asks for, and what was measured."""

    name: str
    what: str
    wanted: float
    measured: float | None  # None: nobody waits any more
    at_most: float | None  # what any policy could reach on these traces; None: there is no such bound
    met: bool


def gates(seeds: Sequence[LoanSeed]) -> list[Gate]:
    """A1, A2, A3 and A6 of aryl.md 8, for `aryl` against the baseline, from means over seeds; A6 over all policies."""

    def mean(name: str, field: str) -> float:
        return fmean(getattr(seed.figures[name], field) for seed in seeds)

    jct_s, usage, queue_s = mean(BASELINE, "jct_s"), mean(BASELINE, "usage"), mean("aryl", "queue_s")
    queue = None if queue_s == 0 < mean(BASELINE, "queue_s") else mean(BASELINE, "queue_s") / (queue_s or 1.0)
    jct, jct_bound = jct_s / mean("aryl", "jct_s"), jct_s / fmean(seed.jct_bound_s for seed in seeds)
    gain, gain_bound = (
        100 * (one / usage - 1) for one in (mean("aryl", "usage"), fmean(seed.usage_bound for seed in seeds))
    )
    wait_s = max(one.owner_wait_s for seed in seeds for one in seed.figures.values())
    return [
        Gate("A1", "mean queue, x shorter", QUEUE_X, queue, None, queue is None or queue >= QUEUE_X),
        Gate("A2", "mean JCT, x shorter", JCT_X, jct, jct_bound, jct >= JCT_X),
        Gate("A3", "usage of both groups, + %", USAGE_PERCENT, gain, gain_bound, gain >= USAGE_PERCENT),
        Gate("A6", "owner's longest wait, s", ORDER_S + GRACE_S, wait_s, None, wait_s <= ORDER_S + GRACE_S),
    ]


class LoanComparison(NamedTuple):
    """Work for pool.run_all; a task is a seed."""

    settings: LoanSettings
    policies: tuple[str, ...]

    def check(self) -> None:
        """Raises UsageError for a policy that is none."""
        self.settings.check()
        for name in self.policies:
            if name not in POLICIES:
                raise UsageError(f"policy {name!r} is not one of {', '.join(POLICIES)}")

    def run(self, task: int, progress: Progress) -> LoanSeed:
        """Tune the number of jobs for the baseline, then each policy on the same jobs."""
        wanted = list(dict.fromkeys((BASELINE, *self.policies)))
        owner = draw_owner(self.settings, task)
        draw, jobs, baseline = self._trace(owner, task)
        seed = _seed(self.settings, draw, jobs, owner)
        figures = {BASELINE: baseline}
        more = 0
        if any(POLICIES[name].more for name in wanted):
            figures["aryl"] = self._one(jobs, owner, "aryl", task, 0)
            more = round(figures["aryl"].loaned)
        for number, name in enumerate(wanted):
            if name not in figures:
                figures[name] = self._one(jobs, owner, name, task, more)
            progress(number + 1, len(wanted))
        return seed._replace(figures={name: figures[name] for name in wanted})

    def _one(self, jobs: Sequence[LoanJob], owner: Owner, name: str, seed: int, more: int) -> LoanFigures:
        rules, given = POLICIES[name], self.settings
        return LoanStudy(
            jobs, owner, rules, servers=given.servers + more * rules.more, restart_s=given.restart,
            checkpoint_s=given.checkpoint, headroom=given.headroom, rng=random.Random(f"reclaim {seed}"),
        ).run()  # fmt: skip

    def _trace(self, owner: Owner, seed: int) -> tuple[int, list[LoanJob], LoanFigures]:
        """The first draw with a number of jobs that wait `queue` s in the baseline. Raises UsageError without any."""
        for draw in range(1, DRAWS + 1):
            off_s, jobs, baseline = self._tuned(owner, seed, draw)
            if self.settings.jobs or off_s <= WITHIN * self.settings.queue:
                return draw, jobs, baseline
        raise UsageError(
            f"seed {seed}: the baseline's jobs wait {baseline.queue_s:.0f} s, not {self.settings.queue:.0f}, however "
            "many there are; take more days or servers"
        )

    def _tuned(self, owner: Owner, seed: int, draw: int) -> tuple[float, list[LoanJob], LoanFigures]:
        """As many jobs as wait `queue` s in the baseline, or nearly; and how far off they are, s.

        The queue does not grow steadily with them: one wide job may block all others. So bisection finds about how
        many, and then the times between arrivals are stretched or shortened a little.
        """
        drawn = Drawn(self.settings, seed, draw)

        def at(number: int, stretch: float = 1.0) -> tuple[float, list[LoanJob], LoanFigures]:
            jobs = [job._replace(arrival_s=job.arrival_s * stretch) for job in drawn.jobs(number)]
            figures = self._one(jobs, owner, BASELINE, seed, 0)
            return abs(figures.queue_s - self.settings.queue), jobs, figures

        if self.settings.jobs:
            return at(self.settings.jobs)
        low, high = LEAST_JOBS, min(MOST_JOBS, drawn.filling())
        best = at(low)
        while high - low > 1 and best[0] > NEAR * self.settings.queue:
            number = (low + high) // 2
            new = at(number)
            best = min(best, new, key=lambda tried: tried[0])
            low, high = (low, number) if new[2].queue_s > self.settings.queue else (number, high)
        number = len(best[1])
        for step in range(STRETCHES):
            if best[0] <= WITHIN * self.settings.queue:
                break
            new = at(number, 1 + STRETCH * (step // 2 + 1) * (-1) ** step)
            best = min(best, new, key=lambda tried: tried[0])
        return best


class Drawn:
    """The jobs of a seed, with the published statistics of AcmeTrace: the first so many of an endless row."""

    def __init__(self, settings: LoanSettings, seed: int, draw: int = 1) -> None:
        self._settings = settings
        self._rng = random.Random(f"jobs {seed} {draw}")
        self._sigma = math.sqrt(2 * math.log(MEAN_S / MEDIAN_S))
        self._rows: list[tuple[float, float, int, float, float]] = []  # arrival s, run s, GPUs, two random numbers

    def _row(self) -> tuple[float, float, int, float, float]:
        rng, given = self._rng, self._settings
        run_s = min(LONGEST_S, max(1.0, rng.lognormvariate(math.log(MEDIAN_S), self._sigma)))
        gpus = min(rng.choices(WIDTHS, SHARES)[0], given.servers * SERVER_GPUS)
        return rng.random() * given.days * DAY_S, run_s, gpus, rng.random(), rng.uniform(-1, 1)

    def _first(self, number: int) -> list[tuple[float, float, int, float, float]]:
        while len(self._rows) < number:
            self._rows.append(self._row())
        return self._rows[:number]

    def filling(self) -> int:
        """How many jobs would keep all training GPUs busy FULL times."""
        left_s = FULL * self._settings.servers * SERVER_GPUS * self._settings.days * DAY_S
        number = 0
        while left_s > 0 and number < MOST_JOBS:
            number += 1
            _, run_s, gpus, *_ = self._first(number)[-1]
            left_s -= run_s * gpus
        return max(number, LEAST_JOBS + 1)

    def jobs(self, number: int) -> list[LoanJob]:
        """In order of arrival."""
        rows = sorted(self._first(number))
        elastic = _elastic(self._settings, [row[1] * row[2] for row in rows], [row[3] for row in rows])
        found = []
        for place, (arrival_s, run_s, gpus, _, luck) in enumerate(rows):
            workers = min(4, gpus) if place in elastic else max(1, gpus // SERVER_GPUS)
            most = 2 * workers if place in elastic else workers
            believed_s = run_s * (1 + self._settings.error * luck)
            found.append(LoanJob(arrival_s, run_s, believed_s, workers, gpus // workers, most))
        return found


def _elastic(settings: LoanSettings, time: Sequence[float], luck: Sequence[float]) -> set[int]:
    """Which jobs are elastic: their share of jobs, and their share of GPU time to SHARE_OFF if any jobs have that.

    Drawn with weights of GPU time ** power; the power is the one that gives them about their share of GPU time. Then
    one is exchanged for another, where that brings them nearest, as long as it does.
    """
    count, total = round(settings.elastic * len(time)), math.fsum(time)
    if count in (0, len(time)):
        return set(range(count))
    wanted = max(settings.elastic, settings.elastic_time) * total
    used, low, high = np.array(time), -2.0, 2.0
    for _ in range(30):
        power = (low + high) / 2
        found = np.argsort(np.log(luck) / used**power, kind="stable")[len(used) - count :]
        low, high = (power, high) if used[found].sum() < wanted else (low, power)
    chosen = np.zeros(len(used), dtype=bool)
    chosen[found] = True
    for _ in range(EXCHANGES):
        lacks = wanted - used[chosen].sum()
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        outside = outside[np.argsort(used[outside], kind="stable")]
        above = np.clip(np.searchsorted(used[outside], used[inside] + lacks), 1, len(outside) - 1)
        nearest = zip(inside, outside[above - 1], outside[above], strict=True)
        pairs = [(one, other) for one, less, more in nearest for other in (less, more)]
        out, into = min(pairs, key=lambda pair: abs(lacks + used[pair[0]] - used[pair[1]]))
        if abs(lacks) <= SHARE_OFF * total or abs(lacks + used[out] - used[into]) >= abs(lacks):
            break
        chosen[out], chosen[into] = False, True
    return set(np.flatnonzero(chosen).tolist())


def _seed(settings: LoanSettings, draw: int, jobs: Sequence[LoanJob], owner: Owner) -> LoanSeed:
    """The trace's own figures, and its bounds. Raises UsageError where the elastic jobs' share of time is far off."""
    time = [job.run_s * job.workers * job.gpus for job in jobs]
    scales = [job.most > job.workers for job in jobs]
    fastest_s = [job.run_s * job.workers / job.most for job in jobs]
    until_s, total = jobs[-1].arrival_s, math.fsum(time)
    used = math.fsum(
        one * min(1.0, (until_s - job.arrival_s) / least_s)
        for one, job, least_s in zip(time, jobs, fastest_s, strict=True)
    )
    by_owner = math.fsum(
        gpus * (min(until, until_s) - at)
        for (at, gpus), (until, _) in pairwise((*owner.steps, (math.inf, 0.0)))
        if at < until_s
    )
    gpus, elastic = settings.servers * SERVER_GPUS, sum(scales) / len(jobs)
    elastic_time = math.fsum(one for one, is_elastic in zip(time, scales, strict=True) if is_elastic) / total
    if elastic and abs(elastic_time - max(settings.elastic, settings.elastic_time)) > SHARE_FAR:
        raise UsageError(
            f"no {sum(scales)} of {len(jobs)} jobs were found that have "
            f"{max(settings.elastic, settings.elastic_time):.0%} of the GPU time, to be elastic (nearest: "
            f"{elastic_time:.0%}); give another elastic or elastic_time"
        )
    return LoanSeed(
        draw=draw, jobs=len(jobs), days=until_s / DAY_S, load=total / (gpus * until_s), elastic=elastic,
        elastic_time=elastic_time,
        jct_bound_s=math.fsum(fastest_s) / len(jobs), usage_bound=min(1.0, (used + by_owner) / (2 * gpus * until_s)),
        figures={},
    )  # fmt: skip


def draw_owner(settings: LoanSettings, seed: int) -> Owner:
    """GPUs in use: 42 to 95 % by a sine of a day, noise of 3 %, anew in each order interval at a time of its own."""
    rng = random.Random(f"owner {seed}")
    gpus = settings.servers * SERVER_GPUS

    def used(time_s: float) -> float:
        share = 0.685 - 0.265 * math.cos(2 * math.pi * time_s / DAY_S) + rng.gauss(0, 0.03)
        return gpus * min(1.0, max(0.0, share))

    past = [
        DemandSample(time_s, math.ceil(used(time_s) / SERVER_GPUS))
        for time_s in (-number * ORDER_S for number in range(1, int(WEEKS * 7 * DAY_S / ORDER_S) + 1))
    ]
    by_hour = [predicted_nodes(past, hour * HOUR_S, hour * HOUR_S) for hour in range(168)]
    steps = [(0.0, used(0.0))]
    for number in range(int(400 * DAY_S / ORDER_S)):
        time_s = (number + rng.random()) * ORDER_S
        steps.append((time_s, used(time_s)))
    return Owner(settings.servers, tuple(steps), tuple(settings.servers if one is None else one for one in by_hour))
