# SPDX-License-Identifier: MIT
"""One choice, one sum: the best place by each goal, and when a change pays."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import (
    COST,
    DEADLINE,
    TIME,
    Alternative,
    Goal,
    best,
    duration_s,
    goal_of,
    moment_s,
    worth_changing,
    worth_moving,
)
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark

from ...doubles.partition_site import job

FAST = Alternative("fast", "fast", 3600.0, 3600.0, 4.0)
SLOW = Alternative("slow", "slow", 0.0, 9000.0, 1.0)
CPU = Alternative("cpu", "cpu", 0.0, 90000.0, None)
AMOUNTS = st.floats(0.0, 1e6)
PLACES = st.lists(
    st.builds(Alternative, st.just("x"), st.just("p"), AMOUNTS, AMOUNTS, st.none() | AMOUNTS, AMOUNTS, AMOUNTS),
    min_size=1, max_size=6,
)  # fmt: skip


def test_the_goal_decides() -> None:
    places = [FAST, SLOW, CPU]
    assert best(places, Goal(TIME), 0.0).at == 0
    assert best(places, Goal(COST), 0.0).at == 1
    assert best(places, Goal(DEADLINE, 7300.0), 0.0).at == 0
    assert best(places, Goal(DEADLINE, 9100.0), 0.0).at == 1
    late = best(places, Goal(DEADLINE, 100.0), 0.0)
    assert late.at == 0 and "no place" in late.why
    unpriced = best([CPU, SLOW._replace(per_hour=None)], Goal(COST), 0.0)
    assert unpriced.at == 1 and "no price" in unpriced.why


@pytest.mark.parametrize("text", ["25:00", "2026-02-30", "2026-02-30T10:00", "2026-12-01T24:30"])
def test_a_moment_that_does_not_exist_is_none(text: str) -> None:
    assert moment_s(text, 1.8e9) is None


def test_a_node_that_boots_costs_before_the_job_runs() -> None:
    boots = SLOW._replace(wait_s=600.0, boot_s=600.0)
    assert boots.end_s == 9600.0 and boots.cost == pytest.approx(9600.0 / 3600.0)
    assert best([boots, FAST._replace(per_hour=2.65)], Goal(COST), 0.0).at == 1
    assert best([boots._replace(boot_s=0.0), FAST._replace(per_hour=2.65)], Goal(COST), 0.0).at == 0


def test_bringing_data_is_part_of_the_sum() -> None:
    far = SLOW._replace(stage_in_s=7200.0)
    assert far.end_s == 16200.0 and far.cost == pytest.approx(4.5)
    assert best([far, FAST], Goal(COST), 0.0).at == 1


@given(PLACES, st.sampled_from([Goal(TIME), Goal(COST), Goal(DEADLINE, 5e5)]))
def test_no_place_is_better_by_the_goal(places: list[Alternative], goal: Goal) -> None:
    chosen = places[best(places, goal, 0.0).at]
    if goal.kind == TIME:
        assert chosen.end_s == min(place.end_s for place in places)
    elif goal.kind == COST:
        assert chosen.cost == min(place.cost for place in places)
    else:
        in_time = [place for place in places if place.end_s <= goal.until_s]
        assert (
            chosen.cost == min(place.cost for place in in_time)
            if in_time
            else chosen.end_s <= min(place.end_s for place in places)
        )


@given(PLACES, st.sampled_from([Goal(TIME), Goal(COST), Goal(DEADLINE, 5e5)]))
def test_no_two_places_change_with_each_other(places: list[Alternative], goal: Goal) -> None:
    one, other = places[0], places[-1]
    assert not (worth_changing(one, other, goal, 0.0) and worth_changing(other, one, goal, 0.0))


def test_small_gains_change_nothing() -> None:
    here = FAST._replace(wait_s=1000.0)
    assert not worth_changing(here, here._replace(wait_s=900.0), Goal(TIME), 0.0)
    assert not worth_changing(here, here._replace(wait_s=700.0), Goal(TIME), 0.0)  # 6.5 %
    assert worth_changing(here, here._replace(wait_s=0.0), Goal(TIME), 0.0)
    assert not worth_changing(here, here._replace(per_hour=3.7), Goal(COST), 0.0)
    assert worth_changing(here, here._replace(per_hour=3.5), Goal(COST), 0.0)
    assert worth_changing(FAST, SLOW, Goal(DEADLINE, 9100.0), 0.0)
    assert not worth_changing(FAST, SLOW, Goal(DEADLINE, 7300.0), 0.0)
    assert worth_changing(SLOW, FAST, Goal(DEADLINE, 7300.0), 0.0)


def test_a_move_must_save_more_than_twice_what_it_costs() -> None:
    day_s = 86400.0
    assert worth_moving(3.0, 1.0, 2 * day_s, 600.0, 9.0)
    assert not worth_moving(3.0, 1.0, 0.9 * day_s, 0.0, 0.0)  # too little left
    assert not worth_moving(3.0, 1.0, 2 * day_s, 600.0, 48.0)
    assert not worth_moving(1.0, 1.0, 9 * day_s, 0.0, 0.0)


def test_goals_as_users_write_them() -> None:
    now_s = time.mktime((2026, 11, 27, 14, 0, 0, 0, 0, -1))
    assert goal_of("time", now_s) == Goal(TIME) and goal_of(" cost ", now_s) == Goal(COST)
    assert goal_of("deadline=now+8hours", now_s).until_s == now_s + 8 * 3600
    assert moment_s("18:00", now_s) == now_s + 4 * 3600
    assert moment_s("13:00", now_s) == now_s + 23 * 3600
    assert moment_s("2026-11-28T14:00", now_s) == now_s + 86400
    assert moment_s("2026-11-28", now_s) == now_s + 10 * 3600
    assert [duration_s(text) for text in ("90", "20m", "2h", "1day", "3weeks", "2d")] == [
        90.0, 1200.0, 7200.0, 86400.0, 1814400.0, 172800.0,
    ]  # fmt: skip
    for bad in (
        "",
        "money",
        "time=1",
        "deadline",
        "deadline=",
        "deadline=soon",
        "deadline=2020-01-01",
        "deadline=25:99",
    ):
        with pytest.raises(UsageError):
            goal_of(bad, now_s)
    for bad in ("", "m", "1.5h", "-1h", "1y"):
        assert duration_s(bad) is None


MARK = PlaceMark("gpu", Goal(TIME), 1000.0, 1, (
    MarkedPlace("gpu", "fast", "gpu:1", 0, "", 20), MarkedPlace("cpu", "cpu", "none", 4, "1-00:00:00", 7200),
))  # fmt: skip


def marked(mark: PlaceMark) -> SlurmJob:
    pairs = place_mark.pairs_of(mark)
    return job(comment="mine pal:" + ";".join(f"{key}={value}" for key, value in pairs.items()))


def test_a_mark_is_read_as_it_was_written() -> None:
    assert place_mark.read(marked(MARK)) == MARK
    due = MARK._replace(goal=Goal(DEADLINE, 2000.0))
    assert place_mark.read(marked(due)) == due
    odd = MARK._replace(places=(MARK.places[0], MARK.places[1]._replace(gres="gpu:a&b")))
    assert place_mark.pairs_of(odd) == {}


@given(st.text("pal:alt=gpu;o|0123456789 -,", max_size=60))
def test_no_mark_breaks_the_reader(text: str) -> None:
    found = place_mark.read(job(comment=f"pal:alt={text}"))
    assert found is None or found.chosen in [place.name for place in found.places]


def test_an_infinite_deadline_is_none() -> None:
    assert Goal().until_s == math.inf
