# SPDX-License-Identifier: MIT
"""Jobs of several tasks that save by `Saver`, and jobs that requeue themselves, under the real tick."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slurm_pal.base import marks

from .test_rebalance import Site, site, started

__all__ = ["site", "started"]

pytestmark = pytest.mark.real_slurm

TASKS = 3
TRAIN = """
import os, subprocess, sys, time
from pathlib import Path
from slurm_pal.frameworks.saver import Saver

here, tasks, rank = Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["SLURM_PROCID"])
run = os.environ.get("SLURM_RESTART_COUNT", "0")
calls = 0

def agree(asked):
    # Whether any task was asked; each tells the others by a file.
    global calls
    calls += 1
    name = here / f"agree.{run}.{calls}"
    Path(f"{name}.{rank}.new").write_text(str(int(asked)))
    os.rename(f"{name}.{rank}.new", f"{name}.{rank}")
    others = [Path(f"{name}.{k}") for k in range(tasks)]
    while not all(path.exists() for path in others):
        time.sleep(0.01)
    return any(path.read_text() == "1" for path in others)

def note(line):
    with open(here / f"log.{rank}", "a") as stream:
        stream.write(line + "\\n")

saver = Saver(agree)
child = subprocess.Popen(["sleep", "300"])
state = here / f"state.{rank}"
step = int(state.read_text()) if state.exists() else 0
note(f"run {run} {step}")
while not agree((here / "stop").exists()):
    time.sleep(0.02 * (1 + rank))
    step += 1
    note(f"step {step}")
    if saver.due(step, 100_000):
        Path(f"{state}.new").write_text(str(step))
        os.rename(f"{state}.new", state)
        note(f"save {step}")
        saver.done()
note("child lost" if child.poll() is not None else "child alive")
child.kill()
"""
HIDDEN = 'exec unshare -m --propagation private sh -c \'mount -t tmpfs none "$TMPDIR" && exec "$@"\' sh '


def train(site: Site, program: str) -> str:
    (site.home / "train.py").write_text(TRAIN)
    words = [sys.executable, "-P", str(site.home / "train.py"), str(site.home), str(TASKS)]
    return f"#!/bin/bash\n#SBATCH --ntasks={TASKS}\n" + program + " ".join(f"'{word}'" for word in words) + "\n"


def lines(site: Site, rank: int) -> list[list[str]]:
    path = site.home / f"log.{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def can_hide() -> bool:
    argv = ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("signal", ["USR1", "USR2"])
@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "container"])
def test_tasks_save_once_in_one_step_and_go_on_elsewhere(site: Site, signal: str, hidden: bool) -> None:
    """In the container, one that hides the folder of the wrapper, `pal ack` answers."""
    if hidden and not can_hide():
        pytest.skip("a mount of its own for a job needs root")
    site.user["TMPDIR"] = str(site.home / "tmp")
    os.mkdir(site.user["TMPDIR"])
    full = site.fill("n1", "n2", "n3")
    script = train(site, f"srun --ntasks={TASKS} {HIDDEN.removeprefix('exec ') if hidden else ''}")
    number = site.palsub("--gres=gpu:1", "--pal-checkpoint", signal, script=script)
    site.running(number)
    site.wait(lambda: all(len(lines(site, rank)) > 3 for rank in range(TASKS)))
    with site.daemon():
        site.client.cancel([full["n2"]])
        assert site.running(number, restarts=1).nodes == ("n2",)
        move = site.ended()
        assert (move.outcome, move.checkpoint) == ("moved", True), move
    site.wait(lambda: all(["run", "1"] in [line[:2] for line in lines(site, rank)] for rank in range(TASKS)))
    (site.home / "stop").touch()
    job = site.until(number, lambda job: job.state == "COMPLETED")
    said = marks.read(job.comment, marks.PROGRESS)
    assert int(said["it"]) > 0 and said["of"] == "100000"
    saves = set()
    for rank in range(TASKS):
        told = lines(site, rank)
        second = told.index(next(line for line in told if line[:2] == ["run", "1"]))
        ((_, saved),) = [line for line in told if line[0] == "save"]
        saves.add(saved)
        assert told[second] == ["run", "1", saved] and told[-1] == ["child", "alive"]
        for first, part in ((1, told[1:second]), (int(saved) + 1, told[second + 1 :])):
            steps = [int(line[1]) for line in part if line[0] == "step"]
            assert steps == [*range(first, first + len(steps))]
        assert ["child", "lost"] not in told
    assert len(saves) == 1


SELFISH = """#!/bin/bash
trap '@ scontrol requeue $SLURM_JOB_ID' USR1
touch ready
while :; do sleep 0.1; done
"""


@pytest.mark.parametrize("answer", ["", 'touch "$SLURM_PAL_ACK";'], ids=["silent", "acknowledged"])
def test_a_job_that_requeues_itself_when_it_is_asked_is_requeued_once(site: Site, answer: str) -> None:
    """As Lightning and submitit do by themselves, on the signal that they listen to."""
    full = site.fill("n1", "n2", "n3")
    number = site.palsub("--gres=gpu:1", "--pal-checkpoint", "USR1", script=SELFISH.replace("@", answer))
    site.running(number)
    site.wait((site.home / "ready").exists)
    with site.daemon(moves_per_job=1):
        site.client.cancel([full["n2"]])
        move = site.ended()
        known = [("abandoned", "somebody else has requeued it")]
        if answer:
            known += [("moved", ""), ("elsewhere", "it runs on n0")]
        assert (move.outcome, move.detail) in known
        site.running(number, restarts=1)
        ticks = len(site.ticks())
        site.wait(lambda: len(site.ticks()) >= ticks + 4)
        assert len(site.moves()) == 1
        job = site.client.job(number)
        assert job is not None and (job.state, job.restarts) == ("RUNNING", 1)
