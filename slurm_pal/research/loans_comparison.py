# SPDX-License-Identifier: MIT
"""The study of owners and guests, trace by trace: what is drawn, how arrivals are tuned, which policies there are."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from slurm_pal.allocation.demand import DemandSample, predicted_nodes
from slurm_pal.base.errors import UsageError
from slurm_pal.research.loans import ORDER_S, SERVER_GPUS, LoanFigures, LoanJob, LoanRules, LoanStudy, Owner
from slurm_pal.simulate.pool import Progress

DAY_S, HOUR_S = 86400.0, 3600.0
WEEKS = 4  # of the owner's past
MEDIAN_S, MEAN_S, LONGEST_S = 874.0, 18006.0, 15 * DAY_S  # run times of AcmeTrace's GPU jobs
WIDTHS, SHARES = (1, 2, 4, 8, 16), (0.735, 0.13, 0.075, 0.045, 0.015)  # GPUs: mean 1.9
QUEUE_S, WITHIN_S = 3000.0, 300.0
TRIES, STEPS = 16, 80
BASELINE = "aryl-none"

POLICIES = {
    BASELINE: LoanRules("FIFO, no loan, no scaling: the baseline", shortest=False, loan=False, scale=False),
    "aryl-sjf": LoanRules("shortest first alone", loan=False, scale=False),
    "aryl-more": LoanRules(
        "FIFO on as many own servers more as aryl borrows", shortest=False, loan=False, scale=False, more=True
    ),
    "aryl-more-sjf": LoanRules("the same, shortest first", loan=False, scale=False, more=True),
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
    "aryl-zero": LoanRules("aryl, and preempted jobs start from zero", from_zero=True),
}


class LoanSettings(NamedTuple):
    """What is drawn and charged."""

    jobs: int = 3600
    days: float = 15.0  # before arrivals are tuned
    servers: int = 32  # of each group
    elastic: float = 0.05  # share of jobs
    elastic_time: float = 0.36  # their share of GPU time; not below 0 or what any jobs would have: any jobs
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
        if not (10 <= self.jobs <= 100_000 and 2 <= self.servers <= 1000 and 0 < self.days < 10_000):
            raise UsageError(
                f"jobs {self.jobs}, servers {self.servers}, days {self.days}: 10 to 100,000, 2 to 1,000, above 0"
            )
        if not (0 <= self.restart < math.inf and 0 < self.checkpoint < math.inf):
            raise UsageError(f"restart {self.restart} s, checkpoint {self.checkpoint} s: at least 0, above 0")


class LoanSeed(NamedTuple):
    """All policies on the trace of a seed."""

    scale: float  # of the times between arrivals
    span_s: float  # to the last arrival
    elastic_time: float  # share of GPU time that elastic jobs have
    bound_s: float  # mean JCT without any waiting, each elastic job with all of its workers from start to end
    figures: dict[str, LoanFigures]


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
        """Tune the arrivals for the baseline, then each policy on the same jobs."""
        wanted = list(dict.fromkeys((BASELINE, *self.policies)))
        jobs, owner = draw_jobs(self.settings, task), draw_owner(self.settings, task)
        scale, baseline = self._tuned(jobs, owner, task)
        tuned = [job._replace(arrival_s=job.arrival_s * scale) for job in jobs]
        figures = {BASELINE: baseline}
        more = 0
        if any(POLICIES[name].more for name in wanted):
            figures["aryl"] = self._one(tuned, owner, "aryl", task, 0)
            more = round(figures["aryl"].loaned)
        for number, name in enumerate(wanted):
            if name not in figures:
                figures[name] = self._one(tuned, owner, name, task, more)
            progress(number + 1, len(wanted))
        time = [job.run_s * job.workers * job.gpus for job in jobs]
        elastic = sum(one for one, job in zip(time, jobs, strict=True) if job.most > job.workers)
        bound_s = sum(job.run_s * job.workers / job.most for job in jobs) / len(jobs)
        shown = {name: figures[name] for name in wanted}
        return LoanSeed(scale, tuned[-1].arrival_s, elastic / sum(time), bound_s, shown)

    def _one(self, jobs: Sequence[LoanJob], owner: Owner, name: str, seed: int, more: int) -> LoanFigures:
        rules, given = POLICIES[name], self.settings
        return LoanStudy(
            jobs, owner, rules, servers=given.servers + more * rules.more, restart_s=given.restart,
            checkpoint_s=given.checkpoint, headroom=given.headroom, rng=random.Random(f"reclaim {seed}"),
        ).run()  # fmt: skip

    def _tuned(self, jobs: Sequence[LoanJob], owner: Owner, seed: int) -> tuple[float, LoanFigures]:
        """The scale with which jobs wait QUEUE_S in the baseline, by bisection. Raises UsageError without one."""

        def at(scale: float) -> LoanFigures:
            return self._one([job._replace(arrival_s=job.arrival_s * scale) for job in jobs], owner, BASELINE, seed, 0)

        low, high = 0.01, 4.0
        scale, found = high, at(high)
        for number in range(TRIES + STEPS):
            if number < TRIES:
                tried = math.sqrt(low * high)
            else:  # the queue does not fall steadily: one job may block all others; look around
                away = (number - TRIES) // 2 + 1
                tried = low * (1 + 0.004 * away * (-1) ** number)
            new = at(tried)
            if number < TRIES:
                low, high = (tried, high) if new.queue_s > QUEUE_S else (low, tried)
            if abs(new.queue_s - QUEUE_S) < abs(found.queue_s - QUEUE_S):
                scale, found = tried, new
            if abs(found.queue_s - QUEUE_S) <= (WITHIN_S / 10 if number < TRIES else WITHIN_S):
                return scale, found
        raise UsageError(
            f"seed {seed}: the baseline's jobs wait {found.queue_s:.0f} s, not {QUEUE_S:.0f}, however they arrive; "
            "draw more jobs or take fewer servers"
        )


def draw_jobs(settings: LoanSettings, seed: int) -> list[LoanJob]:
    """Jobs in order of arrival, with the published statistics of AcmeTrace; elastic ones by their share of GPU time."""
    rng = random.Random(f"jobs {seed}")
    sigma = math.sqrt(2 * math.log(MEAN_S / MEDIAN_S))
    mean_s = settings.days * DAY_S / settings.jobs
    arrival_s = list(accumulate(rng.expovariate(1 / mean_s) for _ in range(settings.jobs)))
    run_s = [min(LONGEST_S, max(1.0, rng.lognormvariate(math.log(MEDIAN_S), sigma))) for _ in arrival_s]
    gpus = rng.choices(WIDTHS, SHARES, k=settings.jobs)
    gpus = [min(one, settings.servers * SERVER_GPUS) for one in gpus]
    elastic = _elastic(settings, [run * wide for run, wide in zip(run_s, gpus, strict=True)], rng)
    found = []
    for number in range(settings.jobs):
        believed_s = run_s[number] * (1 + settings.error * rng.uniform(-1, 1))
        is_elastic = number in elastic
        workers = min(4, gpus[number]) if is_elastic else max(1, gpus[number] // SERVER_GPUS)
        most = 2 * workers if is_elastic else workers
        found.append(LoanJob(arrival_s[number], run_s[number], believed_s, workers, gpus[number] // workers, most))
    return found


def _elastic(settings: LoanSettings, time: Sequence[float], rng: random.Random) -> set[int]:
    """Drawn with weights of GPU time ** power; the power is the one that gives them their share of GPU time."""
    luck = [math.log(rng.random()) for _ in time]
    count, total = round(settings.elastic * len(time)), sum(time)
    low, high = 0.0, 2.0
    for _ in range(30):
        power = (low + high) / 2
        keys = [one / used**power for one, used in zip(luck, time, strict=True)]
        found = set(sorted(range(len(time)), key=keys.__getitem__, reverse=True)[:count])
        low, high = (power, high) if sum(time[n] for n in found) < settings.elastic_time * total else (low, power)
    return found


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
