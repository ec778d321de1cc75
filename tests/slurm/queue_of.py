# SPDX-License-Identifier: MIT
"""A real Slurm's queue, for tests: until a job is as it should be, and until all is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slurm_pal.base.errors import NotNowError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm.client import SlurmClient

PATIENCE_S = 60.0
LOOK_S = 0.25  # between looks, each of which is a process of its own


def until(
    client: SlurmClient, number: int, wanted: Callable[[SlurmJob], bool], told: Callable[[], object] = lambda: ""
) -> SlurmJob:
    """The job, once it is as wanted; `told` is shown beside it where it never is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        job = client.job(number)
        assert job is not None
        if wanted(job):
            return job
        assert time.monotonic() < deadline_s, f"{job} {told()}"
        time.sleep(LOOK_S)


def first_of(client: SlurmClient, numbers: Sequence[int], wanted: Callable[[SlurmJob], bool]) -> int:
    """The first of these jobs that is as wanted."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        found = [number for number, job in client.jobs_of(numbers).items() if wanted(job)]
        if found:
            return found[0]
        assert time.monotonic() < deadline_s
        time.sleep(LOOK_S)


def updated(client: SlurmClient, number: int, **fields: str) -> None:
    """As its user changes it: again where slurmctld has the job in its hands (24.11 and later)."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return client.update_job(number, **fields)
        except NotNowError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


def at_once(client: SlurmClient, number: int) -> None:
    """Spare a requeued job the rest of Slurm's delay; its delay may be over and the job started by now."""
    try:
        updated(client, number, StartTime="now")
    except SlurmError:
        job = client.job(number)
        assert job is not None and job.state == "RUNNING", job


def emptied(client: SlurmClient) -> None:
    """Cancel every job and wait until none holds anything."""
    client.cancel([n for n, (state, _) in client.job_states().items() if state in ("PENDING", "RUNNING")])
    deadline_s = time.monotonic() + PATIENCE_S
    while any(state in ("PENDING", "RUNNING", "COMPLETING") for state, _ in client.job_states().values()):
        assert time.monotonic() < deadline_s
        time.sleep(LOOK_S)
