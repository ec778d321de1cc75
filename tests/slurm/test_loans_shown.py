# SPDX-License-Identifier: MIT
"""What people see of loans on a real Slurm: pal loans, pal explain, pal doctor, before and after guests leave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient, subprocess_runner

from ..doubles.start_code import start_code
from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

HOUR_S = 3600
PINNED = "--comment=pal:lease=600;req=;exc=;act=nodelist;set=n6"


class Centre:
    """A lab in which nodes n4 to n7 belong to owners, who needed three of them in each hour of yesterday."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.env = lab.environ() | {
            "SLURM_PAL_PATHS_STATE_DIR": str(home), "SLURM_PAL_PATHS_SNAPSHOT": str(home / "snapshot"),
            "SLURM_PAL_PATHS_TABLE": str(home / "table.lua"), "SLURM_PAL_PATHS_GPUS": str(home / "gpus.txt"),
            "SLURM_PAL_LOAN_OWNERS": "owner", "SLURM_PAL_LOAN_GUEST": "guest", "SLURM_PAL_LOAN_WAITS": "guest_waits",
            "SLURM_PAL_LOAN_INTERVAL_S": "600",
            "SLURM_PAL_LOAN_GRACE_S": "5", "SLURM_PAL_LOAN_HEADROOM": "1", "XDG_STATE_HOME": str(home / "xdg"),
        }  # fmt: skip
        self.client = CliClient(subprocess_runner(30.0, self.env))
        now = int(time.time() // HOUR_S)
        with open_journal(str(home / "rebalance.db")) as journal:
            journal.add_demand("owner", {hour: 3.0 for hour in range(now - 24, now)}, 0)

    def sbatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["sbatch", "--parsable", "-o/dev/null", "--gres=gpu:2", *words, "--wrap", "sleep 1000"]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True)

    def guest(self, *words: str) -> int:
        done = self.sbatch("-p", "guest", *words)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def run(self, program: str, *words: str) -> str:
        argv = [sys.executable, "-P", "-c", start_code(program), *words]
        return subprocess.run(argv, env=self.env, capture_output=True, text=True).stdout

    def json(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("pal", *words, "--json"))
        return found


@pytest.fixture
def centre(tmp_path: Path) -> Iterator[Centre]:
    skip_without_slurm()
    with (
        short_directory() as path,
        as_file(files("slurm_pal.etc") / "lab-partitions.toml") as example,
        Lab.up(path, nodes=8, gpus=2, partitions=str(example)) as lab,
    ):
        yield Centre(lab, tmp_path)


def _no_reason(sentence: str) -> str:
    """Without the reason for which Slurm lets it wait."""
    return sentence.rpartition(" (")[0] if sentence.endswith(")") else sentence


def test_guests_leave_and_everybody_sees_why(centre: Centre) -> None:
    guests = [centre.guest(f"-w{name}") for name in ("n0", "n1", "n2", "n3")]
    theirs = [centre.guest("-wn6", PINNED), *(centre.guest() for _ in range(3))]
    for number in (*guests, *theirs):
        queue_of.until(centre.client, number, lambda job: job.state == "RUNNING")
    before = centre.json("loans")
    (owner,) = before["owners"]
    assert (owner["open"], owner["closed"], owner["guests"]) == (4, 0, 4) and before["reclaims"] == []
    assert {row["job_id"] for row in before["guests"]} == {*theirs}

    centre.run("pal_rebalance", "--once", "--act")
    after = centre.json("loans")
    (owner,) = after["owners"]
    assert (owner["open"], owner["closed"], owner["guests"]) == (0, 4, 0)
    assert {row["job_id"] for row in after["reclaims"]} == {*theirs} and after["guests"] == []
    assert {row["outcome"] for row in after["reclaims"]} == {"reclaimed"}
    assert after["total"]["left"] == 4 and after["total"]["with_checkpoint"] == 0
    lost = sum(row["lost_s"] * 2 for row in after["reclaims"])
    assert after["total"]["lost_gpu_s"] == pytest.approx(lost, abs=0.5)
    (order,) = after["orders"]
    assert (order["total"], order["used"], order["predicted"], order["allowed"]) == (4, 0, 3.0, 0)

    jobs = centre.client.jobs_of(theirs)
    assert all(job.state == "PENDING" and job.priority and not job.req_nodes for job in jobs.values()), jobs
    told = centre.json("explain", str(theirs[0]))
    assert told["taken_off"].startswith(f"Job {theirs[0]} was taken off n6 at ")
    assert told["not_lent"].startswith("n[4-7] belong to partition owner")
    first = centre.run("pal", "explain", str(theirs[0])).splitlines()[0]
    assert _no_reason(first) == _no_reason(told["taken_off"]), "Slurm may have looked at the job in between"
    assert "reclaimed" in jobs[theirs[1]].admin_comment, "its user reads it there"
    assert centre.json("moves")["moves"] == []
    said = centre.run("pal", "doctor")
    assert "0 open to guests, 4 closed" in said and "a live process takes that back" in said
    refused = centre.sbatch("-p", "guest", "-wn5")
    assert refused.returncode and "Requested node configuration is not available" in refused.stderr

    centre.client.cancel(guests[:1])
    started = queue_of.first_of(centre.client, theirs, lambda job: job.state == "RUNNING")
    assert "; it runs on n0 since " in centre.json("explain", str(started))["taken_off"]
    (row,) = (row for row in centre.json("loans")["reclaims"] if row["job_id"] == started)
    assert row["restarted"] == "n0"

    centre.run("pal_rebalance", "--withdraw")
    (owner,) = centre.json("loans")["owners"]
    assert owner["closed"] == 0 and "from us" not in centre.run("pal", "doctor")


def test_what_slurm_itself_does_to_a_guest_is_not_taken_for_ours(centre: Centre) -> None:
    number = centre.guest("-wn5")
    queue_of.until(centre.client, number, lambda job: job.state == "RUNNING")
    done = centre.sbatch("-p", "owner", "-wn5")
    queue_of.until(centre.client, int(done.stdout), lambda job: job.state == "RUNNING")
    queue_of.until(centre.client, number, lambda job: job.restarts == 1)
    told = centre.json("explain", str(number))
    assert told["taken_off"].startswith(f"Job {number} was put back into the queue once, not by us: Slurm itself")
    assert told["story"] == [] and centre.json("loans")["reclaims"] == []
