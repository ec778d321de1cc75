# SPDX-License-Identifier: MIT
"""Who may do what, and when slurmctld is left alone."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

import pytest

from slurm_pal.base.errors import SlurmError, UsageError
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed
from slurm_pal.slurm.diag import busy
from slurm_pal.slurm.fake import FakeSlurm
from slurm_pal.tick.role import COMMENT, FEATURES, LOANS, OTHERS, OWN, PLACES, WAIT, WEIGHTS, Role, role_of

OWNER, NOBODY = 64030, 65534
PAIRS = {"SlurmUser": f"slurm({OWNER})", "AccountingStorageType": "accounting_storage/slurmdbd"}
ALL = frozenset({OWN, OTHERS, COMMENT, FEATURES, WEIGHTS, PLACES, WAIT, LOANS})


class Sacctmgr:
    """Answers as sacctmgr does, or not at all."""

    def __init__(self, text: str = "", returncode: int = 0, away: bool = False) -> None:
        self.done, self.away, self.calls = Completed(returncode, text, ""), away, 0

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        self.calls += 1
        assert argv[0] == "sacctmgr" and "user" in argv and "format=AdminLevel" in argv
        if self.away:
            raise SlurmError("sacctmgr is not in PATH")
        return self.done


def role(uid: int, mine: bool = False, run: Sacctmgr | None = None, **pairs: str) -> Role:
    return role_of(CliClient(FakeSlurm()), PAIRS | pairs, mine, (FEATURES, WEIGHTS), run or Sacctmgr(), uid)


@pytest.mark.parametrize("uid", [0, OWNER])
def test_slurm_user_and_root_may_everything(uid: int) -> None:
    run = Sacctmgr(away=True)
    found = role(uid, run=run)
    assert (found.name, found.may, found.cannot, run.calls) == ("slurm-user", ALL, (), 0)


@pytest.mark.parametrize("level", ["Operator\n", "Administrator\n"])
def test_an_operator_by_slurmdbd(level: str) -> None:
    found = role(NOBODY, run=Sacctmgr(level))
    assert (found.name, found.may) == ("operator", {OWN, OTHERS, PLACES, WAIT})
    assert found.cannot == (
        "class features are not published: only SlurmUser (slurm) and root may change nodes",
        "node weights are not set: only SlurmUser (slurm) and root may change nodes",
    )


@pytest.mark.parametrize(
    ("run", "why"), [(Sacctmgr("Operator\n", 1), "exit code 1"), (Sacctmgr(away=True), "sacctmgr is not in PATH")]
)
def test_an_operator_is_not_taken_for_another_while_slurmdbd_is_away(run: Sacctmgr, why: str) -> None:
    with pytest.raises(SlurmError, match=rf"^slurmdbd does not answer, .* operator \({why}\): .* pal-rebalance --mine"):
        role(NOBODY, run=run)
    assert role(NOBODY, mine=True, run=run).name == "user" and run.calls == 1


@pytest.mark.parametrize("run", [Sacctmgr("None\n"), Sacctmgr()])
def test_everybody_else_needs_mine(run: Sacctmgr) -> None:
    with pytest.raises(UsageError, match=r"nobody is neither SlurmUser .slurm., root .*pal-rebalance --mine"):
        role(NOBODY, run=run)
    assert run.calls == 1
    found = role(NOBODY, mine=True, run=run)
    assert (found.name, found.user, found.may) == ("user", pwd.getpwuid(NOBODY).pw_name, {OWN})
    assert len(found.cannot) == 2 and run.calls == 1


def test_one_line_says_that_a_user_cannot_order_the_queue() -> None:
    run = Sacctmgr("None\n")
    asked = role_of(CliClient(FakeSlurm()), PAIRS, True, (PLACES,), run, NOBODY)
    (line,) = asked.cannot
    assert "the queue keeps Slurm's order (rebalance.order): only a Slurm operator, SlurmUser (slurm)" in line
    assert role_of(CliClient(FakeSlurm()), PAIRS, False, (PLACES,), Sacctmgr("Operator\n"), NOBODY).cannot == ()


def test_without_a_database_there_are_no_operators() -> None:
    run = Sacctmgr("Operator\n")
    with pytest.raises(UsageError):
        role(NOBODY, run=run, AccountingStorageType="accounting_storage/none")
    assert run.calls == 0


def test_only_what_is_asked_for_is_mentioned() -> None:
    found = role_of(CliClient(FakeSlurm()), PAIRS, True, (WEIGHTS,), None, NOBODY)
    assert found.cannot == ("node weights are not set: only SlurmUser (slurm) and root may change nodes",)
    assert role_of(CliClient(FakeSlurm()), PAIRS, True, (), None, NOBODY).cannot == ()
    (line,) = role_of(CliClient(FakeSlurm()), PAIRS, True, (WAIT,), None, NOBODY).cannot
    assert "rebalance.wait" in line and "only SlurmUser (slurm), root and Slurm operators may reserve nodes" in line


def test_root_that_asks_for_his_own_jobs_is_a_user() -> None:
    assert role(0, mine=True).name == "user"


def test_slurm_is_asked_where_nothing_is_known_and_a_user_may_have_no_name() -> None:
    assert role_of(CliClient(FakeSlurm()), {}, False, uid=0).name == "slurm-user"
    with pytest.raises(UsageError, match=r"^3999999999 is neither SlurmUser .unknown., "):
        role_of(CliClient(FakeSlurm()), {"Other": "1"}, False, uid=3999999999)
    assert role_of(CliClient(FakeSlurm()), {}, True).user == pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize(
    ("statistics", "told"),
    [
        ({}, ""),
        ({"Server thread count": "63", "Agent queue size": "99"}, ""),
        ({"Server thread count": "64", "Agent queue size": "0"}, "server thread count 64, and from 64 "),
        ({"Server thread count": "3", "Agent queue size": "100"}, "agent queue size 100, and from 100 "),
        ({"Server thread count": "many"}, ""),
    ],
)  # fmt: skip
def test_busy(statistics: dict[str, str], told: str) -> None:
    found = busy(statistics, 64)
    assert told in found and bool(found) is bool(told)
