# SPDX-License-Identifier: MIT
"""Hadar's rounds: prices, payoffs, the greedy choice against dynamic programming, and that nobody starves."""

from __future__ import annotations

import random
from functools import cache
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import hadar as h
from slurm_pal.allocation.problem import Problem, problem

HOUR = 3600.0


def drawn(seed: int, jobs: int, gpus: tuple[int, ...] = (4, 4, 4)) -> tuple[Problem, np.ndarray]:
    """Jobs on three types, each fastest on the first, with work done already; and their whole work."""
    draw = random.Random(seed)
    speed = np.array([(1.0, draw.uniform(0.2, 0.9), draw.uniform(0.1, 0.6)) for _ in range(jobs)]).reshape(jobs, 3)
    scale = [draw.choice((1, 1, 1, 2, 4)) for _ in range(jobs)]
    total = np.array([draw.uniform(0.1, 30.0) * HOUR for _ in range(jobs)])
    remaining = total * [draw.uniform(0.05, 1.0) for _ in range(jobs)]
    age_s = [draw.uniform(0.0, 20.0) * HOUR for _ in range(jobs)]
    return problem(speed, scale, gpus, remaining=remaining, age_s=age_s), total


def placed(made: Problem, total: np.ndarray, cost_s: float = 0.0, pinned: object = False) -> np.ndarray:
    m = made.n_jobs
    return h.hadar(made, total, np.full(m, cost_s), np.broadcast_to(np.asarray(pinned), (m,)))


def payoffs(made: Problem, total: np.ndarray) -> tuple[list[list[float]], list[h._Row], list[int]]:
    """Worth by job and column, fresh rows, and the order of the greedy walk."""
    usable = np.where(made.throughput > 0, made.throughput, 0.0)
    worths = h.worth(made, usable, total, np.zeros(made.n_jobs))
    cost = h.prices(made, usable, worths)

    def rows() -> list[h._Row]:
        return [h._Row(*each) for each in zip(made.capacity, cost.least, cost.most, strict=True)]

    return worths.tolist(), rows(), h._by_payoff(made, usable, worths, [[row] for row in rows()])


def greedy_payoff(made: Problem, total: np.ndarray) -> float:
    """What the jobs that pay have gained, each at the prices of its turn."""
    worths, rows, order = payoffs(made, total)
    column, gained = placed(made, total), 0.0
    for job in order:
        if (at := int(column[job])) >= 0 and (more := worths[job][at] - rows[at].cost(made.scale[job])) > 0:
            gained += more
            rows[at].free -= made.scale[job]
    return gained


def best_payoff(made: Problem, total: np.ndarray) -> float:
    """The same, where each job in this order may also wait or take another column: dynamic programming."""
    worths, rows, order = payoffs(made, total)

    @cache
    def best(at: int, free: tuple[float, ...]) -> float:
        if at == len(order):
            return 0.0
        job, found = order[at], best(at + 1, free)
        gang = float(made.scale[job])
        for j, row in enumerate(rows):
            if free[j] >= gang and worths[job][j] > 0:
                row.free = free[j]
                gain = worths[job][j] - row.cost(gang)
                if gain > 0:
                    left = (*free[:j], free[j] - gang, *free[j + 1 :])
                    found = max(found, gain + best(at + 1, left))
        return found

    return best(0, tuple(row.free for row in rows))


def test_the_greedy_walk_comes_near_dynamic_programming() -> None:
    """hadar.md 3 has 93 to 100 % of its payoff on 60 GPUs; gangs of four on four GPUs of a type are harder."""
    ratios = []
    for seed in range(60):
        made, total = drawn(seed, 6 + seed % 11)
        ratios.append(greedy_payoff(made, total) / best_payoff(made, total))
    assert max(ratios) <= 1 + 1e-9 and fmean(ratios) >= 0.93 and min(ratios) >= 0.7


