# SPDX-License-Identifier: MIT
"""Which node lists pending jobs should bear until the next tick: pure, by the same policy as palsub.

Two lists, both hard for Slurm and hence leases. ReqNodeList names GPUs that are free at
this instant, for as long as a scheduling pass takes. ExcNodeList keeps a sensitive job off
slow GPUs for as long as waiting can pay; that clock starts when the job would have had its turn
on them (`turns`). So it is set in time, before they become free: at the end of a job Slurm starts
the next one at once, and only what is set by then counts (docs/slurm.md). A list that somebody
else set is never touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from slurm_pal.base.clock import CLOCK_SKEW_S
from slurm_pal.base.cluster import Node
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.jobs import Asks, GpuShape, SlurmJob
from slurm_pal.decide.candidates import RESERVED, Candidates, candidates, could_hold, share
from slurm_pal.decide.case import Decision, Settings, ends_per_s, expected_run_s
from slurm_pal.decide.decide import QUEUES, decide
from slurm_pal.decide.facts import is_ours
from slurm_pal.decide.lease import EXCLUDED, PARTITION, REQUIRED, verdict
from slurm_pal.decide.lease_marks import in_force
from slurm_pal.decide.offers import claims, named_in_vain, passed_over, used_indexes
from slurm_pal.decide.ownership import Whose, of_lease
from slurm_pal.decide.pools import every_gpu
from slurm_pal.decide.request import Request
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.pending.turns import Turns
from slurm_pal.placement.faulty import is_faulty, worst_wanted
from slurm_pal.placement.patience import WAIT_SHARE, hoped, patience_s
from slurm_pal.placement.penalties import Penalties
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import Snapshot

LEAST_INTERVALS = 1.0
"""A job is kept off slow GPUs beforehand only where waiting can pay for more intervals than these: it may wait for one
interval more than its patience, and so never for longer than it would lose on the slow GPUs."""
TOO_LONG = "waiting for better GPUs no longer pays"
_folded = lru_cache(256)(fold)  # many jobs are kept off the same nodes


class Waiting(NamedTuple):
    """One pending job. `request` has the user's own node lists, not ours."""

    job: SlurmJob
    request: Request
    sensitivity: str
    waited_s: float  # how long it could have started, but for our list
    measured: bool = False  # its class was measured, not stated or guessed
    locality: Penalties = ()  # of its work, as far as known


class Slow(NamedTuple):
    """Nodes to keep a job off, and for how many seconds waiting can pay."""

    nodes: tuple[str, ...]
    pays_s: float


class Levers(NamedTuple):
    """Which jobs are steered, and which are kept off which nodes."""

    fit: bool = True  # sensitive ones off slow GPUs
    avoid: bool = True  # all of them off faulty GPUs
    gather: bool = False  # those on an open number of nodes are steered, too


DEFAULT = Levers()


class WishAction(StrEnum):
    """What happens to a list on a job."""

    NODELIST = "nodelist"
    EXCLUDE = "exclude"
    CLEAR = "clear"
    PARTITION = "partition"
    PARTITION_CLEAR = "partition-clear"
    FENCE = "fence"
    FENCE_CLEAR = "fence-clear"
    KEEP = "keep"
    NONE = "none"


class Wish(NamedTuple):
    """What should be done about one job."""

    job_id: int
    action: WishAction
    fields: dict[str, str]  # for one scontrol update; {} where Slurm has nothing to change
    lease: TickLease | None  # what the journal holds afterwards; None: no lease
    could_start: bool  # one more interval counts as waited: it could start now, or could have, but for our list
    reason: str
    sort: Sort = Sort.NODES
    guard: dict[str, str] = {}  # fields of the same update, which change nothing but make Slurm refuse it once it runs


def retarget(
    overview: Overview,
    snapshot: Snapshot,
    waiting: Sequence[Waiting],
    leases: Mapping[int, TickLease],
    settings: Settings,
    now_s: float,
    interval_s: float,
    levers: Levers = DEFAULT,
    fences: Mapping[int, TickLease] = {},
    impatient: Set[int] = frozenset(),
) -> list[Wish]:
    """What to do about these jobs, by Slurm's priority. Pure.

    `leases` are the tick's own; jobs of a move under way, and jobs whose owner took our list
    off, must not be given. `fences` stand for some of them, see `pending.head`, and those of the `impatient` have
    stood until their patience ended. A lease that is ended here needs no `over` beside it. With
    action `none` and no lease, a job that had one bears somebody else's list now.
    Raises UsageError for an unknown policy.
    """
    rounds = _Round(overview, snapshot, leases, settings, now_s, interval_s, levers, fences, impatient)
    order = sorted(waiting, key=lambda one: one.job.rank)
    wishes = [rounds.wish(one) for one in order if one.job.state == "PENDING"]
    return [wish for wish in wishes if wish is not None]


