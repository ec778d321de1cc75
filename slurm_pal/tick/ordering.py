# SPDX-License-Identifier: MIT
"""The order of the queue in the tick: what jobs bear, what they should bear, and the few orders that lead there.

Journal first, then Slurm. `Nice` or `SiteFactor` that a job had before us is its base: it stays in what we set, and
comes back when the job starts, when the lever is turned off and when the daemon ends. A value that somebody else has
set over ours is theirs, and the job keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import FOR_NODES, SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.decide.case import Settings, expected_run_s, settings_of
from slurm_pal.decide.facts import is_ours
from slurm_pal.decide.place import CHANGED, NICE, SITE_FACTOR, GivenPlace, updates
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import KEPT_S, Journal
from slurm_pal.leases.pinned import values_back
from slurm_pal.pending.overtaking import Holds, Overtaking, Waits
from slurm_pal.pending.queue_order import NONE, Foreign, OrderRule, Queued, QueuePlace, places
from slurm_pal.pending.run_times import EndedRun, RunTimes, shares_of
from slurm_pal.slurm.client import Overview, SlurmClient
from slurm_pal.slurm.states import JOB_ACTIVE
from slurm_pal.tick.role import PLACES, Role

MOST_ORDERS = 20
"""Updates of one tick, each for all jobs that get the same value; the rest is left for the next tick."""
SITE_S = 3600.0
"""Slurm's configuration is asked for so often."""
RECENT_S = 7 * 86400.0
"""GPU time that a user has used lately: of the runs that ended within this time, and of those that run."""
HIGHEST = 2**32 - 1024
"""Priorities are numbers of 32 bits, and the last few mean something else."""
LEAST_POINTS, MOST_POINTS = 64, 2**30
AUTO = 64
"""With order_weight = 0: a level outweighs age, fair share and size together (queue_order.LEVELS, twice)."""
_OUTWEIGHED = ("Age", "Assoc", "FairShare", "JobSize")


def orders(config: Config) -> bool:
    """Whether the site wants its queue in another order."""
    return config.text("rebalance", "order") != NONE


class PlaceChange(NamedTuple):
    """One job that is to bear another value. `points` is 0 where it gets its own back."""

    job_id: int
    lever: str
    own: int
    value: int
    before: int
    points: int
    why: str


class Ordered(NamedTuple):
    """What one tick decided about the order of the queue."""

    order: str  # "none" where it is being given back
    lever: str = ""
    queue: int = 0  # jobs that have a place by the rule
    in_front: int = 0
    changes: tuple[PlaceChange, ...] = ()  # those of this tick
    left: int = 0  # jobs that are left for the next tick
    gone: tuple[int, ...] = ()  # jobs whose places are over without an order
    said: tuple[GivenPlace, ...] = ()  # jobs that somebody else has changed
    trouble: tuple[str, ...] = ()


class _Site(NamedTuple):
    """What slurm.conf says of priorities."""

    lever: str
    weights: int
    refused: str = ""  # why there is no lever


