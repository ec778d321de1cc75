# SPDX-License-Identifier: MIT
"""pal loans, and what pal explain says of guests: from Slurm, the journal that one may read, and the words on jobs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli.pal import pal
from slurm_pal.journal import paths, story
from slurm_pal.journal.journal import Journal, LoanOrder, Move, open_journal
from slurm_pal.journal.move_states import MoveOutcome
from slurm_pal.moves import reclaimed
from slurm_pal.moves.steps import LOST
from slurm_pal.report import loan_rows, move_rows, reclaim_rows
from slurm_pal.report.move_rows import stamp
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Overview

NOW_S = 1_800_000_000.0
PAIRS = {"PreemptType": "preempt/partition_prio", "EnforcePartLimits": "NO", "JobFileAppend": "0"}
LEFT = Move(
    0, 7, "anna", NOW_S - 600, 0, "n5:0,1", (), "", "", 0.0, 0.0, 0.0, 120.0, False, "", "planned", NOW_S - 600,
    owners="owner", ran_s=7200.0,
)  # fmt: skip
ORDER = LoanOrder("guest", NOW_S - 60, True, 4, 1, 0, 2.0, 1, "n7", "owners need more")


def node(number: int, *states: str) -> Node:
    return Node(f"n{number}", frozenset(states or ("IDLE",)), ("",) * 4, 0, 16, 0, 1000, 0, frozenset(), ())


def job(number: int, partition: str, nodes: tuple[str, ...], **more: object) -> SlurmJob:
    shown = SlurmJob(
        number, "RUNNING" if nodes else "PENDING", "None" if nodes else "Resources", "anna", "train", partition,
        {name: (0, 1) for name in nodes}, nodes, (), (), NOW_S - 9000, NOW_S - 300 if nodes else 0.0, 0.0, None, 0, "",
        2, batch=True, may_requeue=True, priority=5,
    )  # fmt: skip
    return shown._replace(**more)  # type: ignore[arg-type]


JOBS = {
    1: job(1, "owner", ("n4",), user="otto"),
    2: job(2, "guest", ("n7",)),
    3: job(3, "guest", ("n0",)),  # on a node that is no owner's
    4: job(4, "guest", ("n6",), user="emil", restarts=2, comment="pal:job=A;mov=1;ck=1;app=1"),
    5: job(5, "guest", ()),
    6: job(6, "guest", (), req_nodes=("n5",), reason="BadConstraints", priority=0),
    7: job(7, "guest", ("n1",), restarts=1),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nodes n0 to n7, the owners' n4 to n7; n7 is open, n5 and n6 are closed, and a guest is still on n6."""
    settings(tmp_path)
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    become(monkeypatch, "slurm", True)
    parts = (
        Partition("guest", True, True, ("n0", "n1", "n2", "n3", "n7"), tier=1, preempt="REQUEUE"),
        Partition("owner", False, True, ("n4", "n5", "n6", "n7"), tier=10, preempt="OFF"),
    )
    nodes = tuple(node(k) for k in range(8))
    seen = Overview(nodes, tuple(JOBS.values()), parts, {})
    monkeypatch.setattr(CliClient, "overview", lambda self, **more: seen)
    monkeypatch.setattr(CliClient, "config", lambda self: PAIRS)
    monkeypatch.setattr(CliClient, "job", lambda self, number: JOBS.get(number))
    monkeypatch.setattr(CliClient, "jobs_of", lambda self, ids: {number: JOBS[number] for number in ids})
    monkeypatch.setattr(
        CliClient, "job_states", lambda self, user="": {n: ("", "") for n, one in JOBS.items() if one.user == user}
    )
    return tmp_path


def settings(folder: Path, loan: str = 'owners = "owner"\nguest = "guest"\n') -> None:
    (folder / "pal.toml").write_text(f'[paths]\nstate_dir = "{folder}/state"\n[loan]\n{loan}')


def become(monkeypatch: pytest.MonkeyPatch, user: str, powers: bool) -> None:
    monkeypatch.setattr(paths, "has_powers", lambda: powers)
    monkeypatch.setattr(paths, "user_name", lambda: user)


def journal(folder: Path) -> Journal:
    return open_journal(str(folder / "state" / "rebalance.db"))


def ended(book: Journal, move: Move, outcome: MoveOutcome, detail: str) -> None:
    book.finish(book.begin(move), outcome, detail, move.made_s + 5)


