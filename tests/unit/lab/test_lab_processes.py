# SPDX-License-Identifier: MIT
"""Which processes are a lab's, and that no other is ever signalled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import SlurmError
from slurm_pal.lab import processes
from slurm_pal.lab.crew import complaints
from slurm_pal.lab.daemons import node_states
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.processes import Process

SLEEPER = "import sys, time; print(flush=True); time.sleep(100000)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


class Children:
    """Starts children, each ready when it is returned, and ends them with the test."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, name: str = "python", *words: str, **variables: str) -> Process:
        child = subprocess.Popen(
            [name, "-c", script, *words],
            executable=sys.executable,
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"} | variables,
        )
        self.started.append(child)
        assert child.stdout
        child.stdout.readline()
        found = processes.identify(name, child.pid)
        assert found
        return found

    def reap(self) -> None:
        for child in self.started:
            child.poll()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    for child in made.started:
        child.kill()
        child.wait()
        assert child.stdout
        child.stdout.close()


def test_a_process_is_alive_until_it_is_a_zombie(children: Children) -> None:
    process = children.start(SLEEPER)
    assert processes.alive(process)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert os.path.exists(f"/proc/{process.pid}")
    assert not processes.alive(process)
    assert processes.identify("zombie", process.pid) is None


def test_a_name_with_brackets_and_blanks_does_not_confuse(children: Children, tmp_path: Path) -> None:
    link = tmp_path / "a ) S 1 (b"
    link.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(link), "100000"])
    try:
        found = processes.start_ticks(child.pid)
        mine = processes.start_ticks(os.getpid())
        assert found is not None
        assert mine is not None
        assert found >= mine
    finally:
        child.kill()
        child.wait()


def test_a_reused_pid_is_not_signalled(children: Children) -> None:
    process = children.start(SLEEPER)
    former = process._replace(start=process.start - 1)
    assert not processes.alive(former)
    assert processes.stop([former], 0.1, children.reap) == []
    assert processes.alive(process)


def test_one_that_ignores_sigterm_is_killed(children: Children) -> None:
    stubborn, meek = children.start(STUBBORN), children.start(SLEEPER)
    assert processes.stop([stubborn, meek], 0.1, children.reap) == []
    children.reap()
    assert [child.returncode for child in children.started] == [-signal.SIGKILL, -signal.SIGTERM]


def test_one_that_cannot_be_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    immortal = Process("slurmd", os.getpid(), 0)
    monkeypatch.setattr(processes, "stop", lambda *_: [immortal])
    monkeypatch.setattr(processes, "find_steps", lambda _: [immortal])
    with pytest.raises(SlurmError, match=rf"slurmd \(pid {os.getpid()}\) of the lab in .* did not end"):
        Lab(str(tmp_path / "lab")).down()


def test_processes_of_another_user_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(processes, "find_steps", lambda _: [Process("job", os.getpid(), 0)])
    monkeypatch.setattr(processes, "stop", refused)
    with pytest.raises(SlurmError, match="another user owns processes"):
        Lab(str(tmp_path / "lab")).down()


def test_pids_survive_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "pids.json")
    written = [Process("munged", 12, 345), Process("slurmd-n0", 13, 346)]
    processes.write_pids(path, written)
    assert processes.read_pids(path) == written


