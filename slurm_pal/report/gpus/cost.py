# SPDX-License-Identifier: MIT
"""What the differences cost, as a share of the GPUs' time at full load: an estimate with its assumption."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.inventory import GpuRow

HOURS_PER_DAY = 24.0

ASSUMPTION = (
    "Assumes that every measured GPU is busy all day with work of this class. Behind the median: a GPU with slowdown s "
    "does 1/s of a median GPU's work; faster GPUs do not offset it. Waiting: jobs fill whole nodes and go in "
    "step, so each GPU waits for the slowest of its node. The second is what placement by class can change; "
    "real jobs are often smaller, less sensitive, or wait for other things."
)


class Cost(NamedTuple):
    """For one sensitivity class; shares are of the time of the GPUs that have a score."""

    sensitivity: str
    gpus: int
    behind_share: float  # work not done by GPUs slower than the median
    waiting_share: float  # time spent waiting for the slowest GPU of the node

    @property
    def behind_gpu_h(self) -> float:
        """GPU-hours per day."""
        return self.behind_share * self.gpus * HOURS_PER_DAY

    @property
    def waiting_gpu_h(self) -> float:
        """GPU-hours per day."""
        return self.waiting_share * self.gpus * HOURS_PER_DAY


def cost(rows: Iterable[GpuRow], sensitivity: str) -> Cost | None:
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
    return Cost(sensitivity, len(every), behind / len(every), waiting / len(every))
