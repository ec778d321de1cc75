# SPDX-License-Identifier: MIT
"""Files of partitions: what becomes of them in slurm.conf, by release, and what is refused."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_pal.base.errors import UsageError
from slurm_pal.cli.lab import lab
from slurm_pal.lab import conf, partition_file
from slurm_pal.lab.conf import node_names
from slurm_pal.lab.directory import LabDirectory
from slurm_pal.lab.partition_file import PartitionFile

EXAMPLE = (files("slurm_pal.etc") / "lab-partitions.toml").read_text()
GUEST = '[partitions.guest]\nnodes = "ALL"\n'


def parsed(
    text: str, version: tuple[int, int] = (22, 5), accounting: bool = False, nodes: tuple[str, ...] = node_names(8)
) -> PartitionFile:
    return partition_file.parsed(tomllib.loads(text), nodes, version, accounting)


def slurm_conf(chosen: PartitionFile, version: tuple[int, int] = (22, 5)) -> list[str]:
    spec = conf.LabSpec(LabDirectory("/l"), 8, 4, 16, 64000, "me", 17000, version, partitions=chosen)
    return conf.slurm_conf_text(spec).splitlines()


@pytest.mark.parametrize("version", [(22, 5), (24, 11), (26, 5)])
def test_the_shipped_example_is_owners_over_guests(version: tuple[int, int]) -> None:
    lines = slurm_conf(parsed(EXAMPLE, version), version)
    assert lines.count("PreemptType=preempt/partition_prio") == lines.count("PreemptMode=REQUEUE") == 1
    assert [line for line in lines if line.startswith("PartitionName=")] == [
        "PartitionName=guest Nodes=n[0-7] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP "
        "OverSubscribe=NO Default=YES",
        "PartitionName=guest_waits Nodes=n[0-7] MaxTime=INFINITE State=DOWN OverSubscribe=NO",
        "PartitionName=owner Nodes=n[4-7] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP OverSubscribe=NO",
    ]


def test_no_key_is_written_twice() -> None:
    text = """[slurm]
