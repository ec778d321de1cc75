# SPDX-License-Identifier: MIT
"""Partitions as an allocation policy shares them out: wishes of one tick, and where running jobs might go.

What is decided is in `belonging` (who belongs where), `sharing` (what to do about pending jobs)
and `crossing` (about running ones); here the parts are put together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.allocation import sufferage
from slurm_pal.allocation.problem import Allocation, Problem
from slurm_pal.allocation.steady import COST, NONPREEMPTIVE_COMPLETION, STEADY, UNAWARE
from slurm_pal.base import prices
from slurm_pal.base.config import Config
from slurm_pal.base.errors import ConfigError, DataError
from slurm_pal.base.files import Reader, read_trusted
from slurm_pal.decide.candidates import may_start
from slurm_pal.decide.case import settings_of
from slurm_pal.decide.offers import claimed_gpus, free_indexes, used_indexes
from slurm_pal.decide.partition_mark import noted_partitions
from slurm_pal.decide.steering import Market
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.journal import REFUSED, Journal, Move
from slurm_pal.moves.planning import Running
from slurm_pal.partitions import belonging, crossing, sharing, steering
from slurm_pal.partitions.belonging import SharedPartitions
from slurm_pal.partitions.claimants import Expected, Known, Leases, claimants, in_partition, in_partitions, sharers
from slurm_pal.partitions.crossing import Crosser
from slurm_pal.partitions.speeds import Speeds
from slurm_pal.pending.demand import wanted
from slurm_pal.pending.retarget import Waiting, Wish
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import Snapshot

RETRY_S = 600.0
"""A job whose list Slurm did not take is left to it for this long."""


class Jobs(NamedTuple):
    """The jobs of one tick."""

    waiting: Sequence[Waiting]  # by Slurm's priority
    running: Sequence[Running]  # those that may be moved, to other partitions, too
    moving: Collection[int]  # jobs of moves under way: not to be touched
    moves: Sequence[Move]  # that have been


class Parted(NamedTuple):
    """What is decided."""

    shared: sharing.Shared
    running: tuple[Running, ...]  # as given, with the other partitions where they might go


class Partitions:
    """Shares partitions out for one configuration. Raises ConfigError for a policy that is not known."""

    def __init__(self, config: Config, journal: Journal, reader: Reader = read_trusted) -> None:
        self._config, self._journal, self._reader = config, journal, reader
        name = config.text("rebalance", "allocation")
        if name not in STEADY:
            origin = config.origin("rebalance", "allocation")
            raise ConfigError(f"rebalance.allocation = {name!r} ({origin}) is not one of {', '.join(STEADY)}")
        self._allocate, self._alike = STEADY[name], name in UNAWARE
        self._publishes, self._priced = name == NONPREEMPTIVE_COMPLETION, name == COST
        self.market: Market | None = None  # what the last tick has found for jobs to come
        self.speeds = Speeds(config, journal, reader)

    def share(
        self, overview: Overview, scores: Snapshot, jobs: Jobs, now_s: float, interval_s: float
    ) -> Parted:  # fmt: skip
        """Wishes for the pending jobs, what takes our lists back from all others, and where running ones might go.

        Raises DataError for a table of throughputs that cannot be read, and where a price is missing that is needed.
        """
        self.market = None
        leases = Leases(self._journal.leases(Sort.PARTITIONS), self._journal.leases())
        given_back = self._given_back(overview, leases.partitions, jobs.moving)
        changed = {wish.job_id: wish for wish in sharing.changed(given_back, overview.jobs)}
        waiting = [one for one in jobs.waiting if one.job.job_id not in changed]
        ever = {**given_back, **leases.partitions}
        crossers = self._crossers(overview, jobs.running, ever, now_s)
        lists = _lists(overview, ever)
        found, belongs = self._found(overview, scores, waiting, leases, crossers, lists, now_s, interval_s)
        found = [*changed.values(), *found]
        settled = {wish.job_id for wish in found}.union(jobs.moving)
        left = [job for job in overview.jobs if job.job_id not in settled]
        wishes = [*found, *sharing.over(leases.partitions, left, overview.up, "it is no longer shared out")]
        shared = sharing.Shared(tuple(wishes), *_in_force(overview, jobs.waiting, leases.nodes, wishes))
        closed = wanted(overview, wishes, jobs.moving) if crossers else frozenset()
        return Parted(shared, _with_others(jobs, crossers, belongs, closed))

    def _given_back(
        self, overview: Overview, leases: Mapping[int, TickLease], moving: Collection[int]
    ) -> dict[int, TickLease]:
        """Job -> our last lease on its partitions, of those that have had one and have none now."""
        without = {*leases, *moving, *self._journal.left_alone()}
        jobs = [job.job_id for job in overview.jobs if job.job_id not in without]
        return self._journal.last_ended(jobs, LeaseKind.PARTITION)

    def _crossers(
        self, overview: Overview, running: Sequence[Running], leases: Mapping[int, TickLease], now_s: float
    ) -> list[Crosser]:
        """Of these jobs those that could run elsewhere; `leases` have their users' lists, in force or given back."""
        own = {
            one.job.job_id: tuple(lease.own.split(","))
            for one in running
            if (lease := leases.get(one.job.job_id)) is not None and sharing.of_this_job(lease, one.job)
        }
        return crossing.crossers(overview, running, own, self.speeds.known(overview, now_s)) if own else []

    def _found(
        self, overview: Overview, scores: Snapshot, waiting: Sequence[Waiting], leases: Leases,
        crossers: Sequence[Crosser], lists: Mapping[int, Sequence[str]], now_s: float, interval_s: float,
    ) -> tuple[list[Wish], dict[int, dict[str, float]]]:  # fmt: skip
        """Wishes for pending jobs, and the shares of time of the others: job -> partition -> share."""
        known = self.speeds.known(overview, now_s)
        settings = settings_of(self._config)
        expected = Expected(settings.expected_run_share, settings.expected_run_s)
        pending = claimants(overview, waiting, leases, self._barred(now_s), known, expected)
        jobs = [one for one in pending if len(one.own) > 1]
        if not jobs and not crossers:
            self._nobody_waits(overview, scores, lists, known, expected, now_s, interval_s)
            return [], {}
        classes = {one.job.job_id: one.sensitivity for one in waiting}
        shared = [*(one.own for one in jobs), *(cross.own for cross in crossers)]
        names = sorted({name for own in shared for name in own})
        alone = [one for one in pending if len(one.own) == 1 and one.own[0] in names]
        elsewhere = {cross.one.job.job_id: cross.speed for cross in crossers}
        inside = in_partitions(overview, names)
        taking_part = sharers([*jobs, *alone], classes, inside, names, elsewhere, lists, known, expected, now_s)
        counted = frozenset(one.job.job_id for one in taking_part)
        where = belonging.shared_partitions(overview, scores, names, counted, alike=self._alike)
        if where is None or not taking_part:
            return [], {}
        penalty = 1.0 if self._alike else settings.locality_penalty
        hourly = self._prices(overview, known, names, now_s) if self._priced else None
        problem = belonging.problem_of(where, taking_part, penalty, now_s, hourly)
        shares = self._allocated(where, problem, known, now_s, interval_s)
        rows = [*range(len(jobs)), *(k for k, one in enumerate(taking_part) if one.job.job_id in elsewhere)]
        belongs = belonging.by_partition(where, shares, rows)
        longest_s = self._config.number("rebalance", "partition_wait_s")
        terms = sharing.SharingTerms(settings.lease_pass_s, interval_s, longest_s)
        room = _room(overview, frozenset(one.job.job_id for one in jobs))
        wishes = sharing.share(jobs, belongs[: len(jobs)], leases.partitions, room, overview.up, terms, now_s)
        return wishes, {taking_part[k].job.job_id: found for k, found in zip(rows, belongs, strict=True)}

    def _prices(self, overview: Overview, known: Known, names: Sequence[str], now_s: float) -> dict[str, float]:
        """Partition -> money for a GPU hour now. Raises DataError where one is not known, or 0."""
        listed = prices.current(self._config, overview.partitions, now_s, self._reader)
        usage = {name: prices.Usage(1, nodes=0, gpu_type=known.type_of.get(name, "")) for name in names}
        found = {name: listed.per_hour(name, usage[name]) or 0.0 for name in names}
        if none := [name for name, price in found.items() if price <= 0]:
            raise DataError(f"{COST} needs a price above 0 of a GPU hour of {none[0]}: see [prices]")
        return found

    def _allocated(
        self, where: SharedPartitions, problem: Problem, known: Known, now_s: float, interval_s: float
    ) -> Allocation:
        if not self._publishes:
            return self._allocate(problem)
        found = sufferage.dealt(problem)
        self.market = steering.market(where.site, found, known, now_s, interval_s)
        return found.allocation

    def _nobody_waits(
        self, overview: Overview, scores: Snapshot, lists: Mapping[int, Sequence[str]], known: Known,
        expected: Expected, now_s: float, interval_s: float,
    ) -> None:  # fmt: skip
        """What a new job would find beside those that run."""
        names = [
            p.name for p in overview.partitions if p.up and known.type_of.get(p.name) in known.model.types
        ]  # fmt: skip
        if not self._publishes or len(names) < 2:
            return
        run = sharers([], {}, in_partitions(overview, names), names, {}, lists, known, expected, now_s)
        where = belonging.shared_partitions(overview, scores, names, frozenset(one.job.job_id for one in run))
        if where is not None:
            penalty = settings_of(self._config).locality_penalty
            self._allocated(where, belonging.problem_of(where, run, penalty, now_s), known, now_s, interval_s)

    def _barred(self, now_s: float) -> frozenset[int]:
        """Jobs whose last lists Slurm has refused, or would not start them with: left to it for a time."""
        return frozenset(
            lease.job_id
            for lease, why, _ in self._journal.ended_leases(since_s=now_s - RETRY_S)
            if lease.kind.sort is Sort.PARTITIONS and why.startswith((sharing.NOT_TAKEN, REFUSED))
        )


