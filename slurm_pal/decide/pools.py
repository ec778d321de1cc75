# SPDX-License-Identifier: MIT
"""Pools: the nodes of a partition with free GPUs of one type, as a job without wishes of its own sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, GpuShape
from slurm_pal.decide.candidates import RESERVED, Candidates, may_start, several_models
from slurm_pal.decide.offers import build_view
from slurm_pal.decide.scene import rows
from slurm_pal.placement.view import View
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import asleep, usable
from slurm_pal.store.snapshot import Snapshot

ANY_TYPE = ""
Words = tuple[frozenset[str], str]
"""What stands for a pool: the names of its nodes, and a GPU type."""


class Pool(NamedTuple):
    """Where a job may go: one view for each sensitivity class, all with the same rows."""

    gpu_type: str  # ANY_TYPE: whatever type
    views: dict[str, View]  # sensitivity class -> nodes that could start a job now and have free GPUs
    idle: list[int]  # rows of the nodes on which nothing runs
    ever: tuple[Node, ...]  # every node that such a job could be given once it is free
    every: tuple[Node, ...]  # all nodes, in whatever state
    wakes: bool  # Slurm would boot nodes for a job: some are powered down, or not shown because they are


class Pools:
    """Makes the pools of a cluster. What is free is worked out once for each GPU type, not for each partition."""

    def __init__(self, overview: Overview, snapshot: Snapshot) -> None:
        self._overview, self._snapshot = overview, snapshot
        self._nodes = {node.name: node for node in overview.nodes}
        self._open = [node.name for node in overview.nodes if may_start(node) and not node.states & RESERVED]
        shown = [(frozenset(name for name in p.nodes if name in self._nodes), {*p.nodes}) for p in overview.partitions]
        self._partly_shown = {seen for seen, inside in shown if len(seen) < len(inside)}
        self._views: dict[str, dict[str, View]] = {}
        self._idle: dict[str, frozenset[str]] = {}

    def of_partitions(self) -> Iterator[tuple[tuple[str, str], Words | None]]:
        """(partition, GPU type) with what stands for its pool: pools of the same GPUs have the same words.

        None where its GPUs are of several models: a slowdown is relative to the same model, so no
        order of these nodes would mean anything. Only partitions that are up and have GPUs.
        """
        mixed: dict[Words, bool] = {}
        for partition in (p for p in self._overview.partitions if p.up):
            names = frozenset(name for name in partition.nodes if name in self._nodes)
            types = {kind for name in names for kind in self._nodes[name].gpu_types}
            for gpu_type in (ANY_TYPE, *sorted(types - {ANY_TYPE})) if types else ():
                words = names, ANY_TYPE if types == {gpu_type} else gpu_type
                if words not in mixed:
                    mixed[words] = self._mixed(*words)
                yield (partition.name, gpu_type), None if mixed[words] else words

    def _mixed(self, names: frozenset[str], gpu_type: str) -> bool:
        """Whether palsub, too, would leave the choice among these nodes to Slurm."""
        nodes = tuple(self._nodes[name] for name in names if not self._nodes[name].states & RESERVED)
        return bool(several_models([Candidates((), nodes)], self._snapshot, gpu_type))

    def pool(self, names: frozenset[str], gpu_type: str) -> Pool:
        """The pool of these nodes, in Slurm's order."""
        if gpu_type not in self._views:
            self._look(gpu_type)
        seen = self._views[gpu_type]
        inside = [row for row, name in enumerate(seen["A"].names) if name in names]
        views = {c: rows(view, inside) for c, view in seen.items()}
        idle = [row for row, name in enumerate(views["A"].names) if name in self._idle[gpu_type]]
        every = tuple(node for name, node in self._nodes.items() if name in names)
        ever = tuple(node for node in every if usable(node.states) and not node.states & RESERVED)
        wakes = names in self._partly_shown or any(asleep(node.states) for node in every)
        return Pool(gpu_type, views, idle, ever, every, wakes)

    def _look(self, gpu_type: str) -> None:
        def view(sensitivity: str, whole_nodes: bool = False) -> View:
            shape = GpuShape(1, gpu_type=gpu_type, whole_nodes=whole_nodes)
            return build_view(self._overview, self._snapshot, shape, sensitivity, self._open)

        self._views[gpu_type] = {c: view(c) for c in SENSITIVITY_CLASSES}
        self._idle[gpu_type] = frozenset(view("A", whole_nodes=True).names)


def every_gpu(overview: Overview, snapshot: Snapshot, sensitivity: str) -> dict[str, list[float]]:
    """Node -> slowdown of each of its GPUs by index, in use or not; 1.0 where unknown."""
    empty = tuple(node._replace(gpus_used=0, cpus_used=0) for node in overview.nodes)
    names = [node.name for node in empty]
    view = build_view(overview._replace(nodes=empty, jobs=()), snapshot, GpuShape(1), sensitivity, names)
    return dict(zip(view.names, map(list, view.slowdown), strict=True))
