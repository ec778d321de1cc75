# SPDX-License-Identifier: MIT
"""Who takes part in sharing out partitions: jobs as Slurm shows them, with their throughputs. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation import throughputs
from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.candidates import RESERVED, startable
from slurm_pal.decide.constraint import compile_constraint
from slurm_pal.decide.facts import MoveSettings, facts_of
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.partition_mark import own_partitions
from slurm_pal.decide.request import Request
from slurm_pal.decide.tick_lease import TickLease
from slurm_pal.moves.planning import Running
from slurm_pal.moves.worth import expected_left_s, stated_limit_s
from slurm_pal.partitions.belonging import Sharer
from slurm_pal.partitions.history import application, types_of
from slurm_pal.partitions.sharing import LIMITS, Claimant
from slurm_pal.pending.retarget import Waiting
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable

Vector = NDArray[np.float64]
OUTLIVED = 0.2
"""A job that has run for longer than its limit allows for here is taken to have this part of that still to do."""
MOST_ERRORS = 2.0
"""A user's own jobs change a throughput by at most this many standard errors of what is known without them."""


class Known(NamedTuple):
    """What is known of throughputs, and under which names."""

    model: throughputs.Model  # its types are those of `type_of`
    type_of: Mapping[str, str]  # partition -> type of GPUs
    names: Mapping[str, str]  # see history.spellings
    own: Mapping[str, throughputs.Model] = {}  # user -> the same with what their own jobs reported


class Leases(NamedTuple):
    """Ours in force: job -> lease."""

    partitions: Mapping[int, TickLease]
    nodes: Mapping[int, TickLease]


class Expected(NamedTuple):
    """How long a job is expected to run; nobody knows for sure."""

    share: float  # of its time limit
    run_s: float  # without a time limit

    def of(self, job: SlurmJob) -> float:
        """In all, in the slowest of its partitions: its time limit must hold there, too."""
        limit_s = stated_limit_s(job)
        return self.share * limit_s if limit_s else self.run_s

    def left_of(self, job: SlurmJob, slowest: float, now_s: float) -> float:
        """Still to come where it runs; `slowest` is its throughput in the slowest of its partitions over that here.

        A job that outlives what its limit says for here still has that share of the rest, or of what it has run:
        a throughput that is wrong by a factor makes it neither done nor endless.
        """
        ran_s, limit_s = max(0.0, now_s - job.start_s), stated_limit_s(job)
        if not limit_s:
            return max(0.0, self.run_s * slowest - ran_s)
        rest_s = max(limit_s * slowest - ran_s, OUTLIVED * ran_s)
        return expected_left_s(limit_s * slowest, self.share, ran_s, min(rest_s, limit_s - ran_s), 1.0)


def partition_types(overview: Overview, named: Iterable[str]) -> dict[str, str]:
    """Partition -> type of GPUs: its own name where the table of throughputs has that, else its nodes' GRES type.

    With GPUs of several types a partition is a type of its own.
    """
    known, nodes = frozenset(named), types_of(overview.nodes)
    types = {node.name: nodes.get(node.name, "") for node in overview.nodes if node.n_gpus}
    found: dict[str, str] = {}
    for partition in overview.partitions:
        kinds = {types[name] for name in partition.nodes if name in types}
        only = kinds.pop() if len(kinds) == 1 and partition.name not in known else ""
        found[partition.name] = only or partition.name
    return found


def claimants(
    overview: Overview, waiting: Sequence[Waiting], leases: Leases, barred: Collection[int], known: Known,
    expected: Expected,
) -> list[Claimant]:  # fmt: skip
    """The pending jobs that wait for nothing but GPUs, in the order given, also those with one partition only.

    Left to Slurm are jobs whose users named nodes, jobs in a reservation, those that `request_of` leaves to it, and
    those of several partitions that are `barred` or of which one takes no jobs now: putting the user's list back
    would lose that one.
    """
    site = PartitionNodes(overview)
    found = (_claimant(one, leases, site, known, expected) for one in waiting)
    return [
        one
        for one in found
        if one is not None
        and (len(one.own) == 1 or one.job.job_id in leases.partitions or _may_begin(one, site, barred))
    ]


def _may_begin(one: Claimant, site: PartitionNodes, barred: Collection[int]) -> bool:
    return one.job.job_id not in barred and site.up.issuperset(one.own)


