# SPDX-License-Identifier: MIT
"""Gavel's throughput table with gaps: how well they are filled, and whether the stated errors hold.

The data is read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import os
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from slurm_pal.allocation.completion import Matrix, complete
from slurm_pal.allocation.throughputs import Entry, ThroughputKey, matrix, model

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "gavel"
TABLE = DATA / "throughputs_null.csv"
pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA")

PACKED = ("v100", "p100", "k80")
ALL = (*PACKED, *(f"{name}_unconsolidated" for name in PACKED))
SEEDS = range(6)


class Gavel(NamedTuple):
    models: list[str]
    gpus: list[int]
    logs: Matrix  # NaN where the table has nothing or 0


def gavel(columns: tuple[str, ...]) -> Gavel:
    with open(TABLE, newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    rates = [[float(row[name] or 0) for name in columns] for row in rows]
    logs = np.array([[log(rate) if rate > 0 else np.nan for rate in row] for row in rates])
    return Gavel([row["model"] for row in rows], [int(row["scale_factor"]) for row in rows], logs)


def hidden(table: Gavel, share: float, seed: int) -> Matrix:
    """The logarithms with a share of them hidden, at least one left in each row."""
    random = np.random.default_rng(seed)
    known = ~np.isnan(table.logs)
    seen = known & (random.random(known.shape) >= share)
    for i in np.flatnonzero(~seen.any(axis=1)):
        seen[i, random.choice(np.flatnonzero(known[i]))] = True
    return np.where(seen, table.logs, np.nan)


@pytest.mark.parametrize(
    ("columns", "share", "median", "ninth"),
    [
        (PACKED, 0.1, 0.22, 1.00), (PACKED, 0.67, 0.45, 1.90), (ALL, 0.1, 0.18, 0.70), (ALL, 0.67, 0.36, 1.45),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (PACKED, 0.3, 0.35, 1.40), (PACKED, 0.5, 0.40, 1.50), (ALL, 0.3, 0.21, 0.95), (ALL, 0.5, 0.28, 1.20),
            )
        ),
    ],
)  # fmt: skip
def test_hidden_throughputs(columns: tuple[str, ...], share: float, median: float, ninth: float) -> None:
    """Median and 90 % quantile of max(estimate, truth) / min(estimate, truth) - 1, and what one sigma covers."""
    table = gavel(columns)
    errors: list[float] = []
    plain: list[float] = []
    inside: list[bool] = []
    for seed in SEEDS:
        seen = hidden(table, share, seed)
        gaps = np.isnan(seen) & ~np.isnan(table.logs)
        found = complete(seen, group=table.models)
        apart = np.abs(found.value - table.logs)
        errors += list(apart[gaps])
        inside += list((apart <= found.error)[gaps])
        offset = np.nanmean(seen - found.relative, axis=1, keepdims=True)
        plain += list(np.abs(offset + found.relative - table.logs)[gaps])
    assert np.expm1(np.median(errors)) < median and np.expm1(np.quantile(errors, 0.9)) < ninth
    assert np.mean(errors) < np.mean(plain)
    assert 0.55 <= np.mean(inside) <= 0.8


def test_other_numbers_of_gpus_and_unknown_applications() -> None:
    """A third of the models is known at all sizes, a third at one size, a third not at all."""
    table = gavel(PACKED)
    names = sorted(set(table.models))
    scaled: list[float] = []
    speeds: list[float] = []
    inside: list[bool] = []
    for seed in SEEDS:
        lot = {
            name: int(k) % 3 for name, k in zip(names, np.random.default_rng(seed).permutation(len(names)), strict=True)
        }
        known = {
            ThroughputKey(name, gpus, kind): Entry(float(np.exp(value)), 0.03)
            for name, gpus, row in zip(table.models, table.gpus, table.logs, strict=True)
            for kind, value in zip(PACKED, row, strict=True)
            if lot[name] == 0 or (lot[name] == 1 and gpus == 2)
            if not np.isnan(value)
        }
        jobs = list(zip(table.models, table.gpus, strict=True))
        found = matrix(model(known, PACKED), jobs)
        apart = np.log(found.throughput) - table.logs
        for i, (name, gpus) in enumerate(jobs):
            if lot[name] == 1 and gpus != 2 and not np.isnan(apart[i]).any():
                assert found.absolute[i] == ((name, 2) in jobs)
                if found.absolute[i]:
                    scaled += list(np.abs(apart[i]))
            elif lot[name] == 2 and not np.isnan(apart[i]).any():
                assert set(found.source[i]) == {"prior"} and not found.absolute[i]
                ratio = np.abs(apart[i] - apart[i].mean())
                speeds += list(ratio)
                inside += list(ratio <= found.relative_error[i])
    assert np.expm1(np.median(scaled)) < 0.35 and np.expm1(np.quantile(scaled, 0.9)) < 1.2
    assert np.expm1(np.median(speeds)) < 0.35 and np.expm1(np.quantile(speeds, 0.9)) < 1.2
    assert 0.55 <= np.mean(inside) <= 0.85
