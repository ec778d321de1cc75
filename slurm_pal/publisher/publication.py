# SPDX-License-Identifier: MIT
"""The steps of one publication of the publisher: ask Slurm once, take leases back, write what the filter reads.

The caller has the loop, the clock and the log; each step stands alone, so that one that
fails does not keep the others from being done.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base import prices
from slurm_pal.base.cluster import Node
from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, PalError, SlurmError, one_line
from slurm_pal.base.files import LEFT_S, remove_leftovers, slurm_user_uid
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.aside import Aside, Fault
from slurm_pal.decide.case import settings_of
from slurm_pal.decide.lease_marks import Update, ending, judged
from slurm_pal.leases import pinned, promise
from slurm_pal.leases.pinned import Remembered
from slurm_pal.publisher.job_notes import JobNotes
from slurm_pal.publisher.observed import collector
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import applications, avoided, records
from slurm_pal.slurm.client import AGAIN_S, LAST_S, Overview, SlurmClient
from slurm_pal.slurm.parse import whole
from slurm_pal.store import gpus_text, heartbeat, lua_table, snapshot, starts, sure_labels, user_files
from slurm_pal.store.lua_table import Header
from slurm_pal.store.snapshot import Snapshot
from slurm_pal.store.sure_labels import SureLabels
from slurm_pal.submit.market import read as read_market

LATEST_S = 2.0**40  # a moment after the end of every lease, Unix seconds
LEAST_AVOIDED = 0.02
"""A GPU that is slower than the median by less is in nobody's way."""
BEAT_S = 3.0
"""Between two heartbeats; palsub believes one for three times as long."""
AGE, LEAST_AGE_S = 2.5, 10.0
"""A table is believed for so many intervals, and for no less than this: a publication may take its time."""
CLEARS = "daemon"
"""In the table: somebody takes leases back."""


class SlurmSettings(NamedTuple):
    """What Slurm's configuration says that matters here."""

    may_clear: bool  # whether this user may change any job
    slurm_user: str
    soft_features: bool  # a job may prefer a feature that no node has
    pairs: dict[str, str]  # all of it


class Written(NamedTuple):
    """One table that was written."""

    path: str
    size: int  # bytes
    header: Header
    pools: int
    nodes: int
    policy: str
    notes: tuple[str, ...]  # for people, one line each


class Publication(NamedTuple):
    """What one publication did."""

    query_s: float  # how long Slurm took to answer
    ended: tuple[Update, ...]  # leases taken back
    table: Written | None  # None: see `trouble`
    gpus_written: bool
    trouble: tuple[str, ...]  # one line each

    @property
    def reported(self) -> tuple[str, ...]:
        """What the caller reports, one line each."""
        return (*self.trouble, *(self.table.notes if self.table else ()))


def site(client: SlurmClient) -> SlurmSettings:
    """Ask Slurm for its configuration. Raises SlurmError."""
    pairs = client.config()
    name, _, number = pairs.get("SlurmUser", "").partition("(")
    words = pairs.get("SchedulerParameters", "").split(",")
    return SlurmSettings(os.geteuid() in (0, whole(number, -1)), name, "ignore_prefer_validation" in words, pairs)


def take_back(
    client: SlurmClient, jobs: Iterable[SlurmJob], nodes: Iterable[Node], now_s: float, pass_s: float, aside: Aside,
    shared: Collection[int] = frozenset(), again_s: Sequence[float] = AGAIN_S,
) -> tuple[list[Update], list[str]]:  # fmt: skip
    """End the leases that are over; returns those that were ended, and what went wrong, one line each.

    The partitions of the jobs `shared` were set by the tick. Slurm is asked for these jobs once more, since they
    may have changed. What it cannot do at the moment is tried again after each of the pauses `again_s`, s.
    """
    named = {node.name: node for node in nodes}

    def judge(job: SlurmJob) -> Update | None:
        return ending(job, now_s, pass_s, named, shared=job.job_id in shared)

    wanted, broken = judged(jobs, judge)
    for job, error in broken:
        aside.add(job, error, now_s)
    try:
        own = client.jobs_of([update.job_id for update in wanted])
    except SlurmError as error:
        return [], [f"node lists of {len(wanted)} jobs stay for now: {error}"]
    still = {update.job_id: update for update in judged(own.values(), judge)[0]}
    return pinned.updated(client, [update for update in wanted if still.get(update.job_id) == update], again_s)


