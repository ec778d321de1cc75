# SPDX-License-Identifier: MIT
"""Who is first in line, on cases small enough to do by hand."""

from __future__ import annotations

from math import pow
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.simulate.queues import MAX_AGE_S, QUEUES, WEIGHTS, Usage, multifactor

DAY_S = 86400.0


class Pending(NamedTuple):
    name: str
    submit_s: float = 0.0
    limit_s: float = 3600.0
    gpus: int = 1
    user: str = "ann"
    account: str = ""
    attained_s: float = 0.0


def order(queue: str, *jobs: Pending, now_s: float = 100.0, usage: Usage | None = None) -> str:
    """The names in the queue's order; ties as given, which is the order of submission."""
    used = usage or Usage()
    key = QUEUES[queue].key
    return "".join(job.name for job in sorted(jobs, key=lambda job: key(job, now_s, used)))


def test_fifo_goes_by_submission_alone() -> None:
    assert (
        order("fifo", Pending("a", 30, limit_s=1), Pending("b", 10, gpus=64), Pending("c", 20, attained_s=5)) == "bca"
    )


def test_las_goes_by_what_a_job_has_had() -> None:
    """A job that lost its node goes behind those that never ran."""
    assert order("las", Pending("a", 0, attained_s=50), Pending("b", 20), Pending("c", 10, attained_s=49)) == "bca"


def test_srtf_goes_by_what_is_left_of_the_limit_not_by_the_true_run_time() -> None:
    jobs = Pending("a", limit_s=100), Pending("b", limit_s=500, attained_s=450), Pending("c", limit_s=60)
    assert order("srtf", *jobs) == "bca"


def test_the_order_of_fixed_queues_does_not_change_while_jobs_wait() -> None:
    usage = Usage()
    usage.add("ann", 1000.0, 0.0)
    jobs = [Pending(str(k), submit_s=k * 7 % 5, limit_s=1 + k * 3 % 7, attained_s=k * 5 % 3) for k in range(10)]
    for name, queue in QUEUES.items():
        if queue.fixed:
            later = order(name, *jobs, now_s=30 * DAY_S, usage=usage)
            assert order(name, *jobs) == later, name
    assert not QUEUES["multifactor"].fixed


def test_multifactor_prefers_age_then_levels_off() -> None:
    assert order("multifactor", Pending("a", 90), Pending("b", 10)) == "ba"
    old, older = Pending("a", 0.0), Pending("b", -5 * MAX_AGE_S)
    assert multifactor(old, MAX_AGE_S, Usage()) == multifactor(older, MAX_AGE_S, Usage())


def test_multifactor_prefers_whoever_used_less() -> None:
    usage = Usage()
    usage.add("rich", 3000.0, 0.0)
    usage.add("poor", 1000.0, 0.0)
    jobs = Pending("a", account="rich"), Pending("b", account="poor"), Pending("c", account="new")
    assert order("multifactor", *jobs, usage=usage) == "cba"
    # two accounts with usage: shares 3/4 and 1/4, fair share 2^-(3/4 x 2) and 2^-(1/4 x 2)
    assert usage.fair("rich", 0.0) == pytest.approx(pow(2, -1.5))
    assert usage.fair("poor", 0.0) == pytest.approx(pow(2, -0.5))
    assert usage.fair("new", 0.0) == 1.0


def test_multifactor_takes_the_user_where_no_account_is_known() -> None:
    usage = Usage()
    usage.add("ann", 1000.0, 0.0)
    assert order("multifactor", Pending("a", user="ann"), Pending("b", user="bob"), usage=usage) == "ba"
    assert order("multifactor", Pending("a", user="ann", account="x"), Pending("b", 1, user="bob"), usage=usage) == "ab"


def test_multifactor_prefers_wide_jobs_up_to_64_gpus() -> None:
    assert order("multifactor", Pending("a", gpus=1), Pending("b", gpus=64)) == "ba"
    narrow, wide = (multifactor(Pending("a", 100.0, gpus=gpus), 100.0, Usage()) for gpus in (64, 640))
    assert narrow == wide == -(WEIGHTS["fairshare"] + WEIGHTS["size"])


def test_usage_halves_in_the_half_life() -> None:
    usage = Usage(half_life_s=100.0)
    usage.add("a", 800.0, 0.0)
    usage.add("b", 100.0, 300.0)  # a's 800 are 100 by then
    assert usage.share("a", 300.0) == pytest.approx(0.5)
    usage.add("b", 0.0, 400.0)
    assert usage.share("a", 400.0) == pytest.approx(0.5), "all decay alike"
    assert usage.share("nobody", 400.0) == 0.0
    assert Usage().share("a", 0.0) == 0.0


ADDS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=12)


@given(ADDS, st.floats(0, 1e6))
def test_usage_is_the_sum_of_what_is_left_of_each_addition(adds: list[tuple[str, float, float]], wait_s: float) -> None:
    usage, now_s = Usage(half_life_s=1e5), 0.0
    parts: list[tuple[str, float, float]] = []
    for account, gpu_s, gap_s in adds:
        now_s += gap_s
        usage.add(account, gpu_s, now_s)
        parts.append((account, gpu_s, now_s))
    now_s += wait_s
    left = {name: sum(x * pow(0.5, (now_s - at) / 1e5) for who, x, at in parts if who == name) for name in "abc"}
    total = sum(left.values())
    if total > 1e-200:  # below, rounding is all that is left
        for name in "abc":
            assert usage.share(name, now_s) == pytest.approx(left[name] / total, abs=1e-9)


@given(ADDS, st.lists(st.floats(0, 1e6), min_size=1, max_size=4))
def test_a_fair_share_that_is_remembered_is_that_of_the_moment(
    adds: list[tuple[str, float, float]], later_s: list[float]
) -> None:
    """Asked in between or not, the answer is the same."""
    asked, quiet, now_s = Usage(1e5), Usage(1e5), 0.0
    for account, gpu_s, gap_s in adds:
        now_s += gap_s
        for usage in (asked, quiet):
            usage.add(account, gpu_s, now_s)
        asked.fair("a", now_s)
        asked.fair("b", now_s)
    for gap_s in later_s:
        now_s += gap_s
        asked.fair("c", now_s)
    assert [asked.fair(name, now_s) for name in "abc"] == [quiet.fair(name, now_s) for name in "abc"]
