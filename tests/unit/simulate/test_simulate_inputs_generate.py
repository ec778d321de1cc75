# SPDX-License-Identifier: MIT
"""Generated traces: the promised distributions, within what chance allows, and the promised independence.

Seeds are fixed, so a test passes always or never; bounds are 5 standard errors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs import describe
from slurm_pal.simulate.inputs.generate import (
    CLASS_MIX,
    LIMITS_H,
    SIZES,
    WEEK,
    LogNormal,
    RunTimeRange,
    TraceSpec,
    generate,
    mean_run_time_s,
    rate_per_h,
    side_by_side,
)

SIGMAS = 5
MANY = TraceSpec(jobs=40000, seed=11)


def near_share(found: float, share: float, count: int) -> bool:
    return abs(found - share) <= SIGMAS * math.sqrt(share * (1 - share) / count)


def near_mean(values: np.ndarray, mean: float) -> bool:
    return abs(values.mean() - mean) <= SIGMAS * values.std(ddof=1) / math.sqrt(len(values))


def column(spec: TraceSpec, name: str) -> np.ndarray:
    return np.array([getattr(job, name) for job in generate(spec).jobs])


def test_shares() -> None:
    found = describe(generate(MANY))
    assert found["sizes"].keys() == {str(size) for size in SIZES}
    assert all(near_share(found["sizes"][str(size)], share, MANY.jobs) for size, share in SIZES.items())
    assert all(near_share(found["classes"][kind], share, MANY.jobs) for kind, share in CLASS_MIX.items())


def test_run_times_are_the_log_uniform_mixture() -> None:
    run_s = column(MANY, "ideal_s")
    assert run_s.min() >= 60 * 10**1.5 - 1e-3
    assert run_s.max() <= 60 * 10**4
    for exponent, below in ((1.5, 0.0), (2.25, 0.4), (3.0, 0.8), (3.5, 0.9)):
        share = float((run_s < 60 * 10**exponent).mean())
        assert near_share(share, below, MANY.jobs) if below else share == 0
    assert near_mean(run_s, mean_run_time_s(MANY))


@given(st.floats(1, 1e6), st.floats(1.01, 1e4), st.floats(0.5, 1e11))
def test_mean_with_a_cap_is_the_integral(low_s: float, ratio: float, cap_s: float) -> None:
    points = (np.arange(20000) + 0.5) / 20000
    expected = np.minimum(low_s * ratio**points, cap_s).mean()
    assert RunTimeRange(1.0, low_s, low_s * ratio).mean_s(cap_s) == pytest.approx(expected, rel=1e-4)


def test_a_cap_cuts_run_times_and_nothing_else() -> None:
    free, cut = column(MANY, "ideal_s"), column(MANY._replace(cap_s=20000.0), "ideal_s")
    assert np.array_equal(cut, np.minimum(free, 20000.0))
    assert np.array_equal(
        column(MANY._replace(cap_s=20000.0, rate_per_h=9.0), "submit_s"),
        column(MANY._replace(rate_per_h=9.0), "submit_s"),
    )


@pytest.mark.parametrize("arrivals", ["poisson", "diurnal"])
def test_load_sets_the_rate(arrivals: str) -> None:
    spec = MANY._replace(arrivals=arrivals, load=0.7, cluster_gpus=128)
    jobs = generate(spec).jobs
    work = np.array([job.shape.total * job.ideal_s for job in jobs])
    assert near_mean(work / 3600 * rate_per_h(spec), 0.7 * 128)
    hours = jobs[-1].submit_s / 3600
    # The number of arrivals in that time is Poisson, and a week is never full at its end.
    assert abs(rate_per_h(spec) * hours - spec.jobs) <= SIGMAS * math.sqrt(spec.jobs) + 168 * rate_per_h(spec)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(column(MANY._replace(rate_per_h=60.0), "submit_s"))
    assert near_mean(gaps, 60.0)
    for limit_s in (6.0, 60.0, 180.0):
        assert near_share(float((gaps > limit_s).mean()), math.exp(-limit_s / 60), len(gaps))


def test_diurnal_arrivals_follow_the_week() -> None:
    spec = MANY._replace(arrivals="diurnal", rate_per_h=60.0)
    submit_s = column(spec, "submit_s")
    weeks = int(submit_s[-1] // (168 * 3600))
    assert weeks >= 3
    hour = (submit_s[submit_s < weeks * 168 * 3600] // 3600).astype(int) % 168
    expected = weeks * 60.0 * WEEK
    assert np.all(np.abs(np.bincount(hour, minlength=168) - expected) <= SIGMAS * np.sqrt(expected))
    assert WEEK.mean() == pytest.approx(1.0)
    assert WEEK[:120].mean() > 2 * WEEK[120:].mean()


@given(st.integers(0, 10**6))
def test_time_limits_are_what_people_write_and_long_enough(seed: int) -> None:
    for job in generate(TraceSpec(jobs=200, seed=seed)).jobs:
        assert job.limit_s is not None
        hours = job.limit_s / 3600
        assert job.limit_s >= (1.1 if job.shape.total == 1 else 1.87) * job.ideal_s * (1 - 1e-12)
        assert hours in LIMITS_H if hours <= LIMITS_H[-1] else hours % 24 == 0


def test_limits_overestimate() -> None:
    # The median before rounding up is 2.0; rounding adds, and never takes away.
    limit, run = column(MANY, "limit_s"), column(MANY, "ideal_s")
    assert 2.0 < np.median(limit / run) < 3.0
    for factor in (2.0, 4.0, 8.0):
        least = 0.5 * math.erfc(math.log(factor / 2) / 0.7 / math.sqrt(2))
        share = float((limit >= factor * run).mean())
        assert share >= least or near_share(share, least, MANY.jobs)


def test_users_are_zipf_and_belong_to_one_account() -> None:
    spec = MANY._replace(users=5, accounts=3, zipf=1.0)
    jobs = generate(spec).jobs
    total = sum(1 / rank for rank in range(1, 6))
    for rank in range(1, 6):
        share = sum(job.user == f"u{rank}" for job in jobs) / len(jobs)
        assert near_share(share, 1 / rank / total, len(jobs))
    assert len({(job.user, job.account) for job in jobs}) == 5
    assert {job.account for job in jobs} <= {"a1", "a2", "a3"}


@pytest.mark.parametrize("change", [{"classes": {"B": 1.0}}, {"users": 3}, {"sizes": {2: 1.0}, "rate_per_h": 5.0}])
def test_one_property_leaves_the_others(change: dict[str, Any]) -> None:
    base = TraceSpec(jobs=300, rate_per_h=5.0)
    # Sizes matter to limits: whoever uses several GPUs allows for the run across nodes.
    touched = {"classes": {"sensitivity"}, "users": {"user"}, "sizes": {"shape", "limit_s"}}[next(iter(change))]
    for name in ("submit_s", "shape", "ideal_s", "sensitivity", "limit_s", "user"):
        same = [getattr(job, name) for job in generate(base).jobs] == [
            getattr(job, name) for job in generate(base._replace(**change)).jobs
        ]
        assert same == (name not in touched)


def test_seeds() -> None:
    spec = TraceSpec(jobs=50)
    assert generate(spec) == generate(spec)
    assert generate(spec).jobs != generate(spec._replace(seed=2)).jobs


def test_owners_come_in_bursts_and_guests_may_go_on_from_checkpoints() -> None:
    short, long = LogNormal(600.0, 0.5), LogNormal(3600.0, 1.0)
    spec = TraceSpec(jobs=4000, rate_per_h=60.0)
    owner = generate(spec._replace(burst=4.0, movable=0.0, partition="owner", log_normal=short))
    gaps = np.diff([job.submit_s for job in owner.jobs])
    assert np.mean(gaps == 0.0) == pytest.approx(0.75, abs=0.03) and gaps.mean() == pytest.approx(60.0, rel=0.15)
    assert {(job.partition, job.movable) for job in owner.jobs} == {("owner", False)}
    assert np.median([job.ideal_s for job in owner.jobs]) == pytest.approx(600.0, rel=0.05)
    guest = generate(spec._replace(movable=0.6, partition="guest", log_normal=long, cap_s=7200.0))
    assert np.mean([job.movable for job in guest.jobs]) == pytest.approx(0.6, abs=0.03)
    drawn_s = np.mean([job.ideal_s for job in guest.jobs])
    assert drawn_s == pytest.approx(long.mean_s(7200.0), rel=0.05)
    both = side_by_side([owner, guest])
    assert [job.submit_s for job in both.jobs] == sorted(job.submit_s for job in both.jobs)
    assert len({job.job_id for job in both.jobs}) == 8000


def test_locality_penalties_per_class() -> None:
    jobs = generate(TraceSpec(jobs=200, locality_penalties={"A": 1.4})).jobs
    assert {(job.sensitivity, job.locality_penalty) for job in jobs} == {("A", 1.4), ("B", None), ("C", None)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"jobs": 0}, "jobs 0 must be in 1..1e\\+07"),
        ({"seed": -1}, "seed -1 must be"),
        ({"load": math.nan}, "load nan must be"),
        ({"load": 0.0}, "load 0 must be"),
        ({"rate_per_h": 0.0}, "submissions per hour 0 must be"),
        ({"arrivals": "weekly"}, "'weekly' is not one of poisson, diurnal"),
        ({"sizes": {}}, "sizes: shares \\[\\] must be"),
        ({"sizes": {1: -1.0, 2: 2.0}}, "sizes: shares .* must be"),
        ({"sizes": {1: math.nan}}, "sizes: shares .* must be"),
        ({"sizes": {0: 1.0}}, "job size in GPUs 0 must be in 1..64"),
        ({"sizes": {128: 1.0}}, "job size in GPUs 128 must be in 1..64"),
        ({"classes": {"E": 1.0}}, "class 'E' is not one of"),
        ({"locality_penalties": {"A": 0.5}}, "locality penalty of class A 0.5 must be"),
        ({"cap_s": 10.0}, "run time cap 10 s is below"),
        ({"run_times": (RunTimeRange(1.0, 5.0, 5.0),)}, "run times from 5 to 5 s must rise"),
        ({"run_times": ()}, "run times: shares"),
        ({"users": 0}, "users 0 must be"),
        ({"burst": 0.5}, "jobs of a burst 0.5 must be"),
        ({"movable": 1.5}, "share of movable jobs 1.5 must be"),
        ({"log_normal": LogNormal(0.0, 1.0)}, "median run time in s 0 must be"),
        ({"log_normal": LogNormal(60.0, math.nan)}, "sigma of run times nan must be"),
    ],
)
def test_values_out_of_range(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        generate(TraceSpec(**({"jobs": 10} | change)))