@pytest.mark.parametrize(
    "change",
    [{"schema": "pal.lab-pids/2"}, {"boot_id": "before the reboot"}, {"processes": [{"name": "x"}]}, {"processes": 1}],
)
def test_a_pid_file_that_does_not_hold_here_counts_as_empty(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "pids.json"
    processes.write_pids(str(path), [Process("munged", 12, 345)])
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert processes.read_pids(str(path)) == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_truncated_pid_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pids.json"
    path.write_text(text)
    assert processes.read_pids(str(path)) == []


def test_daemons_are_known_by_the_labs_own_files(children: Children, tmp_path: Path) -> None:
    lab, inner = LabDirectory(str(tmp_path / "lab")), LabDirectory(str(tmp_path / "lab" / "inner"))
    ours = {
        children.start(SLEEPER, "slurmd", "-f", lab.conf),
        children.start(SLEEPER, "slurmctld", "-f", lab.conf),
        children.start(SLEEPER, "munged", "--socket", lab.munge_socket),
    }
    children.start(SLEEPER, "slurmd", "-f", inner.conf)
    children.start(SLEEPER, "slurmd", "-f", lab.conf + ".old")
    children.start(SLEEPER, "less", lab.conf)
    assert set(processes.find_daemons(lab)) == ours


def test_job_processes_are_known_by_what_only_slurmd_gives(children: Children, tmp_path: Path) -> None:
    lab, other = LabDirectory(str(tmp_path / "lab")), LabDirectory(str(tmp_path / "other"))
    in_job = children.start(SLEEPER, SLURM_CONF=lab.conf, SLURM_JOB_ID="1", SLURMD_NODENAME="n0")
    children.start(SLEEPER, SLURM_CONF=lab.conf, SLURM_JOB_ID="1")  # the user's shell under salloc
    children.start(SLEEPER, SLURM_CONF=lab.conf)  # and after eval "$(pal lab env)"
    children.start(SLEEPER, SLURM_CONF=other.conf, SLURM_JOB_ID="1", SLURMD_NODENAME="n0")
    assert [process.pid for process in processes.find_steps(lab)] == [in_job.pid]


def test_processes_by_a_variable(children: Children) -> None:
    ours = children.start(SLEEPER, XDG_STATE_HOME="/tmp/arm/state")
    children.start(SLEEPER, XDG_STATE_HOME="/tmp/arm/state2")
    children.start(SLEEPER, OTHER="XDG_STATE_HOME=/tmp/arm/state")
    assert [process.pid for process in processes.with_variable("XDG_STATE_HOME", "/tmp/arm/state")] == [ours.pid]


def test_down_without_directory_or_marker_still_ends_the_daemons(children: Children, tmp_path: Path) -> None:
    gone = LabDirectory(str(tmp_path / "gone"))
    children.start(SLEEPER, "slurmd", "-f", gone.conf)
    ended = Lab(gone.path).down()
    assert (ended.processes_ended, ended.removed) == (1, True)
    (tmp_path / "mine").write_text("")
    children.start(SLEEPER, "slurmd", "-f", LabDirectory(str(tmp_path)).conf)
    ended = Lab(str(tmp_path)).down()
    assert (ended.processes_ended, ended.removed) == (1, False)
    assert os.listdir(tmp_path) == ["mine"]
    children.reap()
    assert [child.returncode for child in children.started] == [-signal.SIGTERM] * 2


def test_the_daemons_of_accounting_are_known_by_their_files(children: Children, tmp_path: Path) -> None:
    ours, theirs = LabDirectory(str(tmp_path)), LabDirectory(str(tmp_path / "below"))
    mariadbd = children.start(SLEEPER, "mariadbd", f"--datadir={ours.sql_data}")
    slurmdbd = children.start(SLEEPER, "slurmdbd", "-D", SLURM_CONF=ours.conf)
    children.start(SLEEPER, "mariadbd", f"--datadir={theirs.sql_data}")
    children.start(SLEEPER, "slurmdbd", "-D", SLURM_CONF=theirs.conf)
    children.start(SLEEPER, "slurmdbd", "-D")
    children.start(SLEEPER, "sacctmgr", SLURM_CONF=ours.conf)
    assert sorted(processes.find_daemons(ours)) == sorted([mariadbd, slurmdbd])


def test_the_last_complaints_of_a_log() -> None:
    lines = ["[2026-01-01T00:00:00] error: one", "slurmd: fine", "[2026-01-01T00:00:01] error: one", "fatal: two"]
    assert complaints(lines) == "error: one | fatal: two"
    assert complaints(["a", "b", "c", "d"]) == "b | c | d"
    assert complaints([]) == "(empty)"


def test_node_states_are_summed_over_lines() -> None:
    assert node_states("6 idle\n1 down*\n2 idle\nrubbish\n") == {"idle": 8, "down*": 1}
