# SPDX-License-Identifier: MIT
"""Leases by the marks on jobs: when they end, what is put back, and whom a mark can hurt (only its own job)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.hostlist import MOST_NAMES
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.decide.lease import comment
from slurm_pal.decide.lease_marks import Update, ending, in_force, mark_in, marks_of
from slurm_pal.slurm.cli import CliClient

from ...doubles.answers import Answers, Told
from ...doubles.slurm_pairs import shown

NOW_S = 1_763_712_345.0
PASS_S = 3.0


def stamp(when_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when_s))


def mark(lease_s: float = 60, act: str = "nodelist", ours: str = "n2", req: str = "", exc: str = "") -> str:
    head = f"pal:lease={lease_s:g};req={req};exc={exc};class=A;from=--pal;act={act}"
    return f"{head};set={ours};why=best;slow=0.967;epoch=1763712345678"


def job(
    admin: str = "",
    own: str = "",
    req: tuple[str, ...] = (),
    exc: tuple[str, ...] = (),
    waited_s: float = 61.0,
    state: str = "PENDING",
    reason: str = "Resources",
    restarts: int = 0,
    priority: str = "4294901757",
    eligible_s: float | None = None,
) -> SlurmJob:
    submit_s = NOW_S - waited_s
    fields = {"Priority": priority, "EligibleTime": stamp(submit_s if eligible_s is None else eligible_s)}
    if admin:
        fields["AdminComment"] = admin
    plain = SlurmJob(7, state, reason, "u", "j", "gpu", {}, (), req, exc, submit_s, 0.0, 0.0, None, restarts, own, 1)
    return shown(plain, fields)


def ended(found: SlurmJob) -> dict[str, str]:
    update = ending(found, NOW_S, PASS_S)
    assert update is None or (update.job_id == 7 and update.fields)
    return update.fields if update else {}


FREED = {"ReqNodeList": ""}


@pytest.mark.parametrize(
    ("reason", "waited_s", "fields"),
    [
        ("Resources", 59.0, {}),
        ("Resources", 60.0, FREED),
        ("Priority", 61.0, FREED),
        ("None", 61.0, {}),  # Slurm has not looked at it yet
        ("None", 63.5, FREED),
        ("ReqNodeNotAvail,_UnavailableNodes:n2", 4.0, FREED),
        ("ReqNodeNotAvail,_UnavailableNodes:n2", 2.0, {}),
        ("JobHeldUser", 9999.0, {}),
        ("JobHeldAdmin", 9999.0, {}),
        ("job_requeued_in_held_state", 9999.0, {}),
        ("Dependency", 9999.0, {}),
        ("BeginTime", 9999.0, {}),
    ],
)
def test_when_a_lease_ends(reason: str, waited_s: float, fields: dict[str, str]) -> None:
    assert ended(job(mark(), req=("n2",), reason=reason, waited_s=waited_s)) == fields


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"priority": "0", "reason": "Resources"}, {}),  # held, and Slurm has not said so yet
        ({"state": "RUNNING"}, {}),
        ({"state": "COMPLETING"}, {}),
        ({"eligible_s": NOW_S - 59.0, "waited_s": 500.0}, {}),  # it may start only since then
        ({"restarts": 1, "waited_s": 1.0}, FREED),  # it started where it was promised, once
        ({"restarts": 1, "waited_s": 1.0, "reason": "None"}, {}),
        ({"restarts": 1, "waited_s": 1.0, "reason": "BeginTime"}, {}),
        ({"waited_s": -900.0}, FREED),  # the clock was set back
    ],
)
def test_what_else_decides(changed: dict[str, object], fields: dict[str, str]) -> None:
    assert ended(job(mark(), req=("n2",), **changed)) == fields  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "fields"),
    [
        (job(mark(ours="n2,n1"), req=("n1", "n2")), FREED),
        (job(mark(ours="n[1-2]"), req=("n2", "n1")), FREED),
        (job(mark(), req=("n3",)), {}),  # changed since
        (job(mark(), req=()), {}),  # cleared since
        (job(mark(ours="n1,n2", req="n1"), req=("n1", "n2")), {"ReqNodeList": "n1"}),
        (job(mark(), req=("n2",), exc=("n5",)), FREED),  # the user's own exclusion stays
        (job(mark(act="exclude", ours="n0,n1"), exc=("n0", "n1")), {"ExcNodeList": ""}),
        (job(mark(act="exclude", ours="n0", exc="n[3-4]"), exc=("n0", "n3", "n4")), {"ExcNodeList": "n[3-4]"}),
        (job(mark(act="exclude", ours="n0"), req=("n2",), exc=("n0",)), {"ExcNodeList": ""}),
        (job(mark(act="prefer", ours="pal_A_v0"), req=("n2",), exc=("n1",)), {}),
        (job(mark(act="none", ours=""), req=("n2",), exc=("n1",)), {}),
        (job("site text " + mark() + " more", req=("n2",)), FREED),
        (job(own=comment(60, "", "", "nodelist", "n2"), req=("n2",)), FREED),
        (job(own=comment(60, "", "", "nodelist", "n2"), req=("n3",)), {}),
        (job(own="pal:lease=60;req=;exc=", req=("n2",), exc=("n1",)), {}),  # says neither what was done nor which list
        (job(mark(ours=""), req=("n2",)), {}),
        (
            job(mark(act="none", ours=""), comment(60, "", "", "nodelist", "n2"), req=("n2",)),
            FREED,
        ),  # palsub came first
    ],
)
def test_what_is_put_back(found: SlurmJob, fields: dict[str, str]) -> None:
    assert ended(found) == fields


@pytest.mark.parametrize(
    "text",
    [
        "", "pal:it=1200,ips=31.2", "pal:lease", "pal:lease=", "pal:lease=-1;req=", "pal:lease=1e9;req=;exc=",
        "pal:lease=nan;req=;exc=", "pal:lease=60;req=$(reboot);exc=", "xpal:lease=60;req=;exc=",
        "pal:lease=60;req=n1\\n;exc=", "pal:lease=9999999999;req=;exc=",
    ],
)  # fmt: skip
def test_what_is_no_mark(text: str) -> None:
    assert mark_in(text) is None
    assert ended(job(text, text, req=("n2",))) == {}


def test_both_marks_are_read() -> None:
    first, second = marks_of(job(mark(ours="n2"), comment(5, "n1", "", "nodelist", "n2")))
    assert (first.lease_s, first.action, first.ours, first.words["why"]) == (60.0, "nodelist", "n2", "best")
    assert (second.lease_s, second.action, second.ours, second.user_req) == (5.0, "nodelist", "n2", "n1")


@pytest.mark.parametrize(
    "ours",
    [
        "n[0-999999999]", "n[0-999]x[0-999]", ",".join(["n[0-9999]"] * 8), "n[1", "@gpu|reboot", "n[0-99999999999999]",
        "n[5-1]",
    ],
)  # fmt: skip
def test_a_list_that_makes_no_sense_costs_nothing(ours: str) -> None:
    """Anybody may write a mark on his own job: no time, no memory and no program of the site is spent on it."""
    assert ended(job(mark(ours=ours), req=("n2",))) == {}
    assert ended(job(own=comment(60, ours, ours, "nodelist", ours), req=("n2",))) == {}


def test_a_long_list_is_still_read() -> None:
    names = tuple(f"n{i}" for i in range(MOST_NAMES))
    assert ended(job(mark(ours=f"n[0-{MOST_NAMES - 1}]"), req=names)) == FREED


@pytest.mark.parametrize(
    ("found", "lists"),
    [
        (job(mark(), req=("n2",), waited_s=1.0), {"ReqNodeList": ""}),  # in force, over or not
        (job(mark(), req=("n2",), state="RUNNING"), {"ReqNodeList": ""}),  # it started with the list
        (job(mark(), req=("n3",)), {}),
        (job(mark(act="exclude", ours="n0", exc="n3"), exc=("n0", "n3")), {"ExcNodeList": "n3"}),
        (job(mark(act="prefer", ours="pal_A_v0"), req=("n2",)), {}),
        (job(req=("n2",)), {}),
    ],
)
def test_which_lists_of_a_job_a_mark_has_set(found: SlurmJob, lists: dict[str, str]) -> None:
    assert in_force(found) == lists


NAMES = st.lists(st.sampled_from([f"n{i}" for i in range(5)]), unique=True, max_size=4).map(tuple)


@given(
    NAMES, NAMES, NAMES, NAMES, st.sampled_from(["nodelist", "exclude", "prefer", ""]), st.floats(0, 900),
    st.integers(0, 2),
    st.sampled_from(["Resources", "Priority", "None", "ReqNodeNotAvail", "JobHeldUser", "BeginTime", "QOSMaxJobs"]),
)  # fmt: skip
def test_only_our_own_lists_are_taken_back_and_the_users_are_kept(
    user: tuple[str, ...], ours: tuple[str, ...], req: tuple[str, ...], exc: tuple[str, ...], act: str,
    waited_s: float, restarts: int, reason: str,
) -> None:  # fmt: skip
    text = mark(60, act, ",".join(ours), ",".join(user), ",".join(user))
    fields = ended(job(text, req=req, exc=exc, waited_s=waited_s, restarts=restarts, reason=reason))
    if reason in ("JobHeldUser", "BeginTime") or (waited_s < 60 and not restarts and reason != "ReqNodeNotAvail"):
        assert fields == {}
    for key, text in fields.items():
        present = {"ReqNodeList": req, "ExcNodeList": exc}[key]
        assert text == ",".join(user) and set(present) != set(user)
        assert ours and set(present) in (set(ours), set(ours) | set(user))
        assert key == {"nodelist": "ReqNodeList", "exclude": "ExcNodeList"}[act]
    if act == "nodelist" and ours and not set(user) & set(ours) and waited_s > 64 and reason == "Resources":
        assert ended(job(text_of(ours, user), req=ours + user, waited_s=waited_s)) == {"ReqNodeList": ",".join(user)}


def text_of(ours: tuple[str, ...], user: tuple[str, ...]) -> str:
    return mark(60, "nodelist", ",".join(ours + user), ",".join(user))


@pytest.mark.parametrize("key", ["admin", "comment"])
def test_the_bulk_query_keeps_a_pending_job_with_a_mark(key: str) -> None:
    waits = Told(7, state="PENDING", nodes="", **{key: mark(act="exclude", ours="n1")})  # type: ignore[arg-type]
    client = CliClient(Answers([waits, Told(8, state="PENDING", nodes="")]))
    assert [one.job_id for one in client.overview(marked=True).jobs] == [7] and client.overview().jobs == ()


def test_each_job_has_its_own_update() -> None:
    jobs = [job(mark(), req=("n2",))._replace(job_id=number) for number in (1, 2)]
    found = [ending(one, NOW_S, PASS_S) for one in (*jobs, job())]
    assert found == [Update(1, FREED), Update(2, FREED), None]
