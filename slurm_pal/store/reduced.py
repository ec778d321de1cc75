# SPDX-License-Identifier: MIT
"""The sweeps as publication wants them: one number per GPU, benchmark and sweep, kept beside the records.

Reading the records of half a year for every publication takes minutes with thousands of nodes, and those
of a finished sweep do not change. So the database keeps the reduced form of each sweep with a stamp of all
that it was made from: which records, which constants, which version. If the stamp differs, the records are
read. Nothing else uses the reduced form, and it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from slurm_pal import __version__
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.store.database import Database, Extent
from slurm_pal.store.kernels import TELEMETRY, KernelTelemetry, told
from slurm_pal.variability.packed import LENGTH_BYTES, Layout, Packed
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import OBSERVATIONS, SIGHTINGS, SweepRuns, horizon_s, in_order, reduced

FORMAT = 3
"""Increase this when the same records are reduced to something else, or kept in another form."""
SETTLED_S = 3600.0
"""A sweep that grew within this time may still grow, and is not kept yet."""


KERNELS = Layout(KernelTelemetry._make, KernelTelemetry._fields, frozenset(TELEMETRY), frozenset(TELEMETRY), {})
_LAYOUTS: tuple[Layout, ...] = (OBSERVATIONS, SIGHTINGS, KERNELS)
"""In the order in which they are kept."""


class Reduced(NamedTuple):
    """One sweep without its records."""

    sweep: SweepRuns | None  # None: all too old
    kernels: Packed[KernelTelemetry]


def read(database: Database, extent: Extent, now_s: float, params: Params) -> Reduced:
    """The sweep, as it was kept or from its records. If `database` is open for reading only, nothing is kept."""
    whole = extent.first_s >= horizon_s(now_s, params) and extent.last_s <= now_s  # else the time of reading matters
    stamp = _stamp(extent, params)
    data = database.kept(extent.sweep_id, stamp) if whole else None
    if data is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):  # damaged: use the records
            return _decoded(extent.sweep_id, memoryview(data))
    found = _reduce(database, extent, now_s, params)
    if whole and extent.last_s < now_s - SETTLED_S:
        with contextlib.suppress(BusyError, DataError):  # a long reader, a full disk, read-only: made again next time
            database.keep(extent.sweep_id, stamp, _encoded(found))
    return found


def sweeps(database: Database, extents: Iterable[Extent], now_s: float, params: Params) -> Iterator[SweepRuns]:
    """The sweeps in time order; only overlapping ones are in memory. `extents` come in the database's order."""
    return in_order(((one.first_s, read(database, one, now_s, params).sweep) for one in extents), now_s)


def forget_others(database: Database, extents: Iterable[Extent]) -> None:
    """Drop the reduced form of sweeps that are no longer wanted."""
    with contextlib.suppress(BusyError, DataError):
        database.keep_only(extent.sweep_id for extent in extents)


def _stamp(extent: Extent, params: Params) -> str:
    """Everything that the result depends on. Records are only added: their number and the newest one identify them."""
    constants = params._replace(method=Params().method, k=None)  # no influence, and may differ for one publication
    made_of = [extent.records, extent.newest_row, *constants, *(layout.fields for layout in _LAYOUTS)]
    return f"{FORMAT} {__version__} {sys.byteorder} {made_of!r}"


def _reduce(database: Database, extent: Extent, now_s: float, params: Params) -> Reduced:
    kernels = Packed[KernelTelemetry](KERNELS)

    def by_gpu() -> Iterator[list[Record]]:
        for runs in database.by_gpu(extent.sweep_id):
            for record in runs:
                kernels.append(told(record))
            yield runs

    return Reduced(reduced(extent.sweep_id, by_gpu(), now_s, params), kernels)


def _encoded(found: Reduced) -> bytes:
    sweep = found.sweep
    assert sweep is not None  # sweeps that are too old are not kept
    parts = [
        json.dumps(sweep.ts).encode(),
        *(p.to_bytes() for p in (sweep.observations, sweep.sightings, found.kernels)),
    ]
    return b"".join(_framed(parts))


def _framed(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield len(part).to_bytes(LENGTH_BYTES, sys.byteorder)
        yield part


def _decoded(sweep_id: str, view: memoryview) -> Reduced:
    """What `_encoded` gave. Raises ValueError, KeyError, TypeError or OverflowError for other bytes."""
    parts: list[memoryview] = []
    while len(view):
        end = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], sys.byteorder)
        parts.append(view[LENGTH_BYTES:end])
        view = view[end:]
    ts, *packed = parts
    rows = [Packed[Any].from_bytes(layout, part) for layout, part in zip(_LAYOUTS, packed, strict=True)]
    return Reduced(SweepRuns(float(json.loads(bytes(ts))), sweep_id, rows[0], rows[1]), rows[2])
