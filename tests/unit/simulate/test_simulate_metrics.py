# SPDX-License-Identifier: MIT
"""Metrics of one replay on jobs that can be reckoned by hand, and ratios over pairs."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.simulate.metrics import (
    WEEK_S,
    ReplayMetrics,
    by_week,
    element,
    measure,
    measure_all,
    size_group,
    work_gpu_s,
)
from slurm_pal.simulate.result import Replay
from slurm_pal.simulate.statistics import (
    Ratio,
    WorstGpus,
    compared,
    mean_interval,
    needed,
    over_pieces,
    paired,
    pairs,
    ratios,
    share_of_worst,
    summary,
    verdict,
    worst_tenth,
)

from ...doubles.replay_factory import drawn, outcome, replay
from ...doubles.trials import trials

positive = st.floats(0.01, 100.0)


def test_times_of_three_jobs() -> None:
    jobs = [
        outcome("1", submit_s=0.0, start_s=100.0, finish_s=1100.0),
        outcome("2", submit_s=50.0, start_s=50.0, finish_s=3050.0, gpus=4, ideal_s=3000.0, end="TIMEOUT"),
        outcome("3", submit_s=0.0, start_s=0.0, finish_s=60.0, ideal_s=60.0, restarts=2),
    ]
    found = measure(replay(jobs, moves=3, move_gpu_s=7200.0))
    assert (found.jobs, found.timeouts, found.restarts, found.moves) == (3, 1, 2, 3)
    assert found.mean_jct_s == pytest.approx((1100 + 3000 + 60) / 3)
    assert (found.median_jct_s, found.p99_jct_s) == (1100.0, 3000.0)
    assert found.mean_wait_s == pytest.approx(100 / 3)
    assert found.makespan_s == 3050.0
    held = 1000 + 4 * 3000 + 60
    assert found.utilisation == pytest.approx(held / (4 * 3050))
    assert found.gpu_hours == pytest.approx(held / 3600)
    assert found.move_gpu_hours == 2.0
    # The job of 60 s counts as one of 600 s, and never as less than its own time.
    assert found.bounded_slowdown == pytest.approx((1.1 + 1.0 + 1.0) / 3)


@pytest.mark.parametrize(("n", "place"), [(1, 0), (2, 1), (99, 98), (100, 99), (160, 158), (1000, 990)])
def test_p99_is_the_artefacts_element(n: int, place: int) -> None:
    assert element(range(n), 0.99) == place


def test_slowdown_is_weighted_by_ideal_gpu_seconds() -> None:
    jobs = [
        outcome("1", gpus=1, ideal_s=1000.0, slowdown=1.1, locality=1.0),
        outcome("2", gpus=8, ideal_s=500.0, slowdown=1.0, locality=1.7),
        outcome("3", sensitivity="C", slowdown=1.3),
    ]
    found = measure(replay(jobs)).slowdown
    assert found == pytest.approx({"A": (1000 * 1.1 + 4000 * 1.7) / 5000, "C": 1.3})


def test_a_killed_job_weighs_what_it_did() -> None:
    killed = outcome(gpus=2, ideal_s=9000.0, finish_s=2000.0, slowdown=1.25, locality=1.6, end="TIMEOUT")
    assert work_gpu_s(killed) == pytest.approx(2 * 1000.0)
    assert work_gpu_s(killed._replace(end="COMPLETED")) == 18000.0


def test_spread_counts_multi_gpu_jobs_only() -> None:
    jobs = [
        outcome("1", locality=1.7),  # one GPU: cannot be spread, whatever the number says
        outcome("2", gpus=4, ideal_s=3000.0, locality=1.0 + 1e-12),
        outcome("3", gpus=2, ideal_s=2000.0, locality=1.2),
    ]
    found = measure(replay(jobs))
    assert found.spread_share == 0.5
    assert found.spread_work_share == pytest.approx(4000 / 16000)
    alone = measure(replay([outcome()]))
    assert (alone.spread_share, alone.spread_work_share) == (None, None)


def test_groups() -> None:
    assert [size_group(n) for n in (1, 2, 4, 5, 8, 9, 48)] == ["1", "2-4", "2-4", "5-8", "5-8", ">8", ">8"]
    jobs = [
        outcome("1", finish_s=100.0, user="ann"),
        outcome("2", finish_s=300.0, user="ann", gpus=2, sensitivity="B"),
        outcome("3", finish_s=500.0, user="", account="", sensitivity="B"),
    ]
    found = measure(replay(jobs))
    assert found.user_jct_s == {"ann": 200.0}
    assert found.account_jct_s == {"lab": 200.0}
    assert found.class_jct_s == {"A": 100.0, "B": 400.0}
    assert found.size_jct_s == {"1": 300.0, "2-4": 300.0}
    assert found.value("class_jct_s.B") == 400.0
    assert found.value("class_jct_s.Z") is None
    assert found.value("moves") == 0.0


@pytest.mark.parametrize("name", ["jct", "class_jct_s", "moves.A", "value", ""])
def test_a_name_that_is_no_metric(name: str) -> None:
    with pytest.raises(ValueError, match="not a metric"):
        measure(replay([outcome()])).value(name)


def test_a_replay_without_jobs() -> None:
    with pytest.raises(DataError, match="seed 1"):
        measure(replay([]))
    assert measure_all([replay([])]) == []


def test_jobs_of_no_length_have_no_utilisation() -> None:
    assert measure(replay([outcome(finish_s=0.0, ideal_s=0.0)], end_s=0.0)).utilisation == 0.0


@given(st.lists(st.tuples(positive, positive, st.integers(1, 64)), min_size=1, max_size=30))
def test_metrics_of_any_jobs_are_in_range(rows: list[tuple[float, float, int]]) -> None:
    jobs = [
        outcome(str(i), submit_s=0.0, start_s=wait, finish_s=wait + run, gpus=n)
        for i, (wait, run, n) in enumerate(rows)
    ]
    found = measure(replay(jobs, n_gpus=64 * len(jobs)))
    assert 0 < found.utilisation <= 1
    assert found.median_jct_s <= found.p99_jct_s <= found.makespan_s + 1e-9
    assert found.bounded_slowdown >= 1
    assert min(found.size_jct_s.values()) <= found.mean_jct_s + 1e-9
    assert found.mean_jct_s <= max(found.size_jct_s.values()) + 1e-9


# Ratios over pairs


def one_job(policy: str, seed: int, jct_s: float, queue: str = "fifo", complete: bool = True) -> Replay:
    run = replay([outcome(finish_s=jct_s)], policy=policy, seed=seed, queue=queue, complete=complete)
    return run._replace(trace=seed)


def runs_of(ours: list[float]) -> list[Replay]:
    """Pairs with these ratios; the baseline's JCT differs from pair to pair."""
    base = [one_job("packed", seed, 1000.0 * (seed + 1)) for seed in range(len(ours))]
    return base + [one_job("pal", seed, 1000.0 * (seed + 1) * ratio) for seed, ratio in enumerate(ours)]


