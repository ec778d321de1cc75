# SPDX-License-Identifier: MIT
"""Columns = partition x {packed, spread} x variability class, for any policy that is a linear program (gavel.md 15.3).

Every partition with V variability classes, best first, has 2 V columns: V packed ones, then
V spread ones. In a column of level v a gang runs at the speed of class v, its slowest GPU,
and may use better GPUs as well. So the capacity rows are nested: what runs at levels up to v
has room on the GPUs of classes up to v, for every v. By Hall's condition the GPU time of
shares can be divided among the classes if they meet these rows, and only then. This is about
GPU time: like Gavel's own program, the rows do not know that all GPUs of a gang must be free
at once.

Packed means on the fewest nodes. Where one node holds the gang it runs at full speed there.
Where none does, the gang spans nodes and runs at its spread ratio, in the packed column too:
its spread column would say the same and is closed. The other spread columns are for good
GPUs that lie in several nodes. The rows do not bound how many gangs find a node: two nodes
with 6 GPUs of class 0 each have the GPU time for three packed gangs of 4 there, but hold two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import problem as problems
from slurm_pal.allocation.problem import Matrix, Problem, Vector
from slurm_pal.base.errors import DataError


class PartitionGpus(NamedTuple):
    """GPUs of one kind, by node and variability class. Classes are ordered from best to worst."""

    name: str
    nodes: Sequence[Sequence[int]]  # GPUs of each class in each node; 8 GPUs with one of class 1: (7, 1)
    slowdown: Mapping[str, Sequence[float]]  # sensitivity class -> slowdown of each class, 1.0 being the median GPU


class PartitionJobs(NamedTuple):
    """m jobs on P partitions, in order of arrival."""

    throughput: Matrix  # (m, P) steps/s of the gang within one node, on GPUs of slowdown 1.0; 0: it cannot run there
    spread: NDArray[np.float64]  # (m,) or (m, P) throughput over nodes / within one; above 1 counts as 1
    sensitivity: Sequence[str]  # (m,) keys of PartitionGpus.slowdown
    scale: Vector  # (m,) GPUs that the job holds at once


class Column(NamedTuple):
    """What a column of the problem stands for."""

    partition: str
    spread: bool
    level: int  # the worst variability class that a gang in this column may use


class PartitionCapacity(NamedTuple):
    """What the V classes of a partition hold."""

    gpus: Vector  # (V,) of each class
    upto: Vector  # (V,) of this class and better ones
    in_node: Vector  # (V,) the same, in the node that has most
    nodes: int

    @property
    def levels(self) -> int:
        return len(self.gpus)


class Columns(NamedTuple):
    """The columns of a site, in order, and what they hold."""

    partitions: tuple[PartitionGpus, ...]
    rooms: tuple[PartitionCapacity, ...]
    names: tuple[Column, ...]
    first: tuple[int, ...]  # column at which each partition begins


def columns(partitions: Sequence[PartitionGpus]) -> Columns:
    """The columns of these partitions. Raises DataError for none, and for tables that do not fit together."""
    if not partitions:
        raise DataError("a site needs at least one partition with GPUs")
    rooms = tuple(_room(partition) for partition in partitions)
    names = tuple(
        Column(partition.name, spread, level)
        for partition, room in zip(partitions, rooms, strict=True)
        for spread in (False, True)
        for level in range(room.levels)
    )
    if len({partition.name for partition in partitions}) < len(partitions):
        raise DataError(f"partitions must have different names, not {', '.join(p.name for p in partitions)}")
    sizes = [2 * room.levels for room in rooms]
    return Columns(tuple(partitions), rooms, names, tuple(int(at) for at in np.cumsum([0, *sizes[:-1]])))


def _room(partition: PartitionGpus) -> PartitionCapacity:
    widths = sorted({len(node) for node in partition.nodes})
    if len(widths) != 1 or not widths[0]:
        raise DataError(
            f"partition {partition.name} needs nodes, each with a count for every variability class; they have "
            f"{' or '.join(map(str, widths)) or 'no'} counts"
        )
    counts = np.array(partition.nodes, dtype=np.float64)
    if not counts.min() >= 0 or not counts.sum():
        raise DataError(
            f"partition {partition.name} needs counts of at least 0 and one GPU; the least count is {counts.min():g} "
            f"and there are {counts.sum():g} GPUs"
        )
    for name, levels in partition.slowdown.items():
        if len(levels) != counts.shape[1] or not all(0 < level < np.inf for level in levels):
            raise DataError(
                f"partition {partition.name} has {counts.shape[1]} variability classes: sensitivity class {name} needs "
                f"a slowdown above 0 for each, not {list(levels)}"
            )
    gpus = counts.sum(axis=0)
    return PartitionCapacity(gpus, np.cumsum(gpus), np.cumsum(counts, axis=1).max(axis=0), len(counts))


def problem(site: Columns, jobs: PartitionJobs, **given: Any) -> Problem:  # noqa: ANN401  # fields of Problem
    """Jobs x columns as every policy takes it; `given` are further fields of Problem, by column of `site`.

    The reference shares (`gpus`) count each GPU once, in the packed column of its own class.
    Raises DataError for shapes that do not fit and for a sensitivity class without a slowdown.
    """
    m, p = len(jobs.scale), len(site.partitions)
    speeds = np.asarray(jobs.throughput, dtype=np.float64)
    if speeds.shape != (m, p) or len(jobs.sensitivity) != m:
        raise DataError(
            f"{m} jobs on {p} partitions need a throughput of shape {(m, p)} and {m} sensitivity classes, not "
            f"{speeds.shape} and {len(jobs.sensitivity)}"
        )
    ratio = _spread_ratio(jobs.spread, m, p)
    made = [
        _throughput(room, speeds[:, k], ratio[:, k], jobs.scale, _slowdowns(partition, jobs.sensitivity))
        for k, (partition, room) in enumerate(zip(site.partitions, site.rooms, strict=True))
    ]
    gpus = np.concatenate([part for room in site.rooms for part in (room.gpus, np.zeros(room.levels))])
    uses, capacity = nested_rows(site)
    return problems.problem(np.hstack(made), jobs.scale, gpus, uses=uses, capacity=capacity, **given)


def _spread_ratio(spread: NDArray[np.float64], m: int, p: int) -> Matrix:
    ratio = np.asarray(spread, dtype=np.float64)
    if ratio.shape == (m,):
        ratio = np.repeat(ratio[:, None], p, axis=1)
    if ratio.shape != (m, p) or not np.all(ratio >= 0):
        raise DataError(f"spread must be ratios of at least 0 of shape {(m,)} or {(m, p)}, not of {np.shape(spread)}")
    return np.asarray(np.minimum(ratio, 1.0))


def _slowdowns(partition: PartitionGpus, sensitivity: Sequence[str]) -> Matrix:
    """(m, V) of each job at each level: that of the slowest class it may meet there."""
    missing = sorted(set(sensitivity) - partition.slowdown.keys())
    if missing:
        known = ", ".join(sorted(partition.slowdown))
        raise DataError(
            f"partition {partition.name} has no slowdown for sensitivity class {missing[0]!r}, only {known}"
        )
    names = list(partition.slowdown)
    worst = np.maximum.accumulate(np.array([partition.slowdown[name] for name in names], dtype=np.float64), axis=1)
    row = {name: k for k, name in enumerate(names)}
    return np.asarray(worst[[row[name] for name in sensitivity]])


def _throughput(room: PartitionCapacity, speed: Vector, ratio: Vector, scale: Vector, slowdown: Matrix) -> Matrix:
    """(m, 2 V) steps/s in the columns of one partition."""
    wide = np.asarray(scale, dtype=np.float64)[:, None]
    held = wide <= room.upto
    spans = wide > room.in_node
    at_level = speed[:, None] / slowdown
    packed = np.where(held, at_level * np.where(spans, ratio[:, None], 1.0), 0.0)
    can_spread = held & ~spans & (wide > 1) & (room.nodes > 1)
    return np.hstack([packed, np.where(can_spread, at_level * ratio[:, None], 0.0)])


def nested_rows(site: Columns) -> tuple[Matrix, Vector]:
    """`uses` (k, n) and `capacity` (k,) of a Problem: a row for each partition and variability class."""
    level = np.array([name.level for name in site.names])
    owner = np.repeat(np.arange(len(site.rooms)), [2 * room.levels for room in site.rooms])
    uses = [(owner == k) & (level <= v) for k, room in enumerate(site.rooms) for v in range(room.levels)]
    return np.array(uses, dtype=np.float64), np.concatenate([room.upto for room in site.rooms])
