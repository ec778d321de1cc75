# SPDX-License-Identifier: MIT
"""Which running jobs one tick moves, and where to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.journal.journal import Move
from slurm_pal.journal.move_states import MoveStep
from slurm_pal.moves import planning
from slurm_pal.moves.booking import Bookings
from slurm_pal.moves.planning import MovePlan, MoveTerms, PlannedMove, Running, gpus_of, plan, to_move
from slurm_pal.moves.survey import Survey
from slurm_pal.moves.worth import MoveLimits, Planner, expected_left_s
from slurm_pal.placement.occupancy import Occupancy
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.slurm.topology import of_conf
from slurm_pal.store.snapshot import Snapshot

from ...doubles.plain_moves import plan_moves
from ...doubles.running_factory import HOUR_S, NOW_S, TERMS, job, node, overview, running, scores
from ...doubles.trials import trials
from .test_rebalance import cluster
from .test_rebalance import job as movable


def where(found: MovePlan) -> dict[int, str]:
    return {move.job_id: move.target_gpus for move in found.moves}


def why(found: MovePlan, job_id: int) -> str:
    return next(passed.why for passed in found.passed if passed.job_id == job_id)


def planned(
    table: dict[str, list[float]], jobs: list[Running], terms: MoveTerms = TERMS, **changes: object
) -> MovePlan:  # fmt: skip
    """The plan for a cluster of these slowdowns with these jobs on it."""
    nodes = [node(name, len(row)) for name, row in table.items()]
    seen = overview(nodes, [one.job for one in jobs], **changes)
    return plan(seen, scores(table), jobs, terms, NOW_S)


SLOW_AND_FAST = {"n0": [1.5, 1.5], "n1": [1.0, 1.0]}


# -- what is left, what it costs, what it gains ----------------------------------------------


def test_a_move_and_its_words() -> None:
    """Two hours left here are 4800 s on median GPUs: 2400 s gained."""
    found = planned(SLOW_AND_FAST, [running(job(7, {"n0": (0, 1)}, restarts=3), remaining_s=2 * HOUR_S)])
    assert found.passed == ()
    (move,) = found.moves
    assert (move.source, move.target, move.target_gpus) == ("n0:0,1", ("n1",), "n1:0,1")
    assert (move.before, move.after, move.cost_s) == (1.5, 1.0, 60.0)
    assert move.gain_s == pytest.approx(2400.0)
    assert move.why == "n0:0,1 at 1.50 -> n1:0,1 at 1.00: 2400 s gained of 7200 s left, for 60 s"
    row = to_move(move, NOW_S, "n9", "0.2")
    assert (row.move_id, row.job_id, row.user, row.restarts, row.made_s) == (0, 7, "u", 3, NOW_S)
    assert (row.own_req, row.ack, row.checkpoint, row.outcome) == ("n9", "0.2", True, "")
    assert (row.source, row.target, row.target_gpus, row.gain_s) == (move.source, ("n1",), "n1:0,1", move.gain_s)
    assert (row.step, row.step_s) == (MoveStep.PLANNED, NOW_S)


def test_without_progress_the_time_limit_tells_what_is_left() -> None:
    """Half of a day less two hours, here; a third less on median GPUs; half of that is gained."""
    (move,) = planned(SLOW_AND_FAST, [running(job(1, {"n0": (0,)}))]).moves
    assert move.gain_s == pytest.approx(10 * HOUR_S / 1.5 * 0.5)
    unlimited = job(1, {"n0": (0,)}, time_limit_s=None)
    (move,) = planned(SLOW_AND_FAST, [running(unlimited)], TERMS._replace(expected_run_s=3 * HOUR_S)).moves
    assert move.gain_s == pytest.approx(1 * HOUR_S / 1.5 * 0.5)
    outlived = planned(SLOW_AND_FAST, [running(unlimited)], TERMS._replace(expected_run_s=1.5 * HOUR_S))
    assert not outlived.moves


def test_nothing_is_gained_beyond_the_time_limit() -> None:
    """It says ten hours, and has one until its limit: 2400 s on median GPUs."""
    one = running(job(1, {"n0": (0,)}, time_limit_s=3 * 3600), remaining_s=10 * HOUR_S)
    (move,) = planned(SLOW_AND_FAST, [one]).moves
    assert move.gain_s == pytest.approx(1200.0)
    told_by_slurm = one._replace(job=one.job._replace(end_s=NOW_S + 2 * HOUR_S))
    (move,) = planned(SLOW_AND_FAST, [told_by_slurm]).moves
    assert move.gain_s == pytest.approx(2400.0)


@pytest.mark.parametrize(
    ("checkpoint", "lost_s", "ran_s", "cost_s"),
    [(True, 600.0, 7200.0, 60.0), (False, 600.0, 7200.0, 360.0), (False, 1e6, 7200.0, 7260.0), (False, 0, 7200, 60)],
)
def test_without_a_checkpoint_work_is_lost_but_no_more_than_was_done(
    checkpoint: bool, lost_s: float, ran_s: float, cost_s: float
) -> None:
    one = running(job(1, {"n0": (0,)}, start_s=NOW_S - ran_s), checkpoint=checkpoint, lost_s=lost_s)
    (move,) = planned(SLOW_AND_FAST, [one], TERMS._replace(margin=1.0)).moves
    assert (move.cost_s, move.checkpoint) == (cost_s, checkpoint)


def test_the_gain_must_exceed_the_cost_with_the_margin() -> None:
    """270 s on median GPUs: 135 s gained; 1.5 x 90 s are needed, and one second more is enough."""
    for remaining_s, moved in ((405.0, 0), (408.0, 1)):
        found = planned(
            SLOW_AND_FAST, [running(job(1, {"n0": (0,)}), remaining_s=remaining_s)], TERMS._replace(move_cost_s=90.0)
        )
        assert len(found.moves) == moved
        if not moved:
            assert why(found, 1) == "no free GPUs would save it 135 s, the least for a move"


def test_predictions_that_were_too_high_before_lower_the_appetite() -> None:
    one = running(job(1, {"n0": (0,)}), remaining_s=3 * HOUR_S)
    (move,) = planned(SLOW_AND_FAST, [one], TERMS._replace(calibration=0.5)).moves
    assert move.gain_s == pytest.approx(1800.0) and "of 10800 s left" in move.why
    assert not planned(SLOW_AND_FAST, [one], TERMS._replace(calibration=0.0)).moves


def test_expected_time_left() -> None:
    """Shared with the simulator: a share of the limit, then the same share of what is left of it."""
    assert expected_left_s(1000.0, 0.5, 100.0, 900.0, 1.0) == 400.0
    assert expected_left_s(1000.0, 0.5, 100.0, 900.0, 2.0) == 200.0
    assert expected_left_s(1000.0, 0.5, 100.0, 900.0, 0.8) == 400.0
    assert expected_left_s(1000.0, 0.5, 600.0, 400.0, 1.0) == 200.0
    assert expected_left_s(1000.0, 0.5, 1100.0, -100.0, 1.0) == 0.0


# -- who is not moved ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"start_s": NOW_S - 599.0}, "it has run 599 s where it is, at least 600 s are needed"),
        ({"state": "SUSPENDED"}, "it is SUSPENDED"),
        ({"time_limit_s": 7200 + 899}, "it is 899 s from its time limit, at least 900 s are needed"),
        ({"end_s": NOW_S + 20.0}, "it is 20 s from its time limit, at least 900 s are needed"),
    ],
)
def test_a_job_in_a_bad_moment_stays(changes: dict[str, object], text: str) -> None:
    found = planned(SLOW_AND_FAST, [running(job(1, {"n0": (0,)}, **changes))])
    assert not found.moves and why(found, 1) == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"moves": 5}, "it was moved 5 times, at most 5 are allowed"),
        ({"last_move_s": NOW_S - 10.0}, "it has run 10 s where it is, at least 600 s are needed"),
    ],
)
def test_a_job_that_was_moved_before_rests(changes: dict[str, object], text: str) -> None:
    found = planned(SLOW_AND_FAST, [running(job(1, {"n0": (0,)}), **changes)])
    assert not found.moves and why(found, 1) == text


def test_a_request_that_cannot_be_read_stays() -> None:
    found = planned(
        SLOW_AND_FAST,
        [
            running(job(1, {"n0": (0,)}), "--gpus=1 --contiguous"),
            running(job(2, {"n0": (1,)}), "--ntasks=1"),
        ],
    )
    assert not found.moves
    assert why(found, 1) == "where it may go is not known: --contiguous: Slurm weighs the order of nodes"
    assert why(found, 2) == "where it may go is not known: it asks for no GPU"


@pytest.mark.parametrize("words", ["--gpus=3", "--gpus-per-node=1", "--nodes=2 --gpus=2", "--nodes=2-3 --gpus=2"])
def test_a_job_that_holds_other_gpus_than_it_asked_for_stays(words: str) -> None:
    found = planned(SLOW_AND_FAST, [running(job(1, {"n0": (0, 1)}), words)])
    assert not found.moves and why(found, 1) == "it does not hold the GPUs that its request asks for"


def test_a_job_that_the_survey_cannot_place_stays_with_its_reason() -> None:
    found = planned(SLOW_AND_FAST, [running(job(1, {"n0": (0,)}), "--gpus=1 --reservation=r")])
    assert why(found, 1) == "reservation r is not known"


def test_limits_of_a_tick_and_of_a_user() -> None:
    table = {"n0": [1.5] * 8, "n1": [1.0] * 8}
    jobs = [running(job(k, {"n0": (k,)}, user=f"u{k % 2}")) for k in range(8)]
    for per_tick, per_user, moved in ((3, 9, 3), (9, 2, 4), (0, 9, 0), (9, 0, 0)):
        found = planned(table, jobs, TERMS._replace(per_tick=per_tick, per_user=per_user))
        assert len(found.moves) == moved and len(found.passed) == 8 - moved
    found = planned(table, jobs, TERMS._replace(in_flight={"u0": 1, "u9": 5}))
    assert sorted(move.user for move in found.moves) == ["u0", "u1", "u1"]
    assert "2 moves of jobs of u0 are under way or planned, at most 2 are allowed" in why(found, 6)


def test_users_take_turns_and_each_ones_best_goes_first() -> None:
    """u has most to gain and has three jobs; v, with less, is not kept waiting."""
    table = {"n0": [1.5] * 4, "n1": [1.0] * 4}
    jobs = [
        running(job(1, {"n0": (0,)}), remaining_s=5 * HOUR_S),
        running(job(2, {"n0": (1,)}), remaining_s=9 * HOUR_S),
        running(job(3, {"n0": (2,)}), remaining_s=7 * HOUR_S),
        running(job(4, {"n0": (3,)}, user="v"), remaining_s=1 * HOUR_S),
    ]
    for per_tick, ids in ((1, {2}), (2, {2, 4}), (3, {2, 3, 4})):
        assert set(where(planned(table, jobs, TERMS._replace(per_tick=per_tick, per_user=9)))) == ids
    under_way = TERMS._replace(per_tick=1, per_user=9, in_flight={"u": 1})
    assert set(where(planned(table, jobs, under_way))) == {4}


# -- where jobs go ---------------------------------------------------------------------------


def test_a_target_is_free_now_and_not_what_another_move_will_give_up() -> None:
    """The first goes to the only free GPU. The simulator then sends the second to the place of the first."""
    table = {"n0": [1.2], "n1": [1.5], "n2": [1.0]}
    first = running(job(1, {"n0": (0,)}), remaining_s=20 * HOUR_S)
    second = running(job(2, {"n1": (0,)}), remaining_s=1 * HOUR_S)
    found = planned(table, [first, second])
    assert where(found) == {1: "n2:0"}
    assert why(found, 2) == "no free GPUs would save it 90 s, the least for a move"
    occupancy = cluster([1.2], [1.5], [1.0])
    waiting = [movable(occupancy, "2", [(1, (0,))]), movable(occupancy, "1", [(0, (0,))], remaining_s=9e4)]
    for chained, moved in ((True, {"1", "2"}), (False, {"1"})):
        moves = plan_moves(occupancy, "class-fit", waiting, MoveLimits(chained=chained))
        assert {move.job_id for move in moves} == moved
        assert occupancy.free_gpus == 1 and occupancy.free_indexes(2) == {0}


def test_nobody_goes_where_another_is_about_to_leave() -> None:
    """n0:1 is good for 2, but if 1 has left n0:0 by then, Slurm hands out that one."""
    table = {"n0": [1.5, 1.0], "n1": [1.3, 1.5], "n2": [1.0, 1.4]}
    first = running(job(1, {"n0": (0,)}), remaining_s=20 * HOUR_S)
    second, third = running(job(2, {"n1": (0,)}), remaining_s=2 * HOUR_S), running(job(3, {"n2": (1,)}))
    jobs = [first, second, third, running(job(4, {"n1": (1,)}), moves=9)]
    found = planned(table, jobs, TERMS._replace(per_user=9, barred_slowdown=1.35))
    assert where(found)[1] == "n2:0"
    assert why(found, 2).endswith("but another move comes or goes at n0")
    assert why(found, 3).endswith("but another move comes or goes at n0,n2")


def open_move(job_id: int, source: str, target_gpus: str) -> Move:
    at = PlannedMove(job_id, "v", 0, source, tuple(gpus_of(target_gpus)), target_gpus, 1.5, 1.0, 1e3, 60.0, True, "")
    return to_move(at, NOW_S, "", "")


@pytest.mark.parametrize(("source", "target"), [("n2:0", "n1:0"), ("n1:1 gone:0", "n2:0"), ("n2:0", "n0:1")])
def test_a_node_of_a_move_under_way_is_left_alone(source: str, target: str) -> None:
    """Job 8 may still make its checkpoint: who comes or goes first on n0 or n1 is open."""
    table = {"n0": [1.5], "n1": [1.0, 1.2], "n2": [1.5, 1.5]}
    one = running(job(1, {"n0": (0,)}))
    assert where(planned(table, [one])) == {1: "n1:0"}
    found = planned(table, [one], TERMS._replace(open_moves=(open_move(8, source, target),)))
    assert not found.moves
    assert why(found, 1).endswith(f"but another move comes or goes at {'n0' if 'n0' in target else 'n1'}")


@pytest.mark.parametrize(("last", "moved"), [(1.2, {1, 2}), (1.45, {1})])
def test_two_jobs_go_to_one_node_only_if_either_may_come_first(last: float, moved: set[int]) -> None:
    """1, whose turn it is, is to have n1:0. Should 2 come first, 1 gets the last GPU, and that must pay, too."""
    table = {"n0": [1.5, 1.6], "n1": [1.0, last]}
    first = running(job(1, {"n0": (0,)}, user="v"), remaining_s=900.0)
    second = running(job(2, {"n0": (1,)}), remaining_s=9 * HOUR_S)
    found = planned(table, [first, second], TERMS._replace(in_flight={"u": 1}, barred_slowdown=1.46))
    assert set(where(found)) == moved
    if 2 not in moved:
        assert why(found, 2).endswith("but another move comes or goes at n1")


def test_on_its_own_node_a_job_gets_the_lowest_indexes() -> None:
    """n0:0,1 became free: a requeue leads there, whichever GPUs of the node it is after."""
    found = planned({"n0": [1.0, 1.0, 1.5, 1.5]}, [running(job(1, {"n0": (2, 3)}))])
    assert where(found) == {1: "n0:0,1"}
    assert not planned({"n0": [1.5, 1.5, 1.0, 1.0]}, [running(job(1, {"n0": (0, 1)}))]).moves


def test_what_the_job_measured_counts_for_its_own_gpus() -> None:
    """Believed median, found slow: it leaves its node, though that is where the rule would start it."""
    table = {"n0": [1.0, 1.0], "n1": [1.0, 1.0, 1.0]}
    one = running(job(1, {"n0": (0, 1)}), factor=1.4)
    (move,) = planned(table, [one]).moves
    assert (move.target_gpus, move.before, move.after) == ("n1:0,1", 1.4, 1.0)
    for factor in (None, 1.0, 0.9):
        assert not planned(table, [one._replace(factor=factor)]).moves
    assert not planned(table, [one._replace(factor=1.04)]).moves, "below the bar the rule may still prefer its own node"
    fine = running(job(1, {"n0": (0, 1)}), factor=1.0)
    assert not planned({**table, "n0": [1.5, 1.5]}, [fine]).moves, "believed slow, found well"


def test_no_gain_is_counted_for_gpus_that_the_job_keeps() -> None:
    """Spread over n0 and n1 it found a factor of 1.75 (believed 1.7): a new second half may not mend that."""
    table = {"n0": [1.0], "n1": [1.0, 1.0], "n2": [1.0]}
    one = running(job(1, {"n0": (0,), "n1": (1,)}), "--nodes=2 --gpus-per-node=1", factor=1.75)
    assert not planned(table, [one], TERMS._replace(barred_slowdown=1.2)).moves


def test_a_job_keeps_its_number_of_nodes_unless_its_request_leaves_it_open() -> None:
    table = {"n0": [1.0] * 2, "n1": [1.0] * 2, "n2": [1.0] * 4}
    spread = job(1, {"n0": (0, 1), "n1": (0, 1)})
    for words, target in (
        ("--gpus=4", "n2:0,1,2,3"), ("--nodes=1-2 --gpus=4", "n2:0,1,2,3"), ("--nodes=2 --gpus=4", None),
        ("--nodes=2 --gpus-per-node=2", None), ("--nodes=2-3 --gpus=4", None), ("--gpus=4 --ntasks=4 -c5", None),
    ):  # fmt: skip
        found = planned(table, [running(spread, words)])
        assert where(found) == ({1: target} if target else {}), words


def test_a_job_of_several_nodes_goes_to_as_many() -> None:
    table = {"n0": [1.5] * 2, "n1": [1.0] * 2, "n2": [1.0] * 2}
    one = running(job(1, {"n0": (0, 1), "n1": (0, 1)}), "--nodes=2 --gpus-per-node=2")
    (move,) = planned(table, [one]).moves
    assert (move.target, move.target_gpus) == (("n1", "n2"), "n1:0,1 n2:0,1")
    assert (move.before, move.after) == pytest.approx((1.5 * 1.7, 1.7))


def test_a_job_with_nodes_of_its_own_counts_all_their_gpus() -> None:
    table = {"n0": [1.0, 1.5], "n1": [1.2, 1.0], "n2": [1.0, 1.0]}
    one = running(job(1, {"n0": (0, 1)}), "--nodes=1 --gpus-per-node=1 --exclusive")
    (move,) = planned(table, [one]).moves
    assert (move.target_gpus, move.before, move.after) == ("n2:0,1", 1.5, 1.0)


def test_two_moves_do_not_overfill_the_cpus_of_a_node() -> None:
    """n1 has room for one job of nine CPUs; the second finds none."""
    table = {"n0": [1.5], "n1": [1.0] * 4, "n2": [1.5]}
    jobs = [running(job(k + 1, {f"n{2 * k}": (0,)}), "--gpus=1 --cpus-per-task=9") for k in range(2)]
    assert len(planned(table, jobs).moves) == 1
    jobs = [one._replace(request=one.request._replace(cpus_per_task=8)) for one in jobs]
    assert where(planned(table, jobs)) == {1: "n1:0", 2: "n1:1"}
    jobs = [one._replace(request=one.request._replace(mem_per_node_mib=32001)) for one in jobs]
    assert len(planned(table, jobs).moves) == 1


# -- as few moves as can be ------------------------------------------------------------------


def chain(move_cost_s: float, user: str = "u", **changes: object) -> MovePlan:
    """The rule packs 1 onto n3 (1.20) and sends 2 to n2 (1.00): 1872 s. Or 1 goes to n2, and 2 stays: 1800 s."""
    table = {"n0": [1.5], "n1": [1.22], "n2": [1.0, 1.0], "n3": [1.2]}
    first = running(job(1, {"n0": (0,)}), remaining_s=1.5 * HOUR_S)
    second = running(job(2, {"n1": (0,)}, user=user), remaining_s=1.22 * HOUR_S, **changes)
    return planned(table, [first, second], TERMS._replace(move_cost_s=move_cost_s, barred_slowdown=1.21))


def test_a_move_that_makes_little_more_of_the_gpus_than_it_costs_is_dropped() -> None:
    assert where(chain(30.0)) == {1: "n3:0", 2: "n2:0"}
    found = chain(90.0)
    assert where(found) == {1: "n2:0"}
    assert why(found, 2) == "792 s gained if it moved, but job 1 alone makes as much of these GPUs"


def test_a_move_may_leave_a_better_place_to_the_next_job() -> None:
    """Alone the rule would pack 2 onto n3, too, which does not pay (72 s); once 1 is there, n2 is left."""
    assert where(chain(60.0)) == {1: "n3:0", 2: "n2:0"}


def test_jobs_of_different_classes_do_not_stand_in_for_each_other() -> None:
    assert where(chain(90.0, sensitivity="?")) == {1: "n3:0", 2: "n2:0"}


def test_nobody_stands_in_on_a_node_where_the_other_job_stays() -> None:
    """2 is gathered on n1, beside the GPU that it has there. To 1 both would be worth more, were they free."""
    table = {"n0": [1.0], "n1": [1.0, 1.0], "n2": [1.0], "n3": [1.0], "n4": [1.1, 1.1, 1.0]}
    first = running(job(1, {"n0": (0,), "n3": (0,)}), "--gpus=2", remaining_s=9 * HOUR_S)
    second = running(job(2, {"n1": (1,), "n2": (0,)}), "--gpus=2", remaining_s=600.0)
    terms = TERMS._replace(margin=1.0, move_cost_s=200.0, barred_slowdown=1.2)
    assert where(planned(table, [first, second], terms)) == {1: "n4:0,1", 2: "n1:0,1"}


def test_nobody_stands_in_on_gpus_that_slurm_would_not_hand_out() -> None:
    """Without 2 on n2:1, which is better, 1 would still be given n2:0."""
    table = {"n0": [1.5], "n1": [1.5], "n2": [1.2, 1.0]}
    first = running(job(1, {"n0": (0,)}), remaining_s=9 * HOUR_S)
    second = running(job(2, {"n1": (0,)}), remaining_s=1200.0)
    found = planned(table, [first, second], TERMS._replace(barred_slowdown=1.3))
    assert where(found) == {1: "n2:0", 2: "n2:1"}


def test_nobody_stands_in_and_upsets_what_a_third_job_expects() -> None:
    """As in the chain 1 could go to n2 instead of 2. But then 3 would be given n3:0, not n3:1."""
    table = {"n0": [1.5], "n1": [1.22], "n2": [1.0] * 4, "n3": [1.2, 1.2], "n4": [1.5]}
    first = running(job(1, {"n0": (0,)}), remaining_s=1.5 * HOUR_S)
    second = running(job(2, {"n1": (0,)}), remaining_s=1.22 * HOUR_S)
    third = running(job(3, {"n4": (0,)}, user="v"), remaining_s=1.4 * HOUR_S)
    found = planned(table, [first, second, third], TERMS._replace(move_cost_s=90.0, barred_slowdown=1.21))
    assert where(found) == {1: "n3:0", 2: "n2:0", 3: "n3:1"}


def test_nobodys_gain_is_given_to_another_user() -> None:
    assert where(chain(90.0, user="v")) == {1: "n3:0", 2: "n2:0"}


def test_keeping_a_job_off_a_node_that_is_down_does_not_open_it() -> None:
    occupancy = cluster([1.0, 1.0], [1.0])
    one = movable(occupancy, "1", [(0, (0,))], factor=1.5)
    occupancy.set_down(0, True)
    placed = Planner(occupancy, "class-fit", MoveLimits()).attempt(one, {0})
    assert placed is not None and placed.nodes == (1,)
    assert (occupancy.free(0), occupancy.free_gpus) == (0, 1)


# -- whatever comes --------------------------------------------------------------------------

SLOW, FAST = st.sampled_from((1.1, 1.3, 1.4, 1.6)), st.sampled_from((0.9, 1.0, 1.1))
STATES = st.sampled_from(("MIXED",) * 9 + ("DRAIN", "PLANNED"))
Case = tuple[Overview, Snapshot, list[Running], MoveTerms]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Slow nodes with jobs of one or two nodes, fast ones with few jobs; some nodes out of use, CPUs tight."""
    table, owners = {}, {}
    for i in range(draw(st.integers(3, 8), label="nodes")):
        slow, size = i % 2 == 0, draw(st.integers(1, 4))
        table[f"n{i}"] = draw(st.lists(SLOW if slow else FAST, min_size=size, max_size=size))
        whose = st.sampled_from((1, 2, 3, 4, 5, 6, 0) if slow else (0, 0, 0, 1, 2, 7))
        owners[f"n{i}"] = draw(st.lists(whose, min_size=size, max_size=size))
    cpus = st.sampled_from(draw(st.sampled_from(((1,), (1, 6), (4, 5))), label="CPUs of a task"))
    jobs = []
    for number in range(1, 8):
        held = [(n, [k for k, owner in enumerate(row) if owner == number]) for n, row in owners.items()]
        gpus = dict([pair for pair in held if pair[1]][:2])
        if gpus:
            one = job(
                number, gpus, user=f"u{number % 2}", start_s=NOW_S - draw(st.sampled_from((7200.0,) * 5 + (60.0,)))
            )
            jobs.append(running(
                one, f"--gpus={sum(map(len, gpus.values()))} --cpus-per-task={draw(cpus)}",
                sensitivity=draw(st.sampled_from("AAAABC?")), checkpoint=draw(st.booleans()),
                moves=draw(st.sampled_from((0,) * 5 + (5,))), factor=draw(st.sampled_from((None,) * 4 + (1.0, 1.3))),
                remaining_s=draw(st.sampled_from((None, 5e3, 5e4, 6e4))),
            ))  # fmt: skip
    nodes = [node(name, len(row), states=frozenset({draw(STATES)})) for name, row in table.items()]
    terms = TERMS._replace(
        policy=draw(st.sampled_from(("class-fit", "class-fit", "packed", "pal"))),
        barred_slowdown=draw(st.sampled_from((1.05, 1.35))), per_tick=draw(st.integers(1, 6)),
        per_user=draw(st.integers(1, 4)), in_flight={"u0": draw(st.integers(0, 1))},
        calibration=draw(st.sampled_from((0.5, 1.0))), move_cost_s=draw(st.sampled_from((60.0, 600.0))),
    )  # fmt: skip
    return overview(nodes, [one.job for one in jobs]), scores(table), jobs, terms


