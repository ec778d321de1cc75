# SPDX-License-Identifier: MIT
"""Priorities: by arrival and Nice (priority/basic), or by weighed factors (priority/multifactor)."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.twin.factors import Factors
from slurm_pal.twin.fair_share import FairShare
from slurm_pal.twin.slurm_settings import PrioritySettings
from slurm_pal.twin.virtual_job import VirtualJob

FIRST = 4294901759
"""priority/basic gives this to the first job, and one less to each next."""


class Priorities:
    """Of one cluster."""

    def __init__(self, settings: PrioritySettings, factors: Factors, fair: FairShare) -> None:
        self._settings, self._factors, self._fair = settings, factors, fair
        self._next = FIRST

    def first(self, job: VirtualJob) -> None:
        """The job has just come."""
        job.base_priority, self._next = self._next, self._next - 1

    def used(self, job: VirtualJob, amount: float) -> None:
        """A job has used so much more than was known."""
        self._fair.used(job.account, job.user, amount)

    def in_partition(self, job: VirtualJob, name: str) -> int:
        """Its priority in one of its partitions; what is shown is that of the first."""
        weight = self._settings.partition
        if not weight or len(job.partitions) < 2 or job.own_priority is not None or not self._settings.multifactor:
            return job.priority
        of = self._factors.partition
        return max(1, job.priority + round(weight * (of(name) - of(job.partitions[0]))))

    def look(self) -> None:
        """Fair share follows the usage so far."""
        self._fair.look()

    def set_all(self, jobs: Iterable[VirtualJob], now_s: float) -> None:
        """Work out the priority of each pending job anew; those whose own was set by an administrator keep it."""
        self._fair.decay(now_s)
        for job in jobs:
            found = self._of(job, now_s)
            if found != job.priority:
                job.priority = found
                job.noun = None

    def _of(self, job: VirtualJob, now_s: float) -> int:
        if job.own_priority is not None:
            return job.own_priority
        settings = self._settings
        if not settings.multifactor:
            return max(1, job.base_priority - job.nice)
        of = self._factors
        weighed = settings.age * of.age(job, now_s) + settings.size * of.size(job)
        weighed += settings.partition * of.partition(job.partitions[0]) + settings.qos * of.qos(job.qos)
        weighed += settings.fair_share * self._fair.factor(job.account, job.user) if settings.fair_share else 0.0
        return max(1, int(weighed) - job.nice + job.site_factor)
