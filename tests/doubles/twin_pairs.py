# SPDX-License-Identifier: MIT
"""The same jobs on a real slurmctld and on the virtual one: what each did with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.room import hardware
from slurm_pal.twin.slurm_settings import slurm_settings
from slurm_pal.twin.virtual_job import VirtualJob
from slurm_pal.twin.virtual_slurm import VirtualNode, VirtualSlurm

EVERY_S = 1.5
Jobs = Sequence[tuple[str, int]]
"""What is asked for, and how long it runs, s. One comes every `EVERY_S`."""
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


class Live(NamedTuple):
    """What a real slurmctld did."""

    began_s: float  # Unix s
    starts: dict[int, Start]  # of each job, s since then
    priorities: dict[int, list[tuple[float, int]]]  # while it waited: (s since then, priority), as they changed


def live(client: CliClient, jobs: Jobs, every_s: float = EVERY_S, patience_s: float = 150.0) -> Live:
    """Submit one job every `every_s` and see when each starts."""
    began_s, numbers, found = time.time(), list[int](), dict[int, SlurmJob]()
    waited: dict[int, list[tuple[float, int]]] = {place: [] for place in range(len(jobs))}

    def look() -> None:
        shown = client.jobs_of([number for number in numbers if number not in found])
        found.update({number: job for number, job in shown.items() if job.state == "RUNNING" and job.gpus})
        for number, job in shown.items():
            own = waited[numbers.index(number)]
            if job.state == "PENDING" and (not own or own[-1][1] != job.priority):
                own.append((time.time() - began_s, job.priority))

    for place, (what, lasts) in enumerate(jobs):
        time.sleep(max(0.0, began_s + every_s * place - time.time()))
        numbers.append(client.submit(words_of(what, lasts), f"#!/bin/sh\nsleep {lasts}\n"))
        look()
    while len(found) < len(jobs) and time.time() < began_s + patience_s:
        time.sleep(0.2)
        look()
    assert len(found) == len(jobs), "not all jobs have started"
    return Live(
        began_s,
        {place: (found[number].start_s - began_s, found[number].gpus) for place, number in enumerate(numbers)},
        waited,
    )


class Replayed(NamedTuple):
    """What the virtual one did."""

    starts: dict[int, Start]
    priorities: dict[int, int]  # right after the submission


def replayed(client: CliClient, empty: Overview, jobs: Jobs, began_s: float, every_s: float = EVERY_S) -> Replayed:
    """The same jobs in the twin. Backfill rounds moments of the day, so it has the same `began_s`."""
    slurm, sleeps = virtual(client, empty, began_s)
    there, priorities = VirtualClient(slurm), dict[int, int]()
    for place, (what, lasts) in enumerate(jobs):
        slurm.advance(began_s + every_s * place)
        number = there.submit(words_of(what, lasts), "")
        priorities[place] = slurm.jobs[number].priority
    slurm.advance(began_s + every_s * len(jobs) + 3600.0)
    starts = {number - 1: (at_s - began_s, gpus) for number, (at_s, gpus) in sleeps.starts.items()}
    return Replayed(starts, priorities)
