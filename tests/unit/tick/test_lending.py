# SPDX-License-Identifier: MIT
"""Ticks that lend nodes of owners, on a fake Slurm: whatever fails, the guests' partition has its own nodes or a list
that the journal knows, and no job is lost or held."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError, SlurmError
from slurm_pal.base.hostlist import expand, fold
from slurm_pal.base.timing import Timing
from slurm_pal.journal import journal
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.leases import pinned
from slurm_pal.loans.terms import BY_PARTITION, Preemption
from slurm_pal.publisher.publication import Publisher
from slurm_pal.report import tick as report
from slurm_pal.slurm.client import Completed
from slurm_pal.tick.lending import Site as LoanSite
from slurm_pal.tick.role import LOANS, Role
from slurm_pal.tick.tick import Tick, TickResult

from ...doubles.fake_partitions import PartedSlurm
from ...doubles.trials import ALL as ALL_TRIALS
from . import test_tick

ALL = tuple(f"n{i}" for i in range(6))
THEIRS = ALL[2:]
WORDS = {"guest": "PriorityTier=1 PreemptMode=REQUEUE", "owner": "PriorityTier=10 PreemptMode=OFF"}
MAY = Role("slurm-user", "slurm", frozenset({*test_tick.ALL.may, LOANS}), ())
GOOD = LoanSite(Preemption(BY_PARTITION))
HOUR_S = 3600.0
WITH_CHECKPOINT = "pal:job=A;from=x;mov=1;app=1;ck=1"
WRITES = ("begin", "enter", "finish", "set_loan_list", "add_loan_order", "end_loan_list", "add_demand", "ticked")


WAYS = ("tick", "guard", "withdraw", "admin", "again")
"""What comes after a kill: a tick, the guard, --withdraw, a list of an administrator's, another kill."""


class Crash(BaseException):
    """The process is gone."""