def _claimant(one: Waiting, leases: Leases, site: PartitionNodes, known: Known, expected: Expected) -> Claimant | None:
    job, lease = one.job, leases.partitions.get(one.job.job_id)
    own = tuple((lease.own if lease is not None else own_partitions(job)).split(","))
    waits = job.waits_for_nodes or (lease is not None and not job.held and job.reason.startswith(LIMITS))
    if job.state != "PENDING" or not waits:
        return None
    request = one.request if "," not in job.partition else in_partition(job, own[0], leases.nodes.get(job.job_id))
    if request.leave or request.shape is None or request.req_nodes or request.reservation:
        return None
    limit_s = math.inf if job.unlimited else job.time_limit_s
    places = {name: site.place(name, request, limit_s) for name in own}
    could = {name: place for name, place in places.items() if place is not None}
    speed, error = speeds(job, request.shape.total, [*could], known)
    closed = frozenset(name for name in could if not site.holds(name, job, request, limit_s))
    return Claimant(job, own, _open_shape(request), speed, error, could, expected.of(job), one.waited_s, closed)


def _open_shape(request: Request) -> GpuShape:
    """The shape for a range of nodes; that of the request is for the fewest."""
    assert request.shape is not None
    open_total = request.shape.per_node is None and request.nodes_max != request.nodes_min
    return request.shape._replace(nodes=None) if open_total else request.shape


def in_partition(job: SlurmJob, name: str, lease: TickLease | None) -> Request:
    """The request of a job as if it had this partition only; the list of `lease`, ours on its nodes, is not its own."""
    own_req = lease.own_req if lease is not None else None
    own_exc = lease.own_exc if lease is not None else None
    return request_of(job._replace(partition=name), own_req, own_exc)


def open_partitions(site: PartitionNodes, one: Running, own: Sequence[str]) -> list[str]:
    """The partitions of its user's list `own` where a running job could ever run, including where it does.

    Slurm has given it a time limit, if need be that of its partition; without one it fits in no partition that has one.
    While one of the list takes no jobs, the job stays: putting the list back would lose that one.
    """
    job, request = one.job, one.request
    if request.leave or request.req_nodes or request.reservation or request.shape is None or job.partition not in own:
        return []
    if not site.up.issuperset(own):
        return []
    limit_s = math.inf if job.time_limit_s is None else job.time_limit_s
    return [name for name in own if name == job.partition or site.place(name, request, limit_s) is not None]


