# SPDX-License-Identifier: MIT
"""Carry out a sweep: submit one job per node, watch, collect, give up, resume.

The truth is in Slurm and in the result files; the journal only keeps what these
forget. A sweep that dies at any point is therefore resumed by looking again.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import AnswerLostError, DataError, SlurmError, one_line
from slurm_pal.base.files import open_regular
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.terminal import visible
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.sweep import results, sweep_job
from slurm_pal.profiling.sweep.gate import BARRED_S, LOOK_S, LOOK_SHARE, POLL_SHARE, SPARE, WATCH_S, Gate
from slurm_pal.profiling.sweep.leaving import EARLY, HeldNode
from slurm_pal.profiling.sweep.spare import stays
from slurm_pal.profiling.sweep.spending import DAY_S, Expense, Spending
from slurm_pal.profiling.sweep.sweep_job import is_ours, members
from slurm_pal.profiling.sweep.sweep_state import (
    DONE,
    FAILED,
    OVER,
    PARTIAL,
    RESULT,
    SKIPPED,
    SUBMITTED,
    TODO,
    NodeState,
    Pause,
    SweepDirectory,
    expenses,
)
from slurm_pal.slurm.client import SlurmClient
from slurm_pal.slurm.states import JOB_ENDED, JOB_WAITING, NODE_UNUSABLE, usable

SUBMIT_INTERVAL_S = 0.2
POLL_MIN_S = 0.2
POLL_MAX_S = 5.0
GRACE_S = 5.0  # for a result file to appear on a shared file system after its job has ended
NODE_CHECK_S = 10.0
OWN_S = 2.0  # how often to look at our own jobs while the queue does not change
PATIENCE_S = 300.0  # with a controller that does not answer
PUBLISH_SHARE = 20.0  # publishing takes at most a twentieth of the time
FULL_S = 15.0  # how long to leave sbatch alone once the limit of submitted jobs is reached
STUCK_S = 60.0  # a pending job that has been withdrawn is gone by then, or never goes by itself
ORDER_S = 5.0  # before a job that should leave its node, and still runs, is cancelled once more
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)

TRANSIENT = (
    "unable to contact slurm controller", "socket timed out", "temporarily", "did not answer within", "connect failure",
    "connection refused", "connection reset", "communication", "timed out", "zero bytes",
)  # fmt: skip
"""Parts of Slurm's messages after which the same command may work a little later."""

FULL = ("submitjoblimit", "submitjobsperuser", "maxsubmitjob")
"""The same for limits on submitted jobs, which hold until one of them has ended."""


def transient(error: SlurmError) -> bool:
    """Whether trying again makes sense."""
    return isinstance(error, AnswerLostError) or _says(error, TRANSIENT + FULL)


def _says(error: SlurmError, parts: Sequence[str]) -> bool:
    text = one_line(error).lower()
    return any(part in text for part in parts)


class SweepListeners(NamedTuple):
    """Who hears of a sweep: a node's change, a pause (None: it has ended), and that results are worth publishing."""

    node: Callable[[str, NodeState], None]
    pause: Callable[[Pause | None], None] = lambda pause: None
    publish: Callable[[], None] = lambda: None


