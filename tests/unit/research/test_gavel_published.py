# SPDX-License-Identifier: MIT
"""The programs of the replica, as ECOS solves them: optimal where another solver says so, and central."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.finish_time import finish_time_fairness
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.max_min import max_min
from slurm_pal.allocation.problem import (
    Allocation,
    Problem,
    effective,
    isolated_throughput,
    problem,
    proportional_throughput,
)
from slurm_pal.allocation.throughput_sum import cost
from slurm_pal.base.errors import MissingPackageError
from slurm_pal.research.replica.gavel_jobs import parse_types, workload
from slurm_pal.research.replica.gavel_published import PROGRAMS, Program, UnsolvedError, rules_of, searched, solved
from slurm_pal.simulate.inputs.gavel import GavelRow
from slurm_pal.simulate.throughput_file import Throughputs

from ...doubles.allocation_limits import violation
from ...doubles.trials import trials

ONE = problem(np.ones((1, 1)), np.ones(1), [1])


def random_problem(seed: int, m: int) -> Problem:
    draw = np.random.default_rng(seed)
    left = draw.uniform(1e3, 1e6, m)
    speeds = draw.uniform(0.5, 40, (m, 3))
    if m > 1:
        speeds[draw.integers(m), draw.integers(3)] = 0.0
    return problem(
        speeds, draw.choice([1, 2, 4], m), [4, 4, 8], remaining=left, age_s=draw.uniform(0, 1e5, m),
        earned_s=draw.uniform(0, 1e5, m), weight=draw.choice([1.0, 5.0], m),
    )  # fmt: skip


def shares(name: str, given: Problem) -> np.ndarray:
    pytest.importorskip("ecos")
    found = solved(PROGRAMS[name](given), given)
    assert violation(given, Allocation(found)) <= 1e-6
    return found


@given(st.integers(0, 10_000), st.integers(1, 24))
@trials(25, derandomize=True)  # of random problems the method misses one in a thousand
def test_levels_are_the_exact_ones(seed: int, m: int) -> None:
    given = random_problem(seed, m)
    unit = given.weight * proportional_throughput(given) / given.scale
    least = (effective(given, shares("gavel:max-min", given)) / unit).min()
    assert least == pytest.approx(max_min(given).objective, rel=1e-6)
    total = effective(given, shares("gavel:max-sum", given)).sum()
    assert total == pytest.approx(cost(given).objective, rel=1e-6)  # at a price of 1 for all
    alone_s = given.earned_s + given.remaining / isolated_throughput(given)
    ends_s = given.age_s + given.remaining / effective(given, shares("gavel:ftf", given))
    assert (ends_s / alone_s).max() == pytest.approx(finish_time_fairness(given).objective, rel=1e-4)
    time_s = searched(makespan(given).objective)
    slowest_s = (given.remaining / effective(given, shares("gavel:makespan", given))).max()
    assert slowest_s <= time_s * (1 + 1e-6)


def test_equal_jobs_have_equal_shares_in_the_middle() -> None:
    given = problem(np.ones((4, 2)), np.ones(4), [3, 3])  # more GPUs than jobs: any split of 1 is optimal
    assert shares("gavel:max-min", given) == pytest.approx(np.full((4, 2), 0.5), abs=1e-6)


@pytest.mark.parametrize("least_s", [50.0, 1234.5, 999_999.0, 3e6, 4e7])
def test_the_search_ends_within_5_percent(least_s: float) -> None:
    assert least_s <= searched(least_s)
    assert searched(least_s) <= 1.06 * max(least_s, 100.0)


def test_no_solution_is_an_error() -> None:
    pytest.importorskip("ecos")
    rows = np.array([[-1.0], [1.0]])  # x >= 0 and x <= -1
    with pytest.raises(UnsolvedError, match=r"ECOS: .*[iI]nfeasible.* \(1\); 1 jobs"):
        solved(Program(np.zeros(1), rows, np.array([0.0, -1.0])), ONE)


def test_an_interrupt_that_ecos_caught_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"info": {"exitFlag": -4, "infostring": "Interrupted"}, "x": np.zeros(1)}
    monkeypatch.setitem(sys.modules, "ecos", SimpleNamespace(solve=lambda *args, **options: ended))
    with pytest.raises(KeyboardInterrupt):
        solved(Program(np.zeros(1), np.ones((1, 1)), np.ones(1)), ONE)


def test_without_ecos_policies_with_a_program_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ecos", None)
    row = GavelRow("M", "", "", "-n", False, 10, 1, 1.0, -1.0, 0.0)
    work = workload([row], parse_types("v100:1"), Throughputs(("v100",), {("M", 1): (1.0,)}, {}))
    for name in PROGRAMS:
        with pytest.raises(MissingPackageError, match="pip install ecos"):
            rules_of(name, work, 0)
    for name in ("gavel:fifo-perf", "gavel:isolated", "gavel:allox"):
        rules_of(name, work, 0)