def slots(text: str) -> set[tuple[str, int]]:
    return {(name, k) for name, indexes in gpus_of(text).items() for k in indexes}


@trials(250)
@given(cases())
def test_a_plan_keeps_to_its_limits_and_to_what_is_free(case: Case) -> None:
    seen, snapshot, jobs, terms = case
    found = plan(seen, snapshot, jobs, terms, NOW_S)
    by_id, nodes = {one.job.job_id: one for one in jobs}, {one.name: one for one in seen.nodes}
    assert sorted([m.job_id for m in found.moves] + [p.job_id for p in found.passed]) == sorted(by_id)
    assert all(passed.why for passed in found.passed) and len(found.moves) <= terms.per_tick
    for user in ("u0", "u1"):
        new = sum(move.user == user for move in found.moves)
        assert new == 0 or new + terms.in_flight.get(user, 0) <= terms.per_user
    taken = {(name, k) for one in seen.jobs for name, indexes in one.gpus.items() for k in indexes}
    for move in found.moves:
        one, target, source = by_id[move.job_id], slots(move.target_gpus), slots(move.source)
        assert one.job.start_s <= NOW_S - terms.minimum_s and one.moves < terms.per_job
        assert move.gain_s > terms.margin * move.cost_s and move.after < move.before
        assert len(target) == len(source) and set(move.target) == {name for name, _ in target}
        assert not (target - source) & taken, "in use, by a job or by another move"
        taken |= target
        for name in move.target:
            assert usable(nodes[name].states) and "PLANNED" not in nodes[name].states
        for other in found.moves:
            assert other is move or not set(move.target) & set(gpus_of(other.source)), "nobody leaves a target"


