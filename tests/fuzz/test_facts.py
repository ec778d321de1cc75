# SPDX-License-Identifier: MIT
"""The fuzzer of facts for some rounds with a fixed seed, and with failures on Slurm's side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import MissingPackageError, UsageError
from slurm_pal.lab import processes
from slurm_pal.lab.programs import account_name, find_programs

FUZZER = Path(__file__).with_name("facts.py")
pytestmark = pytest.mark.real_slurm


@pytest.fixture(autouse=True)
def _needs() -> None:
    try:
        find_programs()
        account_name()
    except (MissingPackageError, UsageError) as error:
        pytest.skip(str(error))
    if not shutil.which("cc") or not os.path.exists("/usr/include/slurm/slurm.h"):
        pytest.skip("a C compiler and Slurm's headers are needed: make tools")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for the sockets below it."""
    path = tempfile.mkdtemp(prefix="pal")
    yield Path(path)
    shutil.rmtree(path)


def test_hostile_texts_change_nothing() -> None:
    words = ["--seconds", "60", "--seed", "20261122", "--rounds", "8", "--jobs", "50"]
    done = subprocess.run([sys.executable, str(FUZZER), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["fuzzer"] == "facts" and told["violations"] == 0 and told["rounds"] == 8
    assert told["inputs"] > 8 * 50 * 3 and told["memory_mib"] <= 200
    assert told["labs"] in (told["slurmctld_died"], told["slurmctld_died"] + 1)


def test_a_slurmctld_that_dies_is_followed_by_another_and_nothing_stays(folder: Path) -> None:
    """Neither then nor after SIGTERM."""
    words = [sys.executable, str(FUZZER), "--seconds", "100", "--jobs", "60"]
    process = subprocess.Popen(words, env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True)
    try:
        first = _slurmctld(folder, 0)
        os.kill(first.pid, signal.SIGKILL)
        second = _slurmctld(folder, 1)
        until_s = time.monotonic() + 30
        while not list(folder.glob("pal*/1/where/*")) and time.monotonic() < until_s:
            time.sleep(0.1)
        process.terminate()
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    told = json.loads(out.splitlines()[-1])
    assert (process.returncode, told["error"]) == (1, "SIGTERM")
    assert (told["labs"], told["slurmctld_died"], told["violations"]) == (2, 1, 0)
    assert not list(folder.iterdir()) and not processes.alive(second)
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if os.fsencode(folder) in _read(path)]


def test_a_lab_that_does_not_start_is_an_error(folder: Path) -> None:
    (folder / "slurmctld").write_text('#!/bin/sh\n[ "$1" = -V ] && echo slurm 22.05.8 || exit 1\n')
    (folder / "slurmctld").chmod(0o755)
    (folder / "tmp").mkdir()
    env = os.environ | {"TMPDIR": str(folder / "tmp"), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = [sys.executable, str(FUZZER), "--seconds", "5"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
    told = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1 and "slurmctld ended while starting" in told["error"]
    assert (told["labs"], told["slurmctld_died"], told["rounds"]) == (1, 0, 0) and not list((folder / "tmp").iterdir())


def _slurmctld(folder: Path, lab: int) -> processes.Process:
    """Of the lab of this number, once its writer runs."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        for path in folder.glob(f"pal*/{lab}/lab/run/pids.json"):
            found = [process for process in processes.read_pids(str(path)) if process.name == "slurmctld"]
            if found and list(folder.glob(f"pal*/{lab}/where")):
                return found[0]
        time.sleep(0.1)
    raise TimeoutError(f"lab {lab} did not start")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