class Sweep:
    """The running sweep. `stop.set()` ends it early."""

    def __init__(
        self,
        client: SlurmClient,
        directory: SweepDirectory,
        spool_dirs: Sequence[str],
        told: SweepListeners,
        stop: threading.Event,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self._client = client
        self._dir = directory
        self._terms = directory.terms
        self._chosen = {c.node: c for c in self._terms.chosen}
        self._gpu_hours = self._terms.gpu_hours
        self._spool_dirs = spool_dirs
        self._told = told
        self._stop = stop
        self._now = now  # Unix time, for the journal
        self._clock = clock  # for waiting: does not go backwards when somebody sets the time
        self._sleep = sleep or stop.wait
        self._gone_s: dict[str, float] = {}  # node -> when its job was first seen to have ended
        self._pending_s: dict[str, float] = {}  # node -> when its job was first seen to wait
        self._running_s: dict[str, float] = {}  # node -> when its job was first seen to run
        self._ordered_s: dict[str, float] = {}  # node -> when its job was last cancelled, for a user's
        self._withdrawn: dict[str, tuple[str, str]] = {}  # node -> what it becomes, why
        self._lost: set[str] = set()  # nodes whose job ended as NODE_FAIL, and that were tried once more
        limit_gpu_h = self._terms.budget_gpu_h_per_day
        known = expenses(os.path.dirname(os.path.dirname(directory.path)), now() - DAY_S) if limit_gpu_h else []
        self._spending = Spending(limit_gpu_h, known)
        self._gate = Gate(client, self._terms, self._spending, now, clock)
        self._news = False  # results that are not published yet
        self._publish_s = clock() + self._terms.publish_every_s
        self._refused = self._accepted = 0
        self._silent_since_s: float | None = None
        self._nodes_due_s = self._full_until_s = -math.inf
        self._seen: dict[int, tuple[str, str]] = {}  # the queue, as last looked at
        self._own_due_s = -math.inf
        self._looks_soon = False  # the next submission only waits for a fresh look
        self._asked_s = 0.0  # what the last look at the queue took

    # -- the loop ---------------------------------------------------------------

    def run(self) -> bool:
        """Work until every node is over, or `stop` is set; return whether it came to the end.

        Raises SlurmError when Slurm refuses all jobs or stays silent, DataError when
        the journal cannot be written. The sweep can then be resumed.
        """
        try:
            return self._work()
        except DataError:
            with contextlib.suppress(SlurmError):  # nobody would watch them
                self._client.cancel([j.job_id for j in self._pending(self._own_jobs()).values()], pending_only=True)
            raise

    def _work(self) -> bool:
        self._recover()
        interval_s, due_s = POLL_MIN_S, -math.inf
        longest_s = min(POLL_MAX_S, max(POLL_MIN_S, self._terms.node_s / 10.0))
        while not self._stop.is_set():
            if self._clock() >= due_s:
                at_work = any(s.state == SUBMITTED for s in self._dir.nodes.values())
                changed = at_work and self._patiently(self._poll)
                interval_s = POLL_MIN_S if changed else min(interval_s * 1.5, longest_s)
                pause_s = max(min(interval_s, WATCH_S), POLL_SHARE * self._asked_s) if self._watches else interval_s
                due_s = self._clock() + pause_s
            waiting = [n for n, s in self._dir.nodes.items() if s.state == TODO]
            active = sum(1 for s in self._dir.nodes.values() if s.state == SUBMITTED)
            if not waiting and not active:
                self._note(None)
                return True
            self._publish()
            node = self._ask_gate(waiting)
            if node and active < self._terms.max_parallel and self._clock() >= self._full_until_s:
                self._submit(node)
                self._sleep(SUBMIT_INTERVAL_S)
            else:
                self._sleep(max(0.01, due_s - self._clock()) if active else self._nap_s())
        try:
            self._withdraw()
        except SlurmError as error:
            hint = f"pending jobs stay in the queue, resume with pal-profile run --resume {self._dir.sweep_id}"
            raise SlurmError(f"{one_line(error)}; {hint}") from None
        self._note(None)
        return all(s.state in OVER for s in self._dir.nodes.values())

    def _publish(self) -> None:
        """Have new results published when it is time."""
        every_s, started_s = self._terms.publish_every_s, self._clock()
        if not every_s or not self._news or started_s < self._publish_s:
            return
        self._told.publish()
        self._news = False
        self._publish_s = self._clock() + max(every_s, PUBLISH_SHARE * (self._clock() - started_s))

    # -- pausing ----------------------------------------------------------------

    def _ask_gate(self, waiting: Sequence[str]) -> str:
        """The node to submit to now, "" for none; while nothing may be submitted, pending jobs are taken back."""
        open_nodes = [*waiting, *self._pending_s]
        one_stays = self._one_stays
        waiting = [n for n in waiting if not (one_stays and self._stays(n))]
        free = sum(1 for s in self._dir.nodes.values() if s.state == SUBMITTED) < self._terms.max_parallel
        if open_nodes and self._gate.look_due(self._next(waiting) if free else ""):
            self._patiently(lambda: self._look(open_nodes))
        node = self._next(waiting)
        self._looks_soon = free and self._gate.stale(node)
        if self._looks_soon:
            return ""
        pause = self._gate.obstacle(self._gpu_hours.get(node, 0.0), node if free else "", one_stays)
        self._note(pause if open_nodes else None)
        if pause is not None and pause.withdraw:
            self._patiently(lambda: self._take_back(pause.why, self._pending_s))
        return "" if pause else node

    def _next(self, waiting: Sequence[str]) -> str:
        """Idle nodes first, and of these any that was left for a user's job; a busy one that was left comes last.

        Those on which a job would leave too few idle nodes come after all others.
        """
        waiting = [n for n in waiting if not self._gate.bars(n)] or waiting
        idle = [n for n in waiting if self._gate.idles(n)]
        left = {n for n in waiting if self._dir.nodes[n].leavings}
        return next((n for n in idle if n in left), next(iter(idle or sorted(waiting, key=left.__contains__)), ""))

    def _nap_s(self) -> float:
        """How long to sleep while paused with no job at work: nothing can happen before the next look."""
        if self._looks_soon:
            return WATCH_S
        pause = self._dir.pause
        left_s = pause.until_s - self._now() if pause and pause.until_s else LOOK_S
        return min(BARRED_S if _kind(pause) == SPARE else LOOK_S, max(0.01, left_s))

    def _note(self, pause: Pause | None) -> None:
        known = self._dir.pause
        if _kind(pause) != _kind(known):
            self._dir.set_pause(pause)
            self._told.pause(pause)

    def _take_back(self, why: str, nodes: Iterable[str]) -> bool:
        pending = [n for n in nodes if n not in self._withdrawn]
        self._client.cancel([self._dir.nodes[n].job_id for n in pending], pending_only=True)
        self._withdrawn |= {n: (TODO, f"withdrawn: {why}") for n in pending}
        return bool(pending)

    # -- bookkeeping ------------------------------------------------------------

    def _set(
        self,
        node: str,
        state: str,
        reason: str,
        **changes: Any,  # noqa: ANN401 - other fields of NodeState
    ) -> None:
        known = self._dir.nodes[node]
        new = known._replace(state=state, since_s=self._now(), reason=reason, **changes)
        self._dir.set(node, new)
        self._charge(node, known, new)
        self._gone_s.pop(node, None)
        self._pending_s.pop(node, None)
        self._running_s.pop(node, None)
        self._withdrawn.pop(node, None)
        self._ordered_s.pop(node, None)
        self._told.node(node, new)

    def _charge(self, node: str, known: NodeState, new: NodeState) -> None:
        """What a change of a node means for the budget: a job that took longer than expected costs more."""
        job, expected_gpu_h = f"{self._dir.sweep_id}:{new.job_id}", self._gpu_hours[node]
        if new.state == SUBMITTED:
            self._spending.add(Expense(job, new.since_s, expected_gpu_h))
        elif known.state == SUBMITTED and new.state in (TODO, SKIPPED) and not self._has_run(known, new):
            self._spending.take_back(job)
        elif known.state == SUBMITTED:
            ran_s = self._clock() - self._running_s.get(node, self._clock())
            took_gpu_h = self._chosen[node].gpus * ran_s / 3600.0
            self._spending.add(Expense(job, known.since_s, max(expected_gpu_h, took_gpu_h)))

    @staticmethod
    def _has_run(known: NodeState, new: NodeState) -> bool:
        return bool(known.leaves_for) or new.leavings > known.leavings

    def _patiently(self, action: Callable[[], bool]) -> bool:
        """Wait for a silent controller; SlurmError after `PATIENCE_S`."""
        try:
            changed = action()
        except SlurmError as error:
            if self._stop.is_set():
                return False  # Ctrl-C ends the current command too, which says nothing about Slurm
            if self._silent_since_s is None:
                self._silent_since_s = self._clock()
            silent_s = self._clock() - self._silent_since_s
            if silent_s > PATIENCE_S or not transient(error):
                hint = f"running jobs go on, resume with pal-profile run --resume {self._dir.sweep_id}"
                raise SlurmError(f"{one_line(error)}; {hint}") from None
            self._sleep(next((b for b in BACKOFF_S if b > silent_s / 2), BACKOFF_S[-1]))
            return False
        self._silent_since_s = None
        return changed

    # -- starting ---------------------------------------------------------------

    def _recover(self) -> None:
        """After a break: nodes without a result are tried again, jobs of ours are found again."""
        if self._dir.fresh:
            return
        alive = self._own_jobs()
        for node, known in list(self._dir.nodes.items()):
            job = alive.get(node)
            if job is not None and known.state not in RESULT:
                self._set(node, SUBMITTED, job_id=job.job_id, reason="found again")
            elif known.state == SUBMITTED:
                if self._never_ran(known.job_id):
                    self._set(node, TODO, reason="")
            elif known.state in (FAILED, SKIPPED) or known.rest:
                self._set(node, TODO, reason=known.reason if known.state == TODO else "", leavings=0)
        self._face_changes()

    def _never_ran(self, job_id: int) -> bool:
        """Whether a job was cancelled while it was pending, as we do when the journal cannot be written."""
        job = self._client.job(job_id)
        return job is not None and job.state == "CANCELLED" and not job.nodes

    def _face_changes(self) -> None:
        """Since the sweep was planned, nodes may have left Slurm or may have other GPUs."""
        now = {node.name: node.n_gpus for node in self._client.nodes()}
        for node, known in list(self._dir.nodes.items()):
            gpus = [now.get(name, 0) for name in members(node)]
            if all(gpus):
                self._chosen[node] = self._chosen[node]._replace(gpus=min(gpus) * len(gpus))
            elif known.state == TODO:
                there = now.keys() >= set(members(node))
                self._set(node, SKIPPED, reason="has no GPU any more" if there else "Slurm knows it no more")

    def _own_jobs(self) -> dict[str, SlurmJob]:
        """Our jobs that have not ended, by node."""
        name, uid = sweep_job.job_name(self._dir.sweep_id), os.geteuid()
        ours = [job for job in self._client.jobs() if job.name == name and is_ours(job, uid)]
        of = {frozenset(members(node)): node for node in self._dir.nodes}
        return {
            of.get(frozenset(job.req_nodes), job.req_nodes[0]): job
            for job in ours
            if job.req_nodes and job.state not in JOB_ENDED and job.state != "COMPLETING"
        }

    def _submit(self, node: str) -> None:
        known = self._dir.nodes[node]
        options = self._terms.job._replace(benchmarks=known.rest, quick=False) if known.rest else self._terms.job
        argv = sweep_job.submit_argv(options, node, self._chosen[node].gpus, self._chosen[node].partitions)
        text = sweep_job.script(options, node, self._chosen[node].gpus)
        unsure = False  # a time-out may hide a job that was accepted: never submit twice
        for pause_s in (*_pauses(), None):
            try:
                known_job = self._own_jobs().get(node) if unsure else None
                job_id = known_job.job_id if known_job else self._client.submit(argv, text)
                break
            except SlurmError as error:
                if self._stop.is_set():
                    return
                if not transient(error):
                    self._refuse(node, error)
                    return
                if _says(error, FULL) and any(s.state == SUBMITTED for s in self._dir.nodes.values()):
                    self._full_until_s = self._clock() + FULL_S  # one of ours must end first, and we watch it
                    return
                if pause_s is None:
                    raise SlurmError(
                        f"{one_line(error)}; nothing is lost, resume with pal-profile run --resume {self._dir.sweep_id}"
                    ) from None
                unsure = True
                self._sleep(pause_s)
        self._accepted += 1
        stays = self._stays(node) or self._gate.bars(node)
        why = "stays until a user's job waits for its node" if stays else ""
        self._gate.taken(node)
        self._set(node, SUBMITTED, job_id=job_id, attempts=known.attempts + 1, reason=why, leaves_for=0, stays=stays)

    def _stays(self, node: str) -> bool:
        """Whether the next job on this node will leave only for a user's job that waits."""
        return self._spares and stays(self._dir.nodes[node].leavings, self._terms.max_leavings)

    @property
    def _spares(self) -> bool:
        return self._terms.yield_to_users and self._terms.spare_nodes > 0

    @property
    def _one_stays(self) -> bool:
        return any(s.state == SUBMITTED and s.stays for s in self._dir.nodes.values())

    def _refuse(self, node: str, error: SlurmError) -> None:
        self._refused += 1
        if not self._accepted and (self._refused >= 3 or self._refused == len(self._dir.nodes)):
            raise SlurmError(f"Slurm refuses sweep jobs: {one_line(error)}") from None
        self._set(node, FAILED, reason=one_line(error), attempts=self._dir.nodes[node].attempts + 1)

    # -- watching ---------------------------------------------------------------

    def _poll(self) -> bool:
        """Look once at queue and spool; return whether a node changed."""
        active = {n: s for n, s in self._dir.nodes.items() if s.state == SUBMITTED}
        began_s = self._clock()
        everybodys = self._client.job_states() if self._watches else {}
        self._asked_s = self._clock() - began_s
        quiet = everybodys and everybodys == self._seen and not self._gate.heeds and began_s < self._own_due_s
        if quiet and not any(self._dir.nodes[n].leaves_for for n in self._running_s):
            return False
        self._seen = everybodys
        states = self._client.job_states(name_prefix=sweep_job.job_name(self._dir.sweep_id))
        self._own_due_s = self._clock() + OWN_S
        changed = False
        for node, known in active.items():
            state, why = states.get(known.job_id, ("", ""))
            if state in JOB_WAITING:
                self._judge_pending(node, known, why)
            elif self._collect(node, known, state):
                changed = True
            elif state in JOB_ENDED or state in ("", "COMPLETING"):
                changed |= self._judge_ended(node, known)
            else:
                if node not in self._running_s:
                    self._running_s[node] = self._clock()
                    self._gate.started()
                self._pending_s.pop(node, None)
                self._withdrawn.pop(node, None)  # it started before it could be withdrawn
        others = {job: s for job, s in everybodys.items() if job not in states}  # an id may come to be another's
        if self._watches and self._gate.watch_due(others):
            self._look([n for n, s in self._dir.nodes.items() if s.state in (TODO, SUBMITTED)])
        self._order(states)
        return self._judge_running() or changed

    def _collect(self, node: str, known: NodeState, job_state: str | None = None) -> bool:
        """Take the result of a node if it is there; `job_state`: of its job, "" where it is gone, None: not known."""
        if len(members(node)) > 1:
            return self._collect_pair(node, known)
        found = results.read(self._spool_dirs, self._dir.sweep_id, node, known.job_id)
        if found is None:
            return False
        options = self._terms.job
        asked = select(known.rest or options.benchmarks, options.quick and not known.rest)
        expected = self._chosen[node].gpus
        rest = [b.id for b in asked if found.ran.get(b.id, 0) < expected and not b.below_cap]
        if rest and self._may_be_stopped(node, known, job_state):
            return False
        self._news = True
        if rest and (known.leaves_for or job_state == "PREEMPTED"):
            self._left(node, known, ",".join(rest) if found.gpus else known.rest, found.gpus)
            return True
        state = DONE if found.gpus >= expected else PARTIAL if found.gpus else FAILED
        missing = f"{found.gpus} of {expected} GPUs measured" if state == PARTIAL and not found.reason else ""
        self._set(node, state, reason=found.reason or missing, gpus=found.gpus, rest="")
        if state == DONE:
            self._gate.measured()
        return True

    def _collect_pair(self, node: str, known: NodeState) -> bool:
        if results.pair_trouble(self._spool_dirs, self._dir.sweep_id, members(node), known.job_id):
            return False
        self._news = True
        self._set(node, DONE, reason=self._chosen[node].why, gpus=self._chosen[node].gpus, rest="")
        self._gate.measured()
        return True

    def _may_be_stopped(self, node: str, known: NodeState, job_state: str | None) -> bool:
        """Whether the end of a job that did not run everything still has to show if it was stopped."""
        if job_state == "COMPLETING" and not known.leaves_for:
            return self._clock() - self._gone_s.setdefault(node, self._clock()) < GRACE_S
        return job_state not in (*JOB_ENDED, "", "COMPLETING")

    # -- making room for users --------------------------------------------------

    @property
    def _watches(self) -> bool:
        """Whether running jobs leave their nodes when users wait, and there are such jobs."""
        return self._terms.yield_to_users and self._terms.max_leavings > 0 and bool(self._running_s)

    def _look(self, open_nodes: Sequence[str]) -> bool:
        """Look who waits, and have jobs leave where users' jobs could start or too few nodes are idle.

        Noted before it is ordered: a resume goes on.
        """
        nodes = self._dir.nodes
        held = [
            HeldNode(name, nodes[n].job_id, since_s, nodes[n].leaves_for, nodes[n].stays)
            for n, since_s in (self._running_s.items() if self._watches else ())
            for name in members(n)
        ]
        of = {name: n for n in self._running_s for name in members(n)}
        left: dict[int, frozenset[str]] = {}
        for node, known in nodes.items():
            if known.leaves_for > 0:
                left[known.leaves_for] = left.get(known.leaves_for, frozenset()) | {*members(node)}
        coming = [n for n, s in nodes.items() if s.state == SUBMITTED and n not in self._running_s]
        wanted = [self._chosen[n]._replace(node=name) for n in open_nodes for name in members(n)]
        changed = self._gate.look(wanted, held, left, coming)
        busy = [n for n in self._pending_s if not self._gate.idles(n)]
        late = [n for n in busy if self._gate.bars(n) and not nodes[n].stays]
        if late:
            self._take_back(SPARE, late)
            self._gate.taken_back()
        for node in dict.fromkeys(of[name] for name in self._gate.early):
            self._leave(node, EARLY, "leaves early: too few idle nodes beside it")
        for node, user in {of[name]: user for name, user in self._gate.leavers.items()}.items():
            self._leave(node, user.job_id, f"leaves for job {user.job_id}")
        return changed

    def _leave(self, node: str, leaves_for: int, why: str) -> None:
        known = self._dir.nodes[node]
        new = known._replace(reason=why, leavings=known.leavings + 1, leaves_for=leaves_for)
        self._dir.set(node, new)
        self._told.node(node, new)

    def _order(self, ours: Mapping[int, object]) -> None:
        """Cancel those of our jobs that should leave, again where one does not end."""
        now = self._clock()
        leaving = {n: self._dir.nodes[n].job_id for n in self._running_s if self._dir.nodes[n].leaves_for}
        late = [n for n in leaving if now - self._ordered_s.get(n, -math.inf) > ORDER_S and leaving[n] in ours]
        self._client.cancel([leaving[n] for n in late])
        self._ordered_s |= dict.fromkeys(late, now)

    def _left(self, node: str, known: NodeState, rest: str, gpus: int) -> None:
        """A job has left its node: the next one there runs what this one has not."""
        times = known.leavings + (not known.leaves_for)
        why = f"left for job {known.leaves_for}" if known.leaves_for else "preempted by Slurm"
        if known.leaves_for == EARLY:
            why = "left early, too few idle nodes beside it"
        gpus, state = max(gpus, known.gpus), TODO
        if times >= self._terms.max_leavings:
            state = PARTIAL if gpus else SKIPPED
            why += f", {times} time{'s' * (times > 1)} in all; the next sweep takes it first"
        self._set(node, state, reason=why, leavings=times, rest=rest, gpus=gpus)
        self._gate.left()

    def _judge_pending(self, node: str, known: NodeState, why: str) -> None:
        waited_s = self._clock() - self._pending_s.setdefault(node, self._clock())
        if waited_s > self._terms.pending_max_s + STUCK_S:  # e.g. requeued and held, which pending_only leaves alone
            self._client.cancel([known.job_id])
        elif waited_s > self._terms.pending_max_s and node not in self._withdrawn:
            self._client.cancel([known.job_id], pending_only=True)  # unless it starts this very moment
            reason = f"busy: pending ({why}) for {self._terms.pending_max_s:g} s, withdrawn"
            self._withdrawn[node] = (SKIPPED, reason)

    def _judge_ended(self, node: str, known: NodeState) -> bool:
        """A job that has ended without a result: wait a little for the file, then record why."""
        if node in self._withdrawn:
            state, reason = self._withdrawn[node]
            self._set(node, PARTIAL if state == SKIPPED and known.rest and known.gpus else state, reason=reason)
            return True
        if self._clock() - self._gone_s.setdefault(node, self._clock()) < GRACE_S:
            return False
        job = self._client.job(known.job_id)
        why = self._why_ended(node, known.job_id, job)
        if known.leaves_for or (job and job.state == "PREEMPTED"):
            self._left(node, known, known.rest, 0)
        elif job and job.state == "NODE_FAIL" and node not in self._lost and self._is_well(node):
            self._lost.add(node)  # slurmctld lost sight of it, but the node is there: once more
            self._set(node, TODO, reason=f"{why}; once more")
        else:
            self._set(node, FAILED, reason=why)
        return True

    def _is_well(self, node: str) -> bool:
        return {seen.name for seen in self._client.nodes() if usable(seen.states)}.issuperset(members(node))

    def _why_ended(self, node: str, job_id: int, job: SlurmJob | None) -> str:
        state = f"{job.state}" if job else "gone from Slurm"
        if job and job.exit_code not in ("0:0", ""):
            state += f", exit code {job.exit_code}"
        words = last_line(sweep_job.output_path(self._dir.path, node))
        if len(members(node)) > 1:
            trouble = results.pair_trouble(self._spool_dirs, self._dir.sweep_id, members(node), job_id)
        else:
            trouble = results.complaint(self._spool_dirs, self._dir.sweep_id, node, job_id)
        said = "; ".join(filter(None, (words, trouble)))
        return f"job {job_id} {state}: {said}" if said else f"job {job_id} {state}, without a result"

    def _judge_running(self) -> bool:
        """Give up on jobs on nodes that Slurm has lost, and jobs that outlive their limit."""
        now = self._clock()
        late = {n: now - s for n, s in self._running_s.items() if now - s > 1.5 * self._terms.node_s + NODE_CHECK_S}
        if not late or now < self._nodes_due_s:
            return False
        seen = {node.name: node.states for node in self._client.nodes()}
        self._nodes_due_s = self._clock() + max(NODE_CHECK_S, LOOK_SHARE * (self._clock() - now))
        changed = False
        for node, running_s in late.items():
            states = frozenset().union(*(seen.get(name, {"UNKNOWN"}) for name in members(node)))
            broken = states & NODE_UNUSABLE - {"DRAIN"}
            overdue = running_s > self._terms.job.time_limit_s + 120.0
            if broken or overdue:
                job_id = self._dir.nodes[node].job_id
                self._client.cancel([job_id])
                known = seen.keys() >= set(members(node))
                state = "+".join(sorted(states)) if known else "unknown to Slurm"
                reason = f"node is {state}" if broken else "did not end at its time limit"
                self._set(node, FAILED, reason=f"job {job_id}: {reason}")
                changed = True
        return changed

    # -- stopping ---------------------------------------------------------------

    def _withdraw(self) -> None:
        """Take back pending jobs; running ones go on and are collected by a resume."""
        own = self._own_jobs()
        pending = self._pending(own)
        self._client.cancel([job.job_id for job in pending.values()], pending_only=True)
        own = self._own_jobs() if pending else own
        for node, known in list(self._dir.nodes.items()):
            if known.state == SUBMITTED:
                if not self._collect(node, known) and node in pending and node not in own:
                    self._set(node, TODO, reason="withdrawn")
            elif node in own and known.state not in RESULT:  # Ctrl-C ended sbatch before it could print the job id
                self._set(node, SUBMITTED, job_id=own[node].job_id, reason="found again")

    @staticmethod
    def _pending(jobs: Mapping[str, SlurmJob]) -> dict[str, SlurmJob]:
        return {node: job for node, job in jobs.items() if job.state in JOB_WAITING}


def _kind(pause: Pause | None) -> str:
    """The kind of a pause, without job or amount: these change from look to look."""
    return pause.why.partition(":")[0] if pause else ""


def _pauses() -> Iterator[float]:
    """How long to wait before each new try, until `PATIENCE_S` have gone by."""
    total_s = 0.0
    for pause_s in itertools.chain(BACKOFF_S, itertools.repeat(BACKOFF_S[-1])):
        total_s += pause_s
        if total_s > PATIENCE_S:
            return
        yield pause_s


def last_line(path: str) -> str:
    """The last line a job printed, printable and cut to 200 characters; "" where there is none."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 2000))
            lines = stream.read(2000).decode(errors="replace").strip().splitlines()
    except (OSError, DataError):
        return ""
    return visible(lines[-1])[:200] if lines else ""
