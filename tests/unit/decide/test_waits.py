# SPDX-License-Identifier: MIT
"""How long a new job is expected to wait: the queue played through with the times that jobs are expected to take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.decide.waits import Expects, Holding, NodeRoom, Waiting, expected_wait_s, pool, rooms, starts_now

from ...doubles.partition_site import NOW_S, overview, running

EXPECTS = Expects(0.5, 3600.0)
HOLDINGS = st.lists(st.builds(Holding, st.integers(1, 4), st.floats(0, 1e5), st.floats(0, 1e5)), max_size=8)
QUEUE = st.lists(st.builds(Waiting, st.integers(0, 8), st.floats(0, 1e5)), max_size=8)


def test_the_first_that_end_make_room() -> None:
    held = [Holding(2, 600.0, 7200.0), Holding(2, 0.0, 7200.0)]
    assert expected_wait_s(1, 1, held, [], EXPECTS) == 0.0
    assert expected_wait_s(2, 1, held, [], EXPECTS) == 3000.0
    assert expected_wait_s(4, 0, held, [], EXPECTS) == 3600.0
    assert expected_wait_s(5, 0, held, [], EXPECTS) == float("inf")
    assert expected_wait_s(2, 0, held, [Waiting(2, 7200.0)], EXPECTS) == 3600.0
    assert expected_wait_s(1, 4, [], [Waiting(4, 0.0)], EXPECTS) == 3600.0  # without a limit


def test_a_job_that_outlives_what_was_expected_still_runs_a_while() -> None:
    assert expected_wait_s(1, 0, [Holding(1, 5000.0, 7200.0)], [], EXPECTS) == 1000.0
    assert expected_wait_s(1, 0, [Holding(1, 7100.0, 7200.0)], [], EXPECTS) == 100.0  # its limit ends it


@given(st.integers(1, 4), st.integers(0, 4), HOLDINGS, QUEUE)
def test_nobody_waits_less_behind_more(gpus: int, free: int, held: list[Holding], ahead: list[Waiting]) -> None:
    alone = expected_wait_s(gpus, free, held, [], EXPECTS)
    behind = expected_wait_s(gpus, free, held, ahead, EXPECTS)
    assert 0.0 <= alone <= behind and expected_wait_s(gpus, free + 1, held, [], EXPECTS) <= alone


def test_the_pool_of_a_partition() -> None:
    seen = overview(running(1, "fast", {"f0": (0, 1)}), running(2, "slow", {"s0": (0,)}))
    free, held = pool(seen, "fast", NOW_S)
    assert free == 2 and held == [Holding(2, 600.0, 7200.0)]


INF = float("inf")
PARTLY = {"a": NodeRoom(1, [(500.0, 3)]), "b": NodeRoom(2, [(100.0, 1), (90.0, 1)]), "c": NodeRoom(0, [(10.0, 4)])}


def test_a_small_job_starts_on_a_node_that_nobody_ahead_is_planned_to_take() -> None:
    whole = Waiting(4, 3600.0)
    assert starts_now(1, 1, PARTLY, [])
    assert starts_now(1, 1, PARTLY, [whole]), "it is planned for c, which is ready first"
    assert starts_now(1, 1, PARTLY, [whole, whole]), "the second one for b"
    assert not starts_now(2, 1, PARTLY, [whole, whole]) and not starts_now(1, 1, PARTLY, [whole] * 3)
    assert not starts_now(3, 1, PARTLY, []) and not starts_now(2, 2, PARTLY, [Waiting(8, 3600.0, 2)])
    assert starts_now(2, 2, PARTLY, [])


def test_a_job_ahead_that_fits_now_takes_what_it_needs() -> None:
    assert not starts_now(2, 1, PARTLY, [Waiting(2, 60.0)])
    assert starts_now(1, 1, PARTLY, [Waiting(2, 60.0)]) and starts_now(2, 1, PARTLY, [Waiting(1, 60.0)])
    assert starts_now(2, 1, PARTLY, [Waiting(0, 60.0)]), "a job without GPUs takes none"


def test_a_node_without_an_end_in_sight_is_planned_for_nobody() -> None:
    assert starts_now(1, 1, {"a": NodeRoom(1, [(INF, 3)])}, [Waiting(4, 0.0)] * 9)
    assert not starts_now(1, 1, {}, []) and NodeRoom(0, ()).ready_s(1) == INF


SIZES = st.sampled_from([1, 2, 4])
ROOMS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(NodeRoom, st.integers(0, 2), st.lists(st.tuples(st.floats(0, 1e6), SIZES), max_size=2)),
)


@given(SIZES, ROOMS, st.lists(st.builds(Waiting, SIZES, st.floats(0, 1e6), st.integers(1, 2)), max_size=8))
def test_what_is_full_starts_nothing_and_more_ahead_helps_nobody(
    gpus: int, room: dict[str, NodeRoom], ahead: list[Waiting]
) -> None:
    found = starts_now(gpus, 1, room, ahead)
    assert not found or (any(one.free >= gpus for one in room.values()) and starts_now(gpus, 1, room, ahead[:-1]))


def test_the_rooms_of_a_partition() -> None:
    seen = overview(running(1, "fast", {"f0": (0, 1)}), running(2, "slow", {"s0": (0,)}))
    assert rooms(seen, "fast", NOW_S) == {"f0": NodeRoom(0, [(6600.0, 2)]), "f1": NodeRoom(2)}
    assert rooms(seen, "none", NOW_S) == {}
