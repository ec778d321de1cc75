# SPDX-License-Identifier: MIT
"""Moves into another partition on the fake Slurm: no crash, user or fault leaves a job pinned to it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.journal.journal import Move
from slurm_pal.moves import steps
from slurm_pal.moves.steps import LATER, Act, Order, act

from ...doubles.fake_partitions import PartedSlurm
from ...doubles.trials import trials
from . import test_mover
from .test_mover import FAULTS, LIMITS, MOVE, ORDERS, PENDING, SCRIPT, START_S, Storm, interfere, ride_out, storms

OWN, OLD = "slow,fast,other", "slow,other"
PARTS = {"slow": ["n0"], "fast": ["n1"], "other": ["n2"]}
CROSSING = MOVE._replace(partition="fast", own_partitions=OWN)
HERE = PENDING._replace(partition=OWN)
THERE = PENDING._replace(partition="fast", req_nodes=("n1",), reason="Resources")
AIMED = {"ReqNodeList": "n1", "Partition": "fast", "StartTime": LATER}
FREED = {"ReqNodeList": "", "Partition": OWN}


class Site(test_mover.Site):
    """The same with a partition for each node."""

    def __init__(self, folder: Path, completing: int = 1) -> None:
        super().__init__(folder, completing)
        self.slurm = PartedSlurm(PARTS, self.clock, completing=completing)

    def move(self, job_id: int, **changes: object) -> Move:
        return super().move(job_id, **{"partition": "fast", "own_partitions": OWN, **changes})

    def list_of(self, number: int) -> str:
        assert isinstance(self.slurm, PartedSlurm)
        return self.slurm.list_of(self.slurm.jobs[number])

    def partitions(self) -> dict[int, TickLease]:
        return self.journal.leases(Sort.PARTITIONS)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()


@pytest.mark.parametrize(
    ("step", "job", "age_s", "wanted"),
    [
        ("requeueing", HERE, 1, Act("targeting", "update", AIMED)),
        ("requeueing", HERE._replace(partition="other,fast,slow"), 1, Act("targeting", "update", AIMED)),
        ("requeueing", HERE._replace(partition=OLD), 1, Act("targeting", "update", AIMED)),
        ("requeueing", HERE._replace(partition="slow"), 1, Act("freeing")),  # his own, since
        ("targeting", HERE, 1, Act(order=Order.UPDATE, fields=AIMED)),
        ("targeting", THERE, 1, Act()),
        ("targeting", THERE._replace(req_nodes=()), 1, Act()),  # it may be running by now
        ("targeting", THERE._replace(req_nodes=(), reason="BeginTime"), 1, Act(order=Order.UPDATE, fields=AIMED)),
        ("targeting", THERE, 4, Act()),
        ("targeting", THERE, 6, Act("clearing", "update", FREED)),
        ("targeting", THERE._replace(partition="slow"), 1, Act("clearing", "update", {"ReqNodeList": ""})),
        ("targeting", THERE._replace(partition=OWN), 1, Act("clearing", "update", {"ReqNodeList": ""})),
        ("targeting", THERE._replace(req_nodes=("n2",)), 1, Act("clearing", "update", {"Partition": OWN})),
        ("clearing", THERE, 1, Act(order=Order.UPDATE, fields=FREED)),
        ("clearing", HERE._replace(partition=OLD, reason="Resources"), 1, Act("", "update", {"Partition": OWN})),
        ("clearing", HERE._replace(reason="Resources"), 1, Act()),
    ],
)
def test_what_comes_next(step: str, job: SlurmJob, age_s: float, wanted: Act) -> None:
    move = CROSSING._replace(step=step, old_partitions=OLD, source="n0:0,1" if job.reason == "Resources" else "n0:0")
    assert act(move, job, START_S + age_s, LIMITS)._replace(detail="") == wanted


def test_where_its_user_named_the_target_the_partition_still_tells() -> None:
    move = CROSSING._replace(step="targeting", own_req="n1")
    assert act(move, HERE._replace(req_nodes=("n1",)), START_S, LIMITS).order is Order.UPDATE
    assert act(move, THERE, START_S, LIMITS) == Act()
    assert act(move, THERE, START_S + 6, LIMITS) == Act("clearing", "update", {"Partition": OWN})


def test_a_partition_that_stays_on_a_job_is_remembered() -> None:
    runs = PENDING._replace(state="RUNNING", nodes=("n1",), partition="fast")
    left = steps.partitions_after(CROSSING, runs, None, START_S)
    assert left is not None and left[:4] == (7, LeaseKind.PARTITION, "fast", OWN) and left.restarts == 1
    before = left._replace(ours=OLD)
    elsewhere = runs._replace(partition="slow")
    assert steps.partitions_after(CROSSING, elsewhere, before, START_S) is before
    assert steps.partitions_after(CROSSING, elsewhere._replace(state="FAILED"), before, START_S) is None
    assert steps.partitions_after(CROSSING, HERE, before, START_S) is None
    assert steps.partitions_after(MOVE, HERE, before, START_S) is before


def test_a_partition_that_went_down_is_no_target(site: Site) -> None:
    overview = site.client.overview()
    assert steps.unwilling(CROSSING, overview) == ""
    assert isinstance(site.slurm, PartedSlurm)
    site.slurm.down_parts.add("fast")
    assert "fast takes no jobs" in steps.unwilling(CROSSING, site.client.overview())


def test_there_and_back(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--partition={OWN}")
    site.start(number)
    site.run()
    assert (site.outcome(number), site.list_of(number)) == ("moved", "fast")
    assert (site.partitions()[number].ours, site.partitions()[number].own) == ("fast", OWN)
    orders = [call for call in site.slurm.calls if call[:2] == ["scontrol", "update"]]
    assert len(orders) == 1 and {*orders[0]} >= {"Partition=fast", "ReqNodeList=n1", f"StartTime={LATER}"}
    back = {"partition": "slow", "source": "n1:0", "target": ("n0",), "target_gpus": "n0:0", "old_partitions": "fast"}
    site.start(number, **back)
    site.run()
    assert (site.outcome(number), site.list_of(number), site.partitions()[number].ours) == ("moved", "slow", "slow")


def test_between_single_partitions_there_and_back(site: Site) -> None:
    """As a job goes to a cheaper place: its list is where it runs, and that one comes back."""
    number = site.submit("--gres=gpu:1", "--partition=slow")
    site.start(number, own_partitions="slow")
    site.run()
    assert (site.outcome(number), site.list_of(number)) == ("moved", "fast")
    back = {"partition": "slow", "source": "n1:0", "target": ("n0",), "target_gpus": "n0:0", "old_partitions": "fast"}
    site.start(number, own_partitions="fast", **back)
    site.run()
    assert (site.outcome(number), site.list_of(number)) == ("moved", "slow")
    assert (site.partitions()[number].ours, site.partitions()[number].own) == ("slow", "fast")
    site.submit("-w", "n1", "--gres=gpu:2", "--partition=fast")
    site.start(number, own_partitions="slow", old_partitions="slow")
    site.run()
    assert (site.outcome(number), site.list_of(number)) == ("elsewhere", "slow")


@pytest.mark.parametrize("how", ["drained", "taken", "down", "no such"])
def test_an_unwilling_target(site: Site, how: str) -> None:
    number = site.submit("--gres=gpu:1", f"--partition={OWN}")
    assert isinstance(site.slurm, PartedSlurm)
    if how == "taken":
        site.submit("-w", "n1", "--gres=gpu:2", "--partition=fast")
    elif how == "drained":
        site.slurm.nodes["n1"].state = "DRAIN"
    elif how == "down":
        site.slurm.down_parts.add("fast")
    site.start(number, partition="gone" if how == "no such" else "fast")
    site.run()
    job = site.slurm.jobs[number]
    assert (site.outcome(number), job.state, job.req, list(job.placed)) == ("elsewhere", "RUNNING", "", ["n0"])
    assert site.list_of(number) == OWN and not site.partitions() and site.now_s - START_S < 10


def test_what_is_waiting_afterwards_has_its_own_list(site: Site) -> None:
    number = site.submit("--gres=gpu:1", f"--partition={OWN}")
    site.start(number)
    site.mover.step(site.now_s)
    for node in ("n0", "n1", "n2"):
        site.submit("-w", node, "--gres=gpu:2", "--exclusive")
    site.run()
    assert (site.outcome(number), site.list_of(number), site.partitions()) == ("waiting", OWN, {})


WRITES = 8  # in a plain move: begin, enter, requeue, enter, update, a lease of nodes, one of partitions, finish


@pytest.mark.parametrize(("at", "after"), list(itertools.product(range(1, WRITES + 1), (False, True))))
@pytest.mark.parametrize("away_s", [0.1, 30.0, 4000.0])
def test_killed_at_every_point(site: Site, at: int, after: bool, away_s: float) -> None:
    number = site.submit("--gres=gpu:1", f"--partition={OWN}")
    test_mover.killed(site, number, at, after, away_s)
    check(site, number, set())


def check(site: Site, number: int, done: set[str]) -> None:
    """Whatever happened: the job has its user's partitions, or ours and the tick knows."""
    test_mover.check(site, number, done)
    if site.slurm.jobs[number].state not in ("RUNNING", "PENDING"):
        return
    present, lease = site.list_of(number), site.partitions().get(number)
    if "repart" in done and present != "fast":  # the last word is its user's
        assert present in (OWN, "slow")
    elif present != OWN:
        assert present == "fast" and lease is not None and (lease.ours, lease.own) == ("fast", OWN)