class Ordering:
    """The lever of one process. `stays`: more ticks follow."""

    def __init__(
        self, config: Config, client: SlurmClient, journal: Journal, role: Role, log: EventLog, *, stays: bool
    ) -> None:
        self._config, self._client, self._journal, self._role, self._log = config, client, journal, role, log
        self._stays = stays
        self._site: tuple[float, _Site] | None = None  # when it was asked for
        self._overtaking: Overtaking | None = None
        self._runs = RunTimes()
        self._recent: deque[EndedRun] = deque()
        self._running: dict[int, SlurmJob] = {}
        self._gpus: dict[int, int] = {}  # job -> GPUs that it asks for

    # -- what would be done ----------------------------------------------------------------------

    def decide(self, overview: Overview, now_s: float, moving: frozenset[int] = frozenset()) -> Ordered | None:
        """What the queue should be; None where there is nothing of ours, and nothing is wanted. Raises PalError."""
        given = self._journal.given_places()
        wanted = orders(self._config) and PLACES in self._role.may
        if not wanted and not given:
            return None
        trouble: list[str] = []
        if wanted and not self._stays:
            trouble.append("the queue keeps Slurm's order: rebalance.order needs a tick that stays, --daemon --act")
        site = self._known_site(now_s) if wanted and self._stays else None
        if site is not None and site.refused:
            trouble.append(site.refused)
        on = site is not None and not site.refused
        levers = {place.lever for place in given.values()} | ({site.lever} if site is not None and on else set())
        factors = self._client.site_factors() if SITE_FACTOR in levers else {}
        seen = _Seen(overview, given, factors, moving)
        found = [] if site is None or not on else self._places(seen, site, now_s, trouble)
        return self._ordered(seen, site if on else None, found, trouble)

    def _known_site(self, now_s: float) -> _Site:
        if self._site is None or not 0 <= now_s - self._site[0] < SITE_S:
            pairs = self._client.config()
            found = _Site(NICE, 0)
            if pairs.get("PriorityType") == "priority/multifactor":
                weights = (digits(pairs.get(f"PriorityWeight{name}", "")) or 0 for name in _OUTWEIGHED)
                found = _Site(SITE_FACTOR, sum(weights))
            if pairs.get("PrioritySiteFactorPlugin", "(null)") not in ("", "(null)", "site_factor/none"):
                why = "PrioritySiteFactorPlugin of slurm.conf sets SiteFactor itself"
                found = found._replace(refused=f"the queue keeps Slurm's order: {why}")
            self._site = now_s, found
        return self._site[1]

    def _places(self, seen: _Seen, site: _Site, now_s: float, trouble: list[str]) -> list[QueuePlace]:
        settings = settings_of(self._config)
        self._learn(seen.overview, now_s)
        closed = _closed(seen)
        if closed:
            trouble.append(
                f"the queue of {','.join(sorted(closed))} keeps Slurm's order: jobs wait there that neither palsub nor "
                "the submit filter saw, and they would be overtaken"
            )
        own = [job for job in seen.waiting if is_ours(job) and job.job_id not in seen.left_alone]
        others = [job for job in seen.waiting if not is_ours(job) or job.job_id in seen.left_alone]
        overtaken_s = self._overtaken_s(seen, [*own, *others], settings, now_s)
        queue = [
            self._queued(job, seen, settings, overtaken_s[job.job_id])
            for job in own
            if closed.isdisjoint(job.partition.split(","))
        ]
        foreign = [
            Foreign(_partitions(job), seen.base(job), self._gpus_of(job), overtaken_s[job.job_id]) for job in others
        ]
        rule = OrderRule(
            self._config.text("rebalance", "order"), self._config.number("rebalance", "order_bound_s"),
            self._points(site, queue),
        )  # fmt: skip
        if rule.points < LEAST_POINTS:
            trouble.append("the queue keeps Slurm's order: its priorities leave no room above them")
            return []
        found = places(queue, self._shares(now_s), rule, now_s, foreign)
        assert self._overtaking is not None
        self._overtaking.placed({place.job_id: place.points for place in found})
        return found

    def _points(self, site: _Site, queue: Iterable[Queued]) -> int:
        """Points of a job in front: a power of two, so that they seldom change."""
        room = HIGHEST - max((job.base for job in queue), default=0)
        own = int(self._config.number("rebalance", "order_weight"))
        wanted = own or (AUTO * max(1, site.weights) if site.lever == SITE_FACTOR else MOST_POINTS)
        most = min(max(wanted, LEAST_POINTS), room, MOST_POINTS)
        return 1 << (most.bit_length() - 1) if most > 0 else 0

    def _queued(self, job: SlurmJob, seen: _Seen, settings: Settings, overtaken_s: float) -> Queued:
        expected_s, by = self._expected_s(job, settings)
        return Queued(
            job.job_id, job.user, self._gpus_of(job), _partitions(job), seen.base(job), _came_s(job), expected_s, by,
            overtaken_s,
        )  # fmt: skip

    def _gpus_of(self, job: SlurmJob) -> int:
        if job.job_id not in self._gpus:
            self._gpus[job.job_id] = max(job.asks.gpus_in_all, job.gpus_per_node * job.asks.nodes_min, 1)
        return self._gpus[job.job_id]

    # -- what is remembered ----------------------------------------------------------------------

    def _learn(self, overview: Overview, now_s: float) -> None:
        """Runs that have ended since the last look."""
        if self._overtaking is None:
            self._overtaking = Overtaking(self._journal.overtaken())
            rows = [EndedRun(*row) for row in self._journal.runs(now_s - KEPT_S)]
            self._runs, self._recent = RunTimes(rows), deque(rows)
        running = {job.job_id: job for job in overview.jobs if job.state in JOB_ACTIVE and job.start_s > 0}
        over: list[EndedRun] = []
        for job_id, job in self._running.items():
            now = running.get(job_id)
            if now is not None and now.restarts == job.restarts and now.start_s == job.start_s:
                continue
            held = _held(job)
            if held:
                run_s = max(1.0, now_s - job.start_s)
                over.append(EndedRun(job_id, job.user, job.name, held, run_s, float(job.time_limit_s or 0), now_s))
        self._running = {job_id: job for job_id, job in running.items() if job.state != "COMPLETING"}
        for run in over:
            self._runs.add(run)
        self._recent.extend(over)
        while self._recent and self._recent[0].ended_s < now_s - RECENT_S:
            self._recent.popleft()
        if over and self._role.name != "user":
            self._journal.add_runs(over)
        living = {job.job_id for job in overview.jobs}
        self._gpus = {job_id: gpus for job_id, gpus in self._gpus.items() if job_id in living}

    def _expected_s(self, job: SlurmJob, settings: Settings) -> tuple[float, str]:
        usual_s = expected_run_s(job.time_limit_s, settings)
        return self._runs.expected_s(job.user, job.name, job.time_limit_s, usual_s)

    def _left_s(self, job: SlurmJob, settings: Settings, now_s: float) -> float:
        """That a running job is expected to run yet."""
        return max(0.0, self._expected_s(job, settings)[0] - (now_s - job.start_s))

    def _overtaken_s(
        self, seen: _Seen, waiting: Sequence[SlurmJob], settings: Settings, now_s: float
    ) -> Mapping[int, float]:
        """Job -> time by which others overtook it: their GPU time over the GPUs that it may use."""
        assert self._overtaking is not None
        gpu_s = self._overtaking.look(
            [Waits(job.job_id, seen.base(job), _came_s(job), _partitions(job), self._gpus_of(job)) for job in waiting],
            [
                Holds(job.job_id, _held(job), job.start_s, job.partition, self._left_s(job, settings, now_s))
                for job in seen.overview.jobs
                if job.state in JOB_ACTIVE and job.start_s > 0 and _held(job)
            ],
            now_s,
        )
        if self._overtaking.gpu_s != self._journal.overtaken():
            self._journal.set_overtaken(self._overtaking.gpu_s)
        gpus = {name: sum(node.n_gpus for node in seen.overview.nodes if name in node.partitions)
                for name in {name for job in waiting for name in _partitions(job)}}  # fmt: skip
        return {
            job.job_id: gpu_s.get(job.job_id, 0.0) / max(1, max(gpus[name] for name in _partitions(job)))
            for job in waiting
        }

    def _shares(self, now_s: float) -> Mapping[str, float]:
        running = (
            (job.user, _held(job) * (now_s - max(job.start_s, now_s - RECENT_S))) for job in self._running.values()
        )
        return shares_of([*((run.user, run.gpu_s) for run in self._recent), *running])

    # -- from places to orders -------------------------------------------------------------------

    def _ordered(self, seen: _Seen, site: _Site | None, found: Sequence[QueuePlace], trouble: list[str]) -> Ordered:
        by_job = {place.job_id: place for place in found}
        changes: list[PlaceChange] = []
        gone, said = [], []
        for job_id, row in seen.given.items():
            value = seen.value(job_id, row.lever)
            if value is None:
                if job_id not in seen.jobs:
                    gone.append(job_id)
                elif job_id not in seen.waiting_ids:  # runs: Slurm does not show its SiteFactor
                    changes.append(PlaceChange(job_id, row.lever, row.own, row.own, row.ours, 0, "it has started"))
            elif job_id in seen.left_alone:
                continue
            elif value == row.own:
                if job_id not in by_job:
                    gone.append(job_id)
            elif not row.bears(value):
                said.append(row._replace(own=value, ours=value, before=value, why=CHANGED))
                by_job.pop(job_id, None)
            elif job_id not in by_job or (site is not None and row.lever != site.lever):
                why = "it waits no more for nodes" if site is not None else "the queue has Slurm's order again"
                why = "it has started" if job_id in seen.active else why
                if job_id not in seen.keeps or site is None:
                    changes.append(PlaceChange(job_id, row.lever, row.own, row.own, value, 0, why))
                by_job.pop(job_id, None)
        for place in sorted(by_job.values(), key=lambda place: (-place.points, place.job_id)):
            assert site is not None
            job, given = seen.jobs[place.job_id], seen.given.get(place.job_id)
            present = seen.value(job.job_id, site.lever)
            if present is None:
                continue
            own = given.own if given is not None and given.bears(present) else present
            value = own + place.points if site.lever == SITE_FACTOR else own - place.points
            if value != present:
                changes.append(PlaceChange(job.job_id, site.lever, own, value, present, place.points, place.why))
        now, left = _first(changes)
        return Ordered(
            self._config.text("rebalance", "order") if site is not None else NONE, site.lever if site else "",
            len(found), sum(place.in_front for place in found), now, left, tuple(gone), tuple(said), tuple(trouble),
        )  # fmt: skip

    # -- what is done ----------------------------------------------------------------------------

    def carry_out(self, ordered: Ordered, now_s: float) -> list[str]:
        """Journal, then order; what went wrong, one line each. Raises DataError, BusyError: nothing was ordered."""
        with self._journal.together():
            self._journal.end_places(ordered.gone, now_s)
            self._journal.give_places(ordered.said)
            self._journal.give_places(
                GivenPlace(one.job_id, one.lever, one.own, one.value, one.before, now_s, one.why)
                for one in ordered.changes
                if one.points
            )
        trouble: list[str] = []
        by_job = {one.job_id: one for one in ordered.changes}
        for update in updates((one.job_id, one.lever, one.value) for one in ordered.changes):
            first = by_job[update.job_ids[0]]
            try:
                self._client.update_jobs(update.job_ids, **{update.lever: str(update.value)})
            except SlurmError as error:  # some may have come through: the next look shows which
                trouble.append(f"the order of the queue is not set for all of {len(update.job_ids)} jobs: {error}")
                continue
            back = [job_id for job_id in update.job_ids if not by_job[job_id].points]
            if back:
                with self._journal.together():
                    self._journal.end_places(back, now_s)
            what = "order" if first.points else "order-back"
            self._log.write(
                now_s, what, jobs=list(update.job_ids), fields={update.lever: str(update.value)}, reason=first.why
            )
        return trouble

    def take_back(self, now_s: float) -> list[str]:
        """Give all jobs their own values back; what went wrong, one line each."""
        given = self._journal.given_places()
        if not given:
            return []
        wanted = values_back(self._client, given)
        trouble: list[str] = []
        kept: set[int] = set()
        for update in updates(wanted):
            try:
                self._client.update_jobs(update.job_ids, **{update.lever: str(update.value)})
            except SlurmError as error:
                trouble.append(f"{len(update.job_ids)} jobs keep their places in the queue for now: {error}")
                kept.update(update.job_ids)
                continue
            self._log.write(
                now_s, "order-back", jobs=list(update.job_ids), fields={update.lever: str(update.value)},
                reason="nobody keeps the order of the queue",
            )  # fmt: skip
        with self._journal.together():
            self._journal.end_places(given.keys() - kept, now_s)
        return trouble


