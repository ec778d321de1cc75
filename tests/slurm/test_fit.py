# SPDX-License-Identifier: MIT
"""Which job Slurm itself starts when one on a slow node ends: by what a tick has set before."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurm_pal.base.config import load
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.cli import CliClient, subprocess_runner

from . import queue_of
from .scored import publish_slowdowns

pytestmark = pytest.mark.real_slurm
REBALANCE = (sys.executable, "-P", "-c", "from slurm_pal.cli.start import rebalance; rebalance()")
NODES = ("n0", "n1", "n2", "n3")
SLEEP = "#!/bin/sh\nsleep 300\n"


class Site:
    """The lab, full of others' jobs: one on each node."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.home = home
        state = {"STATE_DIR": home, "SNAPSHOT": home / "snapshot", "TABLE": home / "table", "GPUS": home / "gpus"}
        self.env = lab.environ() | {f"SLURM_PAL_PATHS_{name}": str(path) for name, path in state.items()}
        self.client = CliClient(subprocess_runner(30.0, self.env))
        self.full = {name: self.submit("-w", name) for name in NODES}
        for number in self.full.values():
            self.started(number)

    def scores(self, slowdowns: Mapping[str, float]) -> None:
        publish_slowdowns(load(self.env), dict.fromkeys(NODES, 1.0) | slowdowns)

    def submit(self, *words: str) -> int:
        return self.client.submit(["-o", "/dev/null", "-N1", "--gres=gpu:4", "-t", "60", *words], SLEEP)

    def waiting(self, sensitivity: str) -> int:
        number = self.submit(f"--comment=pal:job={sensitivity};from=x;mea=1")
        queue_of.until(self.client, number, lambda job: job.reason in ("Resources", "Priority"))
        return number

    def started(self, number: int) -> SlurmJob:
        return queue_of.until(self.client, number, lambda job: job.state == "RUNNING")

    def job(self, number: int) -> SlurmJob:
        found = self.client.job(number)
        assert found is not None
        return found

    def tick(self, **settings: str) -> None:
        env = self.env | {f"SLURM_PAL_{name.upper()}": value for name, value in settings.items()}
        subprocess.run([*REBALANCE, "--once", "--act"], env=env, check=True, capture_output=True, timeout=120)

    def end(self, number: int) -> None:
        self.client.cancel([number])


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Site]:
    made = Site(lab, tmp_path)
    yield made
    subprocess.run([*REBALANCE, "--withdraw"], env=made.env, check=False, capture_output=True, timeout=120)
    queue_of.emptied(made.client)


@pytest.mark.parametrize("fit", [True, False])
def test_a_sensitive_job_lets_the_next_one_have_a_slow_node(site: Site, fit: bool) -> None:
    site.scores({"n0": 1.5})
    sensitive, other = site.waiting("A"), site.waiting("C")
    site.tick(rebalance_fit=str(fit).lower())
    assert site.job(sensitive).exc_nodes == (("n0",) if fit else ()) and site.job(other).exc_nodes == ()
    site.end(site.full["n0"])
    assert site.started(other if fit else sensitive).nodes == ("n0",)
    site.end(site.full["n2"])
    assert site.started(sensitive if fit else other).nodes == ("n2",)


def test_a_job_that_was_overtaken_on_a_slow_node_gets_the_next_one(site: Site) -> None:
    """Its patience begins when it would have had its turn, though no tick has seen a slow GPU that was free."""
    site.scores({"n0": 1.5})
    sensitive, other = site.waiting("A"), site.waiting("C")
    bound = {"submit_lease_max_s": "12", "rebalance_interval_s": "1"}
    site.tick(**bound)
    assert site.job(sensitive).exc_nodes == ("n0",)
    site.end(site.full["n0"])
    assert site.started(other).nodes == ("n0",)
    deadline_s = time.monotonic() + queue_of.PATIENCE_S
    while site.job(sensitive).exc_nodes:
        assert time.monotonic() < deadline_s
        site.tick(**bound)
        time.sleep(0.5)
    site.end(other)
    assert site.started(sensitive).nodes == ("n0",)


def test_where_all_gpus_are_alike_no_job_is_touched(site: Site) -> None:
    site.scores({})
    numbers = [site.waiting(sensitivity) for sensitivity in "ABC"]
    site.tick()
    for job in map(site.job, numbers):
        assert (job.exc_nodes, job.req_nodes, job.admin_comment) == ((), (), "")
