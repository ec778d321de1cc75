# SPDX-License-Identifier: MIT
"""The line at the end of a job's output: who gets one, and that it never matters to the job."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.submit import note
from slurm_pal.submit.argv import parse
from slurm_pal.submit.checkpoint import render
from slurm_pal.submit.choice import Choice, choice

from .test_checkpoint import Job

LINE = "slurm-pal: ran on 2 GPUs"


@pytest.mark.parametrize(
    ("words", "environment", "directives", "wanted", "warned"),
    [
        (["--pal-note"], {"SLURM_PAL_NOTE": "0"}, (), True, 0),
        ([], {"SLURM_PAL_NOTE": "1"}, (), True, 0),
        ([], {"SLURM_PAL_NOTE": "0"}, (("note", ""),), False, 0),
        ([], {}, (("note", ""),), True, 0),
        ([], {}, (("note", "0"),), False, 0),
        ([], {}, (("note", "please"),), False, 1),
        ([], {"SLURM_PAL_NOTE": "please"}, (("note", "1"),), True, 1),
        ([], {"SLURM_PAL_NOTE": ""}, (), False, 0),
        ([], {}, (), False, 0),
    ],
)
def test_who_gets_one(
    words: list[str], environment: dict[str, str], directives: tuple[tuple[str, str], ...], wanted: bool, warned: int
) -> None:
    warnings: list[str] = []
    chosen = choice(parse([*words, "job.sh"]))
    assert note.wanted(chosen, environment, directives, warnings) == wanted and len(warnings) == warned
    assert choice(parse(["job.sh"])) == Choice()


def test_the_command_is_shielded_from_the_jobs_environment() -> None:
    assert note.command(Config()) == (sys.executable, "-I", "-m", "slurm_pal.cli.note")


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    made: list[Job] = []
    yield made
    for job in made:
        job.kill()


def sh(text: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", text)


SAID = sh(f"echo \"{LINE}\"; echo 'it'\"'\"'s another line'")


@pytest.mark.parametrize(
    ("body", "says", "status", "shown"),
    [
        ("echo mine; sleep 0.3; exit 7", SAID, 7, f"mine\n{LINE}\n"),
        ("echo mine", sh(f"sleep 0.4; echo {LINE}"), 0, f"mine\n{LINE}\n"),  # the job waits a moment for it
        ("echo mine; exit 85", SAID, 85, f"mine\n{LINE}\n"),
        ("echo mine; sleep 0.3", sh("echo half; exit 1"), 0, "mine\n"),
        ("echo mine; exit 3", ("/no/such/python",), 3, "mine\n"),
        ("echo mine; sleep 0.3; exit 3", sh("true"), 3, "mine\n"),
        ("echo mine; exit 3", (), 3, "mine\n"),
        ("exec sh -c 'echo mine; sleep 0.3; exit 4'", SAID, 4, f"mine\n{LINE}\n"),
        ("trap 'echo bye' EXIT; sleep 0.3", SAID, 0, f"bye\n{LINE}\n"),
    ],
)
def test_it_comes_last_and_leaves_the_exit_status_alone(
    tmp_path: Path, jobs: list[Job], body: str, says: tuple[str, ...], status: int, shown: str
) -> None:
    jobs.append(Job(tmp_path, f"#!/bin/bash\n{body}\n".encode(), "", note=says))
    assert jobs[-1].end() == (status, shown.encode(), b"")


def test_a_job_that_is_ended_shows_it_and_does_not_wait(tmp_path: Path, jobs: list[Job]) -> None:
    for number, says in enumerate((SAID, sh("sleep 100"))):
        (tmp_path / str(number)).mkdir()
        body = b"#!/bin/bash\ntrap 'exit 9' TERM\nsleep 0.5\ntouch begun\nwhile :; do sleep 0.1; done\n"
        jobs.append(Job(tmp_path / str(number), body, "", note=says))
        jobs[-1].until("begun")
        jobs[-1].process.send_signal(signal.SIGTERM)
        assert jobs[-1].end() == (9, b"" if number else f"{LINE}\n".encode(), b"")


def test_the_script_gets_the_signals_that_it_handles_itself(tmp_path: Path, jobs: list[Job]) -> None:
    """There is no checkpoint to make: SIGUSR1 is the script's."""
    body = b"#!/bin/bash\ntrap 'echo usr1; exit 0' USR1\ntouch begun\nwhile :; do sleep 0.1; done\n"
    jobs.append(Job(tmp_path, body, "", note=SAID))
    jobs[-1].until("begun")
    jobs[-1].process.send_signal(signal.SIGUSR1)
    status, out, _ = jobs[-1].end()
    assert status == 0 and out.startswith(b"usr1\n")


@pytest.mark.parametrize("name", ["ABRT", "XCPU", "PROF", "IO", "PWR", "HUP", "ALRM"])
def test_deadly_signals_are_the_scripts(tmp_path: Path, jobs: list[Job], name: str) -> None:
    """As #SBATCH --signal=B:XCPU@60 sends one to the batch shell, which the script alone would be."""
    body = f"#!/bin/bash\ntrap 'echo got; exit 5' {name}\ntouch begun\nwhile :; do sleep 0.1; done\n"
    jobs.append(Job(tmp_path, body.encode(), "", note=SAID))
    jobs[-1].until("begun")
    jobs[-1].process.send_signal(signal.Signals[f"SIG{name}"])
    assert jobs[-1].end() == (5, f"got\n{LINE}\n".encode(), b"")


NO_ROOM = b"pal_unpack() { false; }"


def test_without_room_for_its_script_the_job_runs_all_the_same(tmp_path: Path, jobs: list[Job]) -> None:
    body = b'#!/bin/bash\nread -r said\necho "$# $2 $said"\nexit 7\n'
    jobs.append(Job(tmp_path, body, "", "one", "two words", note=SAID, part=NO_ROOM))
    stdin = jobs[-1].process.stdin
    assert stdin is not None
    stdin.write(b"here\n")
    stdin.flush()
    status, out, err = jobs[-1].end()
    assert (status, out) == (7, b"2 two words here\n") and err.startswith(b"palsub: no room for the job's script in ")
    (tmp_path / "save").mkdir()
    jobs.append(Job(tmp_path / "save", body, "USR1", note=SAID, part=NO_ROOM))
    assert jobs[-1].end()[:2] == (1, b"")  # Slurm's SIGUSR1 would be the end of such a script


def test_a_process_that_has_the_number_of_ours_by_now_is_left_alone(tmp_path: Path) -> None:
    """Numbers of processes come round in a long job, and the line has been made at its beginning."""
    (tmp_path / "functions").write_bytes(render(b"#!/bin/bash\n", "").replace(b'\npal_main "$@"\n', b"\nreturn\n"))
    with subprocess.Popen(["sleep", "100"]) as other:
        pids = f"pal_witness={other.pid} pal_writer={other.pid} pal_noter={other.pid}"
        said = "sleep 100 & own=$!; pal_runs $own && pal_runs '' || pal_clean; kill $own"
        text = f"exec 2> /dev/null; . ./functions; pal_dir=$PWD/none pal_ending=1 {pids}; {said}"
        assert subprocess.run(["/bin/bash", "-c", text], cwd=tmp_path, check=False).returncode == 0
        assert other.poll() is None
        other.terminate()
