# SPDX-License-Identifier: MIT
"""Save before the end on a real Slurm: jobs save before their limits or a preemption, are requeued once, and go on.

Limits are whole minutes, so all jobs are submitted together, and looked at afterwards.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .conftest import short_directory, skip_without_slurm
from .test_checkpoint import User

pytestmark = pytest.mark.real_slurm

EXPLAIN = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "explain"]
PARTITIONS = """
[slurm]
PreemptType = "preempt/partition_prio"
PreemptMode = "REQUEUE"
PreemptParameters = "send_user_signal"
[partitions.guest]
nodes = "ALL"
default = true
default_time_min = 2
tier = 1
preempt = "requeue"
grace_s = 10
[partitions.owner]
nodes = "n1"
tier = 10
preempt = "off"
"""
EXACT = """#!/usr/bin/env python3
#PAL checkpoint=USR1
import os, pathlib, signal, sys, time
wanted = False
def ask(*_):
    global wanted
    wanted = True
signal.signal(signal.SIGUSR1, ask)
state = pathlib.Path("exact.state")
i = int(state.read_text()) if state.exists() else 0
while not os.path.exists("exact.stop"):
    i += 1
    print("step", i, flush=True)
    time.sleep(0.1)
    if wanted:  # nothing is done that the checkpoint does not have
        state.write_text(str(i))
        sys.exit(85)
print("end", i)
"""
LOOP = """#!/bin/bash
echo "run ${SLURM_RESTART_COUNT:-0} $PPID"
trap 'touch "$SLURM_PAL_ACK"' USR1
until [ -e "$1.stop" ]; do sleep 0.1; done
"""
SAVING = ["--pal-save-before=100"]
"""Slurm looks at limits every 30 s, and gives notice where 30 s more are left: 0 to 30 s after the start of a job with
the partition's limit."""


class Jobs:
    """All of them, by name."""

    def __init__(self, user: User) -> None:
        self.user, self.loop = user, user.script("loop.sh", LOOP)
        self.exact = self.begin("exact", user.script("exact.py", EXACT), "--pal-save-times=2")
        self.tasks = self.begin("tasks", self.loop, "-a1-2", "-otasks.%a", "--pal-save-times=1")
        self.moved = self.begin("moved", self.loop)
        self.failing = self.begin("failing", self.loop, "--pal-checkpoint=false")
        self.killed = self.begin("killed", self.loop)
        self.guest = self.begin("guest", self.loop, "-wn1", "--exclusive", "-t60")
        self.after = int(user.run("sbatch", "--parsable", "-dafterok:" + str(self.exact), "-oafter", "--wrap", "true"))

    def begin(self, name: str, script: str, *words: str) -> int:
        return self.user.palsub(*SAVING, "--pal-checkpoint=USR1", f"-o{name}", *words, script, name)

    def restarts(self, job: int | str) -> int:
        return int(self.user.run("squeue", "-h", "-t", "all", "-j", str(job), "-O", "RestartCnt"))

    def said(self, name: str, text: str) -> None:
        self.user.until(lambda: text in self.user.read(name))

    def explained(self, job: int | str) -> str:
        return self.user.run(*EXPLAIN, str(job))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    skip_without_slurm()
    home = tmp_path_factory.mktemp("home")
    (home / "partitions").write_text(PARTITIONS)
    with (
        short_directory() as path,
        Lab.up(path, nodes=2, gpus=1, seed=1, partitions=str(home / "partitions")) as lab,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in lab.variables().items():
            patch.setenv(name, value)
        yield Jobs(User(lab, home))
        queue_of.emptied(CliClient())


def test_a_movers_requeue_is_the_only_one(jobs: Jobs) -> None:
    """Near its limit a job makes a checkpoint for a mover, which requeues it; the wrapper does not do so again."""
    user = jobs.user
    jobs.said("moved", "run 0")
    user.run("scancel", "-b", "-s", "USR1", str(jobs.moved))
    user.until(lambda: "pal:ack=0.1" in user.comment(jobs.moved))
    user.move(jobs.moved)
    jobs.said("moved", "run 1")
    assert jobs.restarts(jobs.moved) == 1 and "pal:cont" not in user.comment(jobs.moved)


def test_a_job_whose_checkpoint_failed_stays(jobs: Jobs) -> None:
    jobs.said("failing", "run 0")
    jobs.user.run("scancel", "-b", "-s", "USR1", str(jobs.failing))
    jobs.said("failing", "no checkpoint before the time limit: the job is not continued after it")
    (jobs.user.home / "failing.stop").touch()
    jobs.user.until(lambda: jobs.user.state(jobs.failing) == "COMPLETED")
    assert jobs.restarts(jobs.failing) == 0


def test_a_killed_wrapper_ends_its_job_as_a_killed_script_would(jobs: Jobs) -> None:
    jobs.said("killed", "run 0")
    jobs.user.run("scancel", "-b", "-s", "USR1", str(jobs.killed))
    jobs.user.until(lambda: "pal:ack=0.1" in jobs.user.comment(jobs.killed))
    os.kill(int(jobs.user.read("killed").split()[2]), signal.SIGKILL)
    jobs.user.until(lambda: jobs.user.state(jobs.killed) == "FAILED")
    assert jobs.restarts(jobs.killed) == 0


def test_a_guest_saves_in_its_grace_time_and_slurm_requeues_it(jobs: Jobs) -> None:
    user = jobs.user
    jobs.said("guest", "run 0")
    owner = user.run("sbatch", "--parsable", "-powner", "--exclusive", "-oowner", "--wrap", "true").strip()
    user.until(lambda: "pal:ack=0.1" in user.comment(jobs.guest))
    assert jobs.restarts(jobs.guest) == 0  # it may run on until its grace time is over
    user.until(lambda: user.state(int(owner)) == "COMPLETED")
    jobs.said("guest", "run 1")
    assert jobs.restarts(jobs.guest) == 1 and "pal:cont" not in user.comment(jobs.guest)


def test_each_task_of_an_array_is_continued_for_itself(jobs: Jobs) -> None:
    user = jobs.user
    for task in ("1", "2"):
        jobs.said(f"tasks.{task}", "run 1")
        assert "requeued, to be continued (1 of at most 1 times)" in user.read(f"tasks.{task}")
        name = f"{jobs.tasks}_{task}"
        user.run("scancel", "-b", "-s", "USR1", name)
        jobs.said(f"tasks.{task}", "not continued after the time limit: 1 of at most 1 times are over")
        assert jobs.restarts(name) == 1
        assert "Continued after its time limit: 1 of at most 1 times" in jobs.explained(name)


def test_nothing_is_lost_and_nothing_done_twice(jobs: Jobs) -> None:
    """By Slurm's own notice, as often as asked for; then a job that waits for its success starts."""
    user = jobs.user
    jobs.said("exact", "(2 of at most 2 times)")
    before = user.read("exact").count("step")
    user.until(lambda: user.read("exact").count("step") > before + 3)
    assert user.state(jobs.after) == "PENDING"
    (user.home / "exact.stop").touch()
    user.until(lambda: user.state(jobs.after) == "COMPLETED")
    steps = [int(number) for number in re.findall(r"^step (\d+)$", user.read("exact"), re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)) and f"end {len(steps)}" in user.read("exact")
    assert jobs.restarts(jobs.exact) == 2
    said = "Continued after its time limit: 2 of at most 2 times; its script has ended by itself (COMPLETED)"
    assert said in jobs.explained(jobs.exact)
