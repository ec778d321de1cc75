# SPDX-License-Identifier: MIT
"""The order of the queue on a real Slurm: by Nice and by SiteFactor, users' own values, kills, and nothing left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of
from .conftest import short_directory, skip_without_slurm

pytestmark = pytest.mark.real_slurm

PATIENCE_S = 40.0
LATE_S = 0.35
REBALANCE = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()"]
MARK = "--comment=pal:job=A;from=default"
MULTIFACTOR = (
    "PriorityType=priority/basic",
    "PriorityType=priority/multifactor\nPriorityWeightJobSize=100\nPriorityCalcPeriod=1",
)


class Site:
    """A lab of one node, all of whose GPUs a job of the site holds, and our processes."""

    def __init__(self, lab: Lab, home: Path, multifactor: bool) -> None:
        self.home, self.multifactor = home, multifactor
        state = home / "state"
        state.mkdir()
        self.env = lab.environ() | {
            "SLURM_PAL_PATHS_STATE_DIR": str(state),
            "SLURM_PAL_PATHS_SNAPSHOT": str(state / "snapshot"),
            "SLURM_PAL_PATHS_TABLE": str(state / "pal_table.lua"),
            "SLURM_PAL_PATHS_GPUS": str(home / "gpus.txt"),
            "SLURM_PAL_REBALANCE_ORDER": "shortest",
            "XDG_STATE_HOME": str(home / "xdg"),
        }
        self.client = CliClient(subprocess_runner(30.0, self.env))
        scores = [GpuScore("n0", k, f"n0-{k}", "m", {"A": 1.0}, {"A": "v0"}, time.time(), 1.0, ()) for k in range(4)]
        publish(str(state / "snapshot"), scores, cluster="palab", epoch=1, now_s=time.time())
        self.said = home / "said"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.filler = self.submit("-t", "1", marked=False)
        queue_of.until(self.client, self.filler, lambda job: job.state == "RUNNING")

    def submit(self, *words: str, marked: bool = True) -> int:
        words = (*([MARK] if marked else []), "--gpus-per-node=4", "-N1", "-o", "/dev/null", *words)
        return self.client.submit(words, "#!/bin/sh\nsleep 600\n")

    def start(self, *words: str, program: Sequence[str] = REBALANCE, **env: str) -> subprocess.Popen[bytes]:
        with open(self.said, "ab") as said:
            made = subprocess.Popen(
                [*program, *words], env=self.env | env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self.processes.append(made)
        return made

    def daemon(self) -> subprocess.Popen[bytes]:
        return self.start("--daemon", "--act", "--every", "1")

    def queue(self) -> list[int]:
        waiting = [job for job in self.client.jobs() if job.state == "PENDING"]
        return [job.job_id for job in sorted(waiting, key=lambda job: -(job.priority or 0))]

    def value(self, number: int) -> tuple[int, int]:
        """Nice and SiteFactor, the latter of a pending job."""
        job = self.client.job(number)
        assert job is not None
        return job.nice, self.client.site_factors().get(number, 0) if self.multifactor else 0

    def wait(self, wanted: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not wanted():
            assert time.monotonic() < deadline_s, (self.queue(), self.said.read_text())
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(params=[False, True], ids=["basic", "multifactor"])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    skip_without_slurm()
    edits = [MULTIFACTOR] if request.param else []
    with short_directory() as path, Lab.up(path, nodes=1, gpus=4, seed=1, conf_edits=edits) as lab:
        for key, text in lab.environ().items():
            monkeypatch.setenv(key, text)
        made = Site(lab, tmp_path, request.param)
        try:
            yield made
        finally:
            made.end()


def test_the_queue_is_ordered_given_back_and_starts_the_shortest_job(site: Site) -> None:
    own = (50, 0)
    long, middle, short = site.submit("-t", "2-0"), site.submit("-t", "240", "--nice=50"), site.submit("-t", "5")
    before = site.queue()
    assert before[0] == long or site.multifactor
    guard, daemon = site.start("--guard"), site.daemon()
    site.wait(lambda: site.queue() == [short, middle, long])
    ordered = {number: site.value(number) for number in (long, middle, short)}
    assert ordered[middle] != own and ordered[middle][0] == 50 if site.multifactor else ordered[middle][0] < 50
    explained = subprocess.run(
        [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "explain", str(short)],
        env=site.env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "gave it a place in the order of the queue" in explained and "its own is 0" in explained

    os.kill(daemon.pid, signal.SIGKILL)  # the guard gives the users' own values back
    daemon.wait()
    site.wait(lambda: site.value(middle) == own and site.value(long) == site.value(short) == (0, 0))
    assert guard.poll() is None

    again = site.daemon()
    site.wait(lambda: site.queue() == [short, middle, long])
    site.client.cancel([site.filler])
    queue_of.until(site.client, short, lambda job: job.state == "RUNNING")
    site.wait(lambda: site.client.job(short).nice == 0)  # type: ignore[union-attr]
    site.client.update_job(long, Nice="77")  # its user wants that now: under priority/basic it is theirs from here on
    again.terminate()
    again.wait(PATIENCE_S)
    assert site.value(middle) == own
    assert site.value(long) == (77, 0)
    with open_journal(str(site.home / "state" / "rebalance.db"), write=False) as journal:
        assert journal.given_places() == {} and journal.given_places(short)[short].ended_s > 0


def test_a_guard_to_whom_slurm_answers_late_takes_nothing_from_the_next_daemon(site: Site, tmp_path: Path) -> None:
    """It looks again while that starts, and knows the places in the journal, which both give."""
    late = tmp_path / "late"
    late.mkdir()
    for name in ("scontrol", "squeue", "sprio"):
        (late / name).write_text(f'#!/bin/sh\nsleep {LATE_S}\nexec {shutil.which(name)} "$@"\n')
        (late / name).chmod(0o755)
    long, short = site.submit("-t", "2-0"), site.submit("-t", "5")
    patient = f"from slurm_pal.leases import guard; guard.HELD_S = 14.0; {REBALANCE[-1]}"  # on a busy machine, too
    site.start("--guard", program=[*REBALANCE[:-1], patient], PATH=f"{late}:{site.env['PATH']}")
    daemon = site.daemon()
    site.wait(lambda: site.queue() == [short, long])
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()
    site.wait(lambda: site.value(long) == site.value(short) == (0, 0))
    site.daemon()
    site.wait(lambda: site.queue() == [short, long])
    until_s = time.monotonic() + 10 * LATE_S
    while time.monotonic() < until_s:
        assert site.queue() == [short, long]


def test_who_cannot_keep_an_order_makes_none_and_says_so(site: Site) -> None:
    numbers = [site.submit("-t", "2-0"), site.submit("-t", "5")]
    queue_of.until(site.client, numbers[0], lambda job: job.reason != "None")
    for words, line in (
        (["--mine", "--once", "--act"], "only a Slurm operator, SlurmUser"),
        (["--once", "--act"], "rebalance.order needs a tick that stays"),
    ):
        done = subprocess.run([*REBALANCE, *words], env=site.env, capture_output=True, text=True, check=False)
        assert line in done.stderr, done
    assert {site.value(number) for number in numbers} == {(0, 0)}
