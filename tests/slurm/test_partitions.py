# SPDX-License-Identifier: MIT
"""Partitions shared out by an allocation policy on a real Slurm: jobs wait where they belong, and never for long."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.decide.tick_lease import Sort, TickLease
from slurm_pal.journal.journal import open_journal
from slurm_pal.lab.lab import Lab

from . import queue_of
from .parted import lab_of, site_of
from .test_rebalance import PAL, REBALANCE, Site, stop

pytestmark = pytest.mark.real_slurm

PARTITIONS = {"slow": "Nodes=n0", "fast": "Nodes=n1", "short": "Nodes=n1 MaxTime=5"}
TABLE = """application,gpus,type,relative_speed
app,1,slow,1
app,1,fast,4
app,1,short,8
even,1,slow,1
even,1,fast,1
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    with lab_of(PARTITIONS) as lab:
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_of(started, tmp_path, monkeypatch, TABLE) as made:
        yield made


def submitted(site: Site, name: str = "app", partitions: str = "slow,fast", *words: str) -> int:
    return site.palsub("-J", name, "-p", partitions, "--gres=gpu:1", "--comment=pal:job=A", *words)


def partition(site: Site, number: int, wanted: str) -> None:
    site.until(number, lambda job: job.state == "PENDING" and job.partition == wanted)


def leases(site: Site) -> dict[int, TickLease]:
    with open_journal(str(site.state / "rebalance.db"), write=False) as journal:
        return journal.leases(Sort.PARTITIONS)


def ticks(site: Site, count: int) -> None:
    """So many more ticks go by."""
    before = len(site.ticks())
    site.wait(lambda: len(site.ticks()) >= before + count)


def test_a_job_waits_for_the_partition_where_it_belongs(site: Site) -> None:
    full = site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon() as daemon:
        partition(site, number, "fast")
        site.client.cancel([full["n0"]])
        site.until(full["n0"], lambda job: job.state == "CANCELLED")
        ticks(site, 3)
        partition(site, number, "fast")
        (wish,) = [row for row in site.ticks()[-1]["retarget"] if row["job_id"] == number][:1]  # type: ignore[union-attr]
        assert wish["action"] == "keep"
        site.client.cancel([full["n1"]])
        job = site.running(number)
        assert (job.nodes, job.partition) == (("n1",), "fast")
        body = json.loads(site.run(*PAL, "explain", str(number), "--json"))
        assert "partition" in [event["what"] for event in body["story"]]
        stop(daemon)
    assert site.said().count("error") == 0


def test_its_own_list_comes_back_when_nobody_shares_any_more(site: Site) -> None:
    full = site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon() as daemon:
        partition(site, number, "fast")
        stop(daemon)
    partition(site, number, "slow,fast")
    assert leases(site) == {}
    site.client.cancel([full["n0"]])
    assert site.running(number).partition == "slow"


def test_a_killed_daemons_list_is_taken_back_by_a_tick_that_does_not_share(site: Site) -> None:
    site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon() as daemon:
        partition(site, number, "fast")
        daemon.kill()
        daemon.wait()
    site.env["SLURM_PAL_REBALANCE_ALLOCATION"] = ""
    shown = json.loads(site.run(*REBALANCE, "--once", "--act", "--json"))
    assert (number, "partition-clear") in [(row["job_id"], row["action"]) for row in shown["retarget"]]
    partition(site, number, "slow,fast")


def test_waiting_ends_when_it_no_longer_pays(site: Site) -> None:
    full = site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon(partition_wait_s=4) as daemon:
        partition(site, number, "fast")
        site.client.cancel([full["n0"]])
        freed_s = time.time()
        job = site.running(number)
        assert job.partition == "slow" and job.start_s > freed_s + 1
        stop(daemon)


def test_what_makes_no_difference_is_left_to_slurm(site: Site) -> None:
    full = site.fill("n0", "n1")
    even = submitted(site, "even")
    with site.daemon() as daemon:
        ticks(site, 3)
        assert site.client.job(even).partition == "slow,fast"  # type: ignore[union-attr]
        site.client.cancel([full["n0"]])
        assert site.running(even).partition == "slow"
        stop(daemon)


