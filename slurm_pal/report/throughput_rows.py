# SPDX-License-Identifier: MIT
"""Throughputs in force, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_pal.allocation.throughputs import Entry, ThroughputKey, matrix, model
from slurm_pal.base.terminal import visible
from slurm_pal.report import table
from slurm_pal.report.listing import Listing

HEADER = ("APPLICATION", "GPUS", "TYPE", "STEPS/S", "+-%", "RUNS", "AGE", "SOURCE")
_SHOWS = {"STEPS/S": "steps_per_s", "+-%": "relative_error", "AGE": "age_s"}
OTHER = "(any other)"
"""The name shown for an unknown application."""


class ThroughputRow(NamedTuple):
    """One throughput. With `relative` only ratios between types are meaningful, within this application and size."""

    application: str
    gpus: int
    type: str
    steps_per_s: float  # of the whole job; 0: it cannot run there
    relative: bool
    relative_error: float
    runs: int
    age_s: float | None  # None: an estimate, or unknown
    source: str


def rows(known: Mapping[ThroughputKey, Entry], types: Iterable[str]) -> list[ThroughputRow]:
    """Every known application and number of GPUs on every type, known or given, and the row for any other job."""
    if not known:
        return []
    columns = sorted({*types, *(key.type for key in known)})
    jobs = [*dict.fromkeys(key[:2] for key in sorted(known)), (OTHER, 1)]
    found = matrix(model(known, columns), jobs)
    made = []
    for i, (application, gpus) in enumerate(jobs):
        for j, name in enumerate(columns):
            entry = known.get(ThroughputKey(application, gpus, name))
            runs, age_s = (entry.runs, entry.age_s or None) if entry else (0, None)
            rate, error = float(found.throughput[i, j]), float(found.relative_error[i, j])
            relative, source = not found.absolute[i], found.source[i][j]
            made.append(ThroughputRow(application, gpus, name, rate, relative, error, runs, age_s, source))
    return made


def listing(rows: Sequence[ThroughputRow]) -> Listing:
    """The rows as a table."""
    return Listing(ThroughputRow._fields, [row._asdict() for row in rows], HEADER, list(map(cells, rows)), _SHOWS)


def cells(row: ThroughputRow) -> list[str]:
    """The cells of a row under `HEADER`."""
    runs, age = str(row.runs) if row.runs else "-", table.age(row.age_s)
    rate, error = f"{'~' if row.relative else ''}{row.steps_per_s:.4g}", f"{100 * row.relative_error:.0f}"
    if row.steps_per_s == 0:
        rate, error = "cannot run", "-"
    application = visible(row.application)  # it may be a user's job name
    return [application, str(row.gpus), row.type, rate, error, runs, age, row.source]
