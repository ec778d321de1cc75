# SPDX-License-Identifier: MIT
"""Moves on the fake Slurm: what each step does, and that no crash, user or fault leaves a job lost or pinned."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base import marks
from slurm_pal.base.errors import DataError, NotNowError, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import comment
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal.journal import Move, open_journal
from slurm_pal.moves import steps
from slurm_pal.moves.mover import Mover, StepLimits
from slurm_pal.moves.steps import LATER, Act, Order, act
from slurm_pal.slurm import parse
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.fake import FakeNode, FakeSlurm

from ...doubles.trials import trials

START_S = 1_700_000_000.0
LIMITS = StepLimits()
SCRIPT = "#!/bin/sh\nsleep 1\n"
JOB = SlurmJob(
    7, "RUNNING", "None", "ann", "train", "gpu", {"n0": (0,)}, ("n0",), (), (), 0.0, 0.0, 0.0, None, 0, "", 1
)  # fmt: skip
MOVE = Move(
    1, 7, "ann", START_S, 0, "n0:0", ("n1",), "n1:0", "", 1.3, 1.0, 900.0, 60.0, False, "", "planned", START_S
)  # fmt: skip
PENDING = JOB._replace(state="PENDING", reason="BeginTime", restarts=1, nodes=(), gpus={})
OURS = PENDING._replace(req_nodes=("n1",), reason="Resources")


class Crash(BaseException):
    """The process is gone."""


class Site:
    """A fake cluster, its clock, a journal, and a mover that can be killed."""

    def __init__(self, folder: Path, completing: int = 1) -> None:
        self.now_s = START_S
        self.slurm = FakeSlurm([FakeNode(f"n{i}", gpus=2) for i in range(3)], clock=self.clock, completing=completing)
        self.client = CliClient(self._run)
        self.path = str(folder / "rebalance.db")
        self.crash_at = 0  # the number of the order or of the journal's write, 0: never
        self.crash_after = False  # once it is done, not before
        self.count = 0
        self.disk_full = False
        self.notes: list[tuple[str, dict[str, object]]] = []
        self.open()

    def clock(self) -> float:
        return self.now_s

    def open(self) -> None:
        self.journal = open_journal(self.path)
        for name in ("begin", "enter", "finish", "lease", "end_lease"):
            setattr(self.journal, name, self._guarded(getattr(self.journal, name)))
        self.mover = Mover(self.journal, self.client, LIMITS, lambda what, more: self.notes.append((what, more)))

    def _guarded(self, method: Callable[..., object]) -> Callable[..., object]:
        def write(*values: object) -> object:
            if self.disk_full:
                raise DataError("the disk is full")
            return self._dying(lambda: method(*values))

        return write

    def _run(self, argv: list[str], stdin: str) -> object:
        order = argv[0] == "scancel" or argv[1:2] in (["update"], ["requeue"])
        return self._dying(lambda: self.slurm(argv, stdin)) if order else self.slurm(argv, stdin)

    def _dying(self, call: Callable[[], object]) -> object:
        self.count += 1
        if self.count != self.crash_at:
            return call()
        if self.crash_after:
            call()
        raise Crash

    def submit(self, *words: str) -> int:
        return CliClient(self.slurm).submit([*words], SCRIPT)

    def move(self, job_id: int, **changes: object) -> Move:
        restarts = self.slurm.jobs[job_id].restarts
        made = MOVE._replace(move_id=0, job_id=job_id, made_s=self.now_s, step_s=self.now_s, restarts=restarts)
        return made._replace(**changes)  # type: ignore[arg-type]

    def start(self, job_id: int, **changes: object) -> None:
        self.mover.start([self.move(job_id, **changes)])

    def run(self, looks: int = 1000, dt_s: float = 0.25) -> None:
        """Looks until no move is under way."""
        for _ in range(looks):
            self.now_s += dt_s
            if not self.mover.step(self.now_s):
                return
        raise AssertionError(self.journal.open_moves())

    def restart(self) -> None:
        """A new process, that nothing disturbs any more."""
        self.journal.close()
        self.crash_at, self.disk_full, self.slurm.down = 0, False, False
        self.open()
        self.mover.recover(self.now_s)

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """A tick in which something fails, or the process is killed and started anew."""
        try:
            yield
        except (SlurmError, DataError):
            pass
        except Crash:
            self.restart()

    def close(self) -> None:
        self.journal.close()

    def outcome(self, job_id: int) -> str:
        return self.journal.moves(job_id=job_id)[-1].outcome


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


# -- decisions --------------------------------------------------------------------------------

HELD = PENDING._replace(reason="JobHeldUser", priority=0)
ACKED = JOB._replace(comment="mine pal:ack=0.1 x")
LATE_S = 10_000.0
LEASE = TickLease(7, LeaseKind.NODELIST, "n2", "n0", 0.0, 0.0, 0, "")
EXCLUDE = LEASE._replace(kind=LeaseKind.EXCLUDE, ours="n1", own="n2")
FREED = {"ReqNodeList": ""}
NOW = {"StartTime": "now"}
AIMED = {"ReqNodeList": "n1", "StartTime": LATER}


@pytest.mark.parametrize(
    ("step", "job", "age_s", "wanted"),
    [
        ("planned", JOB, 0, Act("requeueing", "requeue")),
        ("planned", JOB, 11, Act(outcome="abandoned")),
        ("planned", JOB._replace(restarts=1), 0, Act(outcome="abandoned")),
        ("planned", JOB._replace(state="COMPLETING"), 0, Act(outcome="abandoned")),
        ("planned", JOB._replace(state="COMPLETED"), 0, Act(outcome="ended")),
        ("planned", None, 0, Act(outcome="ended")),
        ("planned", JOB, -10, Act("planned")),
        ("signalling", JOB, 1, Act()),
        ("signalling", JOB._replace(comment="pal:ack=0.0"), 1, Act()),  # the one that stood there before
        ("signalling", ACKED, 1, Act("requeueing", "requeue")),
        ("signalling", ACKED, 121, Act(outcome="abandoned")),  # work has been done since
        ("signalling", JOB._replace(comment="pal:ack=0.1;failed=1"), 1, Act(outcome="abandoned")),
        ("signalling", JOB, 121, Act(outcome="abandoned")),
        ("signalling", ACKED._replace(restarts=1), 1, Act(outcome="abandoned")),
        ("requeueing", JOB, 1, Act(order=Order.REQUEUE)),
        ("requeueing", JOB, 3, Act(outcome="abandoned")),
        ("requeueing", JOB._replace(state="COMPLETING"), 3, Act()),
        ("requeueing", JOB._replace(state="COMPLETING", restarts=1), 3, Act()),
        ("requeueing", JOB._replace(state="REQUEUED", restarts=1), 3, Act()),  # still on its nodes
        ("requeueing", JOB._replace(state="COMPLETING", restarts=1), LATE_S, Act()),
        ("requeueing", JOB._replace(state="UNKNOWN", restarts=1), 3, Act()),
        ("targeting", JOB._replace(state="UNKNOWN", restarts=1), LATE_S, Act(outcome="waiting")),
        ("requeueing", PENDING, 3, Act("targeting", "update", AIMED)),
        ("requeueing", PENDING._replace(req_nodes=("n2",)), 3, Act("freeing")),  # his own, since
        ("requeueing", HELD, 3, Act(outcome="waiting")),
        ("requeueing", JOB._replace(restarts=1), 3, Act(outcome="elsewhere")),
        ("requeueing", JOB._replace(state="CANCELLED", restarts=1), 3, Act(outcome="ended")),
        ("targeting", PENDING, 1, Act(order=Order.UPDATE, fields=AIMED)),
        ("targeting", PENDING, 6, Act("freeing")),
        ("targeting", OURS, 1, Act()),
        ("targeting", OURS, 4, Act()),
        ("targeting", OURS, 6, Act("clearing", "update", FREED)),
        ("targeting", OURS._replace(reason="BeginTime"), 6, Act("clearing", "update", FREED)),  # a time of his own
        ("targeting", HELD._replace(req_nodes=("n1",)), 1, Act("clearing", "update", FREED)),
        ("targeting", OURS._replace(req_nodes=("n2",)), 1, Act("clearing")),
        ("targeting", JOB._replace(restarts=1, nodes=("n1",)), 1, Act(outcome="moved")),
        ("targeting", JOB._replace(restarts=1, nodes=("n1", "n2")), 1, Act(outcome="elsewhere")),
        ("clearing", OURS, 1, Act(order=Order.UPDATE, fields=FREED)),
        ("clearing", OURS._replace(req_nodes=()), 1, Act()),
        ("clearing", PENDING, 1, Act()),
        ("freeing", PENDING, 1, Act()),  # it might start where it has just ended
        ("freeing", PENDING, 2, Act(order=Order.UPDATE, fields=NOW)),
        ("freeing", PENDING, 4, Act()),
        ("clearing", OURS, 61, Act(outcome="waiting")),
        ("clearing", OURS._replace(req_nodes=()), 61, Act(outcome="waiting")),
        ("clearing", JOB._replace(restarts=1), 1, Act(outcome="elsewhere")),
        ("clearing", JOB._replace(restarts=1, nodes=("n1",)), 1, Act(outcome="moved")),
        ("a step of a later release", OURS, 1, Act(order=Order.UPDATE, fields=FREED)),
    ],
)
def test_what_comes_next(step: str, job: SlurmJob | None, age_s: float, wanted: Act) -> None:
    move = MOVE._replace(step=step, ack="0.0")
    found = act(move, job, START_S + age_s, LIMITS)
    assert found._replace(detail="") == wanted and bool(found.detail) >= (wanted.outcome == "abandoned")


def test_a_job_that_may_be_running_by_now_is_told_no_nodes() -> None:
    """Slurm would take the list for a resize if it had started on more nodes."""
    move = MOVE._replace(source="n0:0,1", step="requeueing")
    assert act(move, PENDING, START_S + 1, LIMITS).step == "targeting"
    assert act(move, PENDING._replace(reason="Resources"), START_S + 1, LIMITS) == Act("clearing")
    assert act(move._replace(step="targeting"), PENDING._replace(reason="None"), START_S + 1, LIMITS) == Act()


def test_no_start_within_the_second_in_which_it_was_ended() -> None:
    """slurmd refuses a credential as old as a kill on that node, and slurmctld then ends the job for good."""
    move, listed = MOVE._replace(step="requeueing"), {"ReqNodeList": "n1"}
    assert act(move, PENDING, START_S + 1, LIMITS) == Act("targeting", "update", listed | {"StartTime": "now+2"})
    move = move._replace(step="targeting")
    for age_s in (0.5, 1.3, 4.0):  # that update, with its time, is in force
        assert act(move, OURS._replace(reason="BeginTime"), START_S + age_s, LIMITS) == Act()
    for age_s, when in ((0.5, "now+2"), (1.3, "now")):  # it was not given
        assert act(move, PENDING, START_S + age_s, LIMITS).fields == listed | {"StartTime": when}


def test_a_checkpoint_comes_first() -> None:
    assert act(MOVE._replace(checkpoint=True), JOB, START_S, LIMITS) == Act("signalling", "signal")


@pytest.mark.parametrize(
    ("job", "lease", "fields"),
    [
        (PENDING._replace(req_nodes=("n2",)), LEASE, {}),
        (PENDING._replace(req_nodes=("n0",), exc_nodes=("n1",)), EXCLUDE, {"ExcNodeList": "n2"}),
        (PENDING._replace(req_nodes=("n0",), exc_nodes=("n2",)), EXCLUDE, {}),
        (PENDING._replace(req_nodes=("n2",), comment=comment(60, "n0", "", "nodelist", "n2")), None, {}),
        (PENDING._replace(req_nodes=("n0",), exc_nodes=("n1",), comment=comment(60, "", "", "exclude", "n1")), None,
         {"ExcNodeList": ""}),
    ],
)  # fmt: skip
def test_lists_of_ours_from_before_make_way(job: SlurmJob, lease: TickLease | None, fields: dict[str, str]) -> None:
    move = MOVE._replace(source="n9:0", step="requeueing", own_req="n0")
    wanted = {"ReqNodeList": "n[0-1]", "StartTime": LATER} | fields
    assert act(move, job, START_S, LIMITS, lease) == Act("targeting", "update", wanted)
    old = job.req_nodes == ("n2",)
    assert steps.back(move, job, lease, START_S) == NOW | ({"ReqNodeList": "n0"} if old else {})


def test_the_delay_is_seen_before_slurm_gives_it_as_the_reason() -> None:
    fresh = PENDING._replace(reason="None", eligible_s=parse.unix_s("2030-01-01T00:00:00"))
    assert steps.back(MOVE, fresh, None, START_S) == NOW and steps.back(MOVE, fresh, None, 2e9) == {}
    assert steps.back(MOVE, fresh._replace(restarts=0), None, START_S) == {}


def test_a_list_that_stays_on_a_job_is_remembered() -> None:
    runs = JOB._replace(restarts=1, nodes=("n1",), req_nodes=("n1",))
    left = steps.lease_after(MOVE, runs, None, START_S + 5)
    assert left is not None and left[:6] == (7, "move", "n1", "", START_S + 5, START_S + 5) and left.restarts == 1
    assert steps.lease_after(MOVE, runs._replace(state="FAILED"), left, START_S) is None
    assert steps.lease_after(MOVE._replace(own_req="n1"), runs, None, START_S) is None
    elsewhere = JOB._replace(restarts=1, exc_nodes=("n1",))
    assert steps.lease_after(MOVE, elsewhere, EXCLUDE, START_S) is EXCLUDE
    assert steps.lease_after(MOVE, elsewhere._replace(exc_nodes=("n2",)), EXCLUDE, START_S) is None
    assert steps.lease_after(MOVE, elsewhere._replace(req_nodes=("n2",)), LEASE, START_S) is LEASE


def test_a_target_is_looked_at_before_a_requeue(site: Site) -> None:
    site.submit("-w", "n1", "--gres=gpu:1")

    def why(**changes: object) -> str:
        overview: Overview = site.client.overview()
        return steps.unwilling(MOVE._replace(**changes), overview)  # type: ignore[arg-type]

    assert why(job_id=99, target_gpus="n1:1") == "" and "taken" in why(job_id=99, target_gpus="n2:0 n1:0,1")
    assert why(job_id=1) == "" and "n9" in why(target=("n1", "n9"))
    site.slurm.nodes["n2"].state = "DRAIN"
    assert "n2 takes no jobs" in why(target=("n2",), target_gpus="n2:0")


# -- whole moves ------------------------------------------------------------------------------


def test_a_move(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number)
    calls = len(site.slurm.calls)
    site.run()
    job = site.slurm.jobs[number]
    assert (job.state, job.placed, job.restarts) == ("RUNNING", {"n1": [0]}, 1)
    assert site.outcome(number) == "moved"
    assert [step for step, _ in site.journal.steps_of(1)] == ["planned", "requeueing", "targeting"]
    assert [what for what, _ in site.notes] == ["move", "step", "step", "moved"]
    orders = [call for call in site.slurm.calls[calls:] if call[0] == "scontrol" and call[1] != "-d"]
    assert [call[1] for call in orders] == ["requeue", "update"] and "Incomplete" in orders[0]
    lease = site.journal.leases()[number]
    assert (lease.kind, lease.ours, lease.own, lease.restarts) == ("move", "n1", "", 1)


def test_a_second_move_forgets_the_list_of_the_first(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number)
    site.run()
    site.start(number, target=("n2",), target_gpus="n2:0", source="n1:0")
    site.run()
    assert site.slurm.jobs[number].placed == {"n2": [0]} and site.journal.leases()[number].ours == "n2"


def test_moves_under_way_share_one_query(site: Site) -> None:
    first, second = site.submit("--gres=gpu:1"), site.submit("--gres=gpu:1")
    site.mover.start([site.move(first), site.move(second, target=("n2",), target_gpus="n2:0")])
    calls = len(site.slurm.calls)
    site.now_s += 1
    assert site.mover.step(site.now_s)
    assert [call[:2] for call in site.slurm.calls[calls:]].count(["scontrol", "-d"]) == 1
    site.run()
    assert {site.outcome(first), site.outcome(second)} == {"moved"}


def test_the_checkpoint_is_waited_for(site: Site) -> None:
    number = site.submit("--gres=gpu:1", "--comment=mine pal:ack=0.4")
    job = site.slurm.jobs[number]
    site.start(number, checkpoint=True, ack="0.4")
    for _ in range(40):
        site.now_s += 0.25
        assert site.mover.step(site.now_s)
    assert job.signals == ["USR1"] and (job.state, job.restarts) == ("RUNNING", 0)
    job.comment = marks.put(job.comment, {"ack": "0.5"}) or ""
    site.run()
    assert site.outcome(number) == "moved" and job.signals == ["USR1"]


def test_a_signal_that_may_not_have_been_sent_is_sent_by_the_next_process(site: Site) -> None:
    """Else the job would be waited for until the limit, and stay where it is."""
    number = site.submit("--gres=gpu:1")
    job = site.slurm.jobs[number]
    site.start(number, checkpoint=True)
    site.crash_at, site.crash_after = site.count + 2, False  # after the journal's entry, before the signal
    with site.surviving():
        site.run()
    assert job.signals == ["USR1"]
    job.comment = marks.put(job.comment, {"ack": "0.1"}) or ""
    site.restart()
    site.run()
    assert site.outcome(number) == "moved" and job.signals == ["USR1"]


def test_a_target_that_was_taken_during_the_checkpoint_costs_no_restart(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number, checkpoint=True)
    site.now_s += 1
    site.mover.step(site.now_s)
    site.submit("-w", "n1", "--gres=gpu:2")
    site.slurm.jobs[number].comment = "pal:ack=0.1"
    site.run()
    assert site.outcome(number) == "abandoned" and site.slurm.jobs[number].restarts == 0


def test_a_signal_that_slurm_refuses_ends_the_move(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CliClient, job_id: int, name: str) -> None:
        raise SlurmError("not now")

    number = site.submit("--gres=gpu:1")
    site.start(number, checkpoint=True)
    monkeypatch.setattr(CliClient, "signal_batch", refuse)
    site.run(looks=1)
    assert site.journal.moves()[-1][17:19] == ("abandoned", "no signal; Slurm refused an order: not now")


@pytest.mark.parametrize("times", [1, 6])
def test_an_update_that_slurm_cannot_do_at_this_moment_is_given_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It is no refusal, after which an order waits."""
    real, left = CliClient.update_job, [times]

    def update(self: CliClient, job_id: int, **fields: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise NotNowError("Resource temporarily unavailable")
        real(self, job_id, **fields)

    number = site.submit("--gres=gpu:1")
    site.start(number)
    monkeypatch.setattr(CliClient, "update_job", update)
    site.run()
    assert site.outcome(number) == "moved" and "refused" not in [what for what, _ in site.notes]


def test_a_job_that_may_not_be_requeued(site: Site) -> None:
    number = site.submit("--gres=gpu:1", "--no-requeue")
    site.start(number)
    site.run()
    (move,) = site.journal.moves()
    assert move.outcome == "abandoned" and "Requested operation is presently disabled" in move.detail
    assert sum(what == "refused" for what, _ in site.notes) < 8  # not at every look
    assert site.slurm.jobs[number].restarts == 0


def test_a_job_that_has_just_ended_does_not_run_twice(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number)
    look = site.client.jobs_of([number])
    site.slurm.finish(number)
    site.client.jobs_of = lambda job_ids: look  # type: ignore[method-assign]
    site.now_s += 1
    site.mover.step(site.now_s)
    del site.client.jobs_of
    site.run()
    assert site.outcome(number) == "ended" and site.slurm.jobs[number].restarts == 0


@pytest.mark.parametrize("how", ["drained", "taken", "gone"])
def test_an_unwilling_target(site: Site, how: str) -> None:
    number = site.submit("--gres=gpu:1")
    if how == "taken":
        site.submit("-w", "n1", "--gres=gpu:2")
    elif how == "drained":
        site.slurm.nodes["n1"].state = "DRAIN"
    else:
        del site.slurm.nodes["n1"]
    site.start(number)
    site.run()
    job = site.slurm.jobs[number]
    assert (site.outcome(number), job.state, job.req, list(job.placed)) == ("elsewhere", "RUNNING", "", ["n0"])
    assert not site.journal.leases() and site.now_s - START_S < 10


def test_a_job_that_finds_no_room_waits_without_our_list(site: Site) -> None:
    number = site.submit("--gres=gpu:2")
    site.start(number)
    site.mover.step(site.now_s)
    for node in ("n0", "n1", "n2"):
        site.submit("-w", node, "--gres=gpu:2", "--exclusive")
    site.run()
    job = site.slurm.jobs[number]
    assert (site.outcome(number), job.state, job.req) == ("waiting", "PENDING", "")


@pytest.mark.parametrize("looks", [1, 2, 3, 4])
@pytest.mark.parametrize("word", ["uhold", "hold"])
def test_a_hold_by_somebody_else_stays(site: Site, looks: int, word: str) -> None:
    number = site.submit("--gres=gpu:1")
    site.slurm.nodes["n1"].state = "DRAIN"
    site.start(number)
    for _ in range(looks):
        site.now_s += 0.25
        site.mover.step(site.now_s)
    held = site.slurm(["scontrol", word, str(number)], "").returncode == 0
    site.run()
    job = site.slurm.jobs[number]
    assert held and (site.outcome(number), job.state, job.req) == ("waiting", "PENDING", "")
    assert job.reason.startswith("JobHeld")


def test_a_controller_that_is_away_is_waited_for(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number)
    site.mover.step(site.now_s)
    site.slurm.down = True
    for _ in range(3):
        site.now_s += 1000
        with pytest.raises(SlurmError):
            site.mover.step(site.now_s)
    site.slurm.down = False
    site.run()
    assert site.outcome(number) in ("moved", "elsewhere") and site.slurm.jobs[number].state == "RUNNING"


def test_without_a_journal_nothing_is_begun_and_nothing_stays(site: Site) -> None:
    number, other = site.submit("--gres=gpu:1"), site.submit("--gres=gpu:1")
    site.start(number)
    site.mover.step(site.now_s)
    site.slurm.nodes["n1"].state = "DRAIN"
    for _ in range(3):
        site.now_s += 0.25
        site.mover.step(site.now_s)
    assert site.slurm.jobs[number].req == "n1"
    site.disk_full = True
    with pytest.raises(DataError):
        site.start(other)
    for _ in range(40):
        site.now_s += 0.25
        try:
            site.mover.step(site.now_s)
        except DataError:
            continue
    job = site.slurm.jobs[number]
    assert (job.state, job.req, site.slurm.jobs[other].restarts) == ("RUNNING", "", 0)
    site.disk_full = False
    site.run()
    assert site.outcome(number) == "elsewhere"


# -- crashes ----------------------------------------------------------------------------------

WRITES = 7  # of the journal and to Slurm in a plain move: begin, enter, requeue, enter, update, lease, finish


@pytest.mark.parametrize(("at", "after"), list(itertools.product(range(1, WRITES + 1), (False, True))))
@pytest.mark.parametrize("away_s", [0.1, 30.0, 4000.0])
def test_killed_at_every_point(site: Site, at: int, after: bool, away_s: float) -> None:
    number = site.submit("--gres=gpu:1")
    killed(site, number, at, after, away_s)
    check(site, number, set())


def killed(site: Site, number: int, at: int, after: bool, away_s: float) -> None:
    """The mover dies at its `at`-th write, before or after it, and another takes over `away_s` later: the job runs."""
    site.crash_at, site.crash_after = at, after
    with pytest.raises(Crash):
        site.start(number)
        site.run()
    site.now_s += away_s
    site.restart()
    site.run()
    assert site.slurm.jobs[number].state == "RUNNING"
    if away_s < 1 and (at, after) != (1, False):
        assert site.outcome(number) == "moved" and site.slurm.jobs[number].restarts == 1


def check(site: Site, number: int, done: set[str]) -> None:
    """Whatever happened: the job is where Slurm and its user want it."""
    job, leases = site.slurm.jobs[number], site.journal.leases()
    assert not site.journal.open_moves()
    if done & {"cancel", "finish"}:
        assert job.state in ("CANCELLED", "COMPLETED")
        return
    assert job.state in ("RUNNING", "PENDING")
    if not done & {"hold", "admin-hold"}:
        assert not job.reason.startswith(("JobHeld", "job_requeued"))
    if not done & {"hold", "admin-hold", "requeue", "earlier"}:  # once the clock is set back, any moment lies ahead
        assert job.reason != "BeginTime"
    if job.req == "n1":  # ours, and the tick knows
        assert leases[number].kind == "move" and leases[number].own == ""
    else:
        assert number not in leases or done & {"edit", "unedit"}  # after the move, on a job requeued once more
        assert job.req == "" or "edit" in done


ORDERS = {
    "cancel": "scancel {0}",
    "hold": "scontrol uhold {0}",
    "admin-hold": "scontrol hold {0}",
    "release": "scontrol release {0}",
    "edit": "scontrol update JobId={0} ReqNodeList=n2",
    "unedit": "scontrol update JobId={0} ReqNodeList=",
    "requeue": "scontrol requeue Incomplete {0}",
    "begin": "scontrol update JobId={0} StartTime=now",
    "drain": "scontrol update NodeName=n1 State=DRAIN",
    "resume": "scontrol update NodeName=n1 State=RESUME",
    "take": "sbatch -w n1 --gres=gpu:2 /dev/stdin",
}
"""What users and administrators do meanwhile; Slurm may refuse it."""
FAULTS = ("finish", "ack", "failed", "away", "back", "full", "room", "later", "earlier", "crash")


def interfere(site: Site, number: int, what: str) -> bool:
    """Something that somebody else does, or a fault; whether Slurm took it."""
    job = site.slurm.jobs[number]
    if what in ORDERS:
        argv = ORDERS[what].format(number).split()
        return site.slurm(argv[:-1] if argv[-1] == "/dev/stdin" else argv, SCRIPT).returncode == 0
    if what == "finish":
        if job.state != "RUNNING":
            return False
        site.slurm.finish(number)
    elif what in ("ack", "failed"):
        job.comment = f"mine pal:ack={job.restarts}.7{';failed=1' if what == 'failed' else ''}"
    elif what in ("away", "back"):
        site.slurm.down = what == "away"
    elif what in ("full", "room"):
        site.disk_full = what == "full"
    elif what in ("later", "earlier"):
        site.now_s += 3600.0 if what == "later" else -3600.0
    else:
        site.restart()
    return True


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp(f"m{next(numbers)}")


class Storm(NamedTuple):
    """Where the tick is killed, and what others do meanwhile."""

    crash_at: int
    crash_after: bool
    checkpoint: bool
    completing: int
    dt_s: float
    events: list[tuple[int, str]]


def storms(crash_at_most: int, *what: str) -> st.SearchStrategy[Storm]:
    return st.builds(
        Storm, st.integers(0, crash_at_most), st.booleans(), st.booleans(), st.integers(0, 3),
        st.sampled_from([0.1, 0.4, 2.0]), st.lists(st.tuples(st.integers(0, 25), st.sampled_from(what)), max_size=4),
    )  # fmt: skip


def ride_out(site: Site, storm: Storm, meddle: Callable[[Site, int, str], bool], *words: str) -> tuple[int, set[str]]:
    """Move a job through it; the job, and what others have done that Slurm took."""
    number = site.submit("--gres=gpu:1", *words)
    site.crash_at, site.crash_after = storm.crash_at, storm.crash_after
    done: set[str] = set()
    with site.surviving():
        site.start(number, checkpoint=storm.checkpoint)
    for look in range(26):
        site.now_s += storm.dt_s
        done |= {what for at, what in storm.events if at == look and meddle(site, number, what)}
        with site.surviving():
            site.mover.step(site.now_s)
    site.restart()
    site.run()
    for _ in range(storm.completing):  # a run that somebody else has stopped goes on to end
        site.client.jobs()
    return number, done


@trials(300)
@given(storms(12, *ORDERS, *FAULTS))
def test_whatever_happens_no_job_is_lost_held_or_pinned(folders: Callable[[], Path], storm: Storm) -> None:
    with contextlib.closing(Site(folders(), storm.completing)) as site:
        check(site, *ride_out(site, storm, interfere))


# -- a guest that leaves for owners ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "detail"),
    [
        ("pal:ack=0.1", "it runs on n2"),
        ("", "it runs on n2; no checkpoint came"),
        ("pal:ack=0.0", "it runs on n2; no checkpoint came"),  # the one that stood there before
        ("pal:ack=0.1;failed=1", "it runs on n2; no checkpoint came"),
    ],
)
def test_the_end_of_a_reclaim_says_whether_a_checkpoint_came(comment: str, detail: str) -> None:
    leaves = MOVE._replace(owners="owner", target=(), target_gpus="", checkpoint=True, ack="0.0", step="freeing")
    job = JOB._replace(restarts=1, nodes=("n2",), comment=comment)
    assert act(leaves, job, START_S + 2, LIMITS) == Act(outcome="reclaimed", detail=detail)
    assert act(leaves._replace(checkpoint=False), job, START_S + 2, LIMITS).detail == "it runs on n2"


