# SPDX-License-Identifier: MIT
"""pal moves and the story in pal explain: from the journal that one may read, and from the words on one's own jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slurm_pal.base import state
from slurm_pal.base.config import Config, load
from slurm_pal.base.errors import DataError, Exit, SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.cli.pal import pal
from slurm_pal.decide.tick_lease import LeaseKind, TickLease
from slurm_pal.journal import paths
from slurm_pal.journal.journal import Journal, Move, open_journal
from slurm_pal.journal.move_states import ENDS
from slurm_pal.moves import learning
from slurm_pal.report import doctor
from slurm_pal.report import move_rows as report
from slurm_pal.report import story as stories
from slurm_pal.report.move_rows import stamp
from slurm_pal.slurm.cli import CliClient

NOW_S = 1_800_000_000.0
MOVE = Move(
    0, 7, "anna", NOW_S - 500, 0, "n3:0,1", ("n5",), "n5:0,1", "", 1.25, 1.0, 800.0, 60.0, True, "", "signalling",
    NOW_S - 500,
)  # fmt: skip
LEASE = TickLease(7, LeaseKind.EXCLUDE, "n[3-4]", "", NOW_S - 900, NOW_S - 600, 0, "only slow GPUs are free")


def job(number: int, user: str, admin_comment: str = "") -> SlurmJob:
    return SlurmJob(
        number, "RUNNING", "None", user, "train", "gpu", {"n5": (0, 1)}, ("n5",), (), (), NOW_S - 1000, NOW_S - 400,
        0.0, None, 1, "", 2, admin_comment=admin_comment,
    )  # fmt: skip


WORDS = (
    f"pal:ev={NOW_S - 400:.0f};what=move;gain=500;from=n1:0;to=n2:0 "
    f"pal:ev={NOW_S - 390:.0f};what=moved;gain=500;from=n1:0;to=n2:0 pal:ev={NOW_S - 300:.0f};what=nodelist;set=n[2-3]"
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State folders, the powers of SlurmUser, and a Slurm with jobs 7 of anna and 8 of otto."""
    (tmp_path / "pal.toml").write_text(f'[paths]\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("time.time", lambda: NOW_S)
    become(monkeypatch, "slurm", True)
    known = {7: job(7, "anna", WORDS), 8: job(8, "otto", WORDS)}
    monkeypatch.setattr(CliClient, "config", lambda self: {})
    monkeypatch.setattr(CliClient, "job", lambda self, number: known.get(number))
    monkeypatch.setattr(
        CliClient, "job_states", lambda self, user="": {n: ("RUNNING", "") for n in known if known[n].user == user}
    )
    monkeypatch.setattr(
        CliClient, "jobs_of", lambda self, ids: {number: known[number] for number in ids}, raising=False
    )
    return tmp_path


def become(monkeypatch: pytest.MonkeyPatch, user: str, powers: bool) -> None:
    monkeypatch.setattr(paths, "has_powers", lambda: powers)
    monkeypatch.setattr(paths, "user_name", lambda: user)


def journal(mine: bool = False) -> Journal:
    return open_journal(paths.journal_path(load(), mine))


def finished(book: Journal, move: Move = MOVE, outcome: str = "moved", observed: float | None = 1.2) -> Move:
    begun = book.begin(move)
    book.enter(begun, "requeueing", move.made_s + 2.5)
    book.finish(begun, outcome, "", move.made_s + 4)
    if observed is not None:
        book.set_observed(begun.move_id, observed)
    return begun


def invoke(*words: str) -> Result:
    return CliRunner().invoke(pal, list(words))


def test_nobody_has_moved_anything(site: Path) -> None:
    result = invoke("moves")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no moves\n", "")
    body = json.loads(invoke("moves", "--json").stdout)
    assert body["schema"] == "pal.moves/1" and body["moves"] == [] and body["total"]["moves"] == 0
    assert not (site / ".local").exists()  # to look is not to make


def test_moves_of_the_site_with_predicted_and_observed_gain(site: Path) -> None:
    with journal() as book:
        finished(book)
        finished(book, MOVE._replace(job_id=9, user="otto", made_s=NOW_S - 100, gain_s=400.0), "abandoned", None)
        book.begin(MOVE._replace(job_id=10, user="otto", made_s=NOW_S - 1, gain_s=90.0))
        calibration = learning.calibration(book.moves())
    header, first, second, third, last = invoke("moves").stdout.splitlines()
    assert header.split() == list(report.HEADER)
    gain_s = 800 / 0.2 * (1 - 1 / 1.2)
    assert first.split() == [
        stamp(NOW_S - 500), "7", "anna", "n3:0,1", "n5:0,1", "1.250", "->", "1.000", "800", f"{gain_s:.0f}", "60",
        "moved", "-",
    ]  # fmt: skip
    assert " abandoned " in second and "under way (signalling)" in third
    assert last == (
        "3 moves, 1 to the planned GPUs; gain predicted 800 s; observed 667 of 800 s (0.83) for 1 move with "
        f"a reported pace; predictions now count {calibration:.2f}"
    )
    assert invoke("moves", "-P", "--noheader", "--job", "9").stdout.splitlines() == [
        f"{stamp(NOW_S - 100)}|9|otto|n3:0,1|n5:0,1|1.250 -> 1.000|400|-|60|abandoned|-"
    ]


def test_moves_of_the_last_time_only(site: Path) -> None:
    with journal() as book:
        finished(book)
    assert json.loads(invoke("moves", "--since", "1m", "--json").stdout)["moves"] == []
    (row,) = json.loads(invoke("moves", "--since", "10m", "--json").stdout)["moves"]
    assert row["job_id"] == 7 and row["observed_gain_s"] == pytest.approx(666.67, abs=0.01)
    assert "must be a number with a unit" in str(invoke("moves", "--since", "yesterday").exception)


def test_a_user_sees_his_own_jobs_only(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journal() as book:
        finished(book, MOVE._replace(job_id=9, user="otto"))
    become(monkeypatch, "anna", False)
    with journal(mine=True) as book:
        finished(book)
    rows = json.loads(invoke("moves", "--json").stdout)["moves"]
    assert [(row["job_id"], row["user"], row["made_s"]) for row in rows] == [
        (7, "anna", NOW_S - 500), (7, "anna", NOW_S - 400),
    ]  # fmt: skip
    told = rows[1]  # from the words on the job: begin and end are one move
    assert (told["source"], told["target"], told["gain_s"], told["outcome"]) == ("n1:0", "n2:0", 500.0, "moved")
    assert told["before"] is None and told["cost_s"] is None


def test_without_slurm_a_user_sees_what_his_own_journal_has(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, "anna", False)
    with journal(mine=True) as book:
        finished(book)

    def down(*args: object, **more: object) -> None:
        raise SlurmError("slurmctld is down")

    monkeypatch.setattr(CliClient, "job_states", down)
    result = invoke("moves", "--noheader")
    assert len(result.stdout.splitlines()) == 1 and "not shown: slurmctld is down" in result.stderr


def test_a_journal_that_cannot_be_read_is_one_error(site: Path) -> None:
    Path(paths.journal_path(load(), False)).write_bytes(b"no database" * 500)
    error = invoke("moves").exception
    assert isinstance(error, DataError) and error.exit_code == Exit.DATA and "rebalance.db" in str(error)


def test_where_the_journals_are(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    config.set("paths", "state_dir", str(site / "state"), "test")
    assert paths.journal_path(config, False) == str(site / "state" / "rebalance.db")
    assert paths.log_path(config, False) == str(site / "state" / "rebalance.log")
    assert paths.readable_journal(config) is None
    own = paths.journal_path(config, True)
    assert own == os.path.join(state.home(), "rebalance", state.cluster_key(), "journal.db")
    assert os.path.dirname(paths.log_path(config, True)) == os.path.dirname(own)
    assert os.stat(os.path.dirname(own)).st_mode & 0o777 == 0o700
    Path(own).touch()
    assert paths.readable_journal(config) == own
    Path(paths.journal_path(config, False)).touch()
    assert paths.readable_journal(config) == paths.journal_path(config, False)
    become(monkeypatch, "anna", False)
    assert paths.readable_journal(config) == own
    config.set("rebalance", "log", "/var/log/pal.log", "test")
    assert paths.log_path(config, False) == "/var/log/pal.log"


def test_explain_tells_leases_and_moves_in_the_order_of_time(site: Path) -> None:
    with journal() as book:
        finished(book)
        book.lease(LEASE)
        book.end_lease(7, "waiting no longer pays", NOW_S - 600)
        book.lease(LEASE._replace(kind=LeaseKind.MOVE, ours="n5", made_s=NOW_S - 496))
        book.lease(LEASE._replace(job_id=8))
    told = json.loads(invoke("explain", "7", "--json").stdout)["story"]
    assert [(event["what"], event["at_s"] - NOW_S) for event in told] == [
        ("exclude", -900), ("clear", -600), ("move", -500), ("nodelist", -496),
    ]  # fmt: skip
    move = told[2]
    assert move["steps"] == [{"step": "signalling", "at_s": NOW_S - 500}, {"step": "requeueing", "at_s": NOW_S - 497.5}]
    assert move["gain_s"] == 800 and move["observed_gain_s"] == pytest.approx(666.67, abs=0.01)
    text = invoke("explain", "7").stdout.partition("What the tick did:\n")[2].splitlines()
    assert text == [
        f"  {stamp(NOW_S - 900)}  kept it off n[3-4]: only slow GPUs are free",
        f"  {stamp(NOW_S - 600)}  took its node list back (n[3-4]): waiting no longer pays",
        f"  {stamp(NOW_S - 500)}  moved it from n3:0,1 to n5:0,1: time factor 1.250 -> 1.000, gain predicted 800 s "
        "at a cost of 60 s, observed 667 s",
        f"  {'':21}steps: signalling +0.0 s, requeueing +2.5 s",
        f"  {stamp(NOW_S - 496)}  left n5 as its node list after a move: only slow GPUs are free",
    ]


def test_explain_tells_the_words_to_the_owner_and_not_to_others(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journal() as book:
        finished(book)
    become(monkeypatch, "anna", False)
    told = json.loads(invoke("explain", "7", "--json").stdout)["story"]
    assert [event["text"] for event in told] == [
        "began to move it from n1:0 to n2:0, gain predicted 500 s",
        "moved it from n1:0 to n2:0, gain predicted 500 s",
        "named n[2-3], whose GPUs were free",
    ]
    assert json.loads(invoke("explain", "8", "--json").stdout)["story"] == []
    assert "What the tick did" not in invoke("explain", "8").stdout


@pytest.mark.parametrize(
    ("words", "slurm", "why"),
    [
        ("pal:job=A;mov=1", "0", "a move would empty its output"),
        ("pal:job=A;mov=1", "1", ""),
        ("pal:job=A;mov=1", "", "a move would empty its output"),  # slurmctld does not answer
        ("pal:job=A;mov=1;app=1", "0", ""),
        ("pal:job=A", "0", ""),  # nobody said that it may be moved
        ("", "0", ""),
    ],
)
def test_explain_tells_why_a_movable_job_stays(
    words: str, slurm: str, why: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(self: CliClient) -> dict[str, str]:
        if not slurm:
            raise SlurmError("slurmctld is down")
        return {"JobFileAppend": slurm}

    one = job(7, "anna")._replace(comment=words, batch=True, may_requeue=True)
    monkeypatch.setattr(CliClient, "job", lambda self, number: one)
    monkeypatch.setattr(CliClient, "config", config)
    told = json.loads(invoke("explain", "7", "--json").stdout)["not_moved"]
    assert (told is None) == (not why) and why in (told or "")
    assert ("Not moved while it runs" in invoke("explain", "7").stdout) == bool(why)


def test_explain_shows_words_of_users_and_does_not_obey_them(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Escapes, line ends and marks of direction in a job's name; JSON has them escaped by its own rules."""
    name = "x\x1b]0;t\x07\r\nJob 8: \u202eok\u2066\u2028\udc80"
    hostile = job(7, "anna")._replace(name=name, reason="\x9b2J")
    monkeypatch.setattr(CliClient, "job", lambda self, number: hostile)
    shown = invoke("explain", "7")
    assert shown.stdout.partition("\n")[2].startswith(
        "Job 7 (x\\x1b]0;t\\x07\\x0d\\x0aJob 8: \\u202eok\\u2066\\u2028\\udc80): RUNNING, \\x9b2J\n"
    )
    assert (shown.stdout + shown.stderr).replace("\n", "").isprintable()
    assert invoke("explain", "7", "--json").stdout.isascii()


def test_explain_of_a_job_that_slurm_has_forgotten_is_in_the_journal(site: Path) -> None:
    with journal() as book:
        finished(book, MOVE._replace(job_id=9))
    assert "moved it from n3:0,1 to n5:0,1" in invoke("explain", "9").stdout
    assert "job 99 is unknown" in str(invoke("explain", "99").exception)


def test_explain_goes_on_without_a_journal_that_can_be_read(site: Path) -> None:
    Path(paths.journal_path(load(), False)).write_bytes(b"no database" * 500)
    result = invoke("explain", "7", "--json")
    assert result.exit_code == 0 and "rebalance.db" in result.stderr
    assert [event["what"] for event in json.loads(result.stdout)["story"]] == ["move", "moved", "nodelist"]


def test_the_submission_opens_the_story() -> None:
    decision = {"action": "nodelist", "reason": "sent to n1:0: best GPUs free now", "made_s": 5.0}
    mark = {"act": "none", "reason": "palsub decided", "by": "slurmctld"}
    first, second = stories.in_order(stories.of_submission(decision, mark, 6.0))
    assert first["text"] == "palsub decided: sent to n1:0: best GPUs free now"
    assert second["at_s"] == 6.0 and second["text"].startswith("the submit filter decided: left to Slurm: ")


@pytest.mark.parametrize("outcome", ["", *ENDS])
def test_every_end_of_a_move_has_its_words(site: Path, outcome: str) -> None:
    with journal() as book:
        begun = book.begin(MOVE)
        if outcome:
            book.finish(begun, outcome, "node n5 is down", NOW_S)
        (event,) = stories.of_journal(book, 7)
    assert "n3:0,1" in event["text"] and (not outcome or event["text"].endswith("; node n5 is down"))
    assert not event["text"].startswith(f"{outcome}:")


def test_words_whose_begin_is_lost_still_make_a_row() -> None:
    (row,) = report.of_words(job(7, "anna", "pal:ev=5;what=abandoned;from=n1:0;to=n2:0"))
    assert (row.outcome, row.source, row.made_s) == ("abandoned", "n1:0", 5.0)
    (row,) = report.of_words(job(7, "anna", "pal:ev=5;what=move;from=n1:0;to=n2:0"))
    assert row.outcome == "" and report.cells(row)[9] == "under way"


class Slurm(CliClient):
    """A Slurm of which only the configuration is asked."""

    def config(self) -> dict[str, str]:
        return {"SlurmUser": "slurm(64030)", "AccountingStorageType": "accounting_storage/none"}


def tick_findings(site: Path) -> list[tuple[str, str, str]]:
    config = Config()
    config.set("paths", "state_dir", str(site / "state"), "test")
    found = doctor._tick(config, Slurm(), NOW_S)
    assert all(finding.topic == "tick" for finding in found)
    return [(finding.level, finding.text, finding.mend) for finding in found]


def test_doctor_tells_mode_role_and_last_tick(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 64030)
    mode, role, last = tick_findings(site)
    assert mode[0] == "note" and '"advise"' in mode[1] and role == ("ok", "you may steer all jobs, as slurm-user", "")
    assert last == ("note", "no tick has ever acted here", "pal-rebalance --once")
    with journal():  # advice only: begun, and never acted
        pass
    assert tick_findings(site)[2][:2] == (
        "note", "no tick has ever acted here; moves under way: 0, lists of ours on jobs: 0",
    )  # fmt: skip
    with journal() as book:
        book.ticked(NOW_S - 12)
    assert tick_findings(site)[2][:2] == (
        "ok", "the last tick was 12s ago; moves under way: 0, lists of ours on jobs: 0",
    )  # fmt: skip


def test_doctor_tells_what_nobody_looks_after(site: Path) -> None:
    with journal() as book:
        book.ticked(NOW_S - 7200)
    assert tick_findings(site)[2][0] == "note"
    with journal() as book:
        book.begin(MOVE)
    level, text, mend = tick_findings(site)[2]
    assert level == "warn" and "2h ago; moves under way: 1," in text and "no process looks after them" in text
    assert mend == "pal-rebalance --once --act"
    with journal() as book:
        book.ticked(NOW_S + 900)
    assert "900 s in the future" in tick_findings(site)[2][1]


def test_doctor_of_an_ordinary_user(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, "anna", False)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    _, role, last = tick_findings(site)
    assert role[1] == "you may steer jobs of your own: pal-rebalance --mine"
    assert last[2] == "pal-rebalance --mine --once"


def test_doctor_with_a_journal_that_cannot_be_read(site: Path) -> None:
    Path(paths.journal_path(load(), False)).write_bytes(b"no database" * 500)
    assert tick_findings(site)[-1][0] == "warn"
