# SPDX-License-Identifier: MIT
"""Owners and guests, the study: loans are taken back in time, and what is preempted pays."""

from __future__ import annotations

import random

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.research.loans import GRACE_S, ORDER_S, LoanFigures, LoanJob, LoanRules, LoanStudy, Owner
from slurm_pal.research.loans_comparison import POLICIES, LoanComparison, LoanSettings, draw_jobs


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


def test_a_small_study_is_tuned_and_ends_all_jobs_under_every_policy() -> None:
    found = LoanComparison(LoanSettings(jobs=300, servers=4), tuple(POLICIES)).run(1, lambda done, of: True)
    assert abs(found.figures["aryl-none"].queue_s - 3000) <= 300
    assert found.figures["aryl"].queue_s < found.figures["aryl-none"].queue_s
    assert max(one.owner_wait_s for one in found.figures.values()) <= ORDER_S + GRACE_S


def test_elastic_jobs_have_their_share() -> None:
    jobs = draw_jobs(LoanSettings(), 1)
    elastic = [job for job in jobs if job.most > job.workers]
    assert len(elastic) == 180
    time = [sum(job.run_s * job.workers * job.gpus for job in some) for some in (elastic, jobs)]
    assert time[0] / time[1] == pytest.approx(0.36, abs=0.05)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="policy 'aryl-x' is not one of aryl-none"):
        LoanComparison(LoanSettings(), ("aryl-x",)).check()