PriorityType = "priority/multifactor"
PriorityWeightAge = 1000
KillWait = 5
PreemptParameters = "youngest_first,send_user_signal,reorder_count=3"
[partitions.one]
nodes = "ALL"
preempt = "cancel"
max_time_min = 60
"""
    for version in ((22, 5), (24, 11), (26, 5)):
        lines = slurm_conf(parsed(text, version), version)
        keys = [line.partition("=")[0] for line in lines if not line.startswith("#")]
        assert len(keys) == len(set(keys))
        pairs = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        assert pairs["PriorityType"] == "priority/multifactor" and pairs["KillWait"] == "5"
        assert (pairs["PreemptType"], pairs["PreemptMode"]) == ("preempt/partition_prio", "REQUEUE")
        if version < (23, 2):
            assert "PreemptParameters" not in pairs
            assert pairs["SlurmctldParameters"] == "preempt_send_user_signal"
            assert pairs["SchedulerParameters"] == f"{conf.SCHEDULER},preempt_youngest_first,preempt_reorder_count=3"
        else:
            assert pairs["PreemptParameters"] == "youngest_first,send_user_signal,reorder_count=3"
            assert pairs["SchedulerParameters"] == conf.SCHEDULER and "SlurmctldParameters" not in pairs
        assert pairs["PartitionName"].startswith("one Nodes=n[0-7] PreemptMode=CANCEL MaxTime=60 ")


def test_without_a_file_there_is_one_partition() -> None:
    lines = slurm_conf(conf.ONE_PARTITION)
    assert lines[-1] == "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
    assert not any("Preempt" in line for line in lines)


def test_the_first_partition_is_the_default_unless_the_file_says() -> None:
    two = GUEST + '[partitions.owner]\nnodes = "n0"\n'
    assert "Default=YES" in parsed(two).partitions["guest"] and "Default" not in parsed(two).partitions["owner"]
    other = parsed(two + "default = true\n").partitions
    assert "Default=YES" in other["owner"] and "Default" not in other["guest"]


def test_what_needs_accounting_is_written_with_it() -> None:
    text = '[slurm]\nPreemptType = "preempt/qos"\nAccountingStorageEnforce = "qos,limits"\n' + GUEST
    made = parsed(text + 'allow_qos = "normal,guest"\nallow_accounts = "guests"\nqos = "guest"\n', accounting=True)
    assert made.settings == {
        "PreemptType": "preempt/qos", "AccountingStorageEnforce": "qos,limits", "PreemptMode": "REQUEUE",
    }  # fmt: skip
    assert {"AllowQos=normal,guest", "AllowAccounts=guests", "QOS=guest"} <= set(made.partitions["guest"].split())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it has no partition: give one like"),
        ("[slurms]\n", "slurms is not known: sections [slurm] and [partitions.NAME] are"),
        ("partitions = 3\n", "partitions = 3 must be a section, [partitions]"),
        ("[partitions]\nowner = 3\n", "partitions.owner = 3 must be a section, [partitions.owner]"),
        ("[partitions.owner]\ntier = 1\n", '[partitions.owner] has no nodes: give some like nodes = "n[0-7]", or'),
        ('[partitions.o]\nnodes = ["n0"]\n', "[partitions.o] nodes = ['n0'] must be a host list in quotes"),
        ('[partitions.o]\nnodes = "n[4-9]"\n', "'n[4-9]': this lab has no node n[8-9]; it has n[0-7]"),
        ('[partitions.o]\nnodes = "n[4-"\n', "[partitions.o] cannot read the host list 'n[4-'"),
        ('[partitions.o]\nnodes = "n[0-5,7]"\n', "no partition has node n6: add it to one, or use fewer --nodes"),
        ('[partitions."o p"]\nnodes = "ALL"\n', "partition 'o p': a name has 1 to 32 letters"),
        ('[partitions.default]\nnodes = "ALL"\n', "partition 'default': a name has"),
        (GUEST + 'tier = "high"\n', "[partitions.guest] tier = 'high' must be a whole number in 0..65533"),
        (GUEST + "tier = true\n", "tier = True must be a whole number"),
        (GUEST + "tier = 70000\n", "tier = 70000 must be a whole number in 0..65533"),
        (GUEST + "grace_s = -1\n", "grace_s = -1 must be a whole number in 0..86400"),
        (GUEST + 'preempt = "suspend"\n', "preempt = 'suspend' must be off, requeue or cancel"),
        (GUEST + "preempt = []\n", "preempt = [] must be off, requeue or cancel"),
        (GUEST + "default = 1\n", "default = 1 must be true or false"),
        (GUEST + "priority = 1\n", "[partitions.guest] priority is not known: nodes, default, preempt, state, tier,"),
        (GUEST + 'default = true\n[partitions.o]\nnodes = "n0"\ndefault = true\n', "guest and o have default = true"),
        (GUEST + 'qos = "guest"\n', "[partitions.guest] qos needs slurmdbd: add --accounting"),
        (GUEST + "allow_accounts = 3\n", "allow_accounts = 3 must be names with commas"),
        (GUEST + 'qos = "night"\n', "[partitions.guest] qos = 'night' must be normal, guest or owner"),
        (GUEST + 'allow_qos = "a, b"\n', "allow_qos = 'a, b' must be some of normal,guest,owner"),
        ("slurm = 1\n" + GUEST, "slurm = 1 must be a section, [slurm]"),
        ('[slurm]\nSlurmUser = "root"\n' + GUEST, "[slurm] SlurmUser cannot be set in a lab: AccountingStorageEnf"),
        ('[slurm]\npreempttype = "preempt/qos"\n' + GUEST, "[slurm] preempttype cannot be set in a lab"),
        ('[slurm]\nPreemptType = "preempt/magic"\n' + GUEST, "'preempt/magic' must be preempt/none, preempt/part"),
        ('[slurm]\nPreemptType = "preempt/qos"\n' + GUEST, "needs slurmdbd, which has the QOS: add --accounting"),
        ('[slurm]\nPreemptMode = "SUSPEND"\n' + GUEST, "PreemptMode = 'SUSPEND' must be OFF, CANCEL or REQUEUE"),
        ('[slurm]\nPreemptMode = "REQUEUE"\n' + GUEST, "PreemptMode = 'REQUEUE' needs a PreemptType"),
        ('[slurm]\nPreemptMode = "OFF"\n' + GUEST + 'preempt = "requeue"\n', "needs CANCEL or REQUEUE"),
        ('[slurm]\nPreemptParameters = "strict_order,"\n' + GUEST, "PreemptParameters = 'strict_order,' must be send_"),
        ("[slurm]\nJobRequeue = false\n" + GUEST, "JobRequeue = False must be 0 or 1"),
        ('[slurm]\nKillWait = "2\\nSlurmUser=x"\n' + GUEST, r"KillWait = '2\nSlurmUser=x' must be seconds"),
        ("[slurm]\nPriorityWeightAge = 1.5\n" + GUEST, "PriorityWeightAge = 1.5 must be a whole number"),
        ('[slurm]\nAccountingStorageEnforce = "qos"\n' + GUEST, "AccountingStorageEnforce needs slurmdbd"),
    ],
)  # fmt: skip
def test_what_no_lab_could_start_with_is_one_line(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(text)
    assert complaint in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "No such file or directory"),
        (b"partitions", "is not TOML: "),
        (b"\xff", "is not TOML: "),
        (b"[partitions.o]\n", ": [partitions.o] has no nodes"),
    ],
)
def test_a_bad_file_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, complaint: str
) -> None:
    monkeypatch.setattr("slurm_pal.lab.lab.find_programs", lambda *_: {"slurmctld": "slurmctld"})
    monkeypatch.setattr("slurm_pal.lab.lab.slurm_version", lambda _: (22, 5))
    monkeypatch.setattr(LabDirectory, "check_name", lambda self: None)  # tmp_path may be too long
    path = tmp_path / "partitions.toml"
    if content is not None:
        path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    done = CliRunner().invoke(lab, ["up", "--dir", str(tmp_path / "lab"), "--partitions", str(path)])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"--partitions {path}") and complaint in str(done.exception)
    assert sorted(tmp_path.iterdir()) == before