def write_table(
    config: Config,
    overview: Overview,
    scores: Snapshot,
    asked_s: float,
    clears: str,
    soft_features: bool,
    measured: Mapping[str, str] | None = None,
    slurm: Mapping[str, str] | None = None,
    max_age_s: float = math.inf,
) -> Written:
    """Work out the standing answers and write them. `asked_s` is when Slurm was asked, Unix seconds.

    They are believed for `max_age_s`, and for no longer than filter.max_age_s. `measured` are the records of
    what jobs were measured to be (store/sure_labels.py), `slurm` Slurm's configuration.
    Raises DataError when the table cannot be written.
    """
    settings = settings_of(config)
    market, hourly = None, prices.Prices({})
    if taken_alike(slurm or {}):  # else one partition may refuse what its user's list would have let in
        market = read_market(config.snapshot_path, asked_s)
        hourly = prices.current(config, overview.partitions, asked_s)
    shared = set(market.gpus if market is not None else ())
    if hourly.rates:  # a goal may let a job wait in any of its partitions
        shared |= {one.name for one in overview.partitions}
    answers = standing(overview, scores, settings, soft_features, shared)
    notes = [f"{what} has a name that the filter cannot read, and is left out" for what in answers.left_out]
    notes += [f"application {app!r} has a name that the filter cannot read" for app in applications(config)[1]]
    if answers.policy != settings.policy:
        notes.append(f"placement.policy {settings.policy} cannot be put into a table: {answers.policy} is used instead")
    notes += hourly.complaints
    path = config.table_path
    # What changed in Slurm in the second of the question may be missing from its answer.
    header = Header(_epoch(path, asked_s), int(asked_s), min(config.number("filter", "max_age_s"), max_age_s), clears)
    found = records(answers, config, scores.epoch, slurm, market, hourly)
    found |= avoided(overview.nodes, scores, 1.0 + LEAST_AVOIDED)
    size = _replace(config, header, found | dict(measured or {}))
    pools = len(set(answers.pools.values()))
    return Written(path, size, header, pools, len(answers.nodes), answers.policy, tuple(notes))


def taken_alike(slurm: Mapping[str, str]) -> bool:
    """Whether all of a user's partitions take a job alike, by Slurm's configuration.

    With associations enforced, one for a partition alone may refuse what another takes, and a submit filter cannot ask
    again (slurm.conf(5), AccountingStorageEnforce: each other word implies associations).
    """
    words = set(slurm.get("AccountingStorageEnforce", "").lower().split(","))
    return words <= {"", "none", "(null)", "nojobs", "nosteps"}


def _epoch(path: str, now_s: float) -> int:
    """Milliseconds, but always later than the table in place."""
    before = 0
    with contextlib.suppress(DataError):
        before = lua_table.read_header(path).epoch
    return max(int(now_s * 1000), before + 1)


def _replace(config: Config, header: Header, found: Mapping[str, str]) -> int:
    """Write slurmctld's table, and the one that clients read as their users; bytes of the first.

    What jobs of users were measured to be is for slurmctld alone. Whoever has not its powers
    cannot write what only it reads: their table is for all, and without.
    """
    public = sure_labels.without(found)
    private = os.geteuid() in (0, slurm_user_uid())
    data = lua_table.encode(header, found if private else public)
    lua_table.replace(config.table_path, data, private)
    lua_table.replace(config.public_table_path, lua_table.encode(header, public), private=False)
    return len(data)


