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
        self._patience_end_s: float | None = None

    def next_patience_end(self) -> float | None:
        """When to look again, because a job that waits for better GPUs will take others then; told once."""
        end_s, self._patience_end_s = self._patience_end_s, None
        return end_s

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
        # Only a job at the head waits: its start is reserved, so that it waits no longer than that pays.
        if not reserved and self._waits(job, placed, now_s):
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
        rule_name = self._policy.placement if self._steered(job, now_s) else PLAIN
        self._drawn += 1
        return self._occupancy.place(rule_name, job.trace.shape, self.rule(job), job.trace.partition)

    def _steered(self, job: Job, now_s: float) -> bool:
        """Whether anybody places the job: without a tick only palsub does, and no job that has to queue."""
        if self._settings.steer == "start" or now_s <= job.submit_s + self._settings.backfill_interval_s:
            return True
        return job.patient_until_s is not None and now_s <= job.patient_until_s

    def rule(self, job: Job) -> Rule:
        """The parameters of this job's placement."""
        return Rule(job.trace.sensitivity, job.locality_penalty, self._settings.barred_slowdown, self._drawn)

    def _waits(self, job: Job, placed: Placement, now_s: float) -> bool:
        """Whether a sensitive job turns down outliers: as long as waiting for others can pay, and others exist."""
        bar = self._settings.barred_slowdown
        if not self._policy.waits or job.trace.sensitivity in INSENSITIVE or placed.slowdown <= bar:
            return False
        if self._suitable(job) < job.gpus or not self._steered(job, now_s):
            return False
        if job.patient_until_s is None:
            expected_s = job.limit_s * self._settings.expected_run_share
            job.patient_until_s = now_s + patience_s(placed.product, placed.locality, expected_s)
        until_s = job.patient_until_s
        if now_s >= until_s:
            return False
        self._patience_end_s = until_s if self._patience_end_s is None else min(self._patience_end_s, until_s)
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
        """When the job can start at the latest; one that waits for better GPUs keeps any until its patience ends.

        Others whose time limit lies before that end may use the free GPUs meanwhile.
        """
        partition = job.trace.partition

        def suits(node: int, index: int) -> bool:
            return self._occupancy.in_partition(partition, node)

        need = need_of(job.trace.shape, max(self._occupancy.node_gpus))
        assert need is not None, "jobs that can never fit are turned away before they queue"
        free = [self._occupancy.free(node) if suits(node, 0) else 0 for node in range(len(self._occupancy.names))]
        ends = ((other.limit_end_s, other.held) for other in running)
        return Reservation(need, free, ends, suits, now_s, job.patient_until_s or 0.0)
