# SPDX-License-Identifier: MIT
"""A site's history on the site as it is now: each job on nodes that exist now, or left out with a reason."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, UNKNOWN_CLASS, GpuShape
from slurm_pal.placement.need import Need, need_of
from slurm_pal.simulate.job_room import holds, without
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual_site import VirtualSite, place_name


class Tally(NamedTuple):
    """Jobs that share a reason, and the GPU time that they took."""

    jobs: int = 0
    gpu_h: float = 0.0

    def plus(self, job: TraceJob) -> Tally:
        return Tally(self.jobs + 1, self.gpu_h + gpu_hours(job))


class FittedHistory(NamedTuple):
    """A history that the virtual cluster can replay; nothing of it is dropped in silence."""

    trace: Trace  # jobs left out are counted in `skipped`
    total: Tally  # all jobs of the history
    changed: Mapping[str, Tally]  # reason -> jobs that are replayed otherwise than they ran
    left_out: Mapping[str, Tally]

    @property
    def lost(self) -> Tally:
        """All jobs left out."""
        tallies = self.left_out.values()
        return Tally(sum(tally.jobs for tally in tallies), sum(tally.gpu_h for tally in tallies))


class _LeftOut(Exception):
    """The job cannot be replayed; the text is the reason."""


def gpu_hours(job: TraceJob) -> float:
    """GPU time of a job's ideal run time, h."""
    return job.shape.total * job.ideal_s / 3600


class MovableJobs(NamedTuple):
    """Which jobs may be moved. sacct shows no user's mark (#PAL movable): those that the site itself allows."""

    everybody: bool = False
    qos: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()  # Slurm's

    def has(self, job: TraceJob, partition: str) -> bool:
        return self.everybody or job.qos in self.qos or partition in self.partitions


NOBODY = MovableJobs()


def fit(trace: Trace, site: VirtualSite, penalty: float | None, movable: MovableJobs = NOBODY) -> FittedHistory:
    """Give each job a virtual partition, a shape that fits it, and a time limit, and say whether it may be moved.

    Run times of a history include what crossing nodes cost. The replay charges that too, so
    jobs that must cross nodes have it taken off here: `penalty` is the factor of jobs
    without their own; None for a trace whose run times are those on one node.
    """
    jobs: list[TraceJob] = []
    total = Tally()
    changed: dict[str, Tally] = {}
    left_out: dict[str, Tally] = {}
    for job in trace.jobs:
        total = total.plus(job)
        reasons: list[str] = []
        try:
            jobs.append(_fit(job, site, penalty, movable, reasons))
        except _LeftOut as reason:
            reasons, counts = [str(reason)], left_out
        else:
            counts = changed
        for text in reasons:
            counts[text] = counts.get(text, Tally()).plus(job)
    skipped = dict(trace.skipped)
    for text, tally in left_out.items():
        skipped[text] = skipped.get(text, 0) + tally.jobs
    return FittedHistory(trace._replace(jobs=tuple(jobs), skipped=skipped), total, changed, left_out)


def _fit(job: TraceJob, site: VirtualSite, penalty: float | None, movable: MovableJobs, reasons: list[str]) -> TraceJob:
    """The job as it will be replayed; `reasons` gets what was changed. Raises _LeftOut."""
    partition = _partition(job, site, reasons)
    place = _place(job, partition, site, reasons)
    sizes = site.sizes(place)
    shape, need = _shape(job.shape, partition, sizes, reasons)
    ideal_s = job.ideal_s
    if penalty is not None and (len(need.counts) > 1 or need.total > max(sizes)):
        reasons.append("needs several nodes: the locality penalty is taken off its run time, and charged by the replay")
        ideal_s /= penalty if job.locality_penalty is None else job.locality_penalty
    made = job._replace(
        partition=place, shape=shape, ideal_s=ideal_s, limit_s=_limit_s(job, partition, site, reasons),
        movable=movable.has(job, partition or site.default),
    )  # fmt: skip
    if not holds(made, site.nodes(place)):
        reasons.append("had more CPUs or memory than nodes have now: replayed as one that needs none")
        return without(made)
    return made


