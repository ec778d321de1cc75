# SPDX-License-Identifier: MIT
"""A user's own page on a real Slurm: pal explain of any job, the note at its end, avoiding slow GPUs, pal whatif."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_pal.lab.lab import Lab

from .conftest import short_directory, skip_without_slurm
from .test_filter import EXPLAIN, PALSUB, Site

pytestmark = pytest.mark.real_slurm
PATIENCE_S = 60.0
QUIET = ("--parsable", "-o", "/dev/null")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """n1 is the fastest node, n3 (1.4) the slow one; Slurm forgets a job soon after its end."""
    skip_without_slurm()
    with short_directory() as path:
        edits = [("MinJobAge=300", "MinJobAge=2")]
        with Lab.up(path, nodes=4, gpus=4, submit_filter=True, conf_edits=edits) as running:
            yield Site(running)


def explained(site: Site, *words: str) -> dict[str, Any]:
    done = site.run(*EXPLAIN, *words, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def slots(told: dict[str, Any]) -> list[tuple[str, int]]:
    return [(gpu["node"], gpu["index"]) for gpu in told["actual"]["gpus"]]


def gone(site: Site, *numbers: int) -> None:
    """Wait until Slurm has forgotten these jobs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(site.client.job(number) is not None for number in numbers):
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


def test_ended_jobs_keep_their_gpus_whoever_placed_them(site: Site) -> None:
    site.round()
    by_filter = site.submit("--gres=gpu:2", "-t", "5").job_id
    by_palsub = int(site.run(*PALSUB, *QUIET, "-t", "5", "--gres=gpu:1", "--wrap", "sleep 300").stdout)
    array = int(site.run("sbatch", *QUIET, "--gres=gpu:1", "--array=1-3", "--wrap", "sleep 300").stdout)
    for number in (by_filter, by_palsub):
        site.wait(number, lambda job: job.state == "RUNNING")
    deadline_s = time.monotonic() + PATIENCE_S
    while len(site.client.tasks(array, [1, 2, 3])) < 3 or site.run("squeue", "-h", "-t", "PD").stdout:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    site.round()
    tasks = site.client.tasks(array, [1, 2, 3])
    assert len(set(tasks.values())) == 3
    lists = f"{by_filter},{array}_[1-3],{by_palsub}"
    before = explained(site, lists)["jobs"]
    assert [row["verdict"]["gpus"] for row in before] == [2, 1, 1, 1, 1]
    verdict = explained(site, str(by_filter))["verdict"]
    assert verdict["slowest"] == 0.97 and verdict["slurm_alone"] == 1.02  # n1 instead of n0
    assert verdict["text"] == (
        "Your job got 2 GPUs; the slowest is 3 % faster than the median GPU here. "
        "Slurm alone would have given it one 2 % slower than the median"
    )
    assert site.run(*EXPLAIN, str(by_palsub)).stdout.startswith("Your job got 1 GPU; it is 3 % faster than")
    assert site.run("scancel", str(by_filter), str(by_palsub), str(array)).returncode == 0
    gone(site, by_filter, by_palsub, *tasks.values())
    after = explained(site, lists)["jobs"]
    assert [slots(row) for row in after] == [slots(row) for row in before]
    last = explained(site, "--last")
    assert last["job_id"] == by_palsub and last["verdict"]["gpus"] == 1 and last["actual"]["state"] is None
    assert slots(explained(site, f"{array}_2")) == slots(before[2])
    lines = site.run(*EXPLAIN, lists).stdout.splitlines()
    assert len(lines) == 6 and lines[0].startswith("5 jobs with 6 GPUs; the slowest, of job ")
    assert site.run(*EXPLAIN, "9999").returncode == 2 and site.run(*EXPLAIN, "9998,9999").returncode == 2
