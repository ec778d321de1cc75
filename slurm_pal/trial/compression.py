# SPDX-License-Identifier: MIT
"""A trace in compressed time: what its jobs become on a lab, and whether a lab can hold it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import UNKNOWN_CLASS, GpuShape
from slurm_pal.simulate.fitting import fit
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import VirtualCluster

MINUTE_S = 60.0
JOBS_MAX = 15_000
"""slurmctld of a lab keeps 20,000 jobs at most (MaxJobCount), those that ended some minutes ago among them."""
LONGEST_H = 72.0
STARTS_PER_S = 2.0
"""For each processor of the machine: more jobs a second than a lab can start beside its other work."""
SHORT_S = 1.0
"""Slurm starts and ends jobs about once a second: the times of shorter ones are mostly its own."""
COLUMNS = ("node", "index", "A", "B", "C", "D")
"""Of the table of true slowdowns that the jobs read."""


class LabJob(NamedTuple):
    """One job of a trace on a lab. Times are s of the lab."""

    number: int  # its place in the trace, from 0
    at_s: float
    words: tuple[str, ...]  # its shape, for sbatch
    work_s: float  # on median GPUs of one node
    limit_min: int
    sensitivity: str  # as users state it; "" for none
    column: int  # of the table of slowdowns, from 1 as awk counts
    movable: bool
    penalty: float
    cost_s: float  # of a move
    every_s: float = 0.0  # so much work is between two checkpoints that it writes by itself; 0: it writes none
    again_s: float = 0.0  # from a start after the first one until it works
    plain: bool = False  # submitted by sbatch in every arm


def fitted(trace: Trace, cluster: VirtualCluster, compress: float, limit_factor: float | None, stated: bool) -> Trace:
    """The trace that arms and simulator run: without partitions and GPU types, its limits in whole minutes of the lab.

    Jobs without a time limit get `limit_factor` times their run time. With `stated`, a job on an open number of nodes
    asks for the fewest that can hold it. Raises UsageError for what a lab of this size cannot hold.
    """
    if not cluster.per_node or cluster.partitions:
        raise UsageError("a lab has nodes of one size and one partition: give --cluster NODESxGPUS, like 8x4")
    if len(trace.jobs) > JOBS_MAX:
        raise UsageError(
            f"{trace.name}: {len(trace.jobs)} jobs are more than a lab can hold ({JOBS_MAX}): give a part of the trace"
        )
    unlimited = [job for job in trace.jobs if job.limit_s is None]
    if unlimited and limit_factor is None:
        raise UsageError(
            f"{trace.name}: {len(unlimited)} of {len(trace.jobs)} jobs have no time limit (job {unlimited[0].job_id} "
            "is the first): Slurm and the tick plan by limits; give --limit-factor F for F x run time"
        )
    jobs = tuple(_plain(job, cluster.per_node, compress, limit_factor or 1.0, stated) for job in trace.jobs)
    found = fit(trace._replace(jobs=jobs), cluster)
    if found.too_wide:
        first = found.too_wide[0]
        raise UsageError(
            f"{trace.name}: {len(found.too_wide)} jobs are too wide for a lab of {cluster.text()} (job {first.job_id} "
            f"wants {first.shape.total} GPUs{_on(first.shape)}): give a larger --cluster, or take them out of it"
        )
    return found.trace


def _on(shape: GpuShape) -> str:
    return f" on {shape.nodes} nodes" if shape.nodes else ""


def _plain(job: TraceJob, per_node: int, compress: float, limit_factor: float, stated: bool) -> TraceJob:
    limit_s = limit_factor * job.ideal_s if job.limit_s is None else job.limit_s
    minutes = max(1, math.ceil(limit_s / compress / MINUTE_S - 1e-9))
    shape = job.shape._replace(gpu_type="")
    if stated and shape.nodes is None:
        nodes = -(-shape.total // per_node)
        each = shape.total // nodes if shape.total % nodes == 0 else None
        shape = shape._replace(nodes=nodes, per_node=each)
    return job._replace(limit_s=minutes * MINUTE_S * compress, shape=shape, partition="")


def lab_jobs(trace: Trace, compress: float, penalty: float, move_cost_s: float) -> tuple[LabJob, ...]:
    """The jobs of a fitted trace; penalty and cost of a move (s of the trace) for those without their own."""
    start_s = trace.jobs[0].submit_s
    return tuple(
        LabJob(
            number=number,
            at_s=(job.submit_s - start_s) / compress,
            words=shape_words(job.shape),
            work_s=job.ideal_s / compress,
            limit_min=round((job.limit_s or 0.0) / compress / MINUTE_S),
            sensitivity="" if job.sensitivity == UNKNOWN_CLASS else {"D": "C"}.get(job.sensitivity, job.sensitivity),
            column=1 + COLUMNS.index("A" if job.sensitivity == UNKNOWN_CLASS else job.sensitivity),
            movable=job.movable,
            penalty=penalty if job.locality_penalty is None else job.locality_penalty,
            cost_s=(move_cost_s if job.move_cost_s is None else job.move_cost_s) / compress,
        )
        for number, job in enumerate(trace.jobs)
    )


def shape_words(shape: GpuShape) -> tuple[str, ...]:
    """A shape in options of sbatch."""
    whole = ("--exclusive",) if shape.whole_nodes else ()
    if shape.nodes is None:
        return (f"--gpus={shape.total}", *whole)
    each = f"--gres=gpu:{shape.per_node}" if shape.per_node else f"--gpus={shape.total}"
    return (f"-N{shape.nodes}", each, *whole)


def check_size(trace: Trace, compress: float, lab_s: float, processors: int) -> None:
    """Raise UsageError for a trace that a lab on this machine cannot hold; `lab_s` is how long it lasts there."""
    count = len(trace.jobs)
    if lab_s > LONGEST_H * 3600:
        least = math.ceil(compress * lab_s / (LONGEST_H * 3600))
        raise UsageError(
            f"{trace.name}: one arm would last {lab_s / 3600:.0f} h, the most is {LONGEST_H:g} h: give a part of the "
            f"trace, or --compress {least} and more"
        )
    per_s, most = count / max(lab_s, 1.0), STARTS_PER_S * processors
    if per_s > most:
        raise UsageError(
            f"{trace.name}: {per_s:.1f} jobs a second are more than labs on this machine can start (about {most:g}): "
            f"give --compress {max(1, math.floor(compress * most / per_s))} or less"
        )


def notes(jobs: Sequence[LabJob], original: Trace, compress: float) -> list[str]:
    """Sentences on what compression has changed."""
    found = []
    if short := sum(job.work_s < SHORT_S for job in jobs):
        found.append(
            f"{short} of {len(jobs)} jobs last less than {SHORT_S:g} s of the lab: their times are mostly Slurm's own."
        )
    longer = [
        job.limit_min * MINUTE_S * compress / before.limit_s
        for job, before in zip(jobs, original.jobs, strict=True)
        if before.limit_s
    ]
    if rounded := sum(factor > 1.1 for factor in longer):
        found.append(
            f"Slurm counts limits in minutes: those of {rounded} jobs became longer by more than 10 %, the median "
            f"by a factor of {sorted(f for f in longer if f > 1.1)[rounded // 2]:.2g}."
        )
    typed = sum(bool(job.shape.gpu_type) for job in original.jobs)
    named = len({job.partition for job in original.jobs if job.partition})
    if typed or named > 1:
        found.append(f"A lab has one partition and one type of GPUs: {named} partitions, {typed} jobs with a type.")
    return found
