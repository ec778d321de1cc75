# SPDX-License-Identifier: MIT
"""The record: one line of JSON for each GPU x benchmark x run, kept for ever.

Written on the node by `pal-profile bench`, read by `ingest`. Units are in the names.
The sections and their fields follow the measurement method in docs/measuring.md;
everything under `telemetry` is optional, because not every device reports it.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from slurm_pal.base.errors import DataError, one_line

SCHEMA = "pal.record/1"
MOST_NUMBER = 1e300
"""Larger numbers, NaN and infinity are refused; JSON also has whole numbers that no float can hold."""
_VERSION = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """Which GPU. `uuid` is the key: it survives moves between nodes and slots."""

    uuid: str
    vendor: str
    model: str
    slurm_index: int
    pci_bus_id: str = ""
    minor: int | None = None
    serial: str | None = None
    vbios: str = ""
    mem_bytes: int = 0
    mig_mode: str = "disabled"
    ecc_mode: str = "unknown"


@dataclass(frozen=True, slots=True)
class EnvInfo:
    """What else decides whether two numbers may be compared."""

    driver: str
    backend: str
    tool_version: str
    runtime: str = ""
    libs: dict[str, str] = field(default_factory=dict)
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    app_clocks_mhz: float | None = None
    config_group: str = "default"


@dataclass(frozen=True, slots=True)
class BenchInfo:
    """Which benchmark, by which method. Records compare only within one `method_hash`."""

    id: str
    sensitivity_class: str  # "A", "B", "C", or "" for node health
    version: int
    method_hash: str
    dtype: str
    shape: str
    seed: int = 0
    mode: str = "concurrent"  # or "solo"
    peers_busy: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The value of the run: the median over its blocks, higher is better unless unit is "s"."""

    value: float
    unit: str
    n_blocks: int
    block_s: float
    mad: float
    cv_pct: float
    ci95_pct: float
    warmup_s: float
    steady: bool
    stop_reason: str  # ci | max_time | timeout | error
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """One run of one benchmark on one GPU."""

    run_id: str  # unique, sorts by time
    sweep_id: str
    ts_start: float  # Unix seconds, UTC
    ts_end: float
    cluster: str
    node_name: str
    host: str
    slurm_job_id: int
    gpu: GpuInfo
    env: EnvInfo
    bench: BenchInfo
    result: Result
    telemetry: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    valid: bool = True
    reason: str = ""

    def to_json(self) -> str:
        """One line, schema first."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Record:
    """Parse and check one line.

    Raises DataError saying which field is wrong and what was seen.
    """
    try:
        table = json.loads(line)
    except ValueError as error:
        raise DataError(f"not JSON: {error}") from None
    if not isinstance(table, dict):
        raise DataError(f"a record is a JSON object, not {type(table).__name__}")
    check_schema(table.pop("schema", None), SCHEMA)
    try:
        result = dict(table.pop("result"))
        result["samples"] = tuple(float(x) for x in result.get("samples", ()))
        record = Record(
            gpu=GpuInfo(**table.pop("gpu")),
            env=EnvInfo(**table.pop("env")),
            bench=BenchInfo(**table.pop("bench")),
            result=Result(**result),
            flags=tuple(table.pop("flags", ())),
            **table,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"field missing or unknown: {one_line(error)}") from None
    _check_values(record)
    return record


def _check_values(record: Record) -> None:
    value = record.result.value
    if not isinstance(value, int | float) or not 0 <= value < MOST_NUMBER:
        raise DataError(f"result.value = {value!r} must be a finite number >= 0")
    if record.valid and value == 0:
        raise DataError("result.value = 0 in a record that says it is valid")
    for name, text in (("run_id", record.run_id), ("gpu.uuid", record.gpu.uuid), ("node_name", record.node_name)):
        if not isinstance(text, str) or not text or len(text) > 200 or not text.isprintable():
            raise DataError(f"{name} = {text!r} must be a printable text of 1 to 200 characters")
    if not isinstance(record.gpu.slurm_index, int) or not 0 <= record.gpu.slurm_index < 1024:
        raise DataError(f"gpu.slurm_index = {record.gpu.slurm_index!r} must be a number from 0 to 1023")
    for name, ts in (("ts_start", record.ts_start), ("ts_end", record.ts_end)):
        if not isinstance(ts, int | float) or not abs(ts) < MOST_NUMBER:
            raise DataError(f"{name} = {ts!r} must be Unix seconds")


def check_schema(seen: object, known: str) -> None:
    """Refuse artefacts of another kind or a newer schema. Raises DataError."""
    kind, _, version = known.partition("/")
    seen_kind, _, seen_version = seen.partition("/") if isinstance(seen, str) else ("", "", "")
    if seen_kind != kind or not _VERSION.fullmatch(seen_version):
        raise DataError(f"schema {seen!r} where {known!r} is needed")
    if int(seen_version) > int(version):
        raise DataError(f"schema {seen!r} is newer than {known!r}, the newest known here: update slurm-pal")
