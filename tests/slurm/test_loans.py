# SPDX-License-Identifier: MIT
"""Nodes of owners lent on a real Slurm: who leaves goes on elsewhere, owners have their nodes, and no list stays."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base import config as settings
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.journal.journal import LoanList, Move, open_journal
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.programs import find_programs
from slurm_pal.loans.lend import SLURMS_S
from slurm_pal.slurm.cli import CliClient, subprocess_runner
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.states import usable
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore

from . import queue_of, test_rebalance
from .conftest import short_directory, skip_without_slurm
from .test_guard import DAEMON, GUARD, Unit

pytestmark = pytest.mark.real_slurm

PARTITIONS = """
[slurm]
PreemptType = "preempt/partition_prio"
PreemptMode = "REQUEUE"
[partitions.guest]
nodes = "ALL"
default = true
tier = 1
preempt = "requeue"
[partitions.waits]
nodes = "ALL"
state = "down"
[partitions.owner]
nodes = "n[1-3]"
tier = 10
preempt = "off"
"""
ALL = ("n0", "n1", "n2", "n3")
COUNTS = """#!/bin/bash
file={file}
n=0
[ ! -e $file.saved ] || read -r n < $file.saved
save() {{ echo $n > $file.part && mv $file.part $file.saved && : > "$SLURM_PAL_ACK"; }}
trap save USR1
echo "start $n" >> $file
until [ -e end ]; do echo "n $((n + 1))" >> $file; n=$((n + 1)); sleep 0.1; done
"""
"""A payload that writes each number once where its checkpoints lose nothing but what came after them."""


class Site(test_rebalance.Site):
    """The lab, and ticks of one journal that lends nodes of `owner` to `guest`."""

    def __init__(self, lab: Lab, home: Path) -> None:
        super().__init__(lab, home)
        self.path = self.state / "rebalance.db"
        loan = {"OWNERS": "owner", "GUEST": "guest", "WAITS": "waits", "INTERVAL_S": 3600, "HEADROOM": 0, "GRACE_S": 20}
        self.env |= {f"SLURM_PAL_LOAN_{name}": str(value) for name, value in loan.items()}
        self.env |= {"SLURM_PAL_REBALANCE_MOVES": "false"}
        self.user |= {f"SLURM_PAL_LOAN_{name}": str(loan[name]) for name in ("GUEST", "WAITS")}
        self.units: list[Unit] = []

    def keep(self, nodes: float) -> None:
        """So many nodes are to be free for owners, who needed none in the past; the next tick gives an order."""
        self.env["SLURM_PAL_LOAN_HEADROOM"] = str(nodes / 3)
        hour = int(time.time() // 3600) - 1
        with open_journal(str(self.path)):
            pass
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute("DELETE FROM demand")
            connection.execute("DELETE FROM loan_orders")
            connection.execute("INSERT INTO demand VALUES ('owner', ?, 0)", (hour,))
        connection.close()

    def tick(self, keep: float | None = None) -> tuple[dict[str, object], str]:
        """One tick that acts and sees its moves through: the loans in it, and what was said."""
        if keep is not None:
            self.keep(keep)
        argv = [*test_rebalance.REBALANCE, "--act", "--json"]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["loans"], done.stderr

    def unit(self, argv: list[str]) -> Unit:
        self.units.append(Unit(argv, self.env, self.home / "said", again=False))
        return self.units[-1]

    def overview(self) -> Overview:
        return self.client.overview()

    def listed(self) -> tuple[str, ...]:
        return next(part.nodes for part in self.overview().partitions if part.name == "guest")

    def counting(self) -> int:
        """A guest with checkpoints that takes a whole node."""
        file = self.home / f"counts-{time.monotonic_ns()}"
        number = self.palsub("--pal-checkpoint=USR1", "-p", "guest", "--gres=gpu:2", script=COUNTS.format(file=file))
        self.files = {**getattr(self, "files", {}), number: file}
        return number

    def owner(self, *words: str) -> int:
        return self.sbatch("-p", "owner", "--gres=gpu:2", *words)

    def lists(self) -> list[LoanList]:
        with open_journal(str(self.path), write=False) as journal:
            return journal.loan_lists()

    def reclaims(self) -> list[Move]:
        with open_journal(str(self.path), write=False) as journal:
            return journal.reclaims()

    def withdraw(self) -> None:
        argv = [*test_rebalance.REBALANCE, "--withdraw"]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True)


def sbatch(*words: str) -> tuple[int, str]:
    """Exit code, and the number or what was said."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", "sleep 300"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout or done.stderr).strip()


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    """4 nodes with 2 GPUs each: guests have all of them, three are an owner's."""
    skip_without_slurm()
    with short_directory() as path:
        file = Path(path).parent / "partitions.toml"
        file.write_text(PARTITIONS)
        with Lab.up(path, nodes=4, gpus=2, partitions=str(file)) as lab:
            yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in started.variables().items():
        monkeypatch.setenv(name, value)
    made = Site(started, tmp_path)
    yield made
    for unit in made.units:
        unit.stop()
    if made.path.exists():
        made.withdraw()
    queue_of.emptied(made.client)
    assert made.listed() == ALL


