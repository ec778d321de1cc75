# SPDX-License-Identifier: MIT
"""How many companions elastic jobs have until the next tick, and which of them wait or leave for it. Pure.

A companion is a job of one node that waits for a time, or runs. The tick lets it start by ending that wait, holds it
back by a later time, and takes it off its node by a requeue. So nothing is held: without a tick each starts when its
time comes, and then by Slurm's own order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.allocation.elastic import CHURN, ElasticJob, flexible_workers
from slurm_pal.base import marks
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.moves.worth import expected_left_s, stated_limit_s
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_ACTIVE, usable

SPACING_S = 600.0
"""A job's workers change at most once in this time, since each change restarts all of them from a checkpoint."""
HELD_BACK_S = 600.0
"""A companion that is not wanted waits so much longer, the second one twice as long: without a tick they join one by
one."""
SOON_S = 300.0
"""One that would start sooner is held back anew."""
MOST_WORKERS = 1000
_RANGE = re.compile(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})")


class ScaleTerms(NamedTuple):
    """When a change pays."""

    restart_s: float = 60.0  # what a change of its workers costs a job
    expected_run_share: float = 0.5  # of a time limit
    expected_run_s: float = 3600.0  # without one


class Change(NamedTuple):
    """One elastic job that is to have another number of workers."""

    base: int
    workers: int  # that it is to have, those of its base among them
    starts: tuple[int, ...]  # companions that may start now
    leaves: tuple[int, ...]  # companions that go back to the queue
    why: str


class Scaled(NamedTuple):
    """What one tick decided about elastic jobs."""

    changes: tuple[Change, ...] = ()
    waits: tuple[tuple[int, float], ...] = ()  # (companion, seconds from now) that are held back anew
    orphans: tuple[tuple[int, int], ...] = ()  # (companion, base job) whose base job is not in the queue
    workers: Mapping[int, int] = {}  # base job -> workers that it has now


class _Elastic(NamedTuple):
    """An elastic job and its companions."""

    base: SlurmJob
    least: int
    most: int
    running: tuple[SlurmJob, ...]
    coming: tuple[SlurmJob, ...]  # pending, and free to start
    waiting: tuple[SlurmJob, ...]  # pending, for a time

    @property
    def partitions(self) -> tuple[str, ...]:
        """Of its companions; the one where they run, if some do."""
        first = next((job.partition for job in (*self.running, *self.coming, *self.waiting)), "")
        return tuple(filter(None, first.split(",")))

    @property
    def gpus(self) -> int:
        """GPUs of each companion."""
        return max((gpus_of(job) for job in (*self.running, *self.coming, *self.waiting)), default=0)


def read_range(text: str) -> tuple[int, int] | None:
    """(least, most) workers by a value "2:6"; None for what palsub never writes."""
    found = _RANGE.fullmatch(text)
    if not found or not int(found[1]) <= int(found[2]) <= MOST_WORKERS:
        return None
    return int(found[1]), int(found[2])


def scale(
    overview: Overview, changed_s: Mapping[int, float], terms: ScaleTerms, now_s: float, only_user: str = "",
    leaving: frozenset[int] = frozenset(), rates: Mapping[str, Mapping[int, float]] = {},
) -> Scaled:  # fmt: skip
    """Decide. `changed_s` is when the workers of a base job were changed last (Unix s), `leaving` are jobs that are
    being moved or leave for owners, `rates` iterations per second by kind of job (`kind_of`) and workers."""
    mine = [job for job in overview.jobs if not only_user or job.user == only_user]
    found, orphans = _elastic(mine, leaving, now_s)
    changes: list[Change] = []
    by_partition: dict[str, list[_Elastic]] = defaultdict(list)
    for one in found:
        where = next((name for name in one.partitions if name in overview.up), "")
        if where and one.gpus:
            by_partition[where].append(one)
    for partition, there in sorted(by_partition.items()):
        changes += _changes(overview, partition, there, changed_s, terms, now_s, rates)
    starts = {job_id for change in changes for job_id in change.starts}
    wanted = {change.base: change.workers for change in changes}
    waits: list[tuple[int, float]] = []
    for one in found:
        kept = wanted.get(one.base.job_id, one.least + len(one.running) + len(one.coming)) - one.least
        spare = [*one.waiting, *one.coming[max(0, kept - len(one.running)) :]]
        later = [job for job in spare if job.job_id not in starts and job.eligible_s < now_s + SOON_S]
        waits += [(job.job_id, HELD_BACK_S * (k + 1)) for k, job in enumerate(later)]
    return Scaled(
        tuple(changes), tuple(waits), tuple(orphans),
        {one.base.job_id: one.least + len(one.running) for one in found},
    )  # fmt: skip


def gpus_of(job: SlurmJob) -> int:
    """GPUs that a job of one node has or asks for."""
    return sum(map(len, job.gpus.values())) or max(job.asks.gpus_in_all, job.gpus_per_node)


