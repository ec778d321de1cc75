"""From Slurm's state and the snapshot to the view that the placement rules see."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from slurm_pal.cluster import Node
from slurm_pal.jobs import GpuShape, SlurmJob
from slurm_pal.placement.view import View
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import JOB_WAITING
from slurm_pal.store.snapshot import NO_CLASS, Snapshot, known_class

UNKNOWN_SLOWDOWN = 1.0
"""An unmeasured GPU counts as a median one: never best, never barred."""


def used_indexes(jobs: Iterable[SlurmJob]) -> dict[str, set[int]]:
    """Node -> GPU indexes that running jobs hold."""
    used: dict[str, set[int]] = {}
    for job in jobs:
        for node, indexes in job.gpus.items():
            used.setdefault(node, set()).update(indexes)
    return used


def claimed_gpus(jobs: Iterable[SlurmJob]) -> dict[str, int]:
    """Node -> GPUs that pending jobs pinned to that node are about to take."""
    claims: dict[str, int] = {}
    for job in jobs:
        if job.state in JOB_WAITING:
            for node in job.req_nodes:
                claims[node] = claims.get(node, 0) + max(1, job.gpus_per_node)
    return claims


def free_indexes(node: Node, used: set[int], claimed: int, gpu_type: str = "") -> list[int]:
    """The GPU indexes of a node that Slurm would hand out next, in its order (lowest first).

    GPUs that Slurm counts as used without telling their indexes, and those that pinned
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
    claims = claimed_gpus(overview.jobs)
    known = known_class(sensitivity)
    positions = {node.name: number for number, node in enumerate(overview.nodes)}
    offers: list[tuple[Node, list[int], list[int | None]]] = []
    for node in overview.nodes:
        if node.name not in allowed or not node.n_gpus:
            continue
        if shape.whole_nodes and (node.cpus_used or used.get(node.name) or claims.get(node.name)):
            continue
        free = free_indexes(node, used.get(node.name, set()), claims.get(node.name, 0), shape.gpu_type)
        if free:
            rows = {int(snapshot.columns["index"][row]): row for row in snapshot.rows.get(node.name, ())}
            offers.append((node, free, [rows.get(k) for k in free]))
    return View(
        names=[node.name for node, _, _ in offers],
        free=[free for _, free, _ in offers],
        slowdown=[[_slowdown(snapshot, known, row) for row in rows] for _, _, rows in offers],
        level=[[_level(snapshot, known, row) for row in rows] for _, _, rows in offers],
        slowdown_a=[[_slowdown(snapshot, "A", row) for row in rows] for _, _, rows in offers],
        node_gpus=[node.n_gpus for node, _, _ in offers],
        weight=[node.weight for node, _, _ in offers],
        position=[positions[node.name] for node, _, _ in offers],
        cpus_free=[node.cpus - node.cpus_used for node, _, _ in offers],
    )


def _slowdown(snapshot: Snapshot, sensitivity: str, row: int | None) -> float:
    value = UNKNOWN_SLOWDOWN if row is None else float(snapshot.columns[f"slowdown_{sensitivity}"][row])
    return UNKNOWN_SLOWDOWN if isnan(value) else value


def _level(snapshot: Snapshot, sensitivity: str, row: int | None) -> float:
    if row is None:
        return UNKNOWN_SLOWDOWN
    bin_number = int(snapshot.columns[f"class_{sensitivity}"][row])
    centroids = snapshot.centroids.get(sensitivity, [])
    return centroids[bin_number] if bin_number != NO_CLASS and bin_number < len(centroids) else UNKNOWN_SLOWDOWN
