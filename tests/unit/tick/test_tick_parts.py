# SPDX-License-Identifier: MIT
"""The parts of a tick: whose jobs it steers, how wishes reach Slurm, what pace jobs tell, new results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.base import marks
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.decide.facts import MoveSettings
from slurm_pal.decide.request import NO_GPU_WORDS
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal import story
from slurm_pal.journal.event_log import EventLog
from slurm_pal.journal.journal import Journal, Move, open_journal
from slurm_pal.journal.move_states import MoveOutcome, MoveStep
from slurm_pal.moves import learning
from slurm_pal.pending.retarget import Wish, WishAction
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.counted import Counted
from slurm_pal.slurm.fake import FakeNode, FakeSlurm
from slurm_pal.slurm.topology import Topology, of_conf
from slurm_pal.tick import pace
from slurm_pal.tick.intake import Intake
from slurm_pal.tick.role import Role
from slurm_pal.tick.steered import Memory, Pace, steered
from slurm_pal.tick.wishes import Hand

from ...doubles.running_factory import NOW_S, job, node, overview
from ...doubles.running_factory import scores as snapshot

NOTHING = Memory({}, {}, frozenset(), {}, frozenset(), {})
MINE = "pal:job=A;from=x;mov=1;ck=1;app=1"
BATCH = {"BatchFlag": "1", "Requeue": "1", "NumNodes": "1", "TresPerNode": "gres:gpu:2", "NumTasks": "1"}
ALL = Role("slurm-user", "slurm", frozenset({"own", "others", "admin-comment"}), ())
PLAIN = Role("operator", "op", frozenset({"own", "others"}), ())


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(str(tmp_path / "journal.db")) as opened:
        yield opened


# -- whose jobs ------------------------------------------------------------------------------


def test_jobs_are_told_apart() -> None:
    waits = {**BATCH, "Priority": "5"}
    jobs = [
        job(1, {"n0": (0, 1)}, comment=MINE, fields=BATCH),
        job(2, {"n0": (2, 3)}, comment="pal:job=A", fields=BATCH),
        job(3, {"n1": (0,)}),
        job(4, {}, state="PENDING", comment="pal:job=B", fields=waits),
        job(5, {}, state="PENDING", comment="pal:job=C", fields=waits | {"Priority": "9"}),
        job(6, {}, state="PENDING", comment="pal:job=C", fields=waits | {"Priority": "9"}),
        job(7, {}, state="PENDING", comment="pal:job=C", user="v", fields=waits),
        job(8, {}, state="PENDING", comment="pal:job=A", fields=waits),
        job(9, {"n1": (1,)}, comment=MINE, fields=BATCH),
    ]
    memory = NOTHING._replace(
        left_alone=frozenset({8}), moving=frozenset({9}), waited={5: 12.0}, paces={1: Pace(0.5, 100.0, 1.3)}
    )
    found = steered(overview([node("n0"), node("n1")], jobs), memory, MoveSettings(), only_user="u")
    assert [one.job.job_id for one in found.waiting] == [5, 6, 4]
    assert found.waiting[0].waited_s == 12.0 and found.waiting[2].sensitivity == "B"
    (moves,) = found.running
    assert (moves.job.job_id, moves.checkpoint, moves.remaining_s, moves.factor) == (1, True, 100.0, 1.3)
    assert [one.job_id for one in found.staying] == [2] and "not marked movable" in found.staying[0].why
    assert found.foreign == 2  # 3, which nobody saw, and 7, which is somebody else's
    first = steered(overview([node("n0"), node("n1")], jobs), memory, MoveSettings(), "u", depth=2)
    assert first == found._replace(waiting=found.waiting[:2], behind=1)


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("pal:job=?;from=default", True),
        ("pal:job=A;from=script", True),
        ("pal:job=A;from=--pal-class", False),
        ("pal:job=C;from=history", False),
    ],
)
def test_whole_nodes_without_a_word_of_gpus_are_left_to_slurm(comment: str, left: bool) -> None:
    fields = {"BatchFlag": "1", "Requeue": "1", "NumNodes": "1", "NumTasks": "1", "OverSubscribe": "NO"}
    jobs = [
        job(1, {}, state="PENDING", comment=comment, fields=fields | {"Priority": "5"}),
        job(2, {"n0": (0, 1, 2, 3)}, comment=f"{comment};mov=1;app=1", fields=fields),
    ]
    found = steered(overview([node("n0"), node("n1")], jobs), NOTHING, MoveSettings())
    assert [one.request.leave for one in found.waiting] == [NO_GPU_WORDS if left else ""]
    assert [one.why for one in found.staying] == ([NO_GPU_WORDS] if left else [])
    assert [one.job.job_id for one in found.running] == ([] if left else [2])


@pytest.mark.parametrize("kind", ["nodelist", "move", "exclude"])
def test_a_list_of_ours_is_not_taken_for_the_users(kind: str) -> None:
    lease = TickLease(1, LeaseKind(kind), "n0", "n3" if kind == "exclude" else "", NOW_S, NOW_S, 0, "")
    lists = {"exc_nodes": ("n0",)} if kind == "exclude" else {"req_nodes": ("n0",)}
    one = job(1, {"n0": (0, 1)}, comment=MINE, fields=BATCH, **lists)
    made = Move(
        1,
        1,
        "u",
        NOW_S,
        0,
        "n1:0",
        ("n0",),
        "n0:0",
        "",
        1.3,
        1.0,
        9.0,
        1.0,
        True,
        "",
        MoveStep.TARGETING,
        NOW_S,
        MoveOutcome.MOVED,
    )
    memory = NOTHING._replace(
        leases={1: lease}, moves={1: (made, made._replace(outcome=MoveOutcome.ABANDONED, ended_s=NOW_S))}
    )
    found = steered(overview([node("n0")], [one]), memory, MoveSettings())
    (moves,) = found.running
    assert moves.request.leave == "" and moves.request.exc_nodes == (("n3",) if kind == "exclude" else ())
    assert (moves.moves, moves.last_move_s) == (1, NOW_S)
    (moves,) = steered(overview([node("n0")], [one]), NOTHING, MoveSettings()).running
    assert moves.request.exc_nodes == ("n0",) if kind == "exclude" else "own --nodelist" in moves.request.leave


# -- wishes ----------------------------------------------------------------------------------


class Site:
    """A job that waits on a full fake Slurm, and a hand that may change it."""

    def __init__(self, journal: Journal, tmp_path: Path, role: Role = ALL) -> None:
        self.slurm = FakeSlurm([FakeNode("n0"), FakeNode("n1")])
        self.counted = Counted(self.slurm)
        self.client = CliClient(self.counted)
        for name in ("n0", "n1"):
            self.client.submit(["-w", name, "--gres=gpu:4"], "#!/bin/sh\n")
        self.job_id = self.client.submit(["--gres=gpu:1"], "#!/bin/sh\n")
        self.journal = journal
        self.hand = Hand(self.client, journal, role, EventLog(str(tmp_path / "log"), echo=False))

    def carry_out(self, wish: Wish) -> list[str]:
        shown = self.client.job(self.job_id)
        assert shown is not None
        return self.hand.carry_out([wish], {self.job_id: shown}, NOW_S)

    def lease(self) -> TickLease:
        return TickLease(self.job_id, LeaseKind.NODELIST, "n1", "", NOW_S, NOW_S + 15, 0, "why")


@pytest.mark.parametrize(
    ("outcome", "count", "known"),
    [
        (MoveOutcome.MOVED, 1, True), (MoveOutcome.ABANDONED, 0, True),
        (MoveOutcome.ELSEWHERE, 1, False), (MoveOutcome.WAITING, 1, False),
    ],
)  # fmt: skip
def test_each_requeue_counts_and_a_range_is_believed_until_slurm_spreads_the_job_again(
    outcome: MoveOutcome, count: int, known: bool
) -> None:
    pairs = {"TresPerJob": "gres:gpu:2", "NumNodes": "2", "NumTasks": "2", "NumCPUs": "2", "CPUs/Task": "1"}
    one = job(1, {"n0": (0,), "n1": (0,)}, fields=pairs, batch=True, may_requeue=True)
    one = one._replace(comment="pal:job=A;from=x;mov=1;app=1;n=1-2")
    made = Move(
        1, 1, "u", NOW_S - 90, 0, "n0:0 n1:0", ("n2",), "n2:0,1", "", 1.7, 1.0, 900.0, 60.0, False, "",
        MoveStep.TARGETING, NOW_S - 80, outcome, "", NOW_S - 80,
    )  # fmt: skip
    seen = overview([node("n0"), node("n1")], [one])
    (found,) = steered(seen, NOTHING._replace(moves={1: (made,)}), MoveSettings(gather=True)).running
    assert (found.moves, not found.request.leave) == (count, known)
    (found,) = steered(seen, NOTHING, MoveSettings()).running
    assert found.request.leave  # the setting is off


def test_a_wish_is_journalled_and_done_and_taken_back(journal: Journal, tmp_path: Path) -> None:
    site = Site(journal, tmp_path, PLAIN)
    asked = site.counted.orders
    assert (
        site.carry_out(Wish(site.job_id, WishAction.NODELIST, {"ReqNodeList": "n1"}, site.lease(), False, "why")) == []
    )
    assert site.slurm.jobs[site.job_id].req == "n1" and journal.leases() == {site.job_id: site.lease()}
    assert site.counted.orders == asked + 1
    site.carry_out(Wish(site.job_id, WishAction.KEEP, {}, site.lease(), False, "stays"))
    assert site.counted.orders == asked + 1
    assert site.carry_out(Wish(site.job_id, WishAction.CLEAR, {"ReqNodeList": ""}, None, False, "over")) == []
    assert site.slurm.jobs[site.job_id].req == "" and journal.leases() == {}
    assert [why for _, why, _ in journal.ended_leases(site.job_id)] == ["over"]
    assert [line.split('"what": "')[1].split('"')[0] for line in (tmp_path / "log").read_text().splitlines()] == [
        "nodelist", "clear",
    ]  # fmt: skip


@pytest.mark.parametrize("before", [False, True])
def test_what_slurm_refuses_is_not_remembered(journal: Journal, tmp_path: Path, before: bool) -> None:
    site = Site(journal, tmp_path)
    old = site.lease()._replace(kind=LeaseKind.EXCLUDE, ours="n0")
    if before:
        journal.lease(old)
    site.slurm.down = True
    wish = Wish(site.job_id, WishAction.NODELIST, {"ReqNodeList": "n1"}, site.lease(), False, "why")
    (line,) = site.hand.carry_out([wish], {}, NOW_S)
    assert line.startswith(f"the node list of job {site.job_id} stays as it is: ")
    assert journal.leases() == ({site.job_id: old} if before else {})


def test_a_list_that_somebody_changed_is_left_alone_for_good(journal: Journal, tmp_path: Path) -> None:
    site = Site(journal, tmp_path)
    journal.lease(site.lease())
    site.carry_out(Wish(site.job_id, WishAction.NONE, {}, None, False, "his own list"))
    assert journal.leases() == {} and journal.left_alone() == {site.job_id}


def test_slurm_user_tells_the_owner(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(journal, tmp_path)
    told: list[dict[str, str]] = []
    monkeypatch.setattr(site.client, "update_job", lambda job_id, **fields: told.append(fields))
    site.carry_out(Wish(site.job_id, WishAction.NODELIST, {"ReqNodeList": "n1"}, site.lease(), False, "why"))
    (event,) = story.events(told[0]["AdminComment"])
    assert (event["what"], event["set"], told[0]["ReqNodeList"]) == ("nodelist", "n1", "n1")


# -- pace ------------------------------------------------------------------------------------


def test_the_pace_of_jobs_is_learnt_tick_by_tick(journal: Journal) -> None:
    scores = snapshot({"n0": [1.0] * 4, "n1": [1.2] * 4})
    looks = []
    for tick in range(4):
        at_s = NOW_S + 60 * tick
        jobs = [
            job(1, {"n0": (0,)}, comment=f"pal:job=A pal:it={100 * tick};of=1000;at={at_s:.0f};r=0"),
            job(2, {"n1": (0,)}, comment=f"pal:job=A pal:it={80 * tick};of=1000;at={at_s:.0f};r=0"),
            job(3, {"n1": (1,)}, comment="pal:job=A pal:it=x;at=1;r=0"),
            job(4, {"n1": (2,)}, comment="mine"),
        ]
        looks.append(pace.look(jobs, scores, journal, MoveSettings(), Topology(), (1.7,), at_s))
    assert looks[0][0] == {}  # one look is no pace
    paces, learnt = looks[-1]
    assert paces[1].step_s == pytest.approx(0.6) and paces[2].step_s == pytest.approx(0.75)
    assert paces[1].remaining_s == pytest.approx(700 * 0.6)
    first, second = paces[1].factor, paces[2].factor
    assert first is not None and second is not None and second / first == pytest.approx(1.25, abs=0.01)
    assert learnt.exposed == ()  # as slow as it was measured


def test_what_a_move_brought_is_seen_from_both_incarnations(journal: Journal) -> None:
    scores = snapshot({"n0": [1.0] * 4, "n1": [1.5] * 4})
    move = Move(0, 1, "u", NOW_S, 0, "n1:0", ("n0",), "n0:0", "", 1.5, 1.0, 100.0, 10.0, True, "", "x", NOW_S)
    journal.finish(journal.begin(move), "moved", "", NOW_S + 200)
    for restarts, where, rate, start in ((0, "n1", 40, 0), (1, "n0", 60, 500)):
        for tick in range(3):
            at_s = NOW_S + 1000 * restarts + 60 * tick
            word = f"pal:job=A pal:it={start + rate * tick};at={at_s:.0f};r={restarts}"
            seen_then = [job(1, {where: (0,)}, comment=word, restarts=restarts)]
            pace.look(seen_then, scores, journal, MoveSettings(), Topology(), (1.7,), at_s)
    (seen,) = journal.moves()
    assert seen.observed == pytest.approx(1.5)


def test_the_slowest_gpu_sets_the_pace() -> None:
    scores = snapshot({"n0": [1.0, 1.3], "n1": [1.1]})
    assert learning.slowest(scores, "A", {"n0": [0, 1]}) == pytest.approx(1.3)
    assert learning.slowest(scores, "A", {"n0": [0], "n1": [0]}) == pytest.approx(1.1)
    assert learning.slowest(scores, "A", {"n9": [0]}) == 1.0


def test_the_penalty_of_a_level_is_learnt_tick_by_tick(journal: Journal) -> None:
    """Jobs of one name on one node, on one leaf and on two: by the site's own 1.7 it is 1.25 and 1.5 in truth."""
    names = [f"n{k}" for k in range(8)]
    scores = snapshot({name: [1.0] * 4 for name in names})
    network = of_conf("SwitchName=a Nodes=n[0-3]\nSwitchName=b Nodes=n[4-7]\nSwitchName=c Switches=a,b\n", names)
    steps: dict[int, tuple[dict[str, tuple[int, ...]], float]] = {
        1: ({"n0": (0, 1)}, 1.0), 2: ({"n1": (0, 1)}, 1.0), 3: ({"n2": (0,), "n3": (0,)}, 1.25),
        4: ({"n4": (0,), "n5": (0,)}, 1.25), 5: ({"n3": (1,), "n6": (1,)}, 1.5), 6: ({"n1": (2,), "n7": (1,)}, 1.5),
    }  # fmt: skip
    for tick in range(3):
        at_s = NOW_S + 60 * tick
        said = {k: f"pal:it={int(6000 * tick / step_s)};at={at_s:.0f};r=0" for k, (_, step_s) in steps.items()}
        jobs = [job(k, gpus, fields=BATCH, comment=f"{MINE} {said[k]}", name="train") for k, (gpus, _) in steps.items()]
        paces, learnt = pace.look(jobs, scores, journal, MoveSettings(), network, (1.7,), at_s)
    assert learnt.penalties == {"u train 2 A": pytest.approx((1.25, 1.5), rel=0.01)}
    assert [paces[k].locality for k in (1, 3, 5)] == pytest.approx([1.0, 1.25, 1.5], rel=0.01)
    assert learnt.exposed == ()
    memory = Memory({}, {}, frozenset(), {}, frozenset(), paces, learnt.penalties)
    others = [one._replace(name="other") for one in jobs[4:5]]
    found = steered(Overview((), (jobs[3], *others), (), {}), memory, MoveSettings()).running
    assert [one.locality for one in found] == [learnt.penalties["u train 2 A"], ()]