def filled(folder: Path) -> None:
    """Job 7 left without a checkpoint, 8 with one, 9 was asked for one and made none, 10 stayed, 11 is leaving."""
    with journal(folder) as book:
        ended(book, LEFT, MoveOutcome.RECLAIMED, "it runs on n1")
        with_one = LEFT._replace(job_id=8, user="otto", checkpoint=True, cost_s=0.0, made_s=NOW_S - 500)
        ended(book, with_one, MoveOutcome.RECLAIMED, "it waits: Resources")
        ended(book, with_one._replace(job_id=9), MoveOutcome.RECLAIMED, f"it runs on n[1-2]{LOST}")
        ended(book, LEFT._replace(job_id=10), MoveOutcome.ABANDONED, "it was not requeued")
        book.begin(LEFT._replace(job_id=11, made_s=NOW_S - 1))
        book.add_loan_order(ORDER._replace(at_s=NOW_S - 90 * 86400))
        book.add_loan_order(ORDER)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, list(words))


def shown(*words: str) -> dict[str, object]:
    body: dict[str, object] = json.loads(invoke(*words, "--json").stdout)
    return body


def test_without_the_setting_one_line_says_what_to_set(site: Path) -> None:
    settings(site, "")
    result = invoke("loans")
    assert (result.exit_code, result.stderr) == (0, "") and result.stdout.count("\n") == 1
    assert "[loan] of pal.toml" in result.stdout and "owners" in result.stdout and "guest" in result.stdout
    body = shown("loans")
    assert body["schema"] == "pal.loans/1" and body["lends"] is False and body["refused"] == loan_rows.NOTHING
    assert invoke("loans", "-P").stdout == "" and not (site / ".local").exists()


def test_who_lends_and_who_is_a_guest_there(site: Path) -> None:
    body = shown("loans")
    assert body["lends"] is True and body["refused"] is None and body["guest"] == "guest"
    assert body["owners"] == [
        {"partition": "owner", "total": 4, "used": 1, "open": 1, "closed": 2, "down": 0, "guests": 2,
         "open_nodes": "n7", "closed_nodes": "n[5-6]"}
    ]  # fmt: skip
    guests = {row["job_id"]: row for row in body["guests"]}  # type: ignore[attr-defined]
    assert guests.keys() == {2, 4}, "job 3 is on a node of nobody"
    assert (guests[2]["lost_s"], guests[2]["lost_gpu_s"], guests[2]["checkpoint"]) == (300.0, 600.0, False)
    assert (guests[4]["lost_s"], guests[4]["checkpoint"], guests[4]["restarts"]) == (0.0, True, 2)


def test_a_node_that_is_down_is_neither_open_nor_closed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CliClient().overview()
    nodes = tuple(node(k, "DOWN") if k in (5, 7) else node(k) for k in range(8))
    monkeypatch.setattr(CliClient, "overview", lambda self, **more: whole._replace(nodes=nodes))
    (row,) = shown("loans")["owners"]  # type: ignore[attr-defined]
    counts = {key: row[key] for key in ("total", "used", "open", "closed", "down")}
    assert counts == {"total": 4, "used": 1, "open": 0, "closed": 1, "down": 2}


def test_what_was_reclaimed_and_what_it_cost(site: Path) -> None:
    filled(site)
    body = shown("loans")
    rows = {row["job_id"]: row for row in body["reclaims"]}  # type: ignore[attr-defined]
    assert (rows[7]["lost_s"], rows[7]["lost_gpu_s"], rows[7]["restarted"]) == (120.0, 240.0, "n1")
    assert (rows[8]["checkpoint"], rows[8]["lost_gpu_s"], rows[8]["restarted"]) == (True, 0.0, "")
    assert (rows[9]["checkpoint"], rows[9]["asked"]) == (False, True)
    assert rows[9]["lost_gpu_s"] == 14400.0, "without the checkpoint that it was to make it lost its whole run"
    assert rows[10]["lost_gpu_s"] == 0.0 and rows[10]["outcome"] == "abandoned", "it was not stopped"
    assert body["total"] == {
        "reclaims": 5, "left": 3, "with_checkpoint": 1, "stayed": 1, "under_way": 1, "lost_gpu_s": 14640.0, "guests": 2,
        "restarts_not_ours": 2,
    }  # fmt: skip
    assert [order["open_nodes"] for order in body["orders"]] == ["n7"]  # type: ignore[attr-defined]
    text = invoke("loans").stdout.splitlines()
    assert text[-2] == (
        "In 7d: 3 guests taken off nodes, 1 with a checkpoint; 14,640 GPU-seconds of work lost; 1 stayed; 1 under way"
    )
    assert text[-1].startswith("2 restarts of the guests above were not ours")
    assert [row["job_id"] for row in shown("loans", "--since", "5m")["reclaims"]] == [11]  # type: ignore[attr-defined]
    assert shown("moves")["moves"] == [], "no move to better GPUs"