def test_a_reclaim_is_noted_in_words_of_its_own(site: Site) -> None:
    job_id = site.submit("--gres=gpu:1")
    left = {"owners": "owner", "target": (), "target_gpus": "", "ran_s": 50.0, "cost_s": 30.0, "checkpoint": True}
    site.start(job_id, **left)
    site.run()
    (begun, first), *_, (what, last) = site.notes
    assert (begun, first["to"], first["lost_s"], first["checkpoint"]) == ("reclaim", "owner", 30.0, 1)
    assert (what, last["lost_s"], last["ran_s"], last["checkpoint"]) == ("reclaimed", 50.0, 50.0, 0), last
    assert "gain_s" not in last
    (stored,) = site.journal.reclaims()
    assert stored.outcome == "reclaimed" and stored.ran_s == 50.0 and site.journal.moves() == []
    other = site.submit("--gres=gpu:1")
    site.start(other, **left, restarts=7)
    site.run()
    assert site.notes[-1][0] == "reclaim-stayed" and site.notes[-1][1]["lost_s"] == 0.0


PINNED = PENDING._replace(
    req_nodes=("n0",), comment="pal:lease=60;req=;exc=;act=nodelist;set=n0", eligible_s=START_S + 60, partition="guest"
)


@pytest.mark.parametrize(
    ("job", "lease", "step", "age_s", "wanted"),
    [
        (PINNED, None, "requeueing", 0.5, Act("freeing", "update", {"ReqNodeList": ""})),  # palsub's list
        (PINNED, None, "freeing", 0.5, Act(order=Order.UPDATE, fields={"ReqNodeList": ""})),  # it was not taken
        (PINNED, None, "freeing", 2, Act(order=Order.UPDATE, fields={"ReqNodeList": ""} | NOW)),
        (PINNED._replace(req_nodes=()), None, "freeing", 2, Act(order=Order.UPDATE, fields=NOW)),
        (PINNED._replace(comment=""), None, "requeueing", 0.5, Act("freeing")),  # somebody else's since
        (PINNED._replace(req_nodes=(), exc_nodes=("n2",), comment="pal:lease=60;req=;exc=;act=exclude;set=n2"), None,
         "requeueing", 0.5, Act("freeing", "update", {"ExcNodeList": ""})),
        (PINNED._replace(comment=""), LEASE._replace(ours="n0", own=""), "requeueing", 0.5,
         Act("freeing", "update", {"ReqNodeList": ""})),  # the tick's own
        (PINNED._replace(priority=0, reason="BadConstraints", eligible_s=0.0), None, "freeing", 2,
         Act(order=Order.UPDATE, fields={"ReqNodeList": ""})),
        (PINNED._replace(eligible_s=0.0, reason="Resources", req_nodes=()), None, "freeing", 2,
         Act(outcome="reclaimed", detail="it waits: Resources")),
        (PINNED, None, "freeing", 100, Act(outcome="reclaimed", detail="it waits: BeginTime")),
    ],
)  # fmt: skip
def test_a_guest_that_leaves_bears_no_list_of_ours(
    job: SlurmJob, lease: TickLease | None, step: str, age_s: float, wanted: Act
) -> None:
    leaves = MOVE._replace(owners="owner", target=(), target_gpus="", step=step)
    assert act(leaves, job, START_S + age_s, LIMITS, lease) == wanted


def test_a_guest_that_leaves_keeps_its_users_own_list() -> None:
    own = PINNED._replace(req_nodes=("n0", "n1"), comment="")
    leaves = MOVE._replace(owners="owner", target=(), target_gpus="", step="requeueing", own_req="n[0-1]")
    assert act(leaves, own, START_S + 1, LIMITS) == Act("freeing")
