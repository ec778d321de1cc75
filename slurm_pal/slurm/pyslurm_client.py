# SPDX-License-Identifier: MIT
"""The pyslurm backend (extra `[pyslurm]`): nodes and jobs through libslurm, out of process.

Everything that changes a job, and whatever pyslurm does not show, goes through the
command-line backend that this one extends. pyslurm fits exactly one Slurm release and
is GPL-2.0-only, so only the child process imports it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from slurm_pal.base.cluster import Node
from slurm_pal.base.errors import MissingPackageError, SlurmError
from slurm_pal.base.hostlist import expand
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.slurm import gres, parse
from slurm_pal.slurm.cli import CliClient, sections
from slurm_pal.slurm.client import Overview, in_overview
from slurm_pal.slurm.states import job_state, node_states
from slurm_pal.slurm.told import mark


class PyslurmClient(CliClient):
    """`SlurmClient` whose nodes and jobs come from pyslurm.

    Raises MissingPackageError when pyslurm is not installed, SlurmError when it fails.
    """

    def overview(
        self, reservations: bool = False, marked: bool = False, whole: frozenset[str] = frozenset()
    ) -> Overview:
        """Nodes and jobs from pyslurm; partitions and reservations by one scontrol."""
        word, kinds = mark(), ["partition", *(["reservation"] if reservations else [])]
        done = self._show([what for kind in kinds for what in (kind, f"hostnames {word}")])
        told = self._clear_of_jobs(sections(kinds, word, done), done)
        jobs, queued = in_overview(self.jobs(), marked, whole)
        return told._replace(nodes=self.nodes(), jobs=jobs, queued=queued)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(_node(row) for row in self._table("nodes"))

    def jobs(self) -> tuple[SlurmJob, ...]:
        return tuple(_job(row) for row in self._table("jobs"))

    def _table(self, what: str) -> list[dict[str, Any]]:
        done = self._run([sys.executable, "-m", "slurm_pal.slurm.pyslurm_worker", what], "")
        text = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
        if done.returncode == 3:
            raise MissingPackageError(text)
        try:
            rows = json.loads(done.stdout)
        except ValueError:
            raise SlurmError(f"pyslurm gave no answer: {text}") from None
        return [row for row in rows if isinstance(row, dict)]


def _node(row: dict[str, Any]) -> Node:
    configured = row["configured_gres"] or {}
    return Node(
        name=str(row["name"]),
        states=node_states(str(row["state"])),
        gpu_types=tuple(kind for name, count in configured.items() for kind in _types(name, count)),
        gpus_used=sum(_count(count) for name, count in (row["allocated_gres"] or {}).items() if name.startswith("gpu")),
        cpus=int(row["effective_cpus"] or row["total_cpus"] or 0),
        cpus_used=int(row["allocated_cpus"] or 0),
        memory_mib=int(row["real_memory"] or 0),
        memory_used_mib=int(row["allocated_memory"] or 0),
        features=frozenset(_words(row["active_features"])),
        partitions=tuple(_words(row["partitions"])),
        weight=int(row["weight"] or 1),
    )


def _job(row: dict[str, Any]) -> SlurmJob:
    limit_min = row["time_limit"]
    gpus: dict[str, tuple[int, ...]] = {}
    for node, layout in (row["layout"] or {}).items():
        held = [value for name, value in (layout.get("gres") or {}).items() if name.startswith("gpu")]
        texts = (str(value.get("indexes", "")) for value in held if isinstance(value, dict))
        gpus[node] = tuple(sorted(k for text in texts for k in gres.gpu_indexes(f"gpu:1(IDX:{text})") if text))
    per_node = row["gres_per_node"] or {}
    return SlurmJob(
        job_id=int(row["id"]),
        state=job_state(str(row["state"])),
        reason=parse.reason(str(row["state_reason"] or "None")),
        user=str(row["user_name"] or ""),
        name=str(row["name"] or ""),
        partition=str(row["partition"] or ""),
        gpus=gpus,
        nodes=expand(str(row["allocated_nodes"] or "")),
        req_nodes=expand(str(row["required_nodes"] or "")),
        exc_nodes=expand(str(row["excluded_nodes"] or "")),
        submit_s=float(row["submit_time"] or 0.0),
        start_s=float(row["start_time"] or 0.0),
        end_s=float(row["end_time"] or 0.0),
        time_limit_s=None if (minutes := digits(str(limit_min))) is None else minutes * 60,
        restarts=int(row["requeue_count"] or 0),
        comment=str(row["comment"] or ""),
        gpus_per_node=sum(_count(count) for name, count in per_node.items() if name.startswith("gpu")),
        array_job_id=digits(str(row["array_id"])),
    )


def _types(name: str, count: object) -> list[str]:
    kind, _, gpu_type = name.partition(":")
    return [gpu_type] * _count(count) if kind == "gpu" else []


def _count(value: object) -> int:
    """A GRES count: pyslurm gives a number, or a dict with "count" beside indexes."""
    return int(str(value.get("count", 0))) if isinstance(value, dict) else int(str(value or 0))


def _words(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [word for word in value.split(",") if word]
    return [str(word) for word in value] if isinstance(value, list | tuple | set) else []
