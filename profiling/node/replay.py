# SPDX-License-Identifier: MIT
"""Measurements of a file in place of devices: the same runner, records and scores on known numbers.

The file is a CSV with one matrix-product run per line and the columns uuid, perf (ms per
product) and input_size, and where known ts, freq and memfreq (MHz), temp (degC) and pwr
(W). Its GPUs are in nodes r0, r1, ... of four, in the order of their UUIDs; the seed
selects which of a GPU's runs is replayed, modulo their number. Rows with ts = -1 are left
out: they have no time.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.host import Host

BENCHMARK = "gemm_fp32"
GPUS_PER_NODE = 4
HZ = 10.0
NO_TIME = -1.0


class RecordedRun(NamedTuple):
    """One run of the file."""

    time_s: float  # of one matrix product
    n: int  # its size
    sm_clk_mhz: float | None
    mem_clk_mhz: float | None
    temp_c: float | None
    power_w: float | None


class _Column(NamedTuple):
    """What a number of the file may be."""

    least: float
    most: float
    what: str


_COLUMNS = {
    "perf": _Column(1e-6, 1e9, "a time in ms from 1e-6 to 1e9"),
    "input_size": _Column(1, 1e6, "a size from 1 to 1e6"),
    "ts": _Column(-1, 1e12, "a time in s, or -1"),
    "freq": _Column(0, 1e5, "a clock in MHz"),
    "memfreq": _Column(0, 1e5, "a clock in MHz"),
    "temp": _Column(-100, 1000, "a temperature in degC"),
    "pwr": _Column(0, 1e5, "a power in W"),
}
_NEEDED = ("uuid", "perf", "input_size")
_SHOWN = 40  # characters of a wrong cell
_UUID_MOST = 200


def read(path: str) -> dict[str, list[RecordedRun]]:
    """The runs of each GPU, oldest first. Raises DataError with the line that cannot be read."""
    found: dict[str, list[tuple[float, RecordedRun]]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            if missing := set(_NEEDED) - set(rows.fieldnames or ()):
                raise DataError(f"{path}: no column {', '.join(sorted(missing))}; a replay needs {','.join(_NEEDED)}")
            for line in rows:
                try:
                    at_s = _number(line, "ts") if line.get("ts") else 0.0
                    if at_s != NO_TIME:
                        found.setdefault(_uuid(line), []).append((at_s, _row(line)))
                except ValueError as error:
                    raise DataError(f"{path} line {rows.line_num}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise DataError(f"{path}: holds no run that has a time (ts other than -1); nothing can be replayed")
    return {uuid: [row for _, row in sorted(runs, key=lambda r: r[0])] for uuid, runs in sorted(found.items())}


def _row(line: dict[str, str]) -> RecordedRun:
    sensors = (_number(line, name) if line.get(name) else None for name in ("freq", "memfreq", "temp", "pwr"))
    return RecordedRun(_number(line, "perf") / 1e3, int(_number(line, "input_size")), *sensors)


def _number(line: dict[str, str], name: str) -> float:
    text, column = line[name] or "", _COLUMNS[name]  # None in a line that is too short
    with contextlib.suppress(ValueError):
        if column.least <= (value := float(text)) <= column.most:
            return value
    raise ValueError(f"{name} {text[:_SHOWN]!r} must be {column.what}")


def _uuid(line: dict[str, str]) -> str:
    text = line["uuid"] or ""
    if not (0 < len(text) <= _UUID_MOST and text.isprintable()):
        raise ValueError(f"uuid {text[:_SHOWN]!r} must be a printable text of 1 to {_UUID_MOST} characters")
    return text


class Replayed:
    """A kernel that takes as long as the run of the file, scaled to the benchmark's size."""

    def __init__(self, spec: Benchmark, row: RecordedRun, clocks: dict[str, float], uuid: str) -> None:
        self.work, self.unit = spec.work, spec.unit
        self._launch_s = row.time_s * spec.work / (2.0 * row.n**3)
        self._clocks, self._uuid = clocks, uuid

    def run_block(self, n: int) -> float:
        seconds = n * self._launch_s
        self._clocks[self._uuid] = self._clocks.get(self._uuid, 0.0) + seconds
        return seconds

    def close(self) -> None:
        """Nothing is held."""


class ReplayWatch:
    """The run's sensors, the same at every look."""

    def __init__(self, row: RecordedRun, clocks: dict[str, float], uuid: str) -> None:
        self._row, self._clocks, self._uuid = row, clocks, uuid
        self._since_s = clocks.get(uuid, 0.0)

    def sample(self) -> SensorSample:
        return self._at(self._clocks.get(self._uuid, 0.0))

    def take(self) -> tuple[SensorSample, ...]:
        now_s = self._clocks.get(self._uuid, 0.0)
        count = int((now_s - self._since_s) * HZ)
        looks = tuple(self._at(self._since_s + i / HZ) for i in range(1, count + 1))
        self._since_s = now_s
        return looks

    def close(self) -> None:
        """Nothing to end."""

    def _at(self, t_s: float) -> SensorSample:
        row = self._row
        return SensorSample(t_s, row.sm_clk_mhz, row.mem_clk_mhz, row.power_w, row.temp_c)


class ReplayBackend:
    """The GPUs of a file; its own telemetry."""

    name = "replay"
    version = "1"
    wall_scale = 0.0

    def __init__(self, runs: dict[str, list[RecordedRun]], seed: int) -> None:
        self.telemetry = self
        self.runs = runs
        self._uuids = tuple(runs)
        self._row = {uuid: rows[seed % len(rows)] for uuid, rows in runs.items()}
        self._clocks: dict[str, float] = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that the GPUs are spread over."""
        return tuple(f"r{i}" for i in range(-(-len(self._uuids) // GPUS_PER_NODE)))

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs in these slots; an empty one is left out."""
        if node not in self.nodes:
            return ()
        first = GPUS_PER_NODE * int(node[1:])
        slots = ((i, self._uuids[first + i : first + i + 1]) for i in indexes if 0 <= i < GPUS_PER_NODE)
        return tuple(DeviceInfo(found[0], "replay", "replayed", i) for i, found in slots if found)

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        return "" if spec.id == BENCHMARK else f"the file holds runs of {BENCHMARK} only"

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> Replayed:
        return Replayed(spec, self._row[device.uuid], self._clocks, device.uuid)

    def static(self, device: DeviceInfo) -> Static:
        return Static(driver="replay")

    def watch(self, device: DeviceInfo) -> ReplayWatch:
        return ReplayWatch(self._row[device.uuid], self._clocks, device.uuid)

    def counters(self, device: DeviceInfo) -> Counters:
        return Counters()

    def host(self) -> Host:
        """Unknown: this machine's processors only read the file."""
        return Host()


def open_backend(setting: Setting) -> ReplayBackend:
    """The file that `setting.registry` names. Raises DataError."""
    return ReplayBackend(read(setting.registry), setting.seed)
