# SPDX-License-Identifier: MIT
"""The picks of replica mode against their definitions, written out over single GPUs (pal.md 3)."""

from __future__ import annotations

from itertools import combinations
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.placement.lxv import lxv
from slurm_pal.research.replica import picks
from slurm_pal.research.replica.free import Free, RankTable

from ...doubles.trials import trials

Levels = list[float | None]


def pm_first(levels: Levels, size: int, candidates: list[int], n: int) -> list[int] | None:
    """3.1: sort by level, then |candidates of that level on that node - n|, then id."""
    if len(candidates) < n:
        return None

    def key(g: int) -> tuple[float, int, int]:
        alike = sum(levels[h] == levels[g] and h // size == g // size for h in candidates)
        return (levels[g] or 0.0, abs(alike - n), g)

    return sorted(sorted(candidates, key=key)[:n])


def pal(levels: Levels, size: int, penalty: float, candidates: list[int], n: int) -> list[int] | None:
    """3.2 with the combinations enumerated."""
    if n == 1 or n > size:
        return pm_first(levels, size, candidates, n)
    known = [level for level in levels if level is not None]
    for level, within, _ in lxv(known, penalty):
        eligible = [g for g in candidates if (levels[g] or 0.0) <= level]
        if not within:
            if len(eligible) >= n:
                return pm_first(levels, size, eligible, n)
            continue
        by_node: dict[int, list[int]] = {}
        for g in eligible:
            by_node.setdefault(g // size, []).append(g)
        nodes = sorted((node for node in by_node if len(by_node[node]) >= n), key=lambda k: (-len(by_node[k]), k))
        sets = [chosen for node in nodes for chosen in combinations(by_node[node], n)]
        if sets:
            return list(min(sets, key=lambda chosen: max(levels[g] or 0.0 for g in chosen)))
    return None


def packed(size: int, candidates: list[int], n: int) -> list[int] | None:
    """3.4, taking from the fullest node again and again."""
    by_node: dict[int, list[int]] = {}
    for g in candidates:
        by_node.setdefault(g // size, []).append(g)
    for node in sorted(by_node):
        if len(by_node[node]) == n:
            return by_node[node]
    large = [node for node in sorted(by_node) if len(by_node[node]) > n]
    if large:
        return by_node[min(large, key=lambda k: len(by_node[k]))][:n]
    if len(candidates) < n:
        return None
    chosen: list[int] = []
    while len(chosen) < n:
        node = min(by_node, key=lambda k: (-len(by_node[k]), k))
        chosen += by_node.pop(node)[: n - len(chosen)]
    return sorted(chosen)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Levels, int, float, list[int], int]:
    """Levels per GPU, node size, locality penalty, held GPUs and a number of GPUs to pick."""
    size, n_nodes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    scale: list[float | None] = draw(
        st.sampled_from([[0.9, 1.0, 1.5, 1.8, 3.0], [1.0, 2.0, 4.0], [1.0], [0.9, 1.0, None]])
    )
    levels = draw(st.lists(st.sampled_from(scale), min_size=size * n_nodes, max_size=size * n_nodes))
    held = sorted(draw(st.sets(st.integers(0, len(levels) - 1))))
    # 2.0 makes products equal to other levels.
    return levels, size, draw(st.sampled_from([1.0, 1.7, 2.0])), held, draw(st.integers(1, len(levels)))


def free_of(levels: Levels, size: int, penalty: float, held: list[int]) -> tuple[Free, list[int]]:
    free = Free(RankTable(levels, size, penalty))
    free.flip(held)
    return free, [g for g, level in enumerate(levels) if g not in held and level is not None]


def taken(free: Free, pick: picks.Pick, n: int, generator: Random) -> list[int] | None:
    pieces = pick(free, n, generator)
    return None if pieces is None else list(free.take(pieces))


@trials(400)
@given(cases())
def test_pm_first_is_the_sort(case: tuple[Levels, int, float, list[int], int]) -> None:
    levels, size, penalty, held, n = case
    free, candidates = free_of(levels, size, penalty, held)
    assert taken(free, picks.pm_first, n, Random(0)) == pm_first(levels, size, candidates, n)


@trials(600)
@given(cases())
def test_pal_is_the_walk_with_combinations(case: tuple[Levels, int, float, list[int], int]) -> None:
    levels, size, penalty, held, n = case
    free, candidates = free_of(levels, size, penalty, held)
    assert taken(free, picks.pal, n, Random(0)) == pal(levels, size, penalty, candidates, n)


@trials(400)
@given(cases())
def test_packed_is_best_fit_then_fullest(case: tuple[Levels, int, float, list[int], int]) -> None:
    levels, size, penalty, held, n = case
    flat: Levels = [None if level is None else 1.0 for level in levels]
    if any(flat):
        free, candidates = free_of(flat, size, penalty, held)
        assert taken(free, picks.packed, n, Random(0)) == packed(size, candidates, n)


@trials(100)
@given(cases())
def test_shuffled_is_random_sample_and_draws_only_when_it_fits(
    case: tuple[Levels, int, float, list[int], int],
) -> None:
    levels, size, penalty, held, n = case
    flat: Levels = [None if level is None else 1.0 for level in levels]
    if any(flat):
        free, candidates = free_of(flat, size, penalty, held)
        generator, other = Random(9), Random(9)
        expected = sorted(other.sample(candidates, n)) if n <= len(candidates) else None
        assert taken(free, picks.shuffled, n, generator) == expected
        assert generator.getstate() == other.getstate()


@trials(100)
@given(cases(), st.lists(st.integers(0, 19)))
def test_sets_kept_up_to_date_are_sets_made_anew(
    case: tuple[Levels, int, float, list[int], int], flips: list[int]
) -> None:
    levels, size, penalty, held, _ = case
    free, _ = free_of(levels, size, penalty, held)
    for g in flips:
        free.flip([g % len(levels)])
    sets = free.sets
    free.follow(free.table)
    assert sets == free.sets
    assert free.left == sum(mask.bit_count() for mask in free.node)


def test_a_cheap_spread_beats_a_slow_node() -> None:
    """Level 4 within one node costs more than level 1 across: 1.7."""
    levels: Levels = [1.0, 4.0, 1.0, 4.0]
    free, _ = free_of(levels, 2, 1.7, [])
    assert taken(free, picks.pal, 2, Random(0)) == [0, 2]


def test_the_random_streams_are_cpythons() -> None:
    """The Random baselines are comparable only while these do not change."""
    generator = Random(42)
    assert [generator.choice(range(1404)) for _ in range(3)] == [1309, 228, 51]
    assert generator.sample(range(64), 4) == [35, 31, 28, 17]
