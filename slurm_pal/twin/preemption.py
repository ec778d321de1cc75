# SPDX-License-Identifier: MIT
"""preempt/partition_prio: which running jobs make room for one of a higher tier. Pure.

As seen on 22.05: jobs of the lowest tier first, of these the ones on the fewest nodes, of these the oldest number. They
are taken away one after the other until the new job fits. The last one, without which it did not, then comes first,
after it those on most of the nodes that the new job would get, and all is tried again. Neither what a job would lose
nor how full its nodes are counts, and free nodes are used first only because Slurm first tries without any victim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slurm_pal.base.cluster import Partition
from slurm_pal.twin.room import Room, Take
from slurm_pal.twin.virtual_job import VirtualJob

OFF, REQUEUE, CANCEL = "OFF", "REQUEUE", "CANCEL"
STOPPING = (REQUEUE, CANCEL)
"""Modes in which Slurm stops a job; it suspends none here."""


def mode_of(partition: Partition, usual: str) -> str:
    """What happens to jobs of a partition; `usual` is the site's PreemptMode."""
    return (partition.preempt or usual).upper()


def candidates(
    running: Iterable[VirtualJob], tier: int, rows: Iterable[int], tier_of: Callable[[VirtualJob], int | None]
) -> list[VirtualJob]:
    """Running jobs that one of this tier, in a partition of these nodes, may stop, in Slurm's order.

    `tier_of` says None for a job that nobody may stop.
    """
    within, found = frozenset(rows), list[tuple[int, int, int, VirtualJob]]()
    for job in running:
        own = tier_of(job) if job.state == "RUNNING" else None
        if own is not None and own < tier and any(take.node in within for take in job.takes):
            found.append((own, len(job.takes), job.job_id, job))
    return [job for *_, job in sorted(found, key=lambda row: row[:3])]


def victims(
    order: Sequence[VirtualJob], room: Room, fits: Callable[[Room], Sequence[Take] | None], reorders: int
) -> list[VirtualJob]:
    """The jobs to stop, in the order in which Slurm stops them; [] where the new job does not fit without all of them.

    `fits` says what the new job would get of a room. `reorders` is preempt_reorder_count.
    """
    left = [*order]
    while True:
        free, gone, takes = room.copy(), list[VirtualJob](), None
        for job in left:
            free.give(job.takes)
            gone.append(job)
            takes = fits(free)
            if takes:
                break
        if not takes:
            return []
        nodes = {take.node for take in takes}
        on_them = {job.job_id: sum(take.node in nodes for take in job.takes) for job in left}
        if reorders < 0 or len(left) < 2:
            return [job for job in gone if on_them[job.job_id]]
        reorders, last = reorders - 1, gone[-1]
        left.sort(key=lambda job: (job is not last, -on_them[job.job_id]))
