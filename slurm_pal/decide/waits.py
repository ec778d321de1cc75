# SPDX-License-Identifier: MIT
"""How long a new job is expected to wait in a partition. Pure, standard library only.

Slurm's own plan for a job that does not exist yet (sbatch --test-only) takes running jobs to use their whole limits,
and adds for each that waits its limit as if it filled whole nodes. Here the queue is played through with the times that
jobs are expected to take, in a pool of GPUs: running jobs end, waiting ones start in order, then the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from slurm_pal.base.light import NamedTuple
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable

OUTLIVED = 0.2
"""A job that has outlived what was expected of it has this part of what it has run still to do."""


class Holding(NamedTuple):
    """A running job."""

    gpus: int
    ran_s: float
    limit_s: float  # 0: without one


class Waiting(NamedTuple):
    """A job ahead in the queue."""

    gpus: int
    limit_s: float  # 0: without one


class Expects(NamedTuple):
    """How long jobs are expected to run."""

    share: float  # of their limits
    run_s: float  # without one

    def of(self, limit_s: float) -> float:
        """In all."""
        return self.share * limit_s if limit_s else self.run_s

    def left_s(self, one: Holding) -> float:
        """Still to do."""
        rest_s = max(self.of(one.limit_s) - one.ran_s, OUTLIVED * one.ran_s)
        return min(rest_s, max(0.0, one.limit_s - one.ran_s)) if one.limit_s else rest_s


def expected_wait_s(
    gpus: int, free: int, running: Iterable[Holding], ahead: Sequence[Waiting], expects: Expects
) -> float:  # fmt: skip
    """Seconds until a job of so many GPUs would start; infinite where it would never have them."""
    ends = [(expects.left_s(one), one.gpus) for one in running]
    if gpus > free + sum(count for _, count in ends):
        return float("inf")
    heapify(ends)
    now_s, whole = 0.0, free + sum(count for _, count in ends)
    for one in (*ahead, Waiting(gpus, 0.0)):
        wanted = min(one.gpus, whole)
        while free < wanted and ends:
            end_s, count = heappop(ends)
            now_s, free = max(now_s, end_s), free + count
        free -= wanted
        heappush(ends, (now_s + expects.of(one.limit_s), wanted))
    return now_s


def pool(overview: Overview, partition: str, now_s: float) -> tuple[int, list[Holding]]:
    """The free GPUs of a partition, and who holds the others."""
    inside = {name for one in overview.partitions if one.name == partition for name in one.nodes}
    nodes = [node for node in overview.nodes if node.name in inside and usable(node.states)]
    running = [
        Holding(held, max(0.0, now_s - job.start_s), float(job.time_limit_s or 0))
        for job in overview.jobs
        if job.state == "RUNNING" and (held := sum(len(job.gpus.get(name, ())) for name in inside & job.gpus.keys()))
    ]
    return sum(node.n_gpus - node.gpus_used for node in nodes), running