class _Seen:
    """What Slurm shows, beside what the journal says of it."""

    def __init__(
        self, overview: Overview, given: Mapping[int, GivenPlace], factors: Mapping[int, int], moving: frozenset[int]
    ) -> None:
        self.overview, self.given, self._factors = overview, given, factors
        self.jobs = {job.job_id: job for job in overview.jobs}
        self.active = {job.job_id for job in overview.jobs if job.state in JOB_ACTIVE}
        pending = [job for job in overview.jobs if job.state == "PENDING" and job.job_id not in moving]
        self.waiting = [job for job in pending if job.waits_for_nodes and (job.priority or 0) > 0]
        self.waiting_ids = {job.job_id for job in pending}
        self.left_alone = {job_id for job_id, place in given.items() if place.why == CHANGED}
        # What waits for something else keeps its place until it waits for nodes again.
        self.keeps = (self.waiting_ids | moving) - {job.job_id for job in self.waiting}

    def value(self, job_id: int, lever: str) -> int | None:
        """What a job bears now; None where Slurm does not show it."""
        if lever == SITE_FACTOR:
            return self._factors.get(job_id)
        job = self.jobs.get(job_id)
        return None if job is None else job.nice

    def base(self, job: SlurmJob) -> int:
        """A job's priority without our points."""
        place, priority = self.given.get(job.job_id), job.priority or 0
        if place is None:
            return priority
        value = self.value(job.job_id, place.lever)
        if value is None or not place.bears(value):
            return priority
        return priority - (value - place.own if place.lever == SITE_FACTOR else place.own - value)


def _first(changes: Sequence[PlaceChange]) -> tuple[tuple[PlaceChange, ...], int]:
    """The changes of the first orders, and how many jobs are left."""
    by_job = {one.job_id: one for one in changes}
    made = updates((one.job_id, one.lever, one.value) for one in changes)
    now = tuple(by_job[job_id] for update in made[:MOST_ORDERS] for job_id in update.job_ids)
    return now, len(changes) - len(now)


def _closed(seen: _Seen) -> frozenset[str]:
    """Partitions where jobs wait for nodes of which the tick knows nothing but that they wait."""
    return frozenset(
        name for names, reason in seen.overview.queued if not reason or reason.startswith(FOR_NODES)
        for name in names.split(",")
    )  # fmt: skip


def _partitions(job: SlurmJob) -> frozenset[str]:
    return frozenset(job.partition.split(","))


def _came_s(job: SlurmJob) -> float:
    return job.eligible_s or job.submit_s


def _held(job: SlurmJob) -> int:
    return job.gpus_given or sum(map(len, job.gpus.values()))
