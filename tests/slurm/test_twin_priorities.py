# SPDX-License-Identifier: MIT
"""Priorities, tiers, CPUs, memory, refused orders and failed nodes: the virtual slurmctld against a real one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.slurm.cli import CliClient
from slurm_pal.twin.client import VirtualClient
from slurm_pal.twin.virtual_slurm import VirtualSlurm

from ..doubles.twin_pairs import EVERY_S, Jobs, virtual, words_of
from .conftest import client_of_lab
from .test_twin_starts import same_starts

pytestmark = pytest.mark.real_slurm

AGE_S = 10  # of PriorityWeightAge for each second of PriorityMaxAge
EDITS = (
    (
        "PartitionName=gpu",
        "PartitionName=low Nodes=n[0-1] PriorityTier=1 MaxTime=10\n"
        "PartitionName=high Nodes=n[1-2] PriorityTier=5 PriorityJobFactor=4\n"
        "PartitionName=defs Nodes=ALL DefCpuPerGPU=6 DefMemPerGPU=20000\n"
        "PartitionName=gpu",
    ),
    (
        "PriorityType=priority/basic",
        f"PriorityType=priority/multifactor\nPriorityWeightAge={3600 * AGE_S}\nPriorityMaxAge=0-1\n"
        "PriorityWeightJobSize=10000\nPriorityWeightPartition=1000\nPriorityCalcPeriod=1",
    ),
)
# No two of those that start together end together: whose node is free first would be chance.
JOBS: Jobs = (
    ("-p gpu --gpus-per-node=4 -N4 -t 1", 14),
    ("-p low --gpus-per-node=2 -N1 -t 1", 6),
    ("-p high --gpus-per-node=4 -N1 -t 1", 8),
    ("-p high --gpus-per-node=4 -N2 -t 1", 8),  # wider: before the one above
    ("-p gpu --gpus-per-node=1 -N1 -c 12 -t 1 --nice=500", 5),
    ("-p gpu --gpus-per-node=1 -N1 -c 12 -t 1", 12),  # it overtakes the nice one
    ("-p gpu --gpus-per-node=1 -N1 --mem=40000 -t 1", 20),
    ("-p defs --gpus-per-node=2 -N1 -t 1", 5),  # 12 CPUs and 40000 MiB by its partition
    ("-p gpu --gpus-per-node=1 -w n3 -N1 -t 2", 68),
    ("-p gpu --gpus-per-node=4 -w n3 -N1 -t 1 --nice=900", 1),  # it waits for more than a period of calculation
)


@pytest.fixture(scope="module")
def client() -> Iterator[CliClient]:
    with client_of_lab(EDITS) as made:
        yield made


@pytest.mark.long
def test_priorities_and_tiers_and_cpus_decide_as_on_a_real_slurmctld(client: CliClient) -> None:
    seen, twin = same_starts(client, JOBS)
    for place, changes in seen.priorities.items():
        if changes:  # it waited
            assert changes[0][1] == twin.priorities[place], (place, changes)
            assert len(changes) == 1, (place, changes)  # without slurmdbd nothing ages, however long it waits
    assert seen.starts[len(JOBS) - 1][0] - EVERY_S * (len(JOBS) - 1) > 60.0  # more than PriorityCalcPeriod


def refusal(run: object) -> str:
    """What slurmctld says against an order; "" where it takes it."""
    try:
        run()  # type: ignore[operator]
    except SlurmError as error:
        return str(error)
    return ""


ORDERS: tuple[dict[str, str], ...] = (
    {"Comment": "x"}, {"AdminComment": "y"}, {"TimeLimit": "20"}, {"ReqNodeList": "n2"}, {"ExcNodeList": "n2"},
    {"ReqNodeList": ""}, {"ExcNodeList": ""}, {"ReqNodeList": "", "ExcNodeList": ""}, {"Partition": "low"},
    {"StartTime": "now"}, {"StartTime": "now+60"}, {"Prefer": "x"}, {"Features": ""}, {"ReqNodeList": "n0"},
)  # fmt: skip
"""The last one slurmctld takes for a change of size; then it refuses all others for a while."""


def both(client: CliClient, words: str, lasts: int, wait_s: float) -> tuple[VirtualClient, VirtualSlurm, int, int]:
    """The same job on both, some time later."""
    empty, began_s = client.overview(), time.time()
    number = client.submit(words_of(words, lasts), f"#!/bin/sh\nsleep {lasts}\n")
    slurm, _ = virtual(client, empty, began_s)
    there = VirtualClient(slurm)
    own = there.submit(words_of(words, lasts), "")
    time.sleep(wait_s)
    slurm.advance(began_s + wait_s)
    return there, slurm, number, own


@pytest.mark.parametrize(("lasts", "wait_s", "state"), [(300, 2.0, "RUNNING"), (0, 3.0, "COMPLETED")])
def test_orders_for_jobs_that_have_started_or_ended_are_refused_alike(
    client: CliClient, lasts: int, wait_s: float, state: str
) -> None:
    there, _, number, own = both(client, "-N1 --gpus-per-node=1 -w n0 -t 9", lasts, wait_s)
    assert (client.job(number), there.job(own)) != (None, None)
    assert [one.state for one in (*client.jobs_of([number]).values(), *there.jobs_of([own]).values())] == [state] * 2
    real = {str(fields): bool(refusal(lambda: client.update_job(number, **fields))) for fields in ORDERS}  # noqa: B023
    twin = {str(fields): bool(refusal(lambda: there.update_job(own, **fields))) for fields in ORDERS}  # noqa: B023
    assert twin == real
    if state == "COMPLETED":
        assert refusal(lambda: client.requeue(number)) == refusal(lambda: there.requeue(own)) == ""  # Incomplete: no-op
        assert bool(refusal(lambda: client.signal_batch(number, "USR1"))) is True
        assert bool(refusal(lambda: there.signal_batch(own, "USR1"))) is True
        assert client.jobs_of([number])[number].restarts == there.jobs_of([own])[own].restarts == 0
    else:
        client.cancel([number])


def test_jobs_of_a_failed_node_come_back_alike(client: CliClient) -> None:
    there, slurm, number, own = both(client, "-N1 --gpus-per-node=1 -w n1 -t 1", 30, 2.0)
    client.update_nodes(["n1"], State="DOWN", Reason="test")
    slurm.node_fails("n1")
    down_s = time.time()
    try:
        time.sleep(1.0)
        slurm.advance(slurm.now_s + 1.0)
        shown = [client.jobs_of([number])[number], there.jobs_of([own])[own]]
        assert [(job.state, job.reason, job.restarts) for job in shown] == [("PENDING", "BeginTime", 1)] * 2
        assert shown[0].eligible_s - down_s == pytest.approx(shown[1].eligible_s - slurm.now_s + 1.0, abs=2.0)
        time.sleep(9.0)
        slurm.advance(slurm.now_s + 9.0)
        shown = [client.jobs_of([number])[number], there.jobs_of([own])[own]]
        assert [job.state for job in shown] == ["PENDING"] * 2
        assert all(job.reason.startswith("ReqNodeNotAvail") for job in shown), [job.reason for job in shown]
    finally:
        client.update_nodes(["n1"], State="RESUME")
    slurm.node_returns("n1")
    time.sleep(5.0)
    slurm.advance(slurm.now_s + 5.0)
    shown = [client.jobs_of([number])[number], there.jobs_of([own])[own]]
    assert [(job.state, job.nodes) for job in shown] == [("RUNNING", ("n1",))] * 2
    client.cancel([number])


def test_a_limit_above_max_time_waits_with_the_same_reason(client: CliClient) -> None:
    there, _, number, own = both(client, "-p low -N1 --gpus-per-node=1 -t 30", 5, 3.0)
    shown = [client.jobs_of([number])[number], there.jobs_of([own])[own]]
    subprocess.run(["scancel", str(number)], check=True)
    assert [(job.state, job.reason) for job in shown] == [("PENDING", "PartitionTimeLimit")] * 2