def _partition(job: TraceJob, site: VirtualSite, reasons: list[str]) -> str:
    """The Slurm partition whose nodes the job may use; "" is all of them."""
    if not job.partition or job.partition in site.cluster.partitions:
        return job.partition
    why = "has no GPUs" if job.partition in site.limits_s else "does not exist"
    reasons.append(f"partition {job.partition} {why}: replayed on {site.default}")
    return site.default


def _place(job: TraceJob, partition: str, site: VirtualSite, reasons: list[str]) -> str:
    """The virtual partition. Raises _LeftOut for a GPU type that the partition does not have."""
    kind = job.shape.gpu_type
    if not kind:
        return partition
    if not site.typed:
        reasons.append("wants a GPU type, but GPUs have no types here: replayed on any")
        return partition
    place = place_name(partition, kind)
    if place not in site.cluster.partitions:
        where = f"partition {partition}" if partition else "the cluster"
        raise _LeftOut(f"wants GPUs of type {kind}, which {where} does not have")
    return place


def _shape(shape: GpuShape, partition: str, sizes: Sequence[int], reasons: list[str]) -> tuple[GpuShape, Need]:
    """The shape, or just its number of GPUs where nodes are smaller today. Raises _LeftOut when that is too many."""
    shape = shape._replace(gpu_type="")  # the virtual partition stands for it
    need = need_of(shape, max(sizes))
    if need is not None and _holds(sizes, need):
        return shape, need
    if shape.total <= sum(sizes) and not shape.whole_nodes:
        reasons.append("wants nodes that do not exist now: replayed with as many GPUs on any nodes")
        return GpuShape(shape.total), Need(shape.total, ())
    where = f"partition {partition}" if partition else "the cluster"
    raise _LeftOut(f"wants more GPUs than {where} has for it ({sum(sizes)})")


def _holds(sizes: Sequence[int], need: Need) -> bool:
    """Whether empty nodes of these sizes meet the need."""
    if not need.counts:
        return need.total <= sum(sizes)
    largest = sorted(sizes, reverse=True)
    wanted = sorted(need.counts, reverse=True)
    return len(wanted) <= len(largest) and all(size >= n for size, n in zip(largest, wanted, strict=False))


def _limit_s(job: TraceJob, partition: str, site: VirtualSite, reasons: list[str]) -> float | None:
    """The job's own limit, else its partition's of today, unless it ran for longer; None: the replay's default."""
    rule = site.rules.get(partition)
    most_s = None if rule is None else rule.max_time_s
    if job.limit_s is not None and most_s is not None and job.ideal_s <= most_s < job.limit_s:
        reasons.append("has a time limit above its partition's MaxTime now: replayed with that")
        return float(most_s)
    if job.limit_s is not None:
        return job.limit_s
    limit_s = site.limits_s.get(partition)
    if limit_s is None:
        return None
    if job.ideal_s > limit_s:
        reasons.append("has no time limit and ran longer than its partition allows now: the replay's default limit")
        return None
    reasons.append("has no time limit: its partition's DefaultTime, else MaxTime")
    return limit_s


# -- classes and chance -------------------------------------------------------------------


def parse_mix(text: str) -> dict[str, float]:
    """Shares of classes, `A=.5,B=.3,C=.2`. Raises UsageError; the shares must come to 1."""
    mix: dict[str, float] = {}
    for word in text.split(","):
        name, _, share = word.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if name not in SENSITIVITY_CLASSES or name in mix or not 0 <= value <= 1:
            raise UsageError(
                f"class mix {text!r}: {word.strip()!r} must be A, B or C, each once, with a share like A=.5"
            )
        mix[name] = value
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise UsageError(f"class mix {text!r}: the shares come to {sum(mix.values()):g}, they must come to 1")
    return mix


def classed(trace: Trace, mix: Mapping[str, float], seed: int) -> Trace:
    """The trace with a class drawn by these shares for each job of unknown class."""
    draw = random.Random(f"class {seed}")
    names, shares = list(mix), list(mix.values())
    jobs = tuple(
        job._replace(sensitivity=draw.choices(names, shares)[0]) if job.sensitivity == UNKNOWN_CLASS else job
        for job in trace.jobs
    )
    return trace._replace(jobs=jobs)
