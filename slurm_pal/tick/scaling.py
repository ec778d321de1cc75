# SPDX-License-Identifier: MIT
"""Elastic jobs in the tick: remembered, decided by `loans.scale`, and carried out: journal first, then Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.numbers import digits
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import KEPT_S, Journal, Scaling
from slurm_pal.loans.lend import Lent
from slurm_pal.loans.scale import Scaled, ScaleTerms, kind_of, scale
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.states import JOB_ENDED
from slurm_pal.tick.role import Role

MEASURED_S = 60.0
"""So long a job must have had the same workers before its speed is believed."""


class _Sample(NamedTuple):
    """What a base job said of its progress."""

    workers: int
    restarts: int
    total: int  # iterations
    iteration: int
    at_s: int  # Unix s


class Elastic:
    """The elastic jobs of one process."""

    def __init__(self, config: Config, client: SlurmClient, journal: Journal, role: Role, log: EventLog) -> None:
        self._client, self._journal, self._log = client, journal, log
        self._only_user = role.user if role.name == "user" else ""
        self._terms = ScaleTerms(
            config.number("rebalance", "move_cost_s"), config.number("submit", "expected_run_share"),
            config.number("submit", "expected_run_s"),
        )  # fmt: skip
        self._samples: dict[int, _Sample] = {}  # base job -> what it said last
        self._news: list[tuple[str, int, float]] = []  # rates that were seen since the journal was written
        self.whole: frozenset[str] = frozenset()
        """Partitions where companions were seen: there every pending job counts, since it comes before them."""

    def decide(self, overview: Overview, lent: Lent | None, now_s: float) -> Scaled | None:
        """How many companions elastic jobs are to have; None where there are none. Raises DataError, BusyError."""
        companions = [job for job in overview.jobs if marks.read(job.comment, marks.COMPANION)]
        known, self.whole = self.whole, frozenset(name for job in companions for name in job.partition.split(","))
        if not companions:
            return None
        if any((self.whole - known).intersection(partitions.split(",")) for partitions, _ in overview.queued):
            others = self._client.overview(marked=True, whole=self.whole)  # this process sees them for the first time
            overview = overview._replace(jobs=others.jobs)
        changed_s = {one.job_id: one.at_s for one in self._journal.scalings(now_s - KEPT_S)}
        moving = {move.job_id for move in self._journal.open_moves()}
        moving |= {job.job_id for job in lent.released} if lent is not None else set()
        moving |= {one.job.job_id for one in lent.leavers} if lent is not None else set()
        rates = self._journal.rates()
        found = scale(overview, changed_s, self._terms, now_s, self._only_user, frozenset(moving), rates)
        self._learn(overview, found.workers, rates)
        return found

    def _learn(self, overview: Overview, workers: Mapping[int, int], known: Mapping[str, Mapping[int, float]]) -> None:
        """How fast elastic jobs are with the workers that they have, by `pal progress`.

        Only jobs that state how many iterations they have in all: of others it is not known whether an iteration is
        as much work with more workers.
        """
        before, self._samples = self._samples, {}
        for job in overview.jobs:
            said = marks.read(job.comment, marks.PROGRESS) if job.job_id in workers else {}
            iteration, total, at_s = (digits(said.get(name, "")) for name in (marks.PROGRESS, "of", "at"))
            if iteration is None or not total or at_s is None:
                continue
            now = _Sample(workers[job.job_id], job.restarts, total, iteration, at_s)
            last = before.get(job.job_id, now)
            if last[:3] != now[:3] or last.at_s > at_s:
                self._samples[job.job_id] = now
                continue
            self._samples[job.job_id] = last
            if at_s - last.at_s >= MEASURED_S and iteration > last.iteration:
                rate, kind = (iteration - last.iteration) / (at_s - last.at_s), kind_of(job)
                earlier = known.get(kind, {}).get(now.workers, rate)
                self._news.append((kind, now.workers, (rate + earlier) / 2))
                self._samples[job.job_id] = now

    def carry_out(self, scaled: Scaled, now_s: float) -> list[str]:
        """Let companions start, hold them back, take them off; what went wrong, one line each.

        Raises DataError, BusyError.
        """
        if scaled.changes:
            self._journal.add_scalings(Scaling(one.base, now_s, one.workers, one.why) for one in scaled.changes)
        if self._news:
            self._journal.set_rates(self._news, now_s)
            self._news = []
        trouble: list[str] = []
        for change in scaled.changes:
            self._log.write(now_s, "scale", **change._asdict())
            trouble += self._start(((job_id, "now") for job_id in change.starts), "is not let start")
            for job_id in change.leaves:
                try:
                    self._client.requeue(job_id)
                except SlurmError as error:
                    trouble.append(f"companion {job_id} runs on: {error}")
        trouble += self._start(((job_id, f"now+{s:.0f}") for job_id, s in scaled.waits), "is not held back")
        return trouble + self._end(dict(scaled.orphans), now_s)

    def _start(self, times: Iterable[tuple[int, str]], what: str) -> list[str]:
        trouble = []
        for job_id, text in times:
            try:
                self._client.update_job(job_id, StartTime=text)
            except SlurmError as error:  # it may have started or ended just now
                trouble.append(f"companion {job_id} {what}: {error}")
        return trouble

    def _end(self, orphans: Mapping[int, int], now_s: float) -> list[str]:
        """Cancel companions whose base job has ended: palsub and the jobs themselves do, unless they were killed."""
        if not orphans:
            return []
        try:
            known = self._client.jobs_of(sorted({*orphans.values()}))
            gone = [one for one, base in orphans.items() if base not in known or known[base].state in JOB_ENDED]
            self._client.cancel(gone)
        except SlurmError as error:
            return [f"companions without a base job stay for now: {error}"]
        for job_id in gone:
            self._log.write(now_s, "orphan", job_id=job_id, base=orphans[job_id])
        return []
