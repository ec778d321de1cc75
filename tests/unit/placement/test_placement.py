# SPDX-License-Identifier: MIT
"""Placement rules on small clusters where the right answer is plain to see."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement import POLICIES, place
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Rule, View

from ...doubles.trials import trials

A = Rule("A", locality_penalty=1.7, barred_slowdown=1.2)
C = Rule("C", locality_penalty=1.7, barred_slowdown=1.2, measured=True)
ONE = GpuShape(total=1, nodes=1, per_node=1)


def view(*nodes: list[float], size: int = 4, first: int = 0) -> View:
    """Nodes given as the slowdowns of their free GPUs, which are the last of `size`."""
    return View(
        names=[f"n{i}" for i in range(len(nodes))],
        free=[list(range(size - len(node), size)) for node in nodes],
        slowdown=list(nodes),
        level=[[round(x, 1) for x in node] for node in nodes],
        slowdown_a=list(nodes),
        node_gpus=[size] * len(nodes),
        weight=[1] * len(nodes),
    )


def test_class_fit_packs_before_it_looks_at_speed() -> None:
    placed = place("class-fit", view([0.9, 0.9, 0.9, 0.9], [1.05]), ONE, A)
    assert placed is not None and placed.nodes == (1,) and placed.gpus == ((3,),)


def test_class_fit_gives_sensitive_jobs_the_faster_of_equally_packed_nodes() -> None:
    placed = place("class-fit", view([1.04, 1.0], [0.97, 1.1], [1.01, 0.9]), ONE, A)
    assert placed is not None and placed.nodes == (1,) and placed.slowdown == 0.97


@pytest.mark.parametrize("rule", [A, C, C._replace(measured=False)])
def test_class_fit_keeps_nodes_without_outliers_whole_for_wide_jobs(rule: Rule) -> None:
    """A job of all GPUs runs at the slowest of them: small jobs take the good GPUs of a node that has an outlier."""
    table = view([0.9, 0.9, 0.9, 0.9], [1.0, 1.0, 1.4, 1.0])
    placed, wide = place("class-fit", table, ONE, rule), place("class-fit", table, GpuShape(4), A)
    assert placed is not None and placed.nodes == (1,) and placed.slowdown == 1.0
    assert wide is not None and wide.nodes == (0,)
    mild = place("class-fit", view([1.0] * 4, [1.0, 1.0, 1.1, 1.0], [0.9, 1.0, 1.0, 1.0]), ONE, A)
    assert mild is not None and mild.nodes == (2,), "up to the bar all count as alike"


def test_class_fit_scores_the_index_that_slurm_hands_out_not_the_best_of_the_node() -> None:
    placed = place("class-fit", view([1.1, 0.9], [1.0, 1.0]), ONE, A)
    assert placed is not None and placed.nodes == (1,)


def test_class_fit_keeps_sensitive_jobs_off_outliers_even_where_they_pack_better() -> None:
    placed = place("class-fit", view([1.4], [1.0, 1.0, 1.0, 1.0]), ONE, A)
    assert placed is not None and placed.nodes == (1,)


def test_class_fit_still_names_the_outlier_when_nothing_else_is_free() -> None:
    placed = place("class-fit", view([1.4], [1.3, 1.0]), ONE, A)
    assert placed is not None and placed.slowdown > A.barred_slowdown


def test_class_fit_sends_insensitive_jobs_to_outliers_first() -> None:
    table = view([1.0], [1.4, 1.0, 1.0, 1.0])._replace(slowdown=[[1.0], [1.01, 1.0, 1.0, 1.0]])
    placed = place("class-fit", table, ONE, C)
    assert placed is not None and placed.nodes == (1,)


def test_class_fit_sends_nobody_to_outliers_on_a_guess() -> None:
    """A wrong C would cost up to the slowest GPU. Up to the bar it takes the slowest, which others want least."""
    guessed = C._replace(measured=False)
    table = view([1.4], [1.1, 1.0, 1.0], [1.0, 1.0, 1.0])._replace(slowdown=[[1.0], [1.0] * 3, [1.0] * 3])
    packed, other = place("class-fit", table, ONE, C), place("class-fit", table, ONE, guessed)
    assert packed is not None and packed.nodes == (0,)
    assert other is not None and other.nodes == (1,)
    only = place("class-fit", view([1.4]), ONE, guessed)
    assert only is not None and only.nodes == (0,)
    four, spread = GpuShape(4), view([1.0, 1.0, 1.0, 2.5], [1.0, 1.0], [1.0, 1.0])._replace(slowdown=[[1.0] * 4] * 3)
    whole = place("class-fit", spread, four, guessed)
    assert whole is not None and whole.nodes == (0,), "its own time is what it would lose by spreading"


def test_class_fit_does_not_send_insensitive_jobs_to_a_gpu_slow_for_them_too() -> None:
    table = view([1.0], [1.4])._replace(slowdown=[[1.0], [1.4]])
    placed = place("class-fit", table, ONE, C)
    assert placed is not None and placed.nodes == (0,)


def test_class_fit_whole_nodes_by_their_slowest_gpu() -> None:
    eight = GpuShape(total=8, nodes=2, per_node=4)
    table = view([1.0, 1.0, 1.0, 1.1], [0.99] * 4, [1.0, 0.9, 0.9, 0.9])
    sensitive, insensitive = place("class-fit", table, eight, A), place("class-fit", table, eight, C)
    assert sensitive is not None and sensitive.nodes == (1, 2) and sensitive.locality == 1.7
    assert insensitive is not None and insensitive.nodes == (0, 2)


def test_an_unmeasured_gpu_is_never_preferred_over_a_fast_one() -> None:
    placed = place("class-fit", view([1.0], [0.98]), ONE, A)
    assert placed is not None and placed.nodes == (1,)


def test_a_total_stays_on_one_node_when_it_can_and_spreads_when_it_must() -> None:
    three = GpuShape(total=3)
    on_one, spread = (
        place("class-fit", view([1.0], [1.0, 1.0, 1.0]), three, A),
        place("class-fit", view([1.0], [1.0, 1.0]), three, A),
    )
    assert on_one is not None and on_one.nodes == (1,) and on_one.locality == 1.0
    assert spread is not None and spread.gpus == ((3,), (2, 3)) and spread.locality == 1.7


FOUR = GpuShape(total=4)


def test_class_fit_does_not_pay_for_two_nodes_to_avoid_a_slightly_slow_gpu() -> None:
    """Spread over n1 and n2 the job would take 1.7 times as long, on n0 1.3 times."""
    table = view([1.0, 1.3, 1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    placed = place("class-fit", table, FOUR, A)
    assert placed is not None and placed.nodes == (0,) and placed.product == 1.3
    near = place("class-fit", table, FOUR, A._replace(locality_penalty=1.05))
    assert near is not None and near.nodes == (1, 2)


def test_class_fit_spreads_where_one_node_is_slower_still() -> None:
    placed = place("class-fit", view([1.0, 2.5, 1.0, 1.0], [1.0, 1.0], [1.0, 1.0]), FOUR, A)
    assert placed is not None and placed.nodes == (1, 2) and placed.product == 1.7


def test_of_ways_to_spread_that_all_need_an_outlier_class_fit_takes_the_least_slow() -> None:
    """The fullest node has the slowest GPU: with fewer of its GPUs, or without it, the job is faster."""
    placed = place("class-fit", view([1.0, 1.0, 1.9], [1.3, 1.3], [1.0], size=4), FOUR, A)
    assert placed is not None and placed.slowdown == 1.3


def test_of_outliers_class_fit_takes_the_least_slow_not_the_tightest() -> None:
    placed = place("class-fit", view([1.9], [1.3, 1.3, 1.3]), ONE, A)
    assert placed is not None and placed.nodes == (1,)


def test_six_gpus_on_two_nodes_are_filled_as_slurm_fills_them() -> None:
    placed = place("packed", view([1.0] * 4, [1.0] * 4), GpuShape(total=6, nodes=2), A)
    assert placed is not None and [len(g) for g in placed.gpus] == [4, 2]


def test_an_exclusive_job_is_scored_by_all_gpus_of_its_node() -> None:
    shape = GpuShape(total=1, nodes=1, per_node=1, whole_nodes=True)
    placed = place("class-fit", view([0.9, 1.5, 1.0, 1.0], [1.0] * 4), shape, A)
    assert placed is not None and placed.nodes == (1,) and placed.gpus == ((0, 1, 2, 3),)


def test_pm_first_takes_the_best_gpu_wherever_it_is() -> None:
    placed = place("pm-first", view([1.0], [0.8, 1.0, 1.0, 1.0]), ONE, A)
    assert placed is not None and placed.nodes == (1,)


def test_pal_prefers_one_node_of_a_worse_class_to_two_of_a_better() -> None:
    # 1.0 within = 1.0 comes before 0.9 across = 1.53 in the L x V order.
    placed = place("pal", view([0.9], [0.9], [1.0, 1.0]), GpuShape(total=2), A)
    assert placed is not None and placed.nodes == (2,)


def test_pal_crosses_nodes_rather_than_take_a_terrible_gpu() -> None:
    placed = place("pal", view([0.9], [0.9], [2.6, 2.6]), GpuShape(total=2), A)
    assert placed is not None and placed.nodes == (0, 1) and placed.product == pytest.approx(0.9 * 1.7)


def test_pal_takes_the_node_with_most_eligible_gpus_as_published() -> None:
    placed = place("pal", view([0.9, 0.9], [0.9, 0.9, 0.9]), GpuShape(total=2, nodes=1, per_node=2), A)
    assert placed is not None and placed.nodes == (1,)


def test_plain_slurm_takes_the_first_node_that_fits_of_the_lowest_weight() -> None:
    table = view([1.0], [1.0, 1.0], [1.0, 1.0, 1.0])
    first = plain_pick(table, GpuShape(total=2, nodes=1, per_node=2), A)
    heavy = plain_pick(table._replace(weight=[1, 5, 1]), GpuShape(total=2, nodes=1, per_node=2), A)
    assert first is not None and first.nodes == (1,)
    assert heavy is not None and heavy.nodes == (2,)


def test_random_depends_on_its_seed_alone() -> None:
    table = view(*[[1.0] * 4 for _ in range(20)])
    seen = {place("random", table, ONE, A._replace(seed=seed)) for seed in range(30)}
    assert len(seen) > 5
    assert place("random", table, ONE, A._replace(seed=3)) == place("random", table, ONE, A._replace(seed=3))


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="class-fit"):
        place("fastest", view([1.0]), ONE, A)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_fits_an_empty_cluster_or_a_shape_beyond_it(policy: str) -> None:
    assert place(policy, view(), ONE, A) is None
    assert place(policy, view([1.0]), GpuShape(total=5), A) is None
    assert place(policy, view([1.0]), GpuShape(total=2, nodes=2, per_node=1), A) is None
    assert place(policy, view([1.0]), GpuShape(total=0), A) is None


speeds = st.lists(st.floats(0.8, 2.0), min_size=1, max_size=4)


@given(
    st.sampled_from(sorted(POLICIES)),
    st.lists(speeds, min_size=1, max_size=8),
    st.integers(1, 12),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from("ABC?"),
)
def test_every_placement_is_possible_and_complete(
    policy: str, nodes: list[list[float]], total: int, n_nodes: int | None, sensitivity: str
) -> None:
    table = view(*nodes)
    placed = place(policy, table, GpuShape(total=total, nodes=n_nodes), Rule(sensitivity, 1.7, 1.2))
    if n_nodes is None:  # a free total fits whenever that many GPUs are free
        assert (placed is not None) == (sum(map(len, nodes)) >= total)
    if placed is None:
        return
    assert sum(map(len, placed.gpus)) == total
    assert len(set(placed.nodes)) == len(placed.nodes)
    assert n_nodes is None or len(placed.nodes) == n_nodes
    for node, gpus in zip(placed.nodes, placed.gpus, strict=True):
        assert list(gpus) == list(table.free[node])[: len(gpus)]
    worst = max(table.slowdown[n][k] for n, g in zip(placed.nodes, placed.gpus, strict=True) for k in range(len(g)))
    assert math.isclose(placed.slowdown, worst)
    assert placed.locality == (1.7 if len(placed.nodes) > 1 else 1.0)


def compared(table: View, shape: GpuShape, rule: Rule) -> tuple[float, float, float] | None:
    """Our product, that of plain Slurm's pick, and the most that ours may be; None where neither starts the job."""
    ours, plain = place("class-fit", table, shape, rule), plain_pick(table, shape, rule)
    assert (ours is None) == (plain is None)
    if ours is None or plain is None:
        return None
    return ours.product, plain.product, max(plain.product, rule.barred_slowdown * plain.locality)


