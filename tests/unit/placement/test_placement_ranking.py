# SPDX-License-Identifier: MIT
"""What is kept between jobs answers as a look at every node does, whatever happened in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement import POLICIES, class_fit, place
from slurm_pal.placement.candidates import Key, Preference, Scan
from slurm_pal.placement.occupancy import PLAIN, Occupancy
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.ranking import Ranking
from slurm_pal.placement.view import Placement, Rule

from ...doubles.cluster_factory import CLASSES, Table, levels, scanned, shapes, tables
from ...doubles.trials import trials

SIZE = 4  # GPUs of the largest node

# -- Ranking against Scan ------------------------------------------------------------------


class Nodes:
    """Numbers of usable GPUs and a liking per node, both of which change."""

    def __init__(self, usable: Sequence[int], liking: Sequence[int]) -> None:
        self.usable, self.liking = list(usable), list(liking)
        self.keys = 0  # how often a key was computed
        self.preference = Preference(lambda node: self.usable[node], self._key)

    def _key(self, node: int, count: int) -> Key:
        assert self.usable[node] >= count, "a key is asked only where the GPUs are"
        self.keys += 1
        return (self.usable[node] - count, self.liking[node])  # ties are left to the node's number

    def set(self, node: int, usable: int, liking: int) -> None:
        self.usable[node], self.liking[node] = usable, liking


USABLE = st.integers(0, SIZE)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 99), USABLE, st.integers(0, 2)),
        st.tuples(st.just("best"), st.integers(1, SIZE + 1), st.sets(st.integers(0, 7))),
        st.tuples(st.just("fullest"), st.just(0), st.sets(st.integers(0, 7))),
    ),
    max_size=60,
)


@given(st.lists(st.tuples(USABLE, st.integers(0, 2)), min_size=0, max_size=8), STEPS)
def test_a_ranking_answers_like_a_scan_after_any_changes(start: list[tuple[int, int]], steps: list[tuple]) -> None:  # type: ignore[type-arg]
    nodes = Nodes([usable for usable, _ in start], [liking for _, liking in start])
    ranking = Ranking(len(start), nodes.preference)
    for kind, value, *rest in steps:
        if kind == "set":
            if start:
                node = value % len(start)
                nodes.set(node, *rest)
                ranking.changed(node)
            continue
        scan = Scan(len(start), nodes.preference)
        (used,) = rest
        if kind == "best":
            assert ranking.best(value, used) == scan.best(value, used)
        else:
            assert ranking.fullest(used) == scan.fullest(used)


def test_nodes_set_aside_for_one_answer_are_there_for_the_next() -> None:
    nodes = Nodes([2, 2, 2], [0, 1, 2])
    ranking = Ranking(3, nodes.preference)
    assert ranking.best(1, {0, 1}) == 2
    assert ranking.best(1, {0}) == 1
    assert ranking.best(1, ()) == 0
    assert ranking.best(1, {0, 1, 2}) is None
    assert ranking.fullest({1}) == (0, 2)
    assert ranking.fullest({0, 1, 2}) is None


def test_a_node_may_come_to_hold_more_than_any_did_at_first() -> None:
    nodes = Nodes([0, 0], [0, 0])
    ranking = Ranking(2, nodes.preference)
    assert ranking.fullest(()) is None
    nodes.set(1, 3, 0)
    ranking.changed(1)
    assert ranking.fullest(()) == (1, 3)
    assert ranking.best(3, ()) == 1


def entries(ranking: Ranking) -> int:
    """Everything a ranking keeps that could grow."""
    heaps = [*ranking._fitting.values(), *ranking._exact.values()]
    return sum(len(heap.entries) for heap in heaps) + len(ranking._log) + len(ranking._late)


def test_what_is_kept_does_not_grow_with_the_number_of_changes() -> None:
    count, draw = 50, random.Random(1)
    nodes = Nodes([SIZE] * count, [0] * count)
    ranking = Ranking(count, nodes.preference)
    most = 0
    for step in range(5_000):
        node = draw.randrange(count)
        nodes.set(node, draw.randrange(SIZE + 1), draw.randrange(3))
        ranking.changed(node)
        used = {draw.randrange(count)}
        if step % 3:
            assert ranking.best(1 + step % 4, used) == Scan(count, nodes.preference).best(1 + step % 4, used)
        if step % 50 == 0:
            assert ranking.fullest(used) == Scan(count, nodes.preference).fullest(used)
        most = max(most, entries(ranking))
    heaps = 2 * SIZE
    log = 4 * count + 64
    assert most <= heaps * (count + log) + log + count


def test_a_heap_that_is_always_asked_does_not_grow_either() -> None:
    """One node is liked best throughout, so that what becomes void never comes up to be dropped."""
    count = 20
    nodes = Nodes([1] * count, [0] + [1] * (count - 1))
    ranking = Ranking(count, nodes.preference)
    for step in range(5000):
        node = 1 + step % (count - 1)
        nodes.set(node, 1, 1 + step % 3)
        ranking.changed(node)
        assert ranking.best(1, ()) == 0
        assert ranking.best(1, {0}) == Scan(count, nodes.preference).best(1, {0})
        assert entries(ranking) <= count + 2 * (4 * count + 64)


def test_a_change_is_worked_off_once_however_often_the_node_changed() -> None:
    count = 1000
    nodes = Nodes([SIZE] * count, [0] * count)
    ranking = Ranking(count, nodes.preference)
    ranking.best(1, ())
    before = nodes.keys
    for _ in range(100):
        nodes.set(7, 3, 1)
        ranking.changed(7)
    assert ranking.best(1, ()) == 7
    assert nodes.keys - before == 1


def test_a_heap_that_is_seldom_asked_answers_right_after_a_long_time() -> None:
    nodes = Nodes([1, 2, 2], [0, 0, 0])
    ranking = Ranking(3, nodes.preference)
    assert ranking.best(2, ()) == 1
    for _ in range(500):  # the log is begun anew in between
        nodes.set(0, 2, 1)
        ranking.changed(0)
        assert ranking.best(1, ()) == 1
        nodes.set(0, 1, 0)
        ranking.changed(0)
        assert ranking.best(1, ()) == 0
    nodes.set(1, 0, 0)
    ranking.changed(1)
    assert ranking.best(2, ()) == 2


# -- Occupancy against a view from scratch ----------------------------------------------------


class Model:
    """The same cluster twice: an Occupancy, and sets of free GPUs."""

    def __init__(self, sizes: Sequence[int], seed: int, best_first: bool, partitions: dict[str, list[int]]) -> None:
        self.slowdown: dict[str, Table] = tables(sizes, seed, faulty=0.15 * (seed % 2))
        self.names = [f"n{i}" for i in range(len(sizes))]
        self.best_first, self.partitions = best_first, partitions
        self.occupancy = Occupancy(self.names, self.slowdown, levels(self.slowdown), partitions, best_first)
        self.free = [set(range(size)) for size in sizes]
        self.down: set[int] = set()

    def usable(self) -> list[set[int]]:
        return [set() if node in self.down else set(free) for node, free in enumerate(self.free)]

    def placed(self, policy: str, shape: GpuShape, rule: Rule, partition: str) -> Placement | None:
        """The answer without an Occupancy."""
        nodes = list(self.partitions[partition]) if partition else list(range(len(self.names)))
        largest = max((len(self.slowdown["A"][node]) for node in nodes), default=0)
        if shape.whole_nodes:
            nodes = [n for n in nodes if n not in self.down and len(self.free[n]) == len(self.slowdown["A"][n])]
        view = scanned(self.names, self.usable(), self.slowdown, rule.sensitivity, self.best_first, nodes)
        if not nodes:
            return None
        found = plain_pick(view, shape, rule) if policy == PLAIN else place(policy, view, shape, rule, None, largest)
        return None if found is None else found._replace(nodes=tuple(nodes[i] for i in found.nodes))

    def check(self) -> None:
        usable = self.usable()
        assert self.occupancy.free_gpus == sum(map(len, usable))
        assert [self.occupancy.free(node) for node in range(len(usable))] == [len(free) for free in usable]
        assert [self.occupancy.free_indexes(node) for node in range(len(usable))] == usable
        assert self.occupancy.free_counts() == [len(free) for free in usable]
        for name, nodes in self.partitions.items():
            counts = [len(free) if node in nodes else 0 for node, free in enumerate(usable)]
            assert self.occupancy.free_counts(name) == counts


class Act(NamedTuple):
    """One step: what, and numbers to choose by."""

    what: str  # take, give, down, up
    first: int
    second: int


ACTS = st.lists(
    st.builds(Act, st.sampled_from(("take", "take", "give", "down", "up")), st.integers(0, 10**6), st.integers(0, 15)),
    max_size=25,
)


def carry_out(model: Model, act: Act) -> None:
    node = act.first % len(model.names)
    if act.what == "take":
        chosen = tuple(k for k in sorted(model.free[node]) if act.second >> k & 1)
        model.occupancy.take([(node, chosen)])
        model.free[node] -= set(chosen)
    elif act.what == "give":
        held = set(range(len(model.slowdown["A"][node]))) - model.free[node]
        chosen = tuple(k for k in sorted(held) if act.second >> k & 1)
        model.occupancy.give([(node, chosen)])
        model.free[node] |= set(chosen)
    else:
        model.occupancy.set_down(node, act.what == "down")
        (model.down.add if act.what == "down" else model.down.discard)(node)


# Nodes of one size: with several sizes a published rule may look at the largest node in the view, free or not.
ALIKE = st.integers(2, SIZE).flatmap(lambda size: st.lists(st.just(size), min_size=1, max_size=6))
KEPT = [name for name in (*POLICIES, PLAIN) if name != "random"]


@trials(150)
@given(ALIKE, st.integers(0, 999), st.booleans(), ACTS, st.data())
def test_an_occupancy_places_like_a_view_from_scratch(
    sizes: list[int], seed: int, best_first: bool, acts: list[Act], data: st.DataObject
) -> None:
    half = list(range(0, len(sizes), 2))
    model = Model(sizes, seed, best_first, {"half": half, "all": list(range(len(sizes)))})
    whole = [GpuShape(n, whole_nodes=True) for n in (1, sizes[0] + 1)]
    for act in [*acts, Act("up", 0, 0)]:
        carry_out(model, act)
        model.check()
        shape = data.draw(st.sampled_from(shapes(sizes[0]) + whole))
        partition = data.draw(st.sampled_from(("", "half", "all")))
        c, bar, measured = st.sampled_from((*CLASSES, "?")), st.sampled_from((1.02, 1.2)), st.booleans()
        rule = Rule(data.draw(c), 1.7, data.draw(bar), seed, data.draw(measured))
        for policy in data.draw(st.lists(st.sampled_from(KEPT), min_size=3, max_size=3, unique=True)):
            found = model.occupancy.place(policy, shape, rule, partition)
            assert found == model.placed(policy, shape, rule, partition), (policy, shape, partition)


@trials(150)
@given(st.lists(st.integers(0, SIZE), min_size=2, max_size=6), st.integers(0, 999), ACTS, st.data())
@example([2, 4, 0], 0, [], None)
def test_it_does_so_on_nodes_of_several_sizes(
    sizes: list[int], seed: int, acts: list[Act], data: st.DataObject | None
) -> None:
    model = Model(sizes, seed, False, {"half": list(range(0, len(sizes), 2))})
    for act in [*acts, Act("up", 0, 0)]:
        carry_out(model, act)
        model.check()
        shape = data.draw(st.sampled_from(shapes(SIZE))) if data else GpuShape(5, nodes=2)
        for policy in ("packed", "class-fit"):
            for partition in ("", "half"):
                rule = Rule("A", 1.7, 1.2)
                found = model.occupancy.place(policy, shape, rule, partition)
                assert found == model.placed(policy, shape, rule, partition), (policy, shape, partition)


def test_a_request_is_split_by_the_nodes_of_its_own_partition() -> None:
    """8 GPUs on 2 nodes are 7 + 1 where nodes have 8, but 4 + 4 in a partition of nodes with 4."""
    slowdown = {name: [[1.0] * size for size in (8, 8, 4, 4)] for name in CLASSES}
    occupancy = Occupancy(["a", "b", "c", "d"], slowdown, slowdown, {"small": [2, 3]})
    shape, rule = GpuShape(8, nodes=2), Rule("A", 1.7, 1.2)
    small = occupancy.place("packed", shape, rule, "small")
    assert small is not None and small.nodes == (2, 3) and [len(gpus) for gpus in small.gpus] == [4, 4]
    anywhere = occupancy.place("packed", shape, rule)
    assert anywhere is not None and sorted(len(gpus) for gpus in anywhere.gpus) == [1, 7]


@given(st.integers(0, 2**32), st.sampled_from(("", "half")))
def test_random_is_random_by_its_seed_alone(seed: int, partition: str) -> None:
    model = Model([4] * 5, 1, False, {"half": [0, 2, 4]})
    rule = Rule("A", 1.7, 1.2, seed)
    found = model.occupancy.place("random", GpuShape(2), rule, partition)
    assert found == model.occupancy.place("random", GpuShape(2), rule, partition)
    assert found == model.placed("random", GpuShape(2), rule, partition)


def test_taking_or_giving_twice_is_an_error_and_changes_nothing() -> None:
    model = Model([4, 4], 1, False, {})
    model.occupancy.take([(0, (1, 2))])
    with pytest.raises(KeyError, match=r"n0.*in use"):
        model.occupancy.take([(0, (0, 2))])
    assert model.occupancy.free_indexes(0) == {0, 3} and model.occupancy.free_gpus == 6
    with pytest.raises(KeyError, match=r"n0.*free already"):
        model.occupancy.give([(0, (2, 3))])
    assert model.occupancy.free_indexes(0) == {0, 3} and model.occupancy.free_gpus == 6


def test_a_node_that_is_down_counts_for_nothing_and_comes_back_as_it_is_then() -> None:
    model = Model([4, 4], 1, False, {})
    occupancy, rule = model.occupancy, Rule("A", 1.7, 1.2)
    occupancy.take([(0, (0, 1))])
    occupancy.set_down(0, True)
    occupancy.set_down(0, True)
    assert (occupancy.free_gpus, occupancy.free(0), occupancy.free_indexes(0)) == (4, 0, frozenset())
    assert occupancy.place("packed", GpuShape(5), rule) is None
    occupancy.give([(0, (0,))])
    assert occupancy.free_gpus == 4
    occupancy.set_down(0, False)
    occupancy.set_down(0, False)
    assert occupancy.free_gpus == 7
    placed = occupancy.place("packed", GpuShape(7), rule)
    assert placed is not None and dict(zip(placed.nodes, placed.gpus, strict=True))[0] == (0, 2, 3)


def test_unknown_names_are_refused() -> None:
    occupancy = Model([2], 1, False, {}).occupancy
    with pytest.raises(UsageError, match="placement policy 'nope' is not one of class-fit"):
        occupancy.place("nope", GpuShape(1), Rule("A", 1.7, 1.2))
    with pytest.raises(KeyError):
        occupancy.place("packed", GpuShape(1), Rule("A", 1.7, 1.2), "nope")


@given(st.integers(0, 999), ACTS, st.sampled_from(CLASSES), st.booleans())
def test_handed_out_tells_what_a_job_would_get(seed: int, acts: list[Act], sensitivity: str, best_first: bool) -> None:
    model = Model([4, 3], seed, best_first, {})
    for act in acts:
        carry_out(model, act)
    for node in (0, 1):
        held = set(range(len(model.slowdown["A"][node]))) - model.free[node]
        together = model.usable()
        together[node] |= held
        view = scanned(model.names, together, model.slowdown, sensitivity, best_first)
        assert model.occupancy.handed_out(sensitivity, node, sorted(held)) == view.slowdown[node]


def test_overlap_of_partitions() -> None:
    occupancy = Model([1] * 4, 1, False, {"a": [0, 1], "b": [1, 2], "c": [3]}).occupancy
    overlapping = {(p, q) for p in ("", "a", "b", "c") for q in ("", "a", "b", "c") if occupancy.overlap(p, q)}
    assert overlapping == {
        *((p, q) for p in ("", "a", "b", "c") for q in ("", "a", "b", "c") if "" in (p, q) or p == q),
        ("a", "b"), ("b", "a"),
    }  # fmt: skip


def test_one_placement_looks_at_few_nodes_once_the_ranking_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work per start and end does not grow with the cluster: keys computed, on 100 and on 1000 nodes."""

    def keys_for(nodes: int) -> int:
        asked = 0
        preferences: Callable[..., list[Preference]] = class_fit.preferences

        def counted(*args: object) -> list[Preference]:
            def counting(preference: Preference) -> Preference:
                def key(node: int, count: int) -> Key:
                    nonlocal asked
                    asked += 1
                    return preference.key(node, count)

                return preference._replace(key=key)

            return [counting(preference) for preference in preferences(*args)]

        slowdown = tables([4] * nodes, 1)
        occupancy = Occupancy([f"n{i}" for i in range(nodes)], slowdown, slowdown)
        with monkeypatch.context() as patch:
            patch.setattr(class_fit, "preferences", counted)
            for number in range(60):
                if number == 10:
                    asked = 0
                placed = occupancy.place("class-fit", GpuShape(1 + number % 2), Rule("A", 1.7, 1.2))
                assert placed is not None
                occupancy.take(list(zip(placed.nodes, placed.gpus, strict=True)))
        return asked

    # Each of the 50 counted placements enters the one node that changed, at most into both heaps.
    assert keys_for(100) <= 100 and keys_for(1000) <= 100