@trials(200)
@given(cases())
def test_those_that_come_to_a_node_expect_its_lowest_indexes_and_whichever_each_gets_pays(case: Case) -> None:
    seen, snapshot, jobs, terms = case
    moves = plan(seen, snapshot, jobs, terms, NOW_S).moves
    by_id = {one.job.job_id: one for one in jobs}
    for one in seen.nodes:
        coming = [move for move in moves if one.name in move.target]
        expected = sorted(k for move in coming for name, k in slots(move.target_gpus) if name == one.name)
        held = {k for other in seen.jobs for k in other.gpus.get(one.name, ())}
        held -= {k for move in coming for name, k in slots(move.source) if name == one.name}
        assert expected == [k for k in range(one.n_gpus) if k not in held][: len(expected)]
        for move in coming if len(coming) > 1 else ():
            c = by_id[move.job_id].sensitivity.replace("?", "A")
            worst = max(snapshot.slowdown(c, one.name, k) or 1.0 for k in expected)
            locality = terms.locality_penalty if len(move.target) > 1 else 1.0
            left_s = move.gain_s / (move.before - move.after)
            assert left_s * (move.before - max(move.after, worst * locality)) > terms.margin * move.cost_s - 1e-6


@trials(150)
@given(cases())
def test_cpus_suffice_for_all_that_come(case: Case) -> None:
    """Even before anybody has left, but for a job's own node, where it was before."""
    seen, snapshot, jobs, terms = case
    by_id = {one.job.job_id: one for one in jobs}
    used = {one.name: one.cpus_used for one in seen.nodes}
    for move in plan(seen, snapshot, jobs, terms, NOW_S).moves:
        for name in set(move.target) - set(gpus_of(move.source)):
            used[name] += by_id[move.job_id].request.cpus_per_task
    assert all(used[one.name] <= max(one.cpus, one.cpus_used) for one in seen.nodes)


