# SPDX-License-Identifier: MIT
"""A job inside a replay: waiting or running, and the work it has done."""

from __future__ import annotations

from slurm_pal.simulate.result import JobOutcome
from slurm_pal.simulate.settings import ReplaySettings
from slurm_pal.simulate.trace import TraceJob

Held = tuple[tuple[int, tuple[int, ...]], ...]
"""GPUs as (node, indexes)."""


class ReplayJob:
    """State of one job. `done_s` counts ideal seconds; moments are s from the start of the trace."""

    __slots__ = (
        "account", "attained_s", "believed", "done_s", "edition", "factor", "first_start_s", "gpus", "held",
        "held_gpus", "ideal_s", "kind", "limit_s", "locality", "locality_penalty", "move_cost_s", "moves", "number",
        "patient_until_s", "reported", "restarts", "since_s", "slowdown", "start_s", "submit_s", "trace",
        "user", "weighted_locality", "weighted_slowdown", "works_from_s",
    )  # fmt: skip

    def __init__(self, trace: TraceJob, number: int, settings: ReplaySettings, reported: bool) -> None:
        self.trace, self.number, self.reported = trace, number, reported
        self.submit_s, self.ideal_s, self.gpus = trace.submit_s, trace.ideal_s, trace.shape.total
        self.user, self.account = trace.user, trace.account
        own = trace.locality_penalty
        self.locality_penalty = settings.locality_penalty if own is None else own
        self.move_cost_s = settings.move_cost_s if trace.move_cost_s is None else trace.move_cost_s
        default_s = settings.limit_factor * self.locality_penalty * trace.ideal_s
        self.limit_s = default_s if trace.limit_s is None else trace.limit_s
        self.held: Held = ()
        self.held_gpus = 0  # more than `gpus` when it is given whole nodes
        self.done_s = self.attained_s = 0.0
        self.start_s = self.since_s = self.works_from_s = 0.0
        self.first_start_s: float | None = None
        self.factor = self.slowdown = self.locality = 1.0
        self.believed = 1.0  # the factor as placement sees it
        self.weighted_slowdown = self.weighted_locality = 0.0
        self.moves = self.restarts = self.edition = 0
        self.kind: int | None = None  # of the placements that it may get (see Starter)
        self.patient_until_s: float | None = None  # how long waiting for better GPUs can pay

    def begin(self, held: Held, slowdown: float, locality: float, now_s: float, idle_s: float) -> None:
        """Start or go on elsewhere; for `idle_s` the GPUs are held without progress."""
        self.held, self.slowdown, self.locality, self.factor = held, slowdown, locality, slowdown * locality
        self.held_gpus = sum(len(indexes) for _, indexes in held)
        self.start_s = self.since_s = now_s
        self.works_from_s = now_s + idle_s
        self.edition += 1
        if self.first_start_s is None:
            self.first_start_s = now_s

    def advance(self, now_s: float) -> float:
        """Work up to now; returns the GPU-seconds held since the last call."""
        held_s = now_s - self.since_s
        worked_s = now_s - max(self.since_s, self.works_from_s)
        if worked_s > 0:
            done_s = min(worked_s / self.factor, self.ideal_s - self.done_s)
            self.done_s += done_s
            self.weighted_slowdown += done_s * self.slowdown
            self.weighted_locality += done_s * self.locality
        self.attained_s += held_s
        self.since_s = now_s
        return held_s * self.held_gpus

    @property
    def end_s(self) -> float:
        """When it ends as things are: its work done, or killed at its time limit."""
        return min(self.works_from_s + self._left_at_start() * self.factor, self.limit_end_s)

    @property
    def limit_end_s(self) -> float:
        return self.start_s + self.limit_s

    @property
    def killed(self) -> bool:
        """Whether the time limit comes before the end of the work."""
        return self.ideal_s - self.done_s > 1e-6 * self.ideal_s

    def lose(self, kept_s: float) -> None:
        """Go back to `kept_s` of ideal work, after a failure; its wait from now on is a new one."""
        lost = 1.0 - kept_s / self.done_s if self.done_s > 0 else 0.0
        self.weighted_slowdown *= 1.0 - lost
        self.weighted_locality *= 1.0 - lost
        self.done_s = kept_s
        self.patient_until_s = None
        self.held, self.held_gpus = (), 0

    def outcome(self, now_s: float, names: tuple[str, ...]) -> JobOutcome:
        work = self.done_s or 1.0
        trace = self.trace
        return JobOutcome(
            job_id=trace.job_id, submit_s=self.submit_s,
            start_s=self.submit_s if self.first_start_s is None else self.first_start_s, finish_s=now_s,
            gpus=self.gpus, ideal_s=self.ideal_s, sensitivity=trace.sensitivity,
            slowdown=self.weighted_slowdown / work if self.done_s else self.slowdown,
            locality=self.weighted_locality / work if self.done_s else self.locality,
            moves=self.moves, restarts=self.restarts, nodes=tuple(names[node] for node, _ in self.held),
            end="TIMEOUT" if self.killed else "COMPLETED",
            user=trace.user, account=trace.account, partition=trace.partition,
        )  # fmt: skip

    def _left_at_start(self) -> float:
        """Ideal seconds left when the GPUs began to work, or now if later."""
        worked_s = max(0.0, self.since_s - self.works_from_s)
        return self.ideal_s - self.done_s + worked_s / self.factor
