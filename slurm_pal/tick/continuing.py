# SPDX-License-Identifier: MIT
"""Jobs that were requeued before their time limits start without Slurm's delay: one update each, nothing to undo."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.event_log import EventLog
from slurm_pal.moves.steps import LATER
from slurm_pal.pending.continued import delayed
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.tick.role import Role


class Continuing:
    """What one process does about them. `delay_s`: what Slurm waits after a requeue."""

    def __init__(self, client: SlurmClient, role: Role, log: EventLog, delay_s: float) -> None:
        self._client, self._log, self._delay_s = client, log, delay_s
        self._only_user = role.user if role.name == "user" else ""

    def decide(self, overview: Overview, barred: frozenset[int], now_s: float) -> list[int]:
        """Those that may start now; `barred` are jobs with moves of ours."""
        jobs = [job for job in overview.jobs if job.job_id not in barred and self._mine(job)]
        return [job.job_id for job in delayed(jobs, self._delay_s, now_s)]

    def _mine(self, job: SlurmJob) -> bool:
        return not self._only_user or job.user == self._only_user

    def carry_out(self, found: Sequence[int], now_s: float) -> tuple[list[int], list[str]]:
        """Which have got an earlier start, and what went wrong, one line each."""
        done, trouble = [], []
        for job_id in found:
            try:
                self._client.update_job(job_id, StartTime=LATER)
            except SlurmError as error:  # Slurm's own delay then ends the wait
                trouble.append(f"job {job_id} waits for Slurm's delay after its requeue: {error}")
                continue
            done.append(job_id)
            self._log.write(now_s, "continue", job_id=job_id)
        return done, trouble
