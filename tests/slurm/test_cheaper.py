# SPDX-License-Identifier: MIT
"""Running jobs whose users want what costs least, on a real Slurm: they follow live prices where that pays."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab
from slurm_pal.store.snapshot import GpuScore, publish

from . import queue_of
from .parted import lab_of
from .test_rebalance import PAL, REBALANCE, Site, stop

pytestmark = pytest.mark.real_slurm

GOAL = ("--pal-goal=cost", "--pal-movable=5", "--gres=gpu:1")
SCRIPT = """#!/bin/bash
#PAL alt=old:partition=dear,gres=gpu:1,est=4d
#PAL alt=new:partition=cheap,gres=gpu:1,est=4d
echo "$PAL_ALT $SLURM_JOB_PARTITION"
sleep 300
"""


class Market(Site):
    """A site with a file of live prices."""

    def __init__(self, lab: Lab, home: Path) -> None:
        super().__init__(lab, home)
        for env in (self.user, self.env):
            env["SLURM_PAL_SUBMIT_PRICES"] = str(home / "prices.csv")
        # palsub writes a job's places on it only where a tick looks after it.
        self.user["SLURM_PAL_PATHS_SNAPSHOT"] = self.snapshot
        alike, classes, now_s = dict.fromkeys("ABC", 1.0), dict.fromkeys("ABC", "v0"), time.time()
        gpus = [GpuScore(f"n{n}", k, f"{n}-{k}", "m", alike, classes, now_s, 1.0, ()) for n in (0, 1) for k in (0, 1)]
        publish(self.snapshot, gpus, cluster="lab", epoch=4, now_s=now_s)

    def price(self, age_s: float = 0.0, **prices: float) -> None:
        rows = [f"{name},{price},{time.time() - age_s:.0f}\n" for name, price in prices.items()]
        (self.home / "prices.csv").write_text("".join(rows))

    def stays(self, number: int) -> str:
        """Why a job is not moved, by advice of one tick."""
        argv = [*REBALANCE, "--once", "--json"]
        body = json.loads(subprocess.run(argv, env=self.env, capture_output=True, text=True, check=True).stdout)
        assert [move for move in body["moves"] if move["job_id"] == number] == []
        return "".join(row["why"] for row in body["staying"] if row["job_id"] == number)


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    with lab_of({"dear": "Nodes=n0", "cheap": "Nodes=n1"}) as lab:
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    made = Market(started, tmp_path)
    made.price(dear=1, cheap=4)
    yield made
    queue_of.emptied(made.client)


def test_a_job_follows_the_prices_and_one_that_would_save_too_little_stays(site: Market) -> None:
    with site.daemon(egress=100) as daemon:
        large = site.palsub(*GOAL, "-t", "8-0", script=SCRIPT)
        small = site.palsub(*GOAL, "-t", "4-0", "-p", "dear,cheap")
        for number in (large, small):
            assert site.running(number).partition == "dear"
        site.wait(lambda: len(site.ticks()) > 2)
        assert site.moves() == []
        site.price(dear=4, cheap=1)
        job = site.running(large, restarts=1)
        assert (job.partition, job.nodes) == ("cheap", ("n1",))
        move = site.ended()
        assert (move.outcome, move.partition, move.own_partitions) == ("moved", "cheap", "dear"), move.detail
        assert move.saving == pytest.approx(3 * 96, rel=0.01) and abs(move.gain_s) < 60
        site.price(dear=1, cheap=9)  # back again: not on the same day
        seen = len(site.ticks())
        site.wait(lambda: len(site.ticks()) > seen + 3)
        assert len(site.moves()) == 1 and site.running(small).partition == "dear"
        stop(daemon)
    whys = {row["job_id"]: row["why"] for tick in site.ticks() for row in tick["staying"]}  # type: ignore[attr-defined]
    assert "less than 24 h ago" in whys[large]
    told = [row["why"] for tick in site.ticks() for row in tick["staying"] if row["job_id"] == small]  # type: ignore[attr-defined]
    assert any("144.00 would be saved, more than 200.0" in why for why in told), told[-1]
    site.wait(lambda: (site.home / f"out-{large}").read_text().splitlines()[-1:] == ["new cheap"])
    assert (site.home / f"out-{large}").read_text().startswith("old dear\n")
    (row,) = json.loads(site.run(*PAL, "moves", "--json"))["moves"]
    assert row["saving"] == pytest.approx(288, rel=0.01) and "to save 28" in site.run(*PAL, "moves")
    said = json.loads(site.run(*PAL, "explain", str(large), "--json"))
    (event,) = [event for event in said["story"] if event["what"] == "move" and "saving" in event]
    assert event["saving"] == pytest.approx(288, rel=0.01) and "of money at a cost of" in event["text"]


def test_what_keeps_a_job_where_it_is_is_told(site: Market) -> None:
    """One tick for each obstacle; the job goes once there is none."""
    with site.daemon() as daemon:
        number = site.palsub(*GOAL, "-t", "4-0", "-p", "dear,cheap")
        rigid = site.palsub(*GOAL[::2], "-t", "4-0", "-p", "dear,cheap")
        for one in (number, rigid):
            assert site.running(one).partition == "dear"
        stop(daemon)
    partition = ["scontrol", "update", "PartitionName=cheap"]
    site.price(dear=4, cheap=1, age_s=2 * 86400)
    assert "the live price of dear is older than a day" in site.stays(number)
    (site.home / "prices.csv").write_text("cheap;1\n")
    assert "the live prices cannot be read" in site.stays(number)
    site.price(dear=4, cheap=1)
    assert "not marked movable" in site.stays(rigid)
    for change, back, why in (
        ("State=DOWN", "State=UP", "takes no jobs now"),
        ("AllowGroups=daemon", "AllowGroups=ALL", "AllowGroups=daemon may not admit the job"),
        ("MaxTime=2-0", "MaxTime=UNLIMITED", "time limit"),
    ):
        subprocess.run([*partition, change], check=True)
        try:
            assert why in site.stays(number)
        finally:
            subprocess.run([*partition, back], check=True)
    full = site.fill("n1")
    assert "no GPUs are free there" in site.stays(number)
    waits = site.sbatch("-p", "cheap", "--gres=gpu:1")
    site.until(waits, lambda job: job.reason in ("Resources", "Priority"))
    assert "jobs wait for its nodes" in site.stays(number)
    site.client.cancel([full["n1"], waits])
    with site.daemon() as daemon:
        assert site.running(number, restarts=1).partition == "cheap"
        stop(daemon)
    assert site.running(rigid).restarts == 0


def test_a_deadline_holds(site: Market) -> None:
    """Cheaper is slower by its user's word: the job goes only where it ends in time."""
    script = SCRIPT.replace("cheap,gres=gpu:1,est=4d", "cheap,gres=gpu:1,est=6d")
    words = ("--pal-movable=5", "--gres=gpu:1", "-t", "8-0")
    with site.daemon() as daemon:
        near, far = (site.palsub(f"--pal-goal=deadline=now+{days}days", *words, script=script) for days in (5, 7))
        for number in (near, far):
            assert site.running(number).partition == "dear"
        site.price(dear=4, cheap=1)
        assert site.running(far, restarts=1).partition == "cheap"
        stop(daemon)
    assert site.running(near).partition == "dear"
    assert "after its deadline" in site.stays(near)
