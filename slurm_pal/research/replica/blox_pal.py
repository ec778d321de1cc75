# SPDX-License-Identifier: MIT
"""The published simulator's loop: rounds of progress, arrivals, ordering and placement (pal.md 1.3 to 1.5).

The policy is a name from published_policies.py or any round policy as active.py describes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from slurm_pal.base.errors import PalError, UsageError
from slurm_pal.research.replica.active import QUEUES, ActiveJob, Gpus, RoundPolicy, RoundSettings, RoundState
from slurm_pal.research.replica.published_policies import build
from slurm_pal.simulate.inputs.pal_profile import Profile
from slurm_pal.simulate.inputs.pal_rows import PalRow
from slurm_pal.simulate.result import JobOutcome, Replay, Timeline

REPLAYED_JOBS_PER_H = 2
PATIENCE = 4
"""A run ends as starved after this many times what its jobs would take one by one on the slowest GPUs."""


class BloxStarvedError(PalError):
    """Jobs of the trace do not finish: whatever the replay adds, or the policy does, is always preferred."""


class BloxFigures(NamedTuple):
    """The artefact's figures over the jobs of the trace; replayed copies count in the last three only."""

    avg_jct_s: float
    p99_jct_s: float
    median_jct_s: float
    makespan_s: float
    rounds: int
    migrations: int
    utilisation: float  # 0..1


class BloxResult(NamedTuple):
    replay: Replay
    figures: BloxFigures


def run(
    rows: Sequence[PalRow],
    policy: str | RoundPolicy,
    profile: Profile,
    settings: RoundSettings | None = None,
    name: str = "",
) -> BloxResult:
    """Simulate the jobs of a trace to the end. `name` is what the result calls a policy given as a callable.

    Raises UsageError for a row or setting that cannot be simulated, or a wrong answer of the
    policy; BloxStarvedError when jobs have not finished after PATIENCE times what all of them
    would need one after the other on the slowest GPUs.
    """
    settings = settings or RoundSettings()
    settings.check()
    _check(rows, profile, settings)
    label = policy if isinstance(policy, str) else name or "custom"
    chosen = build(policy, profile, settings) if isinstance(policy, str) else policy
    loop = _Loop(rows, chosen, profile, settings)
    while loop.step():
        pass
    return loop.result(label)


def replayed(rows: Sequence[PalRow], first: int, after_s: float, seed: int) -> Iterator[ActiveJob]:
    """Copies of the trace in turn, for ever, at Poisson arrivals after `after_s`; times in whole seconds."""
    generator = Random(seed)
    submit_s, number = after_s, first
    while True:
        submit_s += math.ceil(-math.log(1.0 - generator.random()) / REPLAYED_JOBS_PER_H * 60 * 60)
        yield ActiveJob(number, rows[(number - first) % len(rows)], submit_s)
        number += 1