@trials(500)
@given(
    st.lists(st.lists(st.sampled_from((0.85, 0.97, 1.0, 1.03, 1.06, 1.2, 1.5, 1.9, 2.8)), max_size=4), max_size=7),
    st.integers(1, 12),
    st.sampled_from([None, None, 1, 2, 3]),
    st.booleans(),
    st.sampled_from("ABC?"),
    st.booleans(),
    st.sampled_from((1.0, 1.2, 1.7)),
    st.data(),
)
def test_class_fit_is_never_slower_than_plain_slurm_but_up_to_the_bar(
    rows: list[list[float]], total: int, n_nodes: int | None, whole: bool, c: str, measured: bool, penalty: float,
    data: st.DataObject,
) -> None:  # fmt: skip
    """GPUs up to the bar count as alike: beyond it no job of ours takes longer than where plain Slurm would put it."""
    rows = [row for row in rows if row]
    table = view(*rows)
    if whole:  # only nodes on which nothing runs are in such a view
        table = table._replace(node_gpus=[len(row) for row in rows])
    mild = [[1 + (x - 1) / data.draw(st.sampled_from((1, 4, 10))) for x in row] for row in rows]
    if c == "C":
        table = table._replace(slowdown=mild)
    order = data.draw(st.permutations(range(len(rows))))
    weights = data.draw(st.lists(st.integers(1, 2), min_size=len(rows), max_size=len(rows)))
    table = table._replace(weight=weights, position=sorted(order), cpus_free=[1 + 3 * i for i in order])
    per_node = total // n_nodes if n_nodes and total % n_nodes == 0 and data.draw(st.booleans()) else None
    shape = GpuShape(total, n_nodes, per_node, whole_nodes=whole)
    found = compared(table, shape, Rule(c, penalty, 1.05, measured=measured))
    if found is not None:
        ours, plain, most = found
        assert ours <= most + 1e-9, (ours, plain)
