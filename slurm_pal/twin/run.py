# SPDX-License-Identifier: MIT
"""Replay a trace through the program: arrivals, the virtual Slurm, ticks and watchers on one virtual clock."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush, merge
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import PalError, UsageError
from slurm_pal.base.timing import Timing
from slurm_pal.decide.case import expected_run_s, settings_of
from slurm_pal.decide.facts import appends, requeue_delay_s
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import Journal, open_journal
from slurm_pal.loans.terms import preemption_of
from slurm_pal.publisher.publication import Publisher
from slurm_pal.simulate import levers, queues
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.policies import LEVERS, TICK
from slurm_pal.simulate.policies import named as policy_of
from slurm_pal.simulate.replay import Progress, ReplayPlan
from slurm_pal.simulate.result import Replay, Timeline
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.tick.deciding import FAILED_S
from slurm_pal.tick.lending import History, Site, lends
from slurm_pal.tick.ordering import orders
from slurm_pal.tick.role import COMMENT, FEATURES, LOANS, OTHERS, OWN, PLACES, WAIT, WEIGHTS, Role
from slurm_pal.tick.tick import Tick, TickResult
from slurm_pal.twin import outages
from slurm_pal.twin.client import Failing, VirtualClient, never
from slurm_pal.twin.lua_filter import LuaFilter
from slurm_pal.twin.outages import Outage
from slurm_pal.twin.site import own_environment, publish, relocated
from slurm_pal.twin.slurm_settings import slurm_settings
from slurm_pal.twin.slurm_side import SlurmSide
from slurm_pal.twin.submissions import Palsub, Plain
from slurm_pal.twin.virtual_site import named, nodes_of, partitions_of, room_of
from slurm_pal.twin.virtual_slurm import VirtualSlurm
from slurm_pal.twin.work import Work

START_S = 1_700_000_000.0
"""The trace begins then, Unix s."""
PUBLISH_S = 5.0
"""pal publish-table --every 5, as its unit has it."""
LOOK_S, CHUNK_S = 0.2, 1.0
"""As in pal-rebalance: between two looks at moves under way, and between two looks at all."""
LONGEST_QUIET_S = 3600.0
"""Scores age, and files are looked at: for longer no tick is left out."""
ROLE = Role("slurm-user", "slurm", frozenset({OWN, OTHERS, COMMENT, FEATURES, WEIGHTS, PLACES, WAIT, LOANS}), ())


class Arm(NamedTuple):
    """Which parts of the program take part."""

    submits: str  # "plain", "palsub" or "filter"
    ticks: bool = False


ARMS = {"slurm-twin": Arm("plain"), "palsub": Arm("palsub"), "filter": Arm("filter"), "tick": Arm("palsub", ticks=True)}


class Twin(NamedTuple):
    """What a twin is made of, beside the trace: a `simulate.program.Program`."""

    config: Config  # the site's pal.toml
    pairs: Mapping[str, str] = {}  # `scontrol show config`
    failing: Failing = never  # orders that Slurm refuses
    side: SlurmSide = SlurmSide()  # what it knows of nodes, partitions and users
    history: History | None = None  # what owners needed before the trace, where nodes are lent

    def check(self, policies: Iterable[str], queue: str, settings: ReplaySettings) -> None:
        """Raises UsageError for what Slurm or the program does not have."""
        for name in policies:
            arm_of(name)
            for bad, what in (
                (queue not in QUEUES, f"queue {queue!r}: Slurm has {' and '.join(QUEUES)}"),
                (settings.best_first, "--best-first: Slurm hands out the lowest index"),
                (settings.steer != "start", f"--steer {settings.steer}: policy palsub is that"),
            ):
                if bad:
                    raise UsageError(
                        f"policy {name!r} runs the program: {what}; a study may have it (--policy, --list)"
                    )

    def levers(self, policy: str) -> frozenset[str]:
        """What a policy does to the queue, of `policies.LEVERS`."""
        config = self._config(policy)
        return frozenset(name for name, key in LEVERS.items() if arm_of(policy).ticks and levers.is_on(config, key))

    def charged(self, policy: str, settings: ReplaySettings) -> dict[str, str]:
        """What a replay under it charges and assumes otherwise than a study: name -> value with its unit."""
        config, slurm, arm = self._config(policy), slurm_settings(self.pairs), arm_of(policy)
        found = {
            "move": "none: nothing moves",
            "slow GPUs": f"believed slower than {config.number('placement', 'barred_slowdown'):g}: as pal.toml says",
            "backfill": f"Slurm's, every {slurm.bf_interval_s:g} s" if slurm.backfill else "none",
            "steering": "none" if arm.submits == "plain" else f"at submission, by {arm.submits}",
            "GPUs of a node": "lowest index first",
        }
        if arm.ticks:
            interval_s, margin = config.number("rebalance", "interval_s"), config.number("rebalance", "margin")
            found["steering"] += f", and every {interval_s:g} s by the tick"
            found["levers"] = ", ".join(
                f"{name} = {str(config[levers.SECTION, name]).lower()}" for name in levers.LEVERS
            )
            if config.flag("rebalance", "moves"):
                found["move"] = f"{settings.move_cost_s:g} s and Slurm's gap, if the gain is above {margin:g} x that"
        return found

    def run(self, plan: ReplayPlan, progress: Progress | None = None) -> Replay:
        """Replay a trace by the arm that the policy names, with its levers but those that the plan leaves out."""
        config = levers.without(self._config(plan.policy), (LEVERS[name] for name in plan.without))
        pairs = {**QUEUES[plan.queue], **self.pairs}
        return replay(plan, self._replace(config=config, pairs=pairs), arm_of(plan.policy), progress)

    def _config(self, policy: str) -> Config:
        return levers.with_settings(self.config, policy_of(policy).settings, f"policy {policy}")


def arm_of(policy: str) -> Arm:
    """Raises UsageError for a policy that is no program's."""
    name = TICK if levers.has_levers(policy) and policy_of(policy) else policy
    if name not in ARMS:
        raise UsageError(f"policy {policy!r} is not one of {', '.join(ARMS)}")
    return ARMS[name]


