# SPDX-License-Identifier: MIT
"""pal whatif: what is asked, how Slurm's answers are read, and the sentence that comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.cluster import Partition
from slurm_pal.base.config import Config
from slurm_pal.base.errors import UsageError
from slurm_pal.decide.request import read
from slurm_pal.decide.waits import Waiting
from slurm_pal.report import what_if as report
from slurm_pal.slurm.client import Completed, Overview
from slurm_pal.slurm.parse import unix_s
from slurm_pal.store import snapshot
from slurm_pal.store.snapshot import GpuScore, Snapshot
from slurm_pal.submit import what_if
from slurm_pal.submit.what_if import AskedJob, Asker, Variant, answers, capacity, classes_of, read_plan, variants

from ..decide.test_submit_decide import cluster, job, node

NOW = unix_s("2026-11-28T20:00:00")
TABLE = {"n0": [1.3, 1.0, 1.0, 1.0], "n1": [1.0] * 4, "m0": [0.9] * 4}


@pytest.fixture
def scores(tmp_path: Path) -> Snapshot:
    gpus = [
        GpuScore(name, k, f"{name}-{k}", "m", {"A": a}, {"A": "v4" if a > 1.1 else "v0"}, NOW - 60, 0.9, ())
        for name, row in TABLE.items() for k, a in enumerate(row)
    ]  # fmt: skip
    snapshot.publish(str(tmp_path / "s"), gpus, cluster="c", epoch=1, now_s=NOW)
    return snapshot.read(str(tmp_path / "s"))


def overview(busy: bool = False) -> Overview:
    nodes = [node("n0"), node("n1"), node("m0", gpu_types=("",) * 4), node("c0", gpu_types=())]
    jobs = (job(1, {"n1": (0, 1, 2, 3)}),) if busy else ()
    if busy:
        nodes[1] = nodes[1]._replace(gpus_used=4)
    parts = [("gpu", True, ("n0", "n1")), ("more", True, ("m0",)), ("cpu", True, ("c0",)), ("down", False, ("m0",))]
    partitions = tuple(
        Partition(name, up, name == "gpu", names)._replace(up=up, default=name == "gpu") for name, up, names in parts
    )
    return cluster(nodes, jobs, partitions=partitions)


def asked(**options: str) -> AskedJob:
    return AskedJob(Asker((), ("job.sh",), options), read(options, submitted=True), "A", False)


def plan(at: str, nodes: str, partition: str = "gpu") -> Completed:
    said = f"sbatch: Job 5 to start at 2026-11-28T{at} using 4 processors on nodes {nodes} in partition {partition}\n"
    return Completed(0, "", said)


def test_what_is_asked() -> None:
    found = variants(asked(gres="gpu:4", time="60"), overview(), "", ["n0"])
    assert [(one.kind, dict(one.options)) for one in found] == [
        ("as written", {}), ("without", {"exclude": "n0"}), ("fewer", {"gres": "gpu:2"}),
        ("partition", {"partition": "more"}), ("shorter", {"time": "30"}), ("later", {"begin": "22:00"}),
    ]  # fmt: skip
    one = variants(asked(gres="gpu:1", exclude="n1", partition="more"), overview(), "now+2hours", ["n0"])
    assert [(one.kind, dict(one.options)) for one in one] == [
        ("as written", {}), ("without", {"exclude": "n1,n0"}), ("partition", {"partition": "gpu"}),
        ("later", {"begin": "now+2hours"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "half"),
    [
        ({"gpus-per-node": "8", "nodes": "2"}, ("gpus-per-node", "4")),
        ({"gres": "gpu:h100:3"}, ("gres", "gpu:h100:1")),
        ({"gpus": "v100:2"}, ("gpus", "v100:1")),
        ({"gres": "gpu:1", "nodes": "4"}, ("nodes", "2")),
        ({"gres": "gpu:1", "nodes": "1-4"}, None),
        ({"gres": "gpu:2,license:4"}, None),
        ({"gres": "gpu"}, None),
        ({}, None),
    ],
)
def test_half_of_it(options: dict[str, str], half: tuple[str, str] | None) -> None:
    assert what_if._halved(options) == half


def test_slurms_answers() -> None:
    assert read_plan(plan("22:00:00", "n[0-1]")) == ("", unix_s("2026-11-28T22:00:00"), ("n0", "n1"), "gpu")
    newer = "sbatch: Job 22 to start at 2026-11-29T22:00:00 a using 1 processors on nodes n0 in partition gpu"  # 26.05
    assert read_plan(Completed(0, "", newer)) == ("", unix_s("2026-11-29T22:00:00"), ("n0",), "gpu")
    no = "allocation failure: Requested node configuration is not available\n"
    assert read_plan(Completed(1, "", no)) == ("Requested node configuration is not available", 0.0, (), "")
    assert read_plan(Completed(0, "", ""))[0] == "sbatch said nothing"
    assert read_plan(
        Completed(0, "", "sbatch: Job 5 to start at Unknown using 4 processors on nodes n0 in partition g")
    )[0]


def test_a_start_now_is_on_the_gpus_that_the_policy_takes_and_a_later_one_on_slurms_nodes(scores: Snapshot) -> None:
    one = asked(gres="gpu:2", time="60")
    kinds = [Variant("as written", "as written"), Variant("later", "at night"), Variant("fewer", "half")]
    plans = [plan("20:00:10", "n0"), plan("22:00:00", "n0"), Completed(1, "", "sbatch: error: no\n")]
    now, later, refused = answers(one, kinds, plans, [one.request] * 3, overview(), scores, Config(), NOW)
    assert (now.gpus, now.best, now.worst) == ("n1:0,1", 1.0, 1.0)
    assert now.end_s == now.start_s + 1800.0
    assert (later.gpus, later.best, later.worst) == ("", 1.0, 1.3)
    assert refused.refused == "no" and refused.shown(NOW)["wait_s"] is None
    waits = one._replace(planned_s=NOW + 500)
    assert (
        answers(waits, kinds[:1], plans[:1], [one.request], overview(), scores, Config(), NOW)[0].start_s == NOW + 500
    )


def test_where_backfill_has_room_a_job_starts_now_whatever_slurm_plans(scores: Snapshot) -> None:
    one, kinds = asked(gres="gpu:2", time="60", partition="gpu"), [Variant("as written", "as written")]

    def start_s(*ahead: Waiting) -> float:
        plans, queued = [plan("22:00:00", "n0")], {"gpu": ahead}
        made = answers(one, kinds, plans, [one.request], overview(True), scores, Config(), NOW, queued)
        return made[0].start_s

    assert start_s(Waiting(8, 3600.0, 2)) == unix_s("2026-11-28T22:00:00")  # both nodes are planned for it
    assert start_s() == NOW


@pytest.mark.parametrize(
    ("text", "found"), [("slow", (1.1, set())), ("slow=1.25", (1.25, set())), ("v3,v4", (0.0, {"v3", "v4"}))]
)
def test_a_class_to_avoid(text: str, found: tuple[float, set[str]]) -> None:
    assert classes_of(text, 1.1) == found


@pytest.mark.parametrize("text", ["", "fast", "slow=0.9", "slow=x", "v", "v1,,v2", "v1;v2", "slow,v1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="neither slow"):
        classes_of(text, 1.1)


def test_what_avoiding_costs(scores: Snapshot) -> None:
    every = ("n0", "n1", "m0", "c0")
    assert capacity(overview(), scores, "A", 1.1, frozenset(), every) == (("n0",), 4, 12, 1)
    assert capacity(overview(), scores, "A", 0.0, frozenset({"v4"}), every)[0] == ("n0",)
    assert capacity(overview(), scores, "A", 0.0, frozenset({"v9"}), every) == ((), 0, 12, 0)
    assert capacity(overview(), scores, "A", 1.1, frozenset(), ("m0",)) == ((), 0, 4, 0)
    assert capacity(overview(), scores, "C", 1.1, frozenset(), every)[0] == ()


def row(
    kind: str, text: str, wait_s: float, slow: float = 1.0, refused: str = "", end_s: float = 1e4
) -> dict[str, Any]:
    return {
        "kind": kind, "text": text, "refused": refused or None, "wait_s": wait_s, "start_s": NOW + wait_s,
        "nodes": ["n1"], "gpus": "" if wait_s else "n1:0", "slowdown": slow, "slowdown_at_most": slow, "end_s": end_s,
    }  # fmt: skip


OWN = row("as written", "as written", 3600.0)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [OWN, row("partition", "in partition x", 0.0, 1.1), row("later", "at night", 0.0)],
            "As written the job starts in 60 min on n1, the slowest GPU as fast as the median GPU here. "
            "In partition x it starts now on n1:0, the slowest GPU 10 % slower than the median GPU here",
        ),
        (
            [OWN, row("partition", "in partition x", 3600.0, end_s=8e3)],
            "As written the job starts in 60 min on n1, the slowest GPU as fast as the median GPU here. "
            "In partition x it would end 33 min sooner",
        ),
        (
            [OWN, row("shorter", "with less", 3590.0)],
            "As written the job starts in 60 min on n1, the slowest GPU as fast as the median GPU here. "
            "Nothing else that was asked about starts or ends sooner",
        ),
        (
            [row("as written", "", 0.0, refused="too much"), row("fewer", "with half", 0.0)],
            "Slurm would not take the job as written: too much; with half it would be taken, and starts now",
        ),
    ],
)
def test_the_verdict(rows: list[dict[str, Any]], text: str) -> None:
    assert report.verdict(rows) == text
    assert len(report.lines(rows)) == len(rows)


def test_the_cost_of_a_class() -> None:
    lost = {"what": "GPUs slower than 1.1", "nodes": ["n0"], "node_list": "n0", "gpus": 4, "of_gpus": 8, "slow_gpus": 1}
    text = "Avoiding GPUs slower than 1.1 gives up 4 of 8 GPUs (50 %): n0, where 1 GPUs are such"
    assert report.cost(lost, []) == text and report.cost(None, [OWN]) == ""
    other = row("without", "without", 7200.0, 0.9)
    assert report.cost(lost, [OWN | {"slowdown_at_most": 1.3}, other]) == (
        f"{text}; for this job it waits 60 min longer, and its slowest GPU is at 0.90 instead of 1.30 at most"
    )
    assert "would not take the job: no" in report.cost(lost, [OWN, other | {"refused": "no"}])
    assert report.cost(lost | {"nodes": []}, []).endswith("costs nothing: no node here has such GPUs")
