# SPDX-License-Identifier: MIT
"""The throughput table: merging of sources, and a throughput for every job on every type."""

from __future__ import annotations

from math import exp, hypot, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation.throughputs import (
    ANY,
    ESTIMATED,
    EXPONENT,
    MOST_ERROR,
    PRIOR,
    PROGRESS,
    TABLE,
    Entry,
    ThroughputKey,
    matrix,
    merge,
    model,
)
from slurm_pal.base.errors import DataError

from ...doubles.trials import trials

DAY_S = 86400.0
KEY = ThroughputKey("bert", 1, "a100")
TYPES = ("v100", "a100", "h100")


def speeds(*rates: float, application: str = "bert", gpus: int = 1, **given: object) -> dict[ThroughputKey, Entry]:
    return {
        ThroughputKey(application, gpus, name): Entry(rate, 0.05, **given)  # type: ignore[arg-type]
        for name, rate in zip(TYPES, rates, strict=False)
        if rate >= 0
    }


# -- merging --------------------------------------------------------------------------------


def test_sources_count_by_inverse_variance_of_logarithms() -> None:
    table, past = Entry(10.0, 0.1, 0, 0.0, TABLE), Entry(10.5, 0.05, 8, 0.0, PROGRESS)
    found = merge([{KEY: table}, {KEY: past}])[KEY]
    assert found.steps_per_s == pytest.approx(exp((log(10.0) * 100 + log(10.5) * 400) / 500))
    assert found.relative_error == pytest.approx(1 / sqrt(500))
    assert (found.runs, found.source) == (8, PROGRESS)


def test_an_entry_of_a_half_life_counts_half() -> None:
    old = Entry(10.0, 0.1, 1, 30 * DAY_S)
    alone = merge([{KEY: old}], 30 * DAY_S)[KEY]
    assert alone.relative_error == pytest.approx(0.1 * sqrt(2)) and alone.age_s == old.age_s
    new = Entry(10.3, 0.1, 1)
    both = merge([{KEY: old}, {KEY: new}], 30 * DAY_S)[KEY]
    assert log(both.steps_per_s) == pytest.approx((log(10.0) + 2 * log(10.3)) / 3)
    assert both.age_s == pytest.approx(10 * DAY_S)
    assert merge([{KEY: old._replace(age_s=1e12)}])[KEY].relative_error == MOST_ERROR


def test_sources_that_disagree_are_less_sure_than_each() -> None:
    one, other = Entry(1.0, 0.05), Entry(2.0, 0.05)
    found = merge([{KEY: one}, {KEY: other}])[KEY]
    assert found.relative_error == pytest.approx(log(2) / 2) and found.steps_per_s == pytest.approx(sqrt(2))


def test_a_zero_of_the_table_stands() -> None:
    for tables in ([speeds(-1, 0.0), speeds(-1, 9.0)], [speeds(-1, 9.0), speeds(-1, 0.0)]):
        assert merge(tables)[KEY].steps_per_s == 0


def test_relative_speeds_take_the_unit_of_what_was_measured() -> None:
    found = merge([speeds(1, 2.5, 6, relative=True), speeds(4.0, source=PROGRESS, runs=3)])
    rates = [found[ThroughputKey("bert", 1, name)] for name in TYPES]
    assert [entry.steps_per_s for entry in rates] == pytest.approx([4, 10, 24])
    assert not any(entry.relative for entry in rates)
    assert rates[2].relative_error == pytest.approx(hypot(0.05, hypot(0.05, 0.05)))


def test_relative_speeds_stay_alone_and_go_where_nothing_tells_their_unit() -> None:
    alone = merge([speeds(1, 2.5, relative=True)])
    assert all(entry.relative for entry in alone.values()) and len(alone) == 2
    found = merge([speeds(1, 2.5, relative=True), speeds(-1, -1, 70.0)])
    assert list(found) == [ThroughputKey("bert", 1, "h100")]


