# SPDX-License-Identifier: MIT
"""Transparent checkpoints on a real Slurm: CRIU moves programs that know nothing of checkpoints.

CRIU 4.2 is in Debian testing only (tests/releases.sh); where it does not run, these tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient

from . import queue_of
from .open_python import USERS, OpenPython
from .test_checkpoint import User

CRIU = shutil.which("criu") or "/usr/sbin/criu"


def trouble() -> str:
    """Why CRIU cannot run here, "" where it can."""
    try:
        done = subprocess.run([CRIU, "check"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{CRIU}: {error.strerror}"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


pytestmark = [pytest.mark.real_slurm, pytest.mark.skipif(bool(trouble()), reason=f"criu check: {trouble()}")]

PROGRAM = """
import os, sys, threading, time
ticks = 0
def count():
    global ticks
    while True:
        ticks, _ = ticks + 1, time.sleep(0.02)
threading.Thread(target=count, daemon=True).start()
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.close(reads)
    number = 0
    while not os.path.exists("stop"):
        number, _ = number + 1, time.sleep(0.05)
        os.write(writes, b"%d\\n" % number)
    os._exit(0)
os.close(writes)
log = open("log", "a", buffering=1)
held = open("held")
before = 0
for line in os.fdopen(reads):
    log.write(line)
    print("line", line.strip(), flush=True)
    assert ticks >= before, (ticks, before)
    before = ticks
