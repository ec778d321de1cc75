# SPDX-License-Identifier: MIT
"""Running jobs that go on where it costs less: which places come into question, and whether a move pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.base.cluster import Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.prices import Prices
from slurm_pal.decide import place_mark
from slurm_pal.decide.alternatives import COST, DEADLINE, MOVE_LEFT_S, TIME, Goal
from slurm_pal.decide.place_mark import MarkedPlace, PlaceMark
from slurm_pal.moves.money import MOST_CHEAPER, Money
from slurm_pal.moves.planning import MovePlan, Running, plan, to_move
from slurm_pal.partitions.cheaper import MoneyTerms, with_cheaper
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.parse import partition

from ...doubles.running_factory import HOUR_S, NOW_S, TERMS, job, node, overview, running, scores

DAY_S = 86400
DEAR, CHEAP = (
    MarkedPlace("old", "dear", "gpu:1", 0, "", 4 * DAY_S),
    MarkedPlace("new", "cheap", "gpu:1", 0, "", 4 * DAY_S),
)
PRICES = Prices({"dear": {"gres/gpu": 4.0}, "cheap": {"gres/gpu": 1.0}})
KNOWN = MoneyTerms(PRICES, 0.0, frozenset(), frozenset())
GPUS = {"d0": [1.0, 1.0], "c0": [1.0, 1.0]}
LEFT_S = 4 * DAY_S - 2 * HOUR_S


def marked(*places: MarkedPlace, goal: Goal | None = None, **changes: Any) -> Running:  # noqa: ANN401
    """A job that has run for two hours of its expected four days."""
    pairs = place_mark.pairs_of(PlaceMark(places[0].name, goal or Goal(COST), NOW_S - 3 * HOUR_S, 1, places))
    of = {
        "partition": "dear",
        "time_limit_s": 8 * DAY_S,
        "comment": marks.put("", pairs) or "",
        **changes.pop("of", {}),
    }
    return running(job(1, {"d0": (0,)}, **of), **changes)


def site(jobs: Sequence[Running], full: bool = False, and_also: Sequence[SlurmJob] = (), **of_cheap: Any) -> Overview:  # noqa: ANN401
    jobs_seen = [*(one.job for one in jobs), *and_also]
    if full:
        jobs_seen.append(job(9, {"c0": (0, 1)}, partition="cheap"))
    cheap = Partition("cheap", False, True, ("c0",))._replace(**of_cheap)
    parts = (Partition("dear", False, True, ("d0",)), cheap)
    return overview([node(name, len(row)) for name, row in GPUS.items()], jobs_seen, partitions=parts)


def planned(
    one: Running,
    terms: MoneyTerms = KNOWN,
    full: bool = False,
    table: dict[str, list[float]] = GPUS,
    **of_cheap: Any,  # noqa: ANN401
) -> MovePlan:
    seen = site([one], full, **of_cheap)
    jobs, notes = with_cheaper(seen, [one], terms, NOW_S)
    found = plan(seen, scores(table), jobs, TERMS, NOW_S)
    return found._replace(passed=tuple(p._replace(why=f"{p.why}; {notes.get(p.job_id, '')}") for p in found.passed))


def why(found: MovePlan) -> str:
    assert found.moves == ()
    return found.passed[0].why


def test_a_job_goes_on_where_it_costs_less() -> None:
    (move,) = planned(marked(DEAR, CHEAP)).moves
    assert (move.partition, move.own_partitions, move.target_gpus) == ("cheap", "dear", "c0:0")
    assert move.saving == pytest.approx(3 * LEFT_S / 3600) and move.gain_s == 0.0 and move.before == move.after == 1.0
    assert f"{move.saving:.2f} of money saved of {LEFT_S:.0f} s left" in move.why
    assert to_move(move, NOW_S, "", "").saving == move.saving


def test_what_a_job_reports_counts_before_what_was_expected() -> None:
    (move,) = planned(marked(DEAR, CHEAP, stated_s=2.0 * DAY_S)).moves
    assert move.saving == pytest.approx(3 * 48)
    assert "24.0 h are left there, more than 24 are needed" in why(planned(marked(DEAR, CHEAP, stated_s=1.0 * DAY_S)))


def test_gains_that_did_not_come_true_change_no_price() -> None:
    seen, one = site([marked(DEAR, CHEAP)]), marked(DEAR, CHEAP)
    jobs, _ = with_cheaper(seen, [one], KNOWN, NOW_S)
    (move,) = plan(seen, scores(GPUS), jobs, TERMS._replace(calibrations={"u": 0.25}), NOW_S).moves
    assert move.saving == pytest.approx(3 * LEFT_S / 3600)


def test_work_that_takes_longer_there_costs_more() -> None:
    slow = CHEAP._replace(run_s=8 * DAY_S)
    (move,) = planned(marked(DEAR, slow, of={"time_limit_s": 10 * DAY_S})).moves
    assert move.saving == pytest.approx((4 - 2) * LEFT_S / 3600) and move.gain_s == pytest.approx(-LEFT_S)
    five_times = CHEAP._replace(run_s=20 * DAY_S)
    assert "would be saved" in why(planned(marked(DEAR, five_times, of={"time_limit_s": 30 * DAY_S})))


def test_slow_gpus_there_count() -> None:
    table = {**GPUS, "c0": [1.5, 1.5]}
    (move,) = planned(marked(DEAR, CHEAP), table=table).moves
    assert move.saving == pytest.approx((4 - 1.5) * LEFT_S / 3600) and move.after == 1.5


@pytest.mark.parametrize(("egress", "moves"), [(0.0, 1), (140.0, 1), (141.5, 0)])
def test_the_saving_is_more_than_twice_restart_and_egress(egress: float, moves: int) -> None:
    """3 x 94 h = 282 are saved; a restart of a minute costs .02."""
    assert len(planned(marked(DEAR, CHEAP), KNOWN._replace(egress=egress)).moves) == moves


@pytest.mark.parametrize("after_s", [MOVE_LEFT_S - 1, MOVE_LEFT_S])
def test_once_a_day(after_s: float) -> None:
    found = planned(marked(DEAR, CHEAP, moves=1, last_move_s=NOW_S - after_s))
    assert len(found.moves) == (after_s == MOVE_LEFT_S)
    assert found.moves or "less than 24 h ago" in why(found)


@pytest.mark.parametrize(("days", "moves"), [(3, 0), (4, 1)])
def test_a_deadline_holds(days: int, moves: int) -> None:
    found = planned(marked(DEAR, CHEAP, goal=Goal(DEADLINE, NOW_S + days * DAY_S)))
    assert len(found.moves) == moves and (moves or "after its deadline or time limit" in why(found))


def test_who_wants_the_end_soon_is_not_moved_for_money() -> None:
    assert "in its place" not in why(planned(marked(DEAR, CHEAP, goal=Goal(TIME))))


@pytest.mark.parametrize(
    ("place", "terms", "of", "of_cheap", "said"),
    [
        (CHEAP._replace(gres="gpu:2"), KNOWN, {}, {}, "differs in more than the partition"),
        (CHEAP._replace(time="10-0"), KNOWN, {}, {}, "differs in more than the partition"),
        (CHEAP, KNOWN._replace(failed={(1, "cheap")}), {}, {}, "a move there has failed"),
        (CHEAP, KNOWN._replace(closed={"cheap"}), {}, {}, "jobs wait for its nodes"),
        (CHEAP, KNOWN._replace(prices=PRICES._replace(old=("cheap",))), {}, {}, "price of cheap is older than a day"),
        (CHEAP, KNOWN._replace(prices=PRICES._replace(old=("dear",))), {}, {}, "price of dear is older than a day"),
        (CHEAP, KNOWN._replace(prices=Prices({"dear": {"gres/gpu": 4.0}})), {}, {}, "no price of cheap is known"),
        (CHEAP, KNOWN._replace(prices=PRICES._replace(trouble="it is gone")), {}, {}, "it is gone"),
        (CHEAP, KNOWN, {}, {"up": False}, "takes no jobs now"),
        (CHEAP, KNOWN, {}, {"max_time_s": 7 * DAY_S}, "time limit"),
        (CHEAP, KNOWN, {}, {"nodes": ()}, "could not run there"),
        (CHEAP, KNOWN, {}, {"admits": (("AllowGroups", "staff"),)}, "AllowGroups=staff may not admit"),
        (CHEAP, KNOWN, {"account": "b"}, {"admits": (("AllowAccounts", "a,c"),)}, "AllowAccounts=a,c may not admit"),
        (CHEAP, KNOWN, {"qos": "q"}, {"admits": (("DenyQos", "q"),)}, "DenyQos=q may not admit"),
        (CHEAP, KNOWN, {"partition": "third"}, {}, "not those of its goal any more"),
        (CHEAP, KNOWN, {"comment_adds": {"part": "60", "own": "dear,cheap", "set": "dear"}}, {}, "not those of"),
    ],
)  # fmt: skip
def test_why_a_job_stays(place: MarkedPlace, terms: MoneyTerms, of: Any, of_cheap: Any, said: str) -> None:  # noqa: ANN401
    added = of.pop("comment_adds", None)
    one = marked(DEAR, place, of=of)
    if added:
        one = one._replace(job=one.job._replace(comment=f"{one.job.comment} {marks.word(added)}"))
    assert said in why(planned(one, terms, **of_cheap))


def test_a_place_without_free_gpus_is_none() -> None:
    assert "cheap: no GPUs are free there that suit it" in why(planned(marked(DEAR, CHEAP), full=True))


@pytest.mark.parametrize("admits", [("AllowAccounts", "a,b"), ("DenyAccounts", "c")])
def test_a_partition_that_admits_the_job_is_a_place(admits: tuple[str, str]) -> None:
    assert planned(marked(DEAR, CHEAP, of={"account": "a"}), admits=(admits,)).moves


def test_who_may_run_in_a_partition_is_read() -> None:
    line = "PartitionName=p State=UP Nodes=n0 AllowGroups=ALL AllowAccounts=a,b AllowQos=ALL DenyQos=(null) RootOnly=NO"
    assert partition(line).admits == (("AllowAccounts", "a,b"),)


def test_of_two_places_the_cheapest_counts() -> None:
    third = MarkedPlace("third", "third", "gpu:1", 0, "", 4 * DAY_S)
    one = marked(DEAR, CHEAP, third)
    seen = site([one])
    seen = seen._replace(
        nodes=(*seen.nodes, node("t0", 2)), partitions=(*seen.partitions, Partition("third", False, True, ("t0",)))
    )
    terms = KNOWN._replace(prices=Prices({**PRICES.rates, "third": {"gres/gpu": 0.0}}))
    jobs, notes = with_cheaper(seen, [one], terms, NOW_S)
    (move,) = plan(seen, scores({**GPUS, "t0": [1.0, 1.0]}), jobs, TERMS, NOW_S).moves
    assert move.partition == "third" and move.saving == pytest.approx(4 * LEFT_S / 3600) and notes == {}


PRICE = st.floats(0.0, 1e6)
TIME_S = st.floats(0.0, 1e8)


@given(PRICE, PRICE, st.floats(0.0, 1e6), TIME_S, TIME_S, st.floats(0.0, 1e6))
def test_no_move_loses_money(
    here: float, there: float, egress: float, left_s: float, there_s: float, move_s: float
) -> None:
    money = Money(here, there, egress, math.inf)
    assert 0 < money.cheaper <= MOST_CHEAPER
    if not money.why_not(left_s, there_s, move_s):
        saving, cost = money.saving(left_s, there_s), money.cost(move_s)
        assert saving > 1.99 * cost and there_s > MOVE_LEFT_S


def test_equal_prices_are_no_reason_to_move_even_where_a_move_costs_nothing() -> None:
    for price in (1.0353851394042618e-151, 0.1, 3.0):
        assert Money(price, price, 0.0, math.inf).why_not(52030576.86346436, 52030576.86346436, 0.0)


def test_a_job_that_costs_nothing_stays() -> None:
    free = KNOWN._replace(prices=Prices({"dear": {"gres/gpu": 0.0}, "cheap": {"gres/gpu": 1.0}}))
    assert "-94.00 would be saved" in why(planned(marked(DEAR, CHEAP), free))
    nothing = KNOWN._replace(prices=Prices({"dear": {}, "cheap": {}}))
    assert "0.00 would be saved, more than 0.00 is needed" in why(planned(marked(DEAR, CHEAP), nothing))


def test_a_mark_puts_no_job_ahead_of_another_users() -> None:
    """One GPU is free there. The second job says that it would run there four times as fast."""
    longer = [place._replace(run_s=5 * DAY_S) for place in (DEAR, CHEAP)]
    honest = marked(*longer, of={"time_limit_s": 8 * DAY_S + 3600})
    boast = marked(DEAR._replace(run_s=16 * DAY_S), CHEAP)
    boast = boast._replace(job=boast.job._replace(job_id=2, user="v", gpus={"d0": (1,)}))
    busy = job(9, {"c0": (0,)}, partition="cheap")
    seen = site([honest, boast], and_also=[busy])
    jobs, _ = with_cheaper(seen, [boast, honest], KNOWN, NOW_S)
    assert [move.job_id for move in plan(seen, scores(GPUS), jobs, TERMS, NOW_S).moves] == [1]
    (alone,) = plan(seen, scores(GPUS), jobs[:1], TERMS, NOW_S).moves
    assert alone.job_id == 2
