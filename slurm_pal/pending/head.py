# SPDX-License-Identifier: MIT
"""Which job at the head of a queue waits for better GPUs, and the fence behind it: pure.

A fence is a reservation, `pal_wait_<job>_<time>`, of the slow nodes that are free for the job, and nobody may use it.
It begins when the patience of the job ends and lasts a minute. Until then no job that would outlast its begin starts
there, the waiting one included; short ones do. When it is over, or taken away, the nodes are free for the first job
of the queue. So Slurm itself ends the wait, whatever has become of us, and no job ever runs inside the reservation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from slurm_pal.base.cluster import Partition
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.candidates import candidates, could_hold
from slurm_pal.decide.case import Settings, expected_run_s
from slurm_pal.decide.decide import decide
from slurm_pal.decide.pools import every_gpu
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.pending.retarget import LEAST_INTERVALS, Waiting, Wish, WishAction
from slurm_pal.placement.faulty import worst_wanted
from slurm_pal.placement.patience import WAIT_SHARE, Holder, expected_wait_s
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_ACTIVE, usable
from slurm_pal.store.snapshot import Snapshot

FENCE_S = 60.0
"""How long a fence lasts, if nobody takes it away before: the last minute of a job's patience."""
RESOURCES = "Resources"
"""Slurm's reason for the first job of a partition that does not fit; those behind it wait for "Priority"."""
SAY_NOTHING = 0.5
"""Limits say nothing where more than this share of the jobs have the partition's own."""


class Wait(NamedTuple):
    """What the settings say of waiting."""

    settings: Settings
    longest_s: float  # rebalance.wait_max_s
    interval_s: float  # between two ticks


def plan(
    overview: Overview, snapshot: Snapshot, waiting: Sequence[Waiting], fences: Mapping[int, TickLease], wait: Wait,
    now_s: float,
) -> list[Wish]:  # fmt: skip
    """Fences to set, to leave and to take away; a wish without action says why a job that might wait does not.

    `fences` are those in the journal. Raises UsageError for an unknown policy.
    """
    wishes, kept = [], set[str]()
    by_id = {one.job.job_id: one for one in waiting}
    for job_id, fence in fences.items():
        one = by_id.get(job_id)
        why = _over(fence, one.job if one is not None else None, now_s)
        if why:
            wishes.append(_clear(fence, why))
        else:
            wishes.append(Wish(job_id, WishAction.KEEP, {}, fence, True, fence.reason, Sort.FENCES))
            kept |= {*expand(fence.ours)}
    for one in waiting:
        if one.job.job_id not in fences and is_first(one.job, overview):
            wish = _Head(overview, snapshot, one, wait, now_s).wish(kept)
            if wish is not None:
                wishes.append(wish)
                kept |= {*expand(wish.lease.ours)} if wish.lease is not None else set()
    return wishes


def over(fences: Mapping[int, TickLease], jobs: Iterable[SlurmJob], now_s: float) -> list[Wish]:
    """The fences that are no longer needed, for ticks in which nothing else is decided about them."""
    pending = {job.job_id: job for job in jobs}
    found = ((fence, _over(fence, pending.get(job_id), now_s)) for job_id, fence in fences.items())
    return [_clear(fence, why) for fence, why in found if why]


def cleared(fences: Mapping[int, TickLease], why: str) -> list[Wish]:
    """All of them, taken away."""
    return [_clear(fence, why) for fence in fences.values()]


def standing(fences: Mapping[int, TickLease], wishes: Iterable[Wish]) -> dict[int, TickLease]:
    """The fences that will stand once these wishes are carried out, but for new ones, which Slurm may refuse."""
    gone = {wish.job_id for wish in wishes if wish.action is WishAction.FENCE_CLEAR}
    return {job_id: fence for job_id, fence in fences.items() if job_id not in gone}


def impatient(fences: Iterable[TickLease], waiting: Iterable[Waiting], now_s: float) -> frozenset[int]:
    """The jobs for which these fences have stood until their patience ended: no list may keep them off slow nodes."""
    restarts = {one.job.job_id: one.job.restarts for one in waiting}
    return frozenset(
        fence.job_id
        for fence in fences
        if restarts.get(fence.job_id) == fence.restarts and now_s >= fence.until_s - FENCE_S
    )


def is_first(job: SlurmJob, overview: Overview) -> bool:
    """Whether this job is surely the next that Slurm would start in its partition, and nobody waits for its nodes.

    Of jobs that are not ours only partition and reason are known: one that waits for Resources may come first.
    """
    if not job.waits_for_nodes or not job.reason.startswith(RESOURCES) or "," in job.partition or job.req_nodes:
        return False
    near = _neighbours(job.partition, overview.partitions)
    if any(reason.startswith(RESOURCES) and near & {*names.split(",")} for names, reason in overview.queued):
        return False
    return not any(
        other.state == "PENDING" and other.job_id != job.job_id and other.waits_for_nodes
        and near & {*other.partition.split(",")} and other.rank < job.rank
        for other in overview.jobs
    )  # fmt: skip


def limits_say_nothing(jobs: Iterable[SlurmJob], partitions: Iterable[Partition], names: Collection[str]) -> bool:
    """Whether most jobs, running and pending, of these partitions have no limit or the partition's own.

    Then nobody has stated how long they run, and a wait that relies on it is a guess.
    """
    own = {one.name: {None, one.max_time_s, one.default_time_s} for one in partitions if one.name in names}
    seen = silent = 0
    for job in jobs:
        first = job.partition.partition(",")[0]
        if first in own and (job.state == "PENDING" or job.state in JOB_ACTIVE):
            seen += 1
            silent += job.unlimited or job.time_limit_s in own[first]
    return silent > SAY_NOTHING * seen