def test_a_partition_whose_limit_the_job_exceeds_is_not_chosen(site: Site) -> None:
    full = site.fill("n0", "n1")
    number = submitted(site, "app", "slow,short")
    with site.daemon() as daemon:
        ticks(site, 3)
        partition(site, number, "slow,short")
        site.client.cancel([full["n1"]])
        ticks(site, 2)
        partition(site, number, "slow,short")
        stop(daemon)


def test_a_list_that_its_user_changes_is_left_alone(site: Site) -> None:
    site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon() as daemon:
        partition(site, number, "fast")
        queue_of.updated(site.client, number, Partition="slow")
        ticks(site, 3)
        partition(site, number, "slow")
        stop(daemon)
    partition(site, number, "slow")


def test_after_a_requeue_it_has_all_its_partitions_again(site: Site) -> None:
    full = site.fill("n0", "n1")
    number = submitted(site)
    with site.daemon() as daemon:
        partition(site, number, "fast")
        site.client.cancel([full["n1"]])
        assert site.running(number).partition == "fast"
        stop(daemon)
    site.client.update_nodes(["n1"], State="DRAIN", Reason="test")  # it must not run there again before the next tick
    site.client.requeue(number)
    site.until(number, lambda job: job.state == "PENDING")
    site.env["SLURM_PAL_REBALANCE_ALLOCATION"] = ""
    for _ in range(10):  # from 24.11 on Slurm may have it in its hands for seconds: then the next tick does it
        site.run(*REBALANCE, "--once", "--act")
        if not leases(site):
            break
    assert leases(site) == {}
    site.until(number, lambda job: job.partition == "slow,fast")
    site.client.update_nodes(["n1"], State="RESUME")
    site.running(number, restarts=1)


@pytest.mark.parametrize("text", [None, "application,gpus\n", TABLE + "app,1,fast,3\n"])
def test_without_a_sound_table_the_rest_of_the_tick_goes_on(site: Site, text: str | None) -> None:
    path = site.home / "throughputs.csv"
    path.unlink()
    if text is not None:
        path.write_text(text)
    site.fill("n0", "n1")
    number = submitted(site)
    done = subprocess.run(
        [*REBALANCE, "--once", "--act", "--json"], env=site.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "throughputs.csv" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["waiting"] == 1
    partition(site, number, "slow,fast")


@pytest.mark.parametrize(
    "policy",
    [
        *("nonpreemptive-makespan", "pal-share", "gavel:max-min", "gavel:ftf", "gavel:makespan", "gavel:hierarchical"),
        *("nonpreemptive-completion", "hadar", "sia", "pal-sia"),
    ],
)
def test_every_policy_decides(site: Site, policy: str) -> None:
    site.fill("n0", "n1")
    number = submitted(site)
    site.env["SLURM_PAL_REBALANCE_ALLOCATION"] = policy
    shown = json.loads(site.run(*REBALANCE, "--once", "--act", "--json"))
    assert number in [row["job_id"] for row in shown["retarget"]] and shown["trouble"] == []
    partition(site, number, "fast")


def test_the_cost_program_follows_live_prices(site: Site) -> None:
    """The fast partition does four times as much: worth a wait as long as it costs less than four times as much."""
    site.env |= {"SLURM_PAL_REBALANCE_ALLOCATION": "gavel:cost", "SLURM_PAL_SUBMIT_PRICES": str(site.home / "prices")}
    (site.home / "throughputs.csv").write_text(f"{TABLE}sbatch,2,slow,0\nsbatch,2,fast,1\n")
    full = site.fill("n0", "n1")
    number = submitted(site)
    prices, now_s = site.home / "prices", time.time()
    prices.write_text(f"slow,1,{now_s:.0f}\nfast,1,{now_s:.0f}\n")
    with site.daemon() as daemon:
        partition(site, number, "fast")
        site.client.cancel([full["n0"]])
        site.until(full["n0"], lambda job: job.state == "CANCELLED")
        ticks(site, 3)
        partition(site, number, "fast")
        prices.write_text(f"slow,1,{now_s:.0f}\nfast,9,{now_s:.0f}\n")
        assert site.running(number).partition == "slow"
        stop(daemon)
    assert site.said().count("error") == 0


def test_a_policy_that_is_not_known(site: Site) -> None:
    site.env["SLURM_PAL_REBALANCE_ALLOCATION"] = "gavel:magic"
    done = subprocess.run([*REBALANCE], env=site.env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "'gavel:magic'" in done.stderr and "nonpreemptive-makespan" in done.stderr
    assert done.stderr.count("\n") == 1