def _lists(overview: Overview, leases: Mapping[int, TickLease]) -> dict[int, tuple[str, ...]]:
    """Job -> its user's own list, of the running jobs for which palsub or the tick, with these leases, has noted it."""
    found = {}
    for job in overview.jobs:
        lease = leases.get(job.job_id)
        if job.state != "RUNNING":
            continue
        if lease is not None and sharing.of_this_job(lease, job):
            found[job.job_id] = tuple(lease.own.split(","))
        elif own := noted_partitions(job):
            found[job.job_id] = own
    return found


def _with_others(
    jobs: Jobs, crossers: Iterable[Crosser], belongs: Mapping[int, Mapping[str, float]], closed: Collection[str]
) -> tuple[Running, ...]:
    """The running jobs with the partitions where they might go."""
    failed, found = crossing.failed(jobs.moves), {}
    for cross in crossers:
        job_id = cross.one.job.job_id
        not_there = {*closed, *(name for number, name in failed if number == job_id)}
        others = crossing.elsewhere(cross, belongs.get(job_id, {}), not_there)
        found[job_id] = cross.one._replace(own_partitions=cross.own, elsewhere=others, slowest=cross.slowest)
    return tuple(found.get(one.job.job_id, one) for one in jobs.running)


def _room(overview: Overview, shared: frozenset[int]) -> sharing.Room:
    """What is free now, less what jobs with named nodes are about to take; those of jobs `shared` out do not count."""
    used = used_indexes(overview.jobs)
    claimed = claimed_gpus((job for job in overview.jobs if job.job_id not in shared), overview.nodes, used)
    free, empty = {}, set()
    for node in overview.nodes:
        if node.n_gpus and may_start(node):
            indexes = free_indexes(node, used.get(node.name, set()), claimed.get(node.name, 0))
            free[node.name] = [node.gpu_types[k] for k in indexes]
            if len(indexes) == node.n_gpus and not node.cpus_used:
                empty.add(node.name)
    return sharing.Room(free, empty)


def _in_force(
    overview: Overview, waiting: Sequence[Waiting], nodes: Mapping[int, TickLease], wishes: Sequence[Wish]
) -> tuple[tuple[Waiting, ...], Overview]:
    """The jobs with the partitions that they are to have: nodes may be named at once inside a single one.

    `nodes` are our leases on nodes: these lists are not the users' own.
    """
    new = {wish.job_id: wish.fields["Partition"] for wish in wishes if "Partition" in wish.fields}
    jobs = tuple(job._replace(partition=new[job.job_id]) if job.job_id in new else job for job in overview.jobs)
    renewed = []
    for one in waiting:
        job_id = one.job.job_id
        if job_id in new:
            job = one.job._replace(partition=new[job_id])
            one = one._replace(job=job, request=in_partition(job, new[job_id], nodes.get(job_id)))
        renewed.append(one)
    return tuple(renewed), overview._replace(jobs=jobs)