def over(
    leases: Mapping[int, TickLease], jobs: Iterable[SlurmJob], nodes: Iterable[Node], now_s: float, pass_s: float
) -> list[Wish]:
    """The leases that are over, and those whose list somebody else has replaced. Pure.

    For jobs that no `retarget` of this tick has seen. The reason why a job waits does not
    matter here: a held job must not keep our list either. With `now_s` = infinity
    all of them are over.
    """
    wishes = []
    named = {node.name: node for node in nodes}
    for job in jobs:
        lease = leases.get(job.job_id)
        if lease is None or job.state != "PENDING":
            continue
        in_vain = lease.kind is LeaseKind.NODELIST and named_in_vain(job, named, now_s)
        why = _void(lease, job, now_s) or _past(lease, job, now_s, pass_s, in_vain)
        if of_lease(job, lease) is Whose.OTHER:
            wishes.append(_hands_off(job))
        elif why:
            wishes.append(_clear(job, lease, why))
    return wishes


def _void(lease: TickLease, job: SlurmJob, now_s: float) -> str:
    """Why a lease has lost its meaning before its time; "" where it has not."""
    if lease.kind is LeaseKind.MOVE or job.restarts > lease.restarts:
        return "it was set for a start that has been"
    return "the clock was set back" if now_s < lease.made_s - CLOCK_SKEW_S else ""


def _past(lease: TickLease, job: SlurmJob, now_s: float, pass_s: float, in_vain: bool) -> str:
    if verdict(job.reason, lease.made_s, lease.until_s, pass_s, now_s) == "clear" or now_s >= lease.until_s + pass_s:
        return "its time is over"
    cleared = verdict(job.reason, lease.made_s, lease.until_s, pass_s, now_s, in_vain) == "clear"
    return "Slurm did not start it there" if cleared else ""


def _tried(job: SlurmJob, lease: TickLease | None) -> frozenset[str]:
    """The nodes that we have named for the job, and where it has not started yet."""
    named = lease is not None and lease.kind is LeaseKind.NODELIST and of_lease(job, lease) is Whose.OURS
    return frozenset(job.req_nodes) if named else frozenset()


def _counts(decided: Decision) -> Counter[str]:
    """Node -> GPUs chosen there."""
    return Counter(gpu.node for gpu in decided.chosen.gpus) if decided.chosen is not None else Counter()


def _chosen(decided: Decision) -> frozenset[str]:
    return frozenset(decided.chosen.nodes) if decided.chosen is not None else frozenset()


def _back(job: SlurmJob, lease: TickLease | None) -> dict[str, str]:
    """What puts the user's own list back; {} where it is in its place."""
    return {lease.kind.key: lease.own} if lease is not None and of_lease(job, lease) is Whose.OURS else {}


def _clear(job: SlurmJob, lease: TickLease, why: str) -> Wish:
    return Wish(job.job_id, WishAction.CLEAR, _back(job, lease), None, False, why)


def _hands_off(job: SlurmJob) -> Wish:
    return Wish(job.job_id, WishAction.NONE, {}, None, False, "somebody has changed its node list since: left alone")


