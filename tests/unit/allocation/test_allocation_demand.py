# SPDX-License-Identifier: MIT
"""What the owner is believed to need, and what may therefore be open to guests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.demand import DemandSample, loan_order, predicted_nodes
from slurm_pal.base.errors import UsageError

H, WEEK_S = 3600.0, 7 * 86400.0


def weeks(count: int) -> list[DemandSample]:
    """Hourly: the hour of the day, 100 more on the first day of the week, one more each week."""
    return [
        DemandSample(week * WEEK_S + hour * H, hour % 24 + 100 * (hour < 24) + week)
        for week in range(count)
        for hour in range(168)
    ]


def test_with_enough_weeks_the_same_hour_of_the_week_counts() -> None:
    now_s = 4 * WEEK_S + 5 * H
    assert predicted_nodes(weeks(4), now_s, now_s + 300, quantile=1.0) == 108
    assert predicted_nodes(weeks(4), now_s, now_s + 300, quantile=0.5) == 106
    assert predicted_nodes(weeks(4), now_s + 24 * H, now_s + 24 * H + 300, quantile=1.0) == 8


def test_the_largest_of_the_hours_that_are_touched() -> None:
    now_s = 4 * WEEK_S + 30 * H
    assert predicted_nodes(weeks(4), now_s, now_s + 2 * H, quantile=1.0) == 11


def test_with_fewer_weeks_the_same_hour_of_all_days_counts_and_with_fewer_days_everything() -> None:
    now_s = WEEK_S + 29 * H
    assert predicted_nodes(weeks(1), now_s, now_s, quantile=1.0) == 105
    assert predicted_nodes(weeks(1), now_s, now_s, quantile=0.5) == 5
    assert predicted_nodes(weeks(1)[:24], 29 * H, 29 * H, quantile=1.0) == 123
    assert predicted_nodes([], now_s, now_s) is None
    assert predicted_nodes(weeks(1), 0.0, 0.0) is None  # what comes later is not known yet


def test_hours_are_local() -> None:
    now_s = 4 * WEEK_S + 5 * H
    samples = [sample._replace(time_s=sample.time_s - 2 * H) for sample in weeks(4)]
    assert predicted_nodes(samples, now_s - 2 * H, now_s - 2 * H, quantile=1.0, utc_offset_s=2 * H) == 108


def test_a_wrong_quantile_or_time_is_refused() -> None:
    with pytest.raises(UsageError, match=r"quantile 1\.5 of 0 to 1 s"):
        predicted_nodes([], 0, 1, quantile=1.5)
    with pytest.raises(UsageError, match="the end not before the start"):
        predicted_nodes([], 1, 0)


@pytest.mark.parametrize(
    ("used", "waiting", "predicted", "left"),
    [(10, 0, 12, 19), (20, 5, 12, 6), (40, 0, 0, 0), (0, 0, None, 0), (0, 0, 0, 31)],
)
def test_open_nodes(used: float, waiting: float, predicted: float | None, left: int) -> None:
    assert loan_order(32, used, waiting, predicted, 0.02) == left


def test_without_headroom_all_that_is_not_needed_is_open() -> None:
    assert loan_order(32, 10, 0, 7, 0.0) == 22


def test_numbers_below_0_are_refused() -> None:
    with pytest.raises(UsageError, match="used -1"):
        loan_order(32, -1, 0, 0)


@given(
    total=st.integers(0, 1000),
    used=st.floats(0, 1000),
    waiting=st.floats(0, 1000),
    predicted=st.none() | st.floats(0, 1000),
    headroom=st.floats(0, 1),
)
def test_the_owner_keeps_what_it_uses_and_waits_for(
    total: int, used: float, waiting: float, predicted: float | None, headroom: float
) -> None:
    left = loan_order(total, used, waiting, predicted, headroom)
    assert 0 <= left <= total
    assert left == 0 or total - left >= max(used + waiting, predicted or 0) - 1e-6
    assert left <= loan_order(total, used, waiting, predicted, 0.0)
    most = max(used + waiting, predicted or 0) + 1 + headroom * total + 0.5  # a whole node more, half of one
    assert left == 0 or total - left <= most + 1e-6


@given(
    st.lists(st.builds(DemandSample, st.floats(0, 5 * WEEK_S), st.floats(0, 99)), min_size=1),
    st.floats(0.0, 6 * WEEK_S),
)
def test_what_is_predicted_was_seen_before(samples: list[DemandSample], now_s: float) -> None:
    found = predicted_nodes(samples, now_s, now_s + 300)
    assert found in {sample.nodes for sample in samples if sample.time_s < now_s} | {None}
