# SPDX-License-Identifier: MIT
"""The order of the queue: what the rules say, what is expected of jobs, and how much later any of them starts."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.pending.overtaking import Holds, Overtaking, Waits
from slurm_pal.pending.queue_order import (
    FAIR,
    LEVELS,
    NARROW_GPUS,
    RESPONSE_RATIO,
    SHORTEST,
    Foreign,
    OrderRule,
    Queued,
    bound_s,
    places,
)
from slurm_pal.pending.run_times import LEAST, EndedRun, RunTimes, expected_s, shares_of

from ...doubles.trials import trials

P = frozenset({"gpu"})
POINTS = 1 << 16
HOUR_S = 3600.0


def rule(order: str = SHORTEST, bound_s: float = 6 * HOUR_S) -> OrderRule:
    return OrderRule(order, bound_s, POINTS)


def queued(number: int, expected: float = HOUR_S, **more: object) -> Queued:
    made = Queued(number, "u", 1, P, 1000 - number, 0.0, expected, "its limit", 0.0)
    return made._replace(**more)  # type: ignore[arg-type]


def points(*queue: Queued, order: str = SHORTEST, now_s: float = 0.0, **more: object) -> list[int]:
    shares: dict[str, float] = more.pop("shares", {})  # type: ignore[assignment]
    return [place.points for place in places(queue, shares, rule(order), now_s, **more)]  # type: ignore[arg-type]


# -- the rules -------------------------------------------------------------------------------


def test_the_shortest_job_comes_first_and_alike_ones_keep_the_sites_order() -> None:
    minute, hour, day = points(queued(1, 30.0), queued(2), queued(3, 24 * HOUR_S))
    assert minute > hour > day
    assert points(queued(1, HOUR_S), queued(2, 1.05 * HOUR_S)) == [hour, hour]
    assert minute == POINTS // 2 and points(queued(1, 1e9)) == [0]


def test_the_response_ratio_grows_while_a_job_waits() -> None:
    at_once, later = (points(queued(1), order=RESPONSE_RATIO, now_s=now_s)[0] for now_s in (0.0, 3 * HOUR_S))
    assert at_once == 0 and later == 8 * (POINTS // 2 // LEVELS)  # four times its run time: two octaves
    short, long = points(queued(1, 600.0), queued(2, 10 * HOUR_S), order=RESPONSE_RATIO, now_s=HOUR_S)
    assert short > long


def test_whoever_used_least_comes_first() -> None:
    shares = shares_of([("u", 900.0), ("v", 50.0), ("v", 50.0)])
    assert shares == {"u": 0.9, "v": 0.1}
    much, little, nothing = points(queued(1), queued(2, user="v"), queued(3, user="w"), order=FAIR, shares=shares)
    assert much < little < nothing == POINTS // 2
    assert shares_of([]) == {} and points(queued(1), order=FAIR) == [POINTS // 2]


def test_a_job_that_was_overtaken_for_too_long_is_in_front_of_all_others() -> None:
    late = queued(1, 24 * HOUR_S, overtaken_s=6 * HOUR_S)
    (first, other) = places([late, queued(2, 30.0)], {}, rule(), 0.0)
    assert (first.points, first.in_front) == (POINTS, True) and other.points < POINTS and not other.in_front
    assert "which is the bound" in first.why


def test_wide_jobs_are_in_front_sooner() -> None:
    assert bound_s(NARROW_GPUS, rule()) == 6 * HOUR_S and bound_s(4 * NARROW_GPUS, rule()) == 1.5 * HOUR_S
    assert places([queued(1, gpus=32, overtaken_s=2 * HOUR_S)], {}, rule(), 0.0)[0].in_front


def test_no_job_of_others_is_overtaken_for_longer_than_the_bound() -> None:
    late = Foreign(P, 900, 1, 7 * HOUR_S)
    behind, before, elsewhere = queued(200), queued(50), queued(201, partitions=frozenset({"other"}))
    kept = points(behind, before, elsewhere, foreign=[late])
    free = points(behind, before, elsewhere, foreign=[late._replace(overtaken_s=HOUR_S)])
    assert kept[0] == 0 < free[0] and kept[1:] == free[1:]


# -- what is expected ------------------------------------------------------------------------


def ran(run_s: float, limit_s: float = 10 * HOUR_S, name: str = "train") -> EndedRun:
    return EndedRun(1, "u", name, 1, run_s, limit_s, 0.0)


def test_few_runs_say_less_than_the_limit() -> None:
    known = RunTimes([ran(600.0)] * (LEAST - 1))
    assert known.expected_s("u", "train", 4 * HOUR_S, 2 * HOUR_S) == (2 * HOUR_S, "its limit")
    known.add(ran(600.0))
    found, why = known.expected_s("u", "train", 4 * HOUR_S, 2 * HOUR_S)
    assert found == pytest.approx(600.0) and why == "its earlier runs"
    assert known.expected_s("v", "train", None, 1.0) == known.expected_s("u", "other", None, 1.0) == (1.0, "its limit")


def test_run_times_or_shares_of_the_limit_whichever_differs_less() -> None:
    shares = [ran(0.25 * limit, limit) for limit in (HOUR_S, 4 * HOUR_S, 40 * HOUR_S)]
    found, why = expected_s(shares, 8 * HOUR_S, 1.0)
    assert found == pytest.approx(2 * HOUR_S) and "share" in why
    times = [ran(1000.0, limit) for limit in (HOUR_S, 4 * HOUR_S, 40 * HOUR_S)]
    assert expected_s(times, 8 * HOUR_S, 1.0)[0] == pytest.approx(1000.0)
    assert expected_s(times, 500.0, 1.0)[0] == 500.0  # never more than its limit
    assert expected_s([run._replace(limit_s=0.0) for run in times], None, 1.0)[0] == pytest.approx(1000.0)


# -- overtaking ------------------------------------------------------------------------------


def waits(number: int, base: int | None = None, at_s: float = 0.0) -> Waits:
    return Waits(number, 100 - number if base is None else base, at_s, P)


def test_what_an_overtaker_holds_is_charged_to_those_before_it() -> None:
    seen = Overtaking()
    assert seen.look([waits(1), waits(2), waits(3)], [], 100.0) == {1: 0.0, 2: 0.0, 3: 0.0}
    seen.placed({2: 1000})
    two = Holds(2, 4, 105.0, "gpu")
    assert seen.look([waits(1), waits(3)], [two], 110.0) == {1: 20.0, 3: 0.0}
    assert seen.look([waits(1), waits(3)], [two._replace(left_s=50.0)], 120.0) == {1: 260.0, 3: 0.0}
    assert seen.look([waits(1), waits(3)], [], 125.0) == {1: 80.0, 3: 0.0}  # ended: what is to come no more
    assert seen.gpu_s == {1: 80.0}
    assert Overtaking(seen.gpu_s).look([waits(1)], [], 130.0) == {1: 80.0}
    assert seen.look([], [], 130.0) == {} == seen.gpu_s


def test_a_job_that_came_and_went_between_two_looks_is_charged_for_the_time_between() -> None:
    seen = Overtaking()
    seen.look([waits(1), waits(2)._replace(gpus=4), waits(3)], [], 100.0)
    seen.placed({2: 1000})
    assert seen.look([waits(1), waits(3)], [], 110.0) == {1: 40.0, 3: 0.0}


@pytest.mark.parametrize("points", [{}, {1: 1000, 2: 1000}, {1: 1000}])
def test_a_job_that_slurm_backfills_by_itself_overtakes_nobody(points: dict[int, int]) -> None:
    seen = Overtaking()
    seen.look([waits(1), waits(2)], [], 100.0)
    seen.placed(points)
    assert seen.look([waits(1)], [Holds(2, 4, 105.0, "gpu")], 110.0) == {1: 0.0}
    assert seen.look([waits(1)], [], 120.0) == {1: 0.0}


def test_a_start_that_was_not_seen_counts_against_all_that_came_before() -> None:
    seen = Overtaking()
    held = Holds(9, 2, 50.0, "gpu")
    assert seen.look([waits(1, at_s=10.0), waits(2, at_s=60.0)], [held], 100.0) == {1: 0.0, 2: 0.0}
    assert seen.look([waits(1, at_s=10.0), waits(2, at_s=60.0)], [held], 110.0) == {1: 20.0, 2: 0.0}
    other = Holds(8, 2, 105.0, "other")
    assert (
        seen.look([waits(1, at_s=10.0), waits(2, at_s=60.0)], [other], 120.0)[1] == 40.0
    )  # 9 ended; 8 is in another partition


class Job(NamedTuple):
    came_s: float
    run_s: float
    believed: float  # expected over real run time


def starts(jobs: list[Job], servers: int, bound: float | None) -> list[float]:
    """When each job starts on `servers` equal GPUs; in the order of the rule, or with `bound` None in that of arrival.

    The queue is looked at after each arrival and each end, as often as a tick could.
    """
    began = [math.inf] * len(jobs)
    ends: list[tuple[float, int]] = []
    overtaking, now_s = Overtaking(), 0.0
    moments = [job.came_s for job in jobs]
    while math.inf in began:
        now_s = min([at_s for at_s in moments if at_s > now_s] + [end_s for end_s, _ in ends], default=now_s)
        while ends and ends[0][0] <= now_s:
            heappop(ends)
        queue = [n for n, job in enumerate(jobs) if job.came_s <= now_s and began[n] == math.inf]
        if bound is None:
            order = queue
        else:
            expected = [job.run_s * job.believed for job in jobs]
            running = [
                Holds(n, 1, began[n], "gpu", max(0.0, expected[n] - (now_s - began[n]))) for _, n in sorted(ends)
            ]
            lost = overtaking.look([waits(n, 10_000 - n, jobs[n].came_s) for n in queue], running, now_s)
            wanted = [queued(n, expected[n], base=10_000 - n, overtaken_s=lost[n] / servers) for n in queue]
            given = {place.job_id: place.points for place in places(wanted, {}, rule(bound_s=bound), now_s)}
            overtaking.placed(given)
            order = sorted(queue, key=lambda n: (-given[n] - (10_000 - n) / 1e6, n))
        for n in order[: servers - len(ends)]:
            began[n] = now_s
            heappush(ends, (now_s + jobs[n].run_s, n))
    return began


JOBS = st.lists(
    st.builds(Job, st.floats(1.0, 20_000.0), st.floats(30.0, 20_000.0), st.sampled_from([0.1, 0.5, 1.0, 3.0])),
    min_size=2, max_size=14,
)  # fmt: skip


@trials(200, deadline=None)
@given(jobs=JOBS, bound=st.sampled_from([0.0, 1000.0, 10_000.0]))
def test_on_one_gpu_nobody_starts_later_than_the_bound_and_one_run(jobs: list[Job], bound: float) -> None:
    """On one GPU the work before a job is the same in each order but for that of overtakers, which is what is charged.

    It may exceed the bound by the run of the one that runs when the bound is reached, and by nothing else.
    """
    jobs = sorted(jobs)
    stock, ordered = starts(jobs, 1, None), starts(jobs, 1, bound)
    later = max(mine - theirs for mine, theirs in zip(ordered, stock, strict=True))
    assert later <= bound + max(job.run_s for job in jobs) + 1e-6
    if bound == 0:
        assert ordered == stock or later <= max(job.run_s for job in jobs)


@trials(100, deadline=None)
@given(jobs=JOBS, servers=st.integers(2, 4), bound=st.sampled_from([0.0, 1000.0, 10_000.0]))
def test_on_several_gpus_nobody_starts_later_than_the_bound_and_two_runs(
    jobs: list[Job], servers: int, bound: float
) -> None:
    jobs = sorted(jobs)
    stock, ordered = starts(jobs, servers, None), starts(jobs, servers, bound)
    later = max(mine - theirs for mine, theirs in zip(ordered, stock, strict=True))
    assert later <= bound + 2 * max(job.run_s for job in jobs) + 1e-6


def test_without_a_bound_a_long_job_waits_for_all_short_ones() -> None:
    """The property above is not empty: with a bound that is never reached the same model breaks it."""
    jobs = sorted([Job(1.0, 900.0, 1.0), Job(2.0, 3000.0, 1.0), *(Job(3.0 + n, 900.0, 1.0) for n in range(30))])
    stock, free, bounded = starts(jobs, 1, None), starts(jobs, 1, 1e9), starts(jobs, 1, 1800.0)
    assert free[1] - stock[1] == pytest.approx(30 * 900.0)
    assert bounded[1] - stock[1] <= 1800.0 + 900.0
    assert sum(bounded) < sum(stock)