class _Round:
    """One tick's wishes, each made with those before it in force."""

    def __init__(
        self, overview: Overview, snapshot: Snapshot, leases: Mapping[int, TickLease], settings: Settings,
        now_s: float, interval_s: float, levers: Levers, fences: Mapping[int, TickLease], impatient: Set[int],
    ) -> None:  # fmt: skip
        self._leases, self._settings, self._now_s, self._interval_s = leases, settings, now_s, interval_s
        self._fences, self._impatient = fences, impatient
        self._levers, self._turns = levers, Turns(overview.nodes, overview.jobs)
        self._free = _Free(overview, {job_id for job_id, lease in leases.items() if now_s >= lease.until_s}, fences)
        self._prospects = _Prospects(overview, snapshot, settings, levers)
        self._snapshot, self._jobs = snapshot, overview.jobs
        self._ends: dict[str, float] | None = None
        # Since a claim was last made or given up.
        self._decided: dict[tuple[Request, str, bool, Penalties], Decision] = {}

    def wish(self, one: Waiting) -> Wish | None:
        """What to do about one job; None for one that is not ours."""
        job, lease = one.job, self._leases.get(one.job.job_id)
        if lease is None and not is_ours(job):
            return None
        if of_lease(job, lease) is Whose.OTHER:
            return _hands_off(job)
        if why := _not_now(one) or (_void(lease, job, self._now_s) if lease is not None else ""):
            return self._leave(one, lease, why)
        decided = self._decide(one)
        if lease is None and (marked := in_force(job).keys() - {PARTITION}):
            kept_off = EXCLUDED in marked and decided.action == "exclude"
            return Wish(
                job.job_id, WishAction.NONE, {}, None, kept_off, "palsub or the submit filter has set its node list"
            )
        made = self._judge(one, lease, decided)
        # A job whose GPUs others took before Slurm looked might have started elsewhere meanwhile. From then on that
        # is counted beforehand, see `_name`: GPUs named and exclusions by turns must not count as one interval.
        lost = not one.waited_s and _tried(job, lease) not in (frozenset(), _chosen(decided))
        return made._replace(could_start=made.could_start or lost)

    def _judge(self, one: Waiting, lease: TickLease | None, decided: Decision) -> Wish:
        count = len(decided.pinned)
        if decided.action == "nodelist" and not _fixed(one.request, count) and not self._spreads(one.request, count):
            return self._leave(one, lease, "on how many nodes it will start is open")
        if decided.action == "nodelist":
            return self._name(one, lease, decided)
        never, chosen = self._prospects.never_well(one), decided.chosen
        if decided.action == "exclude":
            if not (self._levers.avoid if chosen is not None and chosen.faulty else self._levers.fit):
                return self._leave(one, lease, "left to Slurm: this lever is off (rebalance.fit, rebalance.avoid)")
            slow = Slow(tuple(dict.fromkeys((*decided.excluded, *never.nodes))), decided.lease_s)
            return self._keep_off(one, lease, slow, decided.reason, no_other=True)
        good = chosen is not None and not chosen.faulty and chosen.slowdown <= self._settings.barred_slowdown
        # Of a node with a slow GPU the free ones may be good.
        ahead = tuple(name for name in never.nodes if not good or name not in _chosen(decided))
        if ahead and (good or decided.reason == QUEUES) and never.pays_s > LEAST_INTERVALS * self._interval_s:
            reason = f"kept off {len(ahead)} node{'s' if len(ahead) > 1 else ''} too slow or faulty for it, in advance"
            return self._keep_off(one, lease, never._replace(nodes=ahead), reason, no_other=not good)
        return self._leave(one, lease, decided.reason)

    def _spreads(self, request: Request, n_nodes: int) -> bool:
        """Whether it may start on one node as on several, so that its list needs a guard, see `_guard`."""
        shape = request.shape
        total = shape is not None and shape.per_node is None and not shape.whole_nodes
        return self._levers.gather and total and request.nodes_min == n_nodes == 1

    def _decide(self, one: Waiting) -> Decision:
        """palsub's decision, as if the job were submitted now without a list of ours."""
        key = one.request, one.sensitivity, one.measured, one.locality
        own = self._free.claims(one.job.job_id) or one.job.job_id in self._fences
        if key not in self._decided or own:
            overview = self._free.overview(one.job.job_id)
            settings, now_s = self._settings.knowing(one.locality), self._now_s
            found = decide(
                one.request, overview, self._snapshot, one.sensitivity, settings, "daemon", now_s, 0, one.measured,
                self._ends_per_s,
            )  # fmt: skip
            if own:
                return found
            self._decided[key] = found
        return self._decided[key]

    def _ends_per_s(self) -> dict[str, float]:
        if self._ends is None:
            self._ends = ends_per_s(self._jobs, self._settings)
        return self._ends

    def _pays(self, one: Waiting, pays_s: float) -> bool:
        """Whether one more interval of waiting is within what waiting can pay."""
        return one.waited_s + self._interval_s <= pays_s

    def _name(self, one: Waiting, lease: TickLease | None, decided: Decision) -> Wish:
        """Name the nodes of free GPUs; not the same twice in a row, since Slurm did not start it there."""
        job, pinned = one.job, fold(decided.pinned)
        if lease is not None and _tried(job, lease) == _chosen(decided):
            in_vain = passed_over(job, self._now_s)
            if self._now_s >= lease.until_s or _past(lease, job, self._now_s, self._settings.lease_pass_s, in_vain):
                return self._leave(one, lease, "Slurm did not start it there: left to Slurm until the next tick")
            self._claim(one, decided)
            return Wish(job.job_id, WishAction.KEEP, {}, lease, False, lease.reason)
        if _tried(job, lease) and not self._pays(one, decided.lease_s):
            return self._leave(one, lease, "others took its GPUs: left to Slurm until the next tick")
        self._claim(one, decided)
        until_s = self._now_s + max(self._settings.lease_pass_s, self._interval_s)
        made = TickLease(job.job_id, LeaseKind.NODELIST, pinned, "", self._now_s, until_s, job.restarts, decided.reason)
        lists = _back(job, lease) | {REQUIRED: pinned}
        guard = {} if _fixed(one.request, len(decided.pinned)) else _guard(job)
        return Wish(job.job_id, WishAction.NODELIST, lists, made, one.waited_s > 0, decided.reason, guard=guard)

    def _keep_off(self, one: Waiting, lease: TickLease | None, slow: Slow, reason: str, no_other: bool) -> Wish:
        """Exclude slow nodes beside the user's own list for as long as waiting pays. `no_other`: nothing else is free
        for it.

        Behind a fence it waits until that ends; the nodes of the fence need no exclusion, and Slurm itself starts it
        there afterwards.
        """
        fence = self._fences.get(one.job.job_id)
        if fence is not None:
            kept = frozenset(expand(fence.ours))
            left = tuple(name for name in slow.nodes if name not in kept)
            slow = Slow(left, max(slow.pays_s, one.waited_s + fence.until_s - self._now_s))
            if not left:
                return self._leave(one, lease, fence.reason)._replace(could_start=no_other)
        if one.job.job_id in self._impatient or not self._pays(one, slow.pays_s):
            return self._leave(one, lease, TOO_LONG)
        self._give_up(one.job)
        job, own = one.job, one.request.exc_nodes
        names = tuple(dict.fromkeys((*own, *slow.nodes)))
        before = lease if lease is not None and lease.kind is LeaseKind.EXCLUDE else None
        same = before is not None and frozenset(job.exc_nodes) == frozenset(names)
        ours = before.ours if same and before is not None else _folded(names)
        made_s = before.made_s if before is not None else self._now_s
        until_s = self._now_s + slow.pays_s - one.waited_s + self._interval_s
        made = TickLease(job.job_id, LeaseKind.EXCLUDE, ours, _folded(own), made_s, until_s, job.restarts, reason)
        assert one.request.shape is not None
        kept_off = [name for name in slow.nodes if name not in own]
        # Once it had its turn all its waiting is due to us.
        open_to = self._prospects.open_to(one.request) if one.request.spreads else None
        turn = no_other and (self._turns.had(job, one.request.shape, kept_off, made_s, open_to) or one.waited_s > 0)
        if same:
            return Wish(job.job_id, WishAction.KEEP, {}, made, turn, reason)
        return Wish(job.job_id, WishAction.EXCLUDE, _back(job, lease) | {EXCLUDED: ours}, made, turn, reason)

    def _leave(self, one: Waiting, lease: TickLease | None, why: str) -> Wish:
        """No list of ours: the job as its user wants it."""
        self._give_up(one.job)
        return (
            _clear(one.job, lease, why)
            if lease is not None
            else Wish(one.job.job_id, WishAction.NONE, {}, None, False, why)
        )

    def _claim(self, one: Waiting, decided: Decision) -> None:
        self._free.claim(one, decided)
        self._turns.take(_counts(decided))
        self._decided.clear()

    def _give_up(self, job: SlurmJob) -> None:
        """Our own list goes, and with it what it claims; a list of the user's stays."""
        if job.job_id in self._leases and self._free.give_up(job.job_id):
            self._decided.clear()


