# SPDX-License-Identifier: MIT
"""The same jobs on a real slurmctld and on the virtual one: they start in the same order, on the same GPUs."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.slurm_settings import slurm_settings
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import VirtualNode, VirtualSlurm

pytestmark = pytest.mark.real_slurm

JOBS: tuple[tuple[str, int], ...] = (
    ("--gpus-per-node=4 -N1 -t 1", 14),
    ("--gpus-per-node=3 -N1 -t 1", 16),
    ("--gpus-per-node=2 -N2 -t 1", 10),
    ("--gpus-per-node=1 -N1 -t 5", 30),
    ("--gpus-per-node=4 -N3 -t 1", 5),  # blocked, and planned on three nodes
    ("--gpus-per-node=2 -N1 -t 20", 6),  # too long for a planned node
    ("--gpus-per-node=1 -N1 -t 20 -w n1", 6),  # named, free, and too long for a planned node
    ("--gpus=3 -t 1", 5),
)
"""What is asked for, and how long it runs, s. One comes every `EVERY_S`."""
EVERY_S = 1.5
Start = tuple[float, dict[str, tuple[int, ...]]]


class Sleeps:
    """Jobs that run for as long as their names say."""

    def __init__(self) -> None:
        self.starts: dict[int, Start] = {}
        self.names: tuple[str, ...] = ()

    def started(self, job: VirtualJob, now_s: float) -> tuple[float, str]:
        self.starts[job.job_id] = now_s, {self.names[take.node]: take.indexes for take in job.takes}
        return now_s + float(job.options["job-name"]), "COMPLETED"

    def stopped(self, job: VirtualJob, now_s: float, state: str) -> None:
        """Nothing."""

    def signalled(self, job: VirtualJob, name: str, now_s: float) -> None:
        """Nothing."""


def words_of(what: str, lasts: int) -> list[str]:
    return [*what.split(), f"--job-name={lasts}", "--output=/dev/null"]


def virtual(client: CliClient, seen: Overview, now_s: float) -> tuple[VirtualSlurm, Sleeps]:
    """The twin of an empty cluster, by what Slurm showed of it."""
    sleeps = Sleeps()
    nodes = seen.nodes
    made = hardware([n.name for n in nodes], [n.gpu_types for n in nodes], [n.cpus for n in nodes],
                    [n.memory_mib for n in nodes], [n.threads for n in nodes])  # fmt: skip
    state = [VirtualNode(node.available or (), node.weight) for node in nodes]
    sleeps.names = made.names
    return VirtualSlurm(made, seen.partitions, sleeps, slurm_settings(client.config()), now_s, state), sleeps


def live(client: CliClient) -> tuple[float, dict[int, Start]]:
    """When it began, and when and where each job started since."""
    began_s, numbers, found = time.time(), list[int](), dict[int, SlurmJob]()
    for place, (what, lasts) in enumerate(JOBS):
        time.sleep(max(0.0, began_s + EVERY_S * place - time.time()))
        numbers.append(client.submit(words_of(what, lasts), f"#!/bin/sh\nsleep {lasts}\n"))
    while len(found) < len(JOBS) and time.time() < began_s + 150:
        time.sleep(0.2)
        shown = client.jobs_of([number for number in numbers if number not in found])
        found |= {number: job for number, job in shown.items() if job.state == "RUNNING" and job.gpus}
    assert len(found) == len(JOBS), "not all jobs have started"
    return began_s, {
        place: (found[number].start_s - began_s, found[number].gpus) for place, number in enumerate(numbers)
    }


def test_the_same_starts_in_the_same_order_on_the_same_gpus(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    client = CliClient(conf=lab.variables()["SLURM_CONF"])
    empty = client.overview()
    began_s, real = live(client)
    slurm, sleeps = virtual(client, empty, began_s)  # backfill rounds moments of the day
    there = VirtualClient(slurm)
    for place, (what, lasts) in enumerate(JOBS):
        slurm.advance(began_s + EVERY_S * place)
        there.submit(words_of(what, lasts), "")
    slurm.advance(began_s + 400.0)
    twin = {number - 1: (at_s - began_s, gpus) for number, (at_s, gpus) in sleeps.starts.items()}
    shown = {place: (real[place], twin.get(place)) for place in real}
    assert {place: start[1] for place, start in real.items()} == {place: start[1] for place, start in twin.items()}, (
        shown
    )
    by_start = sorted(real, key=lambda place: real[place][0])
    for first, second in pairwise(by_start):
        if real[second][0] > real[first][0] + 1:  # Slurm shows whole seconds
            assert twin[second][0] > twin[first][0], shown
    assert all(abs(real[place][0] - twin[place][0]) < 4.0 for place in real), shown
