"""Node lists that were being changed when the process was killed or Slurm gave no answer: none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.errors import SlurmError
from slurm_pal.jobs import SlurmJob
from slurm_pal.rebalance.event_log import EventLog
from slurm_pal.rebalance.journal import TickLease, open_journal
from slurm_pal.rebalance.retarget import Wish, over
from slurm_pal.rebalance.role import Role
from slurm_pal.rebalance.wishes import Hand
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import FakeNode, FakeSlurm

NOW_S = 1_700_000_000.0
ROLE = Role("operator", "op", frozenset({"own", "others"}), ())
KEY = {"nodelist": "ReqNodeList", "exclude": "ExcNodeList"}
NAMED = TickLease(0, "nodelist", "n1", "", NOW_S, NOW_S + 15, 0, "why")
OTHER = NAMED._replace(ours="n2")
KEPT_OFF = NAMED._replace(kind="exclude", ours="n3")
MORE = KEPT_OFF._replace(ours="n[2-3]")
CHANGES = [(None, NAMED), (None, KEPT_OFF), (NAMED, OTHER), (NAMED, KEPT_OFF), (KEPT_OFF, MORE), (KEPT_OFF, NAMED)]


class Killed(BaseException):
    """The process is gone."""


class Site:
    """A job that waits on a full fake Slurm, and hands that may change it."""

    def __init__(self, path: Path) -> None:
        self.slurm = FakeSlurm([FakeNode(f"n{i}") for i in range(4)])
        self.client, self.journal = CliClient(self.slurm), open_journal(str(path / "journal.db"))
        for name in ("n0", "n1", "n2", "n3"):
            self.client.submit(["-w", name, "--gres=gpu:4"], "#!/bin/sh\n")
        self.job_id = self.client.submit(["--gres=gpu:1"], "#!/bin/sh\n")
        self.hand = self.started()

    def started(self) -> Hand:
        return Hand(self.client, self.journal, ROLE, EventLog("/dev/null", echo=False))

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
        self.hand.carry_out(over(self.journal.leases(), jobs.values(), 2.0**40, 3.0), jobs, NOW_S)


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
