# SPDX-License-Identifier: MIT
"""pal trial on live labs: three small jobs by three arms, a move among them; nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.lab.processes import with_variable

from .conftest import skip_without_slurm

pytestmark = pytest.mark.real_slurm

TRACE = """\
# pal.trace/1 three
job_id,submit_s,gpus,nodes,per_node,gpu_type,whole_nodes,ideal_s,sensitivity,limit_s,app,user,account,partition,\
locality_penalty,move_cost_s,movable
wide,0,2,2,1,,0,60,A,7200,,,,,1.5,,1
short,400,1,1,1,,0,240,A,7200,,,,,,,1
long,430,1,1,1,,0,720,A,7200,,,,,,,1
"""
GPUS = "PerfVar_classA,PerfVar_classB,PerfVar_classC\n2.0,1.3,1.0\n1.0,1.0,1.0\n"
SITE = "[rebalance]\nminimum_s = 120.0\n"  # 2 s of the lab


class Place:
    """A folder for all files of a trial; labs are in `tmp`, since TMPDIR says so."""

    def __init__(self, path: Path) -> None:
        self.path, self.tmp, self.out = path, path / "t", path / "kept"
        self.tmp.mkdir()
        for name, text in (("three.csv", TRACE), ("gpus.csv", GPUS), ("pal.toml", SITE)):
            (path / name).write_text(text)
        self.env = os.environ | {"TMPDIR": str(self.tmp), "XDG_STATE_HOME": str(path / "state")}

    def argv(self, *words: str) -> list[str]:
        return [os.path.join(os.path.dirname(sys.executable), "pal"), "trial", *words]

    def new(self, *words: str) -> list[str]:
        files = ("--trace", "three.csv", "--profile", "gpus.csv", "--pal-toml", "pal.toml")
        return self.argv(*files, "--cluster", "2x1", "--out", str(self.out), *words)

    def run(self, argv: list[str]) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(argv, env=self.env, cwd=self.path, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.fixture
def place(lab_dir: str) -> Iterator[Place]:
    path = Path(lab_dir).parent / "p"
    path.mkdir()
    skip_without_slurm()
    made = Place(path)
    yield made
    assert not list(made.tmp.iterdir()), "labs leave nothing"


@pytest.mark.long
def test_three_arms_live(place: Place) -> None:
    code, body, err = place.run(place.new("--arms", "filter,tick+moves", "--beside", "3", "--json"))
    assert code == 0, err
    assert "3 arms (sbatch takes" in err
    arms = {row["arm"]: row for row in body["arms"]}
    assert list(arms) == ["sbatch", "filter", "tick+moves"] and body["unfinished"] == []
    assert all(row["live"]["lost"] == row["live"]["timeouts"] == 0 for row in body["arms"])
    jobs = {(row["arm"], row["job_id"]): row for row in body["jobs"]}
    assert len(jobs) == 9
    again = arms["tick+moves"]["ticks_again"]
    assert arms["sbatch"]["ticks_again"] == arms["filter"]["ticks_again"] == []
    assert [one["identical"] == one["ticks"] > 5 for one in again] == [True], again
    for arm in arms:
        wide = jobs[arm, "wide"]
        assert (wide["node"], wide["factor"]) == ("n0:0+n1:0", 3.0)  # its slowest GPU x its own locality penalty
        assert 180 <= wide["end_s"] - wide["start_s"] < 400
    # Plain Slurm takes the first node, which is the slow one; filter and palsub do not.
    assert (jobs["sbatch", "short"]["node"], jobs["sbatch", "short"]["factor"]) == ("n0:0", 2.0)
    assert [jobs[arm, "short"]["node"] for arm in ("filter", "tick+moves")] == ["n1:0", "n1:0"]
    assert (jobs["filter", "long"]["node"], jobs["filter", "long"]["moves"]) == ("n0:0", 0)
    moved = jobs["tick+moves", "long"]
    assert (moved["node"], moved["factor"], moved["moves"]) == ("n1:0", 1.0, 1)
    # 1440 s where it began, 720 s where it ended, and the move charged; nothing was done twice.
    assert 720 + 180 < moved["end_s"] - moved["start_s"] < 1420
    assert [row["policy"] for row in body["arms"]] == ["slurm-twin", "filter", "tick"]
    assert body["arms"][1]["of_sbatch"]["verdict"] == "cannot tell"

    code, again, said = place.run(place.argv("--resume", str(place.out), "--json"))
    assert code == 0 and again["jobs"] == body["jobs"] and "sbatch takes" not in said, "no lab was started"


def test_an_interrupted_trial_leaves_no_process_and_keeps_nothing_half(place: Place) -> None:
    running = subprocess.Popen(
        place.new("--arms", "tick", "--beside", "2"), env=place.env, cwd=place.path, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline_s = time.monotonic() + 20
        while not list(place.tmp.glob("pal*/jobs/0")):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        folders = list(place.tmp.iterdir())
        os.kill(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == Exit.INTERRUPTED, err
    assert f"pal trial --resume {place.out}" in err and "0 finished arms" in err
    assert len(folders) == 2
    for folder in folders:
        assert not with_variable("XDG_STATE_HOME", str(folder / "state"))
        assert not with_variable("SLURM_CONF", str(folder / "lab" / "etc" / "slurm.conf"))
    assert not list(place.out.glob("arm-*"))


def test_a_daemon_that_ends_is_said_in_its_own_words(place: Place) -> None:
    (place.path / "pal.toml").write_text("[rebalance]\nallocation = 'nobody'\n")
    code, _, err = place.run(place.new("--arms", "tick", "--beside", "2"))
    assert code == Exit.SLURM, err
    assert "arm tick: its daemon ended" in err.splitlines()[-1] and "nobody" in err.splitlines()[-1]
