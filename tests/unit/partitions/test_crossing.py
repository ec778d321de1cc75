# SPDX-License-Identifier: MIT
"""Which running jobs another of their users' partitions suits better, and which of them a tick moves there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.allocation import throughputs
from slurm_pal.allocation.throughputs import TABLE, Entry, ThroughputKey
from slurm_pal.base.cluster import Partition
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.tick_lease import LeaseKind, Sort, TickLease
from slurm_pal.moves.planning import Elsewhere, MovePlan, MoveTerms, Running, plan
from slurm_pal.partitions import crossing
from slurm_pal.partitions.claimants import Known
from slurm_pal.partitions.crossing import Crosser
from slurm_pal.partitions.sharing import CHANGED
from slurm_pal.pending.demand import wanted
from slurm_pal.pending.retarget import Wish, WishAction
from slurm_pal.report import move_rows as moves_report
from slurm_pal.report import story as story_report
from slurm_pal.report import tick as report
from slurm_pal.slurm.client import Overview

from ...doubles.fake_partitions import PartedSlurm
from ...doubles.running_factory import HOUR_S, NOW_S, TERMS, job, node, overview, running, scores
from ..moves.test_mover import MOVE
from ..tick import test_tick
from ..tick.test_tick import MOVABLE, START_S

OWN = ("slow", "fast")
PARTS = {"slow": ("s0", "s1"), "fast": ("f0", "f1")}
EXACT = {"slow": 0.0, "fast": 0.0}


def seen(jobs: Sequence[SlurmJob], table: dict[str, list[float]], **limits: int) -> Overview:
    parts = tuple(Partition(name, False, True, nodes, limits.get(name)) for name, nodes in PARTS.items())
    return overview([node(name, len(row)) for name, row in table.items()], jobs, partitions=parts)


def here(job_id: int = 1, gpus: dict[str, Sequence[int]] | None = None, words: str = "", **changes: Any) -> Running:  # noqa: ANN401
    """A job on a slow GPU, four times as fast in the other partition; two hours to go here."""
    one = job(job_id, gpus or {"s0": (0,)}, partition="slow", **changes.pop("of", {}))
    made = running(one, words, own_partitions=OWN, elsewhere=(Elsewhere("fast", 4.0),), stated_s=2 * HOUR_S)
    return made._replace(**{"remaining_s": 2 * HOUR_S, **changes})


EVEN = {"s0": [1.0, 1.0], "s1": [1.0, 1.0], "f0": [1.0, 1.0], "f1": [1.0, 1.0]}


def planned(jobs: list[Running], terms: MoveTerms = TERMS, table: dict[str, list[float]] = EVEN) -> MovePlan:
    return plan(seen([one.job for one in jobs], table), scores(table), jobs, terms, NOW_S)


def why(found: MovePlan, job_id: int) -> str:
    return next(one.why for one in found.passed if one.job_id == job_id)


# -- whether it pays --------------------------------------------------------------------------


def test_a_move_and_its_words() -> None:
    """7200 s here are 1800 s there."""
    (move,) = planned([here()]).moves
    assert (move.partition, move.own_partitions, move.target, move.target_gpus) == (
        "fast",
        "slow,fast",
        ("f0",),
        "f0:0",
    )
    assert (move.before, move.after) == (1.0, 0.25)
    assert move.gain_s == pytest.approx(5400.0)
    assert move.why == "s0:0 at 1.00 in slow -> f0:0 at 0.25 in fast: 5400 s gained of 7200 s left, for 60 s"


def test_what_is_slow_there_counts() -> None:
    """Class A on GPUs of 3.0: 7200 s here are 5400 s there."""
    table = EVEN | {"f0": [3.0, 3.0], "f1": [3.0, 3.0]}
    (move,) = planned([here()], table=table).moves
    assert (move.after, move.gain_s) == (0.75, pytest.approx(1800.0))
    (move,) = planned([here(sensitivity="C")], table=table).moves
    assert (move.after, move.gain_s) == (0.25, pytest.approx(5400.0))
    assert not planned([here()], table=EVEN | {"f0": [4.0], "f1": [4.0]}).moves


def test_the_better_of_both_ways() -> None:
    table = EVEN | {"s0": [2.0, 2.0]}
    (move,) = planned([here()], table=table).moves
    assert (move.partition, move.before, move.after) == ("fast", 2.0, 0.25)
    (move,) = planned([here(elsewhere=(Elsewhere("fast", 1.0 / 3.0),))], table=table).moves
    assert (move.partition, move.own_partitions, move.target) == ("", "", ("s1",))


def test_what_was_fitted_to_a_measured_factor_is_not_taken_for_another_partition() -> None:
    """Thrice as sensitive as its class, a job's time to go is made up for in-partition gains."""
    fitted = here(remaining_s=6 * HOUR_S, factor=1.0)
    (move,) = planned([fitted]).moves
    assert move.gain_s == pytest.approx(5400.0)