def test_guests_with_a_checkpoint_lose_nothing_when_nodes_go_back(site: Site) -> None:
    guests = [site.counting() for _ in ALL]
    for number in guests:
        site.running(number)
        site.wait(lambda number=number: site.files[number].exists())
    loans, said = site.tick(0.0)
    assert (loans["open"], loans["changed"], said) == (["n1", "n2", "n3"], False, "")
    loans, said = site.tick(2.0)
    assert (loans["open"], loans["changed"], said) == (["n3"], True, "") and site.listed() == ("n0", "n3")
    leaving = [one["job_id"] for one in loans["leaving"]]  # type: ignore[attr-defined]
    assert len(leaving) == 2 and {move.outcome for move in site.reclaims()} == {"reclaimed"}
    for number in leaving:
        job = site.until(number, lambda job: job.state == "PENDING" and not job.nodes)
        assert job.restarts == 1 and not job.held
    owners = [site.owner(), site.owner()]
    for number in owners:
        site.running(number)
    assert {site.client.job(number).nodes[0] for number in owners} == {"n1", "n2"}  # type: ignore[union-attr]
    assert [site.client.job(number).restarts for number in guests if number not in leaving] == [0, 0]  # type: ignore[union-attr]
    site.client.cancel(owners)
    for number in owners:
        site.until(number, lambda job: job.state == "CANCELLED")
    site.tick(0.0)
    assert site.listed() == ALL and site.lists() == []
    for number in leaving:
        site.running(number, restarts=1)
        saved = int(site.files[number].with_suffix(".saved").read_text())
        site.wait(lambda n=number, s=saved: f"start {s}\nn {s + 1}\n" in site.files[n].read_text())
        first, second = re.findall(r"^start (\d+)", site.files[number].read_text(), re.MULTILINE)
        assert (first, second) == ("0", str(saved)) and saved > 0


def test_owners_who_submit_all_at_once_all_start(site: Site) -> None:
    guests = [site.counting() for _ in ALL]
    for number in guests:
        site.running(number)
    site.tick(0.0)
    owners = [site.owner() for _ in range(3)]
    for number in owners:  # Slurm's own preemption is enough
        site.running(number)
    loans, said = site.tick()
    assert (site.listed(), loans["order"], said) == (("n0",), None, "")
    loans, said = site.tick(0.0)
    assert loans["order"]["used"] == 3 and site.listed() == ("n0",) and said == ""  # type: ignore[index]
    assert sorted(site.client.job(number).restarts for number in guests) == [0, 1, 1, 1]  # type: ignore[union-attr]
    assert all(not job.held for job in site.client.jobs_of(guests).values())


def test_an_owner_for_whom_slurm_stops_nobody_yet_has_a_node_by_the_tick(started: Lab, site: Site) -> None:
    """PreemptExemptTime: Slurm leaves guests alone for their first minutes."""
    conf = Path(started.directory.conf)
    before = conf.read_text()
    guests = [site.counting() for _ in ALL]
    for number in guests:
        site.running(number)
        site.wait(lambda number=number: site.files[number].exists())
    site.env["SLURM_PAL_LOAN_INTERVAL_S"] = "1"
    try:
        conf.write_text(before + "PreemptExemptTime=00:10:00\n")
        scontrol("reconfigure")
        owner = site.owner()
        since_s = site.until(owner, lambda job: job.state == "PENDING" and job.reason == "Resources").submit_s
        site.tick(0.0)
        assert site.reclaims() == []  # not yet: Slurm's preemption may be quicker
        site.wait(lambda: time.time() > since_s + SLURMS_S)
        site.tick()
        site.running(owner)
        found = [site.client.job(number) for number in guests]
        assert sorted(job.restarts for job in found if job is not None) == [0, 0, 0, 1]
    finally:
        conf.write_text(before)
        scontrol("reconfigure")
    (moved,) = site.reclaims()
    assert (moved.outcome, moved.owners) == ("reclaimed", "owner")


