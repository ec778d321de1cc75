# SPDX-License-Identifier: MIT
"""A lab with partitions from a file, on a real Slurm: owners have their nodes at once, guests run again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from importlib.resources import as_file, files

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm


@pytest.fixture(scope="module")
def centre() -> Iterator[Lab]:
    """8 nodes x 2 GPUs with the partitions of the shipped example."""
    skip_without_slurm()
    with (
        short_directory() as path,
        as_file(files("slurm_pal.etc") / "lab-partitions.toml") as example,
        Lab.up(path, nodes=8, gpus=2, partitions=str(example)) as lab,
    ):
        yield lab


@pytest.fixture
def client(centre: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliClient]:
    for name, value in centre.variables().items():
        monkeypatch.setenv(name, value)
    made = CliClient()
    yield made
    queue_of.emptied(made)


def sbatch(*words: str) -> int:
    done = subprocess.run(
        ["sbatch", "--parsable", "-o/dev/null", "--gres=gpu:2", *words, "--wrap", "sleep 1000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def test_each_node_counts_once_in_whatever_partitions_it_is(centre: Lab) -> None:
    now = centre.status()
    assert (now.state, now.node_states) == ("up", {"idle": 8})


def test_an_owner_takes_the_nodes_back_and_guests_are_requeued(client: CliClient) -> None:
    guests = [sbatch() for _ in range(8)]
    for number in guests:
        assert queue_of.until(client, number, lambda job: job.state == "RUNNING").partition == "guest"
    owner = sbatch("-p", "owner", "-N", "2")
    nodes = queue_of.until(client, owner, lambda job: job.state == "RUNNING").nodes
    assert len(nodes) == 2 and set(nodes) <= {"n4", "n5", "n6", "n7"}
    jobs = client.jobs_of(guests)
    requeued = [number for number in guests if jobs[number].restarts == 1]
    assert len(requeued) == 2 and all(jobs[number].state == "PENDING" for number in requeued)
    client.cancel([owner])
    for number in requeued:
        queue_of.until(client, number, lambda job: job.state == "RUNNING")


def test_owners_do_not_preempt_each_other(client: CliClient) -> None:
    first = [sbatch("-p", "owner") for _ in range(4)]
    for number in first:
        queue_of.until(client, number, lambda job: job.state == "RUNNING")
    more = sbatch("-p", "owner")
    queue_of.until(client, more, lambda job: job.raw.get("Reason") == "Resources")
    assert all(job.restarts == 0 and job.state == "RUNNING" for job in client.jobs_of(first).values())
