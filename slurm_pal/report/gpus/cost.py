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
    "does 1/s of a median GPU's work; faster GPUs do not offset it. Waiting: the GPUs of a job go in step, so each "
    "waits for the slowest of them in its node. Saved: by GPUs of like speed for each job inside nodes, against any "
    "GPUs; a job that fills its nodes has no choice there. "
)
BY_JOBS = "Both are by the {jobs} that run now: {filling:.0f} % of their GPUs are in nodes that one job fills."
BY_GUESS = (
    "Both are at most this: no running job is known here, so waiting is that of jobs that fill nodes, saved that of "
    "jobs that have half of a node."
)
REAL_JOBS = " Real jobs are often less sensitive, or wait for other things."


class Cost(NamedTuple):
    """For one sensitivity class; shares are of the time of the GPUs that have a score."""

    sensitivity: str
    gpus: int
    behind_share: float  # work not done by GPUs slower than the median
    waiting_share: float  # time spent waiting inside nodes: by the jobs that run, else if jobs fill nodes
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
    of_nodes = [(len(own), _of_node(own, shapes)) for own in nodes.values()]
    waiting, saved = (sum(m * shares[which] for m, shares in of_nodes) / len(every) for which in (0, 1))
    return Cost(sensitivity, len(every), behind / len(every), waiting, saved)


def _of_node(slowdowns: list[float], shapes: JobShapes | None) -> tuple[float, float]:
    """(waiting, saved) of the time of one node, if its GPUs were as often in a job of each shape as GPUs in use are."""
    m = len(slowdowns)
    if shapes is None:
        by_chance, least = lost(slowdowns, m // 2)
        return lost(slowdowns, m)[0], by_chance - least
    waiting = saved = 0.0
    for (taken, of), n in shapes.parts.items():  # on nodes of another size the same part of them
        by_chance, least = lost(slowdowns, m if taken >= of else max(1, round(taken * m / of)))
        waiting += n / shapes.gpus * by_chance
        saved += n / shapes.gpus * (by_chance - least)
    return waiting, saved


def assumption(shapes: JobShapes | None) -> str:
    """What the estimate takes for granted."""
    if shapes is None:
        return ASSUMPTION + BY_GUESS + REAL_JOBS
    jobs = f"{shapes.jobs:,} job{'s' * (shapes.jobs != 1)}"
    return ASSUMPTION + BY_JOBS.format(jobs=jobs, filling=100 * shapes.filling) + REAL_JOBS
