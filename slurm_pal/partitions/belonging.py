# SPDX-License-Identifier: MIT
"""How much of each job's time belongs where: Slurm's state and throughputs into an allocation policy. Pure.

Columns are partition x {packed, spread} x variability class (allocation/columns.py), so a job that
suffers from slow GPUs or from the network is given another partition than one that does not.
Rows are the jobs that wait with several partitions, and all running ones: what these hold comes
free one day, and the question is who it then belongs to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from slurm_pal.allocation import columns
from slurm_pal.allocation.problem import Allocation, Problem
from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.decide.candidates import RESERVED
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store.snapshot import NO_CLASS, Snapshot

MOST_TOGETHER = 6
"""With more partitions that share nodes, only all of them together have a bound: n have 2^n sets."""


class Sharer(NamedTuple):
    """One job that takes part."""

    job: SlurmJob
    speed: Mapping[str, float]  # partition -> steps/s, or in a unit of its own; those where it could run
    gpus: int
    sensitivity: str
    run_s: float  # still to come, in the slowest of its partitions
    stays: bool = False  # it runs, and cannot be moved to another partition


class SharedPartitions(NamedTuple):
    """The partitions that are shared."""

    site: columns.Columns
    overlaps: tuple[tuple[frozenset[str], float], ...]  # partitions with nodes in common, and the GPUs of all of them
    level: Mapping[tuple[str, int], int]  # variability class of each GPU (node, index)


def shared_partitions(
    overview: Overview, snapshot: Snapshot, names: Sequence[str], taking_part: frozenset[int], *, alike: bool = False
) -> SharedPartitions | None:
    """The partitions of these names that are up and have GPUs; None where none has.

    GPUs held by jobs that do not take part are left out, and so are nodes that are reserved now. With `alike`
    the GPUs of a partition have no variability classes.
    """
    open_nodes = (node for node in overview.nodes if usable(node.states) and not node.states & RESERVED)
    nodes = {node.name: node for node in open_nodes if node.n_gpus}
    held = Counter(
        (name, k)
        for job in overview.jobs
        if job.job_id not in taking_part
        for name, indexes in job.gpus.items()
        for k in indexes
    )
    found, inside = [], {}
    level: dict[tuple[str, int], int] = {}
    for partition in overview.partitions:
        mine = [nodes[name] for name in partition.nodes if name in nodes]
        if partition.name in names and partition.up and mine:
            made = _partition(partition.name, mine, snapshot, held, level, alike=alike)
            if made is not None:
                found.append(made)
                inside[partition.name] = mine
    return SharedPartitions(columns.columns(found), _overlaps(inside, held), level) if found else None


def _partition(
    name: str, nodes: Sequence[Node], snapshot: Snapshot, held: Counter[tuple[str, int]],
    level_of: dict[tuple[str, int], int], *, alike: bool,
) -> columns.PartitionGpus | None:  # fmt: skip
    """Its GPUs by class A's variability classes, without faulty ones; one that nobody has measured is a median one.

    `level_of` gets the class of each.
    """
    levels = 1 if alike else max(1, len(snapshot.centroids.get("A", [])))
    counts = np.zeros((len(nodes), levels), dtype=np.int64)
    seen: dict[str, list[list[float]]] = {c: [[] for _ in range(levels)] for c in SENSITIVITY_CLASSES}
    for row, node in enumerate(nodes):
        for k in range(node.n_gpus):
            if held[node.name, k]:
                continue
            at, known = snapshot.row(node.name, k), None
            if at is not None and snapshot.faulty(at):
                continue
            if at is not None and snapshot.columns["class_A"][at] != NO_CLASS:
                known = min(levels - 1, int(snapshot.columns["class_A"][at]))
            level = min(levels - 1, _middle(snapshot)) if known is None else known
            counts[row, level] += 1
            level_of[node.name, k] = level
            for c in SENSITIVITY_CLASSES:
                seen[c][level].append((not alike and snapshot.slowdown(c, node.name, k)) or 1.0)
    if not counts.sum():
        return None
    slowdown = {c: _levels(of) for c, of in seen.items()}
    return columns.PartitionGpus(name, counts.tolist(), slowdown)


def _middle(snapshot: Snapshot) -> int:
    """The class of a median GPU."""
    centroids = snapshot.centroids.get("A", [])
    return min(range(len(centroids)), key=lambda k: abs(centroids[k] - 1.0), default=0)


def _levels(seen: Sequence[Sequence[float]]) -> list[float]:
    """Mean slowdown of each class; one without a GPU here gets that of the class before it."""
    found: list[float] = []
    for values in seen:
        found.append(sum(values) / len(values) if values else (found[-1] if found else 1.0))
    return found


def _overlaps(
    inside: Mapping[str, Sequence[Node]], held: Counter[tuple[str, int]]
) -> tuple[tuple[frozenset[str], float], ...]:
    """Partitions that have nodes in common, and how many GPUs they have together."""
    owners: dict[str, set[str]] = defaultdict(set)
    free: dict[str, int] = {}
    for name, nodes in inside.items():
        for node in nodes:
            owners[node.name].add(name)
            free[node.name] = sum(not held[node.name, k] for k in range(node.n_gpus))
    cells: Counter[frozenset[str]] = Counter()
    for node_name, names in owners.items():
        cells[frozenset(names)] += free[node_name]
    groups: list[frozenset[str]] = []
    for cell in cells:
        groups = [*(g for g in groups if not g & cell), cell.union(*(g for g in groups if g & cell))]
    return tuple(row for group in groups if len(group) > 1 for row in _bounds(group, cells))


def _bounds(group: frozenset[str], cells: Mapping[frozenset[str], int]) -> list[tuple[frozenset[str], float]]:
    """What keeps the shares of partitions within GPUs that several of them have; `cells`: partitions of a node -> GPUs.

    By Hall's condition every set of the partitions needs a bound; those that others imply are left out.
    """

    def gpus(names: frozenset[str]) -> int:
        return sum(count for cell, count in cells.items() if cell & names)

    found: dict[frozenset[str], int] = {}
    for size in range(len(group), 1, -1) if len(group) <= MOST_TOGETHER else (len(group),):
        for names in map(frozenset, combinations(sorted(group), size)):
            bound = gpus(names)
            wider = any(names < other and found[other] <= bound for other in found)
            if not wider and all(gpus(names - {one}) + gpus(frozenset({one})) > bound for one in names):
                found[names] = bound
    return [(names, float(bound)) for names, bound in found.items()]


def problem_of(
    where: SharedPartitions, sharers: Sequence[Sharer], locality_penalty: float, now_s: float,
    prices: Mapping[str, float] | None = None,
) -> Problem:  # fmt: skip
    """The jobs as an allocation problem. Remaining work is counted in the unit of each job's own throughputs.

    Where a job runs that may move does not count: the question is who belongs where. What a move costs is for
    `planning`. `prices`: partition -> money for a GPU hour; None: all are alike.
    """
    site = where.site
    speed = np.array([[one.speed.get(p.name, 0.0) for p in site.partitions] for one in sharers])
    speed = speed.reshape(len(sharers), len(site.partitions))
    slowest = np.where(speed > 0, speed, np.inf).min(axis=1, initial=np.inf)
    slowest = np.where(np.isfinite(slowest), slowest, 0.0)
    accounts = {name: k for k, name in enumerate(dict.fromkeys(_account(one.job) for one in sharers))}
    jobs = columns.PartitionJobs(
        throughput=speed,
        spread=np.full(len(sharers), 1.0 / locality_penalty),
        sensitivity=[one.sensitivity if one.sensitivity in SENSITIVITY_CLASSES else "A" for one in sharers],
        scale=np.array([float(one.gpus) for one in sharers]),
    )
    made = columns.problem(
        site,
        jobs,
        remaining=slowest * np.array([one.run_s for one in sharers]),
        age_s=np.array([max(0.0, now_s - one.job.submit_s) for one in sharers]),
        entity=np.array([accounts[_account(one.job)] for one in sharers]),
        entity_weight=np.ones(max(1, len(accounts))),
    )
    if prices is not None:
        made = made._replace(price=np.array([prices[column.partition] for column in site.names]))
    made = made._replace(held=np.array([_held(where, made, k, one) for k, one in enumerate(sharers)], dtype=np.int64))
    uses = [[float(column.partition in names) for column in site.names] for names, _ in where.overlaps]
    if not uses:
        return made
    return made._replace(
        uses=np.vstack([made.uses, uses]), capacity=np.append(made.capacity, [gpus for _, gpus in where.overlaps])
    )


def _held(where: SharedPartitions, made: Problem, row: int, one: Sharer) -> int:
    """The column of what a job that stays holds, -1 for any other, and for one with GPUs that are not shared."""
    site, gpus = where.site, [(node, k) for node, indexes in one.job.gpus.items() for k in indexes]
    if not one.stays or not gpus or not all(gpu in where.level for gpu in gpus):
        return -1
    partition = next((k for k, some in enumerate(site.partitions) if some.name == one.job.partition), -1)
    if partition < 0:
        return -1
    packed = site.first[partition] + max(where.level[gpu] for gpu in gpus)
    spread = packed + site.rooms[partition].levels
    wide = len(one.job.gpus) > 1 and made.throughput[row, spread] > 0
    return spread if wide else packed if made.throughput[row, packed] > 0 else -1


def _account(job: SlurmJob) -> str:
    return job.account or job.user


def by_partition(where: SharedPartitions, found: Allocation, rows: Iterable[int]) -> list[dict[str, float]]:
    """Share of time in each partition, of the jobs of these rows."""
    answers = []
    for row in rows:
        shares: dict[str, float] = defaultdict(float)
        for column, share in zip(where.site.names, found.shares[row].tolist(), strict=True):
            shares[column.partition] += share
        for pair in found.pairs:
            if row in (pair.first, pair.second):
                for column, share in zip(where.site.names, pair.shares.tolist(), strict=True):
                    shares[column.partition] += share
        answers.append(dict(shares))
    return answers