def _size(node: Node) -> int:
    return node.n_gpus


def _fixed(request: Request, n_nodes: int) -> bool:
    """Whether the job can only start on this number of nodes.

    It may have started when the update comes, and on a running job a list of fewer nodes
    than it has makes Slurm give the others up (seen on 22.05; scontrol(1), NodeList).
    """
    shape = request.shape
    if request.nodes_max is not None or shape is None:
        return request.nodes_min == request.nodes_max == n_nodes
    return shape.total == 1 or (shape.per_node is not None and request.tasks == n_nodes == 1)


def _guard(job: SlurmJob) -> dict[str, str]:
    """What makes Slurm refuse a node list for a job that has started meanwhile, see `_fixed`.

    Of all fields that only a pending job may have changed, the partition alone is looked at before the list is
    taken for a resize. Its own name is no change, and is not looked at; twice, it is folded into once.
    """
    return {PARTITION: f"{job.partition},{job.partition}"}


def _not_now(one: Waiting) -> str:
    """Why nothing is to be decided about a job now; "" where it is."""
    job = one.job
    if not is_ours(job):
        return "not ours to steer"
    if not job.waits_for_nodes:
        return f"it does not wait for GPUs ({job.reason})"
    if one.request.req_nodes:
        return "left to Slurm: its user names nodes"
    return f"left to Slurm: {one.request.leave}" if one.request.leave else ""


