# SPDX-License-Identifier: MIT
"""From Slurm's state and the snapshot to the view that the placement rules see."""

from __future__ import annotations

from math import isnan

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.base.light import Any, Iterable, Mapping, Sequence, Set, cached
from slurm_pal.placement.faulty import FAULTY
from slurm_pal.placement.view import View
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_WAITING, usable
from slurm_pal.store.snapshot import NO_CLASS, Column, Snapshot, known_class

UNKNOWN_SLOWDOWN = 1.0
"""An unmeasured GPU counts as a median one: never best, never barred."""
LONGEST_DELAY_S = 300.0
"""After a requeue Slurm waits for cred_expire, 120 s by default; a job that begins later does so by its user's wish."""
_NONE: frozenset[int] = frozenset()
Table = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Slowdowns, levels and class-A slowdowns of some GPUs of one node."""


def used_indexes(jobs: Iterable[SlurmJob]) -> dict[str, set[int]]:
    """Node -> GPU indexes that running jobs hold."""
    used: dict[str, set[int]] = {}
    for job in jobs:
        for node, indexes in job.gpus.items():
            used.setdefault(node, set()).update(indexes)
    return used


def claims(job: SlurmJob) -> bool:
    """Whether a job pinned to nodes is about to take GPUs there, since it waits for nothing else.

    One that is held, begins next week or waits for another job would keep all others off them.
    """
    if job.state not in JOB_WAITING or not job.req_nodes:
        return False
    if job.reason.startswith("BeginTime"):
        return not job.held and job.eligible_s <= job.submit_s + LONGEST_DELAY_S
    return job.waits_for_nodes


def claimed_gpus(jobs: Iterable[SlurmJob], nodes: Iterable[Node], used: Mapping[str, Set[int]]) -> dict[str, int]:
    """Node -> GPUs that pending jobs pinned to that node are about to take; `used` are those that running jobs hold.

    A job takes part as far as all its nodes have room for it now, after those of higher priority: else one
    that waits for a busy node would keep all others off the free ones of its list.
    """
    pinned = sorted(filter(claims, jobs), key=lambda job: job.rank)
    claimed: dict[str, int] = {}
    known = {node.name: node for node in nodes} if pinned else {}
    for job in pinned:
        count = _gpus_of(job)
        if count and all(
            _has_room(job, known.get(name), used.get(name, _NONE), claimed.get(name, 0)) for name in job.req_nodes
        ):
            for name in job.req_nodes:
                claimed[name] = claimed.get(name, 0) + count
    return claimed


def _gpus_of(job: SlurmJob) -> int:
    """How many GPUs a pinned job takes of each node; at least one where they are asked for in another form."""
    return job.gpus_per_node or int(job.asks.gpus)


def _has_room(job: SlurmJob, node: Node | None, used: Set[int], claimed: int) -> bool:
    """Whether a pinned job could start on the node beside what runs there and is about to, as far as Slurm shows it."""
    if node is None or not usable(node.states):
        return False
    asks = job.asks
    if len(free_indexes(node, used, claimed)) < _gpus_of(job):
        return False
    cpus = asks.cpus // max(1, asks.nodes_max)
    memory_mib = max(asks.node_memory_mib, asks.cpu_memory_mib * cpus)
    if asks.whole_nodes and node.cpus_used:
        return False
    return cpus <= node.cpus - node.cpus_used and memory_mib <= node.memory_mib - node.memory_used_mib


def passed_over(job: SlurmJob, now_s: float) -> bool:
    """Whether Slurm has looked at a pending job and not started it; behind others it shows when it plans to."""
    return job.reason.startswith("Resources") or (job.reason.startswith("Priority") and job.start_s > now_s)


def named_in_vain(job: SlurmJob, nodes: Mapping[str, Node], now_s: float) -> bool:
    """Whether Slurm passes a job over although each node that it is pinned to has GPUs enough that nobody uses."""
    named = [nodes.get(name) for name in job.req_nodes]
    count = max(_gpus_of(job), -(-job.asks.gpus_in_all // max(1, len(named))), 1)
    free = (node is not None and usable(node.states) and node.n_gpus - node.gpus_used >= count for node in named)
    return bool(named) and passed_over(job, now_s) and all(free)


def free_indexes(node: Node, used: Set[int], claimed: int, gpu_type: str = "") -> list[int]:
    """The GPU indexes of a node that Slurm would hand out next, in its order (lowest first).

    GPUs that Slurm counts as used without their indexes, and those that pinned
    jobs will take before us, are taken from the low end, as Slurm would.
    """
    free = [k for k, kind in enumerate(node.gpu_types) if k not in used and (not gpu_type or kind == gpu_type)]
    return free[max(0, node.gpus_used - len(used)) + claimed :]


def build_view(
    overview: Overview, snapshot: Snapshot, shape: GpuShape, sensitivity: str, allowed_nodes: Iterable[str]
) -> View:
    """The free GPUs of the allowed nodes with their slowdowns for one job.

    `allowed_nodes` are those that the job's own request permits and that can start it
    now; nodes without a free GPU of the wanted type are left out. A job that takes whole
    nodes sees only nodes with nothing running on them.
    """
    allowed = set(allowed_nodes)
    used = used_indexes(overview.jobs)
    claimed = claimed_gpus(overview.jobs, overview.nodes, used)
    scores = _scores(snapshot, known_class(sensitivity))
    rows: list[tuple[Any, ...]] = []  # the fields of a view, node by node
    for position, node in enumerate(overview.nodes):
        if node.name not in allowed or not node.n_gpus:
            continue
        if shape.whole_nodes and (node.cpus_used or used.get(node.name) or claimed.get(node.name)):
            continue
        free = free_indexes(node, used.get(node.name, _NONE), claimed.get(node.name, 0), shape.gpu_type)
        if free:
            cpus_free = node.cpus - node.cpus_used
            table = scores.of(node.name, free)
            rows.append((node.name, free, *table, node.n_gpus, node.weight, position, cpus_free))
    return View(*(map(list, zip(*rows, strict=True)) if rows else ([] for _ in View._fields)))


class _Scores:
    """What a snapshot says of GPUs to jobs of one class; kept, since a tick asks for the same ones again and again."""

    def __init__(self, snapshot: Snapshot, sensitivity: str) -> None:
        columns = snapshot.columns
        self._rows, self._index = snapshot.rows, columns["index"]
        self._slowdown, self._slowdown_a = columns[f"slowdown_{sensitivity}"], columns["slowdown_A"]
        self._bins, self._centroids = columns[f"class_{sensitivity}"], snapshot.centroids.get(sensitivity, [])
        self._faulty = snapshot.faulty_rows()
        self._known: dict[tuple[str, tuple[int, ...]], Table] = {}

    def of(self, node: str, indexes: list[int]) -> Table:
        """Slowdowns, levels and class-A slowdowns of these GPUs of a node."""
        key = node, tuple(indexes)
        if key not in self._known:
            rows = {self._index[row]: row for row in self._rows.get(node, ())}
            found = [rows.get(k) for k in indexes]
            table = (
                [_slowdown(self._slowdown, row) for row in found],
                [self._level(row) for row in found],
                [_slowdown(self._slowdown_a, row) for row in found],
            )
            for position in [p for p, row in enumerate(found) if row in self._faulty] if self._faulty else ():
                for values in table:
                    values[position] = FAULTY
            self._known[key] = table
        return self._known[key]

    def _level(self, row: int | None) -> float:
        number = NO_CLASS if row is None else self._bins[row]
        return self._centroids[number] if number != NO_CLASS and number < len(self._centroids) else UNKNOWN_SLOWDOWN


@cached(6)  # all classes of the published and of the corrected scores
def _scores(snapshot: Snapshot, sensitivity: str) -> _Scores:
    return _Scores(snapshot, sensitivity)


def _slowdown(column: Column, row: int | None) -> float:
    value = UNKNOWN_SLOWDOWN if row is None else float(column[row])
    return UNKNOWN_SLOWDOWN if isnan(value) else value
