# SPDX-License-Identifier: MIT
"""Owners and guests, the study: loans are taken back in time, and what is preempted pays."""

from __future__ import annotations

import random
import re
from statistics import fmean, median

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.research.loans import (
    GRACE_S,
    ORDER_S,
    SERVER_GPUS,
    LoanFigures,
    LoanJob,
    LoanRules,
    LoanStudy,
    Owner,
)
from slurm_pal.research.loans_comparison import (
    DAY_S,
    POLICIES,
    Drawn,
    LoanComparison,
    LoanSeed,
    LoanSettings,
    gates,
)


def ran(jobs: list[LoanJob], steps: tuple[tuple[float, float], ...], **rules: bool) -> LoanFigures:
    owner = Owner(1, steps, (0.0,) * 168)
    made = LoanRules("", **rules)  # type: ignore[arg-type]
    return LoanStudy(
        jobs, owner, made, servers=1, restart_s=100.0, checkpoint_s=600.0, headroom=0.0, rng=random.Random(1)
    ).run()


WIDE = LoanJob(1.0, 3000.0, 3000.0, 1, 8, 1)


def test_a_preempted_guest_loses_what_it_did_since_its_checkpoint_and_pays_the_restart() -> None:
    second = WIDE._replace(arrival_s=2.0)
    found = ran([WIDE, second], ((0.0, 0.0), (850.0, 8.0)))
    # Both run at once; at 900 s the owner has its server back. 600 of 898 s are kept; it waits for the first to end.
    assert (found.preemptions, found.reclaims) == (1, 1)
    assert found.jct_p95_s == pytest.approx(3001 + 100 + 2400 - 2)
    assert found.lost_gpu_h == pytest.approx((298 + 100) * 8 / 3600)
    assert found.owner_wait_s == pytest.approx(50 + GRACE_S)
    zero = ran([WIDE, second], ((0.0, 0.0), (850.0, 8.0)), from_zero=True)
    assert zero.jct_p95_s == pytest.approx(3001 + 100 + 3000 - 2)


def test_flexible_workers_end_without_a_preemption() -> None:
    elastic = LoanJob(1.0, 8000.0, 8000.0, 4, 2, 8)
    found = ran([elastic], ((0.0, 0.0), (850.0, 8.0)))
    assert (found.preemptions, found.reclaims, found.scale_in) == (0, 1, 1.0)
    assert found.jct_s < 8000.0
    assert ran([elastic], ((0.0, 0.0), (850.0, 8.0)), scale=False).jct_s == pytest.approx(8000.0)


def test_without_loans_the_second_job_waits() -> None:
    found = ran([WIDE, WIDE._replace(arrival_s=2.0)], ((0.0, 0.0),), loan=False)
    assert found.queue_s == pytest.approx(2999 / 2)


def test_an_owner_waits_until_its_server_is_back_not_only_ordered_back() -> None:
    """Demand that rises in the grace time waits for the order after."""
    owner = ((0.0, 0.0), (850.0, 8.0), (905.0, 16.0))
    made = LoanRules("")
    found = LoanStudy(
        [WIDE, WIDE], Owner(2, owner, (0.0,) * 168), made, servers=1, restart_s=100.0, checkpoint_s=600.0,
        headroom=0.0, rng=random.Random(1),
    ).run()  # fmt: skip
    assert found.owner_wait_s == pytest.approx(1200 + GRACE_S - 905)
    assert found.reclaims == 2


def test_an_owner_that_needs_less_again_no_longer_waits() -> None:
    found = ran([WIDE], ((0.0, 0.0), (850.0, 8.0), (870.0, 0.0)))
    assert found.owner_wait_s == pytest.approx(20.0)


def test_base_workers_take_room_from_flexible_ones_before_they_are_guests() -> None:
    """On own servers nobody can be preempted."""
    elastic, other = LoanJob(1.0, 5000.0, 5000.0, 4, 1, 8), LoanJob(650.0, 3000.0, 3000.0, 1, 4, 1)
    steps = ((0.0, 8.0), (300.5, 0.0), (900.0, 8.0))
    found = ran([elastic, other], steps)  # the first has all of the own server, then the other half of it
    assert (found.reclaims, found.preemptions, found.queue_s) == (1, 0, 0.0)
    assert ran([elastic, other], steps, split=False).preemptions == 1


def test_eager_workers_come_back_without_a_cool_down() -> None:
    elastic, other = LoanJob(1.0, 5000.0, 5000.0, 4, 1, 8), LoanJob(650.0, 400.0, 400.0, 1, 4, 1)
    last = LoanJob(5000.0, 1.0, 1.0, 1, 1, 1)  # the owner uses all of its own
    slow, fast = (ran([elastic, other, last], ((0.0, 8.0),), eager=eager) for eager in (False, True))
    # It shrinks at 650 s, by four workers at once, and grows again at 1050 s, or at the first order after half an hour.
    assert fast.changes == slow.changes == 3
    assert fast.jct_p95_s == pytest.approx(slow.jct_p95_s - (2700 - 1050) / 2)


SMALL = LoanSettings(servers=6, days=4.0, elastic=0.1)


@pytest.fixture(scope="module")
def small() -> LoanSeed:
    return LoanComparison(SMALL, tuple(POLICIES)).run(1, lambda done, of: True)


