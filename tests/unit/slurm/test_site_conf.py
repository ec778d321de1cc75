# SPDX-License-Identifier: MIT
"""What slurm.conf says of counting."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.cluster import Counting, Partition
from slurm_pal.slurm import site_conf
from slurm_pal.slurm.parse import counting
from slurm_pal.slurm.site_conf import boots_s, pairs, site_counting

CONF = """\
# DefMemPerCPU=1
ClusterName=c
defmempercpu=500 # for each
SelectType=select/cons_tres SelectTypeParameters=CR_Core_Memory,\\
CR_ONE_TASK_PER_CORE
Include more.conf
Include missing.conf
PartitionName=gpu Nodes=ALL DefMemPerCPU=9 MaxMemPerCPU=7
"""


def test_the_sites_defaults_are_read_as_slurm_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slurm.conf").write_text(CONF)
    (tmp_path / "more.conf").write_text("DefCpuPerGPU=4 DefMemPerGPU=1000\nInclude more.conf\n")
    assert site_counting(str(tmp_path / "slurm.conf")) == Counting(True, 500, 0, 1000, 4, 0, 0, True)
    monkeypatch.setattr(site_conf, "CONFIGLESS", str(tmp_path / "sent.conf"))
    assert site_counting(str(tmp_path / "none")) == Counting()
    (tmp_path / "sent.conf").write_text("DefMemPerNode=7\n")
    assert site_counting(str(tmp_path / "none")) == Counting(mem_node_mib=7)


def test_a_partitions_own_defaults_come_first() -> None:
    site = Counting(memory=True, mem_cpu_mib=500, mem_gpu_mib=10, most_mem_cpu_mib=9)
    own = counting(
        {"DefMemPerNode": "2000", "MaxCPUsPerNode": "8", "MaxMemPerCPU": "UNLIMITED", "JobDefaults": "(null)"}
    )
    assert own.over(site) == Counting(True, 0, 2000, 10, 0, 9, 8)
    assert own.over(site).over(site) == own.over(site) and Counting().over(site) == site


def test_all_pairs_of_the_whole_cluster(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("PriorityType=priority/multifactor # ours\nSchedulerType=sched/builtin\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text("SchedulerType=sched/backfill\nNodeName=n1\ninclude more.conf\nSchedulerParameters=a=1,b\n")
    assert pairs(str(conf)) == {
        "schedulertype": "sched/builtin",
        "prioritytype": "priority/multifactor",
        "schedulerparameters": "a=1,b",
    }
    assert pairs(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {"p": 60.0, "q": 60.0, "r": 60.0}),
        ("ResumeTimeout=900\n", {"p": 900.0, "q": 900.0, "r": 900.0}),
        ("PartitionName=p ResumeTimeout=5\n", {"p": 5.0, "q": 60.0, "r": 60.0}),  # q has a node of its own
        ("partitionname=p resumetimeout=600\n", {"p": 600.0, "q": 600.0, "r": 60.0}),  # and one of p
        ("PartitionName=p ResumeTimeout=5\nPartitionName=q ResumeTimeout=7\n", {"p": 7.0, "q": 7.0, "r": 60.0}),
        ("PartitionName=p\nPartitionName=DEFAULT ResumeTimeout=9\nPartitionName=r\n", {"p": 60.0, "q": 60.0, "r": 9.0}),
        ("PartitionName=r ResumeTimeout=soon\n", {"p": 60.0, "q": 60.0, "r": 60.0}),
    ],
)
def test_how_long_nodes_may_boot(text: str, wanted: dict[str, float], tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(text)
    nodes = {"p": ("n1",), "q": ("n1", "n2"), "r": ("n3",)}
    partitions = [Partition(name, False, True, held) for name, held in nodes.items()]
    assert boots_s(str(conf), partitions) == wanted
    assert boots_s(str(conf), partitions, 30.0) == dict.fromkeys(wanted, 30.0)
