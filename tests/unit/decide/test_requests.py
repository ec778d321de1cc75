# SPDX-License-Identifier: MIT
"""What a job in the queue asks for, and whose it is to steer: from what Slurm prints of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.jobs import GpuShape, SlurmJob
from slurm_pal.decide.facts import Facts, MoveSettings, appends, facts_of, is_ours
from slurm_pal.decide.job_request import request_of
from slurm_pal.decide.lease import comment
from slurm_pal.decide.request import Request
from slurm_pal.slurm.parse import job as parse_job
from slurm_pal.submit.argv import parse
from slurm_pal.submit.options import build

DATA = Path(__file__).parents[2] / "data"
PLAIN = (
    "JobId=2 JobName=wrap UserId=u(1000) Priority=4294901757 QOS=normal JobState=PENDING Reason=Resources "
    "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 TimeLimit=UNLIMITED Partition=gpu "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=1,mem=500M,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 "
    "MinMemoryCPU=500M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=(null) WorkDir=/ Power= TresPerNode=gres:gpu:1 "
)
"""`sbatch --gres=gpu:1` on 22.05.8, where memory is counted and DefMemPerCPU is 500."""


def job(changes: str = "", drop: tuple[str, ...] = ()) -> SlurmJob:
    """The plain job with other values, `Key=value` separated by blanks (`~` is a blank in a value)."""
    pairs = dict(word.split("=", 1) for word in PLAIN.split())
    pairs |= dict(word.replace("~", " ").split("=", 1) for word in changes.split())
    return parse_job(" ".join(f"{key}={text}" for key, text in pairs.items() if key not in drop))


def submitted(words: str) -> Request:
    return build(parse([*words.split(), "--partition=gpu", "--wrap", "true"]), {}, None)


MEMORY = "--mem-per-cpu=500 --mincpus=1 --cpus-per-task=1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # What scontrol 22.05.8 prints while the job waits, and what sbatch was given.
        ("", f"--gres=gpu:1 -n1 {MEMORY}"),
        ("TresPerNode=gres:gpu", f"--gres=gpu -n1 {MEMORY}"),
        ("TresPerNode=gres:gpu:v100:2", f"--gres=gpu:v100:2 -n1 {MEMORY}"),
        ("NumCPUs=8 NumTasks=8 TRES=cpu=8,mem=4000M,node=1", f"-n8 --gres=gpu:1 {MEMORY}"),
        ("NumNodes=1-1 NumCPUs=8 NumTasks=8", f"-N1 -n8 --gres=gpu:1 {MEMORY}"),
        ("NumNodes=2-2 NumCPUs=2 NumTasks=2 TRES=cpu=2,node=2", f"-N2 -n2 --gres=gpu:1 {MEMORY}"),
        ("NumNodes=3-3 NumCPUs=1 NumTasks=2 TRES=cpu=1,mem=500M,node=2", f"-N2-3 --gres=gpu:1 {MEMORY}"),
        ("NumNodes=1-3 TRES=cpu=1,node=1", f"-N1-3 --gres=gpu:1 {MEMORY}"),
        (
            "NumNodes=2-2 NumCPUs=6 NumTasks=6 NtasksPerN:B:S:C=3:0:*:* MinCPUsNode=3 TRES=cpu=6,node=2",
            "-N2 -n6 --ntasks-per-node=3 --gres=gpu:1 --mem-per-cpu=500 --mincpus=3 --cpus-per-task=1",
        ),
        (
            "NumNodes=2 NumCPUs=6 NumTasks=6 NtasksPerN:B:S:C=3:0:*:* MinCPUsNode=3 TRES=cpu=6,node=1",
            "-n6 --ntasks-per-node=3 --gres=gpu:1 --mem-per-cpu=500 --mincpus=3 --cpus-per-task=1",
        ),
        (
            "NumNodes=2 NumCPUs=4 NumTasks=4 NtasksPerN:B:S:C=2:0:*:* TresPerTask=gres:gpu:1 TresPerNode=",
            f"-n4 --ntasks-per-node=2 --gpus-per-task=1 {MEMORY}",
        ),
        ("TresPerNode= TresPerJob=gres:gpu:1", f"-G1 -n1 {MEMORY}"),
        ("TresPerNode= TresPerJob=gres/gpu:1", f"-G1 -n1 {MEMORY}"),
        ("TresPerNode= TresPerJob=gres:gpu:3 NumNodes=1-1", f"-G3 -N1 -n1 {MEMORY}"),
        (
            "TresPerNode= TresPerJob=gres/gpu:v100:3 NumNodes=2-2 NumTasks=2 NumCPUs=2 TRES=node=2",
            f"-Gv100:3 -N2 -n2 {MEMORY}",
        ),
        ("TresPerNode= TresPerTask=cpu=1,gres/gpu=2 NumNodes=1-1", f"--gpus-per-task=2 -N1 -n1 {MEMORY}"),
        ("TresPerTask=cpu=3 NumCPUs=3 CPUs/Task=3 MinCPUsNode=3", "--gres=gpu:1 -n1 -c3 --mem-per-cpu=500 --mincpus=3"),
        ("CpusPerTres=gres:gpu:3", f"--gres=gpu:1 -n1 --cpus-per-gpu=3 {MEMORY}"),
        ("MemPerTres=gres:gpu:700", "--gres=gpu:1 -n1 --mem-per-gpu=700 --mincpus=1"),
        ("MinMemoryCPU= MinMemoryNode=3G", "--gres=gpu:1 -n1 --mem=3G --mincpus=1"),
        ("MinMemoryCPU= MinMemoryNode=62.50G", "--gres=gpu:1 -n1 --mem=64000 --mincpus=1"),
        ("MinMemoryCPU= MinMemoryNode=0", "--gres=gpu:1 -n1 --mem=0 --mincpus=1"),
        ("OverSubscribe=NO", f"--gres=gpu:1 -n1 --exclusive {MEMORY}"),
        (
            "OverSubscribe=NO TresPerNode= NumNodes=2-2 NumTasks=2 NumCPUs=2 TRES=node=2",
            f"--exclusive -N2 -n2 {MEMORY}",
        ),
        ("OverSubscribe=YES", f"--gres=gpu:1 -n1 --oversubscribe {MEMORY}"),
        ("OverSubscribe=NO Exclusive=NO", f"--gres=gpu:1 -n1 {MEMORY}"),  # 26.05
        ("NumTasks=30", f"--gres=gpu:1 --overcommit -n30 {MEMORY}"),
        ("ReqNodeList=n2 NumNodes=2-2 NumTasks=2 NumCPUs=2 TRES=node=2", f"--gres=gpu:1 -N2 -n2 -w n2 {MEMORY}"),
        ("ExcNodeList=n[2-3]", f"--gres=gpu:1 -n1 -x n2,n3 {MEMORY}"),
        ("TimeLimit=1-00:10:00", f"--gres=gpu:1 -n1 -t 1450 {MEMORY}"),
        ("Features=big|small", f"--gres=gpu:1 -n1 -C big|small {MEMORY}"),
        ("Reservation=maint", f"--gres=gpu:1 -n1 --reservation=maint {MEMORY}"),
        ("Prefer=pal_A_v0|pal_A_v1", f"--gres=gpu:1 -n1 {MEMORY}"),  # the filter's, and soft
        ("Partition=gpu Licenses=matlab:1 Deadline=N/A", f"--gres=gpu:1 -n1 {MEMORY}"),
        ("JobId=51 ArrayJobId=50 ArrayTaskId=7", f"--gres=gpu:1 -n1 {MEMORY}"),
        ("TresPerNode=", f"-n1 {MEMORY}"),
        ("NtasksPerN:B:S:C=0:0:*:1", f"--gres=gpu:1 -n1 --ntasks-per-core=1 {MEMORY}"),
        ("NtasksPerN:B:S:C=0:0:2:*", f"--gres=gpu:1 -n1 --ntasks-per-socket=2 {MEMORY}"),
        ("ReqB:S:C:T=0:0:*:1", f"--gres=gpu:1 -n1 --hint=nomultithread {MEMORY}"),
        ("ReqB:S:C:T=0:2:*:*", f"--gres=gpu:1 -n1 --sockets-per-node=2 {MEMORY}"),
        ("CoreSpec=2", f"--gres=gpu:1 -n1 --core-spec=2 {MEMORY}"),
        ("TresPerNode=gres:gpu:1,gres:nvme:2", f"--gres=gpu:1,nvme:2 -n1 {MEMORY}"),
        ("TresPerNode=gres/gpu:1,gres/vmem:a:4G", f"--gres=gpu:1,vmem:a:4G -n1 {MEMORY}"),
    ],
)
def test_a_waiting_job_is_read_as_its_submission_was(changes: str, words: str) -> None:
    found, wanted = request_of(job(changes)), submitted(words)
    assert not wanted.leave
    assert found._replace(submitted=True) == wanted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ("HetJobId=7 HetJobOffset=0", "heterogeneous"),
        ("JobId=6 ArrayJobId=6 ArrayTaskId=1-3%1", "array"),
        ("JobId=6 ArrayJobId=6 ArrayTaskId=3", "array"),  # the one task that bears the array's own id
        ("Partition=gpu,long", "partitions gpu,long"),
        ("Dependency=afterany:1(unfulfilled) Reason=Dependency", "--dependency"),
        ("Reason=BeginTime", "--begin"),
        ("Switches=1@00:05:00", "--switches"),
        ("Contiguous=1", "--contiguous"),
        ("Reboot=1", "--reboot"),
        ("SegmentSize=4", "--segment"),
        ("Prefer=gold", "--prefer"),
        ("Prefer=pal_A_v0&gold", "--prefer"),
        ("BurstBuffer=#BB", "burst buffers"),
        ("ClusterFeatures=x", "--cluster-constraint"),
        ("BatchFeatures=x", "--batch"),
        ('Extra={"a":1}', "--extra"),
        ("MinTmpDiskNode=1G", "--tmp"),
        ("TresPerNode= TresPerSocket=gres:gpu:1", "--gpus-per-socket"),
        ("TresPerJob=gres:gpu:2 TresPerNode= NtasksPerTRES=2 NumNodes=1-1", "--ntasks-per-gpu"),
        ("TresPerNode= TresPerJob=gres:gpu:3", "open number of nodes"),
        ("TresPerNode= TresPerTask=gres/gpu=1 NumTasks=3 NumCPUs=3", "open number of nodes"),
        ("TresPerNode= TresPerJob=gres:gpu:3,gres:nic:1 NumNodes=1-1", "not only GPUs"),
        ("TresPerNode=gres:gpu:1,gres:shard:1", "shard"),
        ("OverSubscribe=USER", "--exclusive=user"),
        ("OverSubscribe=ODD", "OverSubscribe=ODD"),
        ("OverSubscribe=NO Exclusive=NODE", "Exclusive=NODE"),
        ("Restarts=1 NumNodes=2 NumTasks=2 NumCPUs=2", "restart"),
        ("ReqNodeList=n2", "--nodelist names"),
        ("MinMemoryCPU=lots", "lots is not an amount of memory"),
        ("CpusPerTres=gres:gpu:v100:3", "--cpus-per-gpu"),
    ],
)
def test_what_cannot_be_mapped_is_left_to_slurm(changes: str, reason: str) -> None:
    assert reason in request_of(job(changes)).leave


@pytest.mark.parametrize(
    ("changes", "nodes", "shape"),
    [
        ("NodeList=n2 NumNodes=1 NumCPUs=8 NumTasks=8", 1, GpuShape(1, 1, 1)),
        ("NodeList=n[2-3] NumNodes=2 NumCPUs=20 NumTasks=20", 2, GpuShape(2, 2, 1)),
        ("NodeList=n2 NumNodes=1 TresPerNode= TresPerJob=gres:gpu:3", 1, GpuShape(3, 1)),
        (
            "NodeList=n[1-2] NumNodes=2 OverSubscribe=NO TresPerNode= NumCPUs=32 NumTasks=2",
            2,
            GpuShape(2, 2, 1, "", True),
        ),
    ],
)
def test_a_running_job_keeps_its_number_of_nodes(changes: str, nodes: int, shape: GpuShape) -> None:
    found = request_of(job(f"JobState=RUNNING Reason=None {changes}"))
    assert (found.leave, found.nodes_min, found.nodes_max, found.shape) == ("", nodes, nodes, shape)


def test_a_running_total_on_several_nodes_is_left() -> None:
    spread = job("JobState=RUNNING NodeList=n[1-2] NumNodes=2 TresPerNode= TresPerJob=gres:gpu:6")
    assert "spread" in request_of(spread).leave


def test_a_list_of_ours_is_not_the_users() -> None:
    pinned = job("ReqNodeList=n2 ExcNodeList=n[0-1]")
    found = request_of(pinned, own_req="", own_exc="n1")
    assert (found.leave, found.req_nodes, found.exc_nodes) == ("", (), ("n1",))
    mark = comment(60, "", "n1", "exclude", "n0,n1")
    marked = request_of(job(f"ExcNodeList=n[0-1] Comment={mark}"))
    assert marked.exc_nodes == ("n1",)
    started = job(f"JobState=RUNNING NodeList=n2 ReqNodeList=n2 Comment={comment(60, '', '', 'nodelist', 'n2')}")
    assert (request_of(started).leave, request_of(started).req_nodes) == ("", ())
    changed = request_of(job(f"ExcNodeList=n[0-3] Comment={mark}"))
    assert changed.exc_nodes == ("n0", "n1", "n2", "n3")  # his own since


@pytest.mark.parametrize("release", ["22.05.8", "24.11.5", "26.05.5"])
def test_real_jobs_of_three_releases(release: str) -> None:
    lines = (DATA / f"slurm-{release}" / "scontrol_jobs.txt").read_text().splitlines()
    found = {made.name: request_of(made) for line in lines if line for made in [parse_job(line)]}
    assert found["one"].shape == GpuShape(1, 1, 1, "v100") and found["one"].nodes_max == 1
    assert found["multi"].shape == GpuShape(4, 2, 2, "v100")
    assert found["pend"].shape == GpuShape(8, 2, 4) and not found["pend"].leave
    assert "array" in found["arr"].leave and "heterogeneous" in found["het"].leave
    assert found["gpus3"].leave.startswith("--extra") or found["gpus3"].shape == GpuShape(1, 1)
    assert all(one.mem_per_node_mib == 0 for one in found.values() if not one.leave)


@given(st.dictionaries(st.sampled_from([w.split("=")[0] for w in PLAIN.split()]), st.text(max_size=12)))
def test_strange_values_never_raise(changes: dict[str, str]) -> None:
    plain = job()
    strange = plain._replace(raw=plain.raw | changes, partition=changes.get("Partition", "gpu"))
    found = request_of(strange)
    assert found.leave or found.shape is None or found.shape.total > 0


# -- whose it is, its class, whether it may be moved ---------------------------------------------

FILTER = "pal:lease=60;req=;exc=;class=B;from=#PAL;act=exclude;set=n0;why=slow;epoch=1"


@pytest.mark.parametrize(
    ("changes", "ours", "sensitivity", "origin"),
    [
        ("", False, "?", ""),
        ("Comment=mine", False, "?", ""),
        ("Comment=note~pal:job=A;from=--pal-class~more", True, "A", "--pal-class"),
        ("Comment=pal:job=?;from=default", True, "?", "default"),
        ("Comment=pal:job=Z;from=x", True, "?", "x"),
        (f"AdminComment={FILTER}", True, "B", "#PAL"),
        (f"Comment={FILTER}", True, "B", "#PAL"),
        ("AdminComment=pal:class=C;from=app:lammps;act=none;why=full;epoch=-", True, "C", "app:lammps"),
        (f"Comment=pal:job=A;from=--pal-class AdminComment={FILTER}", True, "A", "--pal-class"),
        ("AdminComment=pal:class=A;from=#PAL;act=none;why=off;epoch=-", False, "A", "#PAL"),
        ("Comment=pal:job=A;from=x AdminComment=pal:class=A;from=x;act=none;why=off;epoch=-", False, "A", "x"),
        (f"Comment={comment(60, '', '', 'nodelist', 'n2')}", False, "?", ""),  # no class: palsub writes it elsewhere
        ("Comment=pal:it=3;of=9", False, "?", ""),
        ("Comment=pal:job=A;from=$(reboot)", False, "?", ""),
    ],
)
def test_which_jobs_are_ours(changes: str, ours: bool, sensitivity: str, origin: str) -> None:
    found = facts_of(job(changes), MoveSettings())
    assert (found.ours, found.sensitivity, found.origin) == (ours, sensitivity, origin)
    assert is_ours(job(changes)) is ours and not found.movable


MOVABLE = "Comment=pal:job=A;from=x;mov=1;ck=1;lost=90;app=1"


def test_a_job_marked_movable() -> None:
    assert facts_of(job(MOVABLE), MoveSettings()) == Facts(True, "A", "x", True, "", True, 90.0)
    assert facts_of(job(f"AdminComment={FILTER};mov=1;lost=40;app=1"), MoveSettings())[3:7] == (True, "", False, 40.0)
    assert facts_of(job("Comment=pal:job=A;from=x"), MoveSettings(lost_work_s=7.0)).lost_s == 7.0
    assert facts_of(job("Comment=pal:job=A;lost=-1"), MoveSettings(lost_work_s=7.0)).lost_s == 7.0


SEEN_C = "pal:obs=C;c=0.97;s=240;at=1800000000;duty=0.01;clk=0.99;pw=0.4;sd=9c1185a5c5e9fc54"


@pytest.mark.parametrize(
    ("changes", "sensitivity", "measured"),
    [
        ("Comment=pal:job=C;from=--pal-class", "C", False), ("Comment=pal:job=C;from=script", "C", False),
        ("Comment=pal:job=C;from=history", "C", True), ("Comment=pal:job=C;from=--pal-class;mea=1", "C", True),
        ("AdminComment=pal:class=C;from=history;act=none;why=busy;epoch=-", "C", True),
        ("AdminComment=pal:class=C;from=#PAL;mea=1;act=none;why=busy;epoch=-", "C", True),
        ("AdminComment=pal:class=C;from=#PAL;act=none;why=busy;epoch=-", "C", False),
        (f"Comment=pal:job=C;from=--pal-class~{SEEN_C}", "C", True),
        (f"Comment=pal:job=A;from=script~{SEEN_C}", "C", True),
        (f"Comment=pal:job=A;from=--pal-class~{SEEN_C}", "A", False),
        (f"Comment=pal:job=?;from=default~{SEEN_C}", "C", True), ("Comment=pal:job=Z;from=history", "?", False),
    ],
)  # fmt: skip
def test_whether_the_class_was_measured(changes: str, sensitivity: str, measured: bool) -> None:
    found = facts_of(job(changes), MoveSettings())
    assert (found.sensitivity, found.measured) == (sensitivity, measured)


@pytest.mark.parametrize(
    "terms", [MoveSettings(movable_qos=frozenset({"normal"})), MoveSettings(movable_partitions=frozenset({"gpu"}))]
)
def test_a_site_may_declare_a_qos_or_a_partition_movable(terms: MoveSettings) -> None:
    assert facts_of(job("Comment=pal:job=A;app=1"), terms).movable
    assert facts_of(job("Comment=pal:job=A"), terms._replace(appends=True)).movable
    assert "array" in facts_of(job("Comment=pal:job=A;app=1 JobId=7 ArrayJobId=6 ArrayTaskId=3"), terms).why_not
    assert "saw it" in facts_of(job(), terms).why_not
    other = facts_of(job("Comment=pal:job=A QOS=other Partition=other"), terms)
    assert not other.movable and "not marked movable" in other.why_not


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ("BatchFlag=0", "batch"),
        ("Requeue=0", "--no-requeue"),
        ("HetJobId=7", "heterogeneous"),
        ("JobId=6 ArrayJobId=6 ArrayTaskId=0-9", "array"),
        ("JobId=6 ArrayJobId=6 ArrayTaskId=3", "array"),
        ("JobState=SUSPENDED", "suspended"),
        ("JobId=7 ArrayJobId=6 ArrayTaskId=3", "array"),  # though Slurm would requeue this task alone
    ],
)
def test_what_is_never_moved(changes: str, word: str) -> None:
    found = facts_of(job(f"{MOVABLE} {changes}"), MoveSettings(appends=True, may_empty_output=True))
    assert word in found.why_not and not found.movable and found.ours


QOS = MoveSettings(movable_qos=frozenset({"normal"}))


@pytest.mark.parametrize(
    ("comment", "terms", "moved"),
    [
        ("mov=1;app=1", MoveSettings(), True),
        ("mov=1", MoveSettings(), False),  # nobody knows what its open mode is
        ("mov=1", MoveSettings(appends=True), True),
        ("mov=1", MoveSettings(may_empty_output=True), True),
        ("mov=1;app=0", MoveSettings(), True),  # its user said both
        ("app=0", QOS._replace(appends=True), False),  # its user said the one, and the site the other
        ("app=0", QOS._replace(may_empty_output=True), True),
        ("from=x", QOS, False),
        ("app=1", QOS, True),
    ],
)
def test_a_job_whose_output_a_move_would_empty_stays(comment: str, terms: MoveSettings, moved: bool) -> None:
    found = facts_of(job(f"Comment=pal:job=A;{comment}"), terms)
    assert found.movable == moved and ("output" in found.why_not) == (not moved)
    assert appends({"JobFileAppend": "1"}) and not appends({"JobFileAppend": "0"}) and not appends({})