QUEUES: Mapping[str, Mapping[str, str]] = {
    "fifo": {},
    "multifactor": {
        "PriorityType": "priority/multifactor", "PriorityWeightAge": str(round(queues.WEIGHTS["age"])),
        "PriorityWeightFairShare": str(round(queues.WEIGHTS["fairshare"])),
        "PriorityWeightJobSize": str(round(queues.WEIGHTS["size"])),
    },
}  # fmt: skip
"""The simulator's queues that Slurm has, as slurm.conf says them; a site's own settings come before them."""


def replay(plan: ReplayPlan, twin: Twin, arm: Arm, progress: Progress | None = None) -> Replay:
    """Run the trace. Raises UsageError for a job that the cluster cannot hold."""
    with _ended_by_sigterm(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pal-twin-", dir=_fast()))
        stack.enter_context(own_environment(folder))
        return _Run(plan, twin, arm, folder, stack).result(progress)


def longest_s(plan: ReplayPlan) -> dict[str, float]:
    """Partition -> the longest limit of a job of the trace, all of which did run."""
    found: dict[str, float] = {}
    for job in plan.trace.jobs:
        limit_s = ReplayJob(job, 0, plan.settings, True).limit_s
        if math.isfinite(limit_s):
            found[job.partition] = max(limit_s, found.get(job.partition, 0.0))
    return found


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: its folder goes, and so does the filter's process.

    Only the first one counts: a broken pool of processes sends another, which would interrupt the clearing up. A
    handler that the caller has set stays; outside the main thread Python has none.
    """

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if mine:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _fast() -> str | None:
    """In memory where that is possible: the journal writes through at each step."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _stands(lease: TickLease) -> bool:
    """Whether a tick that keeps it only puts off when it ends: no time counts while the job has not had its turn."""
    return lease.kind is LeaseKind.EXCLUDE


class _Run:
    def __init__(self, plan: ReplayPlan, twin: Twin, arm: Arm, folder: str, stack: contextlib.ExitStack) -> None:
        self._plan, self._arm, self._stack, self._history = plan, arm, stack, twin.history
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        machine, settings = named(plan.hardware), slurm_settings(twin.pairs)
        side, failures = twin.side, plan.settings.failures
        self._work = Work(
            machine.true, plan.hardware.names, START_S, plan.settings.warmup_s, settings.launch_s, self._later,
            plan.settings.checkpoint_s if failures is None else failures.checkpoint_s,
        )  # fmt: skip
        self.slurm = self._work.slurm = VirtualSlurm(
            room_of(machine, side), partitions_of(machine, side, longest_s(plan)), self._work, settings, START_S,
            nodes_of(side), side,
        )  # fmt: skip
        self._outages = merge(
            sorted(side.outages, key=lambda one: one.down_s),
            outages.drawn(failures, plan.hardware.names, plan.seed) if failures else (), key=lambda one: one.down_s,
        )  # fmt: skip
        self._slurm_names = dict(zip(plan.hardware.names, machine.names, strict=True))
        if unknown := [one.node for one in side.outages if one.node not in self._slurm_names]:
            first, last = plan.hardware.names[0], plan.hardware.names[-1]
            raise UsageError(f"failures: node {unknown[0]!r} is not one of the cluster's ({first} to {last})")
        scripts: dict[int, str] = {}
        if arm.submits == "filter":
            lua = LuaFilter(folder, self.slurm.partitions, scripts)
            stack.callback(lua.close)
            self.slurm.job_submit = lua
        self._client = VirtualClient(self.slurm, twin.pairs, twin.failing)
        self._config = relocated(twin.config, folder)
        publish(self._config, machine, START_S)
        self._journal: Journal | None = None
        self._tick = self._ticker(folder, stack) if arm.ticks else None
        self._interval_s = self._config.number("rebalance", "interval_s")
        self._palsub = Palsub(self._config, self._client, self._now, watched=not arm.ticks, side=side)
        self._plain = Plain(self._client, scripts if arm.submits == "filter" else None, side)
        self._publisher = None
        if arm.submits == "filter" and not arm.ticks:
            self._publisher = Publisher(self._config, self._client, True, PUBLISH_S)
        self._published_s = -math.inf
        self._arrivals = self._all_jobs()
        self._timeline: list[tuple[float, int, int]] = []
        self._watching = self._skipped = False
        self._quiet_at, self._quiet_until_s = -1, 0.0
        self._standing: tuple[TickLease, ...] = ()  # of the last tick, where the next can only decide the same
        # Rules that draw by the clock, and partitions, whose shares follow it, see something new each time.
        words = (self._config.text("placement", "policy") == "random", self._config.text("rebalance", "allocation"))
        self._timed = any(words)
        self.trouble: dict[str, int] = {}

    def _now(self) -> float:
        return self.slurm.now_s

    def _ticker(self, folder: str, stack: contextlib.ExitStack) -> Tick:
        config, client = self._config, self._client
        writes = self._arm.submits == "filter"
        publisher = Publisher(config, client, True, config.number("rebalance", "interval_s"), writes=writes)
        self._journal = journal = stack.enter_context(open_journal(os.path.join(folder, "rebalance.db")))
        log = EventLog(os.path.join(folder, "rebalance.log"), echo=False)
        stack.callback(log.close)
        return Tick(
            config, client, client, journal, ROLE, publisher, log, act=True, appends=appends(client.config()),
            timing=Timing(self._now, self._sleep), site=Site(preemption_of(client.config()), self._history),
            requeue_delay_s=requeue_delay_s(client.config()),
        )  # fmt: skip

    # -- time ------------------------------------------------------------------------------------

    def _later(self, at_s: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (at_s, self._sequence, what))

    def _sleep(self, pause_s: float) -> None:
        """A process waits: Slurm goes on meanwhile."""
        self.slurm.advance(self.slurm.now_s + pause_s)

    def result(self, progress: Progress | None) -> Replay:
        total, work, complete = len(self._plan.trace.jobs), self._work, True
        self._next_arrival()
        self._next_outage()
        if self._tick is not None:
            self._later(START_S, self._tick_now)
        reported = -1
        while len(work.outcomes) < total:
            at_s = min(self.slurm.next_s, self._events[0][0] if self._events else math.inf)
            if at_s == math.inf or (self._tick is None and self._stuck()):
                raise UsageError(f"{len(self.slurm.pending)} pending jobs can never start on this cluster")
            self.slurm.advance(at_s)
            while self._events and self._events[0][0] <= self.slurm.now_s:
                heappop(self._events)[2]()
            state = work.busy, len(self.slurm.pending)
            if not self._timeline or self._timeline[-1][1:] != state:
                self._timeline.append((self.slurm.now_s - START_S, *state))
            if progress is not None and len(work.outcomes) != reported:
                reported = len(work.outcomes)
                if not progress(reported, total):
                    complete = False
                    break
        columns = list(zip(*self._timeline, strict=True)) or [(), (), ()]
        end_s = self.slurm.now_s - START_S
        for job in self.slurm.active.values():
            own = work.jobs[job.job_id]
            if job.state == "RUNNING":
                work.gpu_s += own.advance(end_s)
        return Replay(
            policy=self._plan.policy, queue=self._plan.queue, seed=self._plan.seed, n_gpus=self._plan.hardware.n_gpus,
            outcomes=tuple(work.outcomes), timeline=Timeline(*columns), gpu_s=work.gpu_s, moves=work.moves,
            move_gpu_s=work.move_gpu_s, end_s=end_s, complete=complete, trace=self._plan.number,
            lost_gpu_s=math.fsum(work.lost.values()),
        )  # fmt: skip

    def _stuck(self) -> bool:
        return not self._events and not self.slurm.active and self.slurm.next_s == math.inf

    # -- nodes that fail -------------------------------------------------------------------------

    def _next_outage(self) -> None:
        outage = next(self._outages, None)
        if outage is not None:
            self._later(START_S + outage.down_s, lambda: self._fail(outage))

    def _fail(self, outage: Outage) -> None:
        name = self._slurm_names[outage.node]
        self.slurm.node_fails(name)
        self._later(START_S + outage.up_s, lambda: self.slurm.node_returns(name))
        self._next_outage()

    # -- arrivals --------------------------------------------------------------------------------

    def _all_jobs(self) -> Iterator[ReplayJob]:
        background = self._plan.background() if self._plan.background else iter(())
        jobs = ((job, True) for job in self._plan.trace.jobs)
        others = ((job, False) for job in background)
        for number, (job, reported) in enumerate(merge(jobs, others, key=lambda pair: pair[0].submit_s)):
            yield ReplayJob(job, number, self._plan.settings, reported)

    def _next_arrival(self) -> None:
        job = next(self._arrivals, None)
        if job is not None:
            at_s = START_S + job.submit_s
            self._publish_at(at_s)
            self._later(at_s, lambda: self._arrive(job))

    def _arrive(self, job: ReplayJob) -> None:
        now_s = self.slurm.now_s
        if self._tick is not None:
            self._tick.alive(now_s)
        way: Plain | Palsub = self._palsub if self._arm.submits == "palsub" else self._plain
        job_id = way.submit(job, now_s)
        self._work.jobs[job_id] = job
        if way is self._palsub and not self._watching:
            self._watch()
        self._next_arrival()

    def _watch(self) -> None:
        """The user's watcher looks, and looks again as long as there are leases."""
        after_s = self._palsub.watch_s(self.slurm.now_s)
        self._watching = after_s < math.inf
        if self._watching:
            self._later(self.slurm.now_s + after_s, self._watch)

    # -- the publisher, where no tick is one ----------------------------------------------------

    def _publish_at(self, at_s: float) -> None:
        """The last publication that is not later than that. Those between, which nobody reads and in which no lease is
        taken back, are left out."""
        due_s = PUBLISH_S * (at_s // PUBLISH_S)
        if self._publisher is not None and due_s > self._published_s:
            self._published_s = due_s
            self._later(max(due_s, self.slurm.now_s), self._publish)

    def _publish(self) -> None:
        publisher, now_s = self._publisher, self.slurm.now_s
        assert publisher is not None
        try:
            lines: tuple[str, ...] = publisher.publish(now_s).trouble
        except PalError as error:
            lines = (str(error),)
        for line in lines:
            self.trouble[line] = self.trouble.get(line, 0) + 1
        if any(in_force(self.slurm.show(job)) for job in self.slurm.pending.values() if job.admin_comment):
            self._publish_at(now_s + PUBLISH_S)

    # -- ticks -----------------------------------------------------------------------------------

    def _tick_now(self) -> None:
        tick = self._tick
        assert tick is not None
        started_s = self.slurm.now_s
        next_s = started_s + self._interval_s
        if self.slurm.changes == self._quiet_at and started_s < self._quiet_until_s:
            # Nothing can change before the next event, so that ticks up to it are all left out.
            event_s = min(self.slurm.next_s, self._events[0][0] if self._events else math.inf, self._quiet_until_s)
            while next_s < event_s:
                next_s += self._interval_s
            self._later(next_s, self._tick_now)
            self._skipped = True
            return
        if self._skipped:
            self._catch_up(started_s - self._interval_s)
        self._skipped, self._quiet_at = False, -1
        try:
            seen = tick.run(started_s)
            for line in seen.trouble:
                self.trouble[line] = self.trouble.get(line, 0) + 1
            if self._quiet(seen):
                self._quiet_at, self._quiet_until_s = self.slurm.changes, self._prospect_s(started_s)
                self._standing = tuple(wish.lease for wish in seen.decided.wishes if wish.lease is not None)
        except PalError as error:
            tick.failed()
            self.trouble[str(error)] = self.trouble.get(str(error), 0) + 1
        next_s = max(next_s, self.slurm.now_s)
        self._later(next_s, self._tick_now)
        self._advance(next_s)

    def _catch_up(self, last_s: float) -> None:
        """Journal what the ticks that were left out, up to the one at `last_s`, would have journalled."""
        journal = self._journal
        assert journal is not None
        with journal.together():
            for lease in self._standing:
                journal.lease(lease._replace(until_s=lease.until_s + last_s - journal.last_tick_s()))
            journal.ticked(last_s)

    def _quiet(self, seen: TickResult) -> bool:
        """Whether the next tick can only decide the same, to leave all as it is, unless something changes or a moment
        comes."""
        plan, journal = seen.decided.plan, self._journal
        if self.slurm.pending and orders(self._config):  # others overtake, and time counts
            return False
        if lends(self._config):  # each order about loans has its time
            return False
        if journal is None or self._timed or seen.trouble or seen.orders or seen.moving or (plan and plan.moves):
            return False
        wishes = seen.decided.wishes
        if any(wish.fields or wish.could_start or (wish.lease and not _stands(wish.lease)) for wish in wishes):
            return False
        standing, pending = {wish.job_id for wish in wishes if wish.lease}, self.slurm.pending
        return all(
            lease.job_id not in pending or (_stands(lease) and lease.job_id in standing)
            for lease in journal.every_lease()
        )

    def _prospect_s(self, now_s: float) -> float:
        """When time alone may make a move pay: a job has run long enough, or for longer than was expected of it, or
        a move that failed is forgotten.

        What is left to run, and with it the gain of a move, else only shrinks.
        """
        settings, minimum_s = settings_of(self._config), self._config.number("rebalance", "minimum_s")
        moments = [now_s + LONGEST_QUIET_S]
        since_s = now_s - LONGEST_QUIET_S - max(FAILED_S, minimum_s)
        for move in self._journal.moves(since_s) if self._journal is not None else ():
            moments += [move.made_s + FAILED_S, move.ended_s + minimum_s]
        for job in self.slurm.active.values():
            moments += [job.start_s + minimum_s, job.start_s + expected_run_s(job.limit_s, settings)]
        return min(moment for moment in moments if moment > now_s)

    def _advance(self, until_s: float) -> None:
        """Between two ticks, as pal-rebalance does: moves under way, and lists that have just been set."""
        tick, now_s = self._tick, self.slurm.now_s
        assert tick is not None
        if now_s >= until_s:
            return
        try:
            moving = tick.advance(now_s)
        except PalError as error:
            moving = True
            self.trouble[str(error)] = self.trouble.get(str(error), 0) + 1
        due_s = math.inf
        if moving:
            due_s = now_s + LOOK_S
        elif tick.look_s < math.inf:
            due_s = now_s + CHUNK_S * max(1, math.ceil((tick.look_s - now_s) / CHUNK_S))
        if due_s < until_s:
            self._later(due_s, lambda: self._advance(until_s))
