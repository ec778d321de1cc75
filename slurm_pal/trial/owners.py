# SPDX-License-Identifier: MIT
"""Owners and guests on one lab: its partitions, and what owners waited and guests lost in an arm. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from slurm_pal.base.cluster import Partition
from slurm_pal.base.hostlist import fold
from slurm_pal.simulate.metrics import element
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.trace import Trace
from slurm_pal.trial.arms import Arm
from slurm_pal.trial.ran import RanJob

OWNER, GUEST = "owner", "guest"
NO_LOAN, PREEMPT, LOAN = "noloan", "preempt", "loan"
TIER = 10
ARMS = {
    NO_LOAN: Arm("guests have their own nodes only", policy="slurm-twin"),
    PREEMPT: Arm("guests may run on all nodes; Slurm preempts them for owners", policy="slurm-twin"),
    LOAN: Arm("the same site, and ticks that lend nodes of owners", palsub=True, tick=True),
}
"""Name -> arm."""


def partitions(arm: str, names: Sequence[str], owned: int) -> tuple[Partition, ...]:
    """The site of an arm: the last `owned` nodes are the owners'."""
    own = tuple(names[: len(names) - owned])
    return (
        Partition(OWNER, False, True, tuple(names[len(own) :]), tier=TIER, preempt="OFF"),
        Partition(GUEST, False, True, own if arm == NO_LOAN else tuple(names), preempt="REQUEUE"),
    )


def conf_edit(made: Iterable[Partition]) -> tuple[str, str]:
    """What stands in a lab's slurm.conf instead of its one partition, which stays."""
    lines = ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    lines += [
        f"PartitionName={one.name} Nodes={fold(list(one.nodes))} MaxTime=INFINITE PriorityTier={one.tier} "
        f"PreemptMode={one.preempt}"
        for one in made
    ]
    return "PartitionName=gpu", "\n".join([*lines, "PartitionName=gpu"])


class Shared(NamedTuple):
    """What came of an arm. Times are s of the trace."""

    owner_p50_s: float  # from submission to start
    owner_p99_s: float
    owner_most_s: float
    lost_gpu_s: float  # that guests held without being brought on, restarts included
    restarts: int  # of guests
    usage: float  # work done, of all GPUs from the first submission to the last end
    guest_jct_s: float  # mean
    span_s: float
    unfinished: int


class Seen(NamedTuple):
    """One job, live or predicted."""

    partition: str
    gpus: int
    work_s: float  # on GPUs like all others
    submit_s: float
    start_s: float
    end_s: float
    ran_s: float  # all its runs
    restarts: int
    whole: bool  # it ended by itself


def live(trace: Trace, jobs: Sequence[RanJob]) -> list[Seen]:
    """The jobs of a lab."""
    return [
        Seen(job.partition, job.shape.total, job.ideal_s * ran.factor, ran.submit_s, ran.start_s, ran.end_s, ran.ran_s,
             ran.moves, ran.end == "COMPLETED")
        for job, ran in zip(trace.jobs, jobs, strict=True)
    ]  # fmt: skip


def lost_gpu_s(seen: Iterable[Seen]) -> float:
    """Of jobs that started more than once: what they held beyond what their work takes in one run."""
    return math.fsum(max(0.0, job.ran_s - job.work_s) * job.gpus for job in seen if job.restarts and job.whole)


def shared(seen: Sequence[Seen], n_gpus: int, lost: float) -> Shared:
    """The figures of an arm. `lost`: `lost_gpu_s` of its guests."""
    waits = sorted(job.start_s - job.submit_s for job in seen if job.partition == OWNER)
    guests = [job for job in seen if job.partition == GUEST]
    begin_s, end_s = min(job.submit_s for job in seen), max(job.end_s for job in seen)
    done = math.fsum(job.work_s * job.gpus for job in seen if job.whole)
    return Shared(
        element(waits, 0.5), element(waits, 0.99), waits[-1], lost, sum(job.restarts for job in guests),
        done / (n_gpus * (end_s - begin_s)), fmean(job.end_s - job.submit_s for job in guests), end_s - begin_s,
        sum(not job.whole for job in seen),
    )  # fmt: skip


def beyond(seen: Sequence[Seen], alone: Sequence[Seen]) -> tuple[float, float, float]:
    """By how much owners' jobs started later than the same jobs in another arm: p50, p99, most."""
    later = sorted(
        (job.start_s - job.submit_s) - (other.start_s - other.submit_s)
        for job, other in zip(seen, alone, strict=True)
        if job.partition == OWNER
    )
    return element(later, 0.5), element(later, 0.99), later[-1]


def predicted(trace: Trace, found: Replay) -> list[Seen]:
    """The same by the twin, in s of the trace."""
    outcomes = {outcome.job_id: outcome for outcome in found.outcomes}
    seen = []
    for job in trace.jobs:
        one = outcomes[job.job_id]
        seen.append(
            Seen(job.partition, job.shape.total, job.ideal_s * one.slowdown * one.locality, one.submit_s,
                 one.start_s, one.finish_s, 0.0, one.moves + one.restarts, one.end == "COMPLETED")
        )  # fmt: skip
    return seen


def ratios(real: Shared, twin: Shared) -> Mapping[str, float]:
    """Live over predicted, where both are above 0."""
    pairs = zip(Shared._fields, real, twin, strict=True)
    return {name: mine / other for name, mine, other in pairs if mine > 0 and other > 0}
