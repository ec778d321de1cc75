# SPDX-License-Identifier: MIT
"""A reservation against brute force: look at every moment, try every choice of nodes."""

from __future__ import annotations

from itertools import permutations
from math import inf
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.placement.need import Need
from slurm_pal.simulate.easy import Reservation

Slots = tuple[tuple[int, tuple[int, ...]], ...]
NODES, SIZE = 4, 3
GPUS = [(node, index) for node in range(NODES) for index in range(SIZE)]


class Case(NamedTuple):
    """A cluster of NODES x SIZE GPUs: who holds which GPU until when, and what the blocked job needs."""

    ends: list[tuple[float, Slots]]  # running jobs
    candidates: list[tuple[float, Slots]]  # jobs that might start now on free GPUs, one after the other
    need: Need
    unsuited: set[tuple[int, int]]  # GPUs that do not count
    whole: bool


def grouped(gpus: list[tuple[int, int]]) -> Slots:
    nodes = sorted({node for node, _ in gpus})
    return tuple((node, tuple(sorted(k for at, k in gpus if at == node))) for node in nodes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    owner = draw(st.lists(st.integers(-3, 4), min_size=len(GPUS), max_size=len(GPUS)))  # >= 0: running, < 0: candidate
    ends, candidates = [], []
    for number in sorted(set(owner)):
        slots = grouped([gpu for gpu, who in zip(GPUS, owner, strict=True) if who == number])
        end_s = float(draw(st.integers(10, 16)))  # few values, so that ends coincide
        (ends if number >= 0 else candidates).append((end_s, slots))
    counts = draw(st.lists(st.integers(1, SIZE), max_size=NODES))
    counts.sort(reverse=True)
    total = sum(counts) or draw(st.integers(1, len(GPUS)))
    unsuited = draw(st.sets(st.sampled_from(GPUS), max_size=4))
    return Case(sorted(ends), candidates, Need(total, tuple(counts)), unsuited, draw(st.booleans()))


def suits(case: Case, node: int, index: int) -> bool:
    return (node, index) not in case.unsuited


def free_now(case: Case) -> set[tuple[int, int]]:
    held = {(node, k) for _, slots in case.ends for node, indexes in slots for k in indexes}
    return set(GPUS) - held


def met(case: Case, free: set[tuple[int, int]]) -> bool:
    """Whether the need can be met by some choice of nodes."""
    have = [sum(1 for at, k in free if at == node and suits(case, at, k)) for node in range(NODES)]
    if case.whole:
        have = [count if count == SIZE else 0 for count in have]
    counts = case.need.counts
    if not counts:
        return sum(have) >= case.need.total
    return any(
        all(have[node] >= count for node, count in zip(nodes, counts, strict=True))
        for nodes in permutations(range(NODES), len(counts))
    )


def free_at(case: Case, at_s: float, taken: list[tuple[float, Slots]]) -> set[tuple[int, int]]:
    """Free GPUs when everybody uses his whole limit; `taken` are jobs that were let in."""
    free = free_now(case)
    for end_s, slots in case.ends:
        if end_s <= at_s:
            free |= {(node, k) for node, indexes in slots for k in indexes}
    for end_s, slots in taken:
        if end_s > at_s:
            free -= {(node, k) for node, indexes in slots for k in indexes}
    return free


def reservation(case: Case, now_s: float = 5.0, not_before_s: float = 0.0) -> Reservation:
    free = free_now(case)
    counts = [sum(1 for at, k in free if at == node and suits(case, at, k)) for node in range(NODES)]
    whole = [SIZE] * NODES if case.whole else None
    every = None if not case.unsuited else lambda node, index: suits(case, node, index)
    return Reservation(case.need, counts, iter(case.ends), every, now_s, not_before_s, whole=whole)


@given(cases(), st.sampled_from((0.0, 12.0)))
def test_the_moment_is_the_first_at_which_the_job_fits(case: Case, not_before_s: float) -> None:
    moments = sorted({max(5.0, not_before_s)} | {end_s for end_s, _ in case.ends if end_s > not_before_s})
    expected = next((at_s for at_s in moments if met(case, free_at(case, at_s, []))), inf)
    assert reservation(case, not_before_s=not_before_s).time_s == expected


@given(cases())
def test_a_job_is_let_in_exactly_when_the_reserved_one_still_fits_at_its_moment(case: Case) -> None:
    reserved = reservation(case)
    taken: list[tuple[float, Slots]] = []
    for end_s, slots in case.candidates:
        may = end_s <= reserved.time_s or met(case, free_at(case, reserved.time_s, [*taken, (end_s, slots)]))
        assert reserved.allows(slots, end_s) == may
        if may:
            taken.append((end_s, slots))
    assert reserved.time_s == inf or met(case, free_at(case, reserved.time_s, taken))


@given(cases())
def test_what_is_released_counts_as_never_taken(case: Case) -> None:
    """Asking about all candidates and taking each answer back leaves every later answer as it would have been."""
    reserved, untouched = reservation(case), reservation(case)
    for end_s, slots in case.candidates:
        if reserved.allows(slots, end_s):
            reserved.release(slots, end_s)
    for end_s, slots in case.candidates:
        assert reserved.allows(slots, end_s) == untouched.allows(slots, end_s)


def one_gpu_each(*ends_s: float) -> list[tuple[float, Slots]]:
    """Job k holds GPU 0 of node k."""
    return [(end_s, ((node, (0,)),)) for node, end_s in enumerate(ends_s)]


def test_gpus_of_other_partitions_do_not_bring_the_moment_nearer() -> None:
    ends = one_gpu_each(10.0, 20.0, 30.0)
    mine = Reservation(Need(2, ()), [0, 0, 0], ends, lambda node, _: node != 0, 0.0)
    assert mine.time_s == 30.0
    assert Reservation(Need(2, ()), [0, 0, 0], ends, None, 0.0).time_s == 20.0


def test_a_job_outside_the_partition_never_delays() -> None:
    reserved = Reservation(Need(1, ()), [0, 0], one_gpu_each(10.0, 20.0), lambda node, _: node == 1, 0.0)
    assert reserved.time_s == 20.0
    assert reserved.allows(((0, (0,)),), 99.0)
    assert not reserved.allows(((1, (0,)),), 99.0)
    assert reserved.allows(((1, (0,)),), 20.0)


def test_a_whole_node_is_waited_for_until_its_last_job_ends() -> None:
    ends = [(10.0, ((0, (0,)),)), (20.0, ((0, (1,)),)), (15.0, ((1, (0,)),))]
    free = [0, 1]
    sizes = [2, 2]
    assert Reservation(Need(1, ()), free, sorted(ends), None, 0.0, whole=sizes).time_s == 15.0
    assert Reservation(Need(4, (2, 2)), free, sorted(ends), None, 0.0, whole=sizes).time_s == 20.0
    reserved = Reservation(Need(1, ()), free, sorted(ends), None, 0.0, whole=sizes)
    assert not reserved.allows(((1, (1,)),), 16.0), "one GPU of it spoils the node"


def test_a_job_that_fits_already_is_held_until_it_wants_to_start() -> None:
    """One that waits for better GPUs keeps any free ones: others may use them only until its patience ends."""
    reserved = Reservation(Need(1, ()), [1, 0], one_gpu_each(99.0)[1:], None, 5.0, 50.0)
    assert reserved.time_s == 50.0
    assert reserved.allows(((0, (0,)),), 50.0)
    assert not reserved.allows(((0, (0,)),), 50.5)
