# SPDX-License-Identifier: MIT
"""A trace made to fit a virtual cluster: partitions, jobs that are too wide, submissions moved by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Rule
from slurm_pal.simulate.job_room import holds
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import VirtualCluster

_SHOWN = 10  # job ids in a note
_STREAM = 0x717E5


class FittedTrace(NamedTuple):
    """What can be replayed, and what was changed or left out to get there."""

    trace: Trace
    cluster: VirtualCluster
    too_wide: tuple[TraceJob, ...]
    remapped: dict[str, int]  # partition the cluster lacks -> jobs
    keep_partitions: bool = False

    def notes(self) -> tuple[str, ...]:
        """Sentences on what was changed."""
        found = []
        if self.remapped:
            names = ", ".join(f"{name} ({jobs})" for name, jobs in self.remapped.items())
            where = "span all nodes, each with its own queue" if self.keep_partitions else "may use any node"
            found.append(f"Partitions that the cluster lacks {where}; jobs: {names}.")
        if self.too_wide:
            names = ", ".join(f"job {job.job_id} ({job.shape.total} GPUs)" for job in self.too_wide[:_SHOWN])
            rest = len(self.too_wide) - _SHOWN
            more = f" and {rest} more" if rest > 0 else ""
            count = len(self.too_wide)
            found.append(f"{count} job{'s' * (count != 1)} too wide for the cluster left out: {names}{more}.")
        return tuple(found)


def fit(trace: Trace, cluster: VirtualCluster, keep_partitions: bool = False) -> FittedTrace:
    """Leave out what an empty cluster could not hold, and replace partitions that it lacks.

    Jobs of such a partition may use any node; with `keep_partitions` each such name
    becomes a partition over all nodes, with a queue of its own. Raises UsageError when no
    job is left.
    """
    lacking = Counter(j.partition for j in trace.jobs if j.partition and j.partition not in cluster.partitions)
    jobs = trace.jobs
    if lacking and keep_partitions:
        every = tuple(range(len(cluster.names)))
        cluster = cluster._replace(partitions={**cluster.partitions, **dict.fromkeys(sorted(lacking), every)})
    elif lacking:
        jobs = tuple(job._replace(partition="") if job.partition in lacking else job for job in jobs)
    fits = _Fits(cluster)
    too_wide = tuple(job for job in jobs if not fits(job))
    if too_wide:
        out = {job.job_id for job in too_wide}
        jobs = tuple(job for job in jobs if job.job_id not in out)
    if not jobs:
        raise UsageError(
            f"trace {trace.name}: no job to replay: {len(trace.bad)} bad rows, {sum(trace.skipped.values())} skipped, "
            f"{len(too_wide)} jobs too wide for {cluster.text()}"
        )
    return FittedTrace(trace._replace(jobs=jobs), cluster, too_wide, dict(sorted(lacking.items())), keep_partitions)


def fit_all(
    traces: Sequence[Trace], cluster: VirtualCluster, keep_partitions: bool = False
) -> tuple[VirtualCluster, list[FittedTrace]]:
    """The same of several traces on one cluster, which has the partitions of all of them. Errors as for `fit`."""
    found: list[FittedTrace] = []
    for trace in traces:
        found.append(fit(trace, cluster, keep_partitions))
        cluster = found[-1].cluster
    return cluster, found


class _Fits:
    """Whether an empty cluster holds a shape: asked of the placement itself, once per shape."""

    def __init__(self, cluster: VirtualCluster) -> None:
        table = [[1.0] * count for count in cluster.node_gpus]
        self._empty = Occupancy(cluster.names, {"A": table}, {"A": table}, cluster.partitions)
        self._known: dict[tuple[GpuShape, str, int, int], bool] = {}
        self._cluster = cluster

    def __call__(self, job: TraceJob) -> bool:
        shape, partition = job.shape, job.partition
        key = (shape, partition, job.cpus, job.memory_mib)
        if key not in self._known:
            placed = self._empty.place("packed", shape, Rule("A", 1.0, 1.0), partition)
            self._known[key] = placed is not None and self._holds(job)
        return self._known[key]

    def _holds(self, job: TraceJob) -> bool:
        made = self._cluster
        rows = made.partitions[job.partition] if job.partition else range(len(made.sizes))
        return not made.sizes or holds(job, [(made.node_gpus[row], made.sizes[row]) for row in rows])


def jittered(trace: Trace, span_s: float, load: float, seed: int) -> Trace:
    """Submissions `load` times as dense, then each moved by U(-span_s, span_s), never before 0.

    The same seed moves a job equally at every load. With a span of 0 and a load of 1 the
    trace stays as it is.
    """
    if not span_s and load == 1.0:
        return trace
    moved_s = np.random.default_rng([seed, _STREAM]).uniform(-span_s, span_s, len(trace.jobs)).tolist()
    jobs = [
        job._replace(submit_s=max(0.0, job.submit_s / load + by_s))
        for job, by_s in zip(trace.jobs, moved_s, strict=True)
    ]
    return trace._replace(jobs=tuple(sorted(jobs, key=lambda job: job.submit_s)))
