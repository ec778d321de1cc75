# SPDX-License-Identifier: MIT
"""Observers and probes on a real Slurm: a job is seen at work, its class is kept, and the next one is given it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.sensitivity import observed
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of

pytestmark = pytest.mark.real_slurm

PALSUB = [sys.executable, "-P", "-c", "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"]
PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
WORK = f"{sys.executable} -P -c 'from slurm_pal.cli.start import main; main()' lab work"
PATIENCE_S = 90.0
OBSERVER = b"slurm_pal.profiling.node.observer"


class User:
    """Somebody who submits jobs to the lab; a few seconds of activity are enough there to tell a class."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        (home / "tmp").mkdir()
        paths = {f"SLURM_PAL_PATHS_{name.upper()}": str(home / name) for name in ("snapshot", "table", "gpus")}
        self.env = lab.environ() | paths | {
            "XDG_STATE_HOME": str(home / "xdg"), "TMPDIR": str(home / "tmp"), "SLURM_PAL_SENSITIVITY_ACTIVE_S": "6",
        }  # fmt: skip
        scores = [
            GpuScore(f"n{i}", k, f"{i}.{k}", "m", dict.fromkeys("ABC", 1.0), {}, time.time(), 1.0, ())
            for i in range(4)
            for k in range(4)
        ]
        publish(str(home / "snapshot"), scores, cluster="lab", epoch=1, now_s=time.time())

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env=self.env, cwd=self.home, capture_output=True, timeout=300, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def palsub(self, *words: str) -> int:
        return int(self.run(*PALSUB, "--parsable", "-o", "out", *words))

    def decided(self, *words: str) -> dict[str, object]:
        made = json.loads(self.run(*PALSUB, "--pal-dry-run", "--pal-json", *words))
        return dict(made["sensitivity"])

    def script(self, name: str, text: str) -> str:
        (self.home / name).write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{text}\n")
        return name

    def until(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            out = self.home / "out"
            assert time.monotonic() < deadline_s, out.read_text() if out.exists() else "no output"
            time.sleep(0.2)

    def state(self, job: int | str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").strip()

    def comment(self, job: int | str) -> str:
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%k")


def observers(home: Path) -> list[int]:
    """Process ids of the observers of jobs that were submitted from this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
            folder = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            continue
        if OBSERVER in words and folder == str(home):
            found.append(int(pid))
    return found


@pytest.fixture
def user(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    somebody = User(lab, tmp_path)
    yield somebody
    queue_of.emptied(CliClient())


@pytest.mark.parametrize(("sensitivity", "array"), [("A", ""), ("C", "3-6")])
def test_the_next_job_of_the_name_has_the_class_that_was_seen(sensitivity: str, array: str, user: User) -> None:
    """Of an array one task is observed, and has the word for itself."""
    script = user.script("train.sh", f"{WORK} --class {sensitivity} --seconds 20")
    assert user.decided(script)["class"] == "?"
    submitted = user.palsub("--pal-observe=60", "--comment=my own", *(["-a", array] if array else []), script)
    job = f"{submitted}_3" if array else str(submitted)
    user.until(lambda: observed.read(user.comment(job)) is not None)
    user.run(*PAL, "publish-table")  # while the job runs
    seen = observed.read(user.comment(job))
    assert seen is not None and seen.sensitivity == sensitivity and seen.confidence == 1.0
    assert user.comment(job).startswith("my own")
    number = user.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%A").strip()
    assert f"Measured (telemetry): class {sensitivity}" in user.run(*PAL, "explain", number)
    found = user.decided(script)
    assert (found["class"], found["stage"]) == (sensitivity, "history")
    stated = user.decided("--pal-class=B", script)
    assert stated["class"] == "B" and stated["measured"]["sensitivity"] == sensitivity  # type: ignore[index]
    user.until(lambda: set(user.state(submitted).split()) == {"COMPLETED"})
    said = user.comment(submitted).splitlines()
    assert len(said) == (4 if array else 1) and sum("pal:obs=" in text for text in said) == 1


def test_a_user_who_observes_himself_sees_memory_and_pipes_too(user: User) -> None:
    """Where the sensors tell them, as those of the lab do."""
    observe = WORK.replace("lab work", "observe --seconds 8 --json")
    user.palsub(user.script("own.sh", f"{WORK} --class C --seconds 12 &\n{observe} > seen.json\nkill %1"))
    user.until(lambda: (user.home / "seen.json").exists() and (user.home / "seen.json").stat().st_size > 0)
    seen = json.loads((user.home / "seen.json").read_text())
    assert seen["sensitivity"] == "C" and seen["traits"]["dram"] > 0.8 and seen["traits"]["tensor"] < 0.1


def test_a_job_whose_observer_is_killed_ends_as_it_would(user: User) -> None:
    script = user.script("job.sh", 'echo "$#: $1"; sleep 4; echo end; exit 3')
    before = set(observers(user.home))
    job = user.palsub("--pal-observe=60", script, "a b")
    user.until(lambda: bool(set(observers(user.home)) - before))
    for pid in set(observers(user.home)) - before:
        os.kill(pid, signal.SIGKILL)
    user.until(lambda: user.state(job) == "FAILED")
    assert (user.home / "out").read_text() == "1: a b\nend\n"
    assert "ExitCode=3:0" in user.run("scontrol", "show", "job", str(job))


def test_the_observer_ends_with_its_job_and_does_not_keep_it(user: User) -> None:
    before = set(observers(user.home))
    job = user.palsub("--pal-observe=600", user.script("job.sh", "sleep 2"))
    user.until(lambda: bool(set(observers(user.home)) - before))
    user.until(lambda: user.state(job) == "COMPLETED")
    user.until(lambda: not set(observers(user.home)) - before)


def test_a_probe_tells_the_class_and_is_over(user: User) -> None:
    script = user.script("long.sh", f"{WORK} --class C --seconds 3000")
    told = json.loads(user.run(*PAL, "probe", "--json", script))
    assert (told["name"], told["sensitivity"], told["stage"]) == ("long.sh", "C", "probe")
    user.until(lambda: user.state(told["job_id"]) == "CANCELLED")
    assert (user.decided(script)["class"], user.decided(script)["stage"]) == ("C", "history")
    assert list((user.home / "tmp").iterdir()) == []


def test_a_probe_that_shows_nothing_says_so(user: User) -> None:
    done = subprocess.run(
        [*PAL, "probe", user.script("idle.sh", "sleep 2")], env=user.env, cwd=user.home, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 8 and "was not seen at work for long enough" in done.stderr
