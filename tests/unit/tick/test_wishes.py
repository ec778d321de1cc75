# SPDX-License-Identifier: MIT
"""Lists that were being changed when the process was killed or Slurm gave no answer: none is forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base.errors import NotNowError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal import story
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import open_journal
from slurm_pal.leases.pinned import pinned, remembered, take_back
from slurm_pal.partitions import sharing
from slurm_pal.pending.retarget import Wish, WishAction, over
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.tick import wishes
from slurm_pal.tick.role import Role
from slurm_pal.tick.wishes import Hand

from ...doubles.fake_partitions import PartedSlurm

NOW_S = 1_700_000_000.0
ROLE = Role("operator", "op", frozenset({"own", "others"}), ())
KEY = {"nodelist": "ReqNodeList", "exclude": "ExcNodeList"}
NAMED = TickLease(0, LeaseKind.NODELIST, "n1", "", NOW_S, NOW_S + 15, 0, "why")
OTHER = NAMED._replace(ours="n2")
KEPT_OFF = NAMED._replace(kind=LeaseKind.EXCLUDE, ours="n3")
MORE = KEPT_OFF._replace(ours="n[2-3]")
CHANGES = [(None, NAMED), (None, KEPT_OFF), (NAMED, OTHER), (NAMED, KEPT_OFF), (KEPT_OFF, MORE), (KEPT_OFF, NAMED)]


class Killed(BaseException):
    """The process is gone."""


class Site:
    """A job that waits on a full fake Slurm, and hands that may change it."""

    def __init__(self, path: Path, slurm: FakeSlurm | None = None, role: Role = ROLE) -> None:
        self.slurm, self.role = slurm or FakeSlurm([FakeNode(f"n{i}") for i in range(4)]), role
        self.client, self.journal = CliClient(self.slurm), open_journal(str(path / "journal.db"))
        for name in ("n0", "n1", "n2", "n3"):
            self.client.submit(["-w", name, "--gres=gpu:4"], "#!/bin/sh\n")
        self.job_id = self.client.submit(["--gres=gpu:1"], "#!/bin/sh\n")
        self.hand = self.started()

    def started(self) -> Hand:
        return Hand(self.client, self.journal, self.role, EventLog("/dev/null", echo=False))

    def job(self) -> SlurmJob:
        shown = self.client.job(self.job_id)
        assert shown is not None
        return shown

    def wish(self, lease: TickLease, before: TickLease | None = None) -> Wish:
        back = {KEY[before.kind]: before.own} if before else {}
        fields = back | {KEY[lease.kind]: lease.ours}
        return Wish(self.job_id, lease.kind, fields, lease._replace(job_id=self.job_id), False, "why")

    def carry_out(self, wish: Wish) -> list[str]:
        return self.hand.carry_out([wish], {self.job_id: self.job()}, NOW_S)

    def lists(self) -> tuple[str, str]:
        job = self.slurm.jobs[self.job_id]
        return job.req, job.exc

    def end(self) -> None:
        """As the last act of a daemon."""
        self.hand.settle([self.job()])
        jobs = {self.job_id: self.job()}
        self.hand.carry_out(over(self.journal.leases(), jobs.values(), (), 2.0**40, 3.0), jobs, NOW_S)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("done", [False, True])
def test_killed_between_journal_and_update(
    site: Site, monkeypatch: pytest.MonkeyPatch, before: TickLease | None, after: TickLease, done: bool
) -> None:
    if before:
        site.carry_out(site.wish(before))
    real = site.client.update_job

    def update(job_id: int, **fields: str) -> None:
        if done:
            real(job_id, **fields)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(site.client, "update_job", update)
        with pytest.raises(Killed):
            site.carry_out(site.wish(after, before))
    site.hand = site.started()
    site.end()
    assert site.lists() == ("", "") and not site.journal.leases() and not site.journal.left_alone()


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("done", [False, True])
def test_an_update_without_an_answer_may_have_come_through(
    site: Site, monkeypatch: pytest.MonkeyPatch, before: TickLease | None, after: TickLease, done: bool
) -> None:
    site.hand.settle([])
    if before:
        site.carry_out(site.wish(before))
    real = site.client.update_job

    def update(job_id: int, **fields: str) -> None:
        if done:
            real(job_id, **fields)
        raise SlurmError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(site.client, "update_job", update)
        assert site.carry_out(site.wish(after, before))
    assert site.hand.in_doubt
    site.end()
    assert site.lists() == ("", "") and not site.journal.leases() and not site.hand.in_doubt


def test_a_list_of_the_users_own_is_not_taken_for_ours(site: Site) -> None:
    site.carry_out(site.wish(NAMED))
    site.carry_out(site.wish(OTHER, NAMED))
    site.client.update_job(site.job_id, ReqNodeList="n3")
    site.hand = site.started()
    site.end()
    assert site.lists() == ("n3", "") and site.journal.left_alone() == {site.job_id}


# -- partitions ------------------------------------------------------------------------------

OWN = "slow,fast,other"
PARTS = {"slow": ["n0"], "fast": ["n1"], "other": ["n2", "n3"]}
UP = frozenset(PARTS)
FAST = TickLease(0, LeaseKind.PARTITION, "fast", OWN, NOW_S, NOW_S + 15, 0, "why")
SLOW = FAST._replace(ours="slow")
TWO = FAST._replace(ours="fast,other")
CHOICES = [(None, FAST), (None, TWO), (FAST, SLOW), (FAST, TWO), (TWO, FAST), (FAST, None)]


class PartedSite(Site):
    """The same job, which may wait in three partitions."""

    def __init__(self, path: Path, role: Role = ROLE) -> None:
        super().__init__(path, PartedSlurm(PARTS, lambda: NOW_S, gpus=4), role)

    def wish(self, lease: TickLease | None, before: TickLease | None = None) -> Wish:
        if lease is None:
            return Wish(
                self.job_id, WishAction.PARTITION_CLEAR, {"Partition": OWN}, None, False, "why", Sort.PARTITIONS
            )
        made, fields = lease._replace(job_id=self.job_id), {"Partition": lease.ours}
        return Wish(self.job_id, WishAction.PARTITION, fields, made, False, "why", Sort.PARTITIONS)

    def partition(self) -> str:
        return self.job().partition

    def leases(self) -> dict[int, TickLease]:
        return self.journal.leases(Sort.PARTITIONS)

    def end(self) -> None:
        self.hand.settle([self.job()])
        jobs = {self.job_id: self.job()}
        self.hand.carry_out(sharing.over(self.leases(), jobs.values(), UP, "off"), jobs, NOW_S)


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[PartedSite]:
    made = PartedSite(tmp_path)
    yield made
    made.journal.close()


def broken(site: PartedSite, error: BaseException, done: bool, monkeypatch: pytest.MonkeyPatch, wish: Wish) -> None:
    """The update of this wish comes through, or not, and nobody tells us."""
    real = site.client.update_job

    def update(job_id: int, **fields: str) -> None:
        if done:
            real(job_id, **fields)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(site.client, "update_job", update)
        site.carry_out(wish)


@pytest.mark.parametrize(("before", "after"), CHOICES)
@pytest.mark.parametrize("done", [False, True])
def test_partitions_when_killed_between_journal_and_update(
    parted: PartedSite, monkeypatch: pytest.MonkeyPatch, before: TickLease | None, after: TickLease | None, done: bool
) -> None:
    if before:
        parted.carry_out(parted.wish(before))
    with pytest.raises(Killed):
        broken(parted, Killed(), done, monkeypatch, parted.wish(after, before))
    parted.hand = parted.started()
    parted.end()
    assert parted.partition() == OWN and not parted.leases() and not parted.journal.left_alone()


@pytest.mark.parametrize(("before", "after"), CHOICES)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_partitions_when_an_update_without_an_answer_may_have_come_through(
    parted: PartedSite, monkeypatch: pytest.MonkeyPatch, before: TickLease | None, after: TickLease | None, done: bool,
    restarted: bool,
) -> None:  # fmt: skip
    parted.hand.settle([])
    if before:
        parted.carry_out(parted.wish(before))
    broken(parted, SlurmError("no answer"), done, monkeypatch, parted.wish(after, before))
    assert parted.hand.in_doubt == (after is not None)
    if restarted:
        parted.hand = parted.started()
    parted.end()
    assert parted.partition() == OWN and not parted.leases() and not parted.hand.in_doubt
    assert not parted.journal.left_alone()


def test_a_job_that_starts_before_its_doubt_is_settled_is_seen_when_it_waits_again(
    parted: PartedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running it shows one partition, whatever its list is."""
    parted.hand.settle([])
    broken(parted, SlurmError("no answer"), True, monkeypatch, parted.wish(FAST))
    parted.slurm.finish(2)
    assert (parted.job().state, parted.partition()) == ("RUNNING", "fast")
    parted.end()
    assert parted.hand.in_doubt and not parted.leases()
    parted.client.requeue(parted.job_id)
    parted.client.submit(["-w", "n1", "--gres=gpu:4"], "#!/bin/sh\n")
    assert (parted.job().state, parted.partition()) == ("PENDING", "fast")
    parted.end()
    assert parted.partition() == OWN and not parted.hand.in_doubt