class _Free:
    """What is free, without what jobs with a node list are about to take."""

    def __init__(self, overview: Overview, unclaimed: Set[int], fences: Mapping[int, TickLease]) -> None:
        """`unclaimed` are jobs whose node lists claim nothing, since they are about to go."""
        self._fenced = {name: job_id for job_id, fence in fences.items() for name in expand(fence.ours)}
        self._overview, self._nodes = overview, list(overview.nodes)
        self._places = {node.name: place for place, node in enumerate(overview.nodes)}
        # The placement code walks over all jobs each time, so one job stands for what all of them hold.
        held = {name: tuple(sorted(indexes)) for name, indexes in used_indexes(overview.jobs).items()}
        limited = {partition.name for partition in overview.partitions if partition.counting.most_cpus}
        self._held = (
            *(job._replace(state="RUNNING", gpus=held, partition="") for job in overview.jobs[:1]),
            *(job._replace(gpus={}) for job in overview.jobs if job.partition in limited and job.nodes),
        )
        self._claims: dict[int, tuple[SlurmJob, ...]] = {
            job.job_id: (job,) for job in overview.jobs if claims(job) and job.job_id not in unclaimed
        }

    def claims(self, job_id: int) -> bool:
        return job_id in self._claims

    def overview(self, job_id: int) -> Overview:
        """The cluster as this job finds it."""
        others = (job for owner, jobs in self._claims.items() if owner != job_id for job in jobs)
        nodes = (
            node._replace(states=node.states | RESERVED) if self._fenced.get(node.name, job_id) != job_id else node
            for node in self._nodes
        )
        return self._overview._replace(nodes=tuple(nodes), jobs=(*self._held, *others))

    def claim(self, one: Waiting, decided: Decision) -> None:
        """The job will take the GPUs chosen, and CPUs and memory with them."""
        assert decided.chosen is not None and one.request.shape is not None
        counts = _counts(decided)
        tasks = one.request.tasks_per_node or -(-one.request.tasks // len(counts))
        for name, count in counts.items():
            node = self._nodes[self._places[name]]
            cpus, memory_mib = share(node, one.request, tasks, count)
            if one.request.shape.whole_nodes:
                cpus, memory_mib = node.cpus, node.memory_mib
            self._nodes[self._places[name]] = node._replace(
                cpus_used=node.cpus_used + cpus, memory_used_mib=node.memory_used_mib + memory_mib
            )
        # What else it asks for is booked on the nodes, and must not count twice.
        self._claims[one.job.job_id] = tuple(
            one.job._replace(req_nodes=(name,), gpus_per_node=count, priority=None, asks=Asks())
            for name, count in counts.items()
        )

    def give_up(self, job_id: int) -> bool:
        """Whether there was a claim."""
        return self._claims.pop(job_id, None) is not None


class _Prospects:
    """What the nodes that a job may use can give it once they are empty."""

    def __init__(self, overview: Overview, snapshot: Snapshot, settings: Settings, levers: Levers) -> None:
        self._overview, self._snapshot, self._settings, self._levers = overview, snapshot, settings, levers
        self._slowdown: dict[str, dict[str, list[float]]] = {}  # class -> node -> of each GPU
        self._known: dict[tuple[Request, str, float], Slow] = {}
        self._open: dict[Request, frozenset[str]] = {}

    def never_well(self, one: Waiting) -> Slow:
        """The nodes with GPUs enough for the job, but too few that are not barred, where others could hold it; of those
        only what a lever keeps it off."""
        key = one.request, one.sensitivity, self._settings.knowing(one.locality).locality_penalty
        if key not in self._known:
            self._known[key] = self._never_well(*key)
        return self._known[key]

    def _never_well(self, request: Request, sensitivity: str, penalty: float) -> Slow:
        nothing, shape, found = Slow((), 0.0), request.shape, candidates(request, self._overview)
        if shape is None or isinstance(found, str) or len(found) != 1:
            return nothing
        if request.spreads and shape.total > max(map(_size, found[0].nodes), default=0):
            return self._never_well_spread(request, sensitivity, penalty, found[0])
        count, several = shape.per_node or shape.total, (shape.nodes or 1) > 1
        if several and shape.per_node is None:  # how many GPUs Slurm gives on which node is open
            return nothing
        bar = worst_wanted(sensitivity, self._settings.barred_slowdown)
        slow: dict[str, float] = {}
        others: list[Node] = []
        for node in found[0].nodes:
            gpus = self._gpus(node, shape, sensitivity)
            need = len(gpus) if shape.whole_nodes else count
            if len(gpus) >= count and gpus[need - 1] > bar:
                slow[node.name] = gpus[need - 1]
            elif len(gpus) >= count:
                others.append(node)
        tasks = request.tasks_per_node or -(-request.tasks // (shape.nodes or 1))
        slow = self._wanted(slow)
        if not slow or len(could_hold(others, request, tasks, count)) < (shape.nodes or 1):
            return nothing
        locality = penalty if several else 1.0
        open_nodes = shape.per_node is None and request.nodes_max != 1
        median = hoped(shape._replace(nodes=None) if open_nodes else shape, locality, penalty)
        return self._slow(slow, locality, median, request, found[0])

    def _never_well_spread(self, request: Request, sensitivity: str, penalty: float, group: Candidates) -> Slow:
        """The same for more GPUs than a node has: Slurm gives it nearly all of each node that it starts on."""
        shape, bar = request.shape, worst_wanted(sensitivity, self._settings.barred_slowdown)
        assert shape is not None
        slow: dict[str, float] = {}
        room: list[int] = []  # GPUs of the others
        for node in group.nodes:
            gpus = self._gpus(node, shape, sensitivity)
            if gpus and gpus[-1] > bar:
                slow[node.name] = gpus[-1]
            elif gpus and could_hold([node], request, -(-request.tasks * len(gpus) // shape.total), len(gpus)):
                room.append(len(gpus))
        slow = self._wanted(slow)
        most = sum(sorted(room, reverse=True)[: request.nodes_max])
        if not slow or most < shape.total or len(room) < request.nodes_min:
            return Slow((), 0.0)
        return self._slow(slow, penalty, hoped(shape, penalty, penalty), request, group)

    def _wanted(self, slow: Mapping[str, float]) -> dict[str, float]:
        """Of these nodes those that a lever keeps the job off."""
        return {name: s for name, s in slow.items() if (self._levers.avoid if is_faulty(s) else self._levers.fit)}

    def _slow(
        self, slow: Mapping[str, float], locality: float, median: float, request: Request, group: Candidates
    ) -> Slow:
        loss_s = patience_s(min(slow.values()) * locality, median, self._run_s(request, group))
        return Slow(tuple(slow), min(WAIT_SHARE * loss_s, self._settings.lease_max_s))

    def open_to(self, request: Request) -> frozenset[str]:
        """The nodes on which the job may start now, as far as GPUs are free there."""
        if request not in self._open:
            found = candidates(request, self._overview)
            groups = [] if isinstance(found, str) else found
            names = frozenset(node.name for group in groups for node in group.nodes if usable(node.states))
            self._open[request] = names
        return self._open[request]

    def _gpus(self, node: Node, shape: GpuShape, sensitivity: str) -> list[float]:
        """Slowdowns of the node's GPUs that such a job may use, fastest first."""
        if sensitivity not in self._slowdown:
            self._slowdown[sensitivity] = every_gpu(self._overview, self._snapshot, sensitivity)
        row = self._slowdown[sensitivity].get(node.name, [])
        wanted = shape.gpu_type if not shape.whole_nodes else ""
        return sorted(s for s, kind in zip(row, node.gpu_types, strict=True) if wanted in ("", kind))

    def _run_s(self, request: Request, group: Candidates) -> float:
        """Expected run time, as for a submission."""
        defaults = (p.default_time_s for p in group.partitions if p.default_time_s)
        limit_s = request.time_limit_s or next(defaults, None)
        return expected_run_s(limit_s, self._settings)