def test_only_equal_queue_and_seed_make_a_pair() -> None:
    runs = [
        one_job("packed", 1, 1000.0),
        one_job("pal", 1, 500.0),
        one_job("packed", 2, 1000.0),
        one_job("pal", 3, 9000.0),
        one_job("pal", 2, 9000.0, queue="easy"),
        one_job("packed", 4, 1000.0),
        one_job("pal", 4, 9000.0, complete=False),
    ]
    assert ratios(runs, "pal", "packed", "mean_jct_s") == [0.5]
    found = paired(runs, "pal", "packed", "mean_jct_s")
    assert found is not None and (found.mean, found.geomean) == pytest.approx((0.5, 0.5))
    assert found[1:3] + found[5:] == (None, None, None, None, None, 1) and found.n == 1
    assert verdict(found) == "cannot tell"
    assert needed(found, 0.02) is None


def test_measured_runs_are_not_measured_again() -> None:
    runs = runs_of([0.5, 0.8])
    known = measure_all(runs)
    assert measure_all(known) == known
    assert all(isinstance(run, ReplayMetrics) for run in known)
    assert paired(known, "pal", "packed", "mean_jct_s") == paired(runs, "pal", "packed", "mean_jct_s")


def test_runs_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no run of policy 'gavel'; there are runs of packed, pal"):
        paired(runs_of([0.5]), "gavel", "packed", "mean_jct_s")
    with pytest.raises(ValueError, match="twice"):
        pairs([one_job("pal", 1, 1.0), one_job("pal", 1, 2.0)], "pal", "pal")
    short = replay([outcome("1"), outcome("2")], policy="pal", trace=1)
    with pytest.raises(ValueError, match="2 jobs under pal, 1 under packed"):
        pairs([one_job("packed", 1, 1.0), short], "pal", "packed")