def test_slurmctld_reads_its_settings_anew_and_starts_again(started: Lab, site: Site) -> None:
    site.tick(3.0)
    assert site.listed() == ("n0",)
    scontrol("reconfigure")
    assert site.listed() == ALL
    site.tick()
    assert site.listed() == ("n0",)
    scontrol("reconfigure")
    site.tick()  # once more, now that this list was ours before as well
    assert site.listed() == ("n0",) and expand(site.lists()[0].own) == ALL
    process = next(p for p in started._living() if p.name == "slurmctld")
    os.kill(process.pid, 9)
    while any(p.name == "slurmctld" for p in started._living()):
        started._crew.reap()
        time.sleep(0.05)
    started._crew.spawn("slurmctld", [find_programs()["slurmctld"], "-D", "-f", started.directory.conf])
    site.wait(lambda: subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode == 0)
    site.wait(lambda: {*site.overview().up} == {"guest", "owner"})
    assert site.listed() in (ALL, ("n0",))
    site.tick()
    assert site.listed() == ("n0",) and expand(site.lists()[0].own) == ALL


def test_a_daemon_that_is_killed_leaves_no_list_where_a_guard_watches(site: Site) -> None:
    site.keep(3.0)
    guard, daemon = site.unit(GUARD), site.unit(DAEMON)
    site.wait(lambda: site.listed() == ("n0",))
    site.wait(lambda: os.path.exists(site.snapshot + ".heartbeat"))
    scontrol("update", "PartitionName=guest", f"Nodes={fold(ALL)}")
    held = site.sbatch("-p", "guest", "-H", "-w", "n2", "--gres=gpu:2")
    site.wait(lambda: site.listed() == ("n0",))
    scontrol("release", str(held))  # its user does so between two looks: Slurm holds it by itself
    daemon.kill()
    site.wait(lambda: site.listed() == ALL)
    site.running(held)
    assert guard.process.poll() is None


def test_a_list_is_withdrawn(site: Site) -> None:
    site.tick(3.0)
    assert site.listed() == ("n0",)
    site.withdraw()
    assert site.listed() == ALL and site.lists() == []


def test_a_node_that_goes_down_while_it_is_lent(site: Site) -> None:
    guest = site.counting()
    site.running(guest)
    filled = [site.sbatch("-p", "guest", "--gres=gpu:2") for _ in range(3)]
    for number in filled:
        site.running(number)
    victim = site.client.job(filled[-1])
    assert victim is not None
    node = victim.nodes[0]
    site.tick(0.0)
    scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        site.until(victim.job_id, lambda job: job.state == "PENDING" and job.restarts == 1)
        loans, said = site.tick()
        assert node not in loans["nodes"] and said == "" and site.listed() == tuple(n for n in ALL if n != node)  # type: ignore[operator]
        assert not site.client.job(victim.job_id).held  # type: ignore[union-attr]
    finally:
        scontrol("update", f"NodeName={node}", "State=RESUME")
    site.wait(lambda: all(usable(n.states) for n in site.overview().nodes))
    site.tick(0.0)
    assert site.listed() == ALL
    queue_of.at_once(site.client, victim.job_id)
    site.running(victim.job_id, restarts=1)


def test_guests_that_may_not_be_preempted_lend_nothing(site: Site) -> None:
    site.tick(3.0)
    assert site.listed() == ("n0",)
    scontrol("update", "PartitionName=guest", "PreemptMode=OFF")
    try:
        loans, said = site.tick()
        assert loans is None and site.listed() == ALL and said.count("\n") == 1
        assert "nothing is lent: PreemptMode=OFF of partition guest lets owners wait for guests" in said
    finally:
        scontrol("update", "PartitionName=guest", "PreemptMode=REQUEUE")