def test_a_time_limit_is_for_the_slowest_partition() -> None:
    """Half of a day there is a quarter here; two hours have gone, so four are to go, and a half of them is saved."""
    one = here(remaining_s=None, stated_s=None, slowest=0.5, elsewhere=(Elsewhere("fast", 2.0),))
    (move,) = planned([one]).moves
    assert move.gain_s == pytest.approx(2 * HOUR_S)
    unlimited = one._replace(job=one.job._replace(time_limit_s=None))
    (move,) = planned([unlimited], TERMS._replace(expected_run_s=12 * HOUR_S)).moves
    assert move.gain_s == pytest.approx(2 * HOUR_S)
    assert cross(speed={"slow": 2.0, "fast": 8.0, "none": 0.0, "old": 1.0}).slowest == 0.5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"remaining_s": 100.0, "stated_s": 100.0}, "no free GPUs would save it 90 s"),
        ({"moves": 5}, "at most 5 are allowed"),
        ({"last_move_s": NOW_S - 60}, "at least 600 s are needed"),
        ({"of": {"time_limit_s": 2 * 3600 + 60}}, "from its time limit"),
    ],
)
def test_the_rules_of_moves_hold(changes: dict[str, Any], reason: str) -> None:
    found = planned([here(**changes)])
    assert not found.moves and reason in why(found, 1)


def test_the_limits_are_those_of_all_moves() -> None:
    """Three may go; one of them has a better place in its own partition."""
    table = EVEN | {"s0": [1.0, 1.0, 1.5]}
    jobs = [here(1), here(2, {"s0": (1,)}), here(3, {"s0": (2,)}, elsewhere=())]
    terms = TERMS._replace(per_user=9)
    assert {move.job_id for move in planned(jobs, terms, table).moves} == {1, 2, 3}
    assert {move.job_id for move in planned(jobs, terms._replace(per_tick=2), table).moves} == {1, 2}
    assert len(planned(jobs, TERMS._replace(per_user=1), table).moves) == 1


def test_only_what_is_free_now_and_nobody_else_is_about_to_take() -> None:
    foreign = running(job(8, {"f0": (0, 1), "f1": (0,)}, partition="fast"), "--nodes=2 --gpus-per-node=1", moves=9)
    (move,) = planned([here(), foreign]).moves
    assert move.target_gpus == "f1:1"
    pinned = job(9, {}, state="PENDING", nodes=(), partition="fast", req_nodes=("f1",), gpus_per_node=1)
    jobs = [here(), foreign]
    view = seen([*(one.job for one in jobs), pinned], EVEN)
    assert not plan(view, scores(EVEN), jobs, TERMS, NOW_S).moves
    two = here(1, {"s0": (0, 1)})
    assert not planned([two, foreign]).moves, "its whole shape must fit"


def test_two_jobs_are_not_promised_the_same_gpus() -> None:
    foreign = running(job(8, {"f0": (0, 1), "f1": (0,)}, partition="fast"), "--nodes=2 --gpus-per-node=1", moves=9)
    jobs = [here(1), here(2, {"s1": (0,)}, of={"user": "v"}), foreign]
    assert len(planned(jobs).moves) == 1