def test_a_metric_that_is_zero_has_no_ratio() -> None:
    runs = runs_of([0.5, 0.8])  # nobody waits
    assert paired(runs, "pal", "packed", "mean_wait_s") is None
    assert paired(runs, "pal", "packed", "slowdown.C") is None


def test_arithmetic_and_geometric_mean() -> None:
    found = paired(runs_of([0.5, 2.0]), "pal", "packed", "mean_jct_s")
    assert found is not None
    assert (found.mean, found.geomean) == pytest.approx((1.25, 1.0))
    assert verdict(found) == "cannot tell"


def test_seeds_of_one_trace_are_one_piece() -> None:
    """However many there are: they move submissions by minutes."""
    base = [one_job("packed", seed, 1000.0)._replace(trace=0) for seed in range(60)]
    ours = [one_job("pal", seed, 700.0 + seed)._replace(trace=0) for seed in range(60)]
    found = paired([*base, *ours], "pal", "packed", "mean_jct_s")
    assert found is not None and (found.n, found.pieces, verdict(found)) == (60, 1, "cannot tell")
    assert (found.mean, found.geomean) == pytest.approx((0.7295, 0.7293), abs=1e-4)
    assert over_pieces({(0, 0): [0.5, 2.0]}, 2)[:7] == pytest.approx((1.25, None, None, 2, 1.0, None, None))


def weekly(policy: str, factors: list[float], jobs: int = 30, seed: int = 1) -> Replay:
    """A run of this many weeks, whose jobs take 1000 s times the week's factor."""
    made = [
        outcome(f"{week}.{k}", submit_s=at_s, start_s=at_s, finish_s=at_s + 1000.0 * factor)
        for week, factor in enumerate(factors)
        for k in range(jobs)
        for at_s in [week * WEEK_S + k]
    ]
    return replay(made, policy=policy, seed=seed)


def test_weeks_of_one_trace_are_pieces_where_they_hold_enough_jobs() -> None:
    ours = [0.7, 0.8, 0.75, 0.9, 0.85, 0.7]
    runs = [weekly("packed", [1.0] * 6), weekly("pal", ours)]
    found = paired(runs, "pal", "packed", "mean_jct_s")
    assert found is not None and (found.n, found.pieces) == (1, 6)
    assert found[:3] == pytest.approx(summary(ours)[:3]) and verdict(found) == "gain"
    whole = paired(runs, "pal", "packed", "makespan_s")
    assert whole is not None and whole.pieces == 1, "a week has no makespan of its own"
    few = paired([weekly("packed", [1.0] * 6, 8), weekly("pal", ours, 8)], "pal", "packed", "mean_jct_s")
    assert few is not None and few.pieces == 2, "three weeks of 7 or 8 jobs make a piece"
    for weeks, sizes in ((7, [24, 32]), (4, []), (2, []), (6, [24, 24])):
        jobs = by_week(weekly("packed", [1.0] * weeks, 8).outcomes)
        assert [len(piece) for piece in jobs] == sizes, "the last piece takes what is left over"
        assert len({outcome.job_id for piece in jobs for outcome in piece}) == sum(sizes)
    five = paired([weekly("packed", [1.0] * 5), weekly("pal", ours[:5])], "pal", "packed", "mean_jct_s")
    assert verdict(five) == "cannot tell"


