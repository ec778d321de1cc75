# SPDX-License-Identifier: MIT
"""Which pending jobs start now, and on which GPUs: the queue, EASY backfill and the policy together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from slurm_pal.moves.order import response_ratio
from slurm_pal.moves.worth import slots
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.need import need_of
from slurm_pal.placement.occupancy import DRAWN_ANEW, PLAIN, Occupancy
from slurm_pal.placement.patience import hoped, patience_s
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.simulate.easy import Reservation
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.policies import SimPolicy
from slurm_pal.simulate.settings import ReplaySettings

Kind = int
"""Stands for all that a placement depends on, besides what is free."""


class Pass:
    """What one pass has found out so far, by kind of job: it asks once per kind until something starts."""

    def __init__(self) -> None:
        self.offers: dict[Kind, Placement | None] = {}  # None: nothing that is free will do, and a pass only takes
        self.refused_s: dict[Kind, float] = {}  # the least time limit that would have delayed a reserved job

    def started(self) -> None:
        """Other GPUs are free than before."""
        self.offers = {kind: None for kind, placed in self.offers.items() if placed is None}
        self.refused_s.clear()


class Starter:
    """Decides starts on one occupancy; `start(job, placement)` carries them out."""

    def __init__(
        self,
        occupancy: Occupancy,
        policy: SimPolicy,
        settings: ReplaySettings,
        start: Callable[[ReplayJob, Placement], None],
        seed: int = 0,
    ) -> None:
        self._occupancy, self._policy, self._settings, self._start = occupancy, policy, settings, start
        self._drawn = seed << 32  # a seed of its own for each draw
        self._capable: dict[tuple[str, str], int] = {}
        self._kinds: dict[tuple[object, ...], Kind] = {}
        self._patience_end_s: float | None = None

    def next_patience_end(self) -> float | None:
        """When to look again, because a job that waits for better GPUs will take others then; given only once."""
        end_s, self._patience_end_s = self._patience_end_s, None
        return end_s

    def heads(self, queue: list[ReplayJob], now_s: float) -> None:
        """Start jobs in the queue's order until one is blocked in each partition; those that start leave the queue."""
        self._heads(queue, now_s, Pass())

    def _heads(self, queue: list[ReplayJob], now_s: float, found: Pass) -> set[int]:
        """The numbers of those that were tried in vain. No job takes nodes that a blocked job may use."""
        started: list[int] = []
        tried: set[int] = set()
        blocked: set[str] = set()
        for position, job in enumerate(queue):
            partition = job.trace.partition
            if partition not in blocked and not any(self._occupancy.overlap(partition, other) for other in blocked):
                if self._try(job, now_s, (), found):
                    started.append(position)
                    continue
                tried.add(job.number)
            blocked.add(partition)
            if partition == "":
                break
        for position in reversed(started):
            del queue[position]
        return tried

    def backfill(self, queue: list[ReplayJob], running: Callable[[], Iterable[ReplayJob]], now_s: float) -> None:
        """One pass: heads, a reservation for the first blocked job of each partition, then what fits around them.

        Jobs that start leave the queue.
        """
        found = Pass()
        tried = self._heads(queue, now_s, found)
        if not queue or self._occupancy.free_gpus == 0:
            return
        reserved: dict[str, Reservation] = {}
        others: list[ReplayJob] = []
        started: set[int] = set()
        near = queue[: self._settings.backfill_depth]
        for job in near:
            if job.trace.partition in reserved:
                if job.gpus <= self._occupancy.free_gpus:  # a pass only takes
                    others.append(job)
            elif job.number not in tried and self._try(job, now_s, tuple(reserved.values()), found):
                started.add(job.number)
            else:
                reserved[job.trace.partition] = self._reserve(job, running(), now_s)
        if self._policy.order == "response":
            others.sort(key=lambda job: -self._ratio(job, now_s))
        around = tuple(reserved.values())
        for job in others:
            if self._occupancy.free_gpus == 0:
                break
            if self._try(job, now_s, around, found):
                started.add(job.number)
        if started:
            queue[: len(near)] = [job for job in near if job.number not in started]

    def _ratio(self, job: ReplayJob, now_s: float) -> float:
        return response_ratio(now_s - job.submit_s, job.limit_s, job.gpus)

    def _try(self, job: ReplayJob, now_s: float, reserved: Sequence[Reservation], found: Pass) -> bool:
        """Start the job if it fits, does not rather wait, and delays no reserved job."""
        if job.gpus > self._occupancy.free_gpus:
            return False
        steered = self._steered(job, now_s)
        rule_name = self._policy.placement if steered else PLAIN
        kind = self._kind(job) if steered else ~self._kind(job)
        if job.limit_s >= found.refused_s.get(kind, math.inf):
            return False
        placed = self._offer(job, rule_name, kind, found.offers)
        if placed is None:
            return False
        # Only a job at the head waits: its start is reserved, so that it waits no longer than waiting pays.
        if not reserved and self._waits(job, placed, now_s):
            return False
        held = slots(placed)
        for position, reservation in enumerate(reserved):
            if not reservation.allows(held, now_s + job.limit_s):
                for earlier in reserved[:position]:
                    earlier.release(held, now_s + job.limit_s)
                if rule_name not in DRAWN_ANEW:
                    found.refused_s[kind] = job.limit_s
                return False
        self._start(job, placed)
        found.started()
        return True

    def _offer(
        self, job: ReplayJob, rule_name: str, kind: Kind, offers: dict[Kind, Placement | None]
    ) -> Placement | None:
        """Where the job would start now."""
        if kind not in offers or (offers[kind] is not None and rule_name in DRAWN_ANEW):
            offers[kind] = self._occupancy.place(rule_name, job.trace.shape, self.rule(job), job.trace.partition)
        return offers[kind]

    def _kind(self, job: ReplayJob) -> Kind:
        """The number of what a rule goes by in a job: never negative."""
        if job.kind is None:
            looked_at = (job.trace.shape, job.trace.sensitivity, job.trace.partition, job.locality_penalty)
            job.kind = self._kinds.setdefault(looked_at, len(self._kinds))
        return job.kind

    def _steered(self, job: ReplayJob, now_s: float) -> bool:
        """Whether we place the job: without a tick only palsub does, and only jobs that need not queue."""
        if self._settings.steer == "start" or now_s <= job.submit_s + self._settings.backfill_interval_s:
            return True
        return job.patient_until_s is not None and now_s <= job.patient_until_s

    def rule(self, job: ReplayJob) -> Rule:
        """The parameters of this job's placement; what is drawn is drawn anew each time."""
        self._drawn += 1
        return Rule(job.trace.sensitivity, job.locality_penalty, self._settings.barred_slowdown, self._drawn, True)

    def _waits(self, job: ReplayJob, placed: Placement, now_s: float) -> bool:
        """Whether a sensitive job turns down outliers: as long as waiting for others can pay, and others exist."""
        bar = self._settings.barred_slowdown
        if not self._policy.waits or job.trace.sensitivity in INSENSITIVE or placed.slowdown <= bar:
            return False
        if self._suitable(job) < job.gpus or not self._steered(job, now_s):
            return False
        if job.patient_until_s is None:
            expected_s = job.limit_s * self._settings.expected_run_share
            job.patient_until_s = now_s + self._settings.wait_share * patience_s(
                placed.product, hoped(job.trace.shape, placed.locality, job.locality_penalty), expected_s
            )
        until_s = job.patient_until_s
        if now_s >= until_s:
            return False
        self._patience_end_s = until_s if self._patience_end_s is None else min(self._patience_end_s, until_s)
        return True

    def _suitable(self, job: ReplayJob) -> int:
        """How many GPUs of the job's partition are not outliers for it, free or not."""
        key = (job.trace.sensitivity, job.trace.partition)
        if key not in self._capable:
            self._capable[key] = sum(
                1
                for node, row in enumerate(self._occupancy.believed(job.trace.sensitivity))
                if self._occupancy.in_partition(job.trace.partition, node)
                for slowdown in row
                if slowdown <= self._settings.barred_slowdown
            )
        return self._capable[key]

    def _reserve(self, job: ReplayJob, running: Iterable[ReplayJob], now_s: float) -> Reservation:
        """When the job can start at the latest; one that waits for better GPUs keeps any until its patience ends.

        Others whose time limit lies before that end may use the free GPUs meanwhile.
        """
        partition, sizes = job.trace.partition, self._occupancy.node_gpus

        def suits(node: int, index: int) -> bool:
            return self._occupancy.in_partition(partition, node)

        need = need_of(job.trace.shape, self._occupancy.largest_node(partition))
        assert need is not None, "jobs that can never fit are turned away before they queue"
        free = self._occupancy.free_counts(partition)
        ends = ((other.limit_end_s, other.held) for other in running)
        return Reservation(
            need, free, ends, suits if partition else None, now_s, job.patient_until_s or 0.0,
            whole=sizes if job.trace.shape.whole_nodes else None,
        )  # fmt: skip