def _neighbours(name: str, partitions: Iterable[Partition]) -> frozenset[str]:
    """The partitions that share nodes with this one, itself included."""
    nodes = {node for one in partitions if one.name == name for node in one.nodes}
    return frozenset({name, *(one.name for one in partitions if not nodes.isdisjoint(one.nodes))})


def _over(fence: TickLease, job: SlurmJob | None, now_s: float) -> str:
    """Why a fence is no longer needed; "" where it is."""
    if now_s >= fence.until_s - FENCE_S:
        return "its patience has ended"
    if job is None or job.state != "PENDING":
        return "the job has started, or is no longer ours to steer"
    if job.restarts > fence.restarts:
        return "it was set for a start that has been"
    if not job.waits_for_nodes:
        return f"the job does not wait for GPUs ({job.reason})"
    return "the job is no longer the first of its queue" if job.reason.startswith("Priority") else ""


def _clear(fence: TickLease, why: str) -> Wish:
    return Wish(fence.job_id, WishAction.FENCE_CLEAR, {}, None, False, why, Sort.FENCES)


class _Head:
    """One job at the head of its queue."""

    def __init__(self, overview: Overview, snapshot: Snapshot, one: Waiting, wait: Wait, now_s: float) -> None:
        self._overview, self._snapshot, self._one, self._wait, self._now_s = overview, snapshot, one, wait, now_s
        self._settings = wait.settings._replace(lease_max_s=wait.longest_s).knowing(one.locality)

    def wish(self, kept: Set[str]) -> Wish | None:
        """Its fence; why it gets none, where only GPUs too slow for it are free; None else."""
        one, job = self._one, self._one.job
        decided = decide(
            one.request, self._overview, self._snapshot, one.sensitivity, self._settings, "daemon", self._now_s, 0,
            one.measured,
        )  # fmt: skip
        chosen = decided.chosen
        if decided.action != "exclude" or chosen is None or chosen.faulty:
            return None
        left_s = decided.lease_s - one.waited_s
        near = _neighbours(job.partition, self._overview.partitions)
        held = len(chosen.gpus)
        idle = self._idle(chosen.nodes) - held
        expected_s = self._expected_s(decided.excluded)
        loss_s = decided.lease_s / WAIT_SHARE  # more, where the longest time cuts it
        why = ""
        if limits_say_nothing(self._overview.jobs, self._overview.partitions, near):
            why = "most time limits here are the partition's own, and say nothing"
        elif left_s < FENCE_S + LEAST_INTERVALS * self._wait.interval_s:
            why = "waiting pays for too short a time"
        elif job.time_limit_s and job.time_limit_s <= left_s:
            why = "its time limit ends before its patience"
        elif not kept.isdisjoint(chosen.nodes):
            why = "another job waits there"
        elif expected_s > left_s:
            why = f"better GPUs are expected only in {expected_s:.0f} s, and waiting pays for {left_s:.0f} s"
        elif expected_s * (held + idle) > loss_s * held:
            why = f"{idle} more GPUs of {fold(list(chosen.nodes))} would stay idle"
        if why:
            return Wish(job.job_id, WishAction.NONE, {}, None, False, f"no wait behind a fence: {why}", Sort.FENCES)
        until_s = self._now_s + left_s
        reason = (
            f"waits for better GPUs, expected in {expected_s:.0f} s, for {left_s:.0f} s at most; then "
            f"{fold(list(chosen.nodes))} is free for it"
        )
        ours = fold(list(chosen.nodes))
        fence = TickLease(job.job_id, LeaseKind.FENCE, ours, "", self._now_s, until_s, job.restarts, reason)
        return Wish(job.job_id, WishAction.FENCE, {}, fence, False, reason, Sort.FENCES)

    def _idle(self, names: Collection[str]) -> int:
        """GPUs of these nodes that nobody has."""
        return sum(node.n_gpus - node.gpus_used for node in self._overview.nodes if node.name in names)

    def _expected_s(self, barred: Collection[str]) -> float:
        """When enough GPUs are expected on nodes that are not too slow."""
        request, overview, shape = self._one.request, self._overview, self._one.request.shape
        found = candidates(request, overview)
        if shape is None or isinstance(found, str):
            return float("inf")
        nodes = shape.nodes or 1
        count = shape.per_node or -(-shape.total // nodes)
        tasks = request.tasks_per_node or -(-request.tasks // nodes)
        bar = worst_wanted(self._one.sensitivity, self._settings.barred_slowdown)
        slowdown = every_gpu(overview, self._snapshot, self._one.sensitivity)
        used: dict[str, set[int]] = defaultdict(set)
        holders: dict[str, list[Holder]] = defaultdict(list)
        for job in overview.jobs:
            if job.state in JOB_ACTIVE:
                run_s = expected_run_s(job.time_limit_s, self._settings)
                for name, indexes in job.gpus.items():
                    used[name] |= {*indexes}
                    holders[name].append((run_s, len(indexes)))
        able = {node.name: node for group in found for node in group.nodes if node.name not in barred}
        there = []
        for node in could_hold(able.values(), request, tasks, count):
            row = slowdown.get(node.name, [])
            if usable(node.states) and sum(value <= bar for value in row) >= count:
                free = sum(value <= bar and index not in used[node.name] for index, value in enumerate(row))
                there.append((free, holders[node.name]))
        return expected_wait_s(count, nodes, there)
