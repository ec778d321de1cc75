# SPDX-License-Identifier: MIT
"""How long a new job is expected to wait: the queue played through with the times that jobs are expected to take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.decide.waits import Expects, Holding, Waiting, expected_wait_s, pool

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