@given(
    entries=st.lists(
        st.builds(
            Entry, st.floats(0.01, 100), st.floats(0.01, 0.9), st.integers(0, 50), st.floats(0, 100 * DAY_S),
            st.sampled_from([TABLE, PROGRESS]), st.just(False),
        ), min_size=1, max_size=6,
    )
)  # fmt: skip
def test_a_mean_lies_between_its_entries(entries: list[Entry]) -> None:
    found = merge([{KEY: entry} for entry in entries])[KEY]
    rates = [entry.steps_per_s for entry in entries]
    assert min(rates) * (1 - 1e-9) <= found.steps_per_s <= max(rates) * (1 + 1e-9)
    assert 0 < found.relative_error <= MOST_ERROR and found.runs == sum(entry.runs for entry in entries)


@pytest.mark.parametrize(
    ("key", "entry", "said"),
    [
        (KEY, Entry(-1.0, 0.1), "must be 0 or from"),
        (KEY, Entry(float("nan"), 0.1), "must be 0 or from"),
        (KEY, Entry(1e10, 0.1), "must be 0 or from"),
        (KEY, Entry(1.0, 0.0), "relative error is 0"),
        (KEY, Entry(1.0, float("inf")), "relative error is inf"),
        (KEY, Entry(1.0, 0.1, 0, -5.0), "age is -5"),
        (KEY._replace(gpus=0), Entry(1.0, 0.1), "at least 1"),
    ],
)
def test_entries_that_are_not_allowed(key: ThroughputKey, entry: Entry, said: str) -> None:
    with pytest.raises(DataError, match=said):
        merge([{key: entry}])
    with pytest.raises(DataError, match=said):
        model({key: entry}, TYPES)


def test_arguments_that_are_not_allowed() -> None:
    with pytest.raises(DataError, match="half-life"):
        merge([], 0.0)
    with pytest.raises(DataError, match="twice"):
        model({}, ("a", "a"))
    with pytest.raises(DataError, match="0 GPUs"):
        matrix(model({}, TYPES), [("bert", 0)])


# -- every job on every type ----------------------------------------------------------------


def test_nothing_known_blocks_nobody() -> None:
    found = matrix(model({}, TYPES), [("bert", 1), ("gpt", 4)])
    assert (found.throughput == 1).all() and found.source == ((PRIOR,) * 3,) * 2 and found.absolute == (False, False)
    assert matrix(model({}, TYPES), []).throughput.shape == (0, 3)


def test_known_entries_are_given_as_they_are_and_the_gap_is_estimated() -> None:
    known = {**speeds(1.0, 2.0, 6.0, application="a"), **speeds(10.0, 20.0, 60.0, application="b"), **speeds(3.0, 6.0)}
    found = matrix(model(known, TYPES), [("bert", 1), ("a", 1)])
    assert found.source == ((TABLE, TABLE, ESTIMATED), (TABLE,) * 3)
    assert found.throughput[0] == pytest.approx([3, 6, 18], rel=0.02) and found.throughput[1].tolist() == [1, 2, 6]
    assert found.relative_error[0, 2] > found.relative_error[0, 0] == 0.05 and found.absolute == (True, True)


def test_an_unknown_application_gets_the_speeds_of_the_types() -> None:
    known = {**speeds(1.0, 2.0, 8.0, application="a"), **speeds(10.0, 20.0, 80.0, application="b")}
    found = matrix(model(known, TYPES), [("new", 4)])
    assert found.source == ((PRIOR,) * 3,) and found.absolute == (False,)
    assert found.throughput[0] / found.throughput[0, 0] == pytest.approx([1, 2, 8], rel=1e-6)
    assert np.prod(found.throughput[0]) == pytest.approx(1.0)
    assert (found.relative_error > 0.05).all()


def test_the_site_may_state_the_speeds_for_unknown_applications() -> None:
    known = {**speeds(1.0, 2.0, 8.0, application="a"), **speeds(1.0, 2.5, 6.0, application=ANY, relative=True)}
    found = matrix(model(known, TYPES), [("new", 4), ("a", 1)])
    assert found.throughput[0] / found.throughput[0, 0] == pytest.approx([1, 2.5, 6])
    assert np.prod(found.throughput[0]) == pytest.approx(1.0)
    assert found.throughput[1].tolist() == [1, 2, 8]


def test_a_zero_holds_for_this_very_number_of_gpus_only() -> None:
    known = {**speeds(4.0, 0.0), **speeds(1.0, 2.0, 5.0, application="a")}
    found = matrix(model(known, TYPES), [("bert", 1), ("bert", 2), ("other", 1)])
    assert found.throughput[0, 1] == 0 and found.source[0][1] == TABLE
    assert (np.delete(found.throughput.ravel(), 1) > 0).all()


