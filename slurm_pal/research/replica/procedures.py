# SPDX-License-Identifier: MIT
"""The round procedures of the published simulator: who is placed, in which order (pal.md 3.3 and 3.6).

Each takes a `Placer` and gives a round policy as active.py describes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from slurm_pal.research.replica.active import ActiveJob, Gpus, RoundPolicy, RoundState
from slurm_pal.research.replica.free import Free, RankTable
from slurm_pal.research.replica.picks import Pick


class Placer(NamedTuple):
    """The cluster and the rule for one job. `tables` has one row per class."""

    tables: Mapping[str, RankTable]
    pick: Pick
    generator: Random
    backfill: bool

    def free(self) -> Free:
        """All GPUs of the cluster."""
        return Free(next(iter(self.tables.values())))

    def place(self, free: Free, job: ActiveJob) -> Gpus:
        """Take GPUs for the job; () when it does not fit."""
        if job.size > free.left:
            return ()
        table = self.tables[job.sensitivity]
        if free.table is not table:
            free.follow(table)
        pieces = self.pick(free, job.size, self.generator)
        return () if pieces is None else free.take(pieces)


def by_class(placer: Placer) -> RoundPolicy:
    """All jobs are placed again: the head of the queue that fits by number, class A first.

    Then the rest in queue order, up to the first that does not fit: as the first job
    after the head never does, that matters with backfill only, which skips such jobs.
    """

    def policy(moment: RoundState) -> dict[int, Gpus]:
        free = placer.free()
        n_head = _head(moment.jobs, free.left)
        head, rest = moment.jobs[:n_head], moment.jobs[n_head:]
        return _in_turn(placer, free, [*sorted(head, key=_class_of), *rest])

    return policy


def non_sticky(placer: Placer) -> RoundPolicy:
    """All jobs are placed again in queue order, up to the first that does not fit (backfill skips such jobs)."""

    def policy(moment: RoundState) -> dict[int, Gpus]:
        return _in_turn(placer, placer.free(), moment.jobs)

    return policy


def sticky(placer: Placer) -> RoundPolicy:
    """Running jobs keep their GPUs, unless an earlier job in the queue needs them.

    As published, jobs killed in vain stay killed, until their own turn comes in this round.
    """

    def policy(moment: RoundState) -> dict[int, Gpus]:
        free = placer.free()
        kept = {job.number: job.gpus for job in moment.jobs if job.gpus}
        for gpus in kept.values():
            free.flip(gpus)
        placed: dict[int, Gpus] = {}
        for turn, job in enumerate(moment.jobs):
            if job.number in kept:
                continue
            gpus = placer.place(free, job) or _by_killing(placer, free, kept, job, moment.jobs[turn + 1 :])
            if gpus:
                placed[job.number] = gpus
            elif not placer.backfill:
                break
        return kept | placed

    return policy


def _head(jobs: Sequence[ActiveJob], left: int) -> int:
    """How many jobs from the start of the queue want no more than `left` GPUs together."""
    for n, job in enumerate(jobs):
        left -= job.size
        if left < 0:
            return n
    return len(jobs)


def _in_turn(placer: Placer, free: Free, jobs: Sequence[ActiveJob]) -> dict[int, Gpus]:
    placed: dict[int, Gpus] = {}
    for job in jobs:
        gpus = placer.place(free, job)
        if gpus:
            placed[job.number] = gpus
        elif not placer.backfill:
            break
        if not free.left:
            break
    return placed


def _by_killing(placer: Placer, free: Free, kept: dict[int, Gpus], job: ActiveJob, later: Sequence[ActiveJob]) -> Gpus:
    """Kill running jobs from the tail of the queue until `job` fits; () when it never does."""
    for victim in reversed(later):
        if victim.number in kept:
            free.flip(kept.pop(victim.number))
            gpus = placer.place(free, job)
            if gpus:
                return gpus
    return ()


def _class_of(job: ActiveJob) -> str:
    return job.sensitivity
