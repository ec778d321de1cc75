# SPDX-License-Identifier: MIT
"""Cloud nodes on a real Slurm: they boot when a job needs them, and nothing of ours wakes one that is not worth it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.demo import program
from slurm_pal.lab.lab import Lab
from slurm_pal.lab.processes import find_daemons, with_variable

from .conftest import short_directory, skip_without_slurm
from .test_network import installed
from .test_places import User, scores, ticking

pytestmark = pytest.mark.real_slurm

PARTITIONS = """[partitions.prem]
nodes = "n0"
default = true
[partitions.cloud]
nodes = "n2"
[partitions.every]
nodes = "ALL"
"""
PRICES = "[prices]\nprem = {}\ncloud = {}\n"
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 -p prem -J train -t 60
#PAL alt=own:partition=prem,gres=gpu:1,est=20m
#PAL alt=rented:partition=cloud,gres=gpu:1,est=25m
echo "$PAL_ALT $SLURMD_NODENAME"
"""
ASLEEP, CLOUD = {"IDLE", "CLOUD", "POWERED_DOWN"}, ["-p", "prem,cloud", "--gres=gpu:1"]
BOOT_S = 110  # ResumeTimeout of the partition, and of a busy machine; that of a lab is 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    skip_without_slurm()
    file = tmp_path_factory.mktemp("partitions") / "partitions.toml"
    file.write_text(PARTITIONS)
    own = (("PartitionName=cloud ", f"PartitionName=cloud ResumeTimeout={BOOT_S} "),)
    words = {"nodes": 3, "gpus": 2, "seed": 1, "partitions": str(file), "cloud": 1, "conf_edits": own}
    with short_directory() as path, Lab.up(path, **words) as made:  # type: ignore[arg-type]
        yield made
        assert {process.name for process in find_daemons(made.directory)} == {"munged", "slurmctld", "slurmd"}
    assert find_daemons(made.directory) == []


class Owner(User):
    """Somebody whose jobs may go to the cloud."""

    def asleep(self) -> bool:
        return set(self.run("scontrol", "show", "node", "n2").partition("State=")[2].split()[0].split("+")) == ASLEEP

    def settings(self, text: str) -> None:
        (self.home / "pal.toml").write_text(f'[paths]\nstate_dir = "{self.home}/pal"\n{text}')

    def waits(self, job: int) -> bool:
        return self.waits_in(job).startswith("PENDING")


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[Owner]:
    made = Owner(lab, tmp_path)
    made.settings(PRICES.format(1.0, 4.0))
    made.until(made.asleep)
    yield made
    made.run("scancel", "--me")
    made.until(lambda: made.run("squeue", "-h").strip() == "")


def rows_of(shown: dict[str, object]) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in shown["of"]}  # type: ignore[attr-defined]


def test_a_node_boots_for_a_job_and_is_powered_down_after_it(lab: Lab, user: Owner) -> None:
    assert lab.status().daemons["slurmd"] == 2 and lab.status().state == "up"
    job, shown = user.palsub("-p", "cloud", "--gres=gpu:1", "-o", "out-%j", "--wrap", "echo $SLURMD_NODENAME")
    assert shown is None and user.output(job) == "n2"
    assert lab.status().daemons["slurmd"] == 3 and lab.status().state == "up"
    user.until(user.asleep)
    user.until(lambda: lab.status().daemons["slurmd"] == 2)  # Slurm does not wait for the program that ends it


def test_a_job_stays_on_full_premises_where_that_ends_sooner_or_costs_less(user: Owner) -> None:
    user.fill("prem", 2, seconds=30)
    user.run("scontrol", "update", f"JobId={user.run('squeue', '-h', '-o', '%A').split()[0]}", "TimeLimit=1")
    job, shown = user.palsub("--pal-goal=time", "-t", "10", *CLOUD, "--wrap", "true")  # half a minute is left
    rows = rows_of(shown)
    assert shown["chosen"] == "prem" and rows["prem"]["wait_s"] < BOOT_S
    assert rows["cloud"]["wait_s"] == BOOT_S and "boots" in str(rows["cloud"]["wait_from"])
    cheap, shown = user.palsub("--pal-goal=cost", "-t", "600", *CLOUD, "--wrap", "true")
    assert shown["chosen"] == "prem"
    assert rows_of(shown)["cloud"]["cost"] == pytest.approx(4.0 * (18000 + BOOT_S) / 3600, 1e-4)
    assert user.waits(job) and user.waits(cheap) and user.asleep()