@trials(150)
@given(cases())
def test_no_job_could_make_up_for_another_ones_move(case: Case) -> None:
    """Of two planned jobs that may be exchanged, neither does as well alone, going where the other goes."""
    seen, snapshot, jobs, terms = case
    moves = plan(seen, snapshot, jobs, terms, NOW_S).moves
    kind = {one.job.job_id: (one.job.user, one.request, one.sensitivity, len(one.job.gpus)) for one in jobs}
    for one in moves:
        for other in moves:
            alike = kind[one.job_id] == kind[other.job_id] and len(one.target) == len(other.target)
            mixed = set(one.target) & {*gpus_of(one.source), *gpus_of(other.source)}
            if one is other or not alike or mixed:
                continue
            left_s = other.gain_s / (other.before - other.after)
            alone_s = left_s * (other.before - one.after) - other.cost_s
            both_s = one.gain_s - one.cost_s + other.gain_s - other.cost_s
            pays = left_s * (other.before - one.after) > terms.margin * other.cost_s
            assert not pays or alone_s < both_s or math.isclose(alone_s, both_s)


@trials(100)
@given(cases(), st.data())
def test_a_plan_leaves_everything_as_it_was(case: Case, data: st.DataObject) -> None:
    """The occupancy afterwards is the one before, and the same question has the same answer."""
    seen, snapshot, jobs, terms = case
    made: list[tuple[Occupancy, list[frozenset[int]]]] = []

    class Kept(Survey):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            occupancy = self.occupancy
            made.append((occupancy, [occupancy.free_indexes(i) for i in range(len(seen.nodes))]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "Survey", Kept)
        first = plan(seen, snapshot, jobs, terms, NOW_S)
    ((occupancy, before),) = made
    assert [occupancy.free_indexes(i) for i in range(len(seen.nodes))] == before
    assert occupancy.free_gpus == sum(map(len, before))
    shuffled = data.draw(st.permutations(jobs))
    again = plan(seen, snapshot, shuffled, terms, NOW_S)
    assert again.moves == first.moves and set(again.passed) == set(first.passed)


def test_bookings_can_be_taken_back_one_by_one() -> None:
    table = {"n0": [1.5], "n1": [1.0, 1.0]}
    one = running(job(1, {"n0": (0,)}))
    seen = overview([node("n0", 1), node("n1", 2)], [one.job])
    kept: list[Bookings] = []

    class Kept(Bookings):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "Bookings", Kept)
        plan(seen, scores(table), [one], TERMS, NOW_S)
    (bookings,) = kept
    found = bookings.moves.pop(1)
    bookings.book(found)
    assert bookings.unbook(1) == found
    bookings.book(found)
    bookings.undo()
    assert bookings.best([found.way]) == found


