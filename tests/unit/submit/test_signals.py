# SPDX-License-Identifier: MIT
"""Signals to the batch shell are the script's: with the wrapper around it, it gets them and ends by them as without."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from .test_checkpoint import Job

MILD = (signal.SIGURG, signal.SIGCONT, signal.SIGWINCH)
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# SIGCHLD comes with each process that ends; 32 and 33 are the C library's own.
CATCHABLE = sorted(
    int(number) for number in signal.valid_signals() - {*MILD, *STOPPING, signal.SIGKILL, signal.SIGCHLD} - {32, 33}
)
SOME = (signal.SIGTERM, signal.SIGVTALRM, signal.SIGSEGV, signal.SIGPIPE, signal.SIGRTMIN, signal.SIGRTMAX - 1)
CATCHER = f"""#!/usr/bin/python3
import os, signal, time
def got(number, frame):
    with open("got", "a") as stream:
        stream.write(f"{{number}}\\n")
for number in {CATCHABLE}:
    signal.signal(number, got)
open("begun", "w").close()
while not os.path.exists("stop"):
    time.sleep(0.02)
"""
PLAIN = "#!/bin/sh\necho $$ > pid\nuntil [ -e stop ]; do read -r line < pid; done\necho end\nexit 3\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Job]]:
    jobs: list[Job] = []

    def begin(body: str) -> Job:
        jobs.append(Job(tmp_path, body.encode(), "", note=("/bin/true",)))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def check_each_reaches_it_once(start: Callable[[str], Job], numbers: Sequence[int]) -> None:
    """Sent to the batch shell alone, one after the other."""
    job = start(CATCHER)
    job.until("begun")
    for count, number in enumerate(numbers, 1):
        job.process.send_signal(number)
        job.until("got", "".join(f"{one}\n" for one in numbers[:count]))
    (job.root / "stop").touch()
    assert job.end() == (0, b"", b"")
    assert job.until("got") == "".join(f"{number}\n" for number in numbers)


def test_a_signal_reaches_the_script_that_has_a_trap_for_it_once(start: Callable[[str], Job]) -> None:
    check_each_reaches_it_once(start, SOME)


@pytest.mark.long
def test_so_does_each_other_signal(start: Callable[[str], Job]) -> None:
    check_each_reaches_it_once(start, CATCHABLE)


@pytest.mark.parametrize("order", [(signal.SIGCONT, signal.SIGTERM), (signal.SIGTERM, signal.SIGCONT)])
def test_slurm_s_end_of_a_job_reaches_it_once(start: Callable[[str], Job], order: tuple[int, int]) -> None:
    """Both to all processes and nearly at once: bash loses one of them where it waits."""
    for _ in range(5):
        job = start(CATCHER)
        job.until("begun")
        processes = job.processes()
        for number in order:
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        job.until("got", f"{signal.SIGTERM:d}\n")
        time.sleep(0.4)  # a second one would come within 0.1 s
        (job.root / "stop").touch()
        job.end()
        assert job.until("got").split().count(f"{signal.SIGTERM:d}") == 1
        for name in ("got", "stop"):
            (job.root / name).unlink()


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGRTMIN + 2])
def test_a_signal_to_all_processes_reaches_it_once(start: Callable[[str], Job], number: int) -> None:
    job = start(CATCHER)
    job.until("begun")
    for count in (1, 2):
        for pid in job.processes():
            with contextlib.suppress(ProcessLookupError):  # what makes the line has ended
                os.kill(pid, number)
        job.until("got", f"{number}\n" * count)
        time.sleep(0.3)  # a second one would come within 0.1 s
        assert job.until("got") == f"{number}\n" * count
    (job.root / "stop").touch()
    assert job.end()[0] == 0


def ending(root: Path, process: subprocess.Popen[bytes], number: int) -> tuple[str, int, bytes]:
    """What becomes of a script without traps: "ended" or "goes on"; its exit status and output."""
    deadline_s = time.monotonic() + 60
    while not (root / "pid").exists() or not (root / "pid").read_text().strip():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    process.send_signal(number)
    became, quiet_until_s = "goes on", time.monotonic() + 0.5
    while time.monotonic() < quiet_until_s and became == "goes on":
        if process.poll() is not None:
            became = "ended"
        time.sleep(0.02)
    (root / "stop").touch()
    out, _ = process.communicate(timeout=60)
    return became, process.returncode, out


def check_the_end(start: Callable[[str], Job], tmp_path: Path, number: int) -> None:
    job = start(PLAIN)
    wrapped = ending(job.root, job.process, number)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "script").write_text(PLAIN)
    plain = subprocess.Popen(["/bin/sh", "script"], cwd=alone, stdout=subprocess.PIPE, start_new_session=True)
    assert wrapped == ending(alone, plain, number)


@pytest.mark.parametrize("number", [*MILD, *SOME])
def test_a_script_without_a_trap_ends_or_goes_on_as_without_us(
    start: Callable[[str], Job], tmp_path: Path, number: int
) -> None:
    check_the_end(start, tmp_path, number)


@pytest.mark.long
@pytest.mark.parametrize("number", [one for one in CATCHABLE if one not in SOME])
def test_so_it_is_with_each_other_signal(start: Callable[[str], Job], tmp_path: Path, number: int) -> None:
    check_the_end(start, tmp_path, number)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("trap 'exit 143' TERM", 143),  # its own status
        ("trap 'exit 7' TERM", 7),
        ("trap 'echo bye' EXIT", -signal.SIGTERM),  # bash dies of it after that
        ("trap '' TERM; touch stop", 3),
    ],
)
def test_who_handles_the_signal_has_their_own_status(start: Callable[[str], Job], body: str, status: int) -> None:
    job = start(f"#!/bin/bash\n{body}\ntouch begun\nuntil [ -e stop ]; do sleep 0.05; done\nsleep 0.3\nexit 3\n")
    job.until("begun")
    job.process.send_signal(signal.SIGTERM)
    assert job.end()[0] == status
