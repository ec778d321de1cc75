# SPDX-License-Identifier: MIT
"""Checkpoints on a real Slurm: a job is signalled, acknowledges, is requeued, and goes on where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PAL = f"{sys.executable} -P -c 'from slurm_pal.cli.start import main; main()'"
PATIENCE_S = 60.0
OWN = 'it\'s "mine"  a=b'


class User:
    """Somebody who submits jobs to the lab from an empty directory."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        (home / "tmp").mkdir()
        self.env = lab.environ() | {
            "XDG_STATE_HOME": str(home / "xdg"), "TMPDIR": str(home / "tmp"),
            "SLURM_PAL_PATHS_SNAPSHOT": str(home / "none"),
        }  # fmt: skip

    def run(self, *argv: str, **options: object) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, timeout=120, text=True, check=False, **options
        )  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def palsub(self, *words: str, **options: object) -> int:
        return int(self.run(*PALSUB, "--parsable", "-o", "out", *words, **options))

    def script(self, name: str, text: str) -> str:
        (self.home / name).write_text(text)
        return name

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, self.read("out")
            time.sleep(0.1)

    def read(self, name: str) -> str:
        return (self.home / name).read_text() if (self.home / name).exists() else ""

    def state(self, job: int) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").strip()

    def comment(self, job: int) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%k").removesuffix("\n")

    def move(self, job: int) -> None:
        """As the tick moves a job; slurmd refuses a credential made in the second in which the job was killed."""
        self.run("scontrol", "requeuehold", str(job))
        self.until(lambda: self.state(job) == "PENDING")
        time.sleep(1.1)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        self.run("scontrol", "release", str(job))


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    somebody = User(lab, tmp_path)
    yield somebody
    queue_of.emptied(CliClient())


SHELL = """#!/bin/bash
#PAL class=A movable=600
#PAL checkpoint=touch wanted; until [ -e saved ]; do sleep 0.1; done; rm saved
echo "start ${SLURM_RESTART_COUNT:-0} <$1> <$2> $#"
i=$(cat state 2>/dev/null || echo 0)
while [ ! -e stop ]; do
  i=$((i + 1)); sleep 0.1
  if [ -e wanted ]; then echo $i > state; rm wanted; touch saved; fi
done
[ "$i" -gt "$(cat state)" ] && echo end
exit 3"""

PYTHON = """#!/usr/bin/env python3
#PAL checkpoint=USR1
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("state").write_text(str(i))
    pathlib.Path(os.environ["SLURM_PAL_ACK"]).touch()
signal.signal(signal.SIGUSR1, save)
i = int(pathlib.Path("state").read_text()) if os.path.exists("state") else 0
print(f"start {os.environ.get('SLURM_RESTART_COUNT', '0')}", *(f"<{word}>" for word in sys.argv[1:]), len(sys.argv) - 1)
sys.stdout.flush()
while not os.path.exists("stop"):
    i, _ = i + 1, time.sleep(0.1)
print("end" if i > int(pathlib.Path("state").read_text()) else "lost")
sys.exit(3)
"""


@pytest.mark.parametrize("text", [SHELL, PYTHON], ids=["shell", "python"])
def test_a_job_resumes_from_its_checkpoint(text: str, user: User) -> None:
    job = user.palsub(f"--comment={OWN}", user.script("a job.sh", text), "x  'y", '"')
    user.until(lambda: "start 0" in user.read("out"))
    before = user.comment(job)
    assert before.startswith(f"{OWN} pal:job=") and marks.read(before, marks.JOB)["ck"] == "1"
    user.run("scancel", "-b", "-s", "USR1", str(job))
    user.until(lambda: "pal:ack=" in user.comment(job))
    assert user.comment(job) == f"{before} pal:ack=0.1"
    user.move(job)
    user.until(lambda: "start 1" in user.read("out"))
    user.run("scancel", "-b", "-s", "USR1", str(job))
    user.until(lambda: user.comment(job) == f"{before} pal:ack=1.1")
    (user.home / "stop").touch()
    user.until(lambda: user.state(job) == "FAILED")
    lines = [line for line in user.read("out").splitlines() if line.startswith(("start", "end", "lost"))]
    arguments = "<x  'y> <\"> 2"
    assert lines == [f"start 0 {arguments}", f"start 1 {arguments}", "end"]
    shown = user.run("scontrol", "show", "job", str(job))
    assert "ExitCode=3:0" in shown and "JobName=a job.sh" in shown
    assert list((user.home / "tmp").iterdir()) == []


@pytest.mark.parametrize(("text", "code"), [("exit 0", "0:0"), ("exit 3", "3:0"), ("kill -9 $$", "137:0")])
def test_exit_codes_are_kept(text: str, code: str, user: User) -> None:
    job = user.palsub("--pal-checkpoint", "true", "--wrap", f"echo $SLURM_JOB_NAME; {text}")
    user.until(lambda: user.state(job) in ("COMPLETED", "FAILED"))
    assert f"ExitCode={code}" in user.run("scontrol", "show", "job", str(job))
    assert user.read("out") == "wrap\n"


def test_a_script_from_stdin_reads_its_own_input(user: User) -> None:
    (user.home / "in").write_text("input")
    text = '#!/bin/bash\n#SBATCH -i in -t 7\necho "$SLURM_JOB_NAME $(cat)"'
    job = user.palsub("--pal-checkpoint", "true", input=text)
    user.until(lambda: user.state(job) == "COMPLETED")
    assert user.read("out") == "sbatch input\n"
    assert "TimeLimit=00:07:00" in user.run("scontrol", "show", "job", str(job))
    assert user.run("scontrol", "write", "batch_script", str(job), "-").rstrip("\n").endswith(text)


def test_progress_from_inside_a_job(user: User) -> None:
    job = user.palsub("--pal-movable", f"--comment={OWN}", "--wrap", f"{PAL} progress 12 50; {PAL} progress 13 50")
    user.until(lambda: user.state(job) == "COMPLETED")
    word = marks.read(user.comment(job), marks.PROGRESS)
    assert (word["it"], word["of"], word["r"]) == ("12", "50", "0")
    assert user.comment(job).startswith(f"{OWN} pal:job=?;from=default;mov=1;app=1 pal:it=") and user.read("out") == ""
