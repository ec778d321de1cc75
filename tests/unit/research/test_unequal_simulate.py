# SPDX-License-Identifier: MIT
"""The loop by hand: what a start, a move and a stop cost, when jobs end, and which answers are refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from slurm_pal.base.errors import UsageError
from slurm_pal.research.sia_rounds import PUBLISHED, PalSiaRounds, SiaRounds
from slurm_pal.research.unequal import Chosen, GangJob, Moment, StarvedError, pal_share_policy, simulate
from slurm_pal.research.unequal_places import Slots
from slurm_pal.simulate.hardware import hardware

MACHINE = hardware(
    {c: [[1.0, 1.0], [1.0, 2.0 if c == "A" else 1.1], [1.0, 1.0]] for c in ("A", "B", "C")},
    partitions={"slow": (0, 1), "fast": (2,)},
)
"""Two nodes of slow GPUs, one of which is slower still, above all for class A, and a node of fast ones."""


def test_a_gang_runs_at_its_slowest_gpu_and_pays_for_several_nodes() -> None:
    wide = GangJob("w", 0.0, 900.0, 4, (6.0, 0.0), sensitivity="A", locality_penalty=1.5)
    narrow = GangJob("n", 0.0, 90.0, 2, (0.0, 9.0), sensitivity="A", locality_penalty=1.5)
    found = simulate([wide, narrow], [4, 2], Script((0, [0, 1])), move_cost_s=50, machine=MACHINE)
    assert found.finish_s.tolist() == [450, 10]


def test_a_policy_may_name_the_gpus() -> None:
    """From the slow GPU of its node to a median one: a move like any other."""
    steps = {0.0: ((1, (1,)),), 100.0: ((0, (0,)),)}

    def policy(moment: Moment) -> Chosen:
        slots = steps[max(at_s for at_s in steps if at_s <= moment.now_s)]
        return Chosen(np.array([0]), np.array([1.0]), {0: slots})

    found = simulate([LONG._replace(throughput=(2.0, 1.0))], [4, 2], policy, move_cost_s=50, review_s=100,
                     machine=MACHINE)  # fmt: skip
    assert found.jct_s.tolist() == [100 + 50 + 450] and found.moves.tolist() == [1]


@pytest.mark.parametrize("slots", [((2, (0,)),), ((0, (0, 1)),)])
def test_gpus_that_are_not_what_the_column_and_the_number_say(slots: Slots) -> None:
    with pytest.raises(UsageError, match="for 1 GPUs of column 0"):
        simulate(
            [LONG], [4, 2], lambda moment: Chosen(np.array([0]), np.array([1.0]), {0: slots}), move_cost_s=0,
            machine=MACHINE,
        )  # fmt: skip


def test_pal_sia_gives_the_sensitive_job_the_good_gpus() -> None:
    """The insensitive gang takes the slow GPU, and goes on without it when the other job has ended: that pays."""
    jobs = [
        GangJob("c", 0.0, 4e4, 3, (1.0, 0.0), sensitivity="C"),
        GangJob("a", 0.0, 4e4, 1, (1.0, 0.0), sensitivity="A"),
    ]
    blind = simulate(jobs, [4, 2], SiaRounds(jobs), move_cost_s=50, machine=MACHINE)
    found = simulate(jobs, [4, 2], PalSiaRounds(jobs), move_cost_s=50, machine=MACHINE)
    assert found.jct_s[1] == 4e4 and found.moves.tolist() == [1, 0]
    assert found.jct_s[0] == pytest.approx(4e4 + 50 + (4e4 - 4e4 / 1.1))
    assert found.jct_s.sum() < blind.jct_s.sum()


def test_without_nodes_pal_sia_is_sia() -> None:
    jobs = [GangJob(str(k), 400.0 * k, 3000.0 + 500 * k, 1 + k % 2, (1.0 + k % 3, 1.0)) for k in range(12)]
    both = [
        simulate(jobs, [3, 3], policy, move_cost_s=60, review_s=60)
        for policy in (SiaRounds(jobs), PalSiaRounds(jobs, PUBLISHED))
    ]
    assert both[0].finish_s.tolist() == both[1].finish_s.tolist()


def test_an_elastic_job_grows_step_by_step_and_its_work_is_counted() -> None:
    """4 GPUs asked for, 1 to 8 possible: it begins with what it asks for at most, and doubles where there is room."""
    job = GangJob("e", 0.0, 36000.0, 4, (4.0, 0.0), sizes=((1, (1.0, 0.0)), (8, (8.0, 0.0))))
    sizes: list[float] = []
    policy = SiaRounds([job], PUBLISHED._replace(sizes=True))

    def watched(moment: Moment) -> Chosen:
        chosen = policy(moment)
        sizes.append(float(chosen.gpus[0]))
        return chosen

    found = simulate([job], [8, 1], watched, move_cost_s=60, review_s=60)
    assert sizes[0] == 4 and sizes[-1] == 8 and found.moves.tolist() == [1]
    grown_s = 60.0 * sizes.index(8.0)
    assert found.makespan_s == pytest.approx(grown_s + 60 + (36000 - 4 * grown_s) / 8)


def test_the_finish_time_ratio() -> None:
    """Alone on all GPUs a job is never unfair to itself; two that wait for each other are."""
    alone = simulate([LONG], [1, 0.0], Script((0, [0])), move_cost_s=0)
    assert alone.finish_time_ratio.tolist() == [1.0]
    twice = simulate([LONG, LONG._replace(id="b")], [1, 0.0], Script((0, [0, -1]), (500, [-1, 0])), move_cost_s=0,
                     review_s=500)  # fmt: skip
    assert twice.finish_time_ratio.tolist() == [0.5, 1.5]


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
