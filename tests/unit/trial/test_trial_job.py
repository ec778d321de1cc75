# SPDX-License-Identifier: MIT
"""What a job of a trial does (job.sh), run by sh with the environment that Slurm gives it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

TABLE = "".join(f"n{n} {k} {1.0 + n / 10 + k / 100:.6f} 1.05 1.000000 0.990000\n" for n in range(4) for k in range(4))
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an arm."""
    for name in ("jobs", "saved", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "table").write_text(TABLE)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start job 7: `start(work=30, gpus="0,1")`, or with `shown` as scontrol shows a job on several nodes."""
    begun = []

    def run(gpus: str = "0", shown: str = "", restarts: int = 0, **given: object) -> subprocess.Popen[bytes]:
        values = {"number": 7, "work": 30, "limit": 6000, "penalty": 1.5, "column": 3, "cost": 0, "folder": folder}
        values |= {"every": 0, "again": 0}
        lines = [f"{name}='{value}'" for name, value in (values | given).items()]
        script = folder / "script"
        script.write_text("\n".join([*lines, f". {files('slurm_pal.trial') / 'job.sh'}", ""]))
        stub = folder / "bin" / "scontrol"
        stub.write_text(f"#!/bin/sh\necho '{shown}'\n")
        stub.chmod(0o755)
        env = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1",
            "SLURM_JOB_NUM_NODES": "2" if shown else "1", "SLURM_JOB_GPUS": gpus, "SLURM_PAL_ACK": str(folder / "ack"),
            "SLURM_RESTART_COUNT": str(restarts),
        }  # fmt: skip
        begun.append(subprocess.Popen(["sh", str(script)], env=env, start_new_session=True))
        return begun[-1]

    yield run
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def noted(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "jobs" / "7").read_text().splitlines()]


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 10
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline_s, path
        time.sleep(0.01)


def test_it_takes_the_time_of_its_slowest_gpu(folder: Path, start: Start) -> None:
    assert start(gpus="0,2").wait() == 0
    begun, ended = noted(folder)
    assert begun[0] == "start" and begun[2:] == ["1.120000", "n1:0,2"]
    assert ended[0] == "end"
    assert int(ended[1]) - int(begun[1]) >= 34  # 30 x 1.12, rounded


@pytest.mark.parametrize(
    ("shown", "places", "factor"),
    [
        ("NodeList=n[0-1] Nodes=n[0-1] CPU_IDs=0 Mem=5 GRES=gpu:4(IDX:0-3) X=1", "n0:0-3+n1:0-3", 1.13 * 1.5),
        ("Nodes=n0 CPU_IDs=0 GRES=gpu:4(IDX:0-3) Nodes=n3 GRES=gpu:2(IDX:1,3) X=1", "n0:0-3+n3:1,3", 1.33 * 1.5),
        ("ReqNodeList=n9 Nodes=n[0,2-3] GRES=gpu:1(IDX:0) Comment=pal:job=A", "n0:0+n2:0+n3:0", 1.3 * 1.5),
    ],
)
def test_of_several_nodes_slurm_names_the_gpus(
    folder: Path, start: Start, shown: str, places: str, factor: float
) -> None:
    assert start(shown=shown, work=5).wait() == 0
    assert noted(folder)[0][2:] == [f"{factor:.6f}", places]


def test_without_gpus_it_says_so(folder: Path, start: Start) -> None:
    assert start(gpus="").wait() == 1
    assert noted(folder)[0][0] == "lost"


def test_it_ends_at_its_limit(folder: Path, start: Start) -> None:
    assert start(work=5000, limit=20).wait() == 0
    begun, ended = noted(folder)
    assert ended[0] == "timeout" and 20 <= int(ended[1]) - int(begun[1]) < 500


def test_a_checkpoint_is_written_and_taken_up(folder: Path, start: Start) -> None:
    first = start(work=100)
    wait_for(folder / "jobs" / "7")
    time.sleep(0.5)
    os.kill(first.pid, signal.SIGUSR1)
    wait_for(folder / "saved" / "7")
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait() == 143
    share, saved = map(int, (folder / "saved" / "7").read_text().split())
    assert (folder / "ack").exists()
    assert 300_000 < share < 1_000_000
    assert start(work=100, cost=80, gpus="3").wait() == 0
    _, stopped, again, ended = noted(folder)
    assert (stopped[0], again[2], ended[0]) == ("stop", "1.130000", "end")
    left = 113 - 113 * share // 1_000_000
    assert int(ended[1]) - max(int(again[1]), saved + 80) >= left  # the cost of the move passes first
    assert int(ended[1]) >= saved + 80 + left


def test_what_it_saves_by_itself_is_whole_steps_and_a_restart_takes_its_time(folder: Path, start: Start) -> None:
    first = start(work=200, every=30, gpus="0", column=6)
    wait_for(folder / "jobs" / "7")
    time.sleep(0.8)
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait() == 143
    share = int((folder / "saved" / "7").read_text().split()[0])
    begun, stopped = noted(folder)
    total = 198  # a step is 30 of them
    ran = int(stopped[1]) - int(begun[1])
    assert share == ran // 30 * 30 * 1_000_000 // total > 0
    assert start(work=200, every=30, again=40, column=6, restarts=1).wait() == 0
    again, ended = noted(folder)[2:]
    assert int(ended[1]) - int(again[1]) >= 40 + total - total * share // 1_000_000


def test_a_job_that_saves_nothing_starts_from_the_top(folder: Path, start: Start) -> None:
    first = start(work=100)
    wait_for(folder / "jobs" / "7")
    time.sleep(0.3)
    os.killpg(first.pid, signal.SIGTERM)
    assert first.wait() == 143 and not (folder / "saved" / "7").exists()


def test_a_second_checkpoint_counts_from_the_first(folder: Path, start: Start) -> None:
    (folder / "saved" / "7").write_text("500000 1\n")
    job = start(work=200)
    wait_for(folder / "jobs" / "7")
    time.sleep(0.3)
    os.kill(job.pid, signal.SIGUSR1)
    time.sleep(0.3)
    assert int((folder / "saved" / "7").read_text().split()[0]) > 550_000
