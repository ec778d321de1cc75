# SPDX-License-Identifier: MIT
"""How fast a job would be alone on the empty cluster: no placement can make it faster."""

from __future__ import annotations

from slurm_pal.simulate.hardware import Hardware
from slurm_pal.simulate.jobs import ReplayJob


class Alone:
    """Best factors per kind of job on one cluster, true slowdowns known."""

    def __init__(self, machine: Hardware) -> None:
        self._machine = machine
        self._found: dict[tuple[object, ...], tuple[float, float]] = {}

    def factors(self, job: ReplayJob, sensitivity: str) -> tuple[float, float]:
        """(slowdown, locality) on the best GPUs of the job's partition, on one node where that is faster."""
        key = (job.gpus, job.trace.shape.nodes, job.trace.partition, job.locality_penalty, sensitivity)
        if key not in self._found:
            self._found[key] = self._best(job, sensitivity)
        return self._found[key]

    def _best(self, job: ReplayJob, sensitivity: str) -> tuple[float, float]:
        nodes = self._machine.partitions.get(job.trace.partition, range(len(self._machine.names)))
        rows = [sorted(self._machine.true[sensitivity][node]) for node in nodes]
        spread = sorted(x for row in rows for x in row)[job.gpus - 1]
        offers = [(spread * job.locality_penalty, spread, job.locality_penalty)]
        if (job.trace.shape.nodes or 1) == 1:
            within = [row[job.gpus - 1] for row in rows if len(row) >= job.gpus]
            offers += [(min(within), min(within), 1.0)] if within else []
        _, slowdown, locality = min(offers)
        return slowdown, locality
