"""Which pending jobs start now, and on which GPUs: the queue, EASY backfill and the policy together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.need import need_of
from slurm_pal.placement.occupancy import PLAIN, Occupancy
from slurm_pal.placement.patience import patience_s
from slurm_pal.placement.view import Placement, Rule
from slurm_pal.rebalance.moves import slots
from slurm_pal.rebalance.order import response_ratio
from slurm_pal.simulate.easy import Reservation
from slurm_pal.simulate.jobs import Job
from slurm_pal.simulate.policies import SimPolicy
from slurm_pal.simulate.settings import Settings


class Starter:
    """Decides starts on one occupancy; `start(job, placement)` carries them out."""

    def __init__(
        self, occupancy: Occupancy, policy: SimPolicy, settings: Settings, start: Callable[[Job, Placement], None]
    ) -> None:
        self._occupancy, self._policy, self._settings, self._start = occupancy, policy, settings, start
        self._drawn = 0
        self._capable: dict[tuple[str, str], int] = {}
        self.wake_s: float | None = None  # when a waiting job's patience ends

    def heads(self, queue: Sequence[Job], now_s: float) -> list[Job]:
        """Start jobs in the queue's order until one is blocked in each partition; returns who is left."""
        left: list[Job] = []
        blocked: set[str] = set()
        for position, job in enumerate(queue):
            partition = job.trace.partition
            if partition in blocked or "" in blocked or not self._try(job, now_s, ()):
                blocked.add(partition)
                left.append(job)
                if partition == "":
                    return left + list(queue[position + 1 :])
        return left

    def backfill(self, queue: Sequence[Job], running: Callable[[], Sequence[Job]], now_s: float) -> list[Job]:
        """One pass: heads, a reservation for the first blocked job of each partition, then whoever fits around it."""
        left = self.heads(queue, now_s)
        if not left or self._occupancy.free_gpus == 0:
            return left
        reserved: dict[str, Reservation] = {}
        for job in left[: self._settings.backfill_depth]:
            if job.trace.partition not in reserved:
                reserved[job.trace.partition] = self._reserve(job, running(), now_s)
        rest = left[: self._settings.backfill_depth]
        first = {id(next(job for job in rest if job.trace.partition == name)) for name in reserved}
        others = [job for job in rest if id(job) not in first]
        if self._policy.order == "response":
            others.sort(key=lambda job: -self._ratio(job, now_s))
        hopeless: set[tuple[object, ...]] = set()
        started: set[int] = set()
        for job in others:
            if self._occupancy.free_gpus == 0:
                break
            kind = (job.trace.shape, job.trace.sensitivity, job.trace.partition, job.locality_penalty)
            if kind in hopeless:
                continue
            if self._try(job, now_s, tuple(reserved.values()), hopeless, kind):
                started.add(id(job))
        return [job for job in left if id(job) not in started]

    def _ratio(self, job: Job, now_s: float) -> float:
        return response_ratio(now_s - job.submit_s, job.limit_s, job.gpus)

    def _try(
        self,
        job: Job,
        now_s: float,
        reserved: Sequence[Reservation],
        hopeless: set[tuple[object, ...]] | None = None,
        kind: tuple[object, ...] = (),
    ) -> bool:
        if job.gpus > self._occupancy.free_gpus:
            return False
        placed = self._offer(job, now_s)
        if placed is None:
            if hopeless is not None:
                hopeless.add(kind)
            return False
        if self._waits(job, placed, now_s):
            return False
        held = slots(placed)
        for position, reservation in enumerate(reserved):
            if not reservation.allows(held, now_s + job.limit_s):
                for earlier in reserved[:position]:
                    earlier.release(held, now_s + job.limit_s)
                return False
        self._start(job, placed)
        return True

    def _offer(self, job: Job, now_s: float) -> Placement | None:
        settings, rule_name = self._settings, self._policy.placement
        if settings.steer == "submit" and now_s > job.submit_s + settings.backfill_interval_s:
            rule_name = PLAIN  # nobody steers a job that had to queue
        self._drawn += 1
        return self._occupancy.place(rule_name, job.trace.shape, self.rule(job), job.trace.partition)

    def rule(self, job: Job) -> Rule:
        """The parameters of this job's placement."""
        return Rule(job.trace.sensitivity, job.locality_penalty, self._settings.barred_slowdown, self._drawn)

    def _waits(self, job: Job, placed: Placement, now_s: float) -> bool:
        """Whether a sensitive job turns down outliers: as long as waiting for others can pay, and others exist."""
        bar = self._settings.barred_slowdown
        if not self._policy.bars or job.trace.sensitivity in INSENSITIVE or placed.slowdown <= bar:
            return False
        if self._suitable(job) < job.gpus:
            return False
        if job.offered_s is None:
            job.offered_s = now_s
        expected_s = job.limit_s * self._settings.expected_run_share
        until_s = job.offered_s + patience_s(placed.product, placed.locality, expected_s)
        if now_s >= until_s:
            return False
        self.wake_s = until_s if self.wake_s is None else min(self.wake_s, until_s)
        return True

    def _suitable(self, job: Job) -> int:
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

    def _reserve(self, job: Job, running: Sequence[Job], now_s: float) -> Reservation:
        """When the job can start at the latest; a job that waits for better GPUs counts only those."""
        table, bar = self._occupancy.believed(job.trace.sensitivity), self._settings.barred_slowdown
        picky = job.offered_s is not None and self._policy.bars
        partition = job.trace.partition

        def suits(node: int, index: int) -> bool:
            return self._occupancy.in_partition(partition, node) and not (picky and table[node][index] > bar)

        need = need_of(job.trace.shape, max(self._occupancy.node_gpus))
        assert need is not None, "jobs that can never fit are turned away before they queue"
        nodes = range(len(self._occupancy.names))
        free = [
            sum(1 for index in self._occupancy.free_indexes(node) if suits(node, index))
            if picky
            else (self._occupancy.free(node) if self._occupancy.in_partition(partition, node) else 0)
            for node in nodes
        ]
        return Reservation(need, free, ((other.limit_end_s, other.held) for other in running), suits, now_s)