assert os.waitpid(child, 0)[1] == 0 and held.read() == "held"
sys.exit(7)
"""
SCRIPT = """#!/bin/bash
echo "begins $BASHPID <$1>"
python3 program.py | cat
echo "ends ${PIPESTATUS[0]} ${SLURM_RESTART_COUNT:-0}"
exit 5
"""


class Account(User):
    """An ordinary user, where the tests run as root; else their own."""

    def __init__(self, lab: Lab, home: Path, name: str, python: OpenPython) -> None:
        super().__init__(lab, home)
        self.owner, self.python = {}, python.program
        if name:
            uid, gid = pwd.getpwnam(name)[2:4]
            self.owner = {"user": uid, "group": gid, "extra_groups": []}
            self.env |= python.env | {"HOME": str(home)}
            (home / "tmp").chmod(0o777)
        self.uid = self.owner.get("user", os.geteuid())
        images = home / "images"
        images.mkdir()
        images.chmod(0o1777)
        self.env |= {"SLURM_PAL_SUBMIT_CHECKPOINT_IMAGES": str(images), "SLURM_PAL_SUBMIT_CRIU": CRIU}
        self.script("program.py", PROGRAM)
        self.script("held", "held")

    def run(self, *argv: str, **options: object) -> str:
        return super().run(*argv, **options, **self.owner)

    def palsub(self, *words: str, **options: object) -> int:
        start = "import sys; from slurm_pal.cli.palsub import program; sys.exit(program())"
        return int(self.run(self.python, "-P", "-c", start, "--parsable", "-o", "out", *words, **options))

    def images(self) -> list[str]:
        """What there is of jobs."""
        return [path.name for path in (self.home / "images" / f"pal.{self.uid}").glob("*/*")]

    def ended(self, job: int, state: str = "COMPLETED") -> None:
        self.until(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING"))
        assert self.state(job) == state, self.read("out")


def account(lab: Lab, python: OpenPython, patch: pytest.MonkeyPatch, name: str) -> Iterator[Account]:
    for key, value in lab.variables().items():
        patch.setenv(key, value)
    parent = os.path.dirname(lab.directory.path)
    mode = os.stat(parent).st_mode & 0o777
    path = tempfile.mkdtemp(prefix="palt")
    try:
        os.chmod(parent, 0o711)
        os.chmod(path, 0o777)
        yield Account(lab, Path(path), name, python)
        queue_of.emptied(CliClient())
    finally:
        os.chmod(parent, mode)
        shutil.rmtree(path)


@pytest.fixture
def user(lab: Lab, python: OpenPython, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    yield from account(lab, python, monkeypatch, "" if os.geteuid() else USERS[0])


@pytest.fixture
def own(lab: Lab, python: OpenPython, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """Root, as a rule: then CRIU runs without a user namespace."""
    yield from account(lab, python, monkeypatch, "")


def saved(user: Account, job: int) -> dict[str, str]:
    """Ask for a checkpoint; the acknowledgement."""
    before = marks.read(user.comment(job), marks.ACK)
    user.run("scancel", "-b", "-s", "USR1", str(job))
    user.until(lambda: marks.read(user.comment(job), marks.ACK) != before)
    return marks.read(user.comment(job), marks.ACK)


def moved(user: Account, job: int) -> None:
    said = saved(user, job)
    assert "failed" not in said, user.read("out")
    user.move(job)
    user.until(lambda: user.state(job) == "RUNNING")


def grows(user: Account, name: str = "log") -> None:
    size = len(user.read(name))
    user.until(lambda: len(user.read(name)) > size)


def numbers(text: str) -> list[int]:
    return [int(line.split()[-1]) for line in text.splitlines() if line.split()[-1].isdigit() and "line" in line]


def goes_on(user: Account) -> None:
    job = user.palsub("--pal-checkpoint", "transparent", user.script("job.sh", SCRIPT), "x y")
    grows(user)
    for _ in range(2):
        moved(user, job)
        grows(user)
    (user.home / "stop").touch()
    user.ended(job, "FAILED")
    out = user.read("out")
    assert out.count("begins") == 1 and "<x y>" in out and out.count("ends 7 0") == 1, out
    assert "ExitCode=5:0" in user.run("scontrol", "show", "job", str(job))
    log = [int(line) for line in user.read("log").split()]
    assert log == list(range(1, len(log) + 1)) == numbers(out) and len(log) > 2
    assert user.images() == [] and "palsub:" not in out


def test_a_program_goes_on_after_two_moves(user: Account) -> None:
    """With a thread, a child, a pipe and files; no line of its output is lost or there twice."""
    goes_on(user)


def test_a_program_of_roots(own: Account) -> None:
    goes_on(own)


LOOP = """#!/bin/bash
trap 'echo usr2' USR2
trap 'echo term; exit 3' TERM
i=0
read -r held < held
%s
echo "begins $BASHPID"
until [ -e stop ]; do i=$((i + 1)); echo "line $i"; sleep 0.05; done
echo ends
"""


def begin(user: Account, *words: str, more: str = "", how: str = "transparent") -> int:
    job = user.palsub("--pal-checkpoint", how, *words, user.script("job.sh", LOOP % more))
    grows(user, "out")
    return job


def test_where_no_requeue_comes_it_goes_on_there(user: Account) -> None:
    job = begin(user)
    saved(user, job)
    user.until(lambda: "no requeue after the checkpoint: it goes on from its image" in user.read("out"))
    grows(user, "out")
    user.run("scancel", "-b", "-s", "USR2", str(job))
    user.until(lambda: "usr2" in user.read("out"))
    assert [name for name in user.images() if name.startswith("image")] == ["image.1"]
    (folder,) = (user.home / "images" / f"pal.{user.uid}").iterdir()
    assert {path.stat().st_mode & 0o777 for path in folder.glob("image.1/*.img")} == {0o600}
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    (user.home / "stop").touch()
    user.ended(job)
    lines = numbers(user.read("out"))
    assert lines == list(range(1, len(lines) + 1)) and user.images() == []


def test_its_processes_may_ask_slurm(user: Account) -> None:
    """Also in a namespace of their own."""
    job = begin(user, more='echo "$(squeue -h -j $SLURM_JOB_ID -o %i) is mine, $UID"')
    (user.home / "stop").touch()
    user.ended(job)
    assert f"{job} is mine, {user.uid}" in user.read("out")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("(sleep 1000 &)", "(sleep) has outlived the one that started it"),
        ("exec 7< device", "/device is open"),
        ("exec 7< /dev/shm/PAL", "/dev/shm/PAL is on this node only"),
        ("exec 7<> /dev/tcp/127.0.0.1/PORT", "Connected TCP socket"),
    ],
)
def test_what_cannot_be_written_goes_on_untouched(more: str, why: str, user: Account) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        if user.owner:
            os.chown(file.name, user.uid, -1)
            os.mknod(user.home / "device", 0o20666, os.makedev(1, 3))
            os.chmod(user.home / "device", 0o666)
        elif "device" in more:
            pytest.skip("needs root to make a device")
        more = more.replace("PORT", str(server.getsockname()[1])).replace("/dev/shm/PAL", file.name)
        job = begin(user, more=more)
        assert "failed" in saved(user, job)
        assert "no checkpoint: " in user.read("out")
        assert why.replace("/dev/shm/PAL", file.name) in user.read("out"), user.read("out")
        grows(user, "out")
        (user.home / "stop").touch()
        user.ended(job)
    lines = numbers(user.read("out"))
    assert lines == list(range(1, len(lines) + 1)) and user.images() == []


def test_no_room_for_an_image(user: Account) -> None:
    if os.geteuid():
        pytest.skip("needs root to mount a small disk")
    images = str(user.home / "images")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=1777", "tmpfs", images], check=True)
    try:
        user.script("images/held", "held")
        user.script("job.sh", LOOP % "")
        job = user.palsub("--pal-checkpoint=transparent", f"-D{images}", f"-o{user.home}/out", f"{user.home}/job.sh")
        grows(user, "out")
        assert "failed" in saved(user, job)
        assert "MiB are needed in" in user.read("out"), user.read("out")
        (user.home / "images" / "stop").touch()
        user.ended(job)
    finally:
        subprocess.run(["umount", "--lazy", images], check=True)


MORE = "exec 7< held"


def test_what_cannot_be_restored_begins_anew(user: Account) -> None:
    job = begin(user, more=MORE)
    saved(user, job)
    user.script("held", "otherwise")
    user.move(job)
    user.until(lambda: user.read("out").count("\nbegins") == 1)
    assert "the image cannot be restored on " in user.read("out") and "the job begins anew" in user.read("out")
    moved(user, job)
    grows(user, "out")
    (user.home / "stop").touch()
    user.ended(job)
    assert user.read("out").count("begins") == 3 and user.images() == []  # one of them is ours


def test_or_it_is_held_and_goes_on_when_it_can_be_restored(user: Account) -> None:
    job = begin(user, more=MORE, how="transparent:hold")
    saved(user, job)
    user.script("held", "otherwise")
    user.move(job)
    user.until(lambda: "the job is held, and its image is kept" in user.read("out"))
    user.until(lambda: user.state(job) == "PENDING")
    assert user.run("squeue", "-h", "-j", str(job), "-o", "%r").lower().count("held")
    user.script("held", "held")
    time.sleep(1.1)
    user.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    user.run("scontrol", "release", str(job))
    user.until(lambda: user.state(job) == "RUNNING")
    grows(user, "out")
    (user.home / "stop").touch()
    user.ended(job)
    lines = numbers(user.read("out"))
    assert lines == list(range(1, len(lines) + 1)) and user.read("out").count("begins") == 1


def test_signals_and_ends_are_the_scripts(user: Account) -> None:
    job = begin(user)
    moved(user, job)
    grows(user, "out")
    user.run("scancel", "-b", "-s", "TERM", str(job))
    user.ended(job, "FAILED")
    assert user.read("out").count("term") == 1
    assert "ExitCode=3:0" in user.run("scontrol", "show", "job", str(job))
    job = user.palsub("--pal-checkpoint", "transparent", "--wrap", "kill -9 $$")
    user.ended(job, "FAILED")
    assert "ExitCode=137:0" in user.run("scontrol", "show", "job", str(job))


def test_restored_processes_that_somebody_kills_are_no_success(user: Account) -> None:
    """CRIU, which waits for them, ends with 0."""
    job = begin(user)
    moved(user, job)
    grows(user, "out")
    first = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if (words := path.read_bytes()).count(b"pal_root ()") == 1 and f".{job}\0".encode() in words
    ]
    assert len(first) == 1
    user.run("kill", "-9", str(first[0]))
    user.ended(job, "FAILED")
    assert "ExitCode=137:0" in user.run("scontrol", "show", "job", str(job))


def test_folders_of_jobs_that_are_gone_go(user: Account) -> None:
    job = begin(user)
    saved(user, job)
    user.run("scancel", str(job))
    user.ended(job, "CANCELLED")
    user.until(lambda: user.state(job) == "CANCELLED")
    (folder,) = (user.home / "images" / f"pal.{user.uid}").iterdir()
    stale = folder.with_suffix(".999999")
    folder.rename(stale)
    job = user.palsub("--pal-checkpoint", "transparent", "--wrap", "true")
    user.ended(job)
    assert not stale.exists() and user.images() == []


def test_an_accident_brings_back_the_last_image(user: Account) -> None:
    """A requeue without a checkpoint, as after a node has failed."""
    job = begin(user)
    moved(user, job)
    grows(user, "out")
    user.move(job)
    user.until(lambda: user.state(job) == "RUNNING")
    user.until(lambda: len(set(numbers(user.read("out")))) < len(numbers(user.read("out"))))
    assert "anew" not in user.read("out") and user.read("out").count("begins") == 1
    (user.home / "stop").touch()
    user.ended(job)


@pytest.mark.long
def test_saves_before_its_time_limit(user: Account) -> None:
    """Slurm gives notice up to a minute early, and starts a job again two minutes after a requeue."""
    job = begin(user, "-t3", "--pal-save-before=60")
    for _ in range(6):
        with contextlib.suppress(AssertionError):
            user.until(lambda: "requeued, to be continued (1 of at most 10 times)" in user.read("out"))
            break
    lines = len(numbers(user.read("out")))
    for _ in range(4):
        with contextlib.suppress(AssertionError):
            user.until(lambda: len(numbers(user.read("out"))) > lines)
            break
    (user.home / "stop").touch()
    user.ended(job)
    found = numbers(user.read("out"))
    assert found == list(range(1, len(found) + 1)) and len(found) > lines and user.images() == []
    assert marks.read(user.comment(job), marks.CONTINUED)[marks.CONTINUED] == "1"
