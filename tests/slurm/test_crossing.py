# SPDX-License-Identifier: MIT
"""Running jobs into another partition of their users', on a real Slurm: never left pinned to it by what goes wrong."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.tick_lease import Sort, TickLease
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.lab.lab import Lab

from . import queue_of, test_moves
from .parted import lab_of, site_of
from .test_moves import DRIVER
from .test_rebalance import PAL, REBALANCE, Site, listens, stop, work

pytestmark = pytest.mark.real_slurm

OWN = "slow,fast"
TABLE = "application,gpus,type,relative_speed\napp,1,slow,1\napp,1,fast,4\neven,1,slow,1\neven,1,fast,1\n"


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    with lab_of({"slow": "Nodes=n0", "fast": "Nodes=n1"}) as lab:
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_of(started, tmp_path, monkeypatch, TABLE) as made:
        yield made


def lists(site: Site) -> dict[int, TickLease]:
    with open_journal(str(site.state / "rebalance.db"), write=False) as journal:
        return journal.leases(Sort.PARTITIONS)


def on_slow_gpus(site: Site, full: dict[str, int], name: str, *words: str, script: str = "") -> int:
    """A job that the tick kept for the fast partition until that no longer paid, and that runs on the slow one."""
    number = site.palsub("-J", name, "-p", OWN, "--gres=gpu:1", *words, script=script)
    site.until(number, lambda job: job.partition == "fast")
    site.client.cancel([full["n0"]])
    assert site.running(number).partition == "slow"
    return number


def pending(site: Site, number: int, partition: str) -> SlurmJob:
    return site.until(number, lambda job: job.state == "PENDING" and not job.nodes and job.partition == partition)


def test_a_job_goes_to_the_faster_partition_when_there_is_room(site: Site) -> None:
    full = site.fill("n0", "n1")
    with site.daemon(partition_wait_s=4) as daemon:
        number = on_slow_gpus(site, full, "app", "--pal-checkpoint", "USR1", script=work(site, 12))
        site.wait(lambda: listens(site))
        site.client.cancel([full["n1"]])
        site.until(full["n1"], lambda job: job.state == "CANCELLED")
        freed_s = time.time()
        job = site.running(number, restarts=1)
        assert (job.partition, job.nodes) == ("fast", ("n1",))
        move = site.ended()
        assert (move.outcome, move.partition, move.own_partitions) == ("moved", "fast", OWN), move.detail
        assert sum(freed_s < float(str(tick["at_s"])) <= move.made_s for tick in site.ticks()) <= 2
        assert (lists(site)[number].ours, lists(site)[number].own) == ("fast", OWN)
        assert move.after == pytest.approx(move.before / 4, rel=0.3)
        body = json.loads(site.run(*PAL, "moves", "--json"))
        assert [(row["job_id"], row["outcome"], row["partition"]) for row in body["moves"]] == [
            (number, "moved", "fast")
        ]
        body = json.loads(site.run(*PAL, "explain", str(number), "--json"))
        (told,) = [event for event in body["story"] if event["what"] == "move" and "partition" in event]
        assert told["partition"] == "fast" and "in fast" in told["text"]
        stop(daemon)
    assert site.said().count("error") == 0
    site.until(number, lambda job: job.state == "COMPLETED")
    (record,) = [json.loads(line) for line in (site.home / f"out-{number}").read_text().splitlines() if "{" in line]
    assert record["resumed"] > 0 and record["gpus"] == {"n1": [0]}


def test_its_own_list_is_back_when_it_is_requeued(site: Site) -> None:
    full = site.fill("n0", "n1")
    with site.daemon(partition_wait_s=4) as daemon:
        number = on_slow_gpus(site, full, "app", "--pal-movable=5")
        site.client.cancel([full["n1"]])
        assert site.running(number, restarts=1).partition == "fast"
        site.ended()
        stop(daemon)
    site.client.requeue(number)
    pending(site, number, "fast")
    site.client.update_job(number, StartTime="now+600")  # Slurm's own delay is over before a slow machine has looked
    site.env["SLURM_PAL_REBALANCE_ALLOCATION"] = ""
    site.run(*REBALANCE, "--once", "--act")
    assert pending(site, number, OWN).req_nodes == () and number not in lists(site)


def test_who_gains_nothing_or_whose_list_is_not_known_stays(site: Site) -> None:
    full = site.fill("n1")
    unknown = site.palsub("-J", "app", "-p", OWN, "--gres=gpu:1", "--pal-movable=5")
    even = site.palsub("-J", "even", "-p", OWN, "--gres=gpu:1", "--pal-movable=5")
    for number in (unknown, even):
        assert site.running(number).partition == "slow"
    with site.daemon() as daemon:
        site.client.cancel([full["n1"]])
        before = len(site.ticks())
        site.wait(lambda: len(site.ticks()) > before + 4)
        stop(daemon)
    assert site.moves() == []


def test_who_waits_in_the_queue_goes_first(site: Site) -> None:
    """One GPU becomes free where the job would be faster, and a larger one waits there."""
    full, halves = site.fill("n0"), [site.sbatch("-w", "n1", "--gres=gpu:1") for _ in range(2)]
    for half in halves:
        site.running(half)
    with site.daemon(partition_wait_s=4) as daemon:
        number = on_slow_gpus(site, full, "app", "--pal-movable=5")
        large = site.sbatch("-p", "fast", "--gres=gpu:2")  # neither palsub nor the filter saw it
        site.client.cancel(halves[:1])
        site.until(halves[0], lambda job: job.state == "CANCELLED")
        before = len(site.ticks())
        site.wait(lambda: len(site.ticks()) > before + 3)
        assert site.client.job(number).restarts == 0  # type: ignore[union-attr]
        site.client.cancel(halves[1:])
        assert site.running(large).partition == "fast"
        site.client.cancel([large])
        assert site.running(number, restarts=1).partition == "fast"
        stop(daemon)


# -- the steps, whoever interferes ------------------------------------------------------------


@pytest.fixture
def moving(site: Site, tmp_path: Path) -> test_moves.Site:
    return test_moves.Site(tmp_path)


def crossing(moving: test_moves.Site, number: int) -> Move:
    move = moving.move(number, "n1")
    assert move.source == "n0:0"
    return move._replace(partition="fast", own_partitions=OWN)


def left_with(moving: test_moves.Site, number: int) -> str:
    """The partitions that a job has in the queue."""
    moving.running(number)
    moving.client.requeue(number)
    return moving.until(number, lambda job: job.state == "PENDING" and not job.nodes).partition


def journalled(moving: test_moves.Site) -> dict[int, TickLease]:
    with open_journal(moving.path, write=False) as journal:
        return journal.leases(Sort.PARTITIONS)


def submitted(moving: test_moves.Site) -> int:
    return moving.submit("-p", OWN, "--gres=gpu:1")


@pytest.mark.parametrize("old", ["", "slow"])
def test_a_move(moving: test_moves.Site, old: str) -> None:
    number = moving.submit("-p", old or OWN, "--gres=gpu:1")
    (done,) = moving.carry_out(crossing(moving, number)._replace(old_partitions=old))
    job = moving.running(number)
    assert (done.outcome, job.partition, job.nodes) == ("moved", "fast", ("n1",)), done
    assert journalled(moving)[number].own == OWN
    back = moving.move(number, "n0")._replace(partition="slow", own_partitions=OWN, old_partitions="fast")
    (*_, done) = moving.carry_out(back)
    assert (done.outcome, moving.running(number).partition) == ("moved", "slow"), done
    assert (journalled(moving)[number].ours, journalled(moving)[number].own) == ("slow", OWN)


@pytest.mark.parametrize("how", ["taken", "drained", "down"])
def test_a_target_that_is_lost_in_the_middle(moving: test_moves.Site, how: str) -> None:
    number = submitted(moving)
    move = crossing(moving, number)
    partition = ["scontrol", "update", "PartitionName=fast"]
    if how == "taken":
        moving.running(moving.submit("-w", "n1", "--gres=gpu:2"))
    elif how == "drained":
        moving.client.update_nodes(["n1"], State="DRAIN", Reason="test")
    else:
        subprocess.run([*partition, "State=DOWN"], check=True)
    try:
        (done,) = moving.carry_out(move)
    finally:
        moving.client.update_nodes(["n1"], State="RESUME") if how == "drained" else None
        subprocess.run([*partition, "State=UP"], check=True)
    job = moving.running(number)
    assert (done.outcome, job.partition, job.req_nodes) == ("elsewhere", "slow", ()), done
    assert journalled(moving) == {} and left_with(moving, number) == OWN


@pytest.mark.parametrize("step", ["requeueing", "targeting"])
def test_a_change_of_its_users_stays(moving: test_moves.Site, step: str) -> None:
    number = submitted(moving)
    move = crossing(moving, number)
    moving.running(moving.submit("-w", "n1", "--gres=gpu:2"))
    done_at: list[str] = []

    def change(present: str) -> None:
        if present == step and not done_at:
            moving.until(number, lambda job: job.state == "PENDING" and not job.nodes)
            queue_of.updated(moving.client, number, Partition="slow")
            done_at.append(present)

    (done,) = moving.carry_out(move, meanwhile=change)
    job = moving.running(number)
    assert (done.outcome, job.partition, job.req_nodes, done_at) == ("elsewhere", "slow", (), [step]), done
    assert left_with(moving, number) == "slow"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["requeueing", "targeting", "clearing"])
def test_killed_at_a_step(moving: test_moves.Site, step: str, when: str) -> None:
    number = submitted(moving)
    move = crossing(moving, number)
    if step == "clearing":
        moving.running(moving.submit("-w", "n1", "--gres=gpu:2"))
    with open_journal(moving.path) as journal:
        journal.begin(move)
    argv = [sys.executable, "-P", "-c", DRIVER, moving.path, step, when]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    with contextlib.closing(child.stdout) as out, contextlib.closing(child.stderr) as err:
        said = out.readline()
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL and said == b"here\n", err.read()
    (done,) = moving.carry_out()
    job = moving.running(number)
    wanted = ("elsewhere", "slow", ()) if step == "clearing" else ("moved", "fast", ("n1",))
    assert (done.outcome, job.partition, job.req_nodes) == wanted, done
    kept = journalled(moving)
    assert [(lease.ours, lease.own) for lease in kept.values()] == ([] if step == "clearing" else [("fast", OWN)])
    assert left_with(moving, number) == (OWN if step == "clearing" else "fast")