def test_the_forms_for_programs(site: Path) -> None:
    filled(site)
    lines = invoke("loans", "-P", "--noheader").stdout.splitlines()
    assert lines[0] == "owner|owner|4|1|1|2|0|2|n7"
    assert f"reclaim|{stamp(NOW_S - 600)}|7|anna|n5:0,1|owner|2 h|no|120|240|n1|reclaimed|-" in lines
    assert (
        f"reclaim|{stamp(NOW_S - 500)}|9|otto|n5:0,1|owner|2 h|none came|7200|14400|n[1-2]|reclaimed|no checkpoint came"
        in lines
    )
    assert lines[-1] == f"order|{stamp(NOW_S - 60)}|4|1|0|2|1|n7|owners need more"
    with_header = invoke("loans", "-P").stdout.splitlines()
    assert len(with_header) == len(lines) + 4
    rows = list(csv.DictReader(io.StringIO(invoke("loans", "--csv").stdout)))
    assert {row["list"] for row in rows} == {"owners", "guests", "reclaims", "orders"}
    assert next(row for row in rows if row["job_id"] == "9")["lost_gpu_s"] == "14400.0"
    assert "exclude each other" in str(invoke("loans", "--csv", "--json").exception)


def test_a_user_sees_the_site_and_what_happened_to_their_own_jobs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    become(monkeypatch, "anna", False)
    monkeypatch.setitem(JOBS, 7, JOBS[7]._replace(admin_comment=words("reclaim", "reclaimed")))
    monkeypatch.setitem(JOBS, 1, JOBS[1]._replace(admin_comment=words("reclaimed")))
    body = shown("loans")
    assert body["owners"] and body["orders"] == [] and body["total"]["restarts_not_ours"] is None  # type: ignore[index]
    (row,) = body["reclaims"]  # type: ignore[misc]
    assert (row["job_id"], row["made_s"], row["owners"], row["lost_gpu_s"]) == (7, NOW_S - 600, "owner", 240.0)


def test_without_slurm_the_journal_alone_is_shown(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)

    def down(self: CliClient, **more: object) -> Overview:
        raise SlurmError("slurmctld is down")

    monkeypatch.setattr(CliClient, "overview", down)
    result = invoke("loans", "-P", "--noheader")
    assert result.exit_code == 0 and "without owners and guests of now: slurmctld is down" in result.stderr
    assert {line.partition("|")[0] for line in result.stdout.splitlines()} == {"reclaim", "order"}


def test_what_slurm_is_not_set_up_for_is_said(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CliClient, "config", lambda self: PAIRS | {"PreemptType": "preempt/none"})
    assert "PreemptType=preempt/none" in invoke("loans").stdout.splitlines()[0]
    assert shown("loans")["lends"] is False


# -- pal explain --------------------------------------------------------------------------------


def words(*what: str, saved: int = 0) -> str:
    """The admin comment of a job that was taken off n5."""
    text = ""
    for k, one in enumerate(what):
        event = {"ev": f"{NOW_S - 600 + 5 * k:.0f}", "what": one, "from": "n5:0,1", "to": "owner", "ran": "7200",
                 "lost": "120", "saved": str(saved)}  # fmt: skip
        text = story.added(text, event) or ""
    return text


def first(number: int) -> str:
    return invoke("explain", str(number)).stdout.splitlines()[0]


def at(ago_s: float) -> str:
    return reclaim_rows.moment(NOW_S - ago_s, NOW_S)


