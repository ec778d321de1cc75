# SPDX-License-Identifier: MIT
"""Lower bounds: by hand, against each other, and below what schedules reach."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.makespan import makespan
from slurm_pal.allocation.problem import problem
from slurm_pal.research.bounds import drain_s, makespan_bound_s
from slurm_pal.research.unequal import GangJob, pal_share_policy, simulate

from ...doubles.completion_bound import completion_bound_s
from ...doubles.trials import trials


def test_the_longest_job_or_the_capacity() -> None:
    speed = [[2.0, 1.0]] * 3
    assert drain_s(problem(speed, [1, 1, 1], [1, 1], remaining=[600, 30, 30])) == pytest.approx(300)
    assert drain_s(problem(speed, [1, 1, 1], [1, 1], remaining=[300, 300, 300])) == pytest.approx(300)


def test_gangs_count_whole() -> None:
    """Two gangs of 8 do not run together on 12 GPUs, though 12/16 of their time is there."""
    assert drain_s(problem(np.ones((2, 1)), [8, 8], [12], remaining=[100, 100])) == pytest.approx(200)


@pytest.mark.parametrize("m", [0, 2])
def test_no_work_that_can_run(m: int) -> None:
    found = problem(np.zeros((m, 2)), np.ones(m), [1, 1], remaining=np.ones(m))
    assert drain_s(found) == 0.0
    assert makespan_bound_s(found, np.zeros(m)) == 0.0


def test_release_times_put_the_bound_off() -> None:
    """Alone 20 s from 100 on; both late jobs need the one GPU from 100 on."""
    found = problem(np.ones((3, 1)), [1, 1, 1], [1], remaining=[50, 20, 20])
    assert makespan_bound_s(found, np.array([0.0, 100.0, 100.0])) == pytest.approx(140)


def test_completions_on_one_gpu_come_close_to_the_shortest_first() -> None:
    """Ends at 10, 30, 60 s."""
    found = problem(np.ones((3, 1)), [1, 1, 1], [1], remaining=[10, 20, 30])
    bound = completion_bound_s(found, np.zeros(3), np.linspace(0, 60, 121))
    assert 0.97 * 100 / 3 <= bound <= 100 / 3


jobs = st.lists(
    st.tuples(st.floats(0, 500), st.floats(1, 1e3), st.sampled_from((1, 2, 4)), st.floats(0.5, 3.0), st.floats(0.1, 3)),
    min_size=1,
    max_size=8,
)


@given(jobs)
def test_one_lp_without_releases_and_gangs(drawn: list[tuple[float, float, int, float, float]]) -> None:
    found = problem([d[3:] for d in drawn], np.ones(len(drawn)), [2, 1], remaining=[d[1] for d in drawn])
    exact = makespan(found).objective
    assert makespan_bound_s(found, np.zeros(len(drawn))) == pytest.approx(exact, rel=1e-5)
    assert drain_s(found) <= exact * (1 + 1e-6)


@trials(40)
@given(jobs)
def test_no_run_beats_a_bound(drawn: list[tuple[float, float, int, float, float]]) -> None:
    trace = [GangJob(str(i), d[0], d[1], d[2], d[3:]) for i, d in enumerate(drawn)]
    release_s = np.array([d[0] for d in drawn])
    ran = simulate(trace, [4, 4], pal_share_policy(), move_cost_s=0.0)
    found = problem([d[3:] for d in drawn], [d[2] for d in drawn], [4, 4], remaining=[d[1] for d in drawn])
    assert makespan_bound_s(found, release_s) <= ran.makespan_s * (1 + 1e-6)
    edges_s = np.linspace(0.0, 2 * ran.makespan_s, 30)
    assert completion_bound_s(found, release_s, edges_s) <= ran.mean_jct_s() * (1 + 1e-6)
