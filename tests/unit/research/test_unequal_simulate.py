# SPDX-License-Identifier: MIT
"""The loop by hand: what a start, a move and a stop cost, when jobs end, and which answers are refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_pal.base.errors import UsageError
from slurm_pal.research.unequal import GangJob, Moment, StarvedError, pal_share_policy, simulate


class Script:
    """Columns of all jobs from given times on."""

    def __init__(self, *steps: tuple[float, list[int]]) -> None:
        self.steps = steps
        self.seen: list[Moment] = []

    def __call__(self, moment: Moment) -> NDArray[np.int64]:
        self.seen.append(moment)
        columns = [columns for from_s, columns in self.steps if from_s <= moment.now_s][-1]
        return np.array([columns[job] for job in moment.job])


LONG = GangJob("a", 0.0, 1000.0, 1, (2.0, 1.0))


def test_a_first_start_is_free() -> None:
    found = simulate([LONG], [1, 1], Script((0, [0])), move_cost_s=50)
    assert found.makespan_s == 500 and found.moves.tolist() == [0] and found.lost_gpu_h == 0


def test_a_move_costs_and_its_gpus_are_held_meanwhile() -> None:
    """100 s on the slow column, 50 s lost, 900 steps at 2 a second."""
    found = simulate([LONG], [1, 1], Script((0, [1]), (100, [0])), move_cost_s=50, review_s=100)
    assert found.jct_s.tolist() == [600] and found.moves.tolist() == [1]
    assert found.lost_gpu_h * 3600 == 50
    assert found.utilisation == pytest.approx(0.5)


def test_a_stop_and_a_start_in_the_same_column_cost_once() -> None:
    found = simulate([LONG], [1, 1], Script((0, [0]), (100, [-1]), (200, [0])), move_cost_s=50, review_s=100)
    assert found.jct_s.tolist() == [650] and found.moves.tolist() == [1]
    assert found.utilisation == pytest.approx(550 / 1300)


def test_a_move_during_a_move_costs_again() -> None:
    script = Script((0, [1]), (100, [0]), (120, [1]))
    found = simulate([LONG], [1, 1], script, move_cost_s=50, review_s=20)
    assert found.jct_s.tolist() == [120 + 50 + 900] and found.moves.tolist() == [2]
    assert found.lost_gpu_h * 3600 == pytest.approx(70)


def test_what_a_policy_sees() -> None:
    jobs = [LONG, GangJob("b", 30.0, 10.0, 2, (0.0, 1.0), believed_steps=4.0)]
    script = Script((0, [0, 1]))
    found = simulate(jobs, [1, 2], script, move_cost_s=50, review_s=35)
    assert found.finish_s.tolist() == [500, 40]
    at = {moment.now_s: moment for moment in script.seen}
    assert at[30].job.tolist() == [0, 1]
    assert at[30].problem.remaining.tolist() == [940, 4]
    assert at[30].problem.held.tolist() == [0, -1] and at[30].charged.tolist() == [True, False]
    assert at[40].job.tolist() == [0] and at[40].problem.age_s.tolist() == [40]


def test_a_job_that_outlives_the_belief_keeps_something_to_do() -> None:
    script = Script((0, [0]))
    simulate([LONG._replace(believed_steps=100.0)], [1, 1], script, move_cost_s=0, review_s=100)
    assert [moment.problem.remaining.tolist()[0] for moment in script.seen] == pytest.approx([100, 20, 40, 60, 80])


@pytest.mark.parametrize(
    ("answer", "word"),
    [([0, 0], "gave out"), ([2, 0], "below 2"), ([0, 1], "no progress"), ([0], "one column")],
)
def test_wrong_answers(answer: list[int], word: str) -> None:
    jobs = [LONG, GangJob("b", 0.0, 10.0, 1, (1.0, 0.0))]
    with pytest.raises(UsageError, match=word):
        simulate(jobs, [1, 1], lambda moment: np.array(answer), move_cost_s=0)


@pytest.mark.parametrize(
    ("jobs", "word"),
    [
        ([], "without jobs"),
        ([LONG._replace(scale=2)], "wants 2 GPUs"),
        ([LONG._replace(throughput=(0.0, 0.0))], "none has them"),
        ([LONG._replace(throughput=(1.0,))], "1 throughputs"),
        ([LONG._replace(steps=0.0)], "above 0"),
        ([LONG._replace(arrival_s=1e20)], r"job a comes at 1e\+20 s .* must end by 1e\+10 s"),
        ([LONG._replace(steps=1e15, throughput=(1.0, 1e-9))], r"takes up to 1e\+24 s; it must end by"),
        ([LONG._replace(steps=float("inf"))], "takes up to inf s"),
    ],
)
def test_jobs_that_cannot_be_simulated(jobs: list[GangJob], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        simulate(jobs, [1, 1], pal_share_policy(), move_cost_s=0)


@pytest.mark.parametrize(("cost", "review"), [(-1.0, 10.0), (0.0, 0.0), (float("inf"), 1.0)])
def test_costs_that_mean_nothing(cost: float, review: float) -> None:
    with pytest.raises(UsageError, match="move cost"):
        simulate([LONG], [1, 1], pal_share_policy(), move_cost_s=cost, review_s=review)


def test_a_policy_that_starves_jobs_is_stopped() -> None:
    with pytest.raises(StarvedError, match="1 jobs"):
        simulate([LONG], [1, 1], lambda moment: np.array([-1]), move_cost_s=0)
