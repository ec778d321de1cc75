# SPDX-License-Identifier: MIT
"""Columns = partition x {packed, spread} x variability class: speeds and rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_pal.allocation import columns as c
from slurm_pal.allocation.problem import Problem
from slurm_pal.base.errors import DataError

from ...doubles.trials import trials

SLOW = {"A": (1.0, 1.25), "C": (1.0, 1.0)}
V100 = c.PartitionGpus("v100", ((4, 0), (2, 2)), SLOW)
K80 = c.PartitionGpus("k80", ((8,),), {"A": (1.0,), "C": (1.0,)})
SITE = c.columns([V100, K80])


def made(throughput: list[list[float]], scale: list[float], spread: float = 0.5, sensitivity: str = "A") -> Problem:
    m = len(scale)
    jobs = c.PartitionJobs(np.array(throughput), np.full(m, spread), [sensitivity] * m, np.array(scale, dtype=float))
    return c.problem(SITE, jobs)


def test_columns_are_named_in_order() -> None:
    assert SITE.names == (
        ("v100", False, 0), ("v100", False, 1), ("v100", True, 0), ("v100", True, 1),
        ("k80", False, 0), ("k80", True, 0),
    )  # fmt: skip
    assert SITE.first == (0, 4)


@pytest.mark.parametrize(
    ("scale", "row"),
    [
        (1, (10, 8, 0, 0, 4, 0)),  # one GPU cannot be spread
        (2, (10, 8, 5, 4, 4, 0)),  # k80 has one node: nothing to spread over
        (4, (10, 8, 5, 4, 4, 0)),
        (5, (5, 4, 0, 0, 4, 0)),  # wider than a v100 node: spans nodes, in its packed column
        (6, (5, 4, 0, 0, 4, 0)),
        (8, (0, 4, 0, 0, 4, 0)),  # 6 GPUs of class 0
        (9, (0, 0, 0, 0, 0, 0)),  # wider than any partition
    ],
)
def test_speed_of_a_gang_in_each_column(scale: float, row: tuple[float, ...]) -> None:
    assert made([[10, 4]], [scale]).throughput[0] == pytest.approx(row)


def test_a_gang_that_no_node_holds_at_a_level_spans_nodes_there_only() -> None:
    site = c.columns([c.PartitionGpus("p", ((2, 2), (2, 2)), SLOW)])
    jobs = c.PartitionJobs(np.array([[10.0]]), np.array([0.5]), ["A"], np.array([4.0]))
    assert c.problem(site, jobs).throughput[0] == pytest.approx((5, 8, 0, 4))


def test_insensitive_jobs_and_ratios_above_one() -> None:
    assert made([[10, 4]], [2], spread=1.4, sensitivity="C").throughput[0] == pytest.approx((10, 10, 10, 10, 4, 0))


def test_a_level_is_as_slow_as_the_slowest_class_it_may_use() -> None:
    site = c.columns([c.PartitionGpus("p", ((1, 1, 1),), {"B": (1.0, 1.6, 1.2)})])
    jobs = c.PartitionJobs(np.array([[8.0]]), np.array([[1.0]]), ["B"], np.array([1.0]))
    assert c.problem(site, jobs).throughput[0, :3] == pytest.approx((8, 5, 5))


def test_rows_are_nested_and_reference_counts_each_gpu_once() -> None:
    problem = made([[10, 4]], [1])
    assert problem.uses.tolist() == [[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert problem.capacity.tolist() == [6, 8, 8]
    assert problem.gpus.tolist() == [6, 2, 0, 0, 8, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: c.columns([V100, V100]), "different names"),
        (lambda: c.columns([]), "at least one partition"),
        (lambda: c.columns([c.PartitionGpus("p", (), SLOW)]), "needs nodes.*they have no counts"),
        (lambda: c.columns([c.PartitionGpus("p", ((1, 2), (3,)), SLOW)]), "needs nodes.*they have 1 or 2 counts"),
        (lambda: c.columns([c.PartitionGpus("p", ((0, 0),), SLOW)]), "one GPU; .* 0 and there are 0 GPUs"),
        (lambda: c.columns([c.PartitionGpus("p", ((1,),), SLOW)]), "slowdown above 0 for each"),
        (lambda: c.columns([c.PartitionGpus("p", ((1, 1),), {"A": (0.0, 1.0)})]), "slowdown above 0 for each"),
        (lambda: made([[10]], [1]), "2 partitions"),
        (lambda: made([[10, 4]], [1], sensitivity="X"), "'X'"),
        (lambda: made([[10, 4]], [1], spread=float("nan")), "spread"),
    ],
)
def test_bad_input_is_one_clear_line(call: Callable[[], object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        call()


# -- the nested rows against brute force -----------------------------------------------------


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    """One partition with up to 3 classes, and the GPU time that is asked for at each level."""
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(sum))
    asked = [draw(st.integers(0, 8)) / 2 for _ in counts]
    return counts, asked


@trials(150)
@given(instances())
def test_nested_rows_hold_exactly_where_gpu_time_can_be_divided(instance: tuple[list[int], list[float]]) -> None:
    """Brute force: GPU time of level v to class u <= v as a transport problem."""
    counts, asked = instance
    site = c.columns([c.PartitionGpus("p", (counts,), {"A": [1.0] * len(counts)})])
    uses, capacity = c.nested_rows(site)
    rows_hold = bool((uses[:, : len(counts)] @ asked <= capacity + 1e-9).all())
    ways = [(v, u) for v in range(len(counts)) for u in range(v + 1)]
    supply = [[1.0 if way[1] == u else 0.0 for way in ways] for u in range(len(counts))]
    demand = [[1.0 if way[0] == v else 0.0 for way in ways] for v in range(len(counts))]
    divided = linprog(np.zeros(len(ways)), A_ub=supply, b_ub=counts, A_eq=demand, b_eq=asked)
    assert rows_hold == (divided.status == 0)


def timetable_exists(classes: list[int], jobs: list[tuple[int, int]], slots: int) -> bool:
    """Whether one-GPU jobs, given as (level, number of slots), fit on GPUs of these classes, by trying everything."""

    def fill(slot: int, left: tuple[int, ...]) -> bool:
        if not any(left):
            return True
        if slot == slots or max(left) > slots - slot:
            return False
        waiting = [job for job, count in enumerate(left) if count]
        for size in range(min(len(waiting), len(classes)), -1, -1):
            for chosen in itertools.combinations(waiting, size):
                fits = any(
                    all(classes[gpu] <= jobs[job][0] for gpu, job in zip(gpus, chosen, strict=True))
                    for gpus in itertools.permutations(range(len(classes)), size)
                )
                if fits and fill(slot + 1, tuple(n - (job in chosen) for job, n in enumerate(left))):
                    return True
        return False

    return fill(0, tuple(count for _, count in jobs))


@trials(60)
@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_shares_of_one_gpu_jobs_have_a_timetable_exactly_where_the_rows_hold(
    classes: list[int], jobs: list[tuple[int, int]]
) -> None:
    """Shares are thirds of the time; a timetable has three slots, each job at most once in a slot."""
    counts = [classes.count(0), classes.count(1)]
    site = c.columns([c.PartitionGpus("p", (counts,), {"A": [1.0, 1.0]})])
    uses, capacity = c.nested_rows(site)
    asked = [sum(n for level, n in jobs if level == v) / 3 for v in (0, 1)]
    rows_hold = bool((uses[:, :2] @ asked <= capacity + 1e-9).all())
    assert rows_hold == timetable_exists(classes, jobs, 3)
