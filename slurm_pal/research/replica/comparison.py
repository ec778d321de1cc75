# SPDX-License-Identifier: MIT
"""The published policies side by side on one trace, seed by seed; work for pool.run_all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import GpuShape
from slurm_pal.research.replica.active import RoundSettings
from slurm_pal.research.replica.blox_pal import BloxResult, run
from slurm_pal.simulate.inputs.pal_rows import PalRow
from slurm_pal.simulate.pool import Progress
from slurm_pal.simulate.profiles import Source
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.simulate.virtual import VirtualCluster


class BloxTask(NamedTuple):
    policy: str
    seed: int  # of the profile


class BloxComparison(NamedTuple):
    """What is compared; policies are names of `replica.published_policies.POLICIES`."""

    rows: Sequence[PalRow]
    cluster: VirtualCluster  # nodes of one size
    source: Source
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: RoundSettings = RoundSettings()

    def tasks(self) -> list[BloxTask]:
        return [BloxTask(policy, seed) for seed in self.seeds for policy in self.policies]

    def run(self, task: BloxTask, progress: Progress) -> BloxResult:
        """Raises UsageError and StarvedError as blox_pal.run."""
        found = run(self.rows, task.policy, self.source.draw(self.cluster, task.seed), self.settings)
        progress(len(self.rows), len(self.rows))
        return found


def trace_of(rows: Sequence[PalRow], name: str) -> Trace:
    """The rows as a trace, for reports."""
    jobs = [TraceJob(row.job_id, row.submit_s, GpuShape(row.gpus), row.ideal_s, row.sensitivity) for row in rows]
    return Trace(name, tuple(sorted(jobs, key=lambda job: job.submit_s)))
