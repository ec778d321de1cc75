# SPDX-License-Identifier: MIT
"""How many classes, where, who changes; and the numbering over groups."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.classes import Held, assign, choose, icc_of, nearest, step
from slurm_pal.variability.flags import beyond_chance, fast_outliers, robust_scale, slow_outliers
from slurm_pal.variability.levels import MAX_LEVELS, Level, number
from slurm_pal.variability.params import Params
from slurm_pal.variability.slowdown import GroupSlowdowns

P = Params()
NOBODY: frozenset[str] = frozenset()


def standing(values: list[float], repeatability: float = 0.0012) -> GroupSlowdowns:
    slow = np.array(values)
    scale = robust_scale(slow, P)
    names = tuple(f"g{i:04d}" for i in range(len(values)))
    return GroupSlowdowns(
        uuids=names,
        slowdown=slow,
        z=(slow - 1) / scale,
        relative=slow,
        scale=scale,
        slow_z=beyond_chance(len(values), P),
        kinds=None,
        slower_kind=slow > np.inf,
        repeatability=repeatability,
        small=len(values) < P.small_group,
    )


def spread(n: int, sd: float = 0.02, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    values = np.array([1 + draw.gauss(0, sd) for _ in range(n)])
    return (values / np.median(values)).tolist()


def test_robust_scale_ignores_outliers_and_has_a_floor() -> None:
    calm = spread(200)
    wild = [*calm[:-5], 2.0, 3.0, 2.5, 1.5, 1.5]
    assert robust_scale(np.array(wild), P) == pytest.approx(robust_scale(np.array(calm), P), rel=0.1)
    assert robust_scale(np.ones(10), P) == P.mad_floor


@pytest.mark.parametrize(
    ("value", "scale", "slow", "fast"),
    [
        (1.011, 0.002, True, False),
        (1.009, 0.002, False, False),
        (1.06, 0.019, True, False),
        (1.06, 0.021, False, False),
        (1.049, 0.015, False, False),
        (0.98, 0.002, False, True),
        (1.0, 0.002, False, False),
    ],
)
def test_outlier_rule(value: float, scale: float, slow: bool, fast: bool) -> None:
    assert bool(slow_outliers(np.array([value]), scale, P.slow_z, P)[0]) is slow
    assert bool(fast_outliers(np.array([value]), scale, P)[0]) is fast


def test_classes_become_fewer_the_more_of_the_spread_is_noise() -> None:
    """No cliff: with rising noise 5 classes become 4, 3, 2 and one."""
    values = np.array(spread(400, sd=0.01))
    chosen = [choose(values, noise, P)[0].k for noise in np.linspace(0.0006, 0.012, 40)]
    assert chosen == sorted(chosen, reverse=True)
    assert set(chosen) == {5, 4, 3, 2, 1}
    worth = [icc_of(values, noise) for noise in (0.0, 0.0012, 0.005, 0.0095, 0.02)]
    assert worth == sorted(worth, reverse=True) and worth[0] == 1.0 and worth[-1] == 0.0
    assert worth[1] == pytest.approx(1 - 0.12**2, abs=0.003)


def test_a_gpu_that_noise_has_set_apart_is_no_class() -> None:
    values = np.array([*spread(31, sd=0.0004), 1.006])
    assert choose(values, 0.0012, P)[0].k == 1
    held = step(None, standing(values.tolist()), NOBODY, NOBODY, P)
    again = step(held, standing([*spread(31, sd=0.0004, seed=2), 1.006]), NOBODY, NOBODY, P)
    assert held and again and held.flat and again.flat


def test_as_many_classes_as_explain_nine_tenths() -> None:
    values = np.array([c + d / 10000 for c in (0.95, 1.0, 1.05) for d in range(-10, 10)])
    found, explained = choose(values, 0.0012, P)
    assert found.k == 3 and explained > 0.99


@pytest.mark.parametrize("gpus", [100, 400, 1000, 5000])
def test_a_large_cluster_has_as_many_classes_as_a_small_one(gpus: int) -> None:
    """By the silhouette there were two from 1,000 GPUs on, split where GPUs are densest."""
    found, explained = choose(np.array(spread(gpus)), 0.0012, P)
    assert found.k in (4, 5) and explained >= 0.9


def test_few_gpus_have_few_classes() -> None:
    chosen = [choose(np.array(spread(n)), 0.0012, P)[0].k for n in (3, 4, 8, 12, 15, 40)]
    assert chosen == [1, 2, 2, 3, 3, 4]


def test_the_number_of_classes_can_be_set() -> None:
    values = spread(400)
    for k in (1, 2, 7):
        held = step(None, standing(values), NOBODY, NOBODY, P._replace(k=k))
        assert held is not None and len(held.centroids) == k and not held.flat
    assert len(step(None, standing([1.0] * 8), NOBODY, NOBODY, P._replace(k=3)).centroids) == 1  # type: ignore[union-attr]


def test_few_gpus_have_a_wider_scale() -> None:
    """The MAD of a few is often far too small; of healthy ones hardly any may be an outlier."""
    draw = np.random.default_rng(1)
    for n in (4, 6, 8, 12, 16):
        flagged = 0
        for _ in range(400):
            slow = 1.0 + draw.normal(0.0, 0.015, n)
            slow /= np.median(slow)
            flagged += int(slow_outliers(slow, robust_scale(slow, P), beyond_chance(n, P), P).sum())
        assert flagged <= 0.004 * 400 * n, n
    assert slow_outliers(np.array([1.4]), robust_scale(np.array([0.98, 0.99, 1.0, 1.01, 1.02, 1.4]), P), 5.0, P)[0]


def test_the_slowest_of_many_healthy_gpus_is_no_outlier() -> None:
    slow = np.array(spread(10_000))
    assert int((slow > P.slow).sum()) > 30 and int(((slow - 1) / robust_scale(slow, P) > P.slow_z).sum()) > 5
    assert not slow_outliers(slow, robust_scale(slow, P), beyond_chance(10_000, P), P).any()
    assert slow_outliers(np.array([1.12]), robust_scale(slow, P), beyond_chance(10_000, P), P)[0]


def test_centroids_are_not_closer_than_the_gap() -> None:
    values = np.array([c + d / 1e6 for c in (0.999, 1.001) for d in range(16)])
    found, _ = choose(values, 0.0001, P)
    assert found.k == 1


def test_slow_outliers_stand_alone_and_fast_ones_join_the_best() -> None:
    values = [*spread(62, sd=0.01), 1.5, 0.9]
    held = step(None, standing(values), NOBODY, NOBODY, P)
    assert held is not None
    assert held.lone == {"g0062"}
    assert held.members["g0063"] == 0
    assert max(held.centroids) < 1.1 and min(held.centroids) > 0.95


def test_faulty_gpus_stand_alone_and_unfit_ones_do_not_shape_the_classes() -> None:
    values = spread(64, sd=0.01)
    without = step(None, standing(values), NOBODY, NOBODY, P)
    worst = f"g{int(np.argmax(values)):04d}"
    faulty = step(None, standing(values), NOBODY, frozenset({worst}), P)
    unfit = step(None, standing(values), frozenset({worst}), NOBODY, P)
    assert without and faulty and unfit
    assert worst in faulty.lone and worst not in without.lone
    assert worst in unfit.members
    assert unfit.centroids == faulty.centroids != without.centroids


def test_all_flagged_still_gives_classes() -> None:
    values = spread(20)
    everybody = frozenset(f"g{i:04d}" for i in range(20))
    held = step(None, standing(values), everybody, NOBODY, P)
    assert held is not None and len(held.members) == 20


def test_small_groups_have_no_classes() -> None:
    assert step(None, standing([1.0, 1.0, 1.0]), NOBODY, NOBODY, P) is None


def test_hysteresis_holds_until_the_boundary_is_passed_clearly() -> None:
    held = Held((0.98, 1.02), {"a": 0, "b": 1, "c": 0, "d": 1}, NOBODY, False, 4, 0.7)
    values = np.array([1.002, 0.998, 1.003, 0.997, 1.002])
    assert assign(values, ("a", "b", "c", "d", "new"), held, P).tolist() == [0, 1, 1, 0, 1]


@given(
    st.lists(st.floats(0.9, 1.2), min_size=4, max_size=40), st.lists(st.floats(-0.004, 0.004), min_size=40, max_size=40)
)
def test_members_change_class_only_past_the_boundary(values: list[float], moves: list[float]) -> None:
    first = step(None, standing(values), NOBODY, NOBODY, P)
    assert first is not None
    moved = np.array(values) + np.array(moves[: len(values)])
    names = tuple(f"g{i:04d}" for i in range(len(values)))
    labels = assign(moved, names, first, P)
    edges = (np.array(first.centroids)[1:] + np.array(first.centroids)[:-1]) / 2
    for i, name in enumerate(names):
        old = first.members.get(name)
        if old is not None and labels[i] != old:
            crossed = edges[old] if labels[i] > old else edges[old - 1]
            assert abs(moved[i] - crossed) >= P.hysteresis * 0.999


@given(st.lists(st.floats(0.9, 1.3), min_size=4, max_size=60))
def test_a_second_look_at_the_same_data_changes_nothing(values: list[float]) -> None:
    normed = (np.array(values) / np.median(values)).tolist()
    first = step(None, standing(normed), NOBODY, NOBODY, P)
    second = step(first, standing(normed), NOBODY, NOBODY, P)
    assert second == first


def test_refit_needs_a_clear_gain() -> None:
    values = spread(400)
    first = step(None, standing(values), NOBODY, NOBODY, P)
    assert first is not None
    draw = random.Random(3)
    again = step(first, standing([v + draw.gauss(0, 0.001) for v in values]), NOBODY, NOBODY, P)
    assert again is not None and again.centroids == first.centroids
    apart = [1.04 + (v - 1) / 10 if v > 1 else 0.97 + (v - 1) / 10 for v in values]
    refit = step(first, standing(apart), NOBODY, NOBODY, P)
    assert refit is not None and refit.centroids != first.centroids


def test_refit_when_the_group_has_grown() -> None:
    first = step(None, standing(spread(16)), NOBODY, NOBODY, P)
    later = step(first, standing(spread(400)), NOBODY, NOBODY, P)
    assert first and later and later.fitted > 300


def test_outliers_have_hysteresis_too() -> None:
    values = [*spread(63, sd=0.004), 1.05]
    scale = standing(values).scale
    edge = 1.0 + P.outlier_z * scale
    inside = step(None, standing([*values[:-1], edge - 0.001]), NOBODY, NOBODY, P)
    outside = step(None, standing([*values[:-1], edge + 0.002]), NOBODY, NOBODY, P)
    assert inside and outside
    assert "g0063" in inside.members and "g0063" in outside.lone
    assert "g0063" in step(inside, standing([*values[:-1], edge + 0.002]), NOBODY, NOBODY, P).members  # type: ignore[union-attr]
    assert "g0063" in step(outside, standing([*values[:-1], edge - 0.001]), NOBODY, NOBODY, P).lone  # type: ignore[union-attr]


@given(
    st.lists(st.floats(0.9, 1.1), min_size=1, max_size=30),
    st.lists(st.floats(0.8, 1.2), min_size=1, max_size=5, unique=True),
)
def test_nearest_is_nearest(values: list[float], centroids: list[float]) -> None:
    ordered = np.array(sorted(centroids))
    labels = nearest(np.array(values), ordered)
    for value, label in zip(values, labels, strict=True):
        assert abs(value - ordered[label]) == pytest.approx(np.abs(ordered - value).min())


def test_one_group_is_numbered_by_rising_level() -> None:
    levels = [Level(1.02, 0, 5, False), Level(0.98, 0, 5, False), Level(1.5, 0, 1, True), Level(1.2, 0, 1, True)]
    assert number(levels, P) == ([1, 0, 3, 2], [0.98, 1.02, 1.2, 1.5])


def test_groups_share_classes_that_coincide() -> None:
    levels = [
        Level(0.98, 0, 30, False),
        Level(1.02, 0, 10, False),
        Level(0.981, 1, 10, False),
        Level(1.06, 1, 10, False),
    ]
    numbers, values = number(levels, P)
    assert numbers == [0, 1, 0, 2]
    assert values[0] == pytest.approx((0.98 * 30 + 0.981 * 10) / 40)


def test_classes_of_one_group_are_never_merged() -> None:
    levels = [Level(1.0, 0, 5, False), Level(1.001, 0, 5, False), Level(1.0, 0, 1, True)]
    numbers, values = number(levels, P)
    assert len(set(numbers)) == 3 and values == [1.0, 1.0, 1.001]


@given(st.lists(st.tuples(st.floats(0.5, 3.0), st.integers(0, 9), st.booleans()), max_size=400))
def test_numbers_fit_a_byte_and_rise(raw: list[tuple[float, int, bool]]) -> None:
    levels = [Level(v, g, 1, lone) for v, g, lone in raw]
    numbers, values = number(levels, P)
    assert values == sorted(values) and len(values) <= MAX_LEVELS
    assert len(numbers) == len(levels) and set(numbers) == set(range(len(values)))


def test_many_outliers_share_classes_with_their_neighbours() -> None:
    levels = [Level(1.2 + i / 1000, 0, 1, True) for i in range(300)]
    numbers, values = number(levels, P)
    assert len(values) == P.max_lone_classes
    assert numbers == sorted(numbers)
    assert max(abs(values[n] - level.value) for n, level in zip(numbers, levels, strict=True)) < 0.003
