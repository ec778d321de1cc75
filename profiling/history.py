"""What is known of single GPUs: newest scores and all runs, for display."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from slurm_pal.config import Config
from slurm_pal.errors import DataError, UsageError
from slurm_pal.store import snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.snapshot import GpuScore
from slurm_pal.variability import drift
from slurm_pal.variability.drift import Finding
from slurm_pal.variability.records import Record


class GpuHistory(NamedTuple):
    """One GPU: where it was last seen, its published score if any, its runs (newest first)."""

    uuid: str
    node: str
    slot: int  # Slurm's GPU index
    model: str
    score: GpuScore | None
    runs: tuple[Record, ...]
    findings: tuple[Finding, ...] = ()  # steps, drifts, transients, jumps not confirmed yet; by time

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


def read(config: Config, name: str) -> tuple[GpuHistory, ...]:
    """GPUs of a node, or the one with a UUID; all where `name` is "".

    Raises UsageError when nothing is known by that name, DataError when nothing is stored.
    """
    with open_database(config.state_dir) as database:
        records = database.records()
    try:
        published = snapshot.read(config.snapshot_path)
        scores = {score.uuid: score for score in map(published.gpu, range(len(published)))}
    except DataError:
        scores = {}  # the history is worth showing without a snapshot
    found = select(records, scores, name, time.time())
    if not found:
        raise UsageError(f"nothing was measured on a node or GPU {name!r}: see pal-profile show, and pal nodes")
    return found


def select(records: Iterable[Record], scores: dict[str, GpuScore], name: str, now_s: float) -> tuple[GpuHistory, ...]:
    """The same from data in memory; records by time, oldest first."""
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.gpu.uuid, []).append(record)
    found = []
    for uuid, own in runs.items():
        last = own[-1]
        if name in ("", uuid, last.node_name):
            place = (last.node_name, last.gpu.slurm_index)
            events = tuple(drift.of_records(own, now_s))
            found.append(GpuHistory(uuid, *place, last.gpu.model, scores.get(uuid), tuple(reversed(own)), events))
    return tuple(sorted(found, key=lambda h: (h.node, h.slot)))
