# SPDX-License-Identifier: MIT
"""Which loaned nodes go back: the rule against the optimum and against others (aryl.md, gate A4)."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import reclaim as r
from slurm_pal.allocation.linear import LinearProgram, UnsolvedError
from slurm_pal.allocation.reclaim import Guest
from slurm_pal.base.errors import UsageError

from ...doubles import reclaim_cases as cases
from ...doubles.trials import trials

NODES = cases.names(14)
CASES = 500


def costs(weighted: bool, spread: bool, number: int = CASES) -> dict[str, float]:
    """Mean cost of a reclaim of 4 nodes, by rule; ours is the optimum each time."""
    sums: dict[str, list[float]] = {}
    for seed in range(number):
        guests = cases.drawn(seed, len(NODES), weighted=weighted, spread=spread)
        chosen = {
            "ours": r.by_cost(NODES, guests, 4),
            "greedy": r.greedy_by_cost(NODES, guests, 4),
            "jobs": r.by_jobs(NODES, guests, 4),
            "jobs once": cases.by_jobs_once(NODES, guests, 4),
            "random": r.at_random(NODES, guests, 4, random.Random(seed)),
        }
        for name, nodes in chosen.items():
            sums.setdefault(name, []).append(r.outcome(nodes, guests).cost)
        assert sums["ours"][-1] == pytest.approx(cases.least_cost(NODES, guests, 4), rel=1e-9, abs=1e-9)
    return {name: fmean(values) for name, values in sums.items()}


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum_and_a_third_better_than_fewest_jobs(weighted: bool) -> None:
    found = costs(weighted, spread=False)
    assert 1.3 * found["ours"] <= found["jobs"] <= found["jobs once"] < found["random"]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum_where_jobs_are_spread_and_greedy_is_above_it(weighted: bool) -> None:
    found = costs(weighted, spread=True, number=100)
    assert 1.02 * found["ours"] <= found["greedy"] <= found["jobs"] <= found["jobs once"] < found["random"]


@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_of_134_596_sets(seed: int) -> None:
    loaned = cases.names(24)
    guests = cases.drawn(seed, 24, weighted=True, spread=bool(seed % 2))
    assert r.reclaim(loaned, guests, 6).cost == pytest.approx(cases.least_cost(loaned, guests, 6), rel=1e-9)


def test_fewest_jobs_of_equal_cost() -> None:
    guests = [Guest("a", ("n0",), 2.0), Guest("b", ("n0",), 2.0), Guest("c", ("n0",), 2.0), Guest("wide", NODES, 0.0)]
    guests += [Guest("d", ("n1",), 3.0), Guest("e", ("n1", "n2"), 3.0), Guest("f", ("n2",), 6.0)]
    assert r.reclaim(("n0", "n1"), guests, 1).nodes == ("n1",)


def test_more_pairs_than_the_program_takes_are_left_to_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = [Guest("half-home", ("n0", "home"), 4.0), Guest("guest", ("n1",), 3.0)]
    monkeypatch.setattr(r, "PAIRS", 2)
    assert r.by_cost(["n0", "n1"], guests, 1) == ["n1"]
    monkeypatch.setattr(r, "PAIRS", 1)
    assert r.by_cost(["n0", "n1"], guests, 1) == r.greedy_by_cost(["n0", "n1"], guests, 1) == ["n0"]


def test_where_the_solver_fails_greedy_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_program: LinearProgram) -> None:
        raise UnsolvedError("no")

    monkeypatch.setattr(LinearProgram, "solve", fail)
    guests = [Guest("half-home", ("n0", "home"), 4.0), Guest("guest", ("n1",), 3.0)]
    assert r.by_cost(["n0", "n1"], guests, 1) == ["n0"]


def test_unused_nodes_go_first_then_flexible_workers_fewest_first_then_the_cheapest() -> None:
    guests = [
        Guest("a", ("n0",), 5.0),
        Guest("f", ("n1",), 100.0, flexible=True),
        Guest("g", ("n1",), 100.0, flexible=True),
        Guest("h", ("n2",), 100.0, flexible=True),
        Guest("b", ("n4",), 3.0),
    ]
    found = r.reclaim(["n0", "n1", "n2", "n3", "n4"], guests, 4)
    assert found == r.Reclaim(("n3", "n2", "n1", "n4"), ("f", "g", "h"), ("b",), 3.0)


def test_a_preempted_job_leaves_its_other_nodes_and_costs_nothing_there() -> None:
    guests = [Guest("wide", ("n0", "n1"), 4.0), Guest("one", ("n2",), 3.0), Guest("two", ("n3",), 3.0)]
    found = r.reclaim(["n0", "n1", "n2", "n3"], guests, 2)
    assert (found.nodes, found.preempted, found.cost) == (("n0", "n1"), ("wide",), 4.0)


def test_nodes_that_are_not_loaned_share_the_cost_but_are_never_chosen() -> None:
    guests = [Guest("half-home", ("n0", "home"), 4.0), Guest("guest", ("n1",), 3.0)]
    assert r.greedy_by_cost(["n0", "n1"], guests, 1) == ["n0"]  # 4/2 < 3: as published
    assert r.reclaim(["n0", "n1"], guests, 1).nodes == ("n1",)  # what it loses is the whole job


def test_ties_go_by_the_order_given_and_more_than_are_loaned_is_all() -> None:
    guests = [Guest(name, (name,), 1.0) for name in ("n2", "n1", "n0")]
    assert r.reclaim(["n1", "n0", "n2"], guests, 1).nodes == ("n1",)
    assert r.reclaim(["n1", "n0", "n2"], guests, 9).nodes == ("n1", "n0", "n2")


def test_a_preempted_job_of_no_cost_still_comes_after_flexible_workers() -> None:
    guests = [Guest("free", ("n0",), 0.0), Guest("f", ("n1",), 1.0, flexible=True)]
    assert r.reclaim(["n0", "n1"], guests, 1).preempted == ()


def test_random_nodes_are_unused_ones_as_long_as_there_are_any() -> None:
    guests = [Guest("a", ("n0",), 1.0)]
    assert {tuple(sorted(r.at_random(["n0", "n1", "n2"], guests, 2, random.Random(seed)))) for seed in range(9)} == {
        ("n1", "n2")
    }
    assert {r.at_random(["n1", "n2"], guests, 1, random.Random(seed))[0] for seed in range(20)} == {"n1", "n2"}


@pytest.mark.parametrize(
    ("guests", "count", "text"),
    [
        ([], -1, "-1 nodes to reclaim"),
        ([Guest("a", ("n0",), 1.0), Guest("a", ("n1",), 1.0)], 1, "2 guests have 1 names"),
        ([Guest("a", (), 1.0)], 1, "guest a has 0 nodes"),
        ([Guest("a", ("n0",), math.nan)], 1, "the cost nan"),
        ([Guest("a", ("n0",), -1.0)], 1, "the cost -1.0"),
    ],
)
def test_wrong_input_is_refused(guests: list[Guest], count: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        r.reclaim(["n0", "n1"], guests, count)


@trials(200)
@given(
    guests=st.lists(
        st.tuples(st.sets(st.sampled_from(NODES[:7]), min_size=1), st.floats(0, 1e6), st.booleans()), max_size=12
    ),
    loaned=st.permutations(NODES[:6]),
    count=st.integers(0, 7),
)
def test_nodes_are_loaned_and_different_and_never_cost_more_than_they_must(
    guests: list[tuple[set[str], float, bool]], loaned: list[str], count: int
) -> None:
    made = [Guest(f"j{i}", tuple(sorted(nodes)), cost, flexible) for i, (nodes, cost, flexible) in enumerate(guests)]
    found = r.reclaim(loaned, made, count)
    assert len(set(found.nodes)) == len(found.nodes) == min(count, len(loaned))
    assert set(found.nodes) <= set(loaned)
    assert set(found.preempted) == {g.job for g in made if not g.flexible and set(g.nodes) & set(found.nodes)}
    assert set(found.released) == {g.job for g in made if g.flexible and set(g.nodes) & set(found.nodes)}
    least = cases.least_cost(loaned, made, count)
    assert least <= found.cost * (1 + 1e-9)
    assert found.cost <= least + 12 * r.STEP * max((guest.cost for guest in made), default=0.0)
    assert found.cost <= r.outcome(r.greedy_by_cost(loaned, made, count), made).cost
