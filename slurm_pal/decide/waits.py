# SPDX-License-Identifier: MIT
"""How long a new job is expected to wait in a partition. Pure, standard library only.

Slurm's own plan for a job that does not exist yet (sbatch --test-only) takes running jobs to use their whole limits,
and adds for each that waits its limit as if it filled whole nodes. Here the queue is played through with the times that
jobs are expected to take, in a pool of GPUs: running jobs end, waiting ones start in order, then the new one. A small
job need not wait for its turn, though, where Slurm's backfill finds it room that no job before it is planned to take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    nodes: int = 1


class NodeRoom(NamedTuple):
    """The GPUs of one node."""

    free: int
    held: Sequence[tuple[float, int]] = ()  # of each job: s until its limit, GPUs

    def ready_s(self, gpus: int) -> float:
        """When it has so many free at the latest; infinite: nobody knows, or never."""
        free, at_s = self.free, 0.0
        for end_s, count in sorted(self.held):
            if free >= gpus:
                break
            free, at_s = free + count, end_s
        return at_s if free >= gpus else float("inf")


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


def starts_now(gpus: int, nodes: int, rooms: Mapping[str, NodeRoom], ahead: Iterable[Waiting]) -> bool:
    """Whether backfill would start a new job of so many GPUs on so many nodes at once.

    Each job ahead that does not fit now is planned where it fits first by the limits of those that run; the new one
    takes none of these nodes.
    """
    free = {name: room.free for name, room in rooms.items()}
    size = -(-gpus // nodes)
    ours = {name for name, count in free.items() if count >= size}
    planned: set[str] = set()
    waits: set[tuple[int, int]] = set()
    orders: dict[int, list[str]] = {}  # by GPUs: the nodes, the one that is ready first last
    for one in ahead:
        if len(ours) < nodes:
            return False
        each = -(-one.gpus // one.nodes)
        if not each:
            continue
        if (each, one.nodes) not in waits:
            fitting = sorted((count, name) for name, count in free.items() if count >= each and name not in planned)
            if len(fitting) >= one.nodes:
                for count, name in fitting[: one.nodes]:
                    free[name] = count - each
                    if free[name] < size:
                        ours.discard(name)
                continue
            waits.add((each, one.nodes))
        if each not in orders:
            ready = sorted(((room.ready_s(each), name) for name, room in rooms.items()), reverse=True)
            orders[each] = [name for at_s, name in ready if at_s < float("inf")]
        left = one.nodes
        while left and orders[each]:
            name = orders[each].pop()
            if name not in planned:
                planned.add(name)
                ours.discard(name)
                left -= 1
    return len(ours) >= nodes


def rooms(overview: Overview, partition: str, now_s: float) -> dict[str, NodeRoom]:
    """The usable nodes of a partition, and until when at most their GPUs are held."""
    inside = {name for one in overview.partitions if one.name == partition for name in one.nodes}
    held: dict[str, list[tuple[float, int]]] = {}
    for job in overview.jobs:
        if job.state != "RUNNING":
            continue
        end_s = max(0.0, job.start_s + job.time_limit_s - now_s) if job.time_limit_s else float("inf")
        for name in inside & job.gpus.keys():
            held.setdefault(name, []).append((end_s, len(job.gpus[name])))
    return {
        node.name: NodeRoom(node.n_gpus - node.gpus_used, held.get(node.name, ()))
        for node in overview.nodes
        if node.name in inside and usable(node.states)
    }


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