# -- totals of GPUs ------------------------------------------------------------------------------


def test_a_spread_total_goes_to_one_node_or_stays() -> None:
    table = {"n0": [1.0] * 2, "n1": [1.0] * 2, "n2": [1.0] * 4}
    spread = job(1, {"n0": (0, 1), "n1": (0, 1)})
    for words in ("--gpus=4", "--gpus=4 --nodes=1-4"):
        assert where(planned(table, [running(spread, words)])) == {1: "n2:0,1,2,3"}
    found = planned(table, [running(spread, "--gpus=4 --nodes=2-4")])
    assert not found.moves and why(found, 1) == "its GPUs may not be on one node, or do not fit there"


def test_no_spread_job_gives_its_gpus_up_to_those_that_wait_for_nodes() -> None:
    """Its place would be theirs before it starts again. A job on one node may move as ever."""
    table = {"n0": [1.0] * 2, "n1": [1.0] * 2, "n2": [1.0] * 4}
    spread = running(job(1, {"n0": (0, 1), "n1": (0, 1)}), "--gpus=4")
    found = planned(table, [spread], TERMS._replace(wanted=frozenset({"gpu"})))
    assert not found.moves and why(found, 1).startswith("jobs wait for nodes of its partition")
    assert planned(table, [spread], TERMS._replace(wanted=frozenset({"other"}))).moves
    whole = running(job(1, {"n0": (0, 1)}), "--gpus=2")
    assert planned(SLOW_AND_FAST, [whole], TERMS._replace(wanted=frozenset({"gpu"}))).moves


