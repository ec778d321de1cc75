# SPDX-License-Identifier: MIT
"""The partition of a new job on a real Slurm: palsub follows what the tick has published."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.lab.lab import Lab

from .parted import lab_of, site_of
from .test_partitions import TABLE, leases, partition
from .test_rebalance import PALSUB, Site, stop

pytestmark = pytest.mark.real_slurm


@pytest.fixture(scope="module")
def started() -> Iterator[Lab]:
    with lab_of({"slow": "Nodes=n0", "fast": "Nodes=n1"}) as lab:
        yield lab


@pytest.fixture
def site(started: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with site_of(started, tmp_path, monkeypatch, TABLE) as made:
        made.env["SLURM_PAL_REBALANCE_ALLOCATION"] = "nonpreemptive-completion"
        yield made


def published(site: Site) -> bool:
    return os.path.exists(site.snapshot + ".partitions")


def submitted(site: Site, *words: str, name: str = "app") -> tuple[int, str]:
    """Job id and explanation of a job that names both partitions, the slow one first."""
    argv = [*PALSUB, "--parsable", "--pal-class", "A", "--pal-explain", "-J", name, "-p", "slow,fast", "--gres=gpu:1"]
    done = subprocess.run(
        [*argv, "-t", "60", "-o", "/dev/null", *words], input="#!/bin/sh\nsleep 300\n", env=site.env, cwd=site.home,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


def test_a_new_job_starts_where_it_belongs_before_any_tick_has_seen_it(site: Site) -> None:
    with site.daemon() as daemon:
        site.wait(lambda: published(site))
        number, said = submitted(site)
        job = site.running(number)
        assert (job.partition, job.nodes) == ("fast", ("n1",)) and "partition fast of slow,fast" in said
        even, said = submitted(site, name="nobody-knows-it")
        assert "pal:part" not in site.running(even).comment and " of slow,fast" not in said
        own, said = submitted(site, "--comment=mine")  # the mark would have to go into the user's own comment
        assert site.until(own, lambda job: True).comment == "mine" and " of slow,fast" not in said
        stop(daemon)
    assert not published(site) and site.said().count("error") == 0
    later, said = submitted(site)
    assert (
        site.until(later, lambda job: job.partition != "").partition in ("slow", "slow,fast") and "of slow" not in said
    )


def filled(site: Site) -> int:
    """A job that soon leaves all fast GPUs."""
    number = site.sbatch("-p", "fast", "--gres=gpu:2", "-t", "5")
    site.running(number)
    return number


def test_it_waits_there_and_the_tick_goes_on_from_its_own_list(site: Site) -> None:
    full = filled(site)
    with site.daemon() as daemon:
        site.wait(lambda: published(site))
        number, _ = submitted(site)
        site.wait(lambda: number in leases(site))
        assert leases(site)[number].own == "slow,fast"
        partition(site, number, "fast")
        site.client.cancel([full])
        assert site.running(number).partition == "fast"
        stop(daemon)


def test_without_the_tick_its_own_list_comes_back(site: Site) -> None:
    site.fill("n0", "n1")
    with site.daemon(allocation="") as daemon:
        number = site.sbatch("-p", "fast", "--gres=gpu:1", "--comment=pal:job=A pal:part=1;own=slow,fast;set=fast")
        changed = site.sbatch("-p", "slow", "--gres=gpu:1", "--comment=pal:job=A pal:part=1;own=slow,fast;set=fast")
        partition(site, number, "slow,fast")
        assert site.until(changed, lambda job: True).partition == "slow"  # somebody has changed it since
        stop(daemon)


def test_a_daemon_that_ends_leaves_no_list(site: Site) -> None:
    full = filled(site)
    with site.daemon() as daemon:
        site.wait(lambda: published(site))
        number, _ = submitted(site)
        stop(daemon)
    assert site.until(number, lambda job: "slow" in job.partition).partition in ("slow", "slow,fast")
    site.client.cancel([full])


@pytest.mark.parametrize("text", ["", "{", '{"schema": "pal.partitions/2"}', '{"schema": "pal.partitions/1"}'])
def test_a_file_that_makes_no_sense_leaves_the_choice_to_slurm(site: Site, text: str) -> None:
    with site.daemon(allocation="") as daemon:
        site.wait(lambda: len(site.ticks()) > 1)
        daemon.send_signal(19)  # SIGSTOP: it would remove the file
        Path(site.snapshot + ".partitions").write_text(text)
        number, said = submitted(site)
        assert "pal:part" not in site.running(number).comment
        assert " of slow,fast" not in said and "Traceback" not in said
        daemon.send_signal(18)
        stop(daemon)