class Publisher:
    """Publications of one process. With `stays` it goes on, and so may promise to take leases back."""

    SITE_S = 60.0  # how long Slurm's configuration is believed

    def __init__(
        self, config: Config, client: SlurmClient, stays: bool, every_s: float = math.inf, aside: Aside | None = None,
        by_turns: bool = False, writes: bool = True,
    ) -> None:  # fmt: skip
        """`every_s` is the time between two publications; `aside` has the jobs that break us. Without `writes` there
        is no filter that reads a table: leases are taken back all the same.

        `by_turns`: the publisher's lock is held for the length of each publication only, and not waited for.
        """
        self._by_turns, self._writes = by_turns, writes
        self._config, self._client, self._stays = config, client, stays
        self._every_s, self._promises, self._beat_s = every_s, False, 0.0
        self._lock: tuple[int, int] | None = None
        self.lost = False  # the lock is: a new process must take it
        self.faults: list[str] = []
        self.aside = aside or Aside(self._report)
        self._site: SlurmSettings | None = None
        self._site_s = 0.0
        self._scores_epoch: int | None = None  # of the gpus.txt in place, as far as we have looked
        self._observers = collector(config, site=True)
        self._labels = SureLabels(config)
        self._starts = starts.Starts(config.snapshot_path)
        self._notes = JobNotes(client) if config.flag("submit", "admin_note") else None
        self._tidied_s = 0.0

    def publish(self, now_s: float) -> Publication:
        """Ask Slurm and do one publication at `now_s`, Unix seconds. Raises SlurmError when Slurm does not answer."""
        self.known_site(now_s)
        started = time.monotonic()
        overview = self._client.overview(marked=True)
        query_s = time.monotonic() - started
        self.aside.refresh(frozenset(job.job_id for job in overview.jobs), now_s)
        self.faults = []
        try:
            self.aside.run(lambda seen: self._observers.take(seen.jobs, now_s), overview, now_s)
            trouble: tuple[str, ...] = ()
        except PalError as error:
            trouble = (one_line(error),)
        done = self.aside.run(lambda seen: self.serve(seen, query_s, now_s, jobs=overview.jobs), overview, now_s)
        return done._replace(trouble=(*done.trouble, *trouble, *self.faults))

    def _report(self, job_id: int | None, fault: Fault) -> None:
        if job_id is not None:
            self.faults.append(f"job {job_id} is left alone: our code fails on it: {fault.line}")

    def serve(
        self, overview: Overview, query_s: float, now_s: float, others: Collection[int] = frozenset(),
        jobs: Sequence[SlurmJob] | None = None, shared: Collection[int] = frozenset(),
    ) -> Publication:  # fmt: skip
        """One publication on what Slurm answered within `query_s`: leases taken back, heartbeat, table, gpus.txt.

        `now_s` is when Slurm was asked; the lists of the jobs `others` are the caller's
        own to look after, and so are the partitions of the jobs `shared`. `jobs` are those of `overview` as they
        were before any was set aside.
        Raises SlurmError when its configuration is not known and cannot be had.
        """
        known = self.known_site(now_s)
        self._tidy(now_s)
        ended: list[Update] = []
        trouble: list[str] = []
        clears = CLEARS if self._stays and known.may_clear else ""
        if clears and (unable := self._promise()):
            clears, trouble = "", [unable]
        self._promises = bool(clears)
        if self._stays and known.may_clear:
            mine = [job for job in (overview.jobs if jobs is None else jobs) if job.job_id not in others]
            pass_s = self._config.number("submit", "lease_pass_s")
            ended, more = take_back(self._client, mine, overview.nodes, now_s, pass_s, self.aside, shared)
            trouble += [*more, *self._beat(now_s)]
        elif self._stays:
            trouble.append(f"leases are not taken back: only SlurmUser ({known.slurm_user}) and root may do that")
        if known.may_clear:
            trouble += self._note_starts(overview.jobs if jobs is None else jobs, known)
        table, gpus_written = None, False
        if not self._writes:
            return Publication(query_s, tuple(ended), table, gpus_written, tuple(trouble))
        try:
            with self._turn():
                scores = snapshot.read(self._config.snapshot_path)
                measured = self._labels.records(now_s)
                soft, age_s = known.soft_features, max(LEAST_AGE_S, AGE * self._every_s)
                table = write_table(self._config, overview, scores, now_s, clears, soft, measured, known.pairs, age_s)
                gpus_written = self._write_gpus(scores)
        except DataError as error:
            trouble.append(one_line(error))
        except BusyError:
            pass  # a publisher that stays does this better
        return Publication(query_s, tuple(ended), table, gpus_written, tuple(dict.fromkeys(trouble)))

    def _note_starts(self, jobs: Sequence[SlurmJob], known: SlurmSettings) -> list[str]:
        """Write down on which GPUs jobs have started, for `pal explain` after their end, and for people where the site
        wants that."""
        trouble: list[str] = []
        try:
            with self._turn():
                new = self._starts.add(jobs, starts.hidden(known.pairs.get("PrivateData", "")))
            if self._notes and self._stays:
                self._notes.add(new)
                trouble += self._notes.write(jobs, snapshot.read(self._config.snapshot_path))
        except BusyError:  # a publisher that stays does it; once it has ended, its lines count as well
            self._starts = starts.Starts(self._config.snapshot_path)
        except (OSError, DataError) as error:
            path = starts.path_of(self._config.snapshot_path)
            text = f"{path} cannot be written ({one_line(error)}): pal explain does not know the GPUs of ended jobs"
            trouble.append(one_line(error) if isinstance(error, DataError) else text)
        return trouble

    def _turn(self) -> contextlib.AbstractContextManager[None]:
        """The publisher's lock, where it is not held all the time. Raises BusyError, DataError."""
        if not self._by_turns:
            return contextlib.nullcontext()
        folder = os.path.dirname(self._config.table_path)
        if not os.access(folder, os.W_OK):
            raise DataError(f"no table can be written in {folder}: mkdir it, or set paths.table in pal.toml")
        return promise.publishing(self._config.table_path, 0.0)

    def _promise(self) -> str:
        """Record on disk that lists may rely on this process; returns why that failed, "" where it did not."""
        lock = promise.identity(self._config.table_path)
        self._lock = self._lock or lock
        self.lost = lock != self._lock
        if self.lost:
            path = promise.lock_path(self._config.table_path)
            return f"{path} was deleted and locks nobody out any more: this process ends, so that a new one is started"
        try:
            promise.make(self._config.table_path)
        except OSError as error:
            path = promise.promise_path(self._config.table_path)
            return f"{path} cannot be written ({error.strerror}): nobody is promised that lists are taken back"
        return ""

    def alive(self, now_s: float) -> None:
        """Beat between two publications: palsub trusts a heartbeat for a few seconds only."""
        if self._promises and not 0 <= now_s - self._beat_s < BEAT_S:
            self._beat(now_s)

    def silent(self) -> None:
        """A publication failed: the heartbeat ages until one succeeds."""
        self._promises = False

    def take_over(self, known: Remembered) -> list[str]:
        """At the start: end the lists that an earlier publisher left, of which nobody knows how old they are.

        What went wrong, one line each. Raises SlurmError.
        """
        if not promise.made(self._config.table_path):
            return []
        ended = pinned.take_back(self._client, known, time.time(), LAST_S)
        if not ended.trouble:
            self.kept()
        return [*ended.trouble]

    def kept(self) -> None:
        """No list stands any more that relies on this process."""
        promise.kept(self._config.table_path)

    def stop(self, now_s: float) -> None:
        """From now on nobody promises anything; what was promised is for `take_back_all`."""
        self._promises = False
        if self._by_turns:
            return  # heartbeat and table may be another's
        heartbeat.end(self._config.snapshot_path)
        with contextlib.suppress(DataError):  # no table, no promise
            lua_table.retire(self._config.table_path, now_s)

    def take_back_all(self) -> tuple[list[Update], list[str]]:
        """End every lease, since nobody will be there to end it in time; as `take_back` does. Raises SlurmError."""
        if self._site is None or not self._site.may_clear:
            return [], []
        overview = self._client.overview(marked=True)
        pass_s = self._config.number("submit", "lease_pass_s")
        return take_back(
            self._client, overview.jobs, overview.nodes, LATEST_S, pass_s, self.aside, again_s=LAST_S
        )  # fmt: skip

    def known_site(self, now_s: float) -> SlurmSettings:
        """Slurm's configuration, asked for once a minute. Raises SlurmError."""
        if self._site is None or not 0 <= now_s - self._site_s < self.SITE_S:
            self._site, self._site_s = site(self._client), now_s
        return self._site

    def _tidy(self, now_s: float) -> None:
        """Once a day, remove what killed writers left, and see that nobody reads another user's labels."""
        if 0 <= now_s - self._tidied_s < LEFT_S:
            return
        self._tidied_s = now_s
        files = (self._config.snapshot_path, self._config.table_path, self._config.gpus_path)
        learnt = user_files.site_folder(self._config.snapshot_path)
        user_files.protect(learnt)
        for folder in {os.path.dirname(path) for path in files} | {learnt}:
            remove_leftovers(folder, now_s)

    def _beat(self, now_s: float) -> list[str]:
        try:
            if self._promises:
                heartbeat.beat(self._config.snapshot_path, now_s, BEAT_S)
                self._beat_s = now_s
        except OSError as error:
            path = self._config.snapshot_path + ".heartbeat"
            return [f"{path} cannot be written ({error.strerror}): palsub does not know that leases are taken back"]
        return []

    def _write_gpus(self, scores: Snapshot) -> bool:
        if self._scores_epoch == scores.epoch:
            return False
        written = gpus_text.write(self._config.gpus_path, scores)
        self._scores_epoch = scores.epoch
        return written