def test_a_partition_that_its_user_chose_long_after_a_refusal_is_his(
    parted: PartedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(parted, SlurmError("no answer"), False, monkeypatch, parted.wish(FAST))
    parted.client.update_job(parted.job_id, Partition="fast")
    parted.journal.ticked(NOW_S + 3600)
    parted.hand = parted.started()
    parted.end()
    assert parted.partition() == "fast" and not parted.leases()


def test_a_list_that_slurm_refuses_leaves_the_one_before(parted: PartedSite) -> None:
    parted.hand.settle([])
    parted.carry_out(parted.wish(FAST))
    (line,) = parted.carry_out(parted.wish(FAST._replace(ours="nowhere"), FAST))
    assert line.startswith(f"the partition of job {parted.job_id} stays")
    assert parted.partition() == "fast" and parted.leases()[parted.job_id].ours == "fast"
    lease, why, _ = parted.journal.ended_leases(parted.job_id)[-1]
    assert lease.ours == "nowhere" and why.startswith("Slurm refused")
    parted.end()
    assert parted.partition() == OWN and not parted.leases()


@pytest.mark.parametrize("times", [1, len(wishes.AGAIN_S), 99])
@pytest.mark.parametrize("before", [None, SLOW])
def test_what_slurm_cannot_do_at_this_moment(
    parted: PartedSite, monkeypatch: pytest.MonkeyPatch, times: int, before: TickLease | None
) -> None:
    """It is tried again in a moment, then left to the next tick: no refusal, after which a job is left alone."""
    parted.hand.settle([])
    if before:
        parted.carry_out(parted.wish(before))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    real, left = parted.client.update_job, [times]

    def update(job_id: int, **fields: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise NotNowError("scontrol failed: Resource temporarily unavailable for job 5")
        real(job_id, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(parted.client, "update_job", update)
        assert parted.carry_out(parted.wish(FAST, before)) == []
    done = times <= len(wishes.AGAIN_S)
    assert sum(slept) == pytest.approx(sum(wishes.AGAIN_S[:times]))
    held = parted.leases().get(parted.job_id)
    wanted = FAST if done else before
    assert parted.partition() == (wanted.ours if wanted else OWN)
    assert (held.ours if held else None) == (wanted.ours if wanted else None)
    assert not parted.hand.in_doubt
    assert not any(why.startswith(wishes.REFUSED) for _, why, _ in parted.journal.ended_leases(parted.job_id))
    parted.end()
    assert parted.partition() == OWN and not parted.leases()


def test_partitions_that_somebody_changed_are_left_alone(parted: PartedSite) -> None:
    parted.carry_out(parted.wish(FAST))
    parted.client.update_job(parted.job_id, Partition="slow")
    parted.end()
    assert parted.partition() == "slow" and not parted.leases()
    assert parted.journal.left_alone() == {parted.job_id}


def test_a_lease_on_nodes_and_one_on_partitions_stand_side_by_side(parted: PartedSite) -> None:
    parted.carry_out(parted.wish(FAST))
    named = NAMED._replace(job_id=parted.job_id)
    parted.carry_out(Wish(parted.job_id, WishAction.NODELIST, {"ReqNodeList": "n1"}, named, False, "why"))
    assert parted.leases()[parted.job_id].ours == "fast" and parted.journal.leases()[parted.job_id].ours == "n1"
    parted.hand = parted.started()
    parted.end()
    assert parted.partition() == OWN and parted.lists() == ("n1", "") and parted.journal.leases() != {}
    Site.end(parted)
    assert parted.lists() == ("", "") and not parted.journal.leases()


def test_the_comment_tells_both_lists_of_one_tick(tmp_path: Path) -> None:
    site = PartedSite(tmp_path, ROLE._replace(may=frozenset({"own", "others", "admin-comment"})))
    named = NAMED._replace(job_id=site.job_id)
    wishes = [site.wish(FAST), Wish(site.job_id, WishAction.NODELIST, {"ReqNodeList": "n1"}, named, False, "why")]
    assert site.hand.carry_out(wishes, {site.job_id: site.job()}, NOW_S) == []
    told = story.events(site.slurm.jobs[site.job_id].admin_comment)
    assert [(event["what"], event["set"]) for event in told] == [("partition", "fast"), ("nodelist", "n1")]
    site.journal.close()


# -- fences: reservations, behind which a job waits ----------------------------------------------

FENCE = NAMED._replace(kind=LeaseKind.FENCE, ours="n[1-2]", until_s=NOW_S + 600)


class Fenced:
    """The client's part in fences: reservations that stand, and what Slurm says against one."""

    def __init__(self, site: Site) -> None:
        self.made: dict[str, tuple[tuple[str, ...], float, float, str]] = {}
        self.error: BaseException | None = None
        self.lost = False  # whether it is made all the same
        site.client.fence = self.fence  # type: ignore[method-assign]
        site.client.release = self.release  # type: ignore[method-assign]
        self._journal = site.journal

    def fence(self, name: str, nodes: tuple[str, ...], after_s: float, lasts_s: float, user: str) -> None:
        assert any(lease.reservation == name for lease in self._journal.leases(Sort.FENCES).values()), "journal first"
        if self.error is None or self.lost:
            self.made[name] = tuple(nodes), after_s, lasts_s, user
        if self.error is not None:
            raise self.error

    def release(self, name: str) -> None:
        self.made.pop(name, None)


def fence_wish(site: Site, action: WishAction = WishAction.FENCE) -> Wish:
    lease = FENCE._replace(job_id=site.job_id) if action is WishAction.FENCE else None
    return Wish(site.job_id, action, {}, lease, False, "why", Sort.FENCES)


def test_a_fence_is_journalled_set_and_taken_away(site: Site) -> None:
    slurm = Fenced(site)
    assert site.carry_out(fence_wish(site)) == []
    assert slurm.made == {f"pal_wait_{site.job_id}_{NOW_S:.0f}": (("n1", "n2"), 540.0, 60.0, "op")}
    assert site.journal.leases(Sort.FENCES).keys() == {site.job_id} and site.lists() == ("", "")
    assert site.carry_out(fence_wish(site, WishAction.FENCE_CLEAR)) == []
    assert not slurm.made and not site.journal.leases(Sort.FENCES)
    ((lease, why, _),) = site.journal.ended_leases(site.job_id)
    assert (lease.kind, why) == (LeaseKind.FENCE, "why")


@pytest.mark.parametrize("lost", [False, True])
def test_a_fence_that_slurm_refuses_or_does_not_confirm_leaves_nothing(site: Site, lost: bool) -> None:
    slurm = Fenced(site)
    slurm.error, slurm.lost = SlurmError("Access/permission denied"), lost
    (line,) = site.carry_out(fence_wish(site))
    assert line == f"job {site.job_id} does not wait for better GPUs, since no fence can be set: {slurm.error}"
    assert not slurm.made and not site.journal.leases(Sort.FENCES)


@pytest.mark.parametrize("done", [False, True])
def test_a_fence_whose_tick_was_killed_is_taken_away(site: Site, done: bool) -> None:
    slurm = Fenced(site)
    slurm.error, slurm.lost = Killed(), done
    with pytest.raises(Killed):
        site.carry_out(fence_wish(site))
    assert bool(slurm.made) is done
    known = remembered(site.journal)
    assert not pinned(site.client.jobs(), known, frozenset({"gpu"}), NOW_S)[0]  # it is no list on the job
    take_back(site.client, known, NOW_S)  # as the lease guard does
    assert not slurm.made
    slurm.error = None
    site.hand = site.started()
    assert site.carry_out(fence_wish(site, WishAction.FENCE_CLEAR)) == [] and not site.journal.leases(Sort.FENCES)
