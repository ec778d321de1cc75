# SPDX-License-Identifier: MIT
"""How much pending jobs have been overtaken: GPU time that went to jobs behind them while they waited. Pure.

A job is overtaken by one that comes after it in the site's own order (its priority without ours), before it in ours,
and starts before it. One that comes after it in both can only be backfilled, which Slurm does by itself. What the
overtaker holds from then on, GPUs x time, and is expected to hold yet, is charged to each job that it left behind and
that still waits. Divided by the GPUs that the waiting job may use this is time: that by which it would start earlier,
had that work come after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Waits(NamedTuple):
    """A pending job, as the site orders it."""

    job_id: int
    base: int  # its priority without ours
    eligible_s: float
    partitions: frozenset[str]
    gpus: int = 1


class Holds(NamedTuple):
    """A running job."""

    job_id: int
    gpus: int
    start_s: float
    partition: str
    left_s: float = 0.0  # that it is expected to run yet


class Overtaking:
    """From look to look. `gpu_s` is what overtakers have held, as an earlier process left it."""

    def __init__(self, gpu_s: Mapping[int, float] = {}) -> None:
        self.gpu_s = dict(gpu_s)
        self._at_s = 0.0  # of the last look; 0: none yet
        self._waited: dict[int, Waits] = {}  # at the last look
        self._behind: dict[int, frozenset[int]] = {}  # running job -> those it left behind
        self._gpus: dict[int, int] = {}
        self._points: Mapping[int, int] = {}

    def placed(self, points: Mapping[int, int]) -> None:
        """What the jobs of the last look get on top of their own priorities, until the next one."""
        self._points = points

    def look(self, waiting: Iterable[Waits], running: Iterable[Holds], now_s: float) -> Mapping[int, float]:
        """Charge the time since the last look; job -> GPU s, held and to come, of the jobs that wait now."""
        here = {one.job_id: one for one in waiting}
        still, left = frozenset(here), {job_id: behind for job_id, behind in self._behind.items()}
        self._behind = {}
        to_come: dict[int, float] = {}
        for one in running:
            behind = left.pop(one.job_id, None)
            if behind is None:
                behind = self._left(one, here)
            behind &= still
            self._behind[one.job_id], self._gpus[one.job_id] = behind, one.gpus
            self._charge(behind, one.gpus, now_s - max(one.start_s, self._at_s or now_s))
            for job_id in behind if one.left_s > 0 else ():
                to_come[job_id] = to_come.get(job_id, 0.0) + one.gpus * one.left_s
        for job_id, behind in left.items():  # ended since: at the latest now
            self._charge(behind & still, self._gpus.pop(job_id), now_s - self._at_s)
        for number in self._waited.keys() - still - self._behind.keys():  # perhaps it has run meanwhile
            gone = self._waited[number]
            ahead = (other.job_id for other in self._waited.values() if self._overtakes(gone, other))
            left_behind = [n for n in ahead if n in here and here[n].partitions & gone.partitions]
            self._charge(left_behind, gone.gpus, now_s - self._at_s)
        self.gpu_s = {job_id: gpu_s for job_id, gpu_s in self.gpu_s.items() if job_id in here}
        self._at_s, self._waited = now_s, here
        return {job_id: self.gpu_s.get(job_id, 0.0) + to_come.get(job_id, 0.0) for job_id in here}

    def _left(self, one: Holds, here: Mapping[int, Waits]) -> frozenset[int]:
        """Jobs that a job left behind when it started. Of one that started before the first look, all that came before.

        One that started as soon as it came had no place from us.
        """
        own = self._waited.get(one.job_id)
        among = [job for job in here.values() if one.partition in job.partitions]
        if own is None and self._at_s:
            return frozenset()
        if own is None:
            return frozenset(job.job_id for job in among if job.eligible_s < one.start_s)
        seen = self._waited
        return frozenset(job.job_id for job in among if job.job_id in seen and self._overtakes(own, seen[job.job_id]))

    def _overtakes(self, one: Waits, other: Waits) -> bool:
        """Whether a job comes after another in the site's order, and before it in ours."""
        own, others = (-waits.base - self._points.get(waits.job_id, 0) for waits in (one, other))
        return (-one.base, one.job_id) > (-other.base, other.job_id) and (own, one.job_id) < (others, other.job_id)

    def _charge(self, behind: Iterable[int], gpus: int, seconds: float) -> None:
        if seconds > 0:
            for job_id in behind:
                self.gpu_s[job_id] = self.gpu_s.get(job_id, 0.0) + gpus * seconds
