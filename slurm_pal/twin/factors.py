# SPDX-License-Identifier: MIT
"""The factors of priority/multifactor beside fair share, each 0..1 (Slurm's page "Multifactor Priority Plugin").

Age, size and partition agree with sprio of a real slurmctld (tests/slurm/test_twin_priorities.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_pal.base.cluster import Partition
from slurm_pal.twin.room import Hardware
from slurm_pal.twin.slurm_settings import PrioritySettings
from slurm_pal.twin.virtual_job import VirtualJob


class Factors:
    """Of one cluster; `qos` gives priorities by name."""

    def __init__(
        self, settings: PrioritySettings, made: Hardware, partitions: Iterable[Partition], qos: Mapping[str, int]
    ) -> None:
        self._settings = settings
        self._nodes, self._cpus = max(1, len(made.names)), max(1, sum(made.cpus))
        self._job_factors = {one.name: one.job_factor for one in partitions}
        self._most = max(1, *self._job_factors.values()) if self._job_factors else 1
        self._qos, self._most_qos = qos, max([1, *qos.values()])

    def age(self, job: VirtualJob, now_s: float) -> float:
        """How long it could have started, of PriorityMaxAge."""
        since_s = job.submit_s if self._settings.from_submission else job.eligible_s
        waited_s = now_s - since_s
        return min(1.0, max(0.0, waited_s / self._settings.max_age_s)) if self._settings.max_age_s else 0.0

    def size(self, job: VirtualJob) -> float:
        """Nodes and CPUs asked for, half each; CPUs by GPU do not count before the job starts."""
        request, settings = job.request, self._settings
        nodes = request.nodes_min
        cpus = max(request.tasks * max(1, request.cpus_per_task), request.min_cpus * nodes, 1)
        if settings.size_by_time:
            minutes = max(1, int((job.limit_s or 365 * 86400.0) // 60))
            share = max(nodes * self._cpus / self._nodes, cpus) / minutes / self._cpus
            share = 1.0 - share if settings.favor_small else share
        else:
            share = (nodes / self._nodes + cpus / self._cpus) / 2
            share = 1.0 - share if settings.favor_small else share
        return min(1.0, max(0.0, share))

    def partition(self, name: str) -> float:
        """PriorityJobFactor of the largest one."""
        return self._job_factors.get(name, 1) / self._most

    def qos(self, name: str) -> float:
        """Priority of the QOS, of the highest one."""
        return self._qos.get(name, 0) / self._most_qos
