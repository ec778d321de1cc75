# SPDX-License-Identifier: MIT
"""Whether a sweep may submit now (hours of the day, daily budget, waiting users), and which of its jobs make room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.sweep import window
from slurm_pal.profiling.sweep.leaving import HeldNode, calm_s, idle_nodes, leavers
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spending import Spending
from slurm_pal.profiling.sweep.sweep_state import Pause, SweepTerms
from slurm_pal.profiling.sweep.waiting import WAITS, user_waiting
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import JOB_WAITING

LOOK_S = 15.0
LOOK_SHARE = 20.0  # looking takes at most a twentieth of the time, however long the queue
WATCH_S = 1.0
WATCH_SHARE = 5.0  # while users wait and jobs of ours run, at most a fifth
POLL_SHARE = 10.0  # looking whether anybody waits, while jobs of ours run: at most a tenth


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
        self._sweep_id = terms.job.sweep_id
        self._window = window.parse(terms.window) if terms.window else None
        self._budget_gpu_h = terms.budget_gpu_h_per_day
        self._now = now
        self._clock = clock
        self._due_s = self._watch_s = -float("inf")
        self._users = ""
        self._waited_s = -float("inf")  # when a user was last seen to wait
        self._leavings = 0  # each leaving counts, each node measured counts against it
        self.idle: frozenset[str] = frozenset()  # nodes that were exactly idle at the last look
        self.leavers: dict[str, SlurmJob] = {}  # node -> the user's job for which ours should leave it, by that look

    def look_due(self) -> bool:
        """Whether it is time to ask Slurm who waits."""
        return self._yields and self._clock() >= self._due_s and self._closed() is None

    def watch_due(self, others: Iterable[tuple[str, str]]) -> bool:
        """Whether somebody seems to wait for what jobs of ours occupy; `others`: (state, reason) of all other jobs."""
        waiting = any(state in JOB_WAITING and reason in WAITS for state, reason in others)
        return self._yields and waiting and self._clock() >= self._watch_s

    def look(
        self,
        nodes: Sequence[ChosenNode],
        held: Sequence[HeldNode] = (),
        left: Mapping[int, frozenset[str]] | None = None,
    ) -> bool:
        """Ask Slurm who waits for one of `nodes`, and which of `held` should be left; whether the first has changed.

        `left`: user's job -> nodes that were left for it. Raises SlurmError.
        """
        started_s = self._clock()
        jobs, seen = self._client.jobs(), self._client.nodes()
        job = user_waiting(jobs, nodes, os.geteuid())
        self.idle = idle_nodes(seen)
        self.leavers = leavers(jobs, seen, held, left or {}, self._sweep_id, os.geteuid()) if held else {}
        now = self._clock()
        self._due_s = now + max(LOOK_S, LOOK_SHARE * (now - started_s))
        self._watch_s = now + max(WATCH_S, WATCH_SHARE * (now - started_s))
        users = f"users wait: job {job.job_id} ({job.reason}) in {job.partition}" if job else ""
        changed = bool(users) != bool(self._users)
        self._users = users
        if job or self.leavers:
            self._waited_s = now
        return changed

    def left(self) -> None:
        """A job of ours has left its node: be more careful."""
        self._leavings += 1

    def measured(self) -> None:
        """A node has been measured: users were in no hurry."""
        self._leavings = max(0, self._leavings - 1)

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
        if self._users:
            return Pause(self._users, now_s)
        calm = calm_s(self._leavings)
        if self._clock() < self._waited_s + calm:
            return Pause(f"users waited lately: going on after {calm:g} s without", now_s, withdraw=False)
        return None

    def _closed(self) -> Pause | None:
        now_s = self._now()
        if self._window is None or self._window.open_at(now_s):
            return None
        opens_s = self._window.opens_s(now_s)
        return Pause(f"outside the window, opens {time.strftime('%H:%M', time.localtime(opens_s))}", now_s, opens_s)