def test_a_job_wakes_a_node_where_that_is_better(user: Owner) -> None:
    user.fill("prem", 2)
    job, shown = user.palsub("--pal-goal=time", "-t", "10", *CLOUD, "--wrap", "echo $SLURMD_NODENAME")
    assert rows_of(shown)["prem"]["wait_s"] > BOOT_S and shown["chosen"] == "cloud" and user.output(job) == "n2"
    # What it waited counts for the next one: its start is that of the script, not that of the boot.
    waited_s = float(user.run("squeue", "-h", "-t", "all", "-j", str(job), "-O", "PendingTime").strip())
    user.until(user.asleep)
    _, shown = user.palsub("--pal-goal=time", "-t", "10", *CLOUD, "--wrap", "true")
    row = rows_of(shown)["cloud"]
    assert "1 earlier wait" in str(row["wait_from"]) and row["wait_s"] == pytest.approx(
        (BOOT_S + 60) * ((waited_s + 60) / (BOOT_S + 60)) ** 0.2 - 60, abs=1.0
    )


def waiting_on_premises(user: Owner, *words: str) -> int:
    """A job that waits in the partition prem, where a tick may choose again."""
    scores(user)
    (user.home / "job.sh").write_text(SCRIPT)
    user.fill("prem", 2)
    with ticking(user):
        job, shown = user.palsub(*words, "job.sh")
    assert shown["chosen"] == "own" and user.waits_in(job) == "PENDING prem"
    comment = user.run("squeue", "-h", "-j", str(job), "-o", "%k").strip()
    at = comment.partition("at=")[2].partition(";")[0]
    user.run("scontrol", "update", f"JobId={job}", f"Comment={comment.replace(at, str(int(at) - 300))}")
    return job


def look_again(user: Owner) -> None:
    user.run(program("pal-rebalance"), "--act", "--once")


def test_a_tick_wakes_a_node_only_where_the_job_then_ends_sooner(user: Owner) -> None:
    user.settings("")
    job = waiting_on_premises(user)
    look_again(user)
    assert user.waits_in(job) == "PENDING prem" and user.asleep()
    for running in user.run("squeue", "-h", "-t", "R", "-o", "%A").split():
        user.run("scontrol", "update", f"JobId={running}", "TimeLimit=120")
    user.until(lambda: look_again(user) or user.waits_in(job) != "PENDING prem")  # a busy slurmctld is left alone
    assert user.output(job) == "rented n2"


def test_a_tick_wakes_a_node_for_money_only_where_prices_say_so(user: Owner) -> None:
    job = waiting_on_premises(user, "--pal-goal=cost")
    for prices in (PRICES.format(1.0, 0.75), "", "[prices]\ncloud = 0.1\n"):  # .35 with the boot against .33; unknown
        user.settings(prices)
        look_again(user)
        assert user.waits_in(job) == "PENDING prem" and user.asleep()
    user.settings(PRICES.format(1.0, 0.5))
    user.until(lambda: look_again(user) or user.waits_in(job) != "PENDING prem")  # a busy slurmctld is left alone
    assert user.output(job) == "rented n2"


def test_no_exclusion_wakes_a_node(user: Owner) -> None:
    """Off the slow GPUs that are free Slurm would boot a node at once: nobody would wait for the better ones."""
    scores(user, slow="n0")
    user.run("sbatch", "-p", "every", "-w", "n1", "--gres=gpu:2", "-t", "10", "-o", "/dev/null", "--wrap", "sleep 600")
    user.until(lambda: user.run("squeue", "-h", "-t", "R", "-o", "%N").strip() == "n1")
    words = ["--pal-watch", "--pal-class=A", "-p", "every", "--gres=gpu:1", "-t", "60"]
    job, _ = user.palsub(*words, "-o", "out-%j", "--wrap", "echo $SLURMD_NODENAME")
    assert user.output(job) == "n0" and user.asleep()


def test_cloud_nodes_that_slurm_hides_count_too(user: Owner, lab: Lab) -> None:
    conf = Path(lab.directory.conf)
    whole = conf.read_text()
    conf.write_text(whole.replace("PrivateData=cloud\n", ""))
    user.run("scontrol", "reconfigure")
    try:
        if installed() >= (24, 11):
            pytest.skip("this release shows its administrators what is powered down")
        user.until(lambda: "n2" not in user.run("sinfo", "-h", "-N", "-o", "%N"))
        user.fill("prem", 2)
        _, shown = user.palsub("--pal-goal=cost", "-t", "10", *CLOUD, "--wrap", "true")
        assert shown["chosen"] == "prem" and rows_of(shown)["cloud"]["wait_s"] == BOOT_S
    finally:
        conf.write_text(whole)
        user.run("scontrol", "reconfigure")


def test_it_ends_with_nothing_left_while_a_node_boots(tmp_path: Path) -> None:
    skip_without_slurm()
    with short_directory() as path:
        other = Lab.up(path, nodes=1, gpus=1, cloud=1)
        Owner(other, tmp_path).run("sbatch", "-o", "/dev/null", "--wrap", "sleep 600")
        assert (
            other.down().removed
            and find_daemons(other.directory) == []
            and with_variable("SLURM_CONF", other.directory.conf) == []
        )
