"""How much the GPUs of each model differ in each benchmark, from the records themselves.

Each GPU counts once per sensitivity class: in the group of its newest usable run of the
preferred benchmark. Runs by another method or in another configuration are left out, since their
numbers do not compare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median
from typing import NamedTuple

from slurm_pal.jobs import SENSITIVITY_CLASSES
from slurm_pal.variability.params import TIME_UNITS, Params, preference
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, group_of, number, run_flags, weight_of
from slurm_pal.variability.spread import Spread, measure, slowdowns

SENSORS = ("power_w", "temp_c", "sm_clk_mhz")
"""What a slowdown is held against: tables of a record's telemetry that have a median ("p50")."""


class Point(NamedTuple):
    """One GPU's newest usable run: its slowdown among the newest runs of the group, and what the sensors said."""

    uuid: str
    slowdown: float
    sensors: dict[str, float]  # of SENSORS, as far as told


class GroupFigures(NamedTuple):
    """One group of GPUs that may be compared."""

    group: Group
    spread: Spread
    median_value: float  # of the GPUs' medians, in the group's unit
    slowdown: dict[str, float]  # UUID -> from the median of its runs, against the median GPU
    points: tuple[Point, ...]

    @property
    def compared(self) -> bool:
        """Whether there are several GPUs to compare."""
        return self.spread.gpus > 1


def usable(records: Iterable[Record], now_s: float, params: Params) -> list[Record]:
    """Records that say something of a GPU's speed, oldest first, each run once."""
    unique = {r.run_id: r for r in records if weight_of(r, run_flags(r, now_s, params), params) > 0}
    return sorted(unique.values(), key=lambda r: (r.ts_end, r.run_id))


def figures(records: Iterable[Record], present: Collection[str] | None = None) -> list[GroupFigures]:
    """The figures of each group, by sensitivity class and then the largest group first.

    `records` are usable ones, oldest first; `present` are the UUIDs that count, None: all.
    """
    runs: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        sensitivity = record.bench.sensitivity_class
        if sensitivity in SENSITIVITY_CLASSES and (present is None or record.gpu.uuid in present):
            runs.setdefault((sensitivity, record.gpu.uuid), []).append(record)
    groups: dict[Group, dict[str, list[Record]]] = {}
    for (_, uuid), own in runs.items():
        best = min({r.bench.id for r in own}, key=preference)
        group = group_of(next(r for r in reversed(own) if r.bench.id == best))
        groups.setdefault(group, {})[uuid] = [r for r in own if r.bench.id == best and group_of(r) == group]
    found = [_figures(group, own) for group, own in groups.items()]
    return sorted(found, key=lambda f: (f.group.sensitivity, -f.spread.gpus, f.group))


def _figures(group: Group, runs: dict[str, list[Record]]) -> GroupFigures:
    is_time = group.unit in TIME_UNITS
    values = {uuid: [r.result.value for r in own] for uuid, own in sorted(runs.items())}
    medians = [median(own) for own in values.values()]
    slow = slowdowns(medians, is_time)
    newest = slowdowns([own[-1] for own in values.values()], is_time)
    points = (Point(u, float(s), _sensors(runs[u][-1])) for u, s in zip(values, newest, strict=True))
    return GroupFigures(
        group=group,
        spread=measure(values, is_time),
        median_value=median(medians),
        slowdown=dict(zip(values, slow.tolist(), strict=True)),
        points=tuple(points),
    )


def _sensors(record: Record) -> dict[str, float]:
    found = ((name, number(record.telemetry, name, "p50")) for name in SENSORS)
    return {name: value for name, value in found if value is not None}