def test_a_partition_of_unlike_gpus_or_of_another_type_is_no_target() -> None:
    one = here()
    view = seen([one.job], EVEN)
    mixed = tuple(n._replace(gpu_types=("a", "a")) if n.name == "f1" else n for n in view.nodes)
    found = plan(view._replace(nodes=mixed), scores(EVEN), [one], TERMS, NOW_S)
    assert not found.moves
    typed = here(words="--nodes=1 --gpus-per-node=v100:1")
    assert not planned([typed]).moves
    down = tuple(p._replace(up=p.name != "fast") for p in view.partitions)
    assert not plan(view._replace(partitions=down), scores(EVEN), [one], TERMS, NOW_S).moves


def test_gpus_that_it_holds_are_no_other_partition() -> None:
    """Partitions may have nodes in common: to start there anew under another name gains nothing."""
    one = here(gpus={"s0": (1,)})
    view = seen([one.job], EVEN)
    same = tuple(p._replace(nodes=("s0",)) if p.name == "fast" else p for p in view.partitions)
    assert not plan(view._replace(partitions=same), scores(EVEN), [one], TERMS, NOW_S).moves


# -- which may be considered ------------------------------------------------------------------


def cross(**changes: Any) -> Crosser:  # noqa: ANN401
    return Crosser(here(elsewhere=()), OWN, {"slow": 1.0, "fast": 4.0}, EXACT)._replace(**changes)


def test_where_it_belongs_and_is_faster() -> None:
    everywhere = {"slow": 0.5, "fast": 0.5}
    assert crossing.elsewhere(cross(), everywhere, ()) == (Elsewhere("fast", pytest.approx(4.0)),)
    assert crossing.elsewhere(cross(), {"slow": 1.0}, ()) == ()
    assert crossing.elsewhere(cross(), everywhere, {"fast"}) == ()
    assert crossing.elsewhere(cross(speed={"slow": 4.0, "fast": 1.0}), everywhere, ()) == ()
    assert crossing.elsewhere(cross(speed={"slow": 1.0, "fast": 0.0}), everywhere, ()) == ()
    third = cross(speed={"slow": 1.0, "fast": 4.0, "best": 9.0})
    assert [one.partition for one in crossing.elsewhere(third, everywhere | {"best": 0.1}, ())] == ["best", "fast"]