@given(seed=st.integers(0, 10**6), jobs=st.integers(0, 40), run=st.booleans())
def test_gangs_are_whole_fit_and_leave_no_gpu_idle_that_a_job_could_use(seed: int, jobs: int, run: bool) -> None:
    made, total = drawn(seed, jobs)
    pinned = np.zeros(jobs, dtype=bool)
    if run:
        made = made._replace(held=placed(made, total))
        pinned = (made.held >= 0) & (np.arange(jobs) % 2 == 0)
    column = placed(made, total, 60.0, pinned)
    used = np.bincount(column[column >= 0], weights=made.scale[column >= 0], minlength=3)
    assert (used <= made.gpus).all() and (column[pinned] == made.held[pinned]).all()
    assert not ((column < 0) & (made.scale <= (made.gpus - used).max())).any()


def test_a_job_goes_where_it_is_fastest_and_the_others_where_they_lose_least() -> None:
    made = problem([[1.0, 0.9], [1.0, 0.1]], [1, 1], [1, 1], remaining=[HOUR, HOUR])
    assert placed(made, np.array([HOUR, HOUR])).tolist() == [0, 1], "of equal ones the first: greedy"
    made = problem([[1.0, 0.9], [1.0, 0.1]], [1, 1], [1, 1], remaining=[HOUR, 2 * HOUR])
    assert placed(made, np.array([HOUR, 2 * HOUR])).tolist() == [1, 0], "of equal ones the longest first"


def test_an_aged_job_that_pays_for_nothing_still_gets_what_is_free() -> None:
    """hadar.md 3, pitfall 2."""
    made = problem([[1.0], [1.0]], [1, 1], [2], remaining=[1.0, HOUR], age_s=[1e7, 0.0])
    assert placed(made, np.array([1.0, HOUR])).tolist() == [0, 0]


def test_a_job_that_is_believed_to_have_nothing_to_do_still_runs() -> None:
    made = problem([[1.0, 0.0]], [1], [1, 1], remaining=[0.0], age_s=[HOUR])
    assert placed(made, np.array([0.0])).tolist() == [0]


def test_a_move_that_costs_more_than_it_gains_is_not_made() -> None:
    made = problem([[1.0, 0.9]], [1], [1, 1], remaining=[100.0], held=[1])
    assert placed(made, np.array([HOUR]), cost_s=60.0).tolist() == [1]
    assert placed(made, np.array([HOUR]), cost_s=0.0).tolist() == [0]


def test_a_job_that_can_run_nowhere_waits_and_stops_nobody() -> None:
    made = problem([[0.0, 0.0], [1.0, 0.5], [1.0, 1.0]], [1, 2, 9], [2, 2], remaining=[1.0, HOUR, HOUR])
    assert placed(made, np.array([1.0, HOUR, HOUR])).tolist() == [-1, 0, -1]


def test_prices_rise_from_what_anybody_pays_to_what_nobody_does() -> None:
    made, total = drawn(3, 30)
    worths, rows, _ = payoffs(made, total)
    for j, row in enumerate(rows):
        paid = [worth[j] / gpus for worth, gpus in zip(worths, made.scale, strict=True)]
        first = row.cost(1.0)
        row.free = 1e-9
        assert first < min(paid) and row.cost(1.0) >= max(paid) * (1 - 1e-6)
        row.free = made.gpus[j]
        assert row.cost(2.0) == pytest.approx(first + _next(row, 1.0))


def _next(row: h._Row, taken: float) -> float:
    row.free -= taken
    return row.cost(1.0)


def test_nothing_to_do_and_no_gpu_are_answers_too() -> None:
    made = problem(np.zeros((0, 2)), np.zeros(0), [1, 1])
    assert placed(made, np.zeros(0)).size == 0
    made = problem([[1.0, 1.0]], [1], [0, 0.01], remaining=[0.0])
    assert placed(made, np.array([1.0])).tolist() == [-1]
    made = problem([[1.0]], [1], [1], remaining=[0.0])
    assert placed(made, np.array([0.0])).tolist() == [0], "it ends at once"
