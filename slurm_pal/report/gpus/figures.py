# SPDX-License-Identifier: MIT
"""How much the GPUs of each model differ in each benchmark, from the records themselves.

Each GPU counts once per sensitivity class: in the group of its newest usable run of the
preferred benchmark, for class A of those that were measured at the power cap. Runs by another method
or in another configuration are left out, since their numbers are not comparable. What all GPUs of a sweep share
is taken out, as it is of their scores: else runs would seem to repeat badly, and GPUs measured since to be slower.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.variability import regime
from slurm_pal.variability.params import TIME_UNITS, Params, preference
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, group_of, met_cap, number
from slurm_pal.variability.shift import CommonLevel
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

    __slots__ = ("group", "met_cap", "node", "sensors", "sweeps", "values")

    def __init__(self, group: Group) -> None:
        self.group = group  # that of the newest run, as are the next three
        self.sensors: dict[str, float] = {}
        self.met_cap: bool | None = None
        self.node = ""
        self.values: dict[Group, array[float]] = {}
        self.sweeps: dict[Group, array[int]] = {}  # numbers, of each value

    def take(self, record: Record, group: Group, met: bool | None, sweep: int) -> None:
        self.group, self.sensors, self.met_cap, self.node = group, _sensors(record), met, record.node_name
        self.values.setdefault(group, array("d")).append(record.result.value)
        self.sweeps.setdefault(group, array("l")).append(sweep)


class GpuSpeeds:
    """What the usable runs say about each GPU's speed; only the value of each run is kept in memory."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._groups: dict[Group, Group] = {}  # equal ones are one object
        self._sweeps: dict[str, int] = {}  # id -> number, in the order of their first runs
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
        sweep = self._sweeps.setdefault(record.sweep_id, len(self._sweeps))
        runs[group.benchmark].take(record, group, met_cap(record, flags, self._params), sweep)

    def figures(self) -> list[GroupFigures]:
        """The figures of each group, by sensitivity class and then the largest group first."""
        groups: dict[Group, dict[str, _Runs]] = {}
        below = self._below()
        for (_, uuid), of in self._runs.items():
            runs = min(of.values(), key=lambda r: (_kind(r.group) in below, preference(r.group.benchmark)))
            groups.setdefault(runs.group, {})[uuid] = runs
        found = [_figures(group, own, self._params) for group, own in groups.items()]
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


def _figures(group: Group, runs: Mapping[str, _Runs], params: Params) -> GroupFigures:
    is_time = group.unit in TIME_UNITS
    values = _levelled(group, dict(sorted(runs.items())), params)
    slow = slowdowns([median(own) for own in values.values()], is_time)
    newest = slowdowns([own[-1] for own in values.values()], is_time)
    points = (GpuPoint(u, float(s), runs[u].sensors) for u, s in zip(values, newest, strict=True))
    return GroupFigures(
        group=group,
        spread=measure(values, is_time),
        median_value=median(median(own.values[group]) for own in runs.values()),
        slowdown=dict(zip(values, slow.tolist(), strict=True)),
        points=tuple(points),
    )


def _levelled(group: Group, runs: Mapping[str, _Runs], params: Params) -> dict[str, Sequence[float]]:
    """UUID -> the values of its runs, without what all GPUs of a sweep share; `variability/shift.py` knows what."""
    by_sweep: dict[int, dict[str, list[int]]] = {}
    for uuid, own in runs.items():
        for place, sweep in enumerate(own.sweeps[group]):
            by_sweep.setdefault(sweep, {}).setdefault(uuid, []).append(place)
    logs = {uuid: [math.log(value) for value in own.values[group]] for uuid, own in runs.items()}
    level, held, changed = CommonLevel(), dict[str, list[int]](), False
    for _, places in sorted(by_sweep.items()):
        apart: dict[str, dict[str, float]] = {}
        for uuid in places.keys() & held.keys():
            now, before = (median(logs[uuid][k] for k in at) for at in (places[uuid], held[uuid]))
            apart.setdefault(runs[uuid].node, {})[uuid] = now - before
        taken = level.take(apart, len(held), group, 0.0, params)
        for uuid in taken.uuids:
            for k in held[uuid]:
                logs[uuid][k] += taken.given_back
        for uuid in places if taken.shift else ():
            for k in places[uuid]:
                logs[uuid][k] -= taken.shift
        changed |= bool(taken.shift)
        held |= places
    if not changed:
        return {uuid: own.values[group] for uuid, own in runs.items()}
    return {uuid: [math.exp(value) for value in own] for uuid, own in logs.items()}


def _sensors(record: Record) -> dict[str, float]:
    found = ((name, number(record.telemetry, name, "p50")) for name in SENSORS)
    return {name: value for name, value in found if value is not None}
