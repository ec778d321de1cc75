# SPDX-License-Identifier: MIT
"""Makespan, and the search by prices behind it, whose every answer is proved by its prices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_pal.allocation import levels
from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.plans import cheapest
from slurm_pal.allocation.problem import Problem, effective, problem

from ...doubles import allocation_oracle as oracle
from ...doubles.allocation_limits import violation
from ...doubles.trials import trials


@oracle.needs_oracle
@trials(25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4), st.sampled_from([0, 3]), st.floats(0.05, 1.0))
def test_is_the_optimum(seed: int, m: int, n: int, equal: int, room: float) -> None:
    given_ = oracle.instance(seed, m, n, equal=equal, room=room)
    found = makespan(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx((given_.remaining / effective(given_, found.shares)).max(), rel=1e-12)
    assert found.objective == pytest.approx(oracle.makespan(given_), **oracle.CLOSE)


@oracle.needs_oracle
@pytest.mark.parametrize(("seed", "equal"), [(0, 0), (1, 0), (2, 5), (3, 40)])
def test_many_jobs(seed: int, equal: int) -> None:
    given_ = oracle.instance(seed, 500, 3 + seed, equal=equal, room=0.05)
    found = makespan(given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx(oracle.makespan(given_), **oracle.CLOSE)
    assert found.objective > 1.05 * (given_.remaining / given_.throughput.max(axis=1)).max()  # capacity binds


def hard(seed: int, m: int, n: int, equal: int) -> levels.LevelProblem:
    """Needs, speeds and ages over many orders of magnitude, equal rows, nested capacities."""
    rng = np.random.default_rng(seed)
    throughput = 10 ** rng.uniform(-4, 4, (m, 1)) * rng.uniform(0.05, 1.0, (m, n))
    throughput = throughput[rng.integers(0, min(m, equal), m)] if equal else throughput
    throughput[rng.uniform(size=(m, n)) < 0.15] = 0.0
    throughput[np.arange(m), rng.integers(0, n, m)] += 0.01
    uses = np.tril(np.ones((n, n))) if rng.uniform() < 0.3 else np.eye(n)
    demand = rng.choice([1.0, 2.0, 8.0], m)
    capacity = uses @ (demand.sum() * rng.uniform(0.02, 0.5, n))
    work = 10 ** rng.uniform(-2, 8, m)
    age = rng.choice([0.0, 1.0], m) * 10 ** rng.uniform(0, 6, m)
    return levels.LevelProblem(throughput, demand, uses, capacity, work, 10 ** rng.uniform(2, 6, m), age)


@trials(40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 30, 170, 400]), st.integers(1, 6), st.sampled_from([0, 1, 7]))
@example(438, 1, 5, 0)  # by the rounding of the level 1.4e-6 below
@example(7822, 2, 5, 7)  # and 5e-4 above
@example(1127, 1, 6, 7)  # called infeasible by the dual simplex
@example(20641, 2, 2, 1)  # has a part of a capacity below 1e-9
@example(17199, 2, 4, 0)  # has a need of 2e-13 of its time
def test_prices_prove_the_level(seed: int, m: int, n: int, equal: int) -> None:
    site = hard(seed, m, n, equal)
    found = levels.highest(site)
    need = site.need(found.level)[0]

    def cost(level: float) -> float:
        return float(cheapest(site.throughput, site.prices(found.price), site.need(level)[0]).cost.sum())

    # An old job that is nearly done asks for much more at the next floating-point number above the level: `need`
    # is a quotient by the small difference of two large numbers, and no level lies between.
    unit = found.level * np.finfo(float).eps
    rounding = cost(found.level + unit) - cost(found.level - unit)
    assert ((site.throughput * found.shares).sum(axis=1) >= need * (1 - 1e-6)).all()
    assert (found.shares.sum(axis=1) <= 1 + 1e-9).all()
    assert site.load(found.shares) <= 1 + 1e-6 + rounding  # within_limits takes away what is over
    if found.level < site.bound():  # above that level, no shares could be paid at these prices
        assert cost(found.level) >= 1 - 1e-6 - rounding
        assert found.price @ site.capacity == pytest.approx(1.0)


@trials(60)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 7))
def test_cheapest_plan_of_all_pairs(seed: int, m: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    speed = np.where(rng.uniform(size=(m, n)) < 0.2, 0.0, rng.integers(1, 6, (m, n)))
    speed[:, 0] = np.maximum(speed[:, 0], 1)
    price = rng.integers(0, 5, (m, n)).astype(float)
    need = speed.max(axis=1) * rng.choice([0.2, 0.5, 1.0], m)
    plans = cheapest(speed, price, need)
    for i in range(m):
        points = [(0.0, 0.0), *((v, p) for v, p in zip(speed[i], price[i], strict=True) if v)]
        lines = [
            p + (q - p) * (need[i] - v) / (w - v) for v, p in points for w, q in points if v < need[i] <= w
        ]  # fmt: skip
        assert plans.cost[i] == pytest.approx(min(lines), rel=1e-12, abs=1e-12)
    shares = plans.shares(n)
    assert (shares * speed).sum(axis=1) == pytest.approx(need)
    assert (shares * price).sum(axis=1) == pytest.approx(plans.cost)


def test_the_longest_job_alone() -> None:
    given_ = problem([[1.0, 4.0], [1.0, 4.0]], [1, 1], [1, 1], remaining=[400, 10])
    found = makespan(given_)
    assert found.objective == pytest.approx(100.0)
    assert found.shares[0] == pytest.approx([0.0, 1.0])


def test_a_job_with_nothing_left() -> None:
    given_ = problem([[2.0], [2.0], [0.0]], [1, 1, 1], [1], remaining=[0, 10, 5])
    found = makespan(given_)
    assert found.objective == pytest.approx(5.0)
    assert found.shares[:, 0] == pytest.approx([0.0, 1.0, 0.0])
    assert found.notes == ("1 of 3 jobs fit no column and get no share (rows 2)",)


@pytest.mark.parametrize(
    ("given_", "objective"),
    [
        (problem(np.zeros((0, 2)), np.zeros(0), [1, 1]), 0.0),
        (problem(np.ones((2, 2)), [1, 1], [4, 4]), 0.0),
        (problem(np.ones((2, 2)), [1, 1], [0, 0], remaining=[1, 1]), float("nan")),
        (problem(np.ones((2, 2)), [9, 9], [4, 4], remaining=[1, 1]), float("nan")),
    ],
)
def test_nothing_to_share(given_: Problem, objective: float) -> None:
    found = makespan(given_)
    assert not found.shares.any()
    assert found.objective == pytest.approx(objective, nan_ok=True)


def test_no_capacity_row_at_all() -> None:
    """A column that draws on no capacity has room for everybody."""
    given_ = problem([[1.0, 2.0]] * 3, [4, 4, 4], [1, 1], uses=np.zeros((1, 2)), capacity=[1], remaining=[6, 6, 3])
    assert makespan(given_).objective == pytest.approx(3.0)
