# SPDX-License-Identifier: MIT
"""What one replay comes to, in numbers: completion times, use of the cluster, and the quiet metrics.

Completion times of one replay are noisy (a changed start early on moves everything after
it); the quiet metrics, slowdown of the executed work and share of spread work, are not, so
they show what a policy does long before the completion times do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.simulate.result import JobOutcome, Replay

SIZE_GROUPS = (("1", 1), ("2-4", 4), ("5-8", 8), (">8", math.inf))
"""Name and greatest number of GPUs of each size group."""

SHORT_JOB_S = 600.0
"""Bounded slowdown counts a job as at least this long, or jobs of a minute would rule the mean."""

WEEK_S = 7 * 86400.0
LEAST_JOBS = 20
"""Weeks with fewer jobs are joined to the next: a ratio over a handful of jobs is noise."""

OF_THE_WHOLE = frozenset(("makespan_s", "utilisation", "moves", "restarts", "move_gpu_hours"))
"""Metrics of the cluster and not of its jobs: a week of submissions has none of its own."""

ONE_NODE = 1.0 + 1e-9  # a locality above this was paid for; the mean over the work may be off by rounding


class Metrics(NamedTuple):
    """One replay in numbers. Times are s, averages are over jobs, empty groups are left out."""

    jobs: int
    mean_jct_s: float
    median_jct_s: float  # element int(n * 0.5) of the sorted times, from 0
    p99_jct_s: float  # element int(n * 0.99): with fewer than 100 jobs the longest
    mean_wait_s: float  # from submission to the first start
    makespan_s: float  # from the start of the trace to the last end
    utilisation: float  # GPU-seconds held / (GPUs x end), 0..1
    moves: int
    restarts: int  # after a node failed
    gpu_hours: float  # held by jobs, moves included
    move_gpu_hours: float  # of which spent on moves
    timeouts: int
    bounded_slowdown: float  # mean of max(1, JCT / max(ideal, SHORT_JOB_S))
    slowdown: dict[str, float]  # class -> mean slowdown x locality of the executed work
    spread_share: float | None  # of the multi-GPU jobs, those that ran on several nodes; None: no such job
    spread_work_share: float | None  # the same, jobs weighted by ideal GPU-seconds
    class_jct_s: dict[str, float]
    size_jct_s: dict[str, float]
    user_jct_s: dict[str, float]
    account_jct_s: dict[str, float]

    def value(self, name: str) -> float | None:
        """A metric by name; `slowdown.A` or `size_jct_s.2-4` for a member of a group; None when absent.

        Raises ValueError for a name that is not a metric.
        """
        field, dot, member = name.partition(".")
        found = getattr(self, field) if field in self._fields else None
        if isinstance(found, dict) != bool(dot) or field not in self._fields:
            raise ValueError(f"{name!r} is not a metric; there are {', '.join(self._fields)}")
        value = found.get(member) if isinstance(found, dict) else found
        return None if value is None else float(value)


class ReplayMetrics(NamedTuple):
    """The metrics of one replay, and which replay it was.

    `weeks`: the same of the jobs submitted in each week of it; empty where it is too short to be parted. Those of
    `OF_THE_WHOLE` say nothing there.
    """

    policy: str
    queue: str
    seed: int
    complete: bool
    metrics: Metrics
    trace: int = 0
    weeks: tuple[Metrics, ...] = ()

    def pieces(self, name: str) -> tuple[Metrics, ...]:
        """What a metric may be resampled by: the weeks, or the replay as a whole."""
        return self.weeks if self.weeks and name not in OF_THE_WHOLE else (self.metrics,)


def measure(replay: Replay) -> Metrics:
    """The metrics of one replay (of an interrupted one: over the jobs that had ended).

    Raises DataError when no job ended.
    """
    outcomes = replay.outcomes
    if not outcomes:
        raise DataError(f"the replay of {replay.policy} (queue {replay.queue}, seed {replay.seed}) ended no job")
    jct = sorted(o.jct_s for o in outcomes)
    wide = [o for o in outcomes if o.gpus > 1]
    capacity = replay.n_gpus * replay.end_s
    return Metrics(
        jobs=len(outcomes),
        mean_jct_s=fmean(jct),
        median_jct_s=element(jct, 0.5),
        p99_jct_s=element(jct, 0.99),
        mean_wait_s=fmean(o.wait_s for o in outcomes),
        makespan_s=max(o.finish_s for o in outcomes),
        utilisation=replay.gpu_s / capacity if capacity > 0 else 0.0,
        moves=replay.moves,
        restarts=sum(o.restarts for o in outcomes),
        gpu_hours=replay.gpu_s / 3600,
        move_gpu_hours=replay.move_gpu_s / 3600,
        timeouts=sum(o.end == "TIMEOUT" for o in outcomes),
        bounded_slowdown=fmean(max(1.0, o.jct_s / max(o.ideal_s, SHORT_JOB_S)) for o in outcomes),
        slowdown=_slowdown(outcomes),
        spread_share=_share(wide, lambda o: 1.0),
        spread_work_share=_share(wide, work_gpu_s),
        class_jct_s=_mean_jct(outcomes, lambda o: o.sensitivity),
        size_jct_s=_mean_jct(outcomes, lambda o: size_group(o.gpus)),
        user_jct_s=_mean_jct(outcomes, lambda o: o.user),
        account_jct_s=_mean_jct(outcomes, lambda o: o.account),
    )


def measure_all(runs: Iterable[Replay | ReplayMetrics]) -> list[ReplayMetrics]:
    """Each run with its metrics; runs that are measured already stay, replays that ended no job are left out."""
    return [
        run
        if isinstance(run, ReplayMetrics)
        else ReplayMetrics(
            run.policy, run.queue, run.seed, run.complete, measure(run), run.trace,
            tuple(_measured(run, jobs) for jobs in by_week(run.outcomes)),
        )
        for run in runs
        if isinstance(run, ReplayMetrics) or run.outcomes
    ]  # fmt: skip


def _measured(run: Replay, jobs: tuple[JobOutcome, ...]) -> Metrics:
    """Of some jobs of a replay, which hold their GPUs from start to end."""
    return measure(run._replace(outcomes=jobs, gpu_s=math.fsum(o.gpus * (o.finish_s - o.start_s) for o in jobs)))


def by_week(outcomes: Sequence[JobOutcome]) -> list[tuple[JobOutcome, ...]]:
    """The jobs of each week of submissions, at least `LEAST_JOBS` together; nothing for what is one piece."""
    found = weeks([outcome.submit_s for outcome in outcomes])
    return [tuple(outcomes[number] for number in numbers) for numbers in found] if len(found) > 1 else []


def weeks(submitted_s: Sequence[float]) -> list[list[int]]:
    """The numbers of the jobs of each week, at least `LEAST_JOBS` together where there are so many."""
    found: list[list[int]] = []
    last = -1.0
    for number in sorted(range(len(submitted_s)), key=submitted_s.__getitem__):
        week = submitted_s[number] // WEEK_S
        if week != last and (not found or len(found[-1]) >= LEAST_JOBS):
            found.append([])
        last = week
        found[-1].append(number)
    if len(found) > 1 and len(found[-1]) < LEAST_JOBS:
        rest = found.pop()
        found[-1] += rest
    return found


def element(ordered: Sequence[float], share: float) -> float:
    """The element int(n * share) of sorted values, at most the last (the rule of PAL's artefact)."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def size_group(gpus: int) -> str:
    """The name of the size group of a job."""
    return next(name for name, most in SIZE_GROUPS if gpus <= most)


def work_gpu_s(outcome: JobOutcome) -> float:
    """Executed work in ideal GPU-seconds.

    A job that was killed at its limit did only what its time on the GPUs allowed at its
    slowdown; moves are not known per job, so for a moved one this is an upper bound.
    """
    done_s = outcome.ideal_s
    if outcome.end != "COMPLETED":
        ran_s = outcome.finish_s - outcome.start_s
        done_s = min(done_s, ran_s / (outcome.slowdown * outcome.locality))
    return outcome.gpus * done_s


def _slowdown(outcomes: Sequence[JobOutcome]) -> dict[str, float]:
    work: dict[str, float] = {}
    slowed: dict[str, float] = {}
    for o in outcomes:
        weight = work_gpu_s(o)
        work[o.sensitivity] = work.get(o.sensitivity, 0.0) + weight
        slowed[o.sensitivity] = slowed.get(o.sensitivity, 0.0) + weight * o.slowdown * o.locality
    return {name: slowed[name] / work[name] for name in sorted(work) if work[name] > 0}


def _share(wide: Sequence[JobOutcome], weight: Callable[[JobOutcome], float]) -> float | None:
    total = math.fsum(map(weight, wide))
    return math.fsum(weight(o) for o in wide if o.locality > ONE_NODE) / total if total > 0 else None


def _mean_jct(outcomes: Sequence[JobOutcome], key: Callable[[JobOutcome], str]) -> dict[str, float]:
    """Mean JCT per group; jobs whose group has no name (no user known) are in none."""
    groups: dict[str, list[float]] = {}
    for o in outcomes:
        groups.setdefault(key(o), []).append(o.jct_s)
    return {name: fmean(groups[name]) for name in sorted(groups) if name}
