# SPDX-License-Identifier: MIT
"""Gavel's policies side by side on one trace; work for pool.run_all."""

from __future__ import annotations

from typing import NamedTuple

from slurm_pal.research.replica.gavel_jobs import GavelWorkload
from slurm_pal.research.replica.gavel_published import rules_of
from slurm_pal.research.replica.gavel_simulator import GavelResult, GavelSettings, run
from slurm_pal.simulate.pool import Progress


class GavelComparison(NamedTuple):
    """What is compared; policies are names of `allocation_policies`."""

    work: GavelWorkload
    policies: tuple[str, ...]
    settings: GavelSettings = GavelSettings()

    def check(self) -> None:
        """Raises UsageError for a policy or a setting that cannot be run."""
        self.settings.check(len(self.work.jobs))
        for name in self.policies:
            rules_of(name, self.work, self.settings.seed)

    def run(self, task: str, progress: Progress) -> GavelResult:
        """One policy. Raises StuckError and StoppedError as gavel.run."""
        return run(self.work, task, rules_of(task, self.work, self.settings.seed), self.settings, progress)
