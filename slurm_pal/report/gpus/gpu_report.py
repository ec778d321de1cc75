# SPDX-License-Identifier: MIT
"""The content of a report on the site's GPUs as data, from which text, page, pictures and JSON are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.class_notices import NoticeLine
from slurm_pal.report.costs import Money
from slurm_pal.report.gpus.cost import Cost, costs
from slurm_pal.report.gpus.course import SweepChange
from slurm_pal.report.gpus.figures import GroupFigures
from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.gpus.job_shapes import JobShapes
from slurm_pal.report.gpus.loan_course import LoanCourse
from slurm_pal.report.gpus.measured import GpuMeasurements, measured
from slurm_pal.report.gpus.reasons import AGE, by_gravity, kind
from slurm_pal.report.inventory import NEVER_MEASURED, GpuRow
from slurm_pal.report.power_cap import PowerFinding
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record

SMALLEST = 4  # GPUs of a group with a meaningful median


class Coverage(NamedTuple):
    """How many GPUs have a score, and how old the scores are."""

    gpus: int
    nodes: int
    fresh: int
    stale: int
    forgotten: int
    never: int
    median_age_s: float | None
    oldest_age_s: float | None

    @property
    def scored(self) -> int:
        """GPUs with a score that counts."""
        return self.fresh + self.stale


class GpuReport(NamedTuple):
    """The GPUs of the site, or of the chosen nodes, at one moment."""

    cluster: str
    now_s: float
    nodes: str  # host list of the chosen nodes, "" for all
    rows: tuple[GpuRow, ...]
    coverage: Coverage
    shapes: JobShapes | None  # of the jobs that run; None: not known
    costs: tuple[Cost, ...]
    steps: tuple[SweepChange, ...]  # oldest first
    flags: dict[str, tuple[GpuRow, ...]]  # the gravest first
    slowest: tuple[GpuRow, ...]  # slowest first, by the class they suffer most in
    measured: GpuMeasurements
    power: tuple[PowerFinding, ...] = ()  # what is to be known about models and their power cap
    notices: tuple[NoticeLine, ...] = ()  # about the published classes
    loans: LoanCourse | None = None  # of nodes of owners; None: no order was given
    money: Money | None = None  # of the whole site; None: only some nodes were asked for

    @property
    def leading(self) -> list[GroupFigures]:
        """The groups whose spread is shown first: those of class A, or of the first class that has any.

        Groups too small to compare are left out if there are others.
        """
        compared = [g for g in self.measured.groups if g.compared]
        first = [g for g in compared if g.group.sensitivity == compared[0].group.sensitivity]
        return [g for g in first if g.spread.gpus >= SMALLEST] or first

    def gpu(self, uuid: str) -> GpuRow | None:
        """The GPU with this UUID."""
        return next((row for row in self.rows if row.uuid == uuid), None)


def gpu_report(
    rows: Sequence[GpuRow],
    records: Iterable[Record],
    steps: Sequence[SweepChange],
    now_s: float,
    params: Params,
    cluster: str = "",
    nodes: str = "",
    uuid: str = "",
    shapes: JobShapes | None = None,
) -> GpuReport:
    """Everything about `rows`, the chosen GPUs; `records` by time, of all GPUs, each once; `steps` oldest first.

    Slowdowns and classes are relative to all GPUs of the site, as published; `nodes` only states what was chosen.
    `uuid` is the GPU whose history is shown, "" for the slowest; `shapes` is of the whole site.
    """
    far = slowest(rows)
    if not uuid and far:
        uuid = far[0].uuid
    flags: dict[str, list[GpuRow]] = {}
    for row in rows:
        for flag in row.flags:
            flags.setdefault(flag, []).append(row)
    return GpuReport(
        cluster=cluster,
        now_s=now_s,
        nodes=nodes,
        rows=tuple(rows),
        coverage=coverage(rows),
        shapes=shapes,
        costs=costs(rows, shapes),
        steps=tuple(steps),
        flags={flag: tuple(flags[flag]) for flag in by_gravity(flags)},
        slowest=far,
        measured=measured(records, {row.uuid for row in rows if row.uuid}, now_s, params, uuid),
    )


def coverage(rows: Sequence[GpuRow]) -> Coverage:
    """Counts by the flags that the publisher and the inventory have given."""
    state = Counter(_state(row) for row in rows)
    ages = [row.age_s for row in rows if row.age_s is not None]
    return Coverage(
        gpus=len(rows),
        nodes=len({row.node for row in rows}),
        fresh=state["fresh"],
        stale=state["stale"],
        forgotten=state["unknown"],
        never=state[NEVER_MEASURED],
        median_age_s=median(ages) if ages else None,
        oldest_age_s=max(ages, default=None),
    )


def _state(row: GpuRow) -> str:
    if NEVER_MEASURED in row.flags or not row.slowdown:
        return NEVER_MEASURED if row.age_s is None else "unknown"
    return next((state for state in ("unknown", "stale") if state in row.flags), "fresh")


def slowest(rows: Sequence[GpuRow]) -> tuple[GpuRow, ...]:
    """GPUs slower than the median in some class, the slowest first."""
    worst = [(max((s for c in SENSITIVITY_CLASSES if (s := cell(r, c).slowdown)), default=0.0), r) for r in rows]
    found = sorted((entry for entry in worst if entry[0] > 1.0), key=lambda e: (-e[0], e[1].node, e[1].gpu_index))
    return tuple(row for _, row in found)


def flagged(rows: Sequence[GpuRow]) -> tuple[GpuRow, ...]:
    """GPUs with a flag about the GPU itself, those with the gravest first."""
    found = [(by_gravity(f for f in row.flags if kind(f) != AGE), row) for row in rows]
    order = {flag: i for i, flag in enumerate(by_gravity(f for flags, _ in found for f in flags))}
    ranked = sorted((entry for entry in found if entry[0]), key=lambda e: (order[e[0][0]], -_worst(e[1])))
    return tuple(row for _, row in ranked)


def _worst(row: GpuRow) -> float:
    return max(row.slowdown.values(), default=0.0)
