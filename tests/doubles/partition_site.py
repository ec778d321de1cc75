# SPDX-License-Identifier: MIT
"""Made-up sites of several partitions: Slurm's state, scores and throughputs, without Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_pal.allocation import throughputs
from slurm_pal.allocation.throughputs import TABLE, Entry, ThroughputKey
from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.job_request import request_of
from slurm_pal.partitions.claimants import Known
from slurm_pal.pending.retarget import Waiting
from slurm_pal.slurm.client import Overview
from slurm_pal.store.snapshot import GpuScore, Snapshot, publish, read

from .slurm_pairs import shown

NOW_S = 1_763_712_345.0
NODES = {"slow": ("s0", "s1"), "fast": ("f0", "f1")}
OWN = "slow,fast"


def node(name: str, kind: str = "", gpus: int = 2, **changes: object) -> Node:
    plain = Node(name, frozenset({"IDLE"}), (kind,) * gpus, 0, 16, 0, 64000, 0, frozenset(), ())
    return plain._replace(**changes)  # type: ignore[arg-type]


def job(job_id: int = 7, partition: str = OWN, gpus: int = 1, **changes: object) -> SlurmJob:
    """A pending job of one node; a change that is no attribute is a field of scontrol."""
    fields = {
        "JobId": str(job_id), "Priority": str(1000 - job_id), "NumNodes": "1", "NumTasks": "1", "NumCPUs": "1",
        "CPUs/Task": "1", "TresPerNode": f"gres:gpu:{gpus}", "Partition": partition, "TimeLimit": "02:00:00",
        "MinMemoryCPU": "500M",
    }  # fmt: skip
    fields |= {key: str(changes.pop(key)) for key in list(changes) if key not in SlurmJob._fields}
    plain = SlurmJob(
        job_id, "PENDING", "Resources", "u", "app", partition, {}, (), (), (), NOW_S - 60, 0.0, 0.0, 7200, 0,
        "pal:job=A;from=x", gpus,
    )  # fmt: skip
    return shown(plain, fields)._replace(**changes)  # type: ignore[arg-type]


def running(job_id: int, partition: str, held: dict[str, tuple[int, ...]], **changes: object) -> SlurmJob:
    base = job(job_id, partition, state="RUNNING", reason="None", **changes)
    return base._replace(gpus=held, nodes=tuple(held), start_s=NOW_S - 600)


def overview(*jobs: SlurmJob, nodes: Sequence[Node] = (), parts: Sequence[Partition] = ()) -> Overview:
    """Two partitions of two nodes with two GPUs each, or others."""
    there = nodes or [node(name, kind) for kind, names in NODES.items() for name in names]
    used = Counter({n.name: sum(len(j.gpus.get(n.name, ())) for j in jobs) for n in there})
    there = [n._replace(gpus_used=used[n.name]) for n in there]
    return Overview(tuple(there), jobs, tuple(parts or [part(name, *names) for name, names in NODES.items()]), {})


def part(name: str, *nodes: str, up: bool = True, max_time_s: int | None = None) -> Partition:
    return Partition(name, False, up, nodes, max_time_s)


def waiting(found: SlurmJob, waited_s: float = 0.0, sensitivity: str = "A") -> Waiting:
    return Waiting(found, request_of(found), sensitivity, waited_s)


def known(table: Mapping[str, float], type_of: Mapping[str, str] | None = None, error: float = 0.01) -> Known:
    """Throughputs of `app` on 1 and 2 GPUs by type; `type_of`: partition -> type, by default the same names."""
    entries = {
        ThroughputKey("app", n, kind): Entry(rate * n, error, 1, 0.0, TABLE)
        for kind, rate in table.items()
        for n in (1, 2)
    }
    places = type_of or {name: name for name in table}
    return Known(throughputs.model(entries, sorted(set(places.values()))), places, {"app": "app"})


def scores(folder: Path, slowdown: Mapping[str, Sequence[float]] | None = None) -> Snapshot:
    """Slowdowns for classes A and B of some nodes' GPUs; C suffers nothing. Classes: v0 up to 1.05, v1 above."""
    table = slowdown or {}
    gpus = [
        GpuScore(name, k, f"{name}-{k}", "m", {"A": a, "B": a, "C": 1.0},
                 dict.fromkeys("ABC", "v0" if a <= 1.05 else "v1"), NOW_S - 60, 0.9, ())
        for name, row in table.items() for k, a in enumerate(row)
    ]  # fmt: skip
    path, levels = str(folder / "scores"), {"A": [1.0, 1.5], "B": [1.0, 1.5], "C": [1.0, 1.0]}
    publish(path, gpus, cluster="c", epoch=1, now_s=NOW_S, centroids=levels)
    return read(path)
