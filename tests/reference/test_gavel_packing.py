# SPDX-License-Identifier: MIT
"""Packed max-min on the instances of solve_objectives.csv: optima that other programs found."""

from __future__ import annotations

import ast
import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_pal.allocation.problem import Problem, problem, proportional_throughput
from slurm_pal.research.pairs import effective_packed, max_min_packing

from ..doubles.allocation_limits import violation

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "gavel"
pytestmark = pytest.mark.skipif(
    not (DATA / "solve_objectives.csv").is_file(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA"
)
TYPES = ("k80", "p100", "v100")
Table = dict[str, dict[tuple[str, int], dict[str, Any]]]


def _rows() -> list[tuple[bool, int, float]]:
    if not (DATA / "solve_objectives.csv").is_file():
        return []
    with (DATA / "solve_objectives.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["policy"] == "max_min_packed"]
    return [(row["multi_gpu"] == "1", int(row["m"]), float(row["objective"])) for row in rows]


@pytest.fixture(scope="module")
def table() -> Table:
    raw = json.loads((DATA / "simulation_throughputs.json").read_text())
    return {worker: {ast.literal_eval(key): rates for key, rates in raw[worker].items()} for worker in TYPES}


def _instance(table: Table, multi: bool, m: int) -> Problem:
    name = "solver_jobs_multi.csv" if multi else "solver_jobs_single.csv"
    with (DATA / name).open() as lines:
        jobs = [(row["job_type"], int(row["scale_factor"])) for row in csv.DictReader(lines)][:m]
    kinds = sorted(set(jobs))
    pairs = np.zeros((len(kinds), len(kinds), len(TYPES)))
    for j, worker in enumerate(TYPES):
        for a, one in enumerate(kinds):
            for b, other in enumerate(kinds):
                rates = table[worker][one].get(str(other))
                if rates:
                    pairs[a, b, j] = np.mean(rates) if a == b else rates[0]
    kind = [kinds.index(job) for job in jobs]
    alone = np.array([[table[worker][one]["null"] for worker in TYPES] for one in kinds])
    return problem(alone[kind], [scale for _, scale in jobs], np.full(len(TYPES), m // 4), kind=kind, pairs=pairs)


@pytest.mark.parametrize(("multi", "m", "objective"), _rows())
def test_objective(table: Table, multi: bool, m: int, objective: float) -> None:
    given = _instance(table, multi, m)
    found = max_min_packing(given)
    assert violation(given, found) <= 1e-9
    assert found.objective == pytest.approx(objective, rel=1e-6)
    reached = given.scale * effective_packed(given, found) / proportional_throughput(given)
    assert reached.min() == pytest.approx(objective, rel=1e-6)
