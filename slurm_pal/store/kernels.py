# SPDX-License-Identifier: MIT
"""Where the sweep's own kernels lie on each GPU model, for comparison with a job's telemetry.

The three classes have kernels of known bound (a dense matrix product, a transformer block, a memory
triad), and each of their records has clock, power and throttle reasons, on newer cards also the use of
memory and pipes. So each model calibrates itself, and no threshold has to fit all cards. Their file is
beside gpus.txt, since the nodes read it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import read_trusted, write_atomic
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.sensitivity.behaviour import Centroid
from slurm_pal.variability import regime
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import number

SCHEMA = "pal.kernels/1"
LEAST_GPUS = 4
"""With fewer GPUs, one bad GPU could decide a centroid."""
_ALWAYS = 3
"""Every centroid has duty, clk and pw; dram and tensor only if the sensors report them."""


class Kernels(NamedTuple):
    """The sweep's kernels on one GPU model."""

    max_mhz: float  # the highest SM clock that any of them reached; clocks are shares of it
    centroids: dict[str, Centroid]  # by sensitivity class


class KernelTelemetry(NamedTuple):
    """What one record says about its kernel; None where it says nothing."""

    uuid: str
    model: str
    sensitivity: str
    valid: bool
    limit_w: float | None
    clock_mhz: float | None
    highest_mhz: float | None
    power_w: float | None
    power_cap: float | None
    dram: float | None
    tensor: float | None


TELEMETRY = {
    "clock_mhz": ("sm_clk_mhz", "p50"), "highest_mhz": ("sm_clk_mhz", "p95"), "power_w": ("power_w", "p50"),
    "power_cap": ("duty", "power_cap"), "dram": ("dram", "p50"), "tensor": ("tensor", "p50"),
}  # fmt: skip
"""The last fields of KernelTelemetry, and their places in a record's telemetry."""


def told(record: Record) -> KernelTelemetry:
    """What a record says about its kernel."""
    gpu, shown = record.gpu, (number(record.telemetry, *path) for path in TELEMETRY.values())
    return KernelTelemetry(
        gpu.uuid, gpu.model, record.bench.sensitivity_class, record.valid, record.env.power_limit_w, *shown
    )


class _Point(NamedTuple):
    """Where one record lies."""

    sensitivity: str
    uuid: str
    at: Centroid  # clk in MHz


def path_of(gpus_path: str) -> str:
    """The file that belongs to a gpus.txt."""
    return f"{gpus_path}.kernels"


def write(path: str, models: Mapping[str, Kernels]) -> None:
    """Replace the file if its content changes. Raises DataError if it cannot be written."""
    rows = {model: (k.max_mhz, {c: _row(at) for c, at in k.centroids.items()}) for model, k in models.items()}
    text = json.dumps({"schema": SCHEMA, "models": rows}, sort_keys=True) + "\n"
    try:
        if _same(path, text):
            return
        write_atomic(path, text, 0o644)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}): see paths.gpus") from None


def _row(at: Centroid) -> tuple[float | None, ...]:
    """Without the last two if they are unknown, as older versions write and read it."""
    return at if at.dram is not None or at.tensor is not None else at[:_ALWAYS]


def _same(path: str, text: str) -> bool:
    try:
        return read_trusted(path) == text.encode()
    except (FileNotFoundError, DataError):
        return False


def read(path: str) -> dict[str, Kernels]:
    """What `write` wrote; {} if there is no file. Raises DataError for a file that cannot be used."""
    try:
        table = json.loads(read_trusted(path))
        if table["schema"] != SCHEMA:
            raise ValueError(f"schema {table['schema']!r}, this version reads {SCHEMA!r}")
        models = table["models"].items()
        return {
            str(model): Kernels(float(highest), {c: _centroid(row) for c, row in rows.items()})
            for model, (highest, rows) in models
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path} cannot be read: {error}; the next publication replaces it") from None


def _centroid(row: list[float | None]) -> Centroid:
    """A row of three, or of five whose last two may be null. Raises TypeError for any other."""
    always = [float(value) for value in row[:_ALWAYS] if value is not None]
    return Centroid(*always, *(None if value is None else float(value) for value in row[_ALWAYS:]))


class Points:
    """Duty, clock, power, memory and pipes of records, collected one by one. No I/O."""

    def __init__(self) -> None:
        self._told: dict[str, list[_Point]] = defaultdict(list)
        self._highest: dict[str, float] = defaultdict(float)

    def take(self, one: KernelTelemetry) -> None:
        """Add what one record says."""
        self._highest[one.model] = max(self._highest[one.model], one.highest_mhz or 0.0)
        at = _place(one)
        if at is not None:
            self._told[one.model].append(_Point(one.sensitivity, one.uuid, at))

    def kernels(self) -> dict[str, Kernels]:
        """GPU model -> its kernels."""
        return {
            model: Kernels(self._highest[model], found)
            for model, points in sorted(self._told.items())
            if self._highest[model] > 0 and (found := _by_class(points, self._highest[model]))
        }


def _place(one: KernelTelemetry) -> Centroid | None:
    """Where one record lies, the SM clock in MHz."""
    if not one.valid or one.sensitivity not in SENSITIVITY_CLASSES or not one.limit_w:
        return None
    if one.power_cap is None or one.clock_mhz is None or one.power_w is None:
        return None
    return Centroid(one.power_cap, one.clock_mhz, one.power_w / one.limit_w, one.dram, one.tensor)


def _by_class(points: list[_Point], highest_mhz: float) -> dict[str, Centroid]:
    found: dict[str, Centroid] = {}
    for c in SENSITIVITY_CLASSES:
        mine = [point for point in points if point.sensitivity == c]
        mine = (_capped(mine) if c == "A" else []) or mine
        duty, clock, pw, dram, tensor = (_middle(mine, i) for i in range(len(Centroid._fields)))
        if duty is not None and clock is not None and pw is not None:
            found[c] = Centroid(duty, round(clock / highest_mhz, 4), pw, dram, tensor)
    return found


def _capped(points: list[_Point]) -> list[_Point]:
    """Those that met the power cap, as work of class A does: products below it do not stand for it. [] if too few."""
    found = [one for one in points if regime.met_cap(one.at.duty, one.at.pw, 1.0, False, Params())]
    return found if len({one.uuid for one in found}) >= LEAST_GPUS else []


def _middle(points: list[_Point], i: int) -> float | None:
    """The median in one direction; None where too few GPUs report it."""
    told = [(point.uuid, value) for point in points if (value := point.at[i]) is not None]
    enough = len({uuid for uuid, _ in told}) >= LEAST_GPUS
    return round(median(value for _, value in told), 4) if enough else None
