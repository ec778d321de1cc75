# SPDX-License-Identifier: MIT
"""pal simulate --site on a real Slurm: its nodes and partitions, its scores, and its missing accounting."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.lab.lab import Lab
from slurm_pal.slurm.accounting import COLUMNS, export_command
from slurm_pal.store.snapshot import GpuScore, publish

pytestmark = pytest.mark.real_slurm

PAL = [sys.executable, "-P", "-c", "from slurm_pal.cli.start import main; main()"]
GOLDEN = str(Path(__file__).parent.parent / "data" / "sacct" / "slurm-22.05.8.txt")

Simulate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulate(lab: Lab, tmp_path: Path) -> Simulate:
    """`pal simulate --site` in the lab, with the truth about its GPUs as published scores."""
    scores = [
        GpuScore(gpu.node, gpu.index, gpu.uuid, gpu.model, gpu.slowdown, {}, time.time(), 1.0, ())
        for gpu in lab.registry().gpus
    ]
    publish(str(tmp_path / "snapshot"), scores, cluster="lab", epoch=1, now_s=time.time())

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*PAL, "simulate", "--site", "--seeds", "2", "--jobs", "1", "--no-causes", *words]
        env = lab.environ() | {"SLURM_PAL_PATHS_SNAPSHOT": str(tmp_path / "snapshot")}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=1800, check=False)

    return run


def history(folder: Path, rows: Sequence[dict[str, object]]) -> str:
    """An export with a job of an hour every two hours, and these changes to its columns."""
    lines = ["|".join(COLUMNS)]
    for number, changes in enumerate(rows):
        submit_s = 1_790_000_000 + 7200 * number
        tres = "cpu=1,gres/gpu=1,node=1"
        row = dict(zip(COLUMNS, (
            number, f"u{number % 3}", "lab", "normal", "gpu", submit_s, submit_s, submit_s, submit_s + 3600, 3600, 300,
            1, tres, tres, "COMPLETED", "resnet50",
        ), strict=True)) | changes  # fmt: skip
        lines.append("|".join(str(value) for value in row.values()))
    (folder / "export.txt").write_text("\n".join(lines) + "\n")
    return str(folder / "export.txt")


def test_what_another_slurm_exported_is_replayed_on_this_one(simulate: Simulate) -> None:
    done = simulate("--trace", GOLDEN)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5 and lines[0].endswith("on 16 GPUs: 4 nodes x 4.")
    assert "wants a GPU type, but GPUs have no types here" in done.stderr


def test_this_slurms_partition_nodes_and_scores_are_used(lab: Lab, simulate: Simulate, tmp_path: Path) -> None:
    """On an empty cluster plain Slurm takes n0:0; whether that is a fast GPU decides what is gained."""
    wide = "cpu=1,gres/gpu=20,node=5"
    path = history(tmp_path, [*({} for _ in range(20)), {"Partition": "gone"}, {"ReqTRES": wide, "AllocTRES": wide}])
    done = simulate("--trace", path, "--jitter", "0", "--seeds", "1", "--bar", "1.1", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer["site"]["left_out"]) == ["wants more GPUs than partition gpu has for it (16)"]
    assert list(answer["site"]["changed"]) == ["partition gone does not exist: replayed on gpu"]
    truth = {(gpu.node, gpu.index): gpu.slowdown["A"] for gpu in lab.registry().gpus}
    slow = {(gpu["node"], gpu["index"]): gpu["slowdown"] for gpu in answer["site"]["slow_gpus"]}
    assert slow == pytest.approx({slot: x for slot, x in truth.items() if x > 1.1})
    first, free = truth["n0", 0], {node: truth[node, 0] for node in ("n0", "n1", "n2", "n3")}
    # Each job is alone and ends before the next: it gets the lowest index of the node chosen for it.
    jct = {name: policy["avg_jct_s"] for name, policy in answer["policies"].items()}
    latency_s = 3.0  # of the scheduler
    assert jct["slurm"] == pytest.approx(3600 * first, abs=latency_s)
    # GPUs up to the bar count as alike: no other choice than one of those, or else the fastest.
    wanted = [x for x in free.values() if x <= max(1.05, min(free.values()))]
    assert any(jct["palsub"] == pytest.approx(3600 * x, abs=latency_s) for x in wanted)


def spread(number: int) -> list[dict[str, object]]:
    """Jobs of an hour every eight hours."""
    moments = [1_790_000_000 + 28000 * k for k in range(number)]
    return [{"Submit": s, "Eligible": s, "Start": s, "End": s + 3600} for s in moments]


@pytest.mark.long  # 1 to 5 minutes of computing
def test_what_a_ratio_is_made_of(simulate: Simulate, tmp_path: Path) -> None:
    """Over seven weeks of jobs, by this Slurm's scheduler settings but for fewer passes, and by this site's levers."""
    words = ("--causes", "--jitter", "0", "--seeds", "1", "--tick", "600", "--bf-interval", "600", "--json")
    done = simulate("--trace", history(tmp_path, spread(140)), *words)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert list(answer["causes"]) == ["scores", "gathering", "rest"]
    (whole,) = [row["ratio"]["mean_jct_s"] for row in answer["comparisons"] if row["policy"] == "palsub+tick"]
    assert math.prod(cause["mean"] for cause in answer["causes"].values()) == pytest.approx(whole["mean"], rel=0.01)
    assert all(
        cause["pieces"] == whole["pieces"] == 6 and cause["low"] <= cause["high"] for cause in answer["causes"].values()
    )
    assert answer["causes"]["gathering"]["mean"] == pytest.approx(1.0), "each job has one GPU"


@pytest.mark.long
def test_few_jobs_tell_no_causes(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = history(tmp_path, spread(10))
    made = simulate("--trace", path, "--causes").stdout.partition("Made of ")[2].splitlines()[1:]
    assert [line.split()[0] for line in made] == ["scores", "gathering", "rest"]
    assert all("(no interval), cannot tell" in line for line in made)
    monkeypatch.setenv("SLURM_PAL_REBALANCE_ORDER", "shortest")
    ordered = simulate("--trace", path, "--causes", "--json")
    assert list(json.loads(ordered.stdout)["causes"]) == ["scores", "order", "gathering", "rest"]


def test_a_drained_node_counts_as_working(lab: Lab, simulate: Simulate, tmp_path: Path) -> None:
    def update(*words: str) -> None:
        subprocess.run(["scontrol", "update", "NodeName=n3", *words], env=lab.environ(), check=True, timeout=60)

    update("State=DRAIN", "Reason=test")
    try:
        done = simulate("--trace", history(tmp_path, [{}, {}]))
    finally:
        update("State=RESUME")
    assert done.returncode == 0 and "on 16 GPUs: 4 nodes x 4." in done.stdout
    assert "note: 1 node with 4 GPUs (n3) start no job now (down, drained); they count as working." in done.stderr


def test_a_slurm_without_accounting_is_one_clear_line(simulate: Simulate) -> None:
    done = simulate("--days", "3")
    assert done.returncode == Exit.SLURM and not done.stdout
    assert done.stderr.count("\n") == 1 and "Slurm accounting storage is disabled" in done.stderr
    assert "--trace trace.txt" in done.stderr and export_command("now-3days") in done.stderr


def test_without_a_sweep_the_way_out_is_named(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "snapshot").unlink()
    done = simulate("--trace", GOLDEN)
    assert done.returncode == Exit.DATA and "run pal-profile run; or --profile drawn" in done.stderr
    assumed = simulate("--trace", GOLDEN, "--profile", "drawn")
    assert assumed.returncode == 0 and "not measured here" in assumed.stdout
