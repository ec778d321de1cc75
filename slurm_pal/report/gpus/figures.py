# SPDX-License-Identifier: MIT
"""How much the GPUs of each model differ in each benchmark, from the records themselves.

Each GPU counts once per sensitivity class: in the group of its newest usable run of the
preferred benchmark, for class A of those that were measured at the power cap. Runs by another method
or in another configuration are left out, since their numbers are not comparable.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.variability import regime
from slurm_pal.variability.params import TIME_UNITS, Params, preference
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, group_of, met_cap, number
from slurm_pal.variability.spread import Spread, measure, slowdowns

SENSORS = ("power_w", "temp_c", "sm_clk_mhz")
"""What a slowdown is compared with: tables of a record's telemetry that have a median ("p50")."""


class GpuPoint(NamedTuple):
    """One GPU's newest usable run: its slowdown among the newest runs of the group, and what the sensors said."""

    uuid: str
    slowdown: float
    sensors: dict[str, float]  # of SENSORS, those that were reported


class GroupFigures(NamedTuple):
    """One group of GPUs that may be compared."""

    group: Group
    spread: Spread
    median_value: float  # of the GPUs' medians, in the group's unit
    slowdown: dict[str, float]  # UUID -> from the median of its runs, against the median GPU
    points: tuple[GpuPoint, ...]

    @property
    def compared(self) -> bool:
        """Whether there are several GPUs to compare."""
        return self.spread.gpus > 1


class _Runs:
    """The usable runs of one GPU in one benchmark."""

    __slots__ = ("group", "met_cap", "sensors", "values")

    def __init__(self, group: Group) -> None:
        self.group = group  # that of the newest run, as are the next two
        self.sensors: dict[str, float] = {}
        self.met_cap: bool | None = None
        self.values: dict[Group, array[float]] = {}

    def take(self, record: Record, group: Group, met: bool | None) -> None:
        self.group, self.sensors, self.met_cap = group, _sensors(record), met
        self.values.setdefault(group, array("d")).append(record.result.value)


class GpuSpeeds:
    """What the usable runs say about each GPU's speed; only the value of each run is kept in memory."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._groups: dict[Group, Group] = {}  # equal ones are one object
        self._runs: dict[tuple[str, str], dict[str, _Runs]] = {}  # (class, UUID) -> benchmark -> runs

    def take(self, record: Record, flags: frozenset[str]) -> None:
        """Add a usable run with its flags; runs come by time, each once."""
        group = group_of(record)
        if group.sensitivity not in SENSITIVITY_CLASSES:
            return
        group, key = self._groups.setdefault(group, group), (group.sensitivity, record.gpu.uuid)
        runs = self._runs.setdefault(key, {})
        if group.benchmark not in runs:
            runs[group.benchmark] = _Runs(group)
        runs[group.benchmark].take(record, group, met_cap(record, flags, self._params))

    def figures(self) -> list[GroupFigures]:
        """The figures of each group, by sensitivity class and then the largest group first."""
        groups: dict[Group, dict[str, _Runs]] = {}
        below = self._below()
        for (_, uuid), of in self._runs.items():
            runs = min(of.values(), key=lambda r: (_kind(r.group) in below, preference(r.group.benchmark)))
            groups.setdefault(runs.group, {})[uuid] = runs
        found = [_figures(group, own) for group, own in groups.items()]
        return sorted(found, key=lambda f: (f.group.sensitivity, -f.spread.gpus, f.group))

    def _below(self) -> set[tuple[str, str]]:
        """Models and benchmarks of class A whose newest runs did not meet the power cap."""
        met: dict[tuple[str, str], list[bool | None]] = {}
        for (c, _), of in self._runs.items():
            for runs in of.values() if c == "A" else ():
                met.setdefault(_kind(runs.group), []).append(runs.met_cap)
        return {kind for kind, values in met.items() if (now := regime.share(values)) is not None and now < regime.HALF}


def _kind(group: Group) -> tuple[str, str]:
    return group.model, group.benchmark


def _figures(group: Group, runs: Mapping[str, _Runs]) -> GroupFigures:
    is_time = group.unit in TIME_UNITS
    values = {uuid: own.values[group] for uuid, own in sorted(runs.items())}
    medians = [median(own) for own in values.values()]
    slow = slowdowns(medians, is_time)
    newest = slowdowns([own[-1] for own in values.values()], is_time)
    points = (GpuPoint(u, float(s), runs[u].sensors) for u, s in zip(values, newest, strict=True))
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
