# SPDX-License-Identifier: MIT
"""Clusters with running jobs for tests of moves: Slurm's view, scores, and what planners want to know of jobs."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.request import Request
from slurm_pal.moves.planning import MoveTerms, Running
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import GpuScore, Snapshot, publish, read
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import build

from .slurm_pairs import shown

NOW_S = 1_700_000_000.0
HOUR_S = 3600.0
TERMS = MoveTerms(
    policy="class-fit", locality=(1.7,), barred_slowdown=1.05, margin=1.5, minimum_s=600.0, end_guard_s=900.0,
    per_tick=4, per_job=5, per_user=2, move_cost_s=60.0, expected_run_share=0.5, expected_run_s=HOUR_S,
    calibration=1.0, in_flight={},
)  # fmt: skip


def node(name: str, gpus: int = 4, **changes: object) -> Node:
    plain = Node(name, frozenset({"MIXED"}), ("",) * gpus, 0, 16, 0, 64000, 0, frozenset(), ("gpu",))
    return plain._replace(**changes)  # type: ignore[arg-type]


def job(job_id: int, gpus: Mapping[str, Sequence[int]], **changes: object) -> SlurmJob:
    """Has run for two hours of its day; `fields` are pairs of scontrol."""
    pairs: Mapping[str, str] = changes.pop("fields", {})  # type: ignore[assignment]
    plain = SlurmJob(
        job_id=job_id, state="RUNNING", reason="None", user="u", name="j", partition="gpu",
        gpus={name: tuple(indexes) for name, indexes in gpus.items()}, nodes=tuple(gpus), req_nodes=(), exc_nodes=(),
        submit_s=NOW_S - 3 * HOUR_S, start_s=NOW_S - 2 * HOUR_S, end_s=0.0, time_limit_s=24 * 3600, restarts=0,
        comment="", gpus_per_node=0,
    )  # fmt: skip
    return shown(plain, pairs)._replace(**changes)  # type: ignore[arg-type]


def request(words: str) -> Request:
    return build(parse([*words.split(), "--wrap", "true"]), {}, None)


def running(one: SlurmJob, words: str = "", **changes: object) -> Running:
    """A class-A job with a checkpoint; by default it asked for just the GPUs that it has."""
    counts = [len(indexes) for indexes in one.gpus.values()]
    words = words or f"--nodes={len(counts)} --gpus-per-node={counts[0]}"
    plain = Running(one, request(words), "A", True, 600.0, 0, 0.0, None, None)
    return plain._replace(**changes)  # type: ignore[arg-type]


def overview(nodes: Sequence[Node], jobs: Sequence[SlurmJob] = (), **changes: object) -> Overview:
    """As Slurm would tell it: the GPUs and CPUs (one for each GPU) of running jobs count as used."""
    counted = []
    for one in nodes:
        used = sum(len(other.gpus.get(one.name, ())) for other in jobs)
        counted.append(one._replace(gpus_used=one.gpus_used + used, cpus_used=one.cpus_used + used))
    plain = Overview(tuple(counted), tuple(jobs), (Partition("gpu", True, True, tuple(n.name for n in nodes)),), {})
    return plain._replace(**changes)  # type: ignore[arg-type]


def scores(table: Mapping[str, Sequence[float]], models: Mapping[str, str] = {}) -> Snapshot:
    """Slowdowns for class A by node; B suffers a third of it, C nothing; NaN was never measured."""
    gpus = [
        GpuScore(name, k, f"{name}-{k}", models.get(name, "m"), {"A": a, "B": 1 + (a - 1) / 3, "C": 1.0},
                 {"A": "v0", "B": "v0", "C": "v0"}, NOW_S - 60, 0.9, ())
        for name, row in table.items() for k, a in enumerate(row) if not math.isnan(a)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot")
        publish(path, gpus, cluster="c", epoch=1, now_s=NOW_S, centroids={c: [1.0] for c in "ABC"})
        return read(path)