def test_the_first_sentence_for_an_admin_and_for_its_user(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    wanted = (
        f"Job 7 was taken off n5 at {at(600)}, since partition owner needed its nodes back; it had run for 2 h and "
        f"lost at most 2 min (no checkpoint); it runs on n1 since {at(300)}"
    )
    assert first(7) == wanted
    told = shown("explain", "7")
    assert told["taken_off"] == wanted
    (event,) = told["story"]  # type: ignore[misc]
    assert (event["what"], event["lost_s"], event["ran_s"], event["outcome"]) == ("reclaim", 120.0, 7200.0, "reclaimed")
    assert event["text"] == "took it off n5:0,1 for partition owner: 2 min of work lost, no checkpoint; it runs on n1"
    become(monkeypatch, "anna", False)
    monkeypatch.setitem(JOBS, 7, JOBS[7]._replace(admin_comment=words("reclaim", "reclaimed")))
    assert first(7) == wanted
    text = invoke("explain", "7").stdout
    assert "began to take it off n5:0,1 for partition owner\n" in text and "gain predicted" not in text
    become(monkeypatch, "otto", False)
    assert first(7).startswith("Job 7 of anna got 2 GPUs"), "another user's words are not theirs to read"


def test_a_checkpoint_one_that_never_came_and_a_job_that_is_gone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    for number, end in (
        (8, "it had run for 2 h and made a checkpoint"),
        (9, "it had run for 2 h and lost 2 h (no checkpoint came in time); it went on on n[1-2]"),
    ):
        assert first(number).endswith(end)
    assert first(10) == (
        f"Job 10 was to leave n5 at {at(600)}, as partition owner needed its nodes back, and stayed: "
        "it was not requeued"
    )
    assert first(11) == f"Job 11 leaves n5 since {at(1)}, as partition owner needed its nodes back"
    waits = JOBS[5]._replace(job_id=8)
    monkeypatch.setitem(JOBS, 8, waits)
    assert first(8).endswith("made a checkpoint; it waits in the queue (Resources)")
    monkeypatch.setitem(JOBS, 8, waits._replace(reason="None"))
    assert first(8).endswith("made a checkpoint; it waits in the queue")


def test_a_job_that_slurm_itself_preempted(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    assert first(4).startswith("Job 4 was put back into the queue 2 times, not by us")
    monkeypatch.setitem(JOBS, 7, JOBS[7]._replace(restarts=2))
    assert first(7).endswith("; somebody else, or Slurm itself, put it back into the queue once")
    assert first(3).startswith("Job 3 of anna got 2 GPUs"), "nothing happened to it"
    monkeypatch.setitem(JOBS, 4, JOBS[4]._replace(comment="pal:companion=3"))
    assert first(4).startswith("Job 4 of "), "the journal does not say when we released a flexible worker"
    monkeypatch.setitem(JOBS, 1, JOBS[1]._replace(restarts=3))
    assert first(1).startswith("Job 1 of "), "no guest"


def test_a_guest_that_waits_while_nodes_are_closed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(site)
    closed = f"n[5-6] belong to partition owner, and are not lent now: by the order of {at(60)}, 1 of 4 may be open "
    closed += "(1 in use, 0 waited for, 2 expected)"
    assert shown("explain", "5")["not_lent"] == closed and closed in invoke("explain", "5").stdout
    told = str(shown("explain", "6")["not_lent"])
    assert told.startswith("Slurm holds it") and "scontrol release 6" in told and told.endswith(f"Now {closed}")
    assert shown("explain", "2")["not_lent"] is None
    monkeypatch.setitem(JOBS, 5, JOBS[5]._replace(reason="Dependency"))
    assert shown("explain", "5")["not_lent"] is None, "it waits for something else"
    become(monkeypatch, "emil", False)
    monkeypatch.setitem(JOBS, 5, JOBS[5]._replace(reason="PartitionNodeLimit"))
    assert shown("explain", "5")["not_lent"] == "n[5-6] belong to partition owner, and are not lent now"
    settings(site, "")
    assert shown("explain", "5")["not_lent"] is None


def test_words_of_reclaims_are_not_taken_for_moves() -> None:
    told = JOBS[2]._replace(admin_comment=words("reclaim", reclaimed.STAYED))
    assert move_rows.of_words(told) == []
    (row,) = reclaim_rows.of_words(told)
    assert row.shown == reclaim_rows.STAYED and row.made_s == NOW_S - 600
    (row,) = reclaim_rows.of_words(JOBS[2]._replace(admin_comment=words("reclaimed", saved=1)))
    assert row.checkpoint is True and row.outcome is MoveOutcome.RECLAIMED
    hostile = "pal:ev=5;what=reclaimed;from=n1:0;to=owner;lost=1e9;ran=x pal:ev=6;what=reclaimed"
    bad, empty = reclaim_rows.of_words(JOBS[2]._replace(admin_comment=hostile))
    assert bad.lost_s is None and bad.ran_s is None and empty.source == ""
    assert "their owners needed them back" in reclaim_rows.sentence([empty], "2", None, NOW_S)


@pytest.mark.parametrize(("source", "gpus"), [("n3:0,1 n4:2", 3), ("n3", 0), ("", 0), ("n3:0", 1)])
def test_gpus_of_a_source(source: str, gpus: int) -> None:
    assert reclaimed.gpus_of(source) == gpus
