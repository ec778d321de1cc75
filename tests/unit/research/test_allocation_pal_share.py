# SPDX-License-Identifier: MIT
"""`pal-share`: who runs where, why, and what it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.problem import problem
from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.research.pal_share import PalShareSettings, ShareDecision, decide, move_costs

HOUR = 3600.0


def decided(
    speed: list[list[float]],
    gpus: list[float],
    *,
    scale: list[int] | None = None,
    now: dict[str, Any] | None = None,
    **given: Any,  # noqa: ANN401  # fields of Problem
) -> ShareDecision:
    m = len(speed)
    made = problem(speed, np.ones(m) if scale is None else scale, gpus, **given)
    return decide(made, move_costs(m, **(now or {})))


def test_the_shortest_runs_first() -> None:
    found = decided([[1.0]] * 3, [1], remaining=[30 * HOUR, HOUR, 2 * HOUR])
    assert found.column.tolist() == [-1, 0, -1]


def test_a_weight_counts() -> None:
    assert decided([[1.0]] * 2, [1], remaining=[2 * HOUR, 2 * HOUR], weight=[1, 20]).column.tolist() == [-1, 0]


def test_who_gains_most_gets_the_fast_column() -> None:
    """The shorter job does nearly as well on the slow one."""
    found = decided([[1.0, 0.95], [1.0, 0.2]], [1, 1], remaining=[HOUR, 20 * HOUR])
    assert found.column.tolist() == [1, 0]


def test_a_running_job_keeps_its_column_unless_the_move_pays() -> None:
    speeds = [[1.0, 0.9]]
    stays = decided(speeds, [1, 1], remaining=[600.0], held=[1], now={"move_cost_s": 180})
    assert stays.column.tolist() == [1]
    goes = decided(speeds, [1, 1], remaining=[50 * HOUR], held=[1], now={"move_cost_s": 180})
    assert goes.column.tolist() == [0]


def test_a_long_job_yields_to_a_short_one_only_where_that_costs_less() -> None:
    given: dict[str, Any] = {"remaining": [20 * HOUR, HOUR], "held": [0, -1]}
    assert decided([[1.0]] * 2, [1], **given, now={"move_cost_s": 180}).column.tolist() == [-1, 0]
    assert decided([[1.0]] * 2, [1], **given, now={"move_cost_s": 40 * HOUR}).column.tolist() == [0, -1]


def test_a_job_that_may_not_move_stays_and_others_take_the_rest() -> None:
    speeds = [[1.0, 0.1], [1.0, 0.1], [1.0, 0.0]]
    found = decided(
        speeds, [1, 1], remaining=[50 * HOUR, 60.0, 90.0], held=[0, -1, -1], now={"may_move": [False, True, True]}
    )
    assert found.column.tolist() == [0, 1, -1]


def test_a_running_job_without_a_known_speed_is_left_alone() -> None:
    found = decided([[0.0, 1.0], [1.0, 0.0]], [1, 1], remaining=[HOUR, HOUR], held=[0, -1])
    assert found.column.tolist() == [0, -1]


def test_a_job_that_fits_nowhere_disturbs_nobody() -> None:
    found = decided([[1.0], [1.0], [0.0]], [4], scale=[8, 4, 1], remaining=[HOUR] * 3)
    assert found.column.tolist() == [-1, 0, -1]
    assert np.isinf(found.promised_s[[0, 2]]).all() and np.isfinite(found.promised_s[1])


def test_a_job_without_slack_goes_first() -> None:
    """50 h of work on the fast column; the short job loses more by the slow one, but the long one ends the run."""
    speed = [[1.0, 0.2], [1.0, 0.3]]
    given: dict[str, Any] = {"remaining": [50 * HOUR, HOUR]}
    assert decided(speed, [1, 1], **given, now={"promised_s": 80 * HOUR}).column.tolist() == [1, 0]
    assert decided(speed, [1, 1], **given, now={"promised_s": 50.1 * HOUR}).column.tolist() == [0, 1]


def test_promises_stand_until_a_longer_job_comes() -> None:
    """A new job puts the end off to 1.03 of the least time from now; without one it stays."""
    first = decided([[1.0]], [1], remaining=[100.0])
    assert first.promised_s.tolist() == pytest.approx([103.0])
    later = decided([[1.0]], [1], remaining=[40.0], held=[0], now={"promised_s": [43.0]})
    assert later.promised_s.tolist() == pytest.approx([43.0])
    joined = decided([[1.0]] * 2, [2], remaining=[40.0, 200.0], held=[0, -1], now={"promised_s": [43.0, np.nan]})
    assert joined.promised_s.tolist() == pytest.approx([206.0] * 2)
    broken = decided([[1.0]], [1], remaining=[90.0], held=[0], now={"promised_s": [43.0]})
    assert broken.promised_s.tolist() == pytest.approx([90.0])


def test_no_jobs() -> None:
    found = decide(problem(np.zeros((0, 2)), [], [1, 1]), move_costs(0))
    assert found.column.size == 0 and found.promised_s.size == 0


def test_columns_that_share_gpus() -> None:
    """Two columns on the same two GPUs are no four: the two shortest of four run, in the faster column."""
    found = decided([[1.0, 0.8]] * 4, [2, 2], uses=[[1, 1]], capacity=[2], remaining=[90 * HOUR, 60 * HOUR, 60.0, 50.0])
    assert found.column.tolist() == [-1, -1, 0, 0]


def test_columns_that_draw_on_two_capacities() -> None:
    """Nested rows, as for classes of GPUs: what is chosen fits both."""
    uses = [[1, 0], [1, 1]]
    found = decided([[1.0, 0.8]] * 3, [1, 1], uses=uses, capacity=[1, 2], remaining=[60.0, 50.0, 40.0])
    assert sorted(found.column.tolist()) == [-1, 0, 1]


@pytest.mark.parametrize("setting", [{"slack": 0.0}, {"urgency": -1.0}, {"horizon_s": float("nan")}])
def test_settings_that_mean_nothing(setting: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=min(setting)):
        decide(problem([[1.0]], [1], [1]), move_costs(1), PalShareSettings(**setting))


def test_standing_is_checked() -> None:
    with pytest.raises(DataError, match="may_move has the shape"):
        move_costs(2, may_move=[True])
    for cost in (-1.0, np.nan, np.inf):
        with pytest.raises(DataError, match=f"at least 0; it holds {cost} s"):
            move_costs(2, move_cost_s=[5.0, cost])


rows = st.tuples(
    st.sampled_from((1, 2, 4, 8)),
    st.lists(st.one_of(st.just(0.0), st.floats(0.1, 9.0)), min_size=2, max_size=2),
    st.one_of(st.just(0.0), st.floats(1.0, 1e6)),
    st.booleans(),
    st.floats(0.0, 1e3),
)


@given(st.lists(rows, max_size=10), st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_an_answer_can_be_carried_out(drawn: list[Any], gpus: list[int]) -> None:
    """Whatever runs already: capacity holds, pinned jobs stay."""
    m, free = len(drawn), list(gpus)
    held = []
    for scale, *_ in drawn:
        held.append(next((j for j in (0, 1) if free[j] >= scale), -1))
        if held[-1] >= 0:
            free[held[-1]] -= scale
    speed = np.array([d[1] for d in drawn]).reshape(m, 2)
    made = problem(speed, [d[0] for d in drawn], gpus, remaining=[d[2] for d in drawn], held=held)
    may_move, cost = np.array([d[3] for d in drawn], dtype=bool), [d[4] for d in drawn]
    found = decide(made, move_costs(m, may_move=may_move, move_cost_s=np.array(cost)))
    for column in (0, 1):
        assert made.scale[found.column == column].sum() <= gpus[column]
    for i in range(m):
        if held[i] >= 0 and (not may_move[i] or speed[i, held[i]] == 0):
            assert found.column[i] == held[i]
        elif found.column[i] >= 0:
            assert speed[i, found.column[i]] > 0