@given(st.floats(0.1, 10.0), st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_doubt_only_makes_a_gain_smaller(speed: float, less: float, more: float) -> None:
    small, large = sorted((less, more))
    found = [
        crossing.elsewhere(cross(speed={"slow": 1.0, "fast": speed}, error={"slow": 0.0, "fast": e}), {"fast": 1.0}, ())
        for e in (0.0, small, large)
    ]
    gains = [one[0].speed if one else 1.0 for one in found]
    assert gains == sorted(gains, reverse=True) and gains[0] == pytest.approx(max(1.0, speed))
    assert gains[2] >= 1.0


def known(**given: float) -> Known:
    table = {ThroughputKey("j", 1, kind): Entry(rate, 0.01, 1, 0.0, TABLE) for kind, rate in given.items()}
    return Known(throughputs.model(table, ["fast", "slow"]), {"slow": "slow", "fast": "fast"}, {"j": "j"})


def test_only_jobs_whose_list_is_known_and_that_could_run_there() -> None:
    one, speeds = here(elsewhere=()), known(slow=1.0, fast=4.0)

    def found(own: dict[int, tuple[str, ...]], of: Running = one, **limits: int) -> list[Crosser]:
        return crossing.crossers(seen([of.job], EVEN, **limits), [of], own, speeds)

    (made,) = found({1: OWN})
    assert made.own == OWN and made.speed["fast"] / made.speed["slow"] == pytest.approx(4.0, rel=0.05)
    assert found({}) == found({2: OWN}) == found({1: ("slow",)}) == found({1: (*OWN, "down")}) == []
    assert found({1: OWN}, fast=3600) == [] and found({1: OWN}, fast=24 * 3600) != []
    unlimited = one._replace(job=one.job._replace(time_limit_s=None))
    assert found({1: OWN}, unlimited) != [] and found({1: OWN}, unlimited, fast=24 * 3600) == []
    assert found({1: OWN}, one._replace(request=one.request._replace(req_nodes=("s0",)))) == []
    assert found({1: OWN}, one._replace(request=one.request._replace(leave="strange"))) == []


def test_partitions_that_somebody_waits_for() -> None:
    def waits(partition: str, reason: str = "Resources", **changes: Any) -> SlurmJob:  # noqa: ANN401
        return job(5, {}, state="PENDING", reason=reason, nodes=(), partition=partition, **changes)

    def found(one: SlurmJob, wishes: Sequence[Wish] = (), moving: Sequence[int] = ()) -> set[str]:
        return set(wanted(seen([one], EVEN), wishes, moving))

    assert found(waits("fast")) == {"fast"} and found(waits("slow,fast", "Priority")) == {"slow", "fast"}
    assert found(waits("fast", "Dependency")) == found(waits("fast", "BeginTime")) == set()
    assert found(waits("fast", fields={"Priority": "0"})) == set() and found(waits("fast"), moving=(5,)) == set()
    assert found(job(5, {"s0": (0,)}, partition="slow")) == set()
    here_only = Wish(5, WishAction.PARTITION, {"Partition": "slow"}, None, False, "", Sort.PARTITIONS)
    assert found(waits("slow,fast"), [here_only]) == {"slow"}
    left_out, others = {("slow,fast", "Priority")}, {("fast", "Dependency"), ("slow", "QOSGrpGRES")}
    assert wanted(seen([], EVEN)._replace(queued=frozenset(left_out)), (), ()) == {"slow", "fast"}
    assert wanted(seen([], EVEN)._replace(queued=frozenset(others)), (), ()) == frozenset()
    view = seen([waits("all")], EVEN)
    over = view._replace(partitions=(*view.partitions, Partition("all", True, True, ("f1",))))
    assert wanted(over, (), ()) == {"fast", "all"}, "the same nodes by another name"


def test_a_move_that_failed_is_not_tried_again() -> None:
    ends = {"moved": False, "abandoned": False, "ended": False, "": False, "elsewhere": True, "waiting": True}
    for outcome, counts in ends.items():
        move = MOVE._replace(partition="fast", outcome=outcome)
        assert crossing.failed([move]) == ({(7, "fast")} if counts else set())
        assert crossing.failed([move._replace(partition="")]) == set()


# -- a whole tick -----------------------------------------------------------------------------


class Site(test_tick.Site):
    """A slow partition and a fast one, of a node each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.slurm = PartedSlurm({"slow": ["n0"], "fast": ["n1"]}, lambda: self.now_s, gpus=4)
        self.write_scores({"n0": 1.0, "n1": 1.0})
        table = folder / "throughputs.csv"
        table.write_text("application,gpus,type,relative_speed\napp,1,slow,1\napp,1,fast,4\n")
        self.set("rebalance", allocation="gavel:max-sum", throughputs=str(table))
        self.tick = self.new_tick()

    def running(self, lease: TickLease | None) -> int:
        number = self.submit("-J", "app", "--gres=gpu:1", f"--partition={','.join(OWN)}", f"--comment={MOVABLE}")
        if lease is not None:
            self.journal.lease(lease._replace(job_id=number))
        return number


LEASE = TickLease(0, LeaseKind.PARTITION, "slow", "slow,fast", START_S, START_S, 0, "")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.journal.close()
    made.log.close()


@pytest.mark.parametrize("ended", [False, True])
def test_a_tick_moves_it_and_tells(site: Site, ended: bool) -> None:
    number = site.running(LEASE)
    if ended:
        site.journal.end_lease(number, "waiting no longer pays", START_S, Sort.PARTITIONS)
    outcome = site.run()
    assert outcome.trouble == () and outcome.moving == 1
    (shown,) = report.as_json(outcome)["moves"]
    assert (shown["partition"], shown["own_partitions"]) == ("fast", "slow,fast")
    assert any("n0:0 -> n1:0 in fast" in line for line in report.lines(outcome))
    site.see_through()
    (move,) = site.journal.moves()
    assert (move.outcome, move.partition, move.old_partitions) == ("moved", "fast", "" if ended else "slow")
    assert site.job(number).placed == {"n1": [0]}
    assert site.journal.leases(Sort.PARTITIONS)[number][2:4] == ("fast", "slow,fast")
    (row,) = moves_report.of_journal([move])
    assert moves_report.cells(row)[4] == "n1:0 in fast" and row.partition == "fast"
    told = [event for event in story_report.of_journal(site.journal, number) if event["what"] == "move"]
    assert "to n1:0 in fast" in told[-1]["text"] and told[-1]["partition"] == "fast"
    again = site.run().decided.plan
    assert again is not None and again.moves == ()


@pytest.mark.parametrize("how", ["unknown", "policy", "queue", "strangers", "off", "failed", "number"])
def test_a_tick_leaves_it(site: Site, how: str) -> None:
    leases = {"unknown": None, "number": LEASE._replace(made_s=START_S - HOUR_S)}  # of a job that had its number
    number = site.running(leases.get(how, LEASE))
    if how == "policy":
        site.set("rebalance", allocation="")
        site.tick = site.new_tick()
    elif how == "queue":
        site.submit("--nodes=2", "--gres=gpu:4", "--partition=fast", "--comment=pal:job=A")
    elif how == "strangers":  # neither palsub nor the filter saw it
        site.submit("--nodes=2", "--gres=gpu:4", "--partition=fast")
    elif how == "off":
        site.set("rebalance", moves=False)
    elif how == "failed":
        begun = site.journal.begin(MOVE._replace(job_id=number, partition="fast", own_partitions="slow,fast"))
        site.journal.finish(begun, "elsewhere", "", START_S - HOUR_S)
    outcome = site.run()
    assert outcome.moving == 0 and outcome.trouble == () and site.job(number).placed == {"n0": [0]}


def test_a_list_that_its_user_changed_after_we_gave_it_back_is_his(site: Site) -> None:
    """He has taken the fast partition off; that it was on the list once is no leave to move the job there."""
    (full,) = site.fill("n0")
    site.submit("-w", "n1", "--gres=gpu:4", "--partition=fast")
    number = site.running(LEASE._replace(ours="fast"))
    site.journal.end_lease(number, "waiting no longer pays", START_S, Sort.PARTITIONS)
    site.client.update_job(number, Partition="slow")
    seen = site.run()
    assert site.journal.left_alone() == {number} and site.job(number).state == "PENDING"
    assert [wish.reason for wish in seen.decided.wishes if wish.job_id == number and wish.sort is Sort.PARTITIONS] == [
        CHANGED
    ]
    site.slurm.finish(full)
    site.slurm.finish(full + 1)
    for _ in range(3):
        site.run(after_s=HOUR_S)
    assert site.job(number).placed == {"n0": [0]} and site.journal.moves() == []


def test_lists_of_a_job_that_is_being_moved_are_left_to_the_mover(site: Site) -> None:
    """In its delay it bears a list of ours from before, which must not be given back in the middle of the move."""
    number = site.running(LEASE)
    site.run()
    site.now_s += 1
    site.tick.advance(site.now_s)
    site.slurm.lists[number] = "slow"  # type: ignore[attr-defined]
    assert site.job(number).state in ("COMPLETING", "PENDING")
    wishes = site.run(after_s=0.1).decided.wishes
    assert [wish for wish in wishes if wish.job_id == number] == []
    site.see_through()
    assert site.journal.moves()[0].outcome == "moved"
