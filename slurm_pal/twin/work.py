# SPDX-License-Identifier: MIT
"""What the jobs of a trace do while they run: as fast as their GPUs are, and a checkpoint where one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slurm_pal.base import marks
from slurm_pal.placement.occupancy import Table
from slurm_pal.simulate.jobs import ReplayJob
from slurm_pal.simulate.result import JobOutcome
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import NODE_FAIL, PREEMPTED, REQUEUED, VirtualSlurm

CHECKPOINT_SHARE = 1 / 3
"""Of what a move costs a job: writing its checkpoint; the rest is its restart. Slurm's own gap comes on top."""


def feels(sensitivity: str) -> str:
    """The class whose slowdowns a job really feels; one that nobody classified feels those of class A."""
    return "A" if sensitivity == "?" else sensitivity


class Work:
    """The jobs' own part of a replay: a `Payload` of the virtual Slurm. `later` puts something off: (moment, what).

    A movable job saves its progress each `checkpoint_s` of work, for the case that its node fails or that a job of a
    higher tier comes.
    """

    def __init__(
        self, true: Mapping[str, Table], names: tuple[str, ...], start_s: float, warmup_s: float, launch_s: float,
        later: Callable[[float, Callable[[], None]], None], checkpoint_s: float = 3600.0,
    ) -> None:  # fmt: skip
        self._checkpoint_s = checkpoint_s
        self._true, self._names, self._origin_s = true, names, start_s
        self._warmup_s, self._launch_s, self._later = warmup_s, launch_s, later
        self.slurm: VirtualSlurm | None = None
        self.jobs: dict[int, ReplayJob] = {}  # by Slurm's number
        self.outcomes: list[JobOutcome] = []
        self.gpu_s = self.move_gpu_s = 0.0
        self.moves = self.busy = 0
        self.lost: dict[int, float] = {}  # GPU-s that did not bring a job on which ran more than once, by its number
        self._began: dict[int, float] = {}  # what was done when its run began, ideal s
        self._acks: dict[int, int] = {}
        self._saved: dict[int, float] = {}  # what was done at its last acknowledged checkpoint, ideal s

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        own, at_s = self.jobs[job.job_id], now_s - self._origin_s
        held = tuple((take.node, take.indexes) for take in job.takes)
        true = self._true[feels(own.trace.sensitivity)]
        slowdown = max(true[node][index] for node, indexes in held for index in indexes)
        again_s = 0.0
        if own.first_start_s is not None:
            again_s = (1 - CHECKPOINT_SHARE) * own.move_cost_s
            self.move_gpu_s += again_s * sum(len(indexes) for _, indexes in held)
        locality = own.locality_penalty if len(held) > 1 else 1.0
        own.begin(held, slowdown, locality, at_s, self._launch_s + self._warmup_s + again_s)
        self.busy += own.held_gpus
        self._began[job.job_id] = own.done_s
        return self._end(own)

    def stopped(self, job: VirtualJob, now_s: float, state: str) -> None:
        own = self.jobs[job.job_id]
        if own.held:
            self.gpu_s += own.advance(now_s - self._origin_s)
            self.busy -= own.held_gpus
        if state in (NODE_FAIL, REQUEUED):
            self._failed(own, job, now_s)
        elif state == "PENDING":
            own.moves += 1
            self.moves += 1
            self._count(own, job, own.done_s if own.trace.movable else 0.0, now_s)
            if not own.trace.movable:  # it starts from the top
                own.lose(0.0)
        else:
            if own.held and own.moves + own.restarts:
                self._count(own, job, own.done_s, now_s)
            self._ended(own, now_s, state)

    def _ended(self, own: ReplayJob, now_s: float, state: str) -> None:
        if own.reported:
            found = own.outcome(now_s - self._origin_s, self._names)
            self.outcomes.append(found._replace(end=state) if state == PREEMPTED else found)

    def _failed(self, own: ReplayJob, job: VirtualJob, now_s: float) -> None:
        """A job that can write checkpoints goes on from its last one, others from the top."""
        if job.requeues:
            own.restarts += 1
            kept_s = 0.0
            if own.trace.movable:
                kept_s = max(own.done_s - own.done_s % self._checkpoint_s, self._saved.get(job.job_id, 0.0))
            self._count(own, job, kept_s, now_s)
            own.lose(kept_s)
        elif own.reported:
            self.outcomes.append(own.outcome(now_s - self._origin_s, self._names)._replace(end=NODE_FAIL))

    def _count(self, own: ReplayJob, job: VirtualJob, kept_s: float, now_s: float) -> None:
        """A run is over, of which `kept_s` stay done: the rest of it brought the job nothing."""
        kept_s = max(0.0, kept_s - self._began[job.job_id])
        vain_s = now_s - self._origin_s - own.start_s - self._launch_s - self._warmup_s - kept_s * own.factor
        self.lost[job.job_id] = self.lost.get(job.job_id, 0.0) + max(0.0, vain_s) * own.held_gpus

    def signalled(self, job: VirtualJob, name: str, now_s: float) -> None:
        """A checkpoint: no progress while it is written, then its acknowledgement in the job's comment."""
        own = self.jobs[job.job_id]
        cost_s = CHECKPOINT_SHARE * own.move_cost_s
        self.gpu_s += own.advance(now_s - self._origin_s)
        own.works_from_s = max(own.works_from_s, now_s - self._origin_s) + cost_s
        self.move_gpu_s += cost_s * own.held_gpus
        assert self.slurm is not None
        self.slurm.ends(job, *self._end(own))
        restarts, done_s = job.restarts, own.done_s
        self._later(now_s + cost_s, lambda: self._acknowledge(job, restarts, done_s))

    def _acknowledge(self, job: VirtualJob, restarts: int, done_s: float) -> None:
        if job.state != "RUNNING" or job.restarts != restarts or self.slurm is None:
            return
        self._saved[job.job_id] = done_s
        self._acks[job.job_id] = number = self._acks.get(job.job_id, 0) + 1
        text = marks.put(job.comment, {marks.ACK: f"{job.restarts}.{number}"})
        if text is not None:
            job.comment = text
            job.changed()

    def _end(self, own: ReplayJob) -> tuple[float, str]:
        return self._origin_s + own.end_s, "TIMEOUT" if own.limit_end_s <= own.end_s else "COMPLETED"
