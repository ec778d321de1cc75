# SPDX-License-Identifier: MIT
"""The running jobs of a replay: their work, counted for all of them at once, and which of them a move would pay for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import attrgetter

import numpy as np

from slurm_pal.moves.job_rows import Floats, JobRows
from slurm_pal.moves.prospects import COLUMNS, Prospects
from slurm_pal.moves.worth import CandidateMove, Movable
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.placement.view import Rule
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.settings import ReplaySettings

_WORKED = ("since_s", "attained_s", "done_s", "weighted_slowdown", "weighted_locality")
"""Attributes of ReplayJob that grow as it runs: while it runs, the columns hold them."""
_FIXED = ("works_from_s", "ideal_s", "factor", "slowdown", "locality", "held_gpus", "start_s", "limit_end_s")
"""Those that stay as they are until it stops."""
_ATTRIBUTES = attrgetter(*_WORKED, *_FIXED)
_NOT_PLANNED = (0.0,) * len(COLUMNS)


class RunningJobs:
    """The jobs that run, by number, in the order of their starts."""

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings
        self._jobs: dict[int, ReplayJob] = {}
        self._columns = JobRows((*_WORKED, *_FIXED, "expected_s", "movable", *COLUMNS))
        self._prospects: Prospects | None = None
        self._rule: Callable[[ReplayJob], Rule]
        self._occupancy: Occupancy

    def plan_for(self, occupancy: Occupancy, policy: str, rule: Callable[[ReplayJob], Rule]) -> None:
        """Moves will be asked for; `rule` has the parameters of a job's placement."""
        self._prospects, self._rule = Prospects(occupancy, policy, self._settings.limits, self._columns), rule
        self._occupancy = occupancy

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ReplayJob]:
        return iter(self._jobs.values())

    def __getitem__(self, number: int) -> ReplayJob:
        return self._jobs[number]

    def get(self, number: int) -> ReplayJob | None:
        return self._jobs.get(number)

    def add(self, job: ReplayJob) -> None:
        """A job that begins on its GPUs."""
        self._jobs[job.number] = job
        mine = _NOT_PLANNED
        if self._prospects and job.trace.movable and job.moves < self._settings.limits.per_job:
            mine = self._prospects.add(job.number, self._movable(job))
        expected_s = job.limit_s * self._settings.expected_run_share
        self._columns.add(job.number, (*_ATTRIBUTES(job), expected_s, job.trace.movable, *mine))

    def remove(self, job: ReplayJob) -> None:
        """It stops: its work until the last count is written to it."""
        del self._jobs[job.number]
        worked = self._columns.of(job.number)[: len(_WORKED)].tolist()
        job.since_s, job.attained_s, job.done_s, job.weighted_slowdown, job.weighted_locality = worked
        self._columns.remove(job.number)
        if self._prospects:
            self._prospects.remove(job.number)

    def advance(self, now_s: float) -> Floats:
        """Work up to now (see ReplayJob.advance); returns the GPU-seconds that each job held since the last count."""
        at = self._columns
        since_s, factor, done_s = at["since_s"], at["factor"], at["done_s"]
        held_s = now_s - since_s
        worked_s = now_s - np.maximum(since_s, at["works_from_s"])
        more_s = np.where(worked_s > 0, np.minimum(worked_s / factor, at["ideal_s"] - done_s), 0.0)
        done_s += more_s
        at["weighted_slowdown"][:] += more_s * at["slowdown"]
        at["weighted_locality"][:] += more_s * at["locality"]
        at["attained_s"][:] += held_s
        since_s[:] = now_s
        return (held_s * at["held_gpus"])[at["alive"] > 0]

    def moves(self, now_s: float) -> list[tuple[int, CandidateMove]]:
        """The moves that pay now, work being counted up to now."""
        assert self._prospects is not None, "plan_for comes first"
        if not self._occupancy.free_gpus:
            return []  # a job that gave its GPUs back would get just these
        at, limits = self._columns, self._settings.limits
        ripe = (at["gpus"] * at["alive"] > 0) & (now_s - at["start_s"] >= limits.minimum_s)
        return self._prospects.plan(self._remaining_s(now_s), ripe)

    def next_prospect_s(self, now_s: float) -> float:
        """When a plan may find what it did not find now, if no job starts or ends until then.

        What is left to run, and with it the gain of any move, only shrinks, except at two moments of a job:
        when it has run long enough to be moved, and when it has outlived its expected run time.
        """
        at = self._columns
        mine = at["movable"] * at["alive"] > 0
        ripe_s = at["start_s"][mine] + self._settings.limits.minimum_s
        outlived_s = now_s + at["expected_s"][mine] - at["attained_s"][mine]
        moments = np.concatenate((ripe_s, outlived_s))
        return float(np.min(moments[moments > now_s], initial=math.inf))

    def _remaining_s(self, now_s: float) -> Floats:
        """Expected ideal seconds still to come, from the time limit and the run time so far (see expected_left_s)."""
        at = self._columns
        left_s = at["expected_s"] - at["attained_s"]
        rest_s = np.maximum(0.0, at["limit_end_s"] - now_s) * self._settings.expected_run_share
        return np.where(left_s <= 0, rest_s, left_s) / np.maximum(at["factor"], 1.0)

    def _movable(self, job: ReplayJob) -> Movable:
        return Movable(
            str(job.number), job.trace.shape, self._rule(job), job.trace.partition, job.held, job.believed,
            0.0, 0.0, job.move_cost_s + self._settings.warmup_s, job.moves,
        )  # fmt: skip