class PartitionNodes:
    """Partitions with their nodes that can run jobs."""

    def __init__(self, overview: Overview) -> None:
        nodes = {
            node.name: node
            for node in overview.nodes
            if node.n_gpus and usable(node.states) and not node.states & RESERVED
        }
        self.up = frozenset(p.name for p in overview.partitions if p.up)
        self._limit_s = {p.name: p.max_time_s or math.inf for p in overview.partitions}
        self._all_nodes = {p.name: frozenset(p.nodes) for p in overview.partitions}
        self._nodes = {p.name: [nodes[n] for n in p.nodes if n in nodes] for p in overview.partitions}
        self._made = {name: _make(node) for name, node in nodes.items()}
        self._known: dict[tuple[str, Request], tuple[str, ...] | None] = {}  # most of thousands of jobs ask alike

    def place(self, name: str, request: Request, limit_s: float | None) -> tuple[str, ...] | None:
        """The nodes of a partition where all that a job needs besides GPUs is free now; None where it could never run.

        It could where the partition is up, its time limit allows it, and enough nodes could hold it when empty.
        slurmctld sets the priority of a job to 0 that waits in a partition without such nodes (BadConstraints).
        """
        if name not in self.up or (limit_s or 0.0) > self._limit_s[name]:
            return None
        key = name, request._replace(partitions=(), time_limit_s=None)
        if key not in self._known:
            self._known[key] = self._place(*key)
        return self._known[key]

    def holds(self, name: str, job: SlurmJob, request: Request, limit_s: float | None) -> bool:
        """Whether the node lists on the job now, perhaps ours, leave it enough nodes of a partition.

        The partition is changed by an update of its own: with nodes of another one, or without any left,
        slurmctld sets the priority of the job to 0.
        """
        if not set(job.req_nodes).issubset(self._all_nodes.get(name, ())):
            return False
        own = frozenset(request.exc_nodes).issuperset(job.exc_nodes)
        return own or self.place(name, request._replace(exc_nodes=job.exc_nodes), limit_s) is not None

    def _place(self, name: str, request: Request) -> tuple[str, ...] | None:
        predicate = compile_constraint(request.constraint) if request.constraint else lambda features: True
        shape = request.shape
        if predicate is None or shape is None:
            return None
        fixed = request.nodes_max == 1 or shape.per_node is not None
        count = (shape.per_node or shape.total) if fixed else 1
        tasks = request.tasks_per_node or (-(-request.tasks // (shape.nodes or 1)) if fixed else 1)
        alike: dict[Node, list[Node]] = defaultdict(list)
        for node in self._nodes[name]:
            if node.name not in request.exc_nodes:
                alike[self._made[node.name]].append(node)
        fitting = [one for one in alike if _gpus(one, shape.gpu_type) >= count and predicate(one.features)]
        holding = {one: len(alike[one]) for one in startable(fitting, request, tasks, count)}
        largest = sorted((_gpus(one, shape.gpu_type) for one, n in holding.items() for _ in range(n)), reverse=True)
        if len(largest) < (shape.nodes or 1) or sum(largest[: request.nodes_max]) < shape.total:
            return None
        some_free = [node for one in holding for node in alike[one] if node.gpus_used < node.n_gpus]
        return tuple(node.name for node in startable(some_free, request, tasks, count))


def _gpus(node: Node, kind: str) -> int:
    return node.gpu_types.count(kind) if kind else node.n_gpus


def _make(node: Node) -> Node:
    """The node as it is when nothing runs on it; many are alike."""
    return node._replace(
        name="",
        states=frozenset(),
        gpus_used=0,
        cpus_used=0,
        memory_used_mib=0,
        partitions=(),
        weight=1,
        available=None,
    )


def speeds(job: SlurmJob, gpus: int, names: Sequence[str], known: Known) -> tuple[dict[str, float], dict[str, float]]:
    """Throughput and its error by partition.

    What the user's own jobs reported counts only within the errors of what is known without them.
    """
    app = application(job.user, job.name, known.names)
    found = throughputs.matrix(known.model, [(app, gpus)])
    throughput, error = found.throughput[0], found.relative_error[0]
    if (own := known.own.get(job.user)) is not None:
        told = throughputs.matrix(own, [(app, gpus)])
        throughput, error = _bounded(told.throughput[0], throughput, error), told.relative_error[0]
    place = {kind: k for k, kind in enumerate(known.model.types)}
    at = {name: place[known.type_of[name]] for name in names if known.type_of.get(name) in place}
    return {name: float(throughput[k]) for name, k in at.items()}, {name: float(error[k]) for name, k in at.items()}


def _bounded(told: Vector, known: Vector, error: Vector) -> Vector:
    """(n,) throughputs as reported, none further than twice its error from what is `known`, whatever the unit."""
    both = (told > 0) & (known > 0)
    if not both.any():
        return told
    apart = np.log(np.where(both, told, 1.0) / np.where(both, known, 1.0))
    unit = np.median(apart[both])
    near = known * np.exp(unit + np.clip(apart - unit, -MOST_ERRORS * error, MOST_ERRORS * error))
    return np.where(both, near, told)


def in_partitions(overview: Overview, names: Sequence[str]) -> list[SlurmJob]:
    """The jobs that hold GPUs of these partitions, each in its own one, or as if it were in one that has all its nodes.

    A job may have come by another partition with the same nodes. One on a node that is reserved now holds nothing
    that would be shared.
    """
    reserved = {node.name for node in overview.nodes if node.states & RESERVED}
    nodes = {p.name: frozenset(p.nodes) - reserved for p in overview.partitions if p.name in names}
    found = []
    for job in overview.jobs:
        if job.state != "RUNNING" or not job.gpus:
            continue
        inside = next((n for n in (job.partition, *nodes) if n in nodes and nodes[n].issuperset(job.gpus)), "")
        if inside:
            found.append(job._replace(partition=inside))
    return found


def sharers(
    waiting: Sequence[Claimant], sensitivity: Mapping[int, str], running: Iterable[SlurmJob], names: Sequence[str],
    elsewhere: Mapping[int, Mapping[str, float]], lists: Mapping[int, Sequence[str]], known: Known, expected: Expected,
    now_s: float,
) -> list[Sharer]:  # fmt: skip
    """All jobs that take part: the pending ones first, in their order, then the running ones (`in_partitions`).

    A running job counts in all partitions of these names, even where it cannot be moved: what it holds comes free
    one day, and shares say who it then belongs to, not what is done at once. For a job that may be moved,
    `elsewhere` has the throughputs in its user's own partitions. `lists` are users' own lists, as far as they are known
    while a job runs: its time limit is for the slowest of these, and without a list for the partition where it runs. It
    takes part as long as it runs.
    """
    found = [
        Sharer(one.job, one.speed, one.shape.total, sensitivity.get(one.job.job_id, "A"), one.run_s) for one in waiting
    ]
    for job in running:
        gpus = sum(map(len, job.gpus.values()))
        own = lists.get(job.job_id, ())
        all_speeds = speeds(job, gpus, [*dict.fromkeys([*names, *own])], known)[0] if gpus else {}
        speed = dict(elsewhere.get(job.job_id, {})) or {name: all_speeds[name] for name in names if name in all_speeds}
        here = speed.get(job.partition, 0.0)
        if here > 0:
            slowest = min(value for value in speed.values() if value > 0) / here
            stays = job.job_id not in elsewhere
            of_own = [all_speeds[name] / here for name in own if all_speeds.get(name, 0.0) > 0]
            left_s = expected.left_of(job, min([*of_own, 1.0]) if stays else slowest, now_s)
            found.append(Sharer(job, speed, gpus, facts_of(job, MoveSettings()).sensitivity, left_s / slowest, stays))
    return found
