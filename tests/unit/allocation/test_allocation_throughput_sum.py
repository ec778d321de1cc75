# SPDX-License-Identifier: MIT
"""Policies that maximise a sum, and deadlines with slack."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.allocation import sums
from slurm_pal.allocation.problem import Problem, effective, problem, proportional_throughput
from slurm_pal.allocation.throughput_sum import cost, cost_slo, max_sum
from slurm_pal.base.errors import DataError

from ...doubles import allocation_oracle as oracle
from ...doubles.allocation_limits import violation
from ...doubles.trials import trials

VALUES = {
    max_sum: lambda given_: given_.throughput / proportional_throughput(given_)[:, None],
    cost: lambda given_: given_.throughput / given_.price,
}


@oracle.needs_oracle
@pytest.mark.parametrize("policy", VALUES)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 4), st.sampled_from([0, 3]), st.floats(0.1, 1.5))
def test_is_the_optimum(policy, seed: int, m: int, n: int, equal: int, room: float) -> None:  # noqa: ANN001
    given_ = oracle.instance(seed, m, n, equal=equal, room=room)
    found, value = policy(given_), VALUES[policy](given_)
    assert violation(given_, found) <= 1e-9
    assert found.objective == pytest.approx((value * found.shares).sum(), rel=1e-12)
    assert found.objective == pytest.approx(oracle.largest_sum(given_, value), **oracle.CLOSE)


@oracle.needs_oracle
@pytest.mark.parametrize("seed", range(4))
def test_many_different_jobs(seed: int) -> None:
    given_ = oracle.instance(seed, 600, 2 + seed)
    assert given_.n_jobs > sums.WHOLE
    for policy, value in VALUES.items():
        found = policy(given_)
        assert violation(given_, found) <= 1e-9
        assert found.objective == pytest.approx(oracle.largest_sum(given_, value(given_)), **oracle.CLOSE)


@trials(40)
@given(st.integers(0, 10**6), st.sampled_from([1, 30, 310, 700]), st.integers(1, 6), st.sampled_from([0, 1, 7]))
def test_prices_prove_the_sum(seed: int, m: int, n: int, equal: int) -> None:
    """Values over many orders of magnitude, equal rows, nested capacities, plenty of room or hardly any."""
    rng = np.random.default_rng(seed)
    value = 10 ** rng.uniform(-3, 3, (m, 1)) * rng.uniform(0.05, 1.0, (m, n))
    value = value[rng.integers(0, min(m, equal), m)] if equal else value
    value[rng.uniform(size=(m, n)) < 0.15] = 0.0
    value[np.arange(m), rng.integers(0, n, m)] += 1e-3
    demand = rng.choice([1.0, 2.0, 8.0], m)
    uses = np.tril(np.ones((n, n))) if rng.uniform() < 0.3 else np.eye(n)
    market = sums.Market(value, demand, uses, uses @ (demand.sum() * rng.uniform(0, rng.choice([0.1, 2.0]), n)))
    found = sums.largest(market)
    gain = np.where(value > 0, value - demand[:, None] * (found.price @ uses), 0.0).max(axis=1, initial=0.0).sum()
    assert (value * found.shares).sum() == pytest.approx(gain + found.price @ market.capacity, rel=1e-8)
    assert market.load(found.shares) <= 1 + 1e-8
    assert (found.shares.sum(axis=1) <= 1 + 1e-9).all()


def due(seed: int, m: int, n: int, slack: float) -> Problem:
    """Two of three jobs have a deadline, `slack` times the time that they need alone, or tighter."""
    given_, rng = oracle.instance(seed, m, n), np.random.default_rng(seed + 1)
    alone_s = given_.remaining / given_.throughput.max(axis=1)
    deadline_s = np.where(rng.uniform(size=m) < 0.67, alone_s * slack * rng.uniform(0.8, 3.0, m), np.inf)
    return given_._replace(deadline_s=deadline_s)


@oracle.needs_oracle
@trials(25)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4), st.sampled_from([1.0, 3.0, 30.0]))
def test_deadlines_first_then_cost(seed: int, m: int, n: int, slack: float) -> None:
    given_ = due(seed, m, n, slack)
    found = cost_slo(given_)
    asked = np.minimum(given_.remaining / given_.deadline_s, given_.throughput.max(axis=1))
    got = effective(given_, found.shares)
    missing = np.maximum(0.0, 1 - got[asked > 0] / asked[asked > 0]).sum()
    assert violation(given_, found) <= 1e-9
    assert missing == pytest.approx(oracle.least_missing(given_, asked) if asked.any() else 0.0, abs=1e-6)
    assert found.objective <= cost(given_).objective * (1 + 1e-9)
    late = {int(re.match(r"row (\d+) misses", note).group(1)) for note in found.notes}
    ends_s = np.divide(given_.remaining, got, out=np.full(m, np.inf), where=got > 0)
    assert late == set(np.flatnonzero(ends_s > given_.deadline_s * (1 + 2e-6)).tolist())


def test_deadlines_that_bind_cost_something() -> None:
    given_ = due(4, 30, 3, 30.0)
    found = cost_slo(given_)
    assert found.notes == ()
    assert found.objective < cost(given_).objective * 0.999


def test_one_hopeless_deadline_does_not_drop_the_others() -> None:
    """Rows 0 and 1 share a GPU that row 0 needs alone; row 2 has passed its deadline; row 3 is in time."""
    given_ = problem(
        [[1, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 2]], [1, 1, 1, 1], [1, 1, 1],
        remaining=[100, 50, 20, 10], deadline_s=[100, 100, -7, 10],
    )  # fmt: skip
    found = cost_slo(given_)
    assert found.shares[3, 2] >= 0.5 - 1e-9
    assert found.shares[2, 1] == pytest.approx(1.0)
    assert found.shares[1, 0] == pytest.approx(0.5)  # the same slack meets it whole
    assert found.notes == (
        "row 0 misses its deadline by 100 s at the throughput found",
        "row 2 misses its deadline by 17 s at the throughput found",
    )


def test_a_deadline_that_gets_nothing() -> None:
    """Each needs the GPU for itself; the second makes more for the money."""
    given_ = problem([[1.0], [2.0]], [1, 1], [1], remaining=[100, 800], deadline_s=[100, 400], price=[0.5])
    found = cost_slo(given_)
    assert found.shares[:, 0] == pytest.approx([0.0, 1.0])
    assert found.notes == ("row 0 misses its deadline: no share is left for it",)


def test_without_deadlines_it_is_cost() -> None:
    given_ = oracle.instance(5, 20, 3)
    assert cost_slo(given_).objective == pytest.approx(cost(given_).objective, rel=1e-12)


@pytest.mark.parametrize("policy", [cost, cost_slo])
def test_a_price_of_nothing(policy) -> None:  # noqa: ANN001
    given_ = problem([[1.0, 1.0]], [1], [1, 1], price=[0.5, 0.0], remaining=[5], deadline_s=[50])
    with pytest.raises(DataError, match=r"a price is 0\.0; .* must be above 0"):
        policy(given_)


@pytest.mark.parametrize("policy", [max_sum, cost, cost_slo])
def test_nothing_to_share(policy) -> None:  # noqa: ANN001
    for given_ in (
        problem(np.zeros((0, 2)), np.zeros(0), [1, 1]),
        problem(np.ones((2, 2)), [1, 1], [0, 0], remaining=[1, 1], deadline_s=[5, 5]),
        problem(np.zeros((2, 2)), [9, 9], [4, 4]),
    ):
        found = policy(given_)
        assert not found.shares.any()
        assert found.objective == 0.0
        assert len(found.notes) == (given_.n_jobs > 0)