def test_a_total_that_no_node_holds_is_not_moved_from_nodes_to_nodes() -> None:
    """Which of them gets how many is Slurm's choice; and on two nodes it runs no faster than on three."""
    table = {"n0": [1.5] * 4, "n1": [1.5] * 4, "n2": [1.0] * 4, "n3": [1.0] * 4}
    found = planned(table, [running(job(1, {"n0": (0, 1, 2), "n1": (0, 1, 2)}), "--gpus=6")])
    assert not found.moves and why(found, 1) == "its GPUs may not be on one node, or do not fit there"


# -- the network ------------------------------------------------------------------------------

LEAVES = of_conf(
    "SwitchName=a Nodes=n[0-2]\nSwitchName=b Nodes=n[3-5]\nSwitchName=c Switches=a,b\n", [f"n{k}" for k in range(6)]
)
EVEN = {f"n{k}": [1.0, 1.0] for k in range(6)}
APART = running(job(7, {"n0": (0,), "n3": (0,)}), remaining_s=1.8 * HOUR_S)


def test_a_job_on_two_leaves_goes_where_one_has_room() -> None:
    terms = TERMS._replace(locality=(1.2, 1.8))
    (move,) = planned(EVEN, [APART], terms, network=LEAVES).moves
    assert LEAVES.level(move.target) == 1 and (move.before, move.after) == (1.8, 1.2)
    assert move.gain_s == pytest.approx(HOUR_S * 0.6)
    assert not planned(EVEN, [APART], TERMS, network=LEAVES).moves, "by one factor for all levels nothing is gained"


def test_the_penalties_of_its_own_work_count_before_the_sites() -> None:
    cheap = APART._replace(locality=(1.01, 1.02))
    assert not planned(EVEN, [cheap], TERMS._replace(locality=(1.2, 1.8)), network=LEAVES).moves
    dear = APART._replace(locality=(1.2, 2.0))
    (move,) = planned(EVEN, [dear], TERMS, network=LEAVES).moves
    assert (move.before, move.after) == (2.0, 1.2)


def test_a_leaf_without_room_is_no_target() -> None:
    taken = [running(job(k, {f"n{k}": (0, 1)}), moves=9) for k in (1, 2, 4, 5)]
    found = planned(EVEN, [APART, *taken], TERMS._replace(locality=(1.2, 1.8)), network=LEAVES)
    assert not found.moves


def test_on_a_flat_network_farther_levels_mean_nothing() -> None:
    far = TERMS._replace(locality=(1.7, 5.0, 9.0))
    jobs = [APART._replace(factor=2.6), running(job(8, {"n1": (0,)}), factor=1.4)]
    assert planned(EVEN, jobs, far) == planned(EVEN, jobs, TERMS) and planned(EVEN, jobs).moves
