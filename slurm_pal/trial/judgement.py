# SPDX-License-Identifier: MIT
"""Arms compared: with plain sbatch, with the simulator, and what the difference is due to. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from slurm_pal.simulate.levers import GATHER, ORDER, WAIT
from slurm_pal.simulate.metrics import element, weeks
from slurm_pal.simulate.statistics import LEAST_PIECES, Ratio, Verdict, summary, verdict
from slurm_pal.trial.arms import BASELINE, MOVES, PLACEBO, TICK
from slurm_pal.trial.ran import LOST, TIMEOUT, RanJob

CAUSES = {
    "scores": (MOVES, PLACEBO), "gathering": (f"{TICK}+{GATHER}", MOVES), "waiting": (f"{TICK}+{WAIT}", TICK),
    "order": (f"{TICK}+{ORDER}", TICK),
}  # fmt: skip
"""Cause -> the two arms whose ratio it is."""

Jobs = Sequence[RanJob]
Workloads = Sequence[Jobs]
"""The same arm over all traces of the trial."""


class ArmFigures(NamedTuple):
    """Jobs of one arm in numbers. Times are s of the trace."""

    jobs: int
    mean_jct_s: float
    p99_jct_s: float
    makespan_s: float  # the longest of several traces
    mean_wait_s: float
    moves: int
    timeouts: int
    lost: int


def figures(workloads: Workloads) -> ArmFigures:
    """Over all jobs of all traces."""
    jobs = [job for jobs in workloads for job in jobs]
    jct = sorted(job.jct_s for job in jobs)
    return ArmFigures(
        len(jobs), fmean(jct), element(jct, 0.99), max(job.end_s for job in jobs),
        fmean(job.start_s - job.submit_s for job in jobs), sum(job.moves for job in jobs),
        sum(job.end == TIMEOUT for job in jobs), sum(job.end == LOST for job in jobs),
    )  # fmt: skip


def pieces(ours: Workloads, theirs: Workloads) -> list[float]:
    """Ratios of mean JCT in the independent pieces of a trial: its traces, and with few of them their weeks."""
    found = []
    for mine, other in zip(ours, theirs, strict=True):
        whole = len(ours) >= LEAST_PIECES
        parts = [list(range(len(other)))] if whole else weeks([job.submit_s for job in other])
        found += [fmean(mine[k].jct_s for k in part) / fmean(other[k].jct_s for k in part) for part in parts]
    return found


class Judged(NamedTuple):
    """A ratio and what may be said of it."""

    ratio: float  # over all jobs
    pieces: int
    interval: Ratio | None  # over pieces; None with too few
    verdict: Verdict


def judged(ours: Workloads, theirs: Workloads) -> Judged:
    """The mean JCT of one arm over another's."""
    ratio = figures(ours).mean_jct_s / figures(theirs).mean_jct_s
    found = pieces(ours, theirs)
    interval = summary(found)
    return Judged(ratio, len(found), None if interval.low is None else interval, verdict(interval))


def causes(arms: Mapping[str, Workloads]) -> dict[str, Judged | None]:
    """What a gain is due to, as far as the arms that were run isolate it: a ratio below 1 is that cause's gain."""
    return {
        cause: judged(arms[ours], arms[theirs]) if ours in arms and theirs in arms else None
        for cause, (ours, theirs) in CAUSES.items()
    }


def over_baseline(arms: Mapping[str, Workloads]) -> dict[str, Judged]:
    """Arm -> its ratio to plain sbatch; {} where that was not run."""
    if BASELINE not in arms:
        return {}
    return {name: judged(jobs, arms[BASELINE]) for name, jobs in arms.items() if name != BASELINE}
