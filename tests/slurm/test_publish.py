# SPDX-License-Identifier: MIT
"""pal publish-table on a real Slurm: leases end on time, and a stopped publisher promises nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient
from slurm_pal.store import heartbeat, snapshot
from slurm_pal.store.lua_table import read_table
from slurm_pal.store.snapshot import GpuScore

from . import queue_of

pytestmark = pytest.mark.real_slurm

PUBLISH = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "publish-table"]
PATIENCE_S = 40.0


class Site:
    """The lab with a snapshot, a table and a gpus.txt of the test's own."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.table, self.gpus, self.snapshot = home / "pal_table.lua", home / "gpus.txt", home / "snapshot"
        self.env = lab.environ() | {
            "SLURM_PAL_PATHS_SNAPSHOT": str(self.snapshot),
            "SLURM_PAL_PATHS_TABLE": str(self.table),
            "SLURM_PAL_PATHS_GPUS": str(self.gpus),
        }
        self.client = CliClient()
        gpus = [
            GpuScore(f"n{i}", k, f"{i}-{k}", "m", {"A": 0.9 + i / 100}, {"A": "v0"}, time.time(), 1.0, ())
            for i in range(4)
            for k in range(4)
        ]
        snapshot.publish(str(self.snapshot), gpus, cluster="lab", epoch=3, now_s=time.time())

    def submit(self, *words: str) -> int:
        return self.client.submit(["-o", "/dev/null", *words], "#!/bin/sh\nsleep 100\n")

    def mark(self, job_id: int, text: str) -> None:
        self.client.update_job(job_id, AdminComment=text)

    def until(self, number: int, wanted: Callable[[SlurmJob], bool]) -> SlurmJob:
        return queue_of.until(self.client, number, wanted)

    def running(self, number: int) -> SlurmJob:
        return self.until(number, lambda job: job.state == "RUNNING")


@pytest.fixture
def site(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in lab.variables().items():
        monkeypatch.setenv(name, value)
    made = Site(lab, tmp_path)
    yield made
    queue_of.emptied(made.client)


@pytest.fixture
def daemon(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A publisher that stays, once it has written its first table."""
    started = subprocess.Popen([*PUBLISH, "--every", "1"], env=site.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not site.table.exists():
            assert started.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.1)
        yield started
    finally:
        started.kill()
        started.communicate()


def test_once(site: Site) -> None:
    taken = site.running(site.submit("-w", "n0", "--gres=gpu:3"))
    done = subprocess.run(PUBLISH, env=site.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    header, records = read_table(str(site.table))
    assert header.clears == "" and records["pool.gpu.-"] == "1" and records["scores_epoch"] == "3"
    nodes = {text.split()[0]: text.split() for key, text in records.items() if key.startswith("node.")}
    assert set(nodes) == {"n0", "n1", "n2", "n3"} and "free=1" in nodes["n0"] and taken.gpus == {"n0": (0, 1, 2)}
    number = next(key for key, text in records.items() if text.startswith("n0 ")).removeprefix("node.")
    assert records["list.1.A.1.1"].split()[0] == str(int(number) * 64)
    assert site.gpus.read_text().startswith("# pal.gpus/1 epoch=3 ")
    assert not os.path.exists(f"{site.snapshot}.heartbeat")


def test_a_lease_ends_and_nothing_else_is_touched(site: Site, daemon: subprocess.Popen[bytes]) -> None:
    assert read_table(str(site.table)).header.clears == "daemon"
    assert heartbeat.fresh(str(site.snapshot), time.time(), 30.0)
    site.running(site.submit("-w", "n2", "--gres=gpu:4"))
    words = ["-w", "n2", "--gres=gpu:1"]
    freed = site.submit(*words)
    site.mark(freed, "site pal:lease=3;req=;exc=;class=A;from=--pal;act=nodelist;set=n2;why=best;slow=0.9;epoch=1")
    kept = "--comment=pal:lease=3;req=;exc=n3;act=exclude;set=n[0-1,3]"
    kept_off = site.submit("-x", "n[0-1,3]", "--gres=gpu:1", kept)
    held = site.submit("-H", *words, "--comment=pal:lease=0;req=;exc=")
    own = site.submit(*words)
    changed = site.submit(*words)
    site.mark(changed, "pal:lease=0;req=;exc=;class=A;act=nodelist;set=n1;why=best;epoch=1")
    job = site.running(freed)
    assert job.req_nodes == () and "n2" not in job.gpus and job.start_s - job.submit_s >= 3
    job = site.running(kept_off)
    assert job.exc_nodes == ("n3",) and not set(job.gpus) & {"n2", "n3"}
    for number in (held, own, changed):
        left = site.client.job(number)
        assert left is not None and left.state == "PENDING" and left.req_nodes == ("n2",)


def test_a_job_that_was_requeued_is_not_bound_to_its_old_node(site: Site, daemon: subprocess.Popen[bytes]) -> None:
    number = site.submit("-w", "n2", "--gres=gpu:4")
    site.mark(number, "pal:lease=600;req=;exc=;class=A;act=nodelist;set=n2;why=best;epoch=1")
    assert site.running(number).req_nodes == ("n2",)
    thief = site.submit("-w", "n2", "--gres=gpu:4", "--nice=-100")
    subprocess.run(["scontrol", "requeue", str(number)], env=site.env, check=True)
    site.running(thief)
    job = site.until(number, lambda job: job.state == "RUNNING" and job.restarts == 1)
    assert job.req_nodes == () and "n2" not in job.gpus


def test_a_stopped_publisher_promises_nothing(site: Site, daemon: subprocess.Popen[bytes]) -> None:
    before = read_table(str(site.table))
    daemon.send_signal(signal.SIGTERM)
    out, err = daemon.communicate(timeout=PATIENCE_S)
    assert (daemon.returncode, out, err) == (0, b"", b"")
    header, records = read_table(str(site.table))
    assert header.clears == "" and header.epoch > before.header.epoch and records.keys() >= {"pool.gpu.-"}
    assert not os.path.exists(f"{site.snapshot}.heartbeat")


def test_a_controller_that_is_away_is_told_once_and_waited_for(site: Site, tmp_path: Path) -> None:
    text = Path(site.env["SLURM_CONF"]).read_text()
    conf = tmp_path / "slurm.conf"
    conf.write_text("\n".join("SlurmctldPort=1" if "SlurmctldPort=" in line else line for line in text.splitlines()))
    env = site.env | {"SLURM_CONF": str(conf)}
    started = subprocess.Popen([*PUBLISH, "--every", "1"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert started.stderr is not None
        assert started.stderr.readline().startswith(b"pal: scontrol failed: ")
        conf.write_text(text)
        deadline_s = time.monotonic() + PATIENCE_S
        while not site.table.exists():
            assert started.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        assert started.communicate(timeout=PATIENCE_S) == (b"", b"") and started.returncode == 0
    finally:
        started.kill()
        started.communicate()
