# SPDX-License-Identifier: MIT
"""Whether a site is set up for loans: each thing that is amiss is one line, and then nothing is lent."""

from __future__ import annotations

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import ConfigError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.loans.terms import BY_QOS, LoanTerms, Preemption, preemption_of, refused, terms_of, unpreempted
from slurm_pal.slurm.client import Overview

OWNER = Partition("owner", False, True, ("n2", "n3"), tier=10, preempt="OFF")
GUEST = Partition("guest", True, True, ("n0", "n1", "n2", "n3"), tier=1, preempt="REQUEUE")
TERMS = LoanTerms(("owner",), "guest")
GOOD = Preemption("preempt/partition_prio")
JOB = SlurmJob(7, "RUNNING", "None", "ann", "x", "guest", {}, ("n2",), (), (), 0.0, 0.0, 0.0, None, 0, "", 1)


def why(
    terms: LoanTerms = TERMS, owner: Partition | None = OWNER, guest: Partition | None = GUEST, slurm: Preemption = GOOD
) -> str:
    parts = tuple(part for part in (owner, guest) if part is not None)
    return refused(terms, Overview((), (), parts, {}), slurm)


def test_a_site_that_is_set_up() -> None:
    assert why() == ""
    assert why(slurm=GOOD._replace(limits="")) == "" and why(guest=GUEST._replace(preempt="CANCEL")) == ""
    assert why(guest=GUEST._replace(preempt="OFF", tier=10), slurm=Preemption(BY_QOS)) == ""  # QOS decide there


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"terms": TERMS._replace(guest="")}, "loan.guest is not"),
        ({"owner": None}, "no partition 'owner' ([loan] in pal.toml); it has guest"),
        ({"guest": None}, "no partition 'guest' ([loan] in pal.toml); it has owner"),
        ({"terms": TERMS._replace(owners=("owner", "guest"))}, "guest is both in loan.owners and loan.guest"),
        ({"owner": OWNER._replace(nodes=())}, "owner partition owner has no nodes: set Nodes in slurm.conf"),
        ({"slurm": GOOD._replace(limits="ALL")}, "EnforcePartLimits=ALL would refuse guests"),
        ({"slurm": GOOD._replace(limits="ANY")}, "loans need EnforcePartLimits=NO"),
        ({"slurm": Preemption("preempt/none")}, "PreemptType=preempt/none lets owners wait"),
        ({"slurm": Preemption()}, "PreemptType=unknown lets owners wait"),
        ({"guest": GUEST._replace(preempt="OFF")}, "PreemptMode=OFF of partition guest lets owners wait"),
        ({"guest": GUEST._replace(preempt="GANG,SUSPEND")}, "it must be REQUEUE or CANCEL"),
        ({"owner": OWNER._replace(tier=1)}, "PriorityTier=1 of partition owner is not above that of guest (1)"),
    ],
)
def test_what_is_amiss_is_one_line(changes: dict[str, object], words: str) -> None:
    line = why(**changes)  # type: ignore[arg-type]
    assert line.startswith("nothing is lent: ") and words in line and "\n" not in line


def test_what_slurm_says_of_preemption() -> None:
    pairs = {"PreemptType": "preempt/qos", "EnforcePartLimits": "ANY"}
    assert preemption_of(pairs) == Preemption("preempt/qos", "ANY", None)
    assert preemption_of({}, frozenset({"low"})) == Preemption("", "NO", frozenset({"low"}))


def test_the_settings() -> None:
    config = Config()
    assert terms_of(config) is None
    config.set("loan", "owners", " b, a,,b", "test")
    config.set("loan", "guest", "guest ", "test")
    found = terms_of(config)
    assert found is not None and (found.owners, found.guest, found.key) == (("b", "a"), "guest", "a,b")
    assert (found.interval_s, found.grace_s, found.headroom, found.quantile) == (300.0, 60.0, 0.02, 0.75)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_s", -5), ("interval_s", 0.9), ("interval_s", "soon"), ("interval_s", "nan"), ("grace_s", -1),
        ("headroom", -0.1), ("headroom", 1.1), ("quantile", 2), ("quantile", "95 %"), ("history_d", 0),
        ("owners", ["a", "b"]), ("guest", 3),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_with_their_name_and_value(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Config().set("loan", name, value, "pal.toml")
    assert f"loan.{name}" in str(caught.value) and "\n" not in str(caught.value)


def test_guests_that_no_qos_may_preempt() -> None:
    slurm = Preemption(BY_QOS, "NO", frozenset({"low"}))
    jobs = [JOB._replace(job_id=k, qos=qos) for k, qos in enumerate(["low", "high", "high", "", "low"])]
    lines = unpreempted(jobs, slurm)
    assert len(lines) == 2 and "QOS (none)" in lines[0] and "job 3" in lines[0]
    assert "QOS high" in lines[1] and "jobs 1, 2:" in lines[1] and "set preempt+=high" in lines[1]
    assert unpreempted(jobs, GOOD) == [] and unpreempted(jobs, Preemption(BY_QOS)) == []
    many = [JOB._replace(job_id=k, qos="high") for k in range(9)]
    assert "0, 1, 2, 3, 4, ...:" in unpreempted(many, slurm)[0]


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.0-0rc1", ""])
def test_releases_that_refuse_guests_need_a_partition_to_wait_in(version: str) -> None:
    slurm = GOOD._replace(version=version)
    said = why(slurm=slurm)
    assert (said == "") == (version in ("22.05.8", "")), said
    assert not said or ("loan.waits" in said and version in said)


WAITS = Partition("waits", False, False, GUEST.nodes)


@pytest.mark.parametrize(
    ("waits", "name", "said"),
    [
        (WAITS, "waits", ""), (WAITS, "other", "no partition 'other'"), (WAITS, "guest", "of its own"),
        (WAITS._replace(up=True), "waits", "is UP"), (WAITS._replace(nodes=GUEST.nodes[1:]), "waits", "lacks n0"),
    ],
)  # fmt: skip
def test_the_partition_to_wait_in(waits: Partition, name: str, said: str) -> None:
    terms = LoanTerms(("owner",), "guest", waits=name)
    seen = Overview((), (), (GUEST, OWNER, waits), {})
    found = refused(terms, seen, GOOD._replace(version="24.11.5"))
    assert said in found and bool(found) == bool(said)