def test_jobs_that_the_list_does_not_fit_wait_and_are_not_held(site: Site) -> None:
    """What Slurm holds (priority 0, BadConstraints) or refuses, it does so by the list of that moment."""
    filled = [site.sbatch("-p", "owner" if k else "guest", "--gres=gpu:2") for k in range(4)]
    for number in filled:
        site.running(number)
    wide = site.sbatch("-p", "guest", "-N", "4", "--gres=gpu:1")
    total = site.sbatch("-p", "guest", "--gpus=4")
    named = site.sbatch("-p", "guest", "-w", "n2", "--gres=gpu:1")
    kept_off = site.sbatch("-p", "guest", "-x", "n0", "--gres=gpu:1")
    waiting = [wide, total, named, kept_off]
    site.tick(0.0)
    assert "n2" in site.listed() and len(site.listed()) < 4
    time.sleep(3.0)  # passes of the scheduler
    jobs = site.client.jobs_of(waiting)
    assert all(job.state == "PENDING" and not job.held for job in jobs.values()), jobs
    site.client.cancel(filled)
    site.tick(0.0)
    assert site.listed() == ALL
    left = {*waiting}

    def all_have_run() -> bool:
        """In whichever order Slurm starts them."""
        run = [number for number, job in site.client.jobs_of([*left]).items() if job.state == "RUNNING"]
        site.client.cancel(run)
        left.difference_update(run)
        return not left

    site.wait(all_have_run)


def test_what_slurm_refuses_while_nodes_are_closed_and_takes_with_a_partition_to_wait_in(site: Site) -> None:
    """A fact: by the list of the moment; docs/loans.md says so. Later releases refuse jobs that are too wide, too."""
    site.tick(3.0)
    assert site.listed() == ("n0",)
    asked = [("-w", "n2", "--gres=gpu:1"), ("-x", "n0", "--gres=gpu:1"), ("--gpus=4",), ("-N", "3", "--gres=gpu:1")]
    for words in asked[:3]:
        code, said = sbatch("-p", "guest", *words)
        assert code and "Requested node configuration is not available" in said
    waiting = []
    for words in asked:
        code, number = sbatch("-p", "guest,waits", *words)
        assert code == 0, number
        waiting.append(int(number))
    waiting.append(site.palsub("-p", "guest", "-N", "4", "--gres=gpu:1", script="#!/bin/sh\nsleep 300\n"))
    site.user["SLURM_PAL_LOAN_WAITS"] = "nosuch"
    site.running(site.palsub("-p", "guest", "--gres=gpu:1"))  # not refused with a partition that is not there
    time.sleep(3.0)  # passes of the scheduler
    jobs = site.client.jobs_of(waiting)
    assert all(job.state == "PENDING" and not job.held for job in jobs.values()), jobs
    assert jobs[waiting[-1]].partition == "guest,waits"
    site.tick()
    assert site.listed() == ("n0",), "they wait elsewhere, so nothing stays open for them"
    site.tick(0.0)
    left = {*waiting}

    def all_have_run() -> bool:
        run = [number for number, job in site.client.jobs_of([*left]).items() if job.state == "RUNNING"]
        site.client.cancel(run)
        left.difference_update(run)
        return not left

    site.wait(all_have_run)


def test_the_submit_filter_lets_every_guest_wait(lab_dir: str, tmp_path: Path) -> None:
    """Whatever a user types: the filter writes the second partition, and none that slurmctld does not know."""
    file = tmp_path / "partitions.toml"
    file.write_text(PARTITIONS)
    with Lab.up(lab_dir, nodes=4, gpus=2, partitions=str(file), submit_filter=True) as lab:
        env = lab.environ() | {"SLURM_PAL_LOAN_GUEST": "guest", "SLURM_PAL_LOAN_WAITS": "waits"}

        def said(*words: str) -> str:
            done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
            return (done.stdout or done.stderr).strip()

        like, first = dict.fromkeys("ABC", 1.0), dict.fromkeys("ABC", "v0")
        gpus = [
            GpuScore(f"n{n}", k, f"GPU-{n}-{k}", "m", like, first, time.time(), 1.0, ())
            for n in range(4)
            for k in range(2)
        ]
        config = settings.load(env)
        snapshot.publish(config.snapshot_path, gpus, cluster="palab", epoch=1, now_s=time.time())
        publish = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()", "publish-table"]
        assert "error" not in said(*publish)
        said("scontrol", "update", "PartitionName=guest", "Nodes=n0")
        numbers = [
            said("sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", "sleep 300")
            for words in (("-w", "n2"), ("-N3",), ("--gpus=5",), ("-p", "guest", "-x", "n0"), ("-n", "40"))
        ]
        assert all(number.isdecimal() for number in numbers), numbers
        jobs = CliClient(subprocess_runner(30.0, env)).jobs_of([int(number) for number in numbers])
        assert {job.partition for job in jobs.values()} == {"guest,waits"}
        owner = said("sbatch", "--parsable", "-o", "/dev/null", "-p", "owner", "--wrap", "true")
        assert "Partition=owner " in said("scontrol", "show", "job", "-o", owner)
