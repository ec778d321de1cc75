# SPDX-License-Identifier: MIT
"""The published round mechanism on queues of a few rows, and what must hold on any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.research.rounds import NEVER_RAN, Account, ChosenRow, RoundLease, RoundQueue, lease, priorities, select


def alone(*scale: int, n: int = 2) -> RoundQueue:
    rows = len(scale)
    return RoundQueue(tuple((row, -1) for row in range(rows)), np.array(scale), np.ones((rows, n), bool))


def account(received: list[list[float]]) -> Account:
    found = Account(len(received[0]))
    found.add(np.zeros(len(received)))
    for row, seconds in enumerate(received):
        for column, value in enumerate(seconds):
            found.charge(ChosenRow(row, column), value)
    return found


def test_priority_is_share_over_fraction_received() -> None:
    shares = np.array([[0.5, 0.0], [0.5, 1.0], [0.0, 0.25]])
    able = np.array([[True, True], [True, False], [True, True]])
    found = priorities(shares, account([[30.0, 0.0], [10.0, 5.0], [0.0, 0.0]]), able)
    assert found[:, 0] == pytest.approx([0.5 / 0.75, 0.5 / 0.25, 0.0])
    assert found[:, 1] == pytest.approx([0.0, 0.0, 0.25 * NEVER_RAN])


def test_a_reset_books_what_was_promised_and_gives_credit() -> None:
    found = account([[100.0, 0.0], [0.0, 40.0]])
    found.reset(np.array([[0.5, 0.0], [0.0, 0.5]]), 100.0, 180.0)
    assert found.deficit_s.tolist() == [[50.0 - 100.0 + 180.0, 180.0], [180.0, 50.0 - 40.0 + 180.0]]
    assert found.received_s.tolist() == [[180.0, 180.0]] * 2
    assert found.total_s.tolist() == [360.0, 360.0]


def test_who_left_counts_in_the_total_until_the_reset() -> None:
    found = account([[100.0], [50.0]])
    found.keep(np.array([False, True]))
    assert (found.received_s.tolist(), found.total_s.tolist()) == ([[50.0]], [150.0])


def test_order_priority_then_deficit_then_arrival() -> None:
    queue, books = alone(1, 1, 1, 1, n=1), account([[10.0], [10.0], [10.0], [1.0]])
    shares = np.full((4, 1), 0.25)
    assert [c.row for c in select(queue, shares, books, [4], [0])] == [3, 0, 1, 2]
    books.deficit_s[2] = 5.0
    assert [c.row for c in select(queue, shares, books, [4], [0])] == [3, 2, 0, 1]


def test_one_that_does_not_fit_is_passed_over_and_rows_without_share_fill_up() -> None:
    queue, books = alone(2, 3, 1), account([[1.0, 1.0]] * 3)
    shares = np.array([[0.9, 0.0], [0.5, 0.0], [0.0, 0.0]])
    assert select(queue, shares, books, [4, 2], [0, 1]) == [ChosenRow(0, 0), ChosenRow(2, 0)]
    assert select(queue, shares, books, [4, 2], [0, 1], entitled_only=True) == [ChosenRow(0, 0)]


def test_the_first_type_in_turn_chooses_first() -> None:
    queue, books = alone(1), account([[1.0, 1.0]])
    shares = np.array([[0.1, 0.9]])
    assert select(queue, shares, books, [1, 1], [0, 1]) == [ChosenRow(0, 0)]
    assert select(queue, shares, books, [1, 1], [1, 0]) == [ChosenRow(0, 1)]


def test_a_job_runs_alone_or_in_one_pair() -> None:
    queue = RoundQueue(((0, -1), (1, -1), (0, 1), (2, -1), (0, 2)), np.ones(5, int), np.ones((5, 1), bool))
    shares = np.array([[0.1], [0.1], [0.9], [0.1], [0.8]])
    found = select(queue, shares, account([[1.0]] * 5), [3], [0])
    assert [queue.ids[c.row] for c in found] == [(0, 1), (2, -1)]


def test_leases_widest_first_and_kept_where_still_free() -> None:
    queue = alone(1, 2, 1)
    before = {(2, -1): RoundLease(0, frozenset({0})), (0, -1): RoundLease(0, frozenset({3}))}
    found = lease(queue, [ChosenRow(0, 0), ChosenRow(2, 0), ChosenRow(1, 0)], before)
    assert found[1, -1].gpus == {0, 1}  # the wide one is placed before the others may keep theirs
    assert found[0, -1].gpus == {3}
    assert found[2, -1].gpus == {2}


def test_a_lease_of_another_type_is_not_kept() -> None:
    found = lease(alone(1), [ChosenRow(0, 1)], {(0, -1): RoundLease(0, frozenset({4}))})
    assert found == {(0, -1): RoundLease(1, frozenset({0}))}


@st.composite
def cases(draw: st.DrawFn) -> tuple[RoundQueue, np.ndarray, Account, list[int], list[int]]:
    jobs, n = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    scale = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=jobs, max_size=jobs))
    ids = [(i, -1) for i in range(jobs)]
    ids += [(i, j) for j in range(jobs) for i in range(j) if scale[i] == scale[j]]
    k = len(ids)
    numbers = st.lists(st.floats(0, 1), min_size=n, max_size=n)
    shares = np.array([draw(numbers) for _ in range(k)])
    able = np.array([[draw(st.booleans()) for _ in range(n)] for _ in range(k)])
    queue = RoundQueue(tuple(ids), np.array([scale[first] for first, _ in ids]), able)
    gpus = draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    return queue, shares, account([draw(numbers) for _ in range(k)]), gpus, draw(st.permutations(range(n)))


@given(cases())
def test_nobody_twice_nothing_too_much_and_no_gpu_idle_that_a_row_could_have(
    case: tuple[RoundQueue, np.ndarray, Account, list[int], list[int]],
) -> None:
    queue, shares, books, gpus, turn = case
    chosen = select(queue, shares, books, gpus, turn)
    jobs = [number for c in chosen for number in queue.ids[c.row] if number >= 0]
    assert len(jobs) == len(set(jobs))
    leases = lease(queue, chosen, {})
    left = list(gpus)
    for column in range(len(gpus)):
        held = [found.gpus for found in leases.values() if found.column == column]
        assert all(queue.able[c.row, column] for c in chosen if c.column == column)
        assert sum(map(len, held)) == len(frozenset().union(*held)) <= gpus[column]
        assert all(max(gpu) < gpus[column] for gpu in held)
        left[column] -= sum(map(len, held))
    for row, (first, second) in enumerate(queue.ids):
        if first not in jobs and second not in jobs:
            assert not any(queue.able[row, c] and queue.scale[row] <= left[c] for c in range(len(gpus)))