@pytest.mark.long
def test_a_small_study_is_tuned_and_ends_all_jobs_under_every_policy(small: LoanSeed) -> None:
    assert abs(small.figures["aryl-none"].queue_s - 3000) <= 300
    assert small.days == pytest.approx(4.0, rel=0.06)
    assert small.figures["aryl"].queue_s < small.figures["aryl-none"].queue_s
    assert max(one.owner_wait_s for one in small.figures.values()) <= ORDER_S + GRACE_S


@pytest.mark.long
def test_no_policy_exceeds_the_bounds(small: LoanSeed) -> None:
    for one in small.figures.values():
        assert one.jct_s >= small.jct_bound_s
    for name in ("aryl-none", "aryl-sjf", "aryl-noloan", "aryl"):  # as many servers as the bound counts
        figures = small.figures[name]
        lost = figures.lost_gpu_h * 3600 / (2 * SMALL.servers * SERVER_GPUS * small.days * DAY_S)
        assert figures.usage - lost <= small.usage_bound + 1e-9


@pytest.mark.long
def test_gates_are_of_means_over_seeds(small: LoanSeed) -> None:
    found = {gate.name: gate for gate in gates([small, small])}
    base, own = small.figures["aryl-none"], small.figures["aryl"]
    assert found["A1"].measured == (pytest.approx(base.queue_s / own.queue_s) if own.queue_s else None)
    assert found["A2"].measured == pytest.approx(base.jct_s / own.jct_s)
    assert found["A2"].at_most == pytest.approx(base.jct_s / small.jct_bound_s)
    assert found["A2"].met == (base.jct_s / own.jct_s >= 1.48)
    assert found["A3"].measured == pytest.approx(100 * (own.usage / base.usage - 1))
    assert found["A6"].met and found["A6"].wanted == ORDER_S + GRACE_S
    late = small._replace(figures=small.figures | {"aryl": own._replace(owner_wait_s=331.0, queue_s=0.0)})
    found = {gate.name: gate for gate in gates([small, late])}
    assert not found["A6"].met and found["A6"].measured == 331.0


def test_with_jobs_given_nothing_is_tuned() -> None:
    found = LoanComparison(SMALL._replace(jobs=100), ()).run(1, lambda done, of: True)
    assert (found.jobs, found.draw, list(found.figures)) == (100, 1, ["aryl-none"])
    assert found.figures["aryl-none"].queue_s < 2700


@pytest.mark.long
def test_a_queue_that_no_number_of_jobs_makes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"seed 1: the baseline's jobs wait \d+ s, not 1000000000, however many"):
        LoanComparison(LoanSettings(servers=2, days=0.02, queue=1e9), ()).run(1, lambda done, of: True)


def test_a_longer_row_of_jobs_begins_with_the_shorter_one() -> None:
    fewer, more = (
        {(job.arrival_s, job.run_s) for job in Drawn(LoanSettings(), 1).jobs(number)} for number in (500, 600)
    )
    assert fewer < more
    other = {(job.arrival_s, job.run_s) for job in Drawn(LoanSettings(), 1, 2).jobs(500)}
    assert not other & fewer


def test_drawn_jobs_have_the_published_statistics() -> None:
    jobs = Drawn(LoanSettings(), 1).jobs(20_000)
    assert median(job.run_s for job in jobs) == pytest.approx(874, rel=0.05)
    assert fmean(job.workers * job.gpus for job in jobs) == pytest.approx(1.9, rel=0.03)
    assert {job.workers * job.gpus for job in jobs} == {1, 2, 4, 8, 16}
    assert max(job.run_s for job in jobs) <= 15 * DAY_S
    assert 14.9 * DAY_S <= jobs[-1].arrival_s <= 15 * DAY_S


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("jobs", "time"), [(0.0, 0.0), (0.05, 0.36), (0.2, 0.36), (0.5, 0.5), (1.0, 1.0)])
def test_elastic_jobs_have_both_shares(jobs: float, time: float, seed: int) -> None:
    drawn = Drawn(LoanSettings(elastic=jobs), seed).jobs(4000)
    elastic = [job for job in drawn if job.most > job.workers]
    assert len(elastic) == round(jobs * 4000)
    assert all(job.most == 2 * job.workers for job in elastic)
    used = [sum(job.run_s * job.workers * job.gpus for job in some) for some in (elastic, drawn)]
    assert used[0] / used[1] == pytest.approx(time, abs=0.001 + 1e-9)


def test_shares_that_no_jobs_have_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no 5 of 100 jobs were found that have 100% of the GPU time, to be elastic "):
        LoanComparison(LoanSettings(jobs=100, elastic_time=1.0), ()).run(1, lambda done, of: True)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"jobs": 9}, "jobs 9: 10 to 100,000, or 0"),
        ({"elastic": 1.5}, "each must be 0 to 1"),
        ({"error": 1.0}, "error below 1"),
        ({"days": 0.0}, "days 0.0: 2 to 1,000, above 0 and up to 60"),
        ({"queue": 0.0}, "queue 0.0 s: restart must be at least 0, the others above 0"),
    ],
)
def test_wrong_settings_are_refused(changed: dict[str, float], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        LoanComparison(LoanSettings()._replace(**changed), ()).check()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="policy 'aryl-x' is not one of aryl-none"):
        LoanComparison(LoanSettings(), ("aryl-x",)).check()
