# SPDX-License-Identifier: MIT
"""Small clusters, jobs and replays for the tests of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from unittest.mock import patch

from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.hardware import Hardware, hardware
from slurm_pal.simulate.jobs import Held, ReplayJob
from slurm_pal.simulate.policies import POLICIES, STUDIES
from slurm_pal.simulate.replay import ReplayPlan, replay
from slurm_pal.simulate.result import JobOutcome
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import Trace, TraceJob

from .cluster_factory import CLASSES

AT_ONCE = ReplaySettings(backfill_interval_s=0.0)
PLACED_ONCE = [name for name in STUDIES if POLICIES[name].moves == "none" and not POLICIES[name].alone]


def machine(*rows: Sequence[float], partitions: dict[str, Sequence[int]] | None = None) -> Hardware:
    """Nodes given as the slowdowns of their GPUs, alike for all classes, truth and belief."""
    return hardware({name: [list(row) for row in rows] for name in CLASSES}, partitions=partitions or {})


def job(name: str, submit_s: float, gpus: int | GpuShape, ideal_s: float, **changes: object) -> TraceJob:
    shape = gpus if isinstance(gpus, GpuShape) else GpuShape(gpus)
    return TraceJob(name, submit_s, shape, ideal_s, "A")._replace(**changes)  # type: ignore[arg-type]


def trace(*jobs: TraceJob) -> Trace:
    return Trace("made up", jobs)


def run(
    cluster: Hardware, jobs: Sequence[TraceJob], policy: str = "packed", given: ReplaySettings = AT_ONCE, **plan: object
) -> dict[str, JobOutcome]:
    """Outcomes by job id."""
    result = replay(ReplayPlan(trace(*jobs), cluster, policy, settings=given, **plan))  # type: ignore[arg-type]
    assert result.complete
    return {outcome.job_id: outcome for outcome in result.outcomes}


WAITING = ReplaySettings(backfill_interval_s=0.0, barred_slowdown=1.2, expected_run_share=0.5)


@dataclasses.dataclass
class Stay:
    """One job on one set of GPUs."""

    job: ReplayJob
    held: Held
    start_s: float
    idle_s: float
    end_s: float = inf
    lost: bool = False  # ended by the failure of a node

    def gpus(self) -> set[tuple[int, int]]:
        return {(node, k) for node, indexes in self.held for k in indexes}


@contextmanager
def watched() -> Iterator[list[Stay]]:
    """All stays of all jobs, read off the calls by which the engine starts and ends them."""
    stays: list[Stay] = []
    last: dict[int, Stay] = {}
    begin, lose, outcome = ReplayJob.begin, ReplayJob.lose, ReplayJob.outcome

    def close(job: ReplayJob, at_s: float, lost: bool = False) -> None:
        if job.number in last:
            stay = last.pop(job.number)
            stay.end_s, stay.lost = at_s, lost

    def watch_begin(self: ReplayJob, held: Held, slowdown: float, locality: float, now_s: float, idle_s: float) -> None:
        close(self, now_s)
        last[self.number] = Stay(self, held, now_s, idle_s)
        stays.append(last[self.number])
        begin(self, held, slowdown, locality, now_s, idle_s)

    def watch_lose(self: ReplayJob, kept_s: float) -> None:
        close(self, self.since_s, lost=True)
        lose(self, kept_s)

    def watch_outcome(self: ReplayJob, now_s: float, names: tuple[str, ...]) -> JobOutcome:
        close(self, now_s)
        return outcome(self, now_s, names)

    with (
        patch.object(ReplayJob, "begin", watch_begin),
        patch.object(ReplayJob, "lose", watch_lose),
        patch.object(ReplayJob, "outcome", watch_outcome),
    ):
        yield stays
