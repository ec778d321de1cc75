# SPDX-License-Identifier: MIT
"""Whether a sweep may submit now (hours, daily budget, waiting users, idle nodes), and which of its jobs make room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.sweep import window
from slurm_pal.profiling.sweep.leaving import HeldNode, calm_s, held_by_us, idle_nodes, leavers
from slurm_pal.profiling.sweep.plan import ChosenNode
from slurm_pal.profiling.sweep.spare import LONGEST_BARRED_S, SpareNodes, early_leavers
from slurm_pal.profiling.sweep.spending import Spending
from slurm_pal.profiling.sweep.sweep_job import members
from slurm_pal.profiling.sweep.sweep_state import Pause, SweepTerms
from slurm_pal.profiling.sweep.waiting import WAITS, user_waiting
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import JOB_WAITING

LOOK_S = 15.0
LOOK_SHARE = 20.0  # looking takes at most a twentieth of the time, however long the queue
WATCH_S = 0.5
WATCH_SHARE = 5.0  # while jobs of ours run and users wait, or few nodes are idle, at most a fifth
FRESH_S = 1.0  # after a look, where few nodes are idle: then another one comes before a submission
BARRED_S = 2.0  # while only the spare nodes prevent a submission
POLL_SHARE = 5.0  # looking whether anybody waits, while jobs of ours run: at most a fifth

SPARE = "spare nodes"


class Gate:
    """Ask `obstacle` before each submission. `look` keeps its view of Slurm fresh.

    A pair of nodes counts as one, by its name in `sweep_job`.
    """

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
        self._wanted = terms.spare_nodes if terms.yield_to_users else 0
        self._partition = terms.job.partition
        self._due_s = self._watch_s = self._fresh_s = self._soon_s = -float("inf")
        self._users = ""
        self._waited_s = -float("inf")  # when a user was last seen to wait
        self._leavings = 0  # each leaving counts, each node measured counts against it
        self.idle: frozenset[str] = frozenset()  # nodes that were exactly idle at the last look
        self.leavers: dict[str, SlurmJob] = {}  # node -> the user's job for which ours should leave it, by that look
        self.early: list[str] = []  # nodes that ours should leave before anybody waits, by that look
        self._spare = SpareNodes()
        self._others: Mapping[int, tuple[str, str]] = {}  # other jobs (state, reason), when last heard of
        self._news = False  # these have changed since the last look
        self._ample = False  # many nodes were idle then
        self._barred_s: float | None = None  # when the spare nodes first prevented the next submission
        self._barred_before_s: float | None = None  # the same of the submission before, until its job runs
        self.heeds = False  # a look is due as soon as the pace allows

    def look_due(self, node: str = "") -> bool:
        """Whether it is time to ask Slurm who waits; `node`: the next one to submit to, where there is one."""
        due = self._clock() >= self._due_s or (self.stale(node) and self._clock() >= self._watch_s)
        return self._yields and due and self._closed() is None

    def stale(self, node: str) -> bool:
        """Whether the last look is too old to submit to this node, since few others were idle."""
        if not self._wanted or not node or self._clock() < self._fresh_s:
            return False
        return not self.bars(node) and not all(map(self._spare.many, members(node)))

    def watch_due(self, others: Mapping[int, tuple[str, str]]) -> bool:
        """Whether to look who should have a node of ours; `others`: (state, reason) of all other jobs."""
        waiting = any(state in JOB_WAITING and reason in WAITS for state, reason in others.values())
        self._news |= bool(self._wanted) and others != self._others
        self._others = others
        old = bool(self._wanted) and self._clock() >= self._due_s
        self.heeds = self._yields and (waiting or old or (self._news and not self._ample))
        return self.heeds and self._clock() >= self._watch_s

    def look(
        self,
        nodes: Sequence[ChosenNode],
        held: Sequence[HeldNode] = (),
        left: Mapping[int, frozenset[str]] | None = None,
        taken: Iterable[str] = (),
    ) -> bool:
        """Ask Slurm who waits for one of `nodes`, and which of `held` should be left; whether the first has changed.

        `left`: user's job -> nodes that were left for it; `taken`: nodes for which our jobs wait. Raises SlurmError.
        """
        started_s = self._clock()
        jobs, seen = self._client.jobs(), self._client.nodes()
        job = user_waiting(jobs, nodes, os.geteuid())
        self.idle = idle_nodes(seen)
        self.leavers = leavers(jobs, seen, held, left or {}, self._sweep_id, os.geteuid()) if held else {}
        self._look_for_spare(jobs, seen, held, taken)
        now = self._clock()
        self._due_s = now + max(LOOK_S, LOOK_SHARE * (now - started_s))
        self._watch_s = now + max(WATCH_S, WATCH_SHARE * (now - started_s))
        self._fresh_s = now + max(FRESH_S, WATCH_SHARE * (now - started_s))
        self._soon_s = now + max(BARRED_S, LOOK_SHARE * (now - started_s))
        self._news = False
        users = f"users wait: job {job.job_id} ({job.reason}) in {job.partition}" if job else ""
        changed = bool(users) != bool(self._users)
        self._users = users
        if job or self.leavers or self.early:
            self._waited_s = now
        return changed

    def _look_for_spare(
        self, jobs: Sequence[SlurmJob], seen: Sequence[Node], held: Sequence[HeldNode], taken: Iterable[str]
    ) -> None:
        self._spare = SpareNodes(seen, self._wanted, self._partition)
        for node in taken:
            for name in members(node):
                self._spare.take(name)
        ours = held_by_us(jobs, {n.name: n for n in seen}, held, self._sweep_id, os.geteuid()) if held else []
        self.early = early_leavers(self._spare, ours, self.leavers) if self._wanted else []
        self._ample = all(self._spare.many(one.node) for one in ours)

    def bars(self, node: str) -> bool:
        """Whether a job on this node would leave too few idle ones."""
        return self._spare.bars_all(members(node))

    def idles(self, node: str) -> bool:
        """Whether this node was exactly idle at the last look."""
        return self.idle.issuperset(members(node))

    def taken(self, node: str) -> None:
        """A job was submitted to this node."""
        for name in members(node):
            self._spare.take(name)
        self._fresh_s = -float("inf")
        self._barred_before_s = self._barred_before_s if self._barred_s is None else self._barred_s
        self._barred_s = None

    def started(self) -> None:
        """A job of ours runs: there was room."""
        self._barred_before_s = None

    def taken_back(self) -> None:
        """A job that was submitted where there was room found none: it goes on to be barred since it was before."""
        self._barred_s = self._barred_s if self._barred_before_s is None else self._barred_before_s

    def left(self) -> None:
        """A job of ours has left its node: be more careful."""
        self._leavings += 1

    def measured(self) -> None:
        """A node has been measured: users were in no hurry."""
        self._leavings = max(0, self._leavings - 1)

    def obstacle(self, gpu_h: float, node: str = "", one_stays: bool = False) -> Pause | None:
        """Why a job of `gpu_h` GPU-hours must not be submitted to `node` now; None: nothing prevents it.

        `one_stays`: a job is at work that leaves only for users that wait; there is one at most.
        """
        pause = self._obstacle(gpu_h)
        if pause or not self.bars(node):
            return pause
        now_s = self._clock()
        self._barred_s = now_s if self._barred_s is None else self._barred_s
        left_s = self._barred_s + LONGEST_BARRED_S - now_s
        if left_s <= 0.0 and not one_stays:
            return None
        self._due_s = min(self._due_s, self._soon_s)
        why = f"{SPARE}: fewer than {self._wanted} idle beside {node}"
        return Pause(why, self._now(), self._now() + left_s if left_s > 0.0 else 0.0, withdraw=False)

    def _obstacle(self, gpu_h: float) -> Pause | None:
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
