# SPDX-License-Identifier: MIT
"""Attacks by texts on jobs of a real Slurm: what they did before is told with each; now nothing comes of them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.decide.offers import free_indexes, used_indexes
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm import told
from slurm_pal.slurm.cli import CliClient

from ..doubles.start_code import start_code
from . import queue_of

pytestmark = pytest.mark.real_slurm

GHOST = (
    "JobId=900001 JobName=train UserId=news(9) GroupId=news(9) MCS_label=N/A Priority=1 Account=(null) QOS=(null) "
    "JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 TimeLimit=10-00:00:00 Partition=gpu "
    "AllocNode:Sid=localhost:0 ReqNodeList=(null) ExcNodeList=(null) NodeList={nodes} NumNodes=1 JOB_GRES=gpu:4 "
    "Nodes={nodes} CPU_IDs=0 Mem=500 GRES=gpu:4(IDX:0-3) MinCPUsNode=1 Licenses=(null) Comment=pal:job=A;mov=1;lost=1"
)


@pytest.fixture
def client(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliClient]:
    """The lab's Slurm, its queue emptied afterwards."""
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURM_PAL_PATHS_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = CliClient()
    yield found
    queue_of.emptied(found)


def submitted(*words: str) -> int:
    argv = ["sbatch", "--parsable", "-H", "-o", "/dev/null", *words, "--wrap", "true"]
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def listed() -> set[int]:
    """The jobs that there are: numbers, which no text can look like."""
    done = subprocess.run(["squeue", "-h", "-a", "-t", "all", "-o", "%A"], capture_output=True, text=True, check=True)
    return set(map(int, done.stdout.split()))


def until_running(client: CliClient, number: int) -> None:
    deadline_s = time.monotonic() + 30
    while client.job_states()[number][0] != "RUNNING":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def programs() -> Iterator[subprocess.CompletedProcess[str]]:
    """Everything that reads the queue, as its users start it."""
    for name, *words in (
        ("palsub", "--pal-dry-run", "--pal-json", "--gres=gpu:1", "--wrap", "true"),
        ("pal_rebalance", "--json"),
        ("pal", "nodes", "--json"),
    ):
        yield subprocess.run(
            [sys.executable, "-P", "-c", start_code(name), *words], capture_output=True, text=True, check=False
        )


def test_a_comment_runs_no_program(client: CliClient, tmp_path: Path) -> None:
    """Before: `@` went to ClusterShell, whose group source is a shell: it ran as whoever looked, root too."""
    proof = tmp_path / "ran"
    forged = GHOST.format(nodes=f"@x';id>>{proof};'")
    number = submitted(f"--comment=x\n{forged}")
    assert number in listed() and {job.job_id for job in client.jobs()} == listed()
    assert {job.job_id for job in client.overview(marked=True).jobs} <= {number}
    assert client.jobs_of([number])[number].job_id == number
    for done in programs():
        assert "900001" not in done.stdout and "Traceback" not in done.stderr
    assert not proof.exists()


def test_invented_records_take_no_gpus(client: CliClient) -> None:
    """Before: idle nodes were full, and jobs that nobody had submitted took moves."""
    number = submitted(f"--comment=x\n{GHOST.format(nodes='n[0-3]')}")
    overview = client.overview(marked=True)
    assert {job.job_id for job in overview.jobs} <= {number} and used_indexes(overview.jobs) == {}
    assert all(free_indexes(node, set(), 0) == [0, 1, 2, 3] for node in overview.nodes)
    for done in programs():
        assert "900001" not in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text",
    ["x ArrayJobId=²", "x MinMemoryCPU=.", "x NodeList=n[0-8000000]", "x\nJobId=1 NodeList=n[0-8000000]", "\x1b[2J²"],
)
def test_an_odd_word_stops_nothing(client: CliClient, text: str) -> None:
    """Before: a ValueError that ended the daemon, and made every palsub plain sbatch; and 938 MB in each palsub."""
    number = submitted("--gres=gpu:1", f"--comment={text}", "-J", text)
    assert number in listed() and {job.job_id for job in client.jobs()} == listed()
    for done in programs():
        assert done.returncode in (0, 1), done.stderr
        assert not any(word in done.stderr for word in ("ValueError", "plain sbatch", "Traceback")), done.stderr


def test_a_record_that_cannot_be_told_from_texts_is_nobodys(client: CliClient) -> None:
    """An account stands before the GPUs in the record; with a line end in it nobody can say what is Slurm's."""
    argv = [
        "sbatch",
        "--parsable",
        "-o",
        "/dev/null",
        "--gres=gpu:1",
        "-A",
        "a JobState=x\nNodeList=n3",
        "--wrap",
        "sleep 60",
    ]
    number = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    plain = client.submit(["--gres=gpu:1", "-o", "/dev/null", "--comment=mine"], "#!/bin/sh\nsleep 60\n")
    for one in (number, plain):
        until_running(client, one)
    jobs = {job.job_id: job for job in client.overview(marked=True).jobs}
    assert (jobs[number].user, jobs[number].gpus, jobs[number].state) == ("", {}, "RUNNING")
    assert jobs[plain].gpus and jobs[plain].comment == "mine" and jobs[plain].user


def test_words_that_look_like_large_numbers_part_the_answers(
    client: CliClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol show hostnames` printed another word for one in 12,000: the job counted as gone, palsub did nothing."""
    number = submitted()
    with monkeypatch.context() as patched:
        patched.setattr(told.posix, "urandom", lambda count: b"\x99" * count)
        found = client.job(number)
        nodes = client.overview().nodes
    assert found is not None and found.job_id == number and nodes


def test_a_huge_list_takes_no_memory(client: CliClient) -> None:
    """Before: 938 MB in each palsub, 1 GB in the daemon."""
    number = submitted(f"--comment=x\n{GHOST.format(nodes='n[0-8000000]')}")
    assert {job.job_id for job in client.overview(marked=True).jobs} <= {number}
    start = "from slurm_pal.slurm.cli import CliClient; CliClient().overview(marked=True); "
    start += "print(next(x.split()[1] for x in open('/proc/self/status') if x.startswith('VmHWM')))"
    done = subprocess.run([sys.executable, "-P", "-c", start], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 << 10  # KiB
