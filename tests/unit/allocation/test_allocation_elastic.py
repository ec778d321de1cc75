# SPDX-License-Identifier: MIT
"""The two phases: shortest first, then the knapsack against brute force and greedy (aryl.md, gate A5)."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from slurm_pal.allocation import elastic as e
from slurm_pal.allocation.elastic import ElasticJob, Item, admit, flexible_workers, saved_s
from slurm_pal.base.errors import UsageError


def drawn(rng: random.Random, count: int, curves: bool = False) -> list[ElasticJob]:
    found = []
    for number in range(count):
        base = rng.randint(1, 4)
        rates: tuple[float, ...] = ()
        if curves:  # any curve, not only concave ones
            rates = tuple(itertools.accumulate([1.0, *(rng.uniform(0, 1) for _ in range(base))]))
        found.append(ElasticJob(f"j{number}", base, 2 * base, rng.choice((1, 2, 4)), rng.lognormvariate(7, 2), rates))
    return found


def value(jobs: list[ElasticJob], counts: dict[str, int]) -> float:
    return math.fsum(saved_s(job, counts[job.job]) for job in jobs)


def weight(jobs: list[ElasticJob], counts: dict[str, int]) -> int:
    return sum(job.gpus * counts[job.job] for job in jobs)


def optimum(jobs: list[ElasticJob], gpus: int, churn: float = 0.0) -> float:
    """By trying everything."""
    choices = (
        dict(zip((job.job for job in jobs), picked, strict=True))
        for picked in itertools.product(*(range(job.most - job.base + 1) for job in jobs))
    )
    return max(
        value(jobs, counts) - churn * sum(job.restart_s for job in jobs if counts[job.job] != job.flexible)
        for counts in choices
        if weight(jobs, counts) <= gpus
    )


@pytest.mark.parametrize("curves", [False, True])
def test_dynamic_programming_equals_brute_force(curves: bool) -> None:
    rng = random.Random(5)
    for _ in range(100):
        jobs, gpus = drawn(rng, rng.randint(0, 5), curves), rng.randint(0, 20)
        counts = flexible_workers(jobs, gpus)
        assert weight(jobs, counts) <= gpus
        assert value(jobs, counts) == pytest.approx(optimum(jobs, gpus), rel=1e-12)


def test_greedy_reaches_99_5_percent_of_dynamic_programming() -> None:
    rng = random.Random(6)
    exact = greedy = 0.0
    for _ in range(50):
        jobs = drawn(rng, 40)
        by_greedy = flexible_workers(jobs, 96, exact=0)
        assert weight(jobs, by_greedy) <= 96
        exact += value(jobs, flexible_workers(jobs, 96))
        greedy += value(jobs, by_greedy)
    assert 0.995 * exact <= greedy <= exact * (1 + 1e-12)


def test_linear_scaling_saves_a_share_of_the_remaining_time() -> None:
    job = ElasticJob("a", 2, 4, 1, 600.0)
    assert [saved_s(job, k) for k in (0, 1, 2)] == pytest.approx([0, 200, 300])
    assert saved_s(job._replace(rates=(1.0, 1.25, 1.0)), 1) == pytest.approx(120)


def test_a_curve_that_falls_gets_no_further_workers() -> None:
    job = ElasticJob("a", 1, 3, 1, 600.0, rates=(1.0, 1.5, 0.9))
    for exact in (0, e.EXACT):
        assert flexible_workers([job], 10, exact=exact) == {"a": 1}


def test_greedy_takes_several_workers_at_once_where_only_they_pay() -> None:
    job = ElasticJob("a", 1, 3, 1, 600.0, rates=(1.0, 1.0, 2.0))
    assert flexible_workers([job], 2, exact=0) == {"a": 2}


@pytest.mark.parametrize("exact", [0, e.EXACT])
def test_a_change_must_save_churn_times_its_restart(exact: int) -> None:
    job = ElasticJob("a", 2, 4, 1, 600.0, restart_s=151.0)  # 300 s saved with both
    assert flexible_workers([job], 2, churn=e.CHURN, exact=exact) == {"a": 0}
    assert flexible_workers([job._replace(restart_s=149.0)], 2, churn=e.CHURN, exact=exact) == {"a": 2}
    # Its second worker would save only 100 s more.
    assert flexible_workers([job._replace(flexible=1)], 2, churn=e.CHURN, exact=exact) == {"a": 1}
    # There is no room for what it has.
    assert flexible_workers([job._replace(flexible=2)], 1, churn=e.CHURN, exact=exact) == {"a": 1}


def test_changes_together_save_churn_times_what_they_cost() -> None:
    rng = random.Random(7)
    for _ in range(50):
        jobs = [job._replace(flexible=rng.randint(0, job.base), restart_s=150.0) for job in drawn(rng, 4)]
        gpus = sum(job.gpus * job.flexible for job in jobs) + rng.randint(0, 4)
        counts = flexible_workers(jobs, gpus, churn=2.0)
        changed = [job for job in jobs if counts[job.job] != job.flexible]
        gained = value(jobs, counts) - value(jobs, {job.job: job.flexible for job in jobs})
        assert gained >= 2.0 * 150.0 * len(changed) - 1e-6
        charged = value(jobs, counts) - 2.0 * 150.0 * len(changed)
        assert charged == pytest.approx(optimum(jobs, gpus, 2.0))


def test_a_job_that_has_just_changed_is_left_alone_unless_there_is_no_room() -> None:
    still = ElasticJob("still", 1, 3, 1, 100.0, flexible=1, still_s=60.0)
    none = ElasticJob("none", 1, 3, 1, 1e6, still_s=60.0)
    other = ElasticJob("other", 1, 3, 1, 1e6)
    assert flexible_workers([still, none, other], 3, cool_down_s=1800.0) == {"still": 1, "none": 0, "other": 2}
    assert flexible_workers([still, other], 0, cool_down_s=1800.0) == {"still": 0, "other": 0}


def test_shortest_first_and_what_does_not_fit_is_passed_over() -> None:
    items = [Item("long", 1, 90.0), Item("wide", 8, 20.0), Item("short", 4, 10.0), Item("same", 1, 10.0)]
    free = [6]

    def take(item: Item) -> bool:
        fits = item.gpus <= free[0]
        free[0] -= item.gpus * fits
        return fits

    assert [item.job for item in admit(items, take)] == ["short", "same", "long"]


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (ElasticJob("a", 0, 2, 1, 1.0), "elastic job a: base 0"),
        (ElasticJob("a", 3, 2, 1, 1.0), "most at least base"),
        (ElasticJob("a", 1, 2, 0, 1.0), "workers of 0 GPUs"),
        (ElasticJob("a", 1, 2, 1, 1.0, flexible=2), "flexible 2"),
        (ElasticJob("a", 1, 2, 1, math.inf), "inf s to run"),
        (ElasticJob("a", 1, 2, 1, 1.0, rates=(1.0,)), r"it needs 2, for 1 to 2 workers"),
        (ElasticJob("a", 1, 2, 1, 1.0, rates=(0.0, 1.0)), "each above 0"),
    ],
)
def test_wrong_jobs_are_refused(job: ElasticJob, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        flexible_workers([job], 4)


def test_wrong_gpus_and_equal_names_are_refused() -> None:
    with pytest.raises(UsageError, match="-1 GPUs"):
        flexible_workers([], -1)
    with pytest.raises(UsageError, match="2 elastic jobs have 1 names"):
        flexible_workers([ElasticJob("a", 1, 2, 1, 1.0)] * 2, 4)