def test_products_of_runs_multiply_to_the_whole() -> None:
    a, b, c, d = measure_all(one_job("x", 1, jct_s) for jct_s in (600.0, 800.0, 500.0, 1000.0))
    found = compared([((a, b), (c, d))], "mean_jct_s")
    assert found is not None and found.mean == pytest.approx(600 * 800 / (500 * 1000))
    assert compared([((a, b), (c, d))], "mean_wait_s") is None, "nobody waits"
    assert compared([], "mean_jct_s") is None


def test_the_t_interval_of_few_pieces_by_hand() -> None:
    values = [0.8, 0.9, 1.0, 0.85, 0.95, 0.7]
    logs = np.log(values)
    half = 2.570582 * logs.std(ddof=1) / math.sqrt(6)  # t table, 5 degrees of freedom
    found = summary(values)
    assert (found.geo_low, found.geo_high) == pytest.approx(
        (math.exp(logs.mean() - half), math.exp(logs.mean() + half)), rel=1e-6
    )


@pytest.mark.parametrize("n", [6, 8, 24])
def test_equal_ratios_have_no_width(n: int) -> None:
    found = summary([0.9] * n)
    assert (found.low, found.high, found.geo_low, found.geo_high) == pytest.approx((0.9,) * 4)
    assert verdict(found) == "gain"


@trials(40)
@given(st.lists(st.floats(0.2, 5.0), min_size=6, max_size=30))
def test_intervals_hold_their_means(values: list[float]) -> None:
    found = summary(values)
    assert found.n == len(values)
    for low, mean, high in ((found.low, found.mean, found.high), (found.geo_low, found.geomean, found.geo_high)):
        assert low is not None and high is not None
        assert math.isfinite(low) and math.isfinite(high)
        assert low <= mean * (1 + 1e-9)
        assert high >= mean * (1 - 1e-9)
    assert found.geomean <= found.mean * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=20))
def test_swapping_the_policies_inverts_the_geometric_mean(values: list[float]) -> None:
    there, back = summary(values), summary([1 / v for v in values])
    assert there.geomean * back.geomean == pytest.approx(1.0)
    assert (there.log_sd or 0.0) == pytest.approx(back.log_sd or 0.0, abs=1e-9)


@pytest.mark.parametrize("n", [6, pytest.param(8, marks=pytest.mark.long)])
def test_95_percent_intervals_hold_the_truth_that_often(n: int) -> None:
    """Unwidened bootstraps of 8 values hold it 88 times in 100, which this must catch.

    With 400 draws the share of 94 to 95 in 100 is known to within 1.2 (one standard error).
    """
    draw = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        found = summary(np.exp(draw.normal(-0.1, 0.2, n)).tolist())
        held += (found.geo_low or 0) <= math.exp(-0.1) <= (found.geo_high or 0)
    assert held >= 0.9 * 400


def test_the_same_runs_give_the_same_interval() -> None:
    values = [random.Random(i).lognormvariate(-0.1, 0.3) for i in range(24)]
    assert summary(values) == summary(values)


def test_verdicts() -> None:
    assert verdict(summary([0.8, 0.82, 0.79, 0.81, 0.8, 0.8])) == "gain"
    assert verdict(summary([1.2, 1.22, 1.19, 1.21, 1.2, 1.2])) == "loss"
    assert verdict(summary([0.7, 1.2, 0.9, 1.1, 1.0, 0.95])) == "unclear"
    assert verdict(summary([0.8, 0.82, 0.79, 0.81, 0.8])) == "cannot tell"
    assert verdict(None) == "unclear"
    skewed = Ratio(1.3, 1.05, 1.9, 24, 1.0, 0.9, 1.1, 0.3)  # one pair carries the mean
    assert verdict(skewed) == "unclear"


