# SPDX-License-Identifier: MIT
"""Ticks that share out partitions, on a fake Slurm: no list outlives what it was set for, whatever fails."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_pal.allocation.linear import UnsolvedError
from slurm_pal.base.errors import SlurmError
from slurm_pal.decide.tick_lease import Sort
from slurm_pal.journal import story
from slurm_pal.partitions import plan as module
from slurm_pal.report import story as report_story
from slurm_pal.report import tick as report

from ...doubles.fake_partitions import PartedSlurm
from ...doubles.trials import trials
from . import test_tick

OWN = "slow,fast"
PARTS = {"slow": ["n0"], "fast": ["n1"]}
TABLE = "application,gpus,type,relative_speed\nsbatch,1,slow,1\nsbatch,1,fast,4\n"
BUSY = "Server thread count:  200\nAgent queue size:     0\n"


class Site(test_tick.Site):
    """A slow and a fast partition of one node each; all GPUs are as good."""

    def __init__(self, folder: Path, **given: object) -> None:
        super().__init__(folder)
        self.slurm = PartedSlurm(PARTS, lambda: self.now_s, gpus=2)
        table = folder / "t.csv"
        table.write_text(TABLE)
        self.set("rebalance", allocation="gavel:max-sum", throughputs=str(table), moves=False, **given)
        self.write_scores(dict.fromkeys(("n0", "n1"), 1.0))
        self.tick = self.new_tick()
        self.full = {name: self.submit("-w", name, "--gres=gpu:2") for name in ("n0", "n1")}

    def wanting(self) -> int:
        return self.submit("-p", OWN, "--gres=gpu:1", "--comment=pal:job=A")

    def list_of(self, number: int) -> str:
        assert isinstance(self.slurm, PartedSlurm)
        return self.slurm.list_of(self.job(number))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()
    made.log.close()


def until_given_back(site: Site, number: int, most: int = 400) -> float:
    """Ticks until the job has all its partitions again; how long it took, s."""
    begun_s = site.now_s
    for _ in range(most):
        site.run()
        if site.list_of(number) == OWN:
            return site.now_s - begun_s
    raise AssertionError(site.journal.leases(Sort.PARTITIONS))


def test_a_job_waits_for_the_fast_partition_until_that_no_longer_pays(site: Site) -> None:
    number = site.wanting()
    seen = site.run()
    assert seen.trouble == () and site.list_of(number) == "fast"
    for _ in range(3):
        site.run()
    assert site.journal.waited() == {}  # nothing is free elsewhere
    site.slurm.finish(site.full["n0"])
    waited_s = until_given_back(site, number)
    # An hour in the slow partition, a quarter of that in the fast one: half of the difference, and an interval.
    assert 1350 - 2 * 15 <= waited_s <= 1350 + 15
    assert site.job(number).state == "RUNNING" and list(site.job(number).placed) == ["n0"]
    assert site.journal.leases(Sort.PARTITIONS) == {}
    told = [event["what"] for event in story.events(site.job(number).admin_comment)]
    assert told == ["partition", "partition-clear"]
    texts = [event["text"] for event in report_story.of_journal(site.journal, number)]
    assert texts[0].startswith("chose fast of its partitions") and "gave it all its partitions back" in texts[1]


def test_a_job_that_finds_room_where_it_belongs_starts_there_with_its_node_named(site: Site) -> None:
    site.slurm.finish(site.full["n1"])
    site.submit("-w", "n1", "--gres=gpu:1", "-p", "fast")
    site.slurm.nodes["n1"].state = "DRAIN"  # what Slurm does while the tick looks
    number = site.wanting()
    site.slurm.nodes["n1"].state = "IDLE"
    site.run()
    assert site.job(number).state == "RUNNING" and list(site.job(number).placed) == ["n1"]


def test_advice_tells_slurm_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.act = False
    site.tick = site.new_tick()
    number = site.wanting()
    seen = site.run()
    assert [wish.action for wish in seen.decided.wishes if wish.sort is Sort.PARTITIONS] == ["partition"]
    assert "choose partition" in "\n".join(report.lines(seen)) and site.list_of(number) == OWN
    site.journal.close()


@pytest.mark.parametrize(
    "error", [UnsolvedError("no basis"), ZeroDivisionError("division by zero"), ValueError("nan"), OverflowError("exp")]
)
def test_a_solver_that_fails_ends_no_tick_and_keeps_no_list(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    number = site.wanting()
    site.run()
    assert site.list_of(number) == "fast"

    def fail(problem: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setitem(module.STEADY, "gavel:max-sum", fail)
        site.tick = site.new_tick()
        seen = site.run()
    assert site.list_of(number) == OWN and seen.decided.steered is not None
    assert len(seen.trouble) == 1 and seen.trouble[0].startswith(f"no partitions are shared out: {error}")


def test_while_slurm_is_busy_lists_still_end(site: Site) -> None:
    number = site.wanting()
    site.run()
    (lease,) = site.journal.leases(Sort.PARTITIONS).values()
    site.busy = BUSY
    seen = site.run(61.0)
    assert seen.paused and site.list_of(number) == "fast"  # it would wait there in any case
    site.run(lease.until_s - site.now_s + 10.0)
    assert site.list_of(number) == OWN and site.journal.leases(Sort.PARTITIONS) == {}


def test_while_nothing_can_be_decided_lists_still_end(site: Site) -> None:
    number = site.wanting()
    site.run()
    (lease,) = site.journal.leases(Sort.PARTITIONS).values()
    Path(site.config.snapshot_path).write_text("nothing")
    site.tick = site.new_tick()
    seen = site.run()
    assert seen.decided.steered is None and site.list_of(number) == "fast"
    site.run(lease.until_s - site.now_s + 10.0)
    assert site.list_of(number) == OWN and site.journal.leases(Sort.PARTITIONS) == {}


def test_a_pause_of_hours_counts_as_waited(site: Site) -> None:
    number = site.wanting()
    site.run()
    site.slurm.finish(site.full["n0"])
    site.run(3 * 3600.0)
    assert site.journal.waited()[number] == pytest.approx(3 * 3600.0)
    site.run()
    assert site.list_of(number) == OWN


def test_switched_off_and_stopped_no_list_stays(site: Site) -> None:
    number = site.wanting()
    site.run()
    assert site.tick.left() == (0, 1)
    assert site.tick.take_back_node_lists(site.now_s) == [] and site.list_of(number) == "fast"
    assert site.tick.take_back_lists(site.now_s) == [] and site.list_of(number) == OWN
    assert site.tick.left() == (0, 0)
    site.run()
    assert site.list_of(number) == "fast"
    site.set("rebalance", allocation="")
    site.tick = site.new_tick()
    site.run()
    assert site.list_of(number) == OWN


def test_an_order_that_came_through_unheard_is_taken_back_when_the_daemon_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = site.wanting()
    real = site.client.update_job

    def update(job_id: int, **fields: str) -> None:
        real(job_id, **fields)
        raise SlurmError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(site.client, "update_job", update)
        seen = site.run()
    assert site.list_of(number) == "fast" and any("stays as it is" in line for line in seen.trouble)
    assert site.journal.leases(Sort.PARTITIONS) == {}
    assert site.tick.take_back_lists(site.now_s) == [] and site.list_of(number) == OWN


def test_a_job_beyond_depth_has_its_own_list(site: Site) -> None:
    number = site.wanting()
    site.run()
    site.set("rebalance", depth=1)
    first = min(number, site.wanting())
    site.run()
    assert [site.list_of(one) for one in (first, first + 1)] == ["fast", OWN]


def test_the_user_has_the_last_word(site: Site) -> None:
    number = site.wanting()
    site.run()
    site.client.update_job(number, Partition="slow")
    for _ in range(3):
        site.run()
    assert site.list_of(number) == "slow" and site.journal.left_alone() == {number}
    assert site.journal.leases(Sort.PARTITIONS) == {}


def test_after_a_start_and_a_requeue(site: Site) -> None:
    number = site.wanting()
    site.run()
    site.slurm.finish(site.full["n1"])
    site.run()
    assert site.job(number).state == "RUNNING" and number in site.journal.leases(Sort.PARTITIONS)
    site.submit("-w", "n1", "--gres=gpu:2", "-p", "fast")
    site.client.requeue(number)
    site.set("rebalance", allocation="")
    site.tick = site.new_tick()
    site.run()
    site.run()
    assert site.list_of(number) == OWN and site.journal.leases(Sort.PARTITIONS) == {}


# -- whatever happens ------------------------------------------------------------------------

EVENTS = ("tick", "busy", "free slow", "free fast", "fill", "kill", "lost", "blind", "hold", "release")


@trials(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(st.sampled_from(EVENTS), max_size=25))
def test_at_the_end_every_job_has_its_own_list(tmp_path_factory: pytest.TempPathFactory, events: list[str]) -> None:
    """Kills, answers that get lost, and ticks that can decide nothing, in any order: what is ours ends."""
    site = Site(tmp_path_factory.mktemp("site"))
    numbers = [site.wanting() for _ in range(3)]
    ids = itertools.count(100)
    for event in events:
        _do(site, event, numbers, next(ids))
    site.busy = ""
    site.slurm.down = False
    site.write_scores(dict.fromkeys(("n0", "n1"), 1.0))
    site.tick = site.new_tick()
    site.run()
    site.tick.withdraw(site.now_s)
    for number in numbers:
        if site.job(number).state == "PENDING":
            assert site.list_of(number) == OWN, site.journal.leases(Sort.PARTITIONS)
            assert number not in site.journal.leases(Sort.PARTITIONS)
    assert site.journal.left_alone() == frozenset()
    site.journal.close()
    site.log.close()


def _do(site: Site, event: str, numbers: list[int], number: int) -> None:
    running = [job for job in site.slurm.jobs.values() if job.state == "RUNNING" and job.job_id not in numbers]
    if event in ("free slow", "free fast"):
        name = PARTS[event.partition(" ")[2]][0]
        for job in [job for job in running if name in job.placed][:1]:
            site.slurm.finish(job.job_id)
    elif event == "fill":
        for name, nodes in PARTS.items():
            site.submit("-p", name, "-w", nodes[0], "--gres=gpu:2")
    elif event == "kill":
        site.tick = site.new_tick()
    elif event == "lost":
        real = site.client.update_job

        def update(job_id: int, **fields: str) -> None:
            real(job_id, **fields)
            raise SlurmError("no answer")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site.client, "update_job", update)
            site.run()
    elif event == "blind":
        Path(site.config.snapshot_path).write_text("nothing")
        site.tick = site.new_tick()
        site.run()
        site.write_scores(dict.fromkeys(("n0", "n1"), 1.0))
    elif event in ("hold", "release"):
        site.slurm(["scontrol", "uhold" if event == "hold" else "release", str(numbers[0])], "")
    else:
        site.busy = BUSY if event == "busy" else ""
        site.run()


def test_words_without_the_list_they_tell_of() -> None:
    texts = [report_story._written({"at_s": 1.0, "what": what})["text"] for what in ("partition", "nodelist")]
    assert texts == ["chose some of its partitions", "named some nodes, whose GPUs were free"]