PARTING = {
    "repart": "scontrol update JobId={0} Partition=slow",
    "unpart": f"scontrol update JobId={{0}} Partition={OWN}",
}


def meddle(site: Site, number: int, what: str) -> bool:
    if what not in PARTING:
        return interfere(site, number, what)
    return site.slurm(PARTING[what].format(number).split(), SCRIPT).returncode == 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp(f"c{next(numbers)}")


@trials(300)
@given(storms(13, *ORDERS, *PARTING, *FAULTS))
def test_whatever_happens_no_job_is_lost_held_or_pinned(folders: Callable[[], Path], storm: Storm) -> None:
    with contextlib.closing(Site(folders(), storm.completing)) as site:
        check(site, *ride_out(site, storm, meddle, f"--partition={OWN}"))


def test_while_slurm_refuses_nothing_is_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own list cannot be put back: after a minute nobody watches, and the journal has it."""
    number = site.submit("--gres=gpu:1", f"--partition={OWN}")
    site.submit("-w", "n1", "--gres=gpu:2", "--partition=fast")
    site.start(number)
    real = site.client.update_job

    def refusing(job_id: int, **fields: str) -> None:
        if fields.get("Partition") == OWN:
            raise SlurmError("not now")
        real(job_id, **fields)

    monkeypatch.setattr(site.client, "update_job", refusing)
    site.run()
    assert (site.outcome(number), site.list_of(number)) == ("waiting", "fast")
    assert (site.partitions()[number].ours, site.partitions()[number].own) == ("fast", OWN)
