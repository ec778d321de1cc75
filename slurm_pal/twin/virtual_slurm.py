# SPDX-License-Identifier: MIT
"""The virtual slurmctld: nodes, queue and scheduler as a state machine with a clock of its own.

It keeps the rules that slurm-pal depends on (docs/slurm.md): lowest free GPU index first, the smallest run of
fitting neighbours, hard node lists, Reason=Resources for what does not fit, a main pass in the order of priorities
that stops at the first blocked job of a partition, backfill that plans all jobs, requeued jobs that complete first and
then wait for a delay, jobs of lower tiers that are stopped for those of higher ones. What a job does while it runs is
its payload's, who also says when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.candidates import counted
from slurm_pal.decide.constraint import compile_constraint
from slurm_pal.decide.request import Request
from slurm_pal.slurm.states import NODE_UNUSABLE
from slurm_pal.twin import preemption
from slurm_pal.twin.backfill import BackfillPlan, Kept
from slurm_pal.twin.factors import Factors
from slurm_pal.twin.fair_share import FairShare
from slurm_pal.twin.picks import Asking, Picker
from slurm_pal.twin.priority import Priorities
from slurm_pal.twin.room import Hardware, Take, empty
from slurm_pal.twin.slurm_settings import SlurmSettings
from slurm_pal.twin.slurm_side import NOTHING_KNOWN, SlurmSide
from slurm_pal.twin.virtual_job import BEGIN, HELD_ADMIN, UNLIMITED_S, VirtualJob, names_text, noun_of

NODE_FAIL, PREEMPTED, REQUEUED = "NODE_FAIL", "PREEMPTED", "REQUEUED"
FINISH, COMPLETE, ELIGIBLE, RESERVATION, GRACE, AGAIN, PASS, BACKFILL, PRIORITY = range(9)
"""Events of the same moment happen in this order."""
SWEEP_S = 30.0
"""So often slurmctld looks whether a limit or a grace time is over."""
LOOK_S, AFTER_BACKFILL_S = 1.0, 0.02
"""slurmctld looks for submissions once a second, as its backfill does, which is a little earlier (22.05, measured). Who
is first decides how many jobs are stopped."""


class Payload(Protocol):
    """What jobs do while they run."""

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        """The job has started on `job.takes`; when it will end, and its state then."""
        ...

    def stopped(self, job: VirtualJob, now_s: float, state: str) -> None:
        """Its run has ended in this state; "PENDING": it was requeued; NODE_FAIL: its node has failed, and where
        `job.state` is then RUNNING still, it starts again; REQUEUED: Slurm has stopped it for another job, and it
        starts again."""
        ...

    def signalled(self, job: VirtualJob, name: str, now_s: float) -> None:
        """Its batch shell got a signal."""
        ...


class Submission(NamedTuple):
    """One submission as sbatch hands it over."""

    options: Mapping[str, str]
    request: Request
    user: str
    account: str = ""


Filter = Callable[[VirtualJob, float], None]
"""What job_submit may change of a new job."""


class VirtualNode:
    """What may change of a node, beside what is free."""

    __slots__ = ("available", "features", "jobs", "noun", "planned", "reason", "states", "weight")

    def __init__(self, features: Sequence[str] = (), weight: int = 1) -> None:
        self.features, self.available = frozenset(features), tuple(features)
        self.weight, self.jobs, self.planned = weight, 0, False
        self.states: frozenset[str] = frozenset()  # DOWN, DRAIN and the like
        self.reason = ""
        self.noun: Node | None = None


class VirtualSlurm:
    """One cluster. `advance` lets time pass; nothing else does."""

    def __init__(
        self, hardware: Hardware, partitions: Sequence[Partition], payload: Payload, settings: SlurmSettings,
        now_s: float, nodes: Sequence[VirtualNode] = (), side: SlurmSide = NOTHING_KNOWN,
    ) -> None:  # fmt: skip
        self.hardware, self.settings = hardware, settings
        self.now_s = now_s
        self.jobs: dict[int, VirtualJob] = {}  # all that slurmctld knows
        self.pending: dict[int, VirtualJob] = {}
        self.active: dict[int, VirtualJob] = {}  # running or completing
        self.virtual_nodes = [*nodes] or [VirtualNode() for _ in hardware.names]
        self.position = {name: place for place, name in enumerate(hardware.names)}
        self.room = empty(hardware)
        self._reserved: dict[str, Kept] = {}  # reservations that no job may use, by name
        self.changes = 0  # of what is shown of jobs and nodes
        self._payload = payload
        self.job_submit: Filter | None = None
        ranks = settings.priority
        self._side = side
        self._priorities = Priorities(
            ranks, Factors(ranks, hardware, partitions, side.qos),
            FairShare(side.associations, ranks.half_life_s, tree=ranks.fair_tree, dampening=ranks.dampening),
        )  # fmt: skip
        self._picker = Picker(hardware, [node.weight for node in self.virtual_nodes])
        self._within = {p.name: tuple(self.position[name] for name in p.nodes) for p in partitions}
        self._named = {p.name: p for p in partitions}
        self._events: list[tuple[float, int, int, int]] = []  # moment, kind, job, edition
        self._last_job, self._pass_s, self._last_pass_s = 0, float("inf"), now_s - settings.batch_sched_delay_s
        self._changed = True  # since the last backfill
        self._origin_s = now_s
        self._updated = set[str]()  # partitions that have other nodes than in the beginning
        self._ends: dict[int, tuple[float, str]] = {}  # when the run of a job ends, and its state then
        self._ended: list[tuple[float, int]] = []
        if settings.backfill:
            heappush(self._events, (now_s + settings.bf_interval_s, BACKFILL, 0, 0))
        if settings.priority.multifactor:
            heappush(self._events, (now_s + settings.priority.calc_period_s, PRIORITY, 0, 0))

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """As they are now."""
        return tuple(self._named.values())

    # -- time ------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When the next thing happens by itself; backfill and priorities count only where a job waits."""
        return min((event[0] for event in self._events if event[1] < BACKFILL or self.pending), default=float("inf"))

    def advance(self, to_s: float) -> None:
        """Let everything happen up to a moment, which is then now."""
        while self._events and self._events[0][0] <= to_s:
            at_s, kind, job_id, edition = heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            self._happen(kind, job_id, edition, to_s)
        self.now_s = max(self.now_s, to_s)

    def _happen(self, kind: int, job_id: int, edition: int, to_s: float) -> None:
        settings = self.settings
        if kind == PASS:
            if self.now_s >= self._pass_s:
                self._main_pass()
        elif kind == RESERVATION:
            self._end_reservations()
        elif kind == GRACE:
            for leaving in [one for one in self.active.values() if one.preempted_s and one.state == "RUNNING"]:
                self._leave(leaving)
        elif kind == AGAIN:
            wait_s = (self._origin_s - self.now_s) % settings.sched_interval_s
            self._soon(wait_s or settings.sched_interval_s)
        elif kind == BACKFILL:
            again_s = self.now_s + settings.bf_interval_s
            if not self.pending:  # with nobody to look at, only the last cycle before anything else happens counts
                event_s = min(to_s, self._events[0][0] if self._events else to_s)
                while again_s < event_s:
                    self.now_s, again_s = again_s, again_s + settings.bf_interval_s
            heappush(self._events, (again_s, BACKFILL, 0, 0))
            self._backfill()
            self._forget()
        elif kind == PRIORITY:
            heappush(self._events, (self.now_s + settings.priority.calc_period_s, PRIORITY, 0, 0))
            for running in self.active.values():
                self._used(running)
            self._priorities.look()
            self._priorities.set_all(self.pending.values(), self.now_s)
            self._changed = True
        else:
            job = self.jobs.get(job_id)
            if job is None or job.edition != edition:
                return
            if kind == FINISH:
                self._finish(job, self._ends[job_id][1])
            elif kind == COMPLETE:
                self._completed(job)
            elif job.state == "PENDING":
                self._begin_time_over(job)

    def _soon(self, after_s: float = 0.0) -> None:
        """Let the main pass come: at once after an end, for submissions and changes at most so often."""
        self._changed = True
        self.changes += 1
        at_s = self.now_s + after_s
        if after_s:
            at_s = max(at_s, self._last_pass_s + self.settings.batch_sched_delay_s)
            if self.settings.preempt.by_tier:
                looks = -(-(at_s - after_s - self._origin_s) // LOOK_S)
                at_s = self._origin_s + looks * LOOK_S + AFTER_BACKFILL_S
        if at_s < self._pass_s:
            self._pass_s = at_s
            heappush(self._events, (at_s, PASS, 0, 0))

    # -- jobs ------------------------------------------------------------------------------------

    def submit(self, order: Submission) -> int:
        """A new job; its id. Raises SlurmError for one that sbatch would refuse."""
        names = order.request.partitions or tuple(p.name for p in self._named.values() if p.default)
        if not names or not set(names) <= self._named.keys():
            raise SlurmError(f"sbatch: error: invalid partition specified: {','.join(order.request.partitions)}")
        limits = [self._named[name] for name in names]
        limit_s: float | None = order.request.time_limit_s
        if limit_s is None:
            limit_s = next((p.default_time_s or p.max_time_s for p in limits if p.default_time_s or p.max_time_s), None)
        self._last_job += 1
        job = VirtualJob(
            self._last_job, order.options, order.request, names, order.user, order.account, self.now_s, limit_s
        )
        job.requeues = job.requeues and (self.settings.job_requeue or "requeue" in order.options)
        if self.job_submit is not None:
            self.job_submit(job, self.now_s)
        ever = empty(self.hardware)
        try:
            fits = any(self._too_wide(job, name) or self._picker.pick(ever, self.wanted(job, name)) for name in names)
        except KeyError as error:
            raise SlurmError(f"sbatch: error: Invalid node name specified: {error.args[0]}") from None
        if not fits:
            raise SlurmError("sbatch: error: Requested node configuration is not available")
        self.jobs[job.job_id] = self.pending[job.job_id] = job
        self._priorities.first(job)
        self._priorities.set_all([job], self.now_s)
        if "hold" in order.options:
            job.held, job.reason = True, "JobHeldUser"
        self._soon(self.settings.submit_pass_s)
        return job.job_id

    def ends(self, job: VirtualJob, at_s: float, state: str) -> None:
        """A running job will end then, not when it said before."""
        job.edition += 1
        self._ends[job.job_id] = at_s, state
        heappush(self._events, (max(at_s, self.now_s), FINISH, job.job_id, job.edition))

    def wanted(self, job: VirtualJob, partition: str) -> Asking:
        """What the job wants in one of its partitions. Raises KeyError for a node that is not there."""
        found: Asking | None = job.wanted.get(partition)
        if found is None:
            found = job.wanted[partition] = self._wanted(job, partition)
        return found

    def _wanted(self, job: VirtualJob, partition: str) -> Asking:
        barred = {self.position[name] for name in job.exc_nodes}
        required = tuple(sorted(self.position[name] for name in job.req_nodes))
        rows = self._with_features(self._within[partition], job.features)
        rows = tuple(row for row in rows if row not in barred)
        preferred = None
        if job.prefer:
            preferred = frozenset(self._with_features(rows, job.prefer))
        return Asking(counted(job.request, (self._named[partition],)), rows, required, preferred)

    def _with_features(self, rows: Sequence[int], text: str) -> tuple[int, ...]:
        suits = compile_constraint(text) if text else None
        return tuple(row for row in rows if suits is None or suits(self.virtual_nodes[row].features))

    def _start(self, job: VirtualJob, partition: str, takes: Sequence[Take]) -> None:
        self.room.take(takes)
        job.takes, job.running_in = tuple(takes), partition
        job.state, job.reason, job.start_s = "RUNNING", "None", self.now_s
        job.billed_s, job.preempts_s = self.now_s, 0.0
        job.end_s = self.now_s + (UNLIMITED_S if job.limit_s is None else job.limit_s)
        del self.pending[job.job_id]
        self.active[job.job_id] = job
        self._on_nodes(takes, 1)
        job.changed()
        self.ends(job, *self._payload.started(job, self.now_s))

    def _on_nodes(self, takes: Sequence[Take], jobs: int) -> None:
        self.changes += 1
        for take in takes:
            node = self.virtual_nodes[take.node]
            node.jobs += jobs
            node.noun = None
            node.planned = node.planned and not node.jobs

    def _finish(self, job: VirtualJob, state: str) -> None:
        self._payload.stopped(job, self.now_s, state)
        self._complete(job, state, self.settings.complete_s)

    def _complete(self, job: VirtualJob, then: str, after_s: float) -> None:
        self._used(job)
        self.changes += 1
        job.state, job.end_s = "COMPLETING", self.now_s
        job.edition += 1
        self._ends[job.job_id] = self.now_s, then
        job.changed()
        heappush(self._events, (self.now_s + after_s, COMPLETE, job.job_id, job.edition))

    def _used(self, job: VirtualJob) -> None:
        if job.state == "RUNNING":
            bill = self._side.bill(job.running_in, job.takes)
            self._priorities.used(job, bill * (self.now_s - job.billed_s))
            job.billed_s = self.now_s

    def _completed(self, job: VirtualJob) -> None:
        self.room.give(job.takes)
        self._on_nodes(job.takes, -1)
        job.had_nodes, job.takes, job.running_in, job.preempted_s = len(job.takes), (), "", 0.0
        job.state = self._ends.pop(job.job_id)[1]
        del self.active[job.job_id]
        job.changed()
        if job.state == "PENDING":
            self.pending[job.job_id] = job
            job.start_s = job.end_s = 0.0
            job.begin_s = job.eligible_s = self.now_s + self.settings.requeue_delay_s
            job.reason = BEGIN
            heappush(self._events, (job.begin_s, ELIGIBLE, job.job_id, job.edition))
        else:
            self._ended.append((self.now_s, job.job_id))
            self._forget()
        self._soon()

    def _forget(self) -> None:
        while self._ended and self._ended[0][0] < self.now_s - self.settings.min_job_age_s:
            self.jobs.pop(self._ended.pop(0)[1], None)

    def _begin_time_over(self, job: VirtualJob) -> None:
        if self.now_s >= job.begin_s and job.reason == BEGIN:
            job.reason = "None"
            job.noun = None
            self._soon(self.settings.submit_pass_s)

    # -- the scheduler ---------------------------------------------------------------------------

    def _queue(self) -> list[tuple[VirtualJob, str]]:
        """(job, partition) that may start now, by priority."""
        ready = [
            job
            for job in self.pending.values()
            if not job.held and job.begin_s <= self.now_s and "dependency" not in job.options
        ]
        found = [(job, name) for job in ready for name in job.partitions if self._takes(job, name)]
        rank = self._priorities.in_partition
        found.sort(key=lambda pair: (-self._named[pair[1]].tier, -rank(*pair), pair[0].job_id))
        return found

    def _takes(self, job: VirtualJob, name: str) -> bool:
        """Whether a partition starts the job at all."""
        partition = self._named[name]
        if self._too_wide(job, name):
            if len(job.partitions) == 1:
                self._waits(job, "PartitionNodeLimit" if partition.nodes else "PartitionConfig")
            return False
        if not partition.up:
            if len(job.partitions) == 1:
                self._waits(job, "PartitionDown")
            return False
        most_s = partition.max_time_s
        if most_s is None or (job.limit_s is not None and job.limit_s <= most_s):
            return True
        if len(job.partitions) == 1:
            self._waits(job, "PartitionTimeLimit")
        return False

    def _open(self) -> frozenset[int] | None:
        """Nodes that start jobs; None: all."""
        closed = {row for row, node in enumerate(self.virtual_nodes) if node.states & NODE_UNUSABLE}
        return frozenset(range(len(self.virtual_nodes))) - closed if closed else None

    def _main_pass(self) -> None:
        """Start jobs by priority; a blocked one blocks its partition, or, with all its nodes named, only these."""
        self._pass_s, self._last_pass_s = float("inf"), self.now_s
        opened = among = self._open()
        failed = set[str]()
        for job, partition in self._queue():
            if job.state != "PENDING":
                continue
            if partition in failed:
                self._waits(job, "Priority")
                continue
            wanted = self.wanted(job, partition)
            takes = self._picker.pick(self.room, wanted, self._beside_reservations(job, among))
            if takes is not None:
                self._start(job, partition, takes)
                continue
            if partition in self._updated and self._never(job, wanted):
                continue
            if opened is not None and (why := self._unavailable(wanted, opened)):
                self._waits(job, why)
                continue
            self._waits(job, "Resources")
            self._preempt(job, self._candidates(partition), wanted, self._beside_reservations(job, among))
            among = among if among is not None else frozenset(range(len(self.virtual_nodes)))
            if wanted.required and len(wanted.required) >= wanted.least_nodes:
                among -= frozenset(wanted.required)
            else:
                failed.add(partition)
                among -= frozenset(self._within[partition])

    def _too_wide(self, job: VirtualJob, name: str) -> bool:
        """Whether the job needs more nodes than the partition has, but not more than there are."""
        shape = job.request.shape
        least = (shape.nodes if shape is not None else None) or job.request.nodes_min
        return len(self._within[name]) < least <= len(self.virtual_nodes)

    def _never(self, job: VirtualJob, wanted: Asking) -> bool:
        """Hold a job that its partition, with the nodes that it has now, could never start, as slurmctld does.

        Nodes that come back do not release it.
        """
        if len(job.partitions) > 1 or self._picker.pick(empty(self.hardware), wanted) is not None:
            return False
        job.held = True
        self._waits(job, "BadConstraints")
        return True

    def _unavailable(self, wanted: Asking, opened: frozenset[int]) -> str:
        """Why a job cannot start on the nodes that start jobs, however empty; it then blocks nobody. "": it can."""
        closed = [row for row in wanted.required if row not in opened]
        if closed:
            return f"ReqNodeNotAvail,_UnavailableNodes:{names_text([self.hardware.names[row] for row in closed])}"
        if self._picker.pick(empty(self.hardware), wanted, opened) is None:
            return "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
        return ""

    def _beside_reservations(self, job: VirtualJob, among: Collection[int] | None) -> Collection[int] | None:
        """Of these nodes those on which the job, by its limit, would end before a reservation begins."""
        limit_s = UNLIMITED_S if job.limit_s is None else job.limit_s
        barred = [one.nodes for one in self._reserved.values() if one.start_s < self.now_s + limit_s]
        if not barred:
            return among
        left = frozenset(range(len(self.virtual_nodes)) if among is None else among)
        return left.difference(*barred)

    def _waits(self, job: VirtualJob, reason: str) -> None:
        if job.reason != reason:
            job.reason = reason
            job.noun = None
            self.changes += 1

    def _backfill(self) -> None:
        """One cycle. Where nothing has changed since the last, which started nothing, neither would this one."""
        if not self.pending or not self._changed:
            return
        self._changed = False
        settings, opened = self.settings, self._open()
        ends = [
            (job.end_s if job.state == "RUNNING" else self.now_s, job.job_id, job.takes) for job in self.active.values()
        ]
        plan = BackfillPlan(
            self._picker, self.room, ends, self.now_s, settings.bf_resolution_s, settings.bf_window_s,
            self._reserved.values(),
        )  # fmt: skip
        for job, partition in self._queue()[: settings.bf_max_job_test]:
            if job.state != "PENDING":
                continue
            wanted = self.wanted(job, partition)
            if opened is not None:
                wanted = wanted._replace(rows=tuple(row for row in wanted.rows if row in opened))
            limit_s = UNLIMITED_S if job.limit_s is None else job.limit_s
            lower = self._candidates(partition)
            found = plan.soon(wanted, limit_s) if lower else None
            if lower and found is None:
                among = plan.among(wanted, limit_s)
                found = plan.plan(wanted, limit_s, frozenset(one.job_id for one in lower))
                if found is not None and found.start_s <= self.now_s:
                    # As seen on 22.05 it keeps what it would get if all were gone, not what those that leave give it.
                    for one in self._preempt(job, lower, wanted, among):
                        plan.stopped(one.job_id)
                    self._changed = True
                    continue
            elif found is None:
                found = plan.plan(wanted, limit_s)
            if found is not None and found.start_s <= self.now_s:
                self._start(job, partition, found.takes)
                plan.started(job.job_id, found.takes, job.end_s)
                self._changed = True
            elif (found.start_s if found is not None else 0.0) != job.start_s:
                job.start_s = found.start_s if found is not None else 0.0
                job.noun = None
                self.changes += 1
        for row, node in enumerate(self.virtual_nodes):
            planned = row in plan.nodes and not node.jobs
            if planned != node.planned:
                node.planned, node.noun = planned, None
                self.changes += 1

    # -- jobs that make room ---------------------------------------------------------------------

    def _tier_of(self, job: VirtualJob) -> int | None:
        """The tier of a running job; None where nobody may stop it."""
        partition = self._named[job.running_in]
        stops = preemption.mode_of(partition, self.settings.preempt.mode) in preemption.STOPPING
        return partition.tier if stops else None

    def _candidates(self, partition: str) -> list[VirtualJob]:
        """Running jobs that one in this partition may have stopped."""
        if not self.settings.preempt.by_tier:
            return []
        return preemption.candidates(
            self.active.values(), self._named[partition].tier, self._within[partition], self._tier_of
        )

    def _preempt(
        self, job: VirtualJob, lower: Sequence[VirtualJob], wanted: Asking, among: Collection[int] | None
    ) -> list[VirtualJob]:
        """Have jobs stopped so that this one can start once they are gone; those that are being stopped now."""
        settings = self.settings.preempt
        if not lower or (job.preempts_s and self.now_s < job.preempts_s + settings.again_s):
            return []
        found = preemption.victims(
            lower, self.room, lambda room: self._picker.pick(room, wanted, among), settings.reorders
        )
        if found and not job.preempts_s:
            job.preempts_s = self.now_s
            heappush(self._events, (self.now_s + settings.again_s, AGAIN, 0, 0))
        return [one for one in found if self._leave(one)]

    def _leave(self, job: VirtualJob) -> bool:
        """Stop a job for another one, once its grace time is over; whether it is being stopped now."""
        partition = self._named[job.running_in]
        if partition.grace_s and not job.preempted_s:
            job.preempted_s, over_s = self.now_s, self.now_s + partition.grace_s
            job.end_s = min(job.end_s, over_s)
            job.changed()
            sweeps = -(-(over_s - self._origin_s) // SWEEP_S)
            heappush(self._events, (self._origin_s + SWEEP_S * sweeps, GRACE, 0, 0))
        if partition.grace_s and self.now_s < job.preempted_s + partition.grace_s:
            return False
        again = job.requeues and preemption.mode_of(partition, self.settings.preempt.mode) == preemption.REQUEUE
        self._payload.stopped(job, self.now_s, REQUEUED if again else PREEMPTED)
        job.restarts += again
        self._complete(job, "PENDING" if again else PREEMPTED, self.settings.leave_s)
        return True

    # -- nodes that fail -------------------------------------------------------------------------

    def node_fails(self, name: str) -> None:
        """slurmctld has found a node DOWN: its jobs are requeued, or end, at once."""
        row = self.position[name]
        self._node_state(row, self.virtual_nodes[row].states | {"DOWN"})
        for job in [job for job in self.active.values() if any(take.node == row for take in job.takes)]:
            if job.state != "RUNNING":
                continue
            self._payload.stopped(job, self.now_s, NODE_FAIL)
            if job.requeues:
                job.restarts += 1
            self._complete(job, "PENDING" if job.requeues else NODE_FAIL, self.settings.complete_s)

    def node_returns(self, name: str) -> None:
        """It answers again."""
        row = self.position[name]
        self._node_state(row, self.virtual_nodes[row].states - {"DOWN"})
        self._soon()

    def _node_state(self, row: int, states: frozenset[str]) -> None:
        node = self.virtual_nodes[row]
        node.states, node.noun = states, None
        self.changes += 1

    # -- what slurmctld shows --------------------------------------------------------------------

    def node(self, row: int) -> Node:
        """One node as Slurm shows it."""
        node = self.virtual_nodes[row]
        if node.noun is None:
            node.noun = self._node(row, node)
        return node.noun

    def _node(self, row: int, node: VirtualNode) -> Node:
        made, room = self.hardware, self.room
        types = made.gpu_types[row]
        base = "IDLE" if not node.jobs else "ALLOCATED" if room.cpus[row] <= 0 else "MIXED"
        states = (node.states if node.states & {"DOWN"} else node.states | {base}) | (
            {"PLANNED"} if node.planned else set()
        )
        return Node(
            name=made.names[row], states=frozenset(states), gpu_types=types,
            gpus_used=len(types) - room.gpus[row].bit_count(), cpus=made.cpus[row],
            cpus_used=made.cpus[row] - room.cpus[row], memory_mib=made.memory_mib[row],
            memory_used_mib=made.memory_mib[row] - room.memory_mib[row], features=node.features,
            partitions=tuple(name for name, rows in self._within.items() if row in rows), weight=node.weight,
            available=node.available, threads=made.threads[row],
        )  # fmt: skip

    def show(self, job: VirtualJob) -> SlurmJob:
        """One job as Slurm shows it."""
        return noun_of(job, self.hardware.names)

    # -- orders ----------------------------------------------------------------------------------

    def reserve(self, name: str, nodes: Sequence[str], after_s: float, lasts_s: float) -> None:
        """scontrol create reservation with IGNORE_JOBS, for nobody of the queue. Raises SlurmError."""
        rows = frozenset(self.position[node] for node in nodes)
        made = Kept(self.now_s + after_s, self.now_s + after_s + lasts_s, rows)
        others = (one for one in self._reserved.values() if one.start_s < made.end_s and made.start_s < one.end_s)
        if name in self._reserved or any(not rows.isdisjoint(one.nodes) for one in others):
            raise SlurmError("scontrol failed: Error creating the reservation: Requested nodes are busy")
        self._reserved[name] = made
        heappush(self._events, (made.end_s, RESERVATION, 0, 0))
        self._soon(self.settings.submit_pass_s)

    def release(self, name: str) -> None:
        """scontrol delete reservation; one that is gone does not matter."""
        if self._reserved.pop(name, None) is not None:
            self._soon(self.settings.submit_pass_s)

    def _end_reservations(self) -> None:
        self._reserved = {name: one for name, one in self._reserved.items() if one.end_s > self.now_s}
        self._soon(self.settings.submit_pass_s)

    def update(self, job: VirtualJob, fields: Mapping[str, str]) -> None:
        """scontrol update JobId=. Raises SlurmError, and then nothing is changed."""
        from slurm_pal.twin.updates import change

        change(self, job, fields)
        self._soon(self.settings.submit_pass_s)

    def requeue(self, job: VirtualJob) -> None:
        """scontrol requeue Incomplete: stop the run and put the job back. Raises SlurmError."""
        if job.state != "RUNNING":
            return
        if not job.requeues:
            raise SlurmError(f"scontrol failed: Requested operation is presently disabled for job {job.job_id}")
        self._payload.stopped(job, self.now_s, "PENDING")
        job.restarts += 1
        self._complete(job, "PENDING", self.settings.stop_s)

    def cancel(self, job: VirtualJob) -> None:
        """scancel."""
        if job.state == "PENDING":
            del self.pending[job.job_id]
            job.state, job.end_s = "CANCELLED", self.now_s
            job.changed()
            self._ended.append((self.now_s, job.job_id))
            self._payload.stopped(job, self.now_s, "CANCELLED")
        elif job.state == "RUNNING":
            self._payload.stopped(job, self.now_s, "CANCELLED")
            self._complete(job, "CANCELLED", self.settings.stop_s)

    def signal(self, job: VirtualJob, name: str) -> None:
        """scancel -b -s NAME. Raises SlurmError for a job that does not run."""
        if job.state != "RUNNING":
            raise SlurmError(f"scancel failed: Kill job error on job id {job.job_id}: Invalid job id specified")
        self._payload.signalled(job, name, self.now_s)

    def hold(self, job: VirtualJob, held: bool) -> None:
        """scontrol hold, release."""
        job.held, job.reason = held, HELD_ADMIN if held else "None"
        job.noun = None
        self._soon(self.settings.submit_pass_s)

    def begins(self, job: VirtualJob, at_s: float) -> None:
        """The job does not start earlier (StartTime=)."""
        job.begin_s = job.eligible_s = at_s
        job.reason = BEGIN if at_s > self.now_s else "None"
        if at_s > self.now_s:
            heappush(self._events, (at_s, ELIGIBLE, job.job_id, job.edition))

    def features_changed(self) -> None:
        """Nodes have other features: what jobs may use is worked out anew."""
        for job in self.pending.values():
            job.wanted.clear()
        self._soon(self.settings.submit_pass_s)

    def update_partition(self, name: str, fields: Mapping[str, str]) -> None:
        """scontrol update PartitionName=. Raises SlurmError, and then nothing is changed."""
        from slurm_pal.twin.updates import changed_partition

        self._named[name] = found = changed_partition(self, name, fields)
        self._within[name] = tuple(self.position[node] for node in found.nodes)
        self._updated.add(name)
        for node in self.virtual_nodes:
            node.noun = None
        self.features_changed()

    def weights_changed(self) -> None:
        self._picker.weight = [node.weight for node in self.virtual_nodes]

    def priorities_changed(self, job: VirtualJob) -> None:
        """Nice, SiteFactor or Priority of one job are others."""
        self._priorities.set_all([job], self.now_s)
