# SPDX-License-Identifier: MIT
"""Whose turn it would have been on nodes that jobs are kept off."""

from __future__ import annotations

import pytest

from slurm_pal.base.cluster import Node
from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.pending.turns import Turns

SET_S = 1_763_712_345.0
ONE, TWO = GpuShape(1), GpuShape(2, nodes=1)


def node(name: str, used: int = 2, gpus: int = 2) -> Node:
    return Node(name, frozenset({"MIXED"}), ("",) * gpus, used, 16, 0, 64000, 0, frozenset(), ("gpu",))


def job(job_id: int, held: dict[str, tuple[int, ...]] | None = None, start_s: float = 0.0) -> SlurmJob:
    """The lower the number, the further in front."""
    state = "RUNNING" if held else "PENDING"
    return SlurmJob(
        job_id, state, "", "u", "j", "gpu", held or {}, tuple(held or ()), (), (), SET_S - 60, start_s, 0.0, 3600, 0,
        "", 1, priority=1000 - job_id,
    )  # fmt: skip


def test_free_gpus_would_have_been_those_of_the_first_that_fits() -> None:
    turns = Turns([node("n0", used=1), node("n1")], [])
    assert not turns.had(job(1), TWO, ["n0"], SET_S), "there is one"
    assert turns.had(job(2), ONE, ["n0"], SET_S)
    assert not turns.had(job(3), ONE, ["n0"], SET_S), "it would have waited behind job 2 all the same"


def test_gpus_that_a_job_from_behind_got_meanwhile_count() -> None:
    after, before = SET_S + 1, SET_S - 1
    for other, start_s, counts in ((9, after, True), (9, before, False), (1, after, False)):
        turns = Turns([node("n0")], [job(other, {"n0": (0,)}, start_s)])
        assert turns.had(job(5), ONE, ["n0"], SET_S) is counts
        assert not turns.had(job(6), ONE, ["n0"], SET_S)


def test_a_start_in_the_second_of_the_list_counts_since_slurm_shows_whole_seconds() -> None:
    turns = Turns([node("n0")], [job(9, {"n0": (0,)}, SET_S)])
    assert turns.had(job(5), ONE, ["n0"], SET_S + 0.7)


def test_what_one_from_behind_leaves_counts_for_the_next() -> None:
    turns = Turns([node("n0", used=2, gpus=4)], [job(9, {"n0": (0, 1)}, SET_S + 1)])
    assert turns.had(job(5), ONE, ["n0"], SET_S)
    assert turns.had(job(6), GpuShape(3, nodes=1), ["n0"], SET_S)
    assert not turns.had(job(7), ONE, ["n0"], SET_S)


def test_gpus_that_a_job_ahead_is_about_to_take_are_gone() -> None:
    turns = Turns([node("n0", used=0)], [])
    turns.take({"n0": 1})
    assert not turns.had(job(5), TWO, ["n0"], SET_S)
    assert turns.had(job(6), ONE, ["n0"], SET_S)


@pytest.mark.parametrize(
    ("shape", "free", "counts"),
    [
        (GpuShape(2), (1, 1), True),  # Slurm may spread it
        (TWO, (1, 1), False),
        (GpuShape(4, nodes=2, per_node=2), (2, 0), True),  # its other node may be elsewhere
        (GpuShape(4, nodes=2, per_node=2), (1, 1), False),
        (GpuShape(1, nodes=1, whole_nodes=True), (1, 1), False),
        (GpuShape(1, nodes=1, whole_nodes=True), (2, 0), True),
    ],
)
def test_what_each_shape_needs(shape: GpuShape, free: tuple[int, int], counts: bool) -> None:
    nodes = [node(f"n{k}", used=2 - left) for k, left in enumerate(free)]
    assert Turns(nodes, []).had(job(5), shape, ["n0", "n1"], SET_S) is counts
