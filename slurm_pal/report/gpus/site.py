"""All that a report of the site's GPUs says, as data: text, page, pictures and JSON are made from this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.gpus.cost import Cost, cost
from slurm_pal.report.gpus.course import NEWEST, Step, steps
from slurm_pal.report.gpus.figures import GroupFigures, figures, usable
from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.gpus.reasons import AGE, by_gravity, kind, why_refused
from slurm_pal.report.inventory import NEVER_MEASURED, GpuRow
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record

SMALLEST = 4  # GPUs of a group with a median worth the name


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


class Method(NamedTuple):
    """One way in which usable runs were made."""

    benchmark: str
    sensitivity: str
    dtype: str
    shape: str
    backend: str
    driver: str
    runs: int


class Site(NamedTuple):
    """The GPUs of the site, or of the chosen nodes, at one moment."""

    cluster: str
    now_s: float
    nodes: str  # host list of the chosen nodes, "" for all
    rows: tuple[GpuRow, ...]
    coverage: Coverage
    costs: tuple[Cost, ...]
    groups: tuple[GroupFigures, ...]
    steps: tuple[Step, ...]  # oldest first
    methods: tuple[Method, ...]
    flags: dict[str, tuple[GpuRow, ...]]  # the gravest first
    slowest: tuple[GpuRow, ...]  # slowest first, by the class they suffer most in
    refused: dict[str, int]  # why runs of the newest sweep do not count -> how many
    records: tuple[Record, ...]  # of the GPUs shown, by time; for the history of one GPU
    emulated: bool

    @property
    def leading(self) -> list[GroupFigures]:
        """The groups whose spread is told first: those of class A, or of the first class that has any.

        Groups too small to compare are left out where there are others.
        """
        compared = [g for g in self.groups if g.compared]
        first = [g for g in compared if g.group.sensitivity == compared[0].group.sensitivity]
        return [g for g in first if g.spread.gpus >= SMALLEST] or first

    def gpu(self, uuid: str) -> GpuRow | None:
        """The GPU with this UUID."""
        return next((row for row in self.rows if row.uuid == uuid), None)


def site(
    rows: Sequence[GpuRow],
    records: Sequence[Record],
    now_s: float,
    params: Params,
    cluster: str = "",
    nodes: str = "",
    sweeps: int = NEWEST,
) -> Site:
    """Everything about `rows`, the GPUs chosen; `records` by time, of all GPUs.

    Slowdowns and classes are relative to all GPUs of the site, as published; `nodes` only says what was chosen.
    The newest `sweeps` are compared with those before them; each costs a classification of the site.
    """
    present = {row.uuid for row in rows if row.uuid}
    mine = tuple(r for r in records if r.gpu.uuid in present)
    good = usable(records, now_s, params)
    flags: dict[str, list[GpuRow]] = {}
    for row in rows:
        for flag in row.flags:
            flags.setdefault(flag, []).append(row)
    return Site(
        cluster=cluster,
        now_s=now_s,
        nodes=nodes,
        rows=tuple(rows),
        coverage=coverage(rows),
        costs=tuple(found for c in SENSITIVITY_CLASSES if (found := cost(rows, c)) is not None),
        groups=tuple(figures(good, present)),
        steps=tuple(steps(records, now_s, params, present, sweeps)),
        methods=_methods(r for r in good if r.gpu.uuid in present),
        flags={flag: tuple(flags[flag]) for flag in by_gravity(flags)},
        slowest=slowest(rows),
        refused=_refused(mine, {r.run_id for r in good}),
        records=mine,
        emulated=any(r.gpu.vendor == "emu" for r in mine),
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
    """GPUs with a flag that tells of the GPU, those with the gravest first."""
    found = [(by_gravity(f for f in row.flags if kind(f) != AGE), row) for row in rows]
    order = {flag: i for i, flag in enumerate(by_gravity(f for flags, _ in found for f in flags))}
    ranked = sorted((entry for entry in found if entry[0]), key=lambda e: (order[e[0][0]], -_worst(e[1])))
    return tuple(row for _, row in ranked)


def _worst(row: GpuRow) -> float:
    return max(row.slowdown.values(), default=0.0)


def _methods(records: Iterable[Record]) -> tuple[Method, ...]:
    counts: Counter[tuple[str, str, str, str, str, str]] = Counter()
    for r in records:
        key = (r.bench.id, r.bench.sensitivity_class, r.bench.dtype, r.bench.shape, r.env.backend, r.env.driver)
        counts[key] += 1
    found = [Method(*key, n) for key, n in counts.items()]
    return tuple(sorted(found, key=lambda m: (m.sensitivity or "~", m.benchmark, m.driver, m.backend, m.shape)))


def _refused(records: Sequence[Record], good: set[str]) -> dict[str, int]:
    """Of the newest sweep: runs that do not count, by reason."""
    if not records:
        return {}
    sweep = records[-1].sweep_id
    bad = [r for r in records if r.sweep_id == sweep and r.run_id not in good]
    reasons = Counter(why_refused(r) or ", ".join(by_gravity(r.flags)) or "not valid" for r in bad)
    return dict(sorted(reasons.items(), key=lambda entry: (-entry[1], entry[0])))
