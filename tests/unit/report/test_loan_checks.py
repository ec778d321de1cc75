# SPDX-License-Identifier: MIT
"""pal doctor on loans: whether they can work here, and whether a list of ours stands that nobody takes back."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from slurm_pal.base.cluster import Node, Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import SlurmError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.journal import paths
from slurm_pal.journal.journal import LoanList, LoanOrder, open_journal
from slurm_pal.report.check_result import CheckResult
from slurm_pal.report.loan_checks import loan_checks
from slurm_pal.slurm.cli import CliClient
from slurm_pal.slurm.client import Completed, Overview
from slurm_pal.store import heartbeat

NOW_S = 1_800_000_000.0
GUEST = Partition("guest", True, True, ("n0", "n3"), tier=1, preempt="REQUEUE")
OWNER = Partition("owner", False, True, ("n2", "n3"), tier=10, preempt="OFF")
LISTED = LoanList("guest", "n[0-3]", "n[0,3]", "n[0-3]", NOW_S - 20, NOW_S + 600)


class Slurm(CliClient):
    """A Slurm of which only the configuration is asked."""

    pairs: ClassVar[dict[str, str]] = {"PreemptType": "preempt/partition_prio", "EnforcePartLimits": "NO"}

    def config(self) -> dict[str, str]:
        if not self.pairs:
            raise SlurmError("slurmctld is down")
        return self.pairs


def guest(number: int, **more: object) -> SlurmJob:
    shown = SlurmJob(
        number, "RUNNING", "None", "anna", "train", "guest", {}, ("n3",), (), (), 0.0, 0.0, 0.0, None, 0, "", 1,
        qos="low",
    )  # fmt: skip
    return shown._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(paths, "has_powers", lambda: True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    found = Config()
    for section, name, value in (
        ("paths", "state_dir", str(tmp_path)), ("loan", "owners", "owner"), ("loan", "guest", "guest"),
    ):  # fmt: skip
        found.set(section, name, value, "test")
    return found


def overview(*jobs: SlurmJob) -> Overview:
    nodes = tuple(Node(f"n{k}", frozenset({"IDLE"}), ("",), 0, 4, 0, 10, 0, frozenset(), ()) for k in range(4))
    return Overview(nodes, jobs, (GUEST, OWNER), {})


def checks(config: Config, *jobs: SlurmJob, pairs: dict[str, str] | None = None, qos: str = "") -> list[CheckResult]:
    slurm = Slurm()
    slurm.pairs = Slurm.pairs if pairs is None else pairs  # type: ignore[misc]
    return loan_checks(config, slurm, overview(*jobs), NOW_S, lambda argv, text: Completed(0, qos, ""))


def test_a_site_that_lends_nothing_hears_nothing(config: Config) -> None:
    config.set("loan", "owners", "", "test")
    assert checks(config) == []


def test_what_is_lent_and_that_a_closed_node_may_not_be_named(config: Config) -> None:
    lent, named, slurm = checks(config)
    assert lent.level == "ok"
    assert lent.text == "owner lends to guest: 2 nodes, 0 in use by it, 1 open to guests, 1 closed"
    assert named.level == "note" and "(-w NODE)" in named.text and "name a node of n2 " in named.text
    assert "Requested node configuration is not available" in named.text
    assert slurm.level == "ok" and "EnforcePartLimits=NO" in slurm.text


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ({"PreemptType": "preempt/none"}, "PreemptType=preempt/none"),
        ({**Slurm.pairs, "EnforcePartLimits": "ALL"}, "EnforcePartLimits=ALL"),
    ],
)
def test_why_nothing_can_be_lent(config: Config, pairs: dict[str, str], why: str) -> None:
    (found,) = checks(config, pairs=pairs)
    assert found.level == "warn" and why in found.text and "nothing is lent" in found.text
    assert checks(config, pairs={}) == [], "that Slurm does not answer is said elsewhere"


def test_guests_whom_no_owner_may_preempt(config: Config) -> None:
    pairs = {"PreemptType": "preempt/qos", "AccountingStorageType": "accounting_storage/slurmdbd"}
    warned = [one for one in checks(config, guest(5), pairs=pairs, qos="other\n") if one.level == "warn"]
    (found,) = warned
    assert "QOS low" in found.text and "5" in found.text and found.mend.startswith("sacctmgr modify qos")
    assert not [one for one in checks(config, guest(5), pairs=pairs, qos="low\n") if one.level == "warn"]


def test_guests_that_slurm_holds_since_no_node_was_left_for_them(config: Config) -> None:
    held = guest(6, state="PENDING", nodes=(), reason="BadConstraints", priority=0, req_nodes=("n2",))
    others = (held._replace(job_id=7, reason="JobHeldUser"), held._replace(job_id=8, priority=4))
    (found,) = (one for one in checks(config, held, *others, held._replace(partition="x")) if one.level == "warn")
    assert found.mend == "scontrol release 6"


def test_what_the_first_tick_is_for(config: Config, tmp_path: Path) -> None:
    with open_journal(str(tmp_path / "rebalance.db")) as journal:
        assert [one.text for one in checks(config) if "first tick" in one.text]
        journal.add_demand("owner", {int(NOW_S // 3600): 1.0}, 0)
        assert not [one.text for one in checks(config) if "first tick" in one.text]
        journal.add_loan_order(LoanOrder("guest", NOW_S - 120, True, 2, 0, 0, 1.0, 1, "n3", "owners need more"))
        (last,) = (one for one in checks(config) if "order" in one.text)
        assert last.text == "the last order was 2m ago: 1 of 2 nodes may be open (owners need more)"


def test_a_list_of_ours_and_who_takes_it_back(config: Config, tmp_path: Path) -> None:
    with open_journal(str(tmp_path / "rebalance.db")) as journal:
        journal.set_loan_list(LISTED)
    (found,) = (one for one in checks(config) if "from us" in one.text)
    assert found.level == "warn" and found.mend.startswith("pal-rebalance --withdraw")
    assert found.text == (
        "partition guest has n[0,3] from us in place of n[0-3], for 10 min unless it is renewed; no live process takes "
        "that back"
    )
    heartbeat.beat(config.snapshot_path, NOW_S, 3.0)
    (found,) = (one for one in checks(config) if "from us" in one.text)
    assert found.level == "ok" and found.text.endswith("a live process takes that back")
    config.set("loan", "owners", "", "test")
    assert [one.level for one in checks(config)] == ["ok"], "also where nothing is lent any more"
    for other, why in (
        (LISTED._replace(ours="n[0,2]", before="n0"), "slurmctld has read slurm.conf anew"),
        (LISTED._replace(own="n[0,3]", before="n[0,3]"), "it has its own list: the guard gave it back"),
    ):
        with open_journal(str(tmp_path / "rebalance.db")) as journal:
            journal.set_loan_list(other)
        assert checks(config) == [], why
