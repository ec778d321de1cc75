# SPDX-License-Identifier: MIT
"""Public measurements over 41 days in which nothing is known to have happened: few events, few changes.

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_pal.variability.compare import compare
from slurm_pal.variability.drift import of_records
from slurm_pal.variability.finding import DRIFT, STEP, TRANSIENT, Finding
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.records import Record

from ..doubles.records_factory import NOW_S, record
from .test_longhorn_facts import rows

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
pytestmark = pytest.mark.skipif(
    not (DATA / "profiles").is_dir(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
PARAMS = Params(retention_d=math.inf)


@functools.cache
def by_gpu() -> dict[str, list[Record]]:
    """The SGEMM runs; those of one GPU on one day are one sweep."""
    found: dict[str, list[Record]] = {}
    for i, row in enumerate(rows("sgemm-longhorn")):
        uuid, ts = row["uuid"], float(row["ts"])
        made = record(uuid, "n", 0, float(row["perf"]) / 1000, unit="ms", ts=ts, sweep=f"{ts // DAY_S:.0f}",
                      run_id=f"{i:06d}")  # fmt: skip
        found.setdefault(uuid, []).append(made)
    return found


@functools.cache
def events() -> tuple[Finding, ...]:
    newest_s = max(r.ts_end for runs in by_gpu().values() for r in runs)
    return tuple(f for runs in by_gpu().values() for f in of_records(runs, newest_s + DAY_S, PARAMS))


def test_events_are_rare() -> None:
    counts = Counter(f.kind for f in events())
    assert len(by_gpu()) == 392
    assert counts[DRIFT] == 0 and counts[STEP] <= 2 and counts[TRANSIENT] <= 2


def test_an_injected_step_is_found_in_real_noise() -> None:
    """2.5 % more from the middle of each history on, where at least three days lie on both sides."""
    found = tried = 0
    for runs in by_gpu().values():
        days = sorted({r.sweep_id for r in runs})
        if len(days) < 6:
            continue
        middle = days[len(days) // 2]
        slower = [_times(r, 1.025) if r.sweep_id >= middle else r for r in runs]
        steps = [f for f in of_records(slower, NOW_S, PARAMS) if f.kind == STEP]
        tried += 1
        found += any(abs(f.change - 0.025) < 0.008 for f in steps)
    assert tried > 20 and found >= 0.95 * tried


def test_two_halves_of_the_time_differ_little() -> None:
    runs = [r for own in by_gpu().values() for r in own]
    middle_s = sorted(r.ts_end for r in runs)[len(runs) // 2]
    halves = [[_in(r, str(late)) for r in runs if (r.ts_end >= middle_s) == late] for late in (False, True)]
    row = compare(*halves).rows[0]
    assert len(row.gpus) > 100 and len(row.changed) <= 0.05 * len(row.gpus)
    assert row.ratio == pytest.approx(1.0, abs=0.003)


def _times(run: Record, factor: float) -> Record:

    return replace(run, result=replace(run.result, value=run.result.value * factor))


def _in(run: Record, sweep_id: str) -> Record:

    return replace(run, sweep_id=sweep_id)