# -- small things ----------------------------------------------------------------------------


def test_questions_and_orders_are_counted() -> None:
    counted = Counted(FakeSlurm())
    client = CliClient(counted)
    client.overview()
    client.jobs_of([1])
    with pytest.raises(SlurmError):
        client.requeue(99)
    client.cancel([99])
    assert (counted.queries, counted.orders) == (3, 2)


def test_an_intake_without_a_database_takes_nothing(tmp_path: Path) -> None:
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    assert Intake(config).take(NOW_S) == 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "pairs", "wanted"),
    [
        ("", {"it": "5"}, "pal:it=5"),
        ("my run", {"it": "5", "of": "9"}, "my run pal:it=5;of=9"),
        ("my  run pal:it=4;of=9 pal:job=A", {"it": "5"}, "my  run pal:job=A pal:it=5"),
        ("pal:it=4", {"it": "5"}, "pal:it=5"),
        ("x" * 998, {"it": "5"}, None),
    ],
)
def test_words_stand_beside_the_users_own(text: str, pairs: dict[str, str], wanted: str | None) -> None:
    assert marks.put(text, pairs) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("a pal:it=1;r=0 b", {"it": "1", "r": "0"}), ("pal:it=1;x=$(y)", {}), ("pal:items=3", {}), ("", {})],
)
def test_words_are_read_as_they_are(text: str, wanted: dict[str, str]) -> None:
    assert marks.read(text, marks.PROGRESS) == wanted
