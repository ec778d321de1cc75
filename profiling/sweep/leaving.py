# SPDX-License-Identifier: MIT
"""Which running sweep jobs leave their nodes because users' jobs could start there. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.profiling.sweep.sweep_job import is_ours, job_name
from slurm_pal.profiling.sweep.waiting import could_use, waits
from slurm_pal.slurm.states import EXACTLY_IDLE, JOB_ENDED, usable

CALM_S = 15.0
LONGEST_CALM_S = 3600.0
EARLY = -1
"""Instead of a user's job: a node is left before anybody waits, so that one stays idle for whoever comes."""


class HeldNode(NamedTuple):
    """A node that a job of the sweep occupies."""

    node: str
    job_id: int
    since_s: float  # on any clock: the youngest leaves first, since least is lost
    leaves_for: int = 0  # it leaves already, for this job (or `EARLY`)
    stays: bool = False  # until a user's job waits: it does not leave early


def calm_s(leavings: int) -> float:
    """How long no user must have waited before the next submission, after so many leavings that were of no use, s."""
    return min(LONGEST_CALM_S, CALM_S * 2.0 ** min(leavings, 16)) if leavings > 0 else 0.0


def idle_nodes(nodes: Iterable[Node]) -> frozenset[str]:
    """Nodes on which nothing runs and nothing is planned."""
    return frozenset(
        n.name for n in nodes if n.states - {"RESERVED", "RES"} == EXACTLY_IDLE and not n.gpus_used and not n.cpus_used
    )


def leavers(
    jobs: Sequence[SlurmJob],
    nodes: Iterable[Node],
    held: Iterable[HeldNode],
    left: Mapping[int, frozenset[str]],
    sweep_id: str,
    own_uid: int,
) -> dict[str, SlurmJob]:
    """Node of the sweep -> the user's job that could start there (with idle nodes, where it needs several).

    `left`: user's job -> nodes that were left for it before; a job that does not start although these
    are idle has other reasons, and nothing more is left for it. A job of `held` that Slurm does not show as
    running there, as a job of this sweep and of `own_uid`, is not touched.
    """
    known = {n.name: n for n in nodes}
    room = _Room(known, idle_nodes(known.values()), held_by_us(jobs, known, held, sweep_id, own_uid))
    found: dict[str, SlurmJob] = {}
    for job in sorted((j for j in jobs if waits(j, own_uid)), key=lambda j: (-(j.priority or 0), j.job_id)):
        given = left.get(job.job_id, frozenset())
        if not given or not given <= room.idle:
            found.update(dict.fromkeys(room.make(job), job))
    return found


def held_by_us(
    jobs: Sequence[SlurmJob], nodes: Mapping[str, Node], held: Iterable[HeldNode], sweep_id: str, own_uid: int
) -> list[HeldNode]:
    """Those that Slurm shows as ours, on nodes where a user's job could start; the youngest first."""
    shown = {job.job_id: job for job in jobs}
    found = []
    for one in held:
        job, node = shown.get(one.job_id), nodes.get(one.node)
        if job is None or node is None or job.state in JOB_ENDED:  # others may have the node by now
            continue
        ours = is_ours(job, own_uid) and job.name == job_name(sweep_id)
        if ours and one.node in job.nodes and usable(node.states):
            found.append(one)
    return sorted(found, key=lambda one: -one.since_s)


class _Room:
    """GPUs that are free, or would be if sweep jobs left; each job in turn takes what it needs."""

    def __init__(self, nodes: Mapping[str, Node], idle: frozenset[str], held: Sequence[HeldNode]) -> None:
        self.idle = idle
        self._nodes = nodes
        self._left = {one.node: nodes[one.node].n_gpus for one in held if one.leaves_for}
        self._held = [one.node for one in held if not one.leaves_for]
        self._free: dict[tuple[object, ...], dict[str, int]] = {}  # kind of node -> node -> GPUs
        for name in sorted(idle):
            node = nodes[name]
            kind = (node.partitions, node.gpu_types, node.cpus, node.memory_mib)
            self._free.setdefault(kind, {})[name] = node.n_gpus
        self._most = max((node.n_gpus for node in nodes.values()), default=1)

    def make(self, job: SlurmJob) -> list[str]:
        """The nodes that are left for this job; none where it could not start even so, or needs none."""
        count, per_node = _shape(job, self._most)
        new = [n for n in self._held if self._nodes[n].n_gpus >= per_node and _fits(job, self._nodes[n])]
        left = [n for n, gpus in self._left.items() if gpus >= per_node and _fits(job, self._nodes[n])][:count]
        if not new and not left:
            return []
        # Slurm looked at a job of reason Resources and found too little: idle nodes alone do not do for it.
        most = count - len(left) - (job.reason == "Resources" and not left)
        free = list(itertools.islice(self._idle(job, per_node), max(0, most)))
        wanted = count - len(left) - len(free)
        if len(new) < wanted:
            return []
        del new[wanted:]
        for name in new:
            self._held.remove(name)
            self._left[name] = self._nodes[name].n_gpus
        for name in (*left, *new):
            self._left[name] -= self._left[name] if job.asks.whole_nodes else per_node
        for room in self._free.values():
            for name in room.keys() & free:
                room[name] -= room[name] if job.asks.whole_nodes else per_node
        return new

    def _idle(self, job: SlurmJob, per_node: int) -> Iterator[str]:
        """Idle nodes with so many GPUs that are not taken: of few kinds, of which one node stands for all."""
        lists = bool(job.req_nodes or job.exc_nodes)
        for room in self._free.values():
            if lists or _fits(job, self._nodes[next(iter(room))]):
                for name, gpus in room.items():
                    if gpus >= per_node and (not lists or _fits(job, self._nodes[name])):
                        yield name


def _shape(job: SlurmJob, most: int) -> tuple[int, int]:
    """How many nodes it needs at least, and how many GPUs on each; `most`: on the largest node."""
    count = max(1, job.asks.nodes_min)
    if job.gpus_per_node:
        return count, job.gpus_per_node
    count = max(count, math.ceil(job.asks.gpus_in_all / max(1, most)))
    return count, max(1, math.ceil(job.asks.gpus_in_all / count))


def _fits(job: SlurmJob, node: Node) -> bool:
    """Whether it could use this node if nothing ran there, as far as numbers and lists show."""
    if job.asks.cpus / max(1, job.asks.nodes_max) > node.cpus or job.asks.node_memory_mib > node.memory_mib:
        return False
    return could_use(job, node.partitions, tuple(sorted(set(node.gpu_types) - {""})), (node.name,))
