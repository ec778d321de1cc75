# SPDX-License-Identifier: MIT
"""Jobs that save before their time limits go on at the next tick, not only after Slurm's own delay of two minutes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .test_checkpoint import User

pytestmark = pytest.mark.real_slurm

REBALANCE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
PARTITIONS = '[partitions.gpu]\nnodes = "ALL"\ndefault = true\ndefault_time_min = 2\n'
LOOP = """#!/bin/bash
echo "run ${SLURM_RESTART_COUNT:-0}"
trap 'touch "$SLURM_PAL_ACK"' USR1
until [ -e stop ]; do sleep 0.1; done
"""
NAMES = ("plain", "held", "later", "bound")
DELAY_S = 121.0
"""Slurm's default."""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    skip_without_slurm()
    (tmp_path / "partitions").write_text(PARTITIONS)
    edits = ((",cred_expire=5", ""),)
    with (
        short_directory() as path,
        Lab.up(path, nodes=1, gpus=1, seed=1, partitions=str(tmp_path / "partitions"), conf_edits=edits) as lab,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in lab.variables().items():
            patch.setenv(name, value)
        yield User(lab, tmp_path)
        queue_of.emptied(CliClient())


def tick(user: User, *words: str) -> list[int]:
    return json.loads(user.run(*REBALANCE, "--json", *words))["continued"]  # type: ignore[no-any-return]


def test_a_tick_ends_slurms_delay_and_nothing_else(user: User) -> None:
    client, script = CliClient(), user.script("loop.sh", LOOP)
    words = ["--pal-checkpoint=USR1", "--pal-save-before=100", "-n1", "--mem=100"]
    jobs = {name: user.palsub(*words, f"-o{name}", script) for name in NAMES}
    array = user.palsub(*words, "-a1-2", "-otask.%a", script)
    user.until(lambda: "run 0" in user.read("task.1") and "run 0" in user.read("task.2"))
    user.run("scancel", "-b", "-s", "USR1", str(array))
    for name, job in jobs.items():
        user.until(lambda: "run 0" in user.read(name))  # noqa: B023
        user.run("scancel", "-b", "-s", "USR1", str(job))
    user.until(lambda: all(one.reason == "BeginTime" for one in client.jobs_of([*jobs.values()]).values()))
    for one in client.jobs_of([*jobs.values()]).values():
        assert one.eligible_s - one.submit_s == DELAY_S
    user.run("scontrol", "hold", str(jobs["held"]))
    user.run("scontrol", "update", f"JobId={jobs['later']}", "StartTime=now+1hour")
    user.run("scontrol", "update", f"JobId={jobs['bound']}", f"Dependency=afterany:{jobs['later']}")
    once = ["--mine", "--act"]
    task = next(job for job in client.job_states() if job not in (array, *jobs.values()))
    assert sorted(tick(user, "--mine")) == sorted(tick(user, *once)) == sorted([jobs["plain"], task])
    assert tick(user, *once) == []
    user.until(lambda: all("run 1" in user.read(name) for name in ("plain", "task.1")))
    seen = client.jobs_of([*jobs.values()])
    assert (seen[jobs["plain"]].state, seen[jobs["plain"]].restarts) == ("RUNNING", 1)
    assert {seen[jobs[name]].state for name in NAMES[1:]} == {"PENDING"}
    assert "run 1" not in user.read("task.2")  # its number means all tasks
    assert seen[jobs["held"]].held and seen[jobs["later"]].eligible_s > seen[jobs["later"]].submit_s + 3000