def _elastic(
    jobs: Sequence[SlurmJob], leaving: frozenset[int], now_s: float
) -> tuple[list[_Elastic], list[tuple[int, int]]]:
    """The elastic jobs that run, and companions without a base job: (companion, base job).

    A companion is believed to belong to a base job of its own user only.
    """
    by_id = {job.job_id: job for job in jobs}
    companions: dict[int, list[SlurmJob]] = defaultdict(list)
    orphans: list[tuple[int, int]] = []
    for job in jobs:
        said = marks.read(job.comment, marks.COMPANION).get(marks.COMPANION, "")
        if not re.fullmatch(r"[1-9][0-9]{0,9}", said) or job.job_id in leaving:
            continue
        base = by_id.get(int(said))
        if base is None:
            orphans.append((job.job_id, int(said)))
        elif base.user == job.user:
            companions[base.job_id].append(job)
    found: list[_Elastic] = []
    for base in jobs:
        least_most = read_range(marks.read(base.comment, marks.ELASTIC).get(marks.ELASTIC, ""))
        if least_most is None or base.state != "RUNNING":
            continue
        own = companions.get(base.job_id, [])
        running = sorted((job for job in own if job.state in JOB_ACTIVE and job.nodes), key=lambda job: job.start_s)
        pending = sorted((job for job in own if job.state == "PENDING" and not job.held), key=lambda job: job.job_id)
        waiting = [job for job in pending if job.eligible_s > now_s or not job.waits_for_nodes]
        coming = [job for job in pending if job not in waiting]
        found.append(_Elastic(base, *least_most, tuple(running), tuple(coming), tuple(waiting)))
    return found, orphans


def _changes(
    overview: Overview, partition: str, there: Sequence[_Elastic], changed_s: Mapping[int, float], terms: ScaleTerms,
    now_s: float, rates: Mapping[str, Mapping[int, float]],
) -> list[Change]:  # fmt: skip
    """The knapsack of one partition, as orders."""
    if not there:
        return []
    least = min(one.gpus for one in there)
    free, waited_for = _free(overview, partition, least), _waited_for(overview, partition, there)
    held = sum(gpus_of(job) for one in there for job in one.running)
    jobs = [
        _as_job(one, changed_s.get(one.base.job_id, 0.0), terms, now_s, rates.get(kind_of(one.base), {}))
        for one in there
    ]
    kept = sum(job.flexible * job.gpus for job in jobs if job.still_s < SPACING_S)
    room = max(kept, free + held - waited_for)
    counts = flexible_workers(jobs, room, churn=CHURN, cool_down_s=SPACING_S)
    changes: list[Change] = []
    for one in there:
        wanted, have = counts[str(one.base.job_id)], len(one.running) + len(one.coming)
        if wanted > have and one.waiting:
            starts = tuple(job.job_id for job in one.waiting[: wanted - have])
            changes.append(Change(one.base.job_id, one.least + have + len(starts), starts, (), "GPUs are free"))
        elif wanted < len(one.running):
            newest = sorted(one.running, key=lambda job: -job.start_s)[: len(one.running) - wanted]
            why = "other jobs wait for the GPUs" if waited_for else "others gain more by them"
            leaves = tuple(job.job_id for job in newest)
            changes.append(Change(one.base.job_id, one.least + wanted, (), leaves, why))
    return changes


def kind_of(base: SlurmJob) -> str:
    """Elastic jobs that should be as fast as each other with as many workers: user, name, GPUs of a worker."""
    return f"{base.user} {base.name} {gpus_of(base) // max(1, len(base.nodes))}"


def curve(known: Mapping[int, float], least: int, most: int) -> tuple[float, ...]:
    """Speed with least, ..., most workers, any unit, from what was measured; () for linear scaling.

    Between two sizes that were measured a straight line, below the first in proportion, above the last as steep as
    before it. One size says nothing of scaling.
    """
    sizes = sorted(size for size, rate in known.items() if rate > 0)
    if len(sizes) < 2:
        return ()

    def at(size: int) -> float:
        if size <= sizes[0]:
            return known[sizes[0]] * size / sizes[0]
        upper = next((k for k in range(1, len(sizes)) if sizes[k] >= size), len(sizes) - 1)
        low, high = sizes[upper - 1], sizes[upper]
        slope = (known[high] - known[low]) / (high - low)
        return known[high] + (max(slope, 0.0) if size > high else slope) * (size - high)

    return tuple(at(size) for size in range(least, most + 1))


def _as_job(one: _Elastic, changed_s: float, terms: ScaleTerms, now_s: float, known: Mapping[int, float]) -> ElasticJob:
    ran_s = max(0.0, now_s - one.base.start_s)
    limit_s, has = stated_limit_s(one.base), one.least + len(one.running)
    if limit_s is None:
        left_s = max(terms.expected_run_s - ran_s, ran_s * terms.expected_run_share)
    else:
        left_s = expected_left_s(limit_s, terms.expected_run_share, ran_s, limit_s - ran_s, 1.0)
    last_s = max([changed_s, *(job.start_s for job in one.running)])
    rates = curve(known, one.least, one.most)
    faster = rates[min(has, one.most) - one.least] / rates[0] if rates else has / one.least
    return ElasticJob(
        str(one.base.job_id), one.least, one.most, one.gpus, left_s * faster, rates,
        min(len(one.running), one.most - one.least), terms.restart_s, max(0.0, now_s - last_s),
    )  # fmt: skip


def _free(overview: Overview, partition: str, gpus: int) -> int:
    """GPUs that companions of so many could take now: on each node whole ones of them."""
    names = {name for p in overview.partitions if p.name == partition and p.up for name in p.nodes}
    nodes = [node for node in overview.nodes if node.name in names and usable(node.states)]
    return sum((node.n_gpus - node.gpus_used) // gpus * gpus for node in nodes if node.n_gpus > node.gpus_used)


def _waited_for(overview: Overview, partition: str, there: Iterable[_Elastic]) -> int:
    """GPUs that other jobs wait for there: they come first (phase 1). Jobs of which nothing is known want all."""
    own = {job.job_id for one in there for job in (*one.running, *one.coming, *one.waiting)}
    wanted = 0
    for job in overview.jobs:
        waits = job.state == "PENDING" and job.waits_for_nodes and partition in job.partition.split(",")
        if waits and job.job_id not in own and not marks.read(job.comment, marks.COMPANION):
            wanted += max(job.asks.gpus_in_all, job.gpus_per_node * job.asks.nodes_min)
    return wanted
