# SPDX-License-Identifier: MIT
"""What the records say about the GPUs shown, in one pass: half a year of records does not fit into memory."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_pal.report.gpus.figures import GpuSpeeds, GroupFigures
from slurm_pal.report.gpus.reasons import by_gravity, why_refused
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, group_of, run_flags, weight_of


class Method(NamedTuple):
    """One method by which usable runs were made."""

    benchmark: str
    sensitivity: str
    dtype: str
    shape: str
    backend: str
    driver: str
    runs: int


class GpuMeasurements(NamedTuple):
    """From the runs of the GPUs that are shown."""

    runs: int
    emulated: bool
    groups: tuple[GroupFigures, ...]
    methods: tuple[Method, ...]
    refused: dict[str, int]  # why runs of the newest sweep do not count -> how many
    own: tuple[Record, ...]  # of the GPU whose history is shown, by time
    valid: Mapping[Group, array[float]]  # the values of all valid runs


def measured(
    records: Iterable[Record], present: Collection[str], now_s: float, params: Params, uuid: str
) -> GpuMeasurements:
    """`records` by time, each once; `present`: UUIDs of the GPUs shown; `uuid`: of the one with a history, or ""."""
    speeds = GpuSpeeds(params)
    own: list[Record] = []
    methods: Counter[Method] = Counter()
    refused: dict[str, Counter[str]] = {}
    valid: dict[Group, array[float]] = {}
    runs, emulated, sweep = 0, False, ""
    for record in records:
        if record.gpu.uuid not in present:
            continue
        runs, emulated, sweep = runs + 1, emulated or record.gpu.vendor == "emu", record.sweep_id
        flags = run_flags(record, now_s, params)
        if weight_of(record, flags, params) > 0:
            speeds.take(record, flags)
            methods[_method(record)] += 1
        else:
            refused.setdefault(sweep, Counter())[_why(record)] += 1
        if record.valid:
            valid.setdefault(group_of(record), array("d")).append(record.result.value)
        if record.gpu.uuid == uuid:
            own.append(record)
    return GpuMeasurements(
        runs=runs,
        emulated=emulated,
        groups=tuple(speeds.figures()),
        methods=_methods(methods),
        refused=dict(sorted(refused.get(sweep, {}).items(), key=lambda entry: (-entry[1], entry[0]))),
        own=tuple(own),
        valid=valid,
    )


def _method(r: Record) -> Method:
    return Method(r.bench.id, r.bench.sensitivity_class, r.bench.dtype, r.bench.shape, r.env.backend, r.env.driver, 0)


def _methods(counts: Mapping[Method, int]) -> tuple[Method, ...]:
    found = [method._replace(runs=n) for method, n in counts.items()]
    return tuple(sorted(found, key=lambda m: (m.sensitivity or "~", m.benchmark, m.driver, m.backend, m.shape)))


def _why(record: Record) -> str:
    return why_refused(record) or ", ".join(by_gravity(record.flags)) or "not valid"
