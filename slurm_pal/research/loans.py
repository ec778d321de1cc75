# SPDX-License-Identifier: MIT
"""Whole servers lent by an owner to a training cluster, after Aryl and Lyra (arXiv 2202.07896), from event to event.

What is lent, which servers go back and how many workers an elastic job has is decided by `slurm_pal.allocation`.
Assumed: linear scaling; loaned GPUs as fast as own ones; every job may run on loaned servers. A preempted job falls
back to its last checkpoint, waits again and pays the restart; a change of its workers is planned, so it pays the
restart only.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_pal.allocation.demand import loan_order
from slurm_pal.allocation.elastic import CHURN, COOL_DOWN_S, ElasticJob, flexible_workers
from slurm_pal.allocation.reclaim import Guest, Reclaim, at_random, by_cost, by_jobs, outcome
from slurm_pal.base.errors import UsageError

SERVER_GPUS = 8
ORDER_S = 300.0
GRACE_S = 30.0
SCALE_S = 60.0
"""Workers are shared out anew at most so often."""
ARRIVAL, END, DEMAND, RETURN, ORDER = range(5)  # in this order where times are equal


class LoanJob(NamedTuple):
    """A job of the study."""

    arrival_s: float
    run_s: float  # with its base workers
    believed_s: float  # what the scheduler takes run_s for
    workers: int  # base
    gpus: int  # of each worker, at most SERVER_GPUS
    most: int  # workers; more than `workers` for an elastic job


class Owner(NamedTuple):
    """What the owner needs of its own servers."""

    servers: int
    steps: tuple[tuple[float, float], ...]  # (time s, GPUs) from 0 on
    predicted: tuple[float, ...]  # servers, by hour of the week


class LoanRules(NamedTuple):
    """What a policy does."""

    summary: str
    shortest: bool = True  # shortest first, passing over what does not fit; else strict FIFO
    loan: bool = True
    scale: bool = True
    reclaim: str = "cost"  # or "jobs", "random"
    split: bool = True  # flexible workers and base demand are kept apart
    from_zero: bool = False  # a preempted job has no checkpoint
    eager: bool = False  # workers change as soon as it saves anything, without charge or cool-down
    more: bool = False  # instead of loans, as many own servers more as `aryl` borrowed on average


class LoanFigures(NamedTuple):
    """One run."""

    queue_s: float  # mean over jobs of all their waiting
    queue_p95_s: float
    jct_s: float  # mean
    jct_p95_s: float
    usage: float  # used share of the GPUs of both groups until the last arrival
    loaned: float  # servers on loan, mean until the last arrival
    preemptions: int
    reclaims: int  # orders that took servers back
    scale_in: float  # share of these that preempted nobody
    owner_wait_s: float  # the longest that an owner's demand waited for a server
    lost_gpu_h: float  # work done again and restarts
    changes: int  # of worker counts


class _Job:
    """A job on its way."""

    __slots__ = (
        "bases",
        "changed_s",
        "flexible",
        "from_s",
        "job",
        "left_s",
        "number",
        "version",
        "waited_s",
        "waits_s",
    )

    def __init__(self, number: int, job: LoanJob) -> None:
        self.number, self.job = number, job
        self.left_s, self.waits_s, self.waited_s = job.run_s, job.arrival_s, 0.0
        self.bases: list[int] = []  # server of each base worker
        self.flexible: list[int] = []
        self.from_s, self.changed_s, self.version = 0.0, -math.inf, 0

    @property
    def rate(self) -> float:
        return (len(self.bases) + len(self.flexible)) / self.job.workers

    @property
    def held(self) -> int:
        return (len(self.bases) + len(self.flexible)) * self.job.gpus

    @property
    def believed_s(self) -> float:
        return self.job.believed_s * self.left_s / self.job.run_s


class LoanStudy:
    """One run: `run` from the first arrival to the last end."""

    def __init__(
        self, jobs: Sequence[LoanJob], owner: Owner, rules: LoanRules, *, servers: int, restart_s: float,
        checkpoint_s: float, headroom: float, rng: random.Random,
    ) -> None:  # fmt: skip
        if not jobs or any(job.gpus > SERVER_GPUS or job.workers * job.gpus > servers * SERVER_GPUS for job in jobs):
            raise UsageError(
                f"{len(jobs)} jobs on {servers} servers of {SERVER_GPUS} GPUs: there must be jobs that fit"
            )
        self.jobs = [_Job(number, job) for number, job in enumerate(jobs)]
        self.owner, self.rules, self.rng = owner, rules, rng
        self.restart_s, self.headroom = restart_s, headroom
        self.checkpoint_s = math.inf if rules.from_zero else checkpoint_s
        self.own = list(range(servers))
        self.loaned: list[int] = []
        self.leaving: list[int] = []  # no guest is there any more, but the owner has them only after the grace time
        self.short_s: dict[int, float] = {}  # since when the owner needs its first, second, ... server and lacks it
        total = servers + owner.servers
        self.free = [SERVER_GPUS] * total
        self.based = [0] * total  # base workers on the server
        self.flex: list[list[_Job]] = [[] for _ in range(total)]  # a job for each of its flexible workers there
        self.waiting: list[_Job] = []  # in order of arrival
        self.running: dict[int, _Job] = {}
        self.ended_s: dict[int, float] = {}
        self.now_s = self.scaled_s = 0.0
        self.until_s = max(job.arrival_s for job in jobs)
        self.demand_gpus = 0.0
        self.busy = self.lent = self.lost = self.owner_wait_s = 0.0
        self.preemptions = self.reclaims = self.gentle = self.changes = 0
        self.held = 0
        self.events: list[tuple[float, int, int, int]] = [
            (job.arrival_s, ARRIVAL, number, 0) for number, job in enumerate(jobs)
        ]
        if rules.loan:
            self.events.append((0.0, ORDER, 0, 0))
        self.steps = deque(owner.steps)
        self.events.append((self.steps[0][0], DEMAND, 0, 0))
        heapq.heapify(self.events)

    def run(self) -> LoanFigures:
        while len(self.ended_s) < len(self.jobs):
            time_s, kind, number, version = heapq.heappop(self.events)
            if kind == END and version != self.jobs[number].version:
                continue
            self._pass(time_s)
            if kind in (DEMAND, RETURN):
                self._demand() if kind == DEMAND else self._return()
                continue
            if kind == ARRIVAL:
                self._wait(self.jobs[number])
            elif kind == END:
                self._end(self.jobs[number])
            else:
                self._order()
            self._start_waiting()
            if self.rules.scale and time_s - self.scaled_s >= SCALE_S:
                self._scale()
        return self._figures()

    # -- time -----------------------------------------------------------------------------

    def _pass(self, time_s: float) -> None:
        """What is used until then."""
        span_s = max(0.0, min(time_s, self.until_s) - self.now_s)
        self.busy += span_s * (self.held + min(self.demand_gpus, SERVER_GPUS * self._owners()))
        self.lent += span_s * len(self.loaned)
        self.now_s = time_s

    def _demand(self) -> None:
        _, self.demand_gpus = self.steps.popleft()
        self._owner_waits()
        if self.steps:
            heapq.heappush(self.events, (self.steps[0][0], DEMAND, 0, 0))

    def _needed(self) -> int:
        return math.ceil(self.demand_gpus / SERVER_GPUS)

    def _owners(self) -> int:
        """Servers that the owner can use now."""
        return self.owner.servers - len(self.loaned) - len(self.leaving)

    def _owner_waits(self) -> None:
        """Note how long the owner has lacked each server that it has by now, or needs no longer."""
        has, needs = self._owners(), self._needed()
        for server in [number for number in self.short_s if not has < number <= needs]:
            self.owner_wait_s = max(self.owner_wait_s, self.now_s - self.short_s.pop(server))
        for server in range(has + 1, needs + 1):
            self.short_s.setdefault(server, self.now_s)

    def _settle(self, job: _Job) -> None:
        """Progress up to now, with a checkpoint here."""
        job.left_s = max(0.0, job.left_s - max(0.0, self.now_s - job.from_s) * job.rate)
        # What it held GPUs for without progress, and does not hold them for any more.
        self.lost -= max(0.0, job.from_s - self.now_s) * job.held

    def _go_on(self, job: _Job, pause_s: float) -> None:
        job.from_s = self.now_s + pause_s
        self.lost += pause_s * job.held
        job.version += 1
        heapq.heappush(self.events, (job.from_s + job.left_s / job.rate, END, job.number, job.version))

    # -- places ---------------------------------------------------------------------------

    def _place(self, job: _Job, servers: Iterable[int], release: bool) -> list[int] | None:
        """A server for each base worker, best fit, or None. `release`: flexible workers make room."""
        gpus = job.job.gpus
        room = {server: self.free[server] for server in servers}
        if release:
            for server in room:
                room[server] += sum(other.job.gpus for other in self.flex[server])
        found: list[int] = []
        for _ in range(job.job.workers):
            fits = [server for server, free in room.items() if free >= gpus]
            if not fits:
                return None
            best = min(fits, key=room.__getitem__)
            room[best] -= gpus
            found.append(best)
        return found

    def _find(self, job: _Job) -> list[int] | None:
        """Own servers first, and flexible workers make room there, before anything goes where it may be preempted."""
        everywhere = self.own + self.loaned
        apart = self.rules.split and self.loaned
        sets = [[self.own], [self.loaned, everywhere]] if apart else [[everywhere]]
        for some in sets:
            for release in (False, True) if self.rules.scale else (False,):
                for servers in some:
                    found = self._place(job, servers, release)
                    if found is not None:
                        return found
        return None

    def _try(self, job: _Job) -> bool:
        found = self._find(job)
        if found is None:
            return False
        gpus = job.job.gpus
        for server in found:
            while self.free[server] < gpus:
                self._shrink(self.flex[server][-1], server)
            self.free[server] -= gpus
            self.based[server] += 1
        self.held += gpus * len(found)
        job.bases = found
        job.waited_s += self.now_s - job.waits_s
        self.running[job.number] = job
        self._go_on(job, self.restart_s if job.version else 0.0)
        return True

    def _wait(self, job: _Job) -> None:
        bisect.insort(self.waiting, job, key=lambda job: job.number)

    def _start_waiting(self) -> None:
        """Phase 1."""
        if not self.rules.shortest:
            while self.waiting and self._try(self.waiting[0]):
                self.waiting.pop(0)
            return
        failed: set[tuple[int, int]] = set()  # shapes that do not fit now
        for job in sorted(self.waiting, key=lambda job: job.believed_s):
            shape = job.job.workers, job.job.gpus
            if shape not in failed:
                if self._try(job):
                    self.waiting.remove(job)
                else:
                    failed.add(shape)

    def _leave(self, job: _Job) -> None:
        """It gives up all GPUs."""
        self.held -= job.held
        for server in job.bases:
            self.free[server] += job.job.gpus
            self.based[server] -= 1
        for server in job.flexible:
            self.free[server] += job.job.gpus
            self.flex[server].remove(job)
        job.bases, job.flexible = [], []
        job.version += 1
        del self.running[job.number]

    def _end(self, job: _Job) -> None:
        self._leave(job)
        self.ended_s[job.number] = self.now_s

    # -- flexible workers -------------------------------------------------------------------

    def _shrink(self, job: _Job, server: int) -> None:
        self._settle(job)
        job.flexible.remove(server)
        self.flex[server].remove(job)
        self.free[server] += job.job.gpus
        self.held -= job.job.gpus
        self._changed(job)

    def _changed(self, job: _Job) -> None:
        self.changes += job.changed_s != self.now_s  # several workers at once are one change
        job.changed_s = self.now_s
        self._go_on(job, self.restart_s)

    def _elastic(self, job: _Job) -> ElasticJob:
        done_s = max(0.0, self.now_s - job.from_s) * job.rate
        remaining_s = job.job.believed_s * max(0.0, job.left_s - done_s) / job.job.run_s
        return ElasticJob(
            str(job.number), job.job.workers, job.job.most, job.job.gpus, remaining_s, (), len(job.flexible),
            self.restart_s, self.now_s - job.changed_s,
        )  # fmt: skip

    def _scale(self) -> None:
        """Phase 2."""
        elastic = [self._elastic(job) for job in self.running.values() if job.job.most > job.job.workers]
        churn, cool_down_s = (0.0, 0.0) if self.rules.eager else (CHURN, COOL_DOWN_S)
        if all(job.flexible == job.most - job.base or job.still_s < cool_down_s for job in elastic):
            return
        self.scaled_s = self.now_s
        servers = self.own + self.loaned
        gpus = sum(self.free[server] for server in servers) + sum(job.flexible * job.gpus for job in elastic)
        counts = flexible_workers(elastic, gpus, churn=churn, cool_down_s=cool_down_s)
        changes = sorted((counts[job.job] - job.flexible, int(job.job)) for job in elastic)
        for change, number in changes:
            job = self.running[number]
            if change < 0:
                self._settle(job)
                for _ in range(-change):
                    server = min(job.flexible, key=lambda server: (server in self.loaned, server))
                    job.flexible.remove(server)
                    self.flex[server].remove(job)
                    self.free[server] += job.job.gpus
                    self.held -= job.job.gpus
                self._changed(job)
            elif change > 0:
                self._grow(job, change, servers)

    def _grow(self, job: _Job, count: int, servers: Sequence[int]) -> None:
        gpus, own = job.job.gpus, len(self.own)
        chosen = []
        for _ in range(count):
            fits = [server for server in servers if self.free[server] >= gpus]
            if not fits:
                break
            if self.rules.split:
                best = min(fits, key=lambda server: (server < own, self.based[server] > 0, self.free[server]))
            else:
                best = min(fits, key=self.free.__getitem__)
            self.free[best] -= gpus
            chosen.append(best)
        if chosen:
            self._settle(job)
            for server in chosen:
                job.flexible.append(server)
                self.flex[server].append(job)
            self.held += gpus * len(chosen)
            self._changed(job)

    # -- orders ---------------------------------------------------------------------------

    def _order(self) -> None:
        heapq.heappush(self.events, (self.now_s + ORDER_S, ORDER, 0, 0))
        hour = int(self.now_s // 3600)
        predicted = max(self.owner.predicted[h % 168] for h in (hour, int((self.now_s + ORDER_S) // 3600)))
        wanted = loan_order(self.owner.servers, self._needed(), 0, predicted, self.headroom)
        if wanted > len(self.loaned):
            first = len(self.own)
            away = {*self.loaned, *self.leaving}
            idle = [server for server in range(first, first + self.owner.servers) if server not in away]
            self.loaned = sorted(self.loaned + idle[: wanted - len(self.loaned)])
        elif wanted < len(self.loaned):
            self._reclaim(len(self.loaned) - wanted)

    def _reclaim(self, count: int) -> None:
        guests = self._guests()
        loaned = [str(server) for server in self.loaned]
        nodes = {
            "cost": lambda: by_cost(loaned, guests, count),
            "jobs": lambda: by_jobs(loaned, guests, count),
            "random": lambda: at_random(loaned, guests, count, self.rng),
        }[self.rules.reclaim]()
        found: Reclaim = outcome(nodes, guests)
        self.reclaims += 1
        self.gentle += not found.preempted
        self.preemptions += len(found.preempted)
        for name in found.preempted:
            self._preempt(self.jobs[int(name)])
        for node in map(int, found.nodes):
            while self.flex[node]:
                self._shrink(self.flex[node][-1], node)
            self.loaned.remove(node)
            self.leaving.append(node)
        heapq.heappush(self.events, (self.now_s + GRACE_S, RETURN, 0, 0))

    def _return(self) -> None:
        """The owner has what the last order took back."""
        self.leaving.clear()
        self._owner_waits()

    def _guests(self) -> list[Guest]:
        """Jobs by their base workers, and flexible workers server by server."""
        lent = set(self.loaned)
        found = []
        for number, job in self.running.items():
            if not lent.isdisjoint(job.bases):
                lost_s = max(0.0, self.now_s - job.from_s) % self.checkpoint_s
                servers = tuple(dict.fromkeys(map(str, job.bases)))
                found.append(Guest(str(number), servers, (self.restart_s + lost_s) * job.held))
            for server in set(job.flexible) & lent:
                found.append(Guest(f"{number}/{server}", (str(server),), 0.0, flexible=True))
        return found

    def _preempt(self, job: _Job) -> None:
        ran_s = max(0.0, self.now_s - job.from_s)
        self.lost -= max(0.0, job.from_s - self.now_s) * job.held
        if math.isinf(self.checkpoint_s):
            self.lost += ran_s * job.held + (job.job.run_s - job.left_s) * job.job.workers * job.job.gpus
            job.left_s = job.job.run_s
        else:
            again_s = ran_s % self.checkpoint_s
            self.lost += again_s * job.held
            job.left_s = max(0.0, job.left_s - (ran_s - again_s) * job.rate)
        self._leave(job)
        job.waits_s = self.now_s
        self._wait(job)

    def _figures(self) -> LoanFigures:
        self.owner_wait_s = max([self.owner_wait_s, *(self.now_s - since_s for since_s in self.short_s.values())])
        queue_s = sorted(job.waited_s for job in self.jobs)
        jct_s = sorted(self.ended_s[job.number] - job.job.arrival_s for job in self.jobs)
        at, n = math.ceil(0.95 * len(self.jobs)) - 1, len(self.jobs)
        servers = len(self.own) + self.owner.servers
        return LoanFigures(
            queue_s=sum(queue_s) / n, queue_p95_s=queue_s[at], jct_s=sum(jct_s) / n, jct_p95_s=jct_s[at],
            usage=self.busy / (self.until_s * servers * SERVER_GPUS), loaned=self.lent / self.until_s,
            preemptions=self.preemptions, reclaims=self.reclaims,
            scale_in=self.gentle / self.reclaims if self.reclaims else 1.0,
            owner_wait_s=self.owner_wait_s, lost_gpu_h=self.lost / 3600, changes=self.changes,
        )  # fmt: skip