class Site(test_tick.Site):
    """Six nodes, four of them an owner's; the guests' partition has all. Owners have needed nothing so far."""

    loans = GOOD

    def __init__(self, folder: Path, known: bool = True, **settings: object) -> None:
        super().__init__(folder, role=MAY)
        self.tick_s = 0.0
        self.slurm = PartedSlurm({"guest": ALL, "owner": THEIRS}, lambda: self.now_s, gpus=2, completing=1)
        self.slurm.words = dict(WORDS)
        self.set("rebalance", moves=False)
        self.set("loan", **{"owners": "owner", "guest": "guest", "headroom": 0.0, **settings})
        self.crash_at, self.crash_after, self.count = 0, False, 0
        if known:
            self.journal.add_demand("owner", {int(self.now_s // HOUR_S) - 1: 0.0}, 0)
        self.tick = self.new_tick()

    def _run(self, argv: Sequence[str], stdin: str) -> Completed:
        order = argv[0] == "scancel" or argv[1:2] in (["update"], ["requeue"], ["release"])
        return self._dying(lambda: super(Site, self)._run(argv, stdin)) if order else super()._run(argv, stdin)

    def _dying(self, call: Callable[[], object]) -> object:
        self.count += 1
        if self.count != self.crash_at:
            return call()
        if self.crash_after:
            call()
        raise Crash

    def new_tick(self) -> Tick:
        publisher = Publisher(self.config, self.client, stays=True)
        publisher.known_site(self.now_s)
        for name in WRITES:
            real = getattr(type(self.journal), name)

            def write(*values: object, real: Callable[..., object] = real) -> object:
                return self._dying(lambda: real(self.journal, *values))

            setattr(self.journal, name, write)
        timing = Timing(lambda: self.now_s, lambda pause_s: None)
        return Tick(
            self.config, self.client, self.counted, self.journal, self.role, publisher, self.log, act=self.act,
            timing=timing, site=self.loans,
        )  # fmt: skip

    def restart(self) -> None:
        """A new process, that nothing disturbs any more."""
        self.journal.close()
        self.crash_at = 0
        self.journal = open_journal(str(self.folder / "rebalance.db"))
        self.tick = self.new_tick()

    def guest(self, node: str, *words: str) -> int:
        """One that runs there, and may run elsewhere later."""
        number = self.submit("-p", "guest", "-w", node, "--gres=gpu:2", *words)
        self.job(number).req = ""
        return number

    def wanting(self, *words: str) -> int:
        """A job of the owner that Slurm has not started for a minute."""
        number = self.submit("-p", "owner", "--gres=gpu:2", *words)
        self.now_s += 60.0
        return number

    def listed(self) -> tuple[str, ...]:
        """The nodes of the guests' partition as they stand."""
        assert isinstance(self.slurm, PartedSlurm)
        return tuple(self.slurm.parts["guest"])

    def write_list(self, names: Sequence[str]) -> None:
        """As an administrator does, or slurmctld when it reads slurm.conf."""
        assert isinstance(self.slurm, PartedSlurm)
        self.slurm.parts = {**self.slurm.parts, "guest": tuple(names)}

    def through(self, ticks: int = 6, after_s: float = 60.0) -> TickResult:
        """Ticks, and the steps of moves between them."""
        for _ in range(ticks):
            seen = self.run(after_s)
            for _ in range(400):
                self.now_s += 0.2
                if not self.tick.advance(self.now_s):
                    break
        return seen


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()
    made.log.close()


def close(site: Site, changed: bool = True) -> None:
    """Two nodes of the owner are closed, since its job runs there."""
    number = site.submit("-p", "owner", "-N", "2", "--gres=gpu:2")
    assert site.job(number).state == "RUNNING"
    site.run()
    assert set(site.listed()) == ({*ALL} - set(site.job(number).placed) if changed else {*ALL})


# -- what happens -------------------------------------------------------------------------------


def test_while_all_is_open_nothing_is_set(site: Site) -> None:
    seen = site.run()
    assert seen.trouble == () and site.listed() == ALL and site.journal.loan_lists() == []
    (order,) = site.journal.loan_orders()
    assert order.due and (order.total, order.allowed, order.open) == (4, 4, "n[2-5]")
    site.run()
    assert len(site.journal.loan_orders()) == 1


def test_without_accounting_a_new_site_lends_from_the_second_tick_on(tmp_path: Path) -> None:
    site = Site(tmp_path, known=False)
    close(site, changed=False)
    (hour,) = site.journal.demand("owner", 0).items()
    assert hour == (int(site.now_s // HOUR_S), 2.0)
    site.run()
    assert site.listed() == ("n0", "n1", "n4", "n5")
    site.journal.close()
    site.log.close()


def test_nodes_are_closed_while_an_owner_uses_them_and_opened_by_the_next_order(site: Site) -> None:
    close(site)
    (listed,) = site.journal.loan_lists()
    assert expand(listed.own) == ALL and expand(listed.ours) == site.listed()
    site.slurm.finish(1)
    site.through(6)
    assert site.listed() == ("n0", "n1", "n4", "n5")  # two were needed in this hour
    assert site.tick.take_back_lists(site.now_s) == [] and site.listed() == ALL and site.journal.loan_lists() == []


def test_guests_leave_for_an_owner_that_waits_and_go_on_elsewhere(site: Site) -> None:
    guests = [site.guest(name, f"--comment={WITH_CHECKPOINT}") for name in THEIRS]
    owners = [site.wanting(), site.wanting()]
    seen = site.run()
    assert seen.lent is not None and len(seen.lent.leavers) == 2 and seen.trouble == ()
    leaving = [one.job.job_id for one in seen.lent.leavers]
    site.tick.advance(site.now_s + 1)
    for number in leaving:
        assert site.job(number).signals == ["USR1"] and site.job(number).restarts == 0
        site.job(number).comment += " pal:ack=0.1"
    site.see_through()
    assert all(site.job(owner).state == "RUNNING" for owner in owners)
    assert {number: list(site.job(number).placed) for number in leaving} == dict(
        zip(leaving, (["n0"], ["n1"]), strict=True)
    )
    assert [site.job(number).restarts for number in guests] == [int(number in leaving) for number in guests]
    assert {move.outcome for move in site.journal.reclaims()} == {"reclaimed"} and site.journal.moves() == []
    assert len([*report.lines(seen)]) > 3 and report.as_json(seen)["loans"]["leaving"][0]["checkpoint"]


def test_where_slurm_does_not_take_the_list_nobody_leaves_for_it(site: Site) -> None:
    guests = [site.guest(name) for name in THEIRS]
    site.wanting()
    real = site.slurm._scontrol

    def refuse(argv: list[str], stdin: str) -> Completed:
        if any(word.startswith("PartitionName=") for word in argv):
            return Completed(1, "", "slurm_update error: Invalid user id\n")
        return real(argv, stdin)

    site.slurm._scontrol = refuse  # type: ignore[method-assign]
    seen = site.run()
    (line,) = seen.trouble
    assert "partition guest keeps its nodes for now" in line and "Invalid user id" in line
    site.see_through() if site.journal.open_moves() else None
    assert [site.job(number).restarts for number in guests] == [0] * 4
    site.slurm._scontrol = real  # type: ignore[method-assign]
    site.run()
    site.see_through()
    assert sum(site.job(number).restarts for number in guests) == 1


def test_while_slurm_is_busy_nothing_is_changed(site: Site) -> None:
    guests = [site.guest(name) for name in THEIRS]
    site.wanting()
    site.busy = "Server thread count:  200\nAgent queue size:     0\n"
    assert site.run(61.0).paused and site.listed() == ALL
    assert all(site.job(number).restarts == 0 for number in guests)


def test_advice_changes_nothing(site: Site) -> None:
    site.act = False
    site.tick = site.new_tick()
    [site.guest(name) for name in THEIRS]
    site.wanting()
    seen = site.run()
    assert seen.lent is not None and seen.lent.leavers and site.listed() == ALL and not site.journal.loan_lists()
    assert "Loans: guest has" in "\n".join(report.lines(seen))


def test_a_move_that_was_planned_in_the_same_tick_gives_way(site: Site) -> None:
    guests = [site.guest(name, "--comment=pal:job=A;from=x;mov=1;app=1") for name in THEIRS]
    site.set("rebalance", moves=True, minimum_s=0.0, move_cost_s=0.0, lost_work_s=0.0)
    site.write_scores({name: 1.0 if name in ("n0", "n1") else 2.0 for name in ALL})
    site.wanting()
    site.tick = site.new_tick()
    seen = site.run()
    assert not [line for line in seen.trouble if "open move" in line]
    site.see_through()
    assert max(site.job(number).restarts for number in guests) == 1


# -- jobs that the list does not fit --------------------------------------------------------------


def test_a_job_that_names_a_node_of_the_owner_is_not_held_while_that_is_closed(site: Site) -> None:
    close(site)
    for name in site.listed():
        site.guest(name)
    waits = site.submit("-p", "guest", "-w", "n4", "--gres=gpu:2")
    owner = site.wanting()
    site.through(2)
    assert site.job(owner).state == "RUNNING" and {"n0", "n1", "n4"} == {*site.listed()}
    assert (site.job(waits).state, site.job(waits).reason) == ("PENDING", "Resources")


def test_a_job_that_slurm_holds_because_of_our_list_waits_again(site: Site) -> None:
    close(site)
    closed = next(name for name in THEIRS if name not in site.listed())
    late = site.submit("-p", "guest", "-x", "n0", "--gres=gpu:2", "--hold")
    site.write_list(("n0",))  # as between two looks
    site.slurm(["scontrol", "release", str(late)], "")
    site.slurm(["scontrol", "ping"], "")
    assert site.job(late).reason == "BadConstraints"
    site.write_list([name for name in ALL if name != closed])
    site.journal.set_loan_list(site.journal.loan_lists()[0]._replace(before=fold(list(site.listed()))))
    site.run()
    assert site.job(late).state == "RUNNING"


@pytest.mark.parametrize("way", ["guard", "withdraw"])
def test_a_job_that_slurm_holds_is_free_once_the_list_is_taken_back(site: Site, way: str) -> None:
    close(site)
    closed = next(name for name in THEIRS if name not in site.listed())
    held = site.submit("-p", "guest", "--gres=gpu:2", "--hold")
    other = site.submit("-p", "owner", "--gres=gpu:2", "--hold")
    site.job(held).req, site.job(other).reason = closed, "BadConstraints"
    site.slurm(["scontrol", "release", str(held)], "")
    assert site.job(held).reason == "BadConstraints"
    if way == "guard":
        ended = pinned.take_back(site.client, pinned.remembered(site.journal), site.now_s)
        assert ended.trouble == ()
    else:
        assert site.tick.withdraw(site.now_s) == []
    assert site.listed() == ALL and site.job(held).reason == "Resources"
    assert site.job(other).reason == "BadConstraints"  # it is in no partition of ours


# -- what is amiss -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lambda s: s.set("loan", owners="nobody"), "no partition 'nobody'"),
        (lambda s: s.set("loan", guest="nobody"), "no partition 'nobody'"),
        (lambda s: s.set("loan", guest=""), "loan.guest is not"),
        (lambda s: s.set("loan", guest="owner"), "both in loan.owners and loan.guest"),
        (lambda s: s.slurm.words.update(guest="PriorityTier=1 PreemptMode=OFF"), "PreemptMode=OFF"),
        (lambda s: s.slurm.words.update(owner="PriorityTier=1 PreemptMode=OFF"), "PriorityTier=1"),
        (lambda s: setattr(s.slurm, "parts", {**s.slurm.parts, "owner": ()}), "owner partition owner has no nodes"),
        (lambda s: setattr(s, "loans", LoanSite(Preemption("preempt/none"))), "PreemptType=preempt/none"),
        (lambda s: setattr(s, "loans", LoanSite(Preemption(BY_PARTITION, "ALL"))), "EnforcePartLimits=ALL"),
    ],
)  # fmt: skip
def test_a_site_that_is_not_set_up_is_one_line_and_gets_its_list_back(
    site: Site, breaks: Callable[[Site], object], words: str
) -> None:
    close(site)
    breaks(site)
    site.tick = site.new_tick()
    guests = [site.guest(name) for name in site.listed()]
    seen = site.run()
    (line,) = seen.trouble
    assert line.startswith("nothing is lent: ") and words in line
    assert site.listed() == ALL and site.journal.loan_lists() == [] and site.run().trouble == (line,)
    assert all(site.job(number).state == "RUNNING" for number in guests)


def test_without_owners_in_the_settings_the_list_goes_back(site: Site) -> None:
    close(site)
    site.set("loan", owners="")
    site.tick = site.new_tick()
    assert site.run().trouble == () and site.listed() == ALL and site.journal.loan_lists() == []
    assert site.run().lent is None


def test_who_may_not_change_partitions_lends_nothing(site: Site) -> None:
    site.role = Role("operator", "op", frozenset({"own", "others"}), ())
    site.tick = Tick(
        site.config, site.client, site.counted, site.journal, site.role, None, site.log, act=True, site=GOOD
    )  # fmt: skip
    site.wanting("-N", "9")
    assert site.run().lent is None and site.listed() == ALL


def test_a_database_that_is_away_is_one_line_and_is_asked_again(site: Site) -> None:
    asked = []

    def history(partitions: Sequence[str], since_s: float, hour_s: float) -> dict[int, float]:
        asked.append(site.now_s)
        if len(asked) < 3:
            raise SlurmError("sacct failed: Connection refused")
        return {int(site.now_s // HOUR_S) - k: 1.0 for k in range(200)}

    site.loans = LoanSite(GOOD.slurm, history)
    site.tick = site.new_tick()
    seen = site.run()
    assert seen.trouble == ("the owners' past demand is not known yet: sacct failed: Connection refused",)
    assert seen.lent is not None and seen.lent.order is not None  # the tick goes on with what is known
    for _ in range(10):
        site.run(60.0)
    assert len(asked) == 3 and asked[1] - asked[0] <= 360 and len(site.journal.demand("owner", 0)) > 190
    assert site.journal.demand("owner", 0)[int(asked[-1] // HOUR_S)] == 1.0  # though none is needed at this moment
    for _ in range(4):
        site.run(2000.0)
    assert len(asked) == 3


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0, -40 * 86400.0, 40 * 86400.0])
def test_a_clock_that_jumps_loses_no_list_and_orders_go_on(site: Site, jump_s: float) -> None:
    close(site)
    before = len(site.journal.loan_orders())
    site.now_s += jump_s
    guests = [site.guest(name) for name in site.listed()]
    for _ in range(9):
        assert site.run().trouble == ()
    assert len(site.journal.loan_orders()) - before <= 2  # and not one in each tick
    assert {*site.listed()} & {*THEIRS} <= {"n4", "n5"} and {"n0", "n1"} <= {*site.listed()}
    assert all(site.job(number).state == "RUNNING" for number in guests)
    for one in site.journal.loan_lists():
        assert one.until_s <= site.now_s + 901 or jump_s > 0 or not site.journal.loan_orders(site.now_s - 300)
    assert site.tick.take_back_lists(site.now_s) == [] and site.listed() == ALL


def test_a_node_that_goes_down_while_it_is_lent(site: Site) -> None:
    site.guest("n4")
    site.run()
    site.slurm.nodes["n4"].state = "DOWN"
    site.job(1).state, site.job(1).placed = "PENDING", {}
    assert site.run().trouble == () and site.listed() == ("n0", "n1", "n2", "n3", "n5")
    site.slurm.nodes["n4"].state = "IDLE"
    site.through(6)
    assert site.listed() == ALL and site.job(1).state == "RUNNING"


def test_what_slurmctld_forgets_is_set_again(site: Site) -> None:
    close(site)
    closed = site.listed()
    site.run()
    site.slurm.finish(1)
    site.submit("-p", "owner", "-w", "n2,n3", "-N", "2", "--gres=gpu:2")
    site.through(1)
    for _ in range(3):
        site.write_list(ALL)  # scontrol reconfigure
        site.run()
        assert site.listed() == closed and expand(site.journal.loan_lists()[0].own) == ALL


def test_a_list_that_an_administrator_has_changed_stays(site: Site) -> None:
    close(site)
    site.write_list(("n0", "n4"))
    site.run()
    assert site.listed() == ("n0", "n4") and site.tick.take_back_lists(site.now_s) == []
    assert site.listed() == ("n0", "n4")


def test_a_journal_of_an_older_release_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Site(tmp_path)
    close(made)
    made.journal.close()
    os.unlink(tmp_path / "rebalance.db")
    with monkeypatch.context() as older:
        older.setattr(journal, "MIGRATIONS", journal.MIGRATIONS[:4])
        old = open_journal(str(tmp_path / "rebalance.db"))
    (found,) = old._connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'loan_lists'").fetchone()
    assert not found
    old.close()
    with pytest.raises(DataError, match="older"):
        open_journal(str(tmp_path / "rebalance.db"), write=False)
    made.journal = open_journal(str(tmp_path / "rebalance.db"))
    assert made.journal.loan_lists() == [] and made.journal.reclaims() == []
    made.tick = made.new_tick()
    assert made.run().trouble == ()
    made.journal.close()
    made.log.close()


def test_the_guard_ends_a_list_that_no_tick_renews(site: Site) -> None:
    close(site)
    (listed,) = site.journal.loan_lists()
    known = pinned.remembered(site.journal)
    assert pinned.due(known, listed.until_s + 1, 3.0).lists == []
    assert [one.guest for one in pinned.due(known, listed.until_s + 3, 3.0).lists] == ["guest"]


def test_where_nothing_can_be_decided_a_list_stands_for_its_time_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(site)
    closed = site.listed()

    def fail(*given: object) -> None:
        raise ValueError("nothing")

    monkeypatch.setattr("slurm_pal.tick.lending.lend", fail)
    seen = site.run(800.0)
    assert seen.lent is None and len(seen.trouble) == 1 and "ValueError" in seen.trouble[0]
    assert site.listed() == closed
    site.run(101.0)
    assert site.listed() == ALL and site.journal.loan_lists() == []


# -- kills ---------------------------------------------------------------------------------------


def story(site: Site) -> None:
    """Guests everywhere, an owner that wants two nodes, and none later."""
    for name in (*THEIRS, "n1"):
        site.guest(name, f"--comment={WITH_CHECKPOINT} pal:ack=0.1" if name in ("n3", "n5") else "--comment=x")
    owners = [site.wanting(), site.wanting()]
    site.through(2)
    for number in owners:
        if site.job(number).state == "RUNNING":
            site.slurm.finish(number)
    site.through(2, 310.0)


def writes(folder: Path) -> int:
    site = Site(folder)
    site.count = 0
    story(site)
    site.journal.close()
    site.log.close()
    return site.count


def check(site: Site, whose: Sequence[str] = ALL) -> None:
    listed = site.journal.loan_lists()
    if listed:
        assert [one.stands(site.listed()) or site.listed() == tuple(whose) for one in listed] == [True]
        assert expand(listed[0].own) == tuple(whose)
    else:
        assert site.listed() == tuple(whose)
    reclaims: list[Move] = site.journal.reclaims()
    for job in site.slurm.jobs.values():
        assert job.state in ("PENDING", "RUNNING", "COMPLETED", "COMPLETING")
        assert not job.reason.startswith(("JobHeld", "job_requeued", "BadConstraints"))
        assert job.restarts <= len([move for move in reclaims if move.job_id == job.job_id])


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> int:
    return writes(tmp_path_factory.mktemp("count"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_order_and_every_write(
    tmp_path_factory: pytest.TempPathFactory, count: int, after: bool, way: str
) -> None:
    """Each point by one of the ways to recover; with `make test-long` by all."""
    assert count > 20
    for at in range(1 if ALL_TRIALS else 1 + WAYS.index(way), count + 1, 1 if ALL_TRIALS else len(WAYS)):
        site = Site(tmp_path_factory.mktemp(f"k{at}"))
        site.count, site.crash_at, site.crash_after = 0, at, after
        with pytest.raises(Crash):
            story(site)
        check_crashed(site, way, at)
        site.journal.close()
        site.log.close()


def check_crashed(site: Site, way: str, at: int) -> None:
    site.restart()
    check(site)
    whose: Sequence[str] = ALL
    if way == "guard":
        assert pinned.take_back(site.client, pinned.remembered(site.journal), site.now_s).trouble == ()
        assert site.listed() == ALL
    elif way == "admin":
        whose = ("n0", "n2", "n3", "n5")
        site.write_list(whose)
    elif way == "again":  # killed once more, at the next order or write of another process
        site.crash_at = site.count + 1 + at % 3
        try:
            site.run(60.0)
        except Crash:
            site.restart()
            check(site)
        site.crash_at = 0
    if way != "withdraw":
        owner = site.submit("-p", "owner", "--gres=gpu:2")
        site.through(3, 310.0)
        check(site, whose)
        assert site.job(owner).state == "RUNNING"
    for _ in range(400):
        site.now_s += 0.2
        if not site.tick.advance(site.now_s):
            break
    assert site.tick.withdraw(site.now_s) == [] and site.tick.left()[0] == 0 and site.journal.loan_lists() == []
    assert tuple(site.listed()) == tuple(whose) and site.journal.loan_lists() == []
    site.now_s += 500.0
    site.slurm(["scontrol", "ping"], "")
    check(site, whose)
    waiting = [job.job_id for job in site.slurm.jobs.values() if job.state == "PENDING" and job.reason != "Resources"]
    assert waiting == []
