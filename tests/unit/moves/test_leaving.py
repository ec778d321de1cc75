# SPDX-License-Identifier: MIT
"""Jobs that leave since owners want their nodes back, on the fake Slurm: stopped once at most, never lost or held."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal.journal import Move
from slurm_pal.moves import steps
from slurm_pal.moves.steps import SETTLED_S, Act, Order, act
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.fake import REQUEUE_DELAY_S

from ...doubles.trials import trials
from . import test_mover
from .test_mover import (
    ACKED,
    FAULTS,
    HELD,
    JOB,
    LIMITS,
    MOVE,
    ORDERS,
    PENDING,
    START_S,
    Storm,
    interfere,
    ride_out,
    storms,
)  # fmt: skip

LEAVING = MOVE._replace(owners="owner", target=(), target_gpus="", gain_s=0.0, cost_s=0.0, ack="0.0")
NOW = {"StartTime": "now"}
GRACE_S = LIMITS.grace_s


class Site(test_mover.Site):
    def move(self, job_id: int, **changes: object) -> Move:
        mine = {"owners": "owner", "target": (), "target_gpus": ""}
        return super().move(job_id, **{**mine, **changes})

    def outcome(self, job_id: int) -> str:
        return self.journal.reclaims(job_id=job_id)[-1].outcome

    def requeues(self) -> int:
        return sum(call[1:2] == ["requeue"] for call in self.slurm.calls)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


@pytest.mark.parametrize(
    ("step", "job", "age_s", "wanted"),
    [
        ("planned", JOB, 0, Act("requeueing", "requeue")),
        ("planned", JOB, 11, Act(outcome="abandoned")),
        ("planned", JOB._replace(restarts=1), 0, Act(outcome="abandoned")),
        ("planned", None, 0, Act(outcome="ended")),
        ("signalling", JOB, 1, Act()),
        ("signalling", JOB._replace(comment="pal:ack=0.0"), 1, Act()),  # the one that stood there before
        ("signalling", ACKED, 1, Act("requeueing", "requeue")),
        ("signalling", JOB._replace(comment="pal:ack=0.1;failed=1"), 1, Act("requeueing", "requeue")),
        ("signalling", JOB, GRACE_S, Act()),
        ("signalling", JOB, GRACE_S + 1, Act("requeueing", "requeue")),  # it never came
        ("signalling", JOB._replace(restarts=1), 1, Act(outcome="abandoned")),  # Slurm was faster
        ("signalling", JOB._replace(state="COMPLETING"), 1, Act(outcome="abandoned")),
        ("signalling", JOB._replace(state="COMPLETED"), 1, Act(outcome="ended")),
        ("requeueing", JOB, 1, Act(order=Order.REQUEUE)),
        ("requeueing", JOB, 3, Act(outcome="abandoned")),
        ("requeueing", JOB._replace(state="COMPLETING"), 3, Act()),
        ("requeueing", JOB._replace(state="COMPLETING", restarts=1), 9999, Act()),  # KillWait, an epilog
        ("requeueing", PENDING, 3, Act("freeing")),
        ("requeueing", PENDING._replace(reason="Resources"), 3, Act(outcome="reclaimed")),
        ("requeueing", HELD, 3, Act(outcome="reclaimed")),
        ("requeueing", JOB._replace(restarts=1, nodes=("n2",)), 3, Act(outcome="reclaimed")),
        ("requeueing", JOB._replace(state="UNKNOWN", restarts=1), 3, Act()),
        ("requeueing", JOB._replace(state="UNKNOWN", restarts=1), 61, Act(outcome="reclaimed")),
        ("freeing", PENDING, 0.1, Act()),
        ("freeing", PENDING, SETTLED_S, Act(order=Order.UPDATE, fields=NOW)),
        ("freeing", PENDING, 60, Act(order=Order.UPDATE, fields=NOW)),  # by a process that was away
        ("freeing", PENDING, 61, Act(outcome="reclaimed")),
        ("freeing", HELD, SETTLED_S, Act(outcome="reclaimed")),
        ("freeing", PENDING._replace(reason="None"), 0.1, Act(outcome="reclaimed")),
        ("freeing", JOB._replace(restarts=2, nodes=("n2",)), 0.1, Act(outcome="reclaimed")),
        ("a step of a later release", PENDING, 0.1, Act("freeing")),
        ("planned", JOB, -10, Act("planned")),
        ("signalling", JOB, -10, Act("signalling")),
        ("freeing", PENDING, -10, Act("freeing")),
    ],
)
def test_what_comes_next(step: str, job: SlurmJob | None, age_s: float, wanted: Act) -> None:
    found = act(LEAVING._replace(step=step), job, START_S + age_s, LIMITS)
    assert found._replace(detail="") == wanted and bool(found.detail) >= bool(wanted.outcome)


def test_no_list_of_its_user_is_touched() -> None:
    assert steps.back(LEAVING, PENDING._replace(req_nodes=("n1",)), None, START_S) == {}


def test_a_guest_without_a_checkpoint_leaves_at_once_and_starts_elsewhere(site: Site) -> None:
    number = site.submit("--gres=gpu:2")
    site.slurm.nodes["n0"].full = True  # its owner has taken it
    site.start(number)
    site.run()
    job = site.slurm.jobs[number]
    assert (job.state, list(job.placed), job.restarts, job.req) == ("RUNNING", ["n1"], 1, "")
    assert site.outcome(number) == "reclaimed" and site.now_s - START_S < 5 < REQUEUE_DELAY_S
    (move,) = site.journal.reclaims()
    assert [step for step, _ in site.journal.steps_of(move.move_id)] == ["planned", "requeueing", "freeing"]
    assert site.journal.moves() == [] and not site.journal.leases()
    assert [what for what, _ in site.notes] == ["reclaim", "step", "step", "reclaimed"]


@pytest.mark.parametrize(("word", "most_s"), [("pal:ack=0.1", 10.0), ("pal:ack=0.1;failed=1", 10.0), ("", 70.0)])
def test_a_checkpoint_is_waited_for_no_longer_than_the_grace_time(site: Site, word: str, most_s: float) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number, checkpoint=True)
    for _ in range(8):
        site.now_s += 0.25
        site.mover.step(site.now_s)
    job = site.slurm.jobs[number]
    assert job.signals == ["USR1"] and job.restarts == 0
    job.comment = word
    site.run()
    assert (site.outcome(number), job.restarts, job.state) == ("reclaimed", 1, "RUNNING")
    assert site.now_s - START_S < most_s and site.requeues() == 1


def test_a_signal_that_slurm_refuses_does_not_keep_the_owner_waiting(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: CliClient, job_id: int, name: str) -> None:
        raise SlurmError("not now")

    monkeypatch.setattr(CliClient, "signal_batch", refuse)
    number = site.submit("--gres=gpu:1")
    site.start(number, checkpoint=True)
    site.run()
    assert site.outcome(number) == "reclaimed" and site.slurm.jobs[number].restarts == 1
    assert GRACE_S < site.now_s - START_S < GRACE_S + 10


def test_a_requeue_that_slurm_refuses_ends_it_and_the_job_runs_on(site: Site) -> None:
    number = site.submit("--gres=gpu:1", "--no-requeue")
    site.start(number)
    site.run()
    (move,) = site.journal.reclaims()
    assert move.outcome == "abandoned" and "Requested operation is presently disabled" in move.detail
    assert site.slurm.jobs[number].state == "RUNNING" and site.requeues() < 8


@pytest.mark.parametrize("checkpoint", [False, True])
def test_slurm_was_faster(site: Site, checkpoint: bool) -> None:
    """Its own preemption has requeued the job: we do not do it once more."""
    number = site.submit("--gres=gpu:1")
    site.start(number, checkpoint=checkpoint)
    if checkpoint:
        site.now_s += 0.25
        site.mover.step(site.now_s)
    site.slurm(["scontrol", "requeue", "Incomplete", str(number)], "")
    site.run()
    job = site.slurm.jobs[number]
    assert (site.outcome(number), job.restarts, site.requeues()) == ("abandoned", 1, 1)


def test_a_hold_by_somebody_else_stays(site: Site) -> None:
    number = site.submit("--gres=gpu:1")
    site.start(number)
    for _ in range(2):
        site.now_s += 0.25
        site.mover.step(site.now_s)
    assert site.slurm(["scontrol", "uhold", str(number)], "").returncode == 0
    site.run()
    job = site.slurm.jobs[number]
    assert (site.outcome(number), job.state, job.reason) == ("reclaimed", "PENDING", "JobHeldUser")


WRITES = 7  # in a plain one: begin, enter, requeue, enter, update, finish, and one more


@pytest.mark.parametrize(("at", "after"), list(itertools.product(range(1, WRITES), (False, True))))
@pytest.mark.parametrize("away_s", [0.1, 30.0, 4000.0])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_killed_at_every_point(site: Site, at: int, after: bool, away_s: float, checkpoint: bool) -> None:
    number = site.submit("--gres=gpu:1")
    if checkpoint:
        site.slurm.jobs[number].comment = "pal:ack=0.5"
    site.crash_at, site.crash_after = at, after
    with pytest.raises(test_mover.Crash):
        site.start(number, checkpoint=checkpoint, ack="")
        site.run()
    site.now_s += away_s
    site.restart()
    site.run()
    check(site, number, set())
    assert site.slurm.jobs[number].state == "RUNNING" and site.requeues() <= 1


def check(site: Site, number: int, done: set[str], requeued: int = 0) -> None:
    """`requeued`: how often others may have requeued it."""
    job = site.slurm.jobs[number]
    assert not site.journal.open_moves() and not site.journal.leases()
    if done & {"cancel", "finish"}:
        assert job.state in ("CANCELLED", "COMPLETED")
        return
    assert job.state in ("RUNNING", "PENDING")
    if not done & {"hold", "admin-hold"}:
        assert not job.reason.startswith(("JobHeld", "job_requeued"))
    if "edit" not in done:
        assert job.req == ""
    stopped = [call for call in site.slurm.calls if call[1:2] == ["requeue"]]
    assert job.restarts <= 1 + requeued and len(stopped) >= job.restarts


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp(f"o{next(numbers)}")


@trials(300)
@given(storms(12, *ORDERS, *FAULTS))
def test_whatever_happens_no_job_is_lost_or_held(folders: Callable[[], Path], storm: Storm) -> None:
    with contextlib.closing(Site(folders(), storm.completing)) as site:
        requeued = sum(what == "requeue" for _, what in storm.events)
        check(site, *ride_out(site, storm, interfere), requeued)