class _Loop:
    """The state of one simulation; `step` is one round.

    Most rounds change nothing, so the parts that only a change needs stand apart.
    """

    def __init__(self, rows: Sequence[PalRow], policy: RoundPolicy, profile: Profile, settings: RoundSettings) -> None:
        self.policy, self.profile, self.settings = policy, profile, settings
        self.key = QUEUES[settings.queue]
        self.rows = rows
        self.n_rounds = 0  # so far; now is n_rounds * round_s
        self.arrivals = self._arrivals()
        self.next_job = next(self.arrivals, None)
        self.active: list[ActiveJob] = []  # in order of arrival
        self.running: list[ActiveJob] = []
        self.charged: list[ActiveJob] = []  # started or moved at the last placement, where that costs
        self.finished: list[tuple[float, ActiveJob]] = []  # jobs of the trace
        self.held_gpus = self.moves = self.moved_gpus = 0
        self.gpu_rounds = 0
        self.changes: list[tuple[float, int, int]] = []
        slowest = {c: max(values) for c, values in profile.slowdown.items()}
        serial_s = sum(row.ideal_s * slowest[row.sensitivity] * settings.locality_penalty for row in rows)
        serial_s *= settings.round_s / (settings.round_s - settings.start_cost_s)  # moved in every round
        # Each job may waste the rest of its last round, and wait for the first.
        serial_s += max(row.submit_s for row in rows) + 2 * len(rows) * settings.round_s
        self.give_up_s = PATIENCE * serial_s

    def _arrivals(self) -> Iterator[ActiveJob]:
        """The trace by the round that admits each job, then by line; then the replay, where asked for."""
        round_s = self.settings.round_s
        jobs = [ActiveJob(i, row, row.submit_s) for i, row in enumerate(self.rows)]
        yield from sorted(jobs, key=lambda job: math.ceil(job.submit_s / round_s))
        if self.settings.replay:
            last_s = max(row.submit_s for row in self.rows)
            yield from replayed(self.rows, len(self.rows), last_s, self.settings.replay_seed)

    def step(self) -> bool:
        """One round; False when all jobs of the trace have finished."""
        now_s = self.n_rounds * self.settings.round_s
        self._progress(now_s)
        if len(self.finished) == len(self.rows):
            self._record(now_s)
            return False
        if now_s > self.give_up_s:
            raise self._starved(now_s)
        while self.next_job is not None and self.next_job.submit_s <= now_s:
            self.active.append(self.next_job)
            self.next_job = next(self.arrivals, None)
        ordered = sorted(self.active, key=self.key)
        self._hold(self.policy(RoundState(now_s, ordered, self.profile, self.settings)), now_s)
        self.gpu_rounds += self.held_gpus
        self.n_rounds += 1
        if not self.active and self.next_job is not None:
            self.n_rounds = max(self.n_rounds, math.ceil(self.next_job.submit_s / self.settings.round_s))
        return True

    def _progress(self, now_s: float) -> None:
        round_s = self.settings.round_s
        done = []
        for job in self.running:
            step = job.step
            job.executed += step
            job.attained_s += round_s
            job.slowdown_work += step * job.slowdown
            job.locality_work += step * job.locality
            if job.executed >= job.row.iterations:
                done.append(job)
        for job in self.charged:
            job.step = self._step(job, round_s)
        self.charged = []
        for job in done:
            self.running.remove(job)
            self.active.remove(job)
            self.held_gpus -= job.size
            if job.number < len(self.rows):
                self.finished.append((now_s, job))

    def _hold(self, allocation: Mapping[int, Gpus], now_s: float) -> None:
        """Give every job what the policy says, and count what changed."""
        changed = [job for job in self.active if allocation.get(job.number, ()) != job.gpus]
        if changed or len(allocation) != len(self.running):
            self._check_answer(allocation)
        for job in changed:
            gpus = allocation.get(job.number, ())
            if gpus:
                self._start(job, gpus, now_s)
            job.gpus = gpus
        if changed:
            self.running = [job for job in self.active if job.gpus]
            self.held_gpus = sum(job.size for job in self.running)
        self._record(now_s)

    def _record(self, now_s: float) -> None:
        state = (self.held_gpus, len(self.active) - len(self.running))
        if not self.changes or self.changes[-1][1:] != state:
            self.changes.append((now_s, *state))

    def _start(self, job: ActiveJob, gpus: Gpus, now_s: float) -> None:
        """Put a job on GPUs that it did not have in the last round."""
        if job.start_s < 0:
            job.start_s = now_s
        else:
            job.moves += 1
            self.moves += 1
            self.moved_gpus += job.size
        slowdown = self.profile.slowdown[job.sensitivity]
        job.slowdown = max([slowdown[g] for g in gpus])
        per_node = self.profile.gpus_per_node
        job.locality = self.settings.locality_penalty if gpus[0] // per_node != gpus[-1] // per_node else 1.0
        cost_s = self.settings.start_cost_s
        job.step = self._step(job, self.settings.round_s - cost_s)
        if cost_s:
            self.charged.append(job)

    def _step(self, job: ActiveJob, seconds: float) -> float:
        return seconds / (job.slowdown * job.locality * job.row.iteration_s)

    def _check_answer(self, allocation: Mapping[int, Gpus]) -> None:
        sizes = {job.number: job.size for job in self.active}
        seen: set[int] = set()
        for number, gpus in allocation.items():
            if number not in sizes:
                raise UsageError(f"policy gave GPUs to job {number}, which is not active")
            if len(gpus) != sizes[number]:
                raise UsageError(f"policy gave job {number} the GPUs {gpus}; it wants {sizes[number]}")
            if not isinstance(gpus, tuple) or any(a >= b for a, b in pairwise(gpus)):
                raise UsageError(f"policy gave job {number} the GPUs {gpus}; it must be a tuple of rising ids")
            seen.update(gpus)
        if sum(map(len, allocation.values())) != len(seen):
            raise UsageError("policy gave one GPU to two jobs")
        if seen and not 0 <= min(seen) <= max(seen) < self.profile.n_gpus:
            raise UsageError(f"policy gave GPUs {min(seen)} to {max(seen)}; there are 0 to {self.profile.n_gpus - 1}")

    def _starved(self, now_s: float) -> BloxStarvedError:
        ended = {job.number for _, job in self.finished}
        left = [row.job_id for i, row in enumerate(self.rows) if i not in ended]
        advice = "; try without replay" if self.settings.replay else ""
        return BloxStarvedError(
            f"{len(left)} of {len(self.rows)} jobs, first {left[0]}, have not finished after {now_s:.0f} s, "
            f"{PATIENCE} times what all of them one by one would take{advice}"
        )

    def result(self, policy: str) -> BloxResult:
        settings, profile = self.settings, self.profile
        end_s = self.n_rounds * settings.round_s
        outcomes = tuple(self._outcome(finish_s, job) for finish_s, job in self.finished)
        jct_s = sorted(outcome.jct_s for outcome in outcomes)
        gpu_s = self.gpu_rounds * settings.round_s
        replay = Replay(
            policy=policy,
            queue=settings.queue,
            seed=profile.seed,
            n_gpus=profile.n_gpus,
            outcomes=outcomes,
            timeline=Timeline(*zip(*self.changes, strict=True)),
            gpu_s=gpu_s,
            moves=self.moves,
            move_gpu_s=self.moved_gpus * settings.start_cost_s,
            end_s=end_s,
        )
        figures = BloxFigures(
            avg_jct_s=sum(jct_s) / len(jct_s),
            p99_jct_s=jct_s[int(len(jct_s) * 0.99)],
            median_jct_s=jct_s[len(jct_s) // 2],
            makespan_s=end_s,
            rounds=self.n_rounds,
            migrations=self.moves,
            utilisation=gpu_s / (profile.n_gpus * end_s),
        )
        return BloxResult(replay, figures)

    def _outcome(self, finish_s: float, job: ActiveJob) -> JobOutcome:
        per_node = self.profile.gpus_per_node
        return JobOutcome(
            job_id=job.row.job_id,
            submit_s=job.submit_s,
            start_s=job.start_s,
            finish_s=finish_s,
            gpus=job.size,
            ideal_s=job.row.ideal_s,
            sensitivity=job.sensitivity,
            slowdown=job.slowdown_work / job.executed,
            locality=job.locality_work / job.executed,
            moves=job.moves,
            restarts=0,
            nodes=tuple(f"n{node}" for node in dict.fromkeys(g // per_node for g in job.gpus)),
        )


def _check(rows: Sequence[PalRow], profile: Profile, settings: RoundSettings) -> None:
    if not rows:
        raise UsageError("a trace without jobs cannot be simulated")
    for row in rows:
        values = profile.slowdown.get(row.sensitivity)
        if values is None:
            raise UsageError(f"job {row.job_id}: class {row.sensitivity!r} is not one of {', '.join(profile.slowdown)}")
        limit = settings.barred.get(row.sensitivity, math.inf)
        usable = sum(value <= limit for value in values)
        if row.gpus > usable:
            raise UsageError(f"job {row.job_id} wants {row.gpus} GPUs; class {row.sensitivity} may use {usable}")
