# SPDX-License-Identifier: MIT
"""The report as the body of schema pal.report/1. A missing number is null."""

from __future__ import annotations

import math
from typing import Any

from slurm_pal.base.faults import cure_of
from slurm_pal.report.costs import DAYS, Money
from slurm_pal.report.gpus import opening, words
from slurm_pal.report.gpus.cost import assumption
from slurm_pal.report.gpus.course import SweepChange
from slurm_pal.report.gpus.figures import GroupFigures
from slurm_pal.report.gpus.gpu_report import GpuReport
from slurm_pal.report.gpus.reasons import meaning
from slurm_pal.report.gpus.single import known, rank, run_json, runs
from slurm_pal.report.inventory import faulty

SHOWN = 100  # slowest and flagged GPUs; pal gpus --json has all


def to_json(report: GpuReport, uuid: str | None = None) -> dict[str, Any]:
    """The keys, as docs/report.md describes them.

    `cluster`, `now_s`, `nodes`, `emulated`; `claims`, `advice`, `caveats` (sentences); `coverage`; `groups`: per
    group of comparable GPUs its spread; `costs`: per sensitivity class, shares and GPU-hours a day, with
    `cost_assumption` and the `job_shapes` that it rests on (null: no job runs); `faulty`: GPUs that jobs are kept
    off, with `cure`; `slowest`; `flags` {flag: {meaning, gpus}}; `sweeps`: the newest, oldest first, with the GPUs
    `compared` and `changed` per class; `refused` {reason: runs} of the newest sweep; `power_cap`: of models whose
    class A was measured below it, or where A and B are one class, `text` and `cure`; `methods`; `money`: what jobs of
    the last `days` have cost, by account (null: only some nodes were asked for); for one GPU `gpu`.
    """
    body: dict[str, Any] = {
        "cluster": report.cluster,
        "now_s": report.now_s,
        "nodes": report.nodes,
        "emulated": report.measured.emulated,
        "claims": opening.claims(report),
        "advice": words.advice(report),
        "coverage": {**report.coverage._asdict(), "scored": report.coverage.scored},
        "groups": [_group(g) for g in report.measured.groups],
        "costs": [
            {
                **c._asdict(),
                "behind_gpu_h_per_day": c.behind_gpu_h,
                "waiting_gpu_h_per_day": c.waiting_gpu_h,
                "saved_gpu_h_per_day": c.saved_gpu_h,
            }
            for c in report.costs
        ],
        "cost_assumption": assumption(report.shapes),
        "job_shapes": _shapes(report),
        "faulty": [
            {**row.to_json(), "cure": cure_of(row.flags, row.node, row.gpu_index)} for row in faulty(report.rows)
        ],
        "slowest": [row.to_json() for row in report.slowest[:SHOWN]],
        "flags": {
            flag: {"meaning": meaning(flag), "gpus": [f"{r.node}:{r.gpu_index}" for r in gpus]}
            for flag, gpus in report.flags.items()
        },
        "sweeps": [_step(step) for step in report.steps],
        "refused": report.measured.refused,
        "power_cap": [one._asdict() for one in report.power],
        "methods": [m._asdict() for m in report.measured.methods],
        "money": _money(report.money),
        "caveats": words.caveats(report),
    }
    if uuid is not None:
        row = known(report, uuid)
        places = {c: rank(report, row, c) for c in row.slowdown}
        ranks = {c: {"place": p[0], "of": p[1]} for c, p in places.items() if p}
        body["gpu"] = {**row.to_json(), "rank": ranks, "runs": [run_json(r) for r in runs(report, row.uuid)]}
    return body


def _money(found: Money | None) -> dict[str, Any] | None:
    if found is None:
        return None
    accounts = [{**one._asdict(), "partitions": [row._asdict() for row in one.partitions]} for one in found.accounts]
    return {"days": DAYS, "accounts": accounts, "complaints": list(found.complaints), "missing": found.missing}


def _group(g: GroupFigures) -> dict[str, Any]:
    spread = {k: (v if math.isfinite(v) else None) for k, v in g.spread._asdict().items()}
    return {**g.group._asdict(), **spread, "median_value": g.median_value}


def _shapes(report: GpuReport) -> dict[str, Any] | None:
    found = report.shapes
    if found is None:
        return None
    parts = [{"gpus": mine, "of": of, "in_use": n} for (mine, of), n in sorted(found.parts.items())]
    return {"jobs": found.jobs, "gpus": found.gpus, "filling_share": found.filling, "parts": parts}


def _step(step: SweepChange) -> dict[str, Any]:
    return {
        "sweep": step.sweep_id,
        "ts": step.ts,
        "gpus": step.gpus,
        "classes": step.levels,
        "compared": step.compared,
        "changed": step.changed,
        "new": list(step.new),
        "gone": list(step.gone),
        "slowdown_changed": [
            {
                "node": m.node,
                "index": m.gpu_index,
                "uuid": m.uuid,
                "slowdown": {c: list(v) for c, v in m.slowdown.items()},
            }
            for m in step.moves
            if m.slowdown
        ],
    }
