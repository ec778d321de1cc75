# SPDX-License-Identifier: MIT
"""The first job of a queue waits for better GPUs behind a fence: on a real Slurm it surely starts when that ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest

from slurm_pal.decide.tick_lease import Sort, TickLease
from slurm_pal.journal.journal import open_journal
from slurm_pal.pending.head import FENCE_S

from . import test_rebalance
from .test_rebalance import PAL, REBALANCE, Site, stop

pytestmark = pytest.mark.real_slurm
started, queue = test_rebalance.started, test_rebalance.site

LONGEST_S = 90.0
LATE_S = 10.0  # a pass of Slurm, and this machine's load


@pytest.fixture
def site(queue: Site) -> Iterator[Site]:
    """Jobs of others on n1 to n3 that are expected to end within a minute, one on the slow n0 that the test ends."""
    yield queue
    for line in reservations():
        queue.client.release(name_of(line))


def reservations() -> list[str]:
    shown = subprocess.run(["scontrol", "show", "reservation", "-o"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if line.startswith("ReservationName=")]


def name_of(line: str) -> str:
    return line.split()[0].partition("=")[2]


def fences(site: Site) -> dict[int, TickLease]:
    path = site.state / "rebalance.db"
    if not path.exists():
        return {}
    with open_journal(str(path), write=False) as journal:
        return journal.leases(Sort.FENCES)


def full_with_a_waiting_job(site: Site, limit_min: int = 4) -> tuple[dict[str, int], int]:
    """Every node is full; a job waits that would run on n0 twice as long."""
    full = site.fill("n0", "n1", "n2", "n3")
    for number in full.values() if limit_min else ():
        test_rebalance.queue_of.updated(site.client, number, TimeLimit=str(limit_min))
    return full, site.palsub("--gres=gpu:2", "--pal-movable=5")


@contextlib.contextmanager
def waits_behind_a_fence(site: Site) -> Iterator[tuple[subprocess.Popen[str], int, TickLease]]:
    full, number = full_with_a_waiting_job(site)
    with site.daemon(wait=True, wait_max_s=LONGEST_S, moves=False) as daemon:
        site.until(number, lambda job: job.exc_nodes == ("n0",))
        site.client.cancel([full["n0"]])
        site.wait(lambda: number in fences(site) and bool(reservations()))
        fence = fences(site)[number]
        (shown,) = reservations()
        assert name_of(shown) == fence.reservation and "Nodes=n0 " in shown and "IGNORE_JOBS" in shown
        assert fence.until_s <= fence.made_s + LONGEST_S
        # From now on only the fence keeps it off n0: it starts there whatever becomes of the daemon.
        site.until(number, lambda job: not job.exc_nodes)
        yield daemon, number, fence


def test_the_job_starts_when_its_patience_ends_and_nobody_before_it(site: Site) -> None:
    with waits_behind_a_fence(site) as (daemon, number, fence):
        other = site.sbatch("-t60", "--gres=gpu:2", "--nice=100")
        job = site.running(number)
        assert job.nodes == ("n0",)
        assert fence.until_s - FENCE_S - 1 <= job.start_s <= fence.until_s - FENCE_S + LATE_S
        assert site.client.job(other).state == "PENDING"  # type: ignore[union-attr]
        site.wait(lambda: not fences(site) and not reservations())
        story = json.loads(site.run(*PAL, "explain", str(number), "--json"))["story"]
        assert [event["what"] for event in story if "fence" in event["what"]] == ["fence", "fence-clear"]
        log = [json.loads(line) for line in (site.state / "rebalance.log").read_text().splitlines()]
        assert [row["what"] for row in log if "fence" in row["what"]] == ["fence", "fence-clear"]
        stop(daemon)
    assert "error" not in site.said()


def test_better_gpus_end_the_wait(site: Site) -> None:
    with waits_behind_a_fence(site) as (daemon, number, _):
        others = [job for job in site.client.jobs() if job.state == "RUNNING" and job.nodes == ("n2",)]
        site.client.cancel([job.job_id for job in others])
        assert site.running(number).nodes == ("n2",)
        site.wait(lambda: not fences(site) and not reservations())
        assert site.running(site.sbatch("-t60", "--gres=gpu:2")).nodes == ("n0",)
        stop(daemon)


@pytest.mark.long
def test_a_killed_tick_leaves_a_fence_that_ends_by_itself_and_the_job_starts(site: Site) -> None:
    with waits_behind_a_fence(site) as (daemon, number, fence):
        daemon.kill()
        daemon.wait()
        other = site.sbatch("-t60", "--gres=gpu:2", "--nice=100")
        site.until(number, lambda job: job.reason == "Resources")
        with contextlib.suppress(AssertionError):
            site.running(number)  # it takes longer than a test usually waits
        job = site.running(number)
        assert job.nodes == ("n0",) and fence.until_s - 1 <= job.start_s <= fence.until_s + LATE_S
        assert site.client.job(other).state == "PENDING"  # type: ignore[union-attr]
        site.wait(lambda: not reservations())
        assert fences(site)
        site.run(*REBALANCE, "--once", "--act")
        assert not fences(site)


def test_nobody_waits_where_limits_say_nothing(site: Site) -> None:
    """The lab's partition has no limit, and so have the jobs of others."""
    full, number = full_with_a_waiting_job(site, limit_min=0)
    with site.daemon(wait=True, wait_max_s=LONGEST_S, moves=False) as daemon:
        site.until(number, lambda job: job.exc_nodes == ("n0",))
        for other in full.values():  # one that ends soon is in the way of no wait: only the limits are
            if other != full["n0"]:
                test_rebalance.queue_of.updated(site.client, other, TimeLimit="UNLIMITED")
        site.client.cancel([full["n0"]])
        assert site.running(number).nodes == ("n0",)
        assert not fences(site) and not reservations()
        stop(daemon)


def test_without_rights_one_line_and_no_reservation(site: Site) -> None:
    """As an ordinary user: no fence is tried. And reservations of others stay, whatever their name."""
    full, number = full_with_a_waiting_job(site)
    site.client.fence("pal_wait_of_the_site", ["n3"], 3600.0, 60.0, "root")
    site.client.cancel([full["n0"]])
    site.env |= {"SLURM_PAL_REBALANCE_WAIT": "true"}
    said = subprocess.run(
        [*REBALANCE, "--mine", "--once", "--act"], env=site.env, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0 and said.stderr.count("rebalance.wait") == 1
    assert "may reserve nodes" in said.stderr
    site.running(number)
    assert [name_of(line) for line in reservations()] == ["pal_wait_of_the_site"]
    site.run(*REBALANCE, "--withdraw")
    assert [name_of(line) for line in reservations()] == ["pal_wait_of_the_site"]
