# SPDX-License-Identifier: MIT
"""Whom a real slurmctld stops for a job of a higher tier, and what a change of a partition does to jobs: the same in
the virtual one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm.cli import CliClient
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.virtual_slurm import VirtualSlurm

from ..doubles.twin_pairs import virtual, words_of
from . import queue_of
from .conftest import client_of_lab

pytestmark = pytest.mark.real_slurm

EDITS = (
    (
        "PartitionName=gpu",
        "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
        "PartitionName=owner Nodes=ALL PriorityTier=10 PreemptMode=OFF\n"
        "PartitionName=mid Nodes=ALL PriorityTier=5\n"
        "PartitionName=guest Nodes=ALL\n"
        "PartitionName=cancel Nodes=ALL PreemptMode=CANCEL\n"
        "PartitionName=gpu",
    ),
)
LONG_S, PATIENCE_S = 900, 30.0
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "the fewest nodes, then the oldest": (
        ("guest -N2 --gpus-per-node=4", "guest -N1 --gpus-per-node=2", "guest -N1 --gpus-per-node=2",
         "guest -N1 --gpus-per-node=1", "guest -N1 --gpus-per-node=3"),
        ("owner -N1 --gpus-per-node=4", "owner -N1 --gpus-per-node=1"),
    ),
    "lower tiers first, on two nodes": (
        (*["mid -N1 --gpus-per-node=1"] * 6, *["guest -N1 --gpus-per-node=1"] * 10), ("owner --gpus=6",),
    ),
    "free nodes first; some end for good": (
        ("cancel -N1 --gpus-per-node=4", "guest -N1 --gpus-per-node=4 --no-requeue", "guest -N1 --gpus-per-node=4"),
        ("owner -N3 --gpus-per-node=4",),
    ),
    "too few may leave": (
        ("owner -N1 --gpus-per-node=1", "guest -N1 --gpus-per-node=4", "guest -N2 --gpus-per-node=4"),
        ("owner -N4 --gpus-per-node=4",),
    ),
}  # fmt: skip
"""What runs, and what is submitted then."""


@pytest.fixture(scope="module")
def client() -> Iterator[CliClient]:
    with client_of_lab(EDITS) as made:
        yield made


class Both:
    """The same orders to both; jobs by their places."""

    def __init__(self, real: CliClient) -> None:
        self.real, self._numbers = real, list[int]()
        self._slurm: VirtualSlurm = virtual(real, real.overview(), time.time())[0]
        self.twin = VirtualClient(self._slurm)

    def submit(self, asked: Sequence[str]) -> None:
        for what in asked:
            words = words_of(f"-p {what} -t 30", LONG_S)
            self._numbers.append(self.real.submit(words, f"#!/bin/sh\nsleep {LONG_S}\n"))
            self.twin.submit(words, "")
        self._slurm.advance(self._slurm.now_s + 4.0)

    def agree(self, seen: Callable[[SlurmJob], object]) -> dict[int, object]:
        """What is seen of each job in the twin; the real one shows the same, or soon does."""
        self._slurm.advance(self._slurm.now_s + 4.0)
        twin = {place: seen(job) for place, job in enumerate(self.twin.jobs())}
        ended_s = time.time() + PATIENCE_S
        while True:
            jobs = self.real.jobs_of(self._numbers)
            real = {place: seen(jobs[number]) for place, number in enumerate(self._numbers)}
            if real == twin or time.time() > ended_s:
                assert real == twin
                return twin
            time.sleep(0.2)

    def cancel(self) -> None:
        self.real.cancel(self._numbers)
        queue_of.emptied(self.real)


def places(job: SlurmJob) -> tuple[str, dict[str, tuple[int, ...]]]:
    return job.state, job.gpus


def fate(job: SlurmJob) -> tuple[str, int, dict[str, tuple[int, ...]]]:
    return job.state, job.restarts, job.gpus if job.state == "RUNNING" else {}


@pytest.mark.parametrize("case", CASES)
def test_the_same_jobs_make_room(client: CliClient, case: str) -> None:
    running, wanted = CASES[case]
    both = Both(client)
    try:
        both.submit(running)
        assert all(state == "RUNNING" for state, _ in both.agree(places).values())  # type: ignore[misc]
        both.submit(wanted)
        both.agree(fate)
    finally:
        both.cancel()


def test_jobs_that_end_within_half_a_minute_are_planned_to_end_together(client: CliClient) -> None:
    numbers = []
    try:
        for pause_s in (4.0, 2.0, 0.0):
            argv = words_of("-p gpu -N1 -w n0 --gpus-per-node=2 -t 1", LONG_S)
            numbers.append(client.submit(argv, f"#!/bin/sh\nsleep {LONG_S}\n"))
            time.sleep(pause_s)
        planned = queue_of.until(client, numbers[2], lambda job: job.start_s > 0)
        first, second = (client.jobs_of(numbers)[number] for number in numbers[:2])
        assert second.end_s - first.end_s > 1.0
        assert planned.start_s == pytest.approx(second.end_s, abs=1.0)
    finally:
        queue_of.emptied(client)


def test_jobs_of_a_partition_whose_nodes_change_wait_and_start_alike(client: CliClient) -> None:
    both = Both(client)
    try:
        both.submit(["guest -N1 --gpus-per-node=4"] * 4)
        both.agree(places)
        both.submit(["guest -N3 --gpus-per-node=1", "guest -N1 --gpus-per-node=1"])
        for nodes in ("n[0-1]", ""):
            for each in (both.real, both.twin):
                each.update_partition("guest", Nodes=nodes)
            found = both.agree(lambda job: (job.state, job.reason))
            assert [state for state, _ in found.values()] == ["RUNNING"] * 4 + ["PENDING"] * 2  # type: ignore[misc]
        for each in (both.real, both.twin):
            each.update_partition("guest", Nodes="ALL")
        for each, number in ((both.real, both._numbers), (both.twin, [1, 2, 3, 4])):
            each.cancel(number[:4])
        both.agree(lambda job: job.state)
    finally:
        both.cancel()
