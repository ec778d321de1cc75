# SPDX-License-Identifier: MIT
"""What is known about single GPUs: newest scores and all runs, for display."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.faults import NO_UUID, state_of
from slurm_pal.store import snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.snapshot import GpuScore
from slurm_pal.variability.finding import Finding
from slurm_pal.variability.records import Record


class GpuHistory(NamedTuple):
    """One GPU: where it was last seen, its published score if any, its newest runs (newest first)."""

    uuid: str
    node: str
    slot: int  # Slurm's GPU index
    model: str
    score: GpuScore | None
    runs: tuple[Record, ...]
    findings: tuple[Finding, ...] = ()  # steps, drifts, transients, jumps not confirmed yet; by time

    @property
    def state(self) -> str:
        """As published; what stands for a GPU without a UUID is missing."""
        return self.score.state if self.score else state_of(("missing",) if self.uuid.startswith(NO_UUID) else ())

    def to_json(self) -> dict[str, Any]:
        """For `--json`; runs without their samples."""
        return {
            "uuid": self.uuid,
            "node": self.node,
            "index": self.slot,
            "model": self.model,
            "slowdown": self.score.slowdown if self.score else {},
            "class": self.score.variability_class if self.score else {},
            "flags": list(self.score.flags) if self.score else [],
            "state": self.state,
            "findings": [f._asdict() | {"change": round(f.change, 5)} for f in self.findings],
            "runs": [_run_json(run) for run in self.runs],
        }


def _run_json(run: Record) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "sweep": run.sweep_id,
        "ts": run.ts_end,
        "node": run.node_name,
        "index": run.gpu.slurm_index,
        "bench": run.bench.id,
        "class": run.bench.sensitivity_class,
        "value": run.result.value,
        "unit": run.result.unit,
        "cv_pct": run.result.cv_pct,
        "ci95_pct": run.result.ci95_pct,
        "steady": run.result.steady,
        "flags": list(run.flags),
        "valid": run.valid,
        "reason": run.reason,
    }


def read(config: Config, name: str, runs: int) -> tuple[GpuHistory, ...]:
    """GPUs of a node, or the one with a UUID, with this many runs of each; all GPUs where `name` is "".

    Raises UsageError when nothing is known by that name, DataError when nothing is stored.
    """
    scores, now_s = _scores(config), time.time()
    with open_database(config.state_dir) as database:
        places = [p for p in database.conditions(valid=False) if name in ("", p.uuid, p.node)]
        found = [_of_gpu(database.records_of(place.uuid), scores, runs, now_s) for place in places]
    if not found:
        raise UsageError(f"nothing was measured on a node or GPU {name!r}: see pal-profile show, and pal nodes")
    return tuple(sorted(found, key=lambda h: (h.node, h.slot)))


def _scores(config: Config) -> dict[str, GpuScore]:
    try:
        published = snapshot.read(config.snapshot_path)
    except DataError:
        return {}  # the history is worth showing without a snapshot
    return {score.uuid: score for score in map(published.gpu, range(len(published)))}


def _of_gpu(own: Sequence[Record], scores: Mapping[str, GpuScore], runs: int, now_s: float) -> GpuHistory:
    """From all records of one GPU, in order of time."""
    from slurm_pal.variability import drift  # numpy: for `pal-profile show` alone

    gpu = own[-1].gpu
    events, newest = tuple(drift.of_records(own, now_s)), tuple(reversed(own))[:runs]
    score = scores.get(gpu.uuid)
    return GpuHistory(gpu.uuid, own[-1].node_name, gpu.slurm_index, gpu.model, score, newest, events)
