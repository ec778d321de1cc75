# SPDX-License-Identifier: MIT
"""What the differences cost, as a share of the GPUs' time at full load: an estimate with its assumption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.gpus.job_shapes import JobShapes, lost
from slurm_pal.report.inventory import GpuRow

HOURS_PER_DAY = 24.0

ASSUMPTION = (
    "Assumes that every measured GPU is busy all day with work of this class. Behind the median: a GPU with slowdown s "
    "does 1/s of a median GPU's work; faster GPUs do not offset it. Waiting: jobs fill whole nodes and go in "
    "step, so each GPU waits for the slowest of its node. Saved: by GPUs of like speed for each job inside nodes, "
    "against any GPUs; a job that fills its nodes has no choice there. "
)
BY_JOBS = "Saved is by the {jobs} that run now: {filling:.0f} % of their GPUs are in nodes that one job fills."
BY_HALVES = "Saved is at most this: no running job is known here, so all are taken to have half of a node."
REAL_JOBS = " Real jobs are often less sensitive, or wait for other things."


class Cost(NamedTuple):
    """For one sensitivity class; shares are of the time of the GPUs that have a score."""

    sensitivity: str
    gpus: int
    behind_share: float  # work not done by GPUs slower than the median
    waiting_share: float  # time spent waiting for the slowest GPU of the node, if jobs fill nodes
    saved_share: float  # time that placement inside nodes saves: by the jobs that run, else if all had half a node

    @property
    def behind_gpu_h(self) -> float:
        """GPU-hours per day."""
        return self.behind_share * self.gpus * HOURS_PER_DAY

    @property
    def waiting_gpu_h(self) -> float:
        """GPU-hours per day."""
        return self.waiting_share * self.gpus * HOURS_PER_DAY

    @property
    def saved_gpu_h(self) -> float:
        """GPU-hours per day."""
        return self.saved_share * self.gpus * HOURS_PER_DAY


def costs(rows: Iterable[GpuRow], shapes: JobShapes | None) -> tuple[Cost, ...]:
    """The estimate for each class in which GPUs have a score."""
    known = tuple(rows)
    return tuple(found for c in SENSITIVITY_CLASSES if (found := cost(known, c, shapes)) is not None)


def cost(rows: Iterable[GpuRow], sensitivity: str, shapes: JobShapes | None = None) -> Cost | None:
    """The estimate over the GPUs that have a score; None if none has."""
    nodes: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        slowdown = cell(row, sensitivity).slowdown
        if slowdown is not None:
            nodes.setdefault((row.node, row.model), []).append(slowdown)
    every = [s for own in nodes.values() for s in own]
    if not every:
        return None
    behind = sum(max(0.0, 1.0 - 1.0 / s) for s in every)
    waiting = sum(1.0 - s / max(own) for own in nodes.values() for s in own)
    saved = sum(_saved(own, shapes) * len(own) for own in nodes.values())
    return Cost(sensitivity, len(every), behind / len(every), waiting / len(every), saved / len(every))


def _saved(slowdowns: list[float], shapes: JobShapes | None) -> float:
    """Of the time of one node, if each GPU of it were as likely in a job of each shape as GPUs in use are."""
    m = len(slowdowns)
    if shapes is None:
        by_chance, least = lost(slowdowns, m // 2)
        return by_chance - least
    found = 0.0
    for (taken, of), n in shapes.parts.items():
        if taken < of:  # on nodes of another size the same part of them
            by_chance, least = lost(slowdowns, max(1, round(taken * m / of)) if of != m else taken)
            found += n / shapes.gpus * (by_chance - least)
    return found


def assumption(shapes: JobShapes | None) -> str:
    """What the estimate takes for granted."""
    if shapes is None:
        return ASSUMPTION + BY_HALVES + REAL_JOBS
    jobs = f"{shapes.jobs:,} job{'s' * (shapes.jobs != 1)}"
    return ASSUMPTION + BY_JOBS.format(jobs=jobs, filling=100 * shapes.filling) + REAL_JOBS
