# SPDX-License-Identifier: MIT
"""Optima of the allocation policies against the values given with the reference data (gavel.md 14).

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.throughput_sum import cost

from ..bench.allocation_solvers import instance
from ..doubles.allocation_limits import violation

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "gavel"
EXPECTED = DATA / "solve_objectives.csv"
pytestmark = pytest.mark.skipif(not EXPECTED.is_file(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA")
POLICIES = {
    "max_min": max_min, "makespan": makespan, "makespan_tight": makespan, "cost": cost,
    "ftf": finish_time_fairness, "ftf_warm": finish_time_fairness, "ftf_tight": finish_time_fairness,
}  # fmt: skip
LARGEST_IS_BEST = ("max_min", "cost")


def rows() -> list[dict[str, str]]:
    if not EXPECTED.is_file():
        return []
    with open(EXPECTED, newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if row["policy"] != "max_min_packed"]


def name(row: dict[str, str]) -> str:
    return f"{row['policy']}-{'multi' if row['multi_gpu'] == '1' else 'single'}-{row['m']}"


def test_all_rows_are_here() -> None:
    assert len(rows()) == 60


@pytest.mark.parametrize("row", rows(), ids=name)
def test_optimum(row: dict[str, str]) -> None:
    given = instance(DATA, row["policy"], row["multi_gpu"] == "1", int(row["m"]))
    found = POLICIES[row["policy"]](given)
    assert found.objective == pytest.approx(float(row["objective"]), rel=1e-6)
    assert violation(given, found) <= 1e-9
    assert found.notes == ()
    if row["gavel_objective"]:
        published = float(row["gavel_objective"])
        better = found.objective - published if row["policy"] in LARGEST_IS_BEST else published - found.objective
        assert better >= -1e-6 * published
        assert better <= 0.035 * published