def test_a_zero_among_relative_speeds_does_not_take_the_unit_from_measured_ones() -> None:
    known = merge([speeds(0.0, 1.0, 2.0, relative=True), speeds(-1, 7.0, source=PROGRESS)])
    found = matrix(model(known, TYPES), [("bert", 1)])
    assert found.throughput[0] == pytest.approx([0, 7, 14], rel=1e-2) and found.absolute == (True,)


def test_another_number_of_gpus_is_scaled_with_a_wide_error() -> None:
    found = matrix(model(speeds(4.0, 8.0), TYPES[:2]), [("bert", 1), ("bert", 2), ("bert", 8)])
    assert found.source[1] == found.source[2] == (ESTIMATED, ESTIMATED)
    assert found.throughput[2] == pytest.approx([4 * 8**EXPONENT, 8 * 8**EXPONENT])
    assert (np.diff(found.relative_error, axis=0) > 0).all()


def test_the_table_shows_how_throughput_grows() -> None:
    known = {
        key: entry
        for k in range(30)
        for gpus in (1, 2, 4)
        for key, entry in speeds(gpus**0.5, 2 * gpus**0.5, application=f"a{k}", gpus=gpus).items()
    }
    found = matrix(model({**known, **speeds(1.0, 2.0)}, TYPES[:2]), [("bert", 16)])
    assert found.throughput[0] == pytest.approx([4, 8], rel=0.05)


def test_relative_rows_are_not_scaled_from_where_steps_are_known() -> None:
    known = {**speeds(1.0, 3.0, gpus=8, relative=True), **speeds(5.0, 15.0, gpus=1)}
    found = matrix(model(known, TYPES[:2]), [("bert", 7), ("bert", 8)])
    assert found.throughput[0] == pytest.approx([5 * 7**EXPONENT, 15 * 7**EXPONENT], rel=1e-6)
    assert found.absolute == (True, False)


def test_other_sizes_of_an_application_tell_of_its_types() -> None:
    usual = [speeds(1.0, 2.0, 8.0, application=f"a{k}") for k in range(8)]
    known = {key: entry for row in usual for key, entry in row.items()}
    known |= speeds(9.0, 3.0, 1.0) | {ThroughputKey("bert", 8, "v100"): Entry(45.0, 0.05)}
    found = matrix(model(known, TYPES), [("bert", 8)])
    assert found.source[0] == (TABLE, ESTIMATED, ESTIMATED)
    assert 15 <= found.throughput[0, 1] < 40 and 5 <= found.throughput[0, 2] < 40  # by the usual ratios 90 and 360


def test_types_that_are_not_asked_for_help_too() -> None:
    rows = [speeds(1.0, 2.0, 8.0, application=f"a{k}") for k in range(6)]
    known = {key: entry for row in rows for key, entry in row.items()} | {
        ThroughputKey("bert", 1, "h100"): Entry(80.0, 0.05)
    }
    found = matrix(model(known, ["v100"]), [("bert", 1)])
    assert found.throughput.shape == (1, 1) and found.throughput[0, 0] == pytest.approx(10, rel=0.02)


@trials(30)
@given(
    known=st.dictionaries(
        st.builds(ThroughputKey, st.sampled_from("abc*"), st.sampled_from([1, 2, 8]), st.sampled_from(TYPES)),
        st.builds(
            Entry, st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), st.floats(0.01, 0.9), st.just(1), st.just(0.0),
            st.just(TABLE), st.booleans(),
        ), max_size=12,
    )
)  # fmt: skip
def test_every_job_has_a_throughput_wherever_the_table_does_not_say_zero(known: dict[ThroughputKey, Entry]) -> None:
    merged = merge([known])
    jobs = [(name, gpus) for name in ("a", "b", "c", "new") for gpus in (1, 2, 3, 8)]
    found = matrix(model(merged, TYPES), jobs)
    assert np.isfinite(found.throughput).all() and np.isfinite(found.relative_error).all()
    assert (found.relative_error > 0).all()
    for i, job in enumerate(jobs):
        for j, name in enumerate(TYPES):
            stated = merged.get(ThroughputKey(*job, name))
            assert (found.throughput[i, j] == 0) == (stated is not None and stated.steps_per_s == 0)
