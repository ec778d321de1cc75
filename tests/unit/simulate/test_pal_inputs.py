# SPDX-License-Identifier: MIT
"""Reading of traces and profiles for replica mode, and the draws."""

from __future__ import annotations

import statistics
from pathlib import Path
from random import Random

import pytest

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.simulate.inputs.pal_profile import CLASSES, ProfileRun, draw, given, joint, read_runs
from slurm_pal.simulate.inputs.pal_rows import PalRow, read_sia

HEADER = "job_id,num_gpus,submit_time,duration,model\n"


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "file.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_rows_of_a_trace(tmp_path: Path) -> None:
    text = "\ufeffmodel, num_gpus,submit_time,duration,job_id,note\nGPT2,16,38,100.0,a,x\n\nresnet50,1,38.5,2,b\n"
    first, second = read_sia(written(tmp_path, text))
    assert first == PalRow("a", 16, 38.0, 100.0, 3.5714, "B")
    assert first.ideal_s == pytest.approx(357.14)
    assert second == PalRow("b", 1, 38.5, 2.0, 0.17540429367763434, "A")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: no column job_id, num_gpus, submit_time, duration, model; the columns are none"),
        ("job_id,num_gpus,model\n", "line 1: no column submit_time, duration; the columns are job_id, num_gpus, model"),
        (HEADER, "holds no job"),
        (HEADER + "0,1,0,5,vgg19\n1,0,0,5,vgg19\n", "line 3: num_gpus '0' is not a whole number of at least 1"),
        (HEADER + "0,1.5,0,5,vgg19\n", "line 2: num_gpus '1.5' is not a whole number"),
        (HEADER + "0,1,x,5,vgg19\n", "line 2: submit_time 'x' is not a number"),
        (HEADER + "0,1,-1,5,vgg19\n", "line 2: submit_time '-1' is before the start"),
        (HEADER + "0,1,0,nan,vgg19\n", "line 2: duration 'nan' is not a number"),
        (HEADER + "0,1,0,0,vgg19\n", "line 2: duration '0' is not a number of iterations above 0"),
        (HEADER + "0,1,0\n", "line 2: duration '' is not a number"),
        (HEADER + "0,1,0,5,llama\n", "line 2: model 'llama' has no iteration time; known: resnet50, "),
        (HEADER + ",1,0,5,vgg19\n", "line 2: job_id is empty"),
        (HEADER + "0,1,0,5,vgg19\n0,1,0,5,vgg19\n", "line 3: job_id '0' is that of line 2"),
        (b"\xff\xfe\x00", "cannot be read as CSV"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str | bytes, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        read_sia(written(tmp_path, text))
    assert reason in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_sia(str(tmp_path / "none.csv"))


def test_runs_are_relative_to_the_median_row(tmp_path: Path) -> None:
    text = ",uuid,perf\n0,b,10\n1,a,20\n2,a,40\n3,c,oops\n4,c,-1\n5,c,\n"
    runs = read_runs(written(tmp_path, text))
    assert runs == [ProfileRun("b", 0.5), ProfileRun("a", 1.0), ProfileRun("a", 2.0)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("uuid,perf\n", "holds no run with a positive perf"),
        ("uuid,time\na,1\n", "no column perf; the columns are uuid, time"),
        ("uuid,perf\na,1\n ,2\n", "line 3: uuid is empty"),
    ],
)
def test_bad_profiles(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_runs(written(tmp_path, text))


def measured(seed: int) -> list[ProfileRun]:
    generator = Random(seed)
    return [ProfileRun(f"u{generator.randrange(9)}", generator.uniform(0.9, 1.6)) for _ in range(60)]


RUNS = {c: measured(i) for i, c in enumerate(CLASSES)}


def test_a_draw_goes_gpu_by_gpu_class_by_class() -> None:
    found = draw(RUNS, nodes=3, gpus_per_node=5, seed=7)
    generator = Random(7)
    for g in range(15):
        for c in CLASSES:
            assert found.slowdown[c][g] == generator.choice([run.slowdown for run in RUNS[c]])
    assert found.generator == generator.getstate()
    assert (found.n_gpus, found.gpus_per_node) == (15, 5)


def test_kinds_of_draws() -> None:
    raw, capped, medians = (draw(RUNS, kind=kind) for kind in ("raw", "capped", "medians"))
    assert capped.slowdown["A"] == tuple(min(x, 1.2) for x in raw.slowdown["A"])
    per_gpu = {
        uuid: statistics.median(run.slowdown for run in RUNS["B"] if run.uuid == uuid)
        for uuid in {run.uuid for run in RUNS["B"]}
    }
    assert set(medians.slowdown["B"]) <= set(per_gpu.values())
    generator = Random(42)
    generator.choice(range(9))
    assert medians.slowdown["B"][0] == generator.choice([per_gpu[uuid] for uuid in sorted(per_gpu)])


def test_joint_nodes_stay_together_in_order() -> None:
    def column(scale: float, without: str = "") -> list[ProfileRun]:
        place = {"b": ("c1", "10"), "a": ("c1", "10"), "c": ("c1", "9"), "d": ("c1", "9"), "e": ("c0", "1")}
        return [
            ProfileRun(uuid, scale + i / 10, node)
            for i, (uuid, node) in enumerate(place.items())
            if uuid != without
            for _ in range(2)
        ]

    runs = {c: column(i + 1.0) for i, c in enumerate(CLASSES)}
    # Node c0/1 has one GPU only. Node 9 comes before node 10, a before b.
    order = {0: (1.2, 1.3), 1: (1.1, 1.0)}
    for seed in range(4):
        found = joint(runs, nodes=2, gpus_per_node=2, seed=seed)
        chosen = Random(seed).sample(range(2), 2)
        assert found.slowdown["A"] == tuple(value for k in chosen for value in order[k])
        assert found.slowdown["B"] == pytest.approx([value + 1 for value in found.slowdown["A"]])
    with pytest.raises(UsageError, match="2 nodes of 2 GPUs asked for, but the files join to 1"):
        joint({**runs, "D": column(1.0, without="a")}, nodes=2, gpus_per_node=2)


def test_clusters_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="profile kind 'best' is not one of raw, medians, capped"):
        draw(RUNS, kind="best")
    with pytest.raises(UsageError, match="0 nodes of 4 GPUs is empty"):
        draw(RUNS, nodes=0)
    with pytest.raises(UsageError, match="no measured runs for class D"):
        draw({c: RUNS[c] for c in "ABC"})
    with pytest.raises(UsageError, match="whole nodes of 4 GPUs"):
        given({"A": [1.0] * 6}, 4)
    with pytest.raises(UsageError, match=r"classes of \[2, 4\] GPUs"):
        given({"A": [1.0] * 4, "B": [1.0] * 2}, 2)
    with pytest.raises(UsageError, match=r"slowdown 0\.0 is not a positive number"):
        given({"A": [1.0, 0.0]}, 2)
