# SPDX-License-Identifier: MIT
"""Whether a sweep may submit now: the hours of the day, the daily budget, and waiting users."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from slurm_pal.profiling.sweep import window
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spending import Spending
from slurm_pal.profiling.sweep.sweep_state import Pause, SweepTerms
from slurm_pal.profiling.sweep.waiting import user_waiting
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import EXACTLY_IDLE

LOOK_S = 15.0
LOOK_SHARE = 20.0  # looking takes at most a twentieth of the time, however long the queue


class Gate:
    """Ask `obstacle` before each submission. `look` keeps its view of Slurm fresh."""

    def __init__(
        self,
        client: SlurmClient,
        terms: SweepTerms,
        spending: Spending,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._spending = spending
        self._yields = terms.yield_to_users
        self._window = window.parse(terms.window) if terms.window else None
        self._budget_gpu_h = terms.budget_gpu_h_per_day
        self._now = now
        self._clock = clock
        self._due_s = -float("inf")
        self._users = ""
        self.idle: frozenset[str] = frozenset()  # nodes that were exactly idle at the last look

    def look_due(self) -> bool:
        """Whether it is time to ask Slurm who waits."""
        return self._yields and self._clock() >= self._due_s and self._closed() is None

    def look(self, nodes: Sequence[ChosenNode]) -> bool:
        """Ask Slurm who waits for one of `nodes`; return whether the answer changed. Raises SlurmError."""
        started_s = self._clock()
        job = user_waiting(self._client.jobs(), nodes, os.geteuid())
        self.idle = frozenset(
            n.name
            for n in self._client.nodes()
            if n.states - {"RESERVED", "RES"} == EXACTLY_IDLE and not n.gpus_used and not n.cpus_used
        )
        self._due_s = self._clock() + max(LOOK_S, LOOK_SHARE * (self._clock() - started_s))
        users = f"users wait: job {job.job_id} ({job.reason}) in {job.partition}" if job else ""
        changed = bool(users) != bool(self._users)
        self._users = users
        return changed

    def obstacle(self, gpu_h: float) -> Pause | None:
        """Why a job of `gpu_h` GPU-hours must not be submitted now; None: nothing prevents it."""
        now_s = self._now()
        closed = self._closed()
        if closed is not None:
            return closed
        free_s = self._spending.free_s(gpu_h, now_s)
        if free_s:
            spent = f"{self._spending.spent_gpu_h(now_s):.3g} of {self._budget_gpu_h:g} GPU-hours"
            return Pause(f"budget: {spent} used in 24 h", now_s, free_s, withdraw=False)
        return Pause(self._users, now_s) if self._users else None

    def _closed(self) -> Pause | None:
        now_s = self._now()
        if self._window is None or self._window.open_at(now_s):
            return None
        opens_s = self._window.opens_s(now_s)
        return Pause(f"outside the window, opens {time.strftime('%H:%M', time.localtime(opens_s))}", now_s, opens_s)
