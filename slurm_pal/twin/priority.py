# SPDX-License-Identifier: MIT
"""Priorities: by arrival and Nice (priority/basic), or by weighed factors (priority/multifactor)."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_pal.twin.slurm_settings import PrioritySettings
from slurm_pal.twin.virtual_job import VirtualJob

FIRST = 4294901759
"""priority/basic gives this to the first job, and one less to each next."""


class Priorities:
    """Of one cluster of `n_gpus`. Fair share is 2^-(usage share / share of an account), with accounts alike; the
    factors of partition and QOS are 0, since no noun of ours holds their priorities."""

    def __init__(self, settings: PrioritySettings, n_nodes: int) -> None:
        self._settings, self._n_nodes = settings, max(1, n_nodes)
        self._usage: dict[str, float] = {}
        self._decayed_s = 0.0
        self._next = FIRST

    def first(self, job: VirtualJob) -> None:
        """The job has just come."""
        job.base_priority, self._next = self._next, self._next - 1

    def used(self, account: str, gpu_s: float) -> None:
        """A job of this account has held so many GPU seconds."""
        self._usage[account] = self._usage.get(account, 0.0) + gpu_s

    def set_all(self, jobs: Iterable[VirtualJob], now_s: float) -> None:
        """Work out the priority of each pending job anew; those whose own was set by an administrator keep it."""
        self._decay(now_s)
        total = sum(self._usage.values())
        for job in jobs:
            found = self._of(job, now_s, total)
            if found != job.priority:
                job.priority = found
                job.noun = None

    def _of(self, job: VirtualJob, now_s: float, total: float) -> int:
        if job.own_priority is not None:
            return job.own_priority
        settings = self._settings
        if not settings.multifactor:
            return max(1, job.base_priority - job.nice)
        age = min(1.0, max(0.0, now_s - job.eligible_s) / settings.max_age_s) if settings.max_age_s else 0.0
        size = min(1.0, job.request.nodes_min / self._n_nodes)
        size = 1.0 - size if settings.favor_small else size
        accounts = max(1, len(self._usage))
        share = self._usage.get(job.account or job.user, 0.0) / total if total > 0 else 0.0
        fair: float = 2.0 ** (-share * accounts)
        weighed = settings.age * age + settings.size * size + settings.fair_share * fair
        return max(1, int(weighed) - job.nice + job.site_factor)

    def _decay(self, now_s: float) -> None:
        if self._settings.half_life_s and self._decayed_s:
            left = 0.5 ** (max(0.0, now_s - self._decayed_s) / self._settings.half_life_s)
            self._usage = {account: used * left for account, used in self._usage.items()}
        self._decayed_s = now_s