@given(st.floats(0.01, 1.0), st.floats(0.005, 0.5))
def test_needed_is_the_least_that_suffices(sd: float, half_width: float) -> None:
    n = needed(Ratio(1.0, 0.9, 1.1, 24, 1.0, 0.9, 1.1, sd), half_width)
    assert n is not None and n >= 2

    def width(pairs: int) -> float:
        from scipy import stats

        return math.expm1(float(stats.t.ppf(0.975, pairs - 1)) * sd / math.sqrt(pairs))

    assert width(n) <= half_width * (1 + 1e-9)
    assert n == 2 or width(n - 1) > half_width * (1 - 1e-9)


@pytest.mark.parametrize("half_width", [0.0, -0.1])
def test_no_number_of_pairs_gives_no_width(half_width: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        needed(summary([0.9, 1.0]), half_width)


@pytest.mark.parametrize(
    ("total", "capped", "share"),
    [
        (0.81, 0.9, 0.5),
        (0.81, 0.81, 0.0),
        (0.81, 1.0, 1.0),
        (0.81, 1.2, 1.0),  # a loss without them: they gave all there was
        (0.81, 0.7, 0.0),  # more is gained without them: none of it is theirs
        (1.0, 0.9, None),
        (1.1, 0.9, None),
    ],
)
def test_share_of_the_worst(total: float, capped: float, share: float | None) -> None:
    assert share_of_worst(total, capped) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(("total", "capped"), [(0.0, 0.9), (0.9, -1.0), (math.nan, 0.9), (0.9, math.nan)])
def test_share_of_what_is_no_ratio(total: float, capped: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        share_of_worst(total, capped)


def test_no_share_of_a_gain_that_is_not_clear() -> None:
    noisy, clear = summary([0.5, 0.9, 1.4] * 2), summary([0.81, 0.8, 0.82] * 2)
    assert WorstGpus(2, noisy, summary([1.0, 1.0])).share is None
    assert WorstGpus(2, clear, summary([0.9, 0.9])).share == pytest.approx(0.5, abs=0.01)


def test_the_worst_tenth_of_users() -> None:
    users = [f"u{i:02d}" for i in range(20)]

    def run(policy: str, seed: int, factor: dict[str, float]) -> Replay:
        jobs = [outcome(u, user=u, account="", finish_s=1000.0 * seed * factor.get(u, 0.8)) for u in users]
        return replay(jobs, policy=policy, seed=seed)

    base = dict.fromkeys(users, 1.0)
    runs = [run("packed", seed, base) for seed in (1, 2)]
    runs += [run("pal", 1, {"u03": 4.0, "u07": 1.5}), run("pal", 2, {"u03": 1.0, "u07": 1.5})]
    found = worst_tenth(runs, "pal", "packed")
    assert found is not None
    assert (found.members, found.of) == (2, 20)
    assert found.ratio == pytest.approx(math.sqrt(2.0 * 1.5))
    assert worst_tenth(runs, "pal", "packed", "account_jct_s") is None


def test_mean_interval() -> None:
    assert mean_interval([3.0]) == (3.0, 3.0, 3.0)
    mean, low, high = mean_interval([1.0, 3.0])
    assert (mean, high - mean) == pytest.approx((2.0, 12.7062), rel=1e-4)
    assert mean - low == pytest.approx(high - mean)


def test_a_better_policy_is_found_better() -> None:
    runs = [drawn("packed", seed) for seed in range(12)] + [drawn("fit", seed, slowdown=0.8) for seed in range(12)]
    assert verdict(paired(runs, "fit", "packed", "mean_jct_s")) == "gain"
    assert verdict(paired(runs, "packed", "fit", "mean_jct_s")) == "loss"


def test_importing_the_metrics_costs_no_scipy() -> None:
    code = "import sys, slurm_pal.simulate.statistics; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
