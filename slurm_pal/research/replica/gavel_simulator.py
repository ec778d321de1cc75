# SPDX-License-Identifier: MIT
"""Gavel's simulator, round for round (gavel.md 4 and 13): `run` gives its figures for one policy on one workload.

A round ends with the last of its running jobs, at most round_s after it began; a GPU whose
job ends earlier idles until then. Shares are computed anew when a job came or went, and only
after reset_s. Moves are free. Kept as published, because the figures depend on it:

* a job that came after the last computation may be chosen for GPUs that are left, and then
  they idle (gavel.md 9, defect 5);
* a job of several GPUs with fewer steps left than GPUs makes no progress; after FAILURES
  such rounds it is dropped, and its completion time counts nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.problem import Allocation, Matrix, Problem, problem
from slurm_pal.base.errors import PalError, UsageError
from slurm_pal.research.replica.gavel_jobs import GavelJob, GavelWorkload
from slurm_pal.research.rounds import Account, ChosenRow, RoundLease, RoundQueue, RowId, lease, select
from slurm_pal.simulate.pool import Progress

FAILURES = 5
STUCK_ROUNDS = 100
"""Rounds without progress after which a run is given up; the published loop would go on for ever."""


class GavelMoment(NamedTuple):
    """What a policy is asked: the problem, and who its rows are."""

    problem: Problem
    numbers: tuple[int, ...]  # job numbers, ascending


Decide = Callable[[GavelMoment], Allocation]
"""A policy in a run; it may keep a memory of earlier calls."""


class GavelRules(NamedTuple):
    """How the rounds treat a policy."""

    decide: Decide
    shuffled: bool = False  # the order of types is drawn in each round
    entitled_only: bool = False  # jobs without a share do not fill free GPUs
    pairs: bool = False  # pairs of jobs are rows of the queue


class GavelSettings(NamedTuple):
    """The published ones by default."""

    round_s: float = 360.0
    reset_s: float = 1920.0
    seed: int = 0
    window: tuple[int, int] | None = None  # job numbers, end exclusive: which are reported, and when the run stops

    def check(self, n_jobs: int) -> None:
        """Raises UsageError for a value that means nothing."""
        if not (0 < self.round_s < math.inf and 0 <= self.reset_s < math.inf):
            raise UsageError(
                f"rounds of {self.round_s:g} s, resets after {self.reset_s:g} s: above 0 and at least 0, and finite"
            )
        if self.window is not None and not 0 <= self.window[0] < self.window[1] <= n_jobs:
            raise UsageError(
                f"window {self.window[0]}:{self.window[1]} must be FIRST:END of job numbers within 0:{n_jobs}"
            )


class GavelOutcome(NamedTuple):
    """When a job of the window ran; `finish_s` is that of its last round also where it was dropped."""

    number: int
    gpus: int
    arrival_s: float
    start_s: float
    finish_s: float
    dropped: bool

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.arrival_s


class GavelFigures(NamedTuple):
    """Of one run; completion times over the jobs of the window that were not dropped."""

    avg_jct_s: float
    p99_jct_s: float
    makespan_s: float  # when the run stopped: the last job of the window was done
    utilisation: float  # busy GPU time over GPU time until then
    extended: float  # share of leases that went on on the same GPUs
    preemptions: int  # leases that did not
    rounds: int
    solves: int
    dropped: int


class GavelResult(NamedTuple):
    policy: str
    figures: GavelFigures
    outcomes: tuple[GavelOutcome, ...]


class StuckError(PalError):
    """No job makes progress, and nothing is to come that could change it."""


class StoppedError(PalError):
    """The run was ended from outside."""


def run(
    work: GavelWorkload,
    name: str,
    rules: GavelRules,
    settings: GavelSettings,
    progress: Progress = lambda done, of: True,
) -> GavelResult:
    """Simulate; `progress` is called after each round.

    Raises UsageError for settings that mean nothing, StuckError when no job makes progress any more,
    StoppedError on request of `progress`.
    """
    settings.check(len(work.jobs))
    return _Simulation(work, rules, settings).result(name, progress)


class _Task(NamedTuple):
    """A row that runs in the current round."""

    finish_s: float
    id: RowId
    place: ChosenRow
    steps: tuple[int, ...]  # of each job of the row


class _Progress:
    """What becomes of an active job."""

    def __init__(self, job: GavelJob) -> None:
        self.job = job
        self.left = job.steps
        self.failures = 0
        self.start_s = math.nan
        self.finish_s = math.nan


class _Simulation:
    def __init__(self, work: GavelWorkload, rules: GavelRules, settings: GavelSettings) -> None:
        self._work, self._rules, self._settings = work, rules, settings
        n = len(work.columns)
        self._speeds: list[list[float]] = work.rates.tolist()
        self._together: list[list[list[float]]] = work.pairs.tolist()
        self._draws = Random(settings.seed + 5)  # the published stream for the order of types
        self._active: dict[int, _Progress] = {}
        self._waiting = list(reversed(work.jobs))
        self._open = {job.number for job in work.jobs[slice(*settings.window or (None,))]}
        self._queue = RoundQueue((), np.zeros(0, np.int64), np.zeros((0, n), bool))
        self._account = Account(n)
        self._shares: Matrix = np.zeros((0, n))
        self._known: NDArray[np.bool_] = np.zeros(0, bool)
        self._leases: dict[RowId, RoundLease] = {}
        self._running: list[_Task] = []
        self._now_s = work.jobs[0].arrival_s if work.jobs else 0.0
        self._reset_at_s, self._stale = 0.0, True
        self._began_s, self._ended_s = 0.0, math.nan
        self._busy_s = 0.0
        self._kept = self._chances = self._rounds = self._solves = 0
        self._outcomes: list[GavelOutcome] = []

    # -- the loop -------------------------------------------------------------------------

    def result(self, name: str, progress: Progress) -> GavelResult:
        stalled, total = 0, len(self._work.jobs)
        while self._open:
            self._advance()
            self._complete()
            self._admit()
            if self._due():
                self._allocate()
            self._begin_round()
            stalled = stalled + 1 if self._stalls() else 0
            if stalled > STUCK_ROUNDS:
                raise StuckError(
                    f"{name}: {len(self._active)} jobs are left and none makes progress: they get no share, or only in "
                    "pairs with fewer steps in a round than GPUs; leave that policy out"
                )
            if not progress(total - len(self._waiting) - len(self._active), total):
                raise StoppedError("the run was stopped")
        return GavelResult(name, self._figures(), tuple(sorted(self._outcomes)))

    def _stalls(self) -> bool:
        """Whether the round that began changes nothing: no job runs, or only pairs without progress, and none comes.

        A job that makes none on its own is dropped before long.
        """
        for task in self._running:
            if task.id[1] < 0 or min(task.steps) >= self._queue.scale[task.place.row]:
                return False
        nearer = not self._running or max(task.finish_s for task in self._running) > self._now_s
        return bool(self._open) and not (self._waiting and nearer)

    def _advance(self) -> None:
        """To the end of the round, or to the next arrival where nothing runs."""
        if self._running:
            if not math.isnan(self._ended_s):
                self._began_s = self._ended_s  # published: after a gap, that is before the gap
            self._now_s = self._ended_s = max(task.finish_s for task in self._running)
        elif self._waiting:
            self._now_s = self._waiting[-1].arrival_s
        else:
            self._reset_at_s = 0.0  # nothing is to come: compute shares now

    def _complete(self) -> None:
        for task in sorted(self._running, key=lambda task: (-task.finish_s, task.id)):
            self._book(task)
        self._running = []
        over = {number for number, job in self._active.items() if job.left <= 0 or job.failures >= FAILURES}
        if over:
            for number in over:
                self._end(self._active.pop(number))
            self._keep(np.array([over.isdisjoint(row) for row in self._queue.ids], dtype=bool))
            self._stale = True

    def _book(self, task: _Task) -> None:
        seconds = task.finish_s - self._began_s
        jobs = [self._active[number] for number in task.id if number >= 0]
        for job in jobs:
            job.finish_s = task.finish_s
        size = jobs[0].job.gpus
        if min(task.steps) < size:  # each GPU is given its part of the steps, and one of them none
            if len(jobs) == 1:
                jobs[0].failures += 1
            self._stale = True
            return
        for job, steps in zip(jobs, task.steps, strict=True):
            job.left -= steps
        if len(jobs) == 1:
            jobs[0].failures = 0
        self._account.charge(task.place, seconds)
        self._busy_s += size * seconds

    def _end(self, done: _Progress) -> None:
        job = done.job
        if job.number in self._open:
            self._open.discard(job.number)
            self._outcomes.append(
                GavelOutcome(
                    job.number, job.gpus, job.arrival_s, done.start_s, done.finish_s, done.failures >= FAILURES
                )
            )

    # -- the queue ------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting and self._waiting[-1].arrival_s <= self._now_s:
            self._add(self._waiting.pop())
            self._stale = True

    def _add(self, job: GavelJob) -> None:
        """The job, then its pairs with the jobs that are there, in order of arrival."""
        partners = [other for other in self._active.values() if self._rules.pairs and self._can_share(other.job, job)]
        ids = [(job.number, -1), *((other.job.number, job.number) for other in partners)]
        able = [self._work.rates[job.kind] > 0, *(self._pair_able(other.job, job) for other in partners)]
        self._queue = RoundQueue(
            (*self._queue.ids, *ids),
            np.concatenate([self._queue.scale, np.full(len(ids), job.gpus)]),
            np.concatenate([self._queue.able, np.array(able)]),
        )
        # Published: a pair begins without the credit of a job.
        self._account.add(np.array([self._credit_s] + [0.0] * len(partners)))
        self._shares = np.concatenate([self._shares, np.zeros((len(ids), self._shares.shape[1]))])
        self._known = np.concatenate([self._known, np.zeros(len(ids), bool)])
        self._active[job.number] = _Progress(job)

    def _can_share(self, first: GavelJob, second: GavelJob) -> bool:
        return first.gpus == second.gpus and bool(self._pair_able(first, second).any())

    def _pair_able(self, first: GavelJob, second: GavelJob) -> NDArray[np.bool_]:
        pairs = self._work.pairs
        return np.asarray((pairs[first.kind, second.kind] > 0) & (pairs[second.kind, first.kind] > 0))

    def _keep(self, rows: NDArray[np.bool_]) -> None:
        ids = tuple(id for id, kept in zip(self._queue.ids, rows, strict=True) if kept)
        self._queue = RoundQueue(ids, self._queue.scale[rows], self._queue.able[rows])
        self._account.keep(rows)
        self._shares, self._known = self._shares[rows], self._known[rows]

    # -- shares ---------------------------------------------------------------------------

    @property
    def _credit_s(self) -> float:
        return self._settings.round_s / 2.0

    def _due(self) -> bool:
        """Whether shares are computed anew now."""
        waited = self._now_s - self._reset_at_s >= self._settings.reset_s or self._reset_at_s == 0
        return self._stale and waited

    def _allocate(self) -> None:
        self._account.reset(self._shares, self._now_s - self._reset_at_s, self._credit_s)
        self._reset_at_s, self._stale = self._now_s, False
        if not self._active:
            return
        self._solves += 1
        found = self._rules.decide(GavelMoment(self._problem(), tuple(self._active)))
        numbers = list(self._active)
        rows = {id: row for row, id in enumerate(self._queue.ids)}
        self._shares = np.zeros_like(self._shares)
        for number, shares in zip(numbers, found.shares, strict=True):
            self._shares[rows[number, -1]] = shares
        for pair in found.pairs:
            row = rows.get((numbers[pair.first], numbers[pair.second]))
            if row is not None:
                self._shares[row] = pair.shares
        self._known[:] = True

    def _problem(self) -> Problem:
        jobs = [progress.job for progress in self._active.values()]
        rows = {id[0]: row for row, id in enumerate(self._queue.ids) if id[1] < 0}
        whole = [self._shares[rows[job.number]] == 1.0 for job in jobs]
        kinds = np.array([job.kind for job in jobs])
        return problem(
            self._work.rates[kinds],
            [job.gpus for job in jobs],
            self._work.gpus,
            weight=[job.weight for job in jobs],
            remaining=[progress.left for progress in self._active.values()],
            age_s=[self._now_s - job.arrival_s for job in jobs],
            held=[int(share.argmax()) if share.any() else -1 for share in whole],
            deadline_s=[job.deadline_s - self._now_s for job in jobs],
            kind=kinds,
            pairs=self._work.pairs,
        )

    # -- a round --------------------------------------------------------------------------

    def _begin_round(self) -> None:
        turn = self._work.turn
        if self._rules.shuffled:
            self._draws.shuffle(turn)
        only = self._rules.entitled_only
        chosen = select(self._queue, self._shares, self._account, self._work.gpus, turn, entitled_only=only)
        chosen = [each for each in chosen if self._known[each.row]]
        leases = lease(self._queue, chosen, self._leases)
        self._chances += sum(any(number in self._active for number in id) for id in self._leases)
        self._kept += sum(self._leases.get(id) == new for id, new in leases.items())
        self._leases = leases
        self._running = [self._task(each) for each in chosen]
        self._rounds += bool(chosen)

    def _task(self, place: ChosenRow) -> _Task:
        id = self._queue.ids[place.row]
        jobs = [self._active[number] for number in id if number >= 0]
        kinds = [progress.job.kind for progress in jobs]
        if len(jobs) == 1:
            speeds = [self._speeds[kinds[0]][place.column]]
        else:
            speeds = [self._together[a][b][place.column] for a, b in (kinds, reversed(kinds))]
        steps = tuple(
            min(int(speed * self._settings.round_s), progress.left)
            for speed, progress in zip(speeds, jobs, strict=True)
        )
        for progress in jobs:
            if math.isnan(progress.start_s):
                progress.start_s = self._now_s
        finish_s = max(self._now_s + count / speed for count, speed in zip(steps, speeds, strict=True))
        return _Task(finish_s, id, place, steps)

    # -- figures --------------------------------------------------------------------------

    def _figures(self) -> GavelFigures:
        times_s = [outcome.jct_s for outcome in self._outcomes if not outcome.dropped]
        total_s = self._now_s * sum(self._work.gpus)
        return GavelFigures(
            avg_jct_s=float(np.mean(times_s)) if times_s else math.nan,
            p99_jct_s=float(np.percentile(times_s, 99)) if times_s else math.nan,
            makespan_s=self._now_s,
            utilisation=self._busy_s / total_s if total_s else math.nan,
            extended=self._kept / self._chances if self._chances else math.nan,
            preemptions=self._chances - self._kept,
            rounds=self._rounds,
            solves=self._solves,
            dropped=sum(outcome.dropped for outcome in self._outcomes),
        )
