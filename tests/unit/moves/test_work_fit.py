# SPDX-License-Identifier: MIT
"""Locality penalties learnt from step times: near the truth, and nothing where the steps do not show it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.journal.journal import Observation
from slurm_pal.moves.learning import corrections
from slurm_pal.moves.work_fit import fitted, known

KEY = "ann train 4 A"
TRUTH = {0: 1.0, 1: 1.3, 2: 1.9}


def seen(number: int, level: int, step_s: float, slowdown: float = 1.0, gpus: str = "") -> Observation:
    held = tuple((f"{gpus or f'n{number}-'}{k}", 0) for k in range(4))
    return Observation(KEY, number, 0, "A", held, slowdown, step_s, 1000.0 + number, level, 1.7 if level else 1.0)


def runs(
    counts: dict[int, int],
    sensitivity: float = 1.0,
    noise: float = 0.02,
    seed: int = 1,
    truth: dict[int, float] = TRUTH,
) -> list[Observation]:
    """Jobs of one kind at these levels, on GPUs of which the scores are a little wrong."""
    draw = random.Random(seed)
    found = []
    for level, count in counts.items():
        for _ in range(count):
            slowdown = draw.choice([0.95, 1.0, 1.0, 1.1, 1.3])
            step_s = 0.4 * slowdown**sensitivity * truth[level] * math.exp(draw.gauss(0.0, noise))
            found.append(seen(len(found), level, step_s, slowdown))
    return found


@pytest.mark.parametrize("sensitivity", [0.1, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_penalties_are_within_five_percent_of_the_truth(seed: int, sensitivity: float) -> None:
    found = corrections(runs({0: 5, 1: 5, 2: 5}, sensitivity, seed=seed), expected=(1.7,))
    assert found.penalties[KEY] == pytest.approx((1.3, 1.9), rel=0.05)
    assert found.sensitivity[KEY] == pytest.approx(sensitivity, abs=0.3)
    assert all(factor == pytest.approx(1.0, abs=0.1) for factor in (one.factor for one in found.gpus.values()))


def test_two_runs_at_each_level_are_enough() -> None:
    errors = [
        abs(corrections(runs({0: 2, 1: 2}, seed=seed), expected=(1.7,)).penalties[KEY][0] / 1.3 - 1.0)
        for seed in range(40)
    ]
    assert sorted(errors)[35] < 0.05


@pytest.mark.parametrize("counts", [{0: 9}, {1: 9}, {0: 9, 1: 1}, {0: 1, 1: 9}, {0: 1, 1: 1, 2: 1}])
def test_what_the_steps_do_not_show_is_not_known(counts: dict[int, int]) -> None:
    assert corrections(runs(counts), expected=(1.7,)).penalties == {}


def test_one_set_of_gpus_that_became_slow_is_no_network() -> None:
    slow = [seen(50 + k, 1, 0.4 * 1.3 * 1.5, gpus="slow") for k in range(6)]
    found = corrections([*runs({0: 9}), *slow], expected=(1.7,))
    assert found.penalties == {}


def test_a_level_is_compared_with_the_lowest_that_was_seen() -> None:
    found = corrections(runs({1: 5, 2: 5}), expected=(1.5,))
    assert found.penalties[KEY] == pytest.approx((1.5, 1.5 * 1.9 / 1.3), rel=0.05)


def test_all_reduces_say_what_the_levels_are_that_no_job_has_seen() -> None:
    ratios = {1: 4.0, 2: 10.0}  # a tenth of the time: 1.3 and 1.9
    found = corrections(runs({0: 5, 1: 5}), expected=(1.7, 3.1), ratios=ratios)
    assert found.penalties[KEY] == pytest.approx((1.3, 1.9), rel=0.06)


def test_a_network_slower_than_believed_accuses_no_gpu() -> None:
    """By the site's 1.7 the GPUs of jobs on two leaves would be slow by a third."""
    truth = {0: 1.0, 1: 2.5}
    rows = [
        one._replace(key=f"{user} train 4 A", job_id=100 * number + one.job_id)
        for number, user in enumerate(("ann", "bob", "eve"))
        for one in runs({0: 6, 1: 6}, seed=number, truth=truth)
    ]
    found = corrections(rows, expected=(1.7,))
    assert found.exposed == () and len(found.penalties) == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(1e-3, 1e3), st.floats(0.5, 3.0), st.integers(0, 3)),
        min_size=1,
        max_size=20,
    )
)
def test_whatever_is_seen_the_fit_is_in_bounds(rows: list[tuple[int, float, float, int]]) -> None:
    observations = [seen(k, level, s, v, gpus=f"g{which}") for k, (level, s, v, which) in enumerate(rows)]
    work = fitted(observations, (1.7,))
    assert 0.0 <= work.sensitivity <= 3.0 and 0 < work.base_s < math.inf
    assert all(1.0 <= factor <= 20.001 for factor in work.penalties.values())
    assert known(work, observations).keys() <= {level for level, *_ in rows} - {0}
