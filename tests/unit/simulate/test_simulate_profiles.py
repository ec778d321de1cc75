# SPDX-License-Identifier: MIT
"""The virtual cluster: its layout, where slowdowns come from, and what is believed of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slurm_pal.base.errors import DataError, PalError, UsageError
from slurm_pal.placement.occupancy import Table
from slurm_pal.simulate.profiles import (
    Drawn,
    Fixed,
    Independent,
    Joint,
    Sampled,
    SlowShare,
    parse_slow,
    profile_of,
    slowed,
    tables,
)
from slurm_pal.simulate.scores import Scores, believed, parse_scores
from slurm_pal.simulate.virtual import VirtualCluster, parse_cluster
from slurm_pal.store.snapshot import GpuScore, encode

CLUSTER = parse_cluster("16x4")
CLASSES = ("A", "B", "C", "D")


def write_runs(path: Path, perf: dict[str, list[float]], node_of: dict[str, str] | None = None) -> str:
    """A perf CSV: GPU -> its runs."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(("uuid", "perf", "cabinet", "node"))
        for uuid, values in perf.items():
            for value in values:
                rows.writerow((uuid, value, "1", (node_of or {}).get(uuid, "0")))
    return str(path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A.csv, B.csv and C.csv of six GPUs on three nodes; GPU k is slower by k % in A, 10 k % in B, not in C."""
    gpus = [f"g{k}" for k in range(6)]
    node_of = {uuid: f"{k // 2}" for k, uuid in enumerate(gpus)}
    for name, step in (("A", 1.0), ("B", 10.0), ("C", 0.0)):
        perf = {uuid: [100 + step * k, 100 + step * k, 900.0] for k, uuid in enumerate(gpus)}
        write_runs(tmp_path / f"{name}.csv", perf, node_of)
    return tmp_path


# -- layout ---------------------------------------------------------------------------------


def test_a_cluster_of_equal_nodes() -> None:
    assert (CLUSTER.n_gpus, CLUSTER.per_node, len(CLUSTER.names)) == (64, 4, 16)
    assert CLUSTER.text() == "64 GPUs: 16 nodes x 4"


def test_partitions_have_their_own_nodes() -> None:
    cluster = parse_cluster("gpu=2x4,long=1x8")
    assert cluster.node_gpus == (4, 4, 8)
    assert cluster.partitions == {"gpu": (0, 1), "long": (2,)}
    assert (cluster.per_node, cluster.text()) == (0, "16 GPUs: 2 nodes x 4, 1 node x 8")
    assert [list(row) for row in cluster.rows(range(16))] == [[0, 1, 2, 3], [4, 5, 6, 7], list(range(8, 16))]


@pytest.mark.parametrize(
    "text", ["", "16", "x4", "16x", "0x4", "4x0", "-1x4", "1.5x4", "16x4x2", "2x4,3x4", "a=2x4,a=2x4", "99999999x9999"]
)
def test_bad_clusters(text: str) -> None:
    with pytest.raises(UsageError, match="cluster"):
        parse_cluster(text)


# -- sources --------------------------------------------------------------------------------


def test_drawn_gpus_follow_the_seed_and_the_population() -> None:
    big = parse_cluster("500x4")
    one = Drawn().draw(big, 3)
    assert one == Drawn().draw(big, 3)
    assert one.slowdown != Drawn().draw(big, 4).slowdown
    a = np.array(one.slowdown["A"])
    assert float(np.median(a)) == pytest.approx(1.0, abs=0.005)
    assert np.mean(a > 1.1) == pytest.approx(0.05, abs=0.003)
    assert one.slowdown["D"] == one.slowdown["C"]


def test_nodes_of_unequal_size_get_their_number_of_gpus() -> None:
    cluster = parse_cluster("a=2x3,b=1x5")
    found = tables(Drawn().draw(cluster, 1), cluster)
    assert {c: [len(row) for row in table] for c, table in found.items()} == {c: [3, 3, 5] for c in CLASSES}


def test_medians_take_the_median_of_one_gpu(directory: Path) -> None:
    source = profile_of(f"medians:{directory}")
    assert isinstance(source, Independent)
    drawn = sorted(set(source.draw(CLUSTER, 1).slowdown["A"]))
    middle = float(np.median([*range(100, 106), *range(100, 106), *[900] * 6]))
    assert drawn == pytest.approx([value / middle for value in range(100, 106)])


def test_runs_take_single_runs(directory: Path) -> None:
    names = ",".join(str(directory / name) for name in ("A.csv", "B.csv", "C.csv"))
    drawn = profile_of(f"runs:{names}").draw(CLUSTER, 1).slowdown
    assert max(drawn["A"]) > 5
    assert max(drawn["A"]) in set(drawn["A"]) and len(set(drawn["A"])) > 2


def test_a_directory_is_read_as_the_mode_says(directory: Path) -> None:
    for kind, name in (("medians", "medians"), ("runs", "raw")):
        source = profile_of(str(directory), kind)
        assert isinstance(source, Independent)
        assert source.kind == name


def test_joint_keeps_nodes_and_classes_together(directory: Path) -> None:
    source = profile_of(f"joint:{directory}")
    assert isinstance(source, Joint)
    drawn = source.draw(parse_cluster("3x2"), 5).slowdown
    a, b = np.array(drawn["A"]), np.array(drawn["B"])
    steps = np.round((a / a.min() - 1) * 100).astype(int)
    assert np.round((b / b.min() - 1) * 10).astype(int).tolist() == steps.tolist()
    assert all(low % 2 == 0 and high == low + 1 for low, high in steps.reshape(3, 2).tolist())
    with pytest.raises(UsageError, match="join to 3"):
        source.draw(parse_cluster("4x2"), 5)
    with pytest.raises(UsageError, match="nodes of one size"):
        source.draw(parse_cluster("a=1x2,b=1x4"), 5)


def write_table(path: Path, classes: str, rows: int) -> str:
    header = ",".join(f"PerfVar_class{c}" for c in classes)
    lines = [",".join(f"{1 + k / 100 + i}" for i in range(len(classes))) for k in range(rows)]
    path.write_text("\n".join((header, *lines)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("classes", ["ABCD", "ABC"])
def test_a_table_is_taken_as_it_stands(tmp_path: Path, classes: str) -> None:
    source = profile_of(write_table(tmp_path / "gpus.csv", classes, 8))
    assert isinstance(source, Fixed)
    cluster = parse_cluster("2x4")
    drawn = source.draw(cluster, 1).slowdown
    assert drawn == source.draw(cluster, 2).slowdown
    assert drawn["A"] == pytest.approx([1 + k / 100 for k in range(8)])
    assert drawn["D"][0] == (4.0 if classes == "ABCD" else 3.0)
    with pytest.raises(UsageError, match="describes 8 GPUs"):
        source.draw(CLUSTER, 1)


def test_a_snapshot_is_sampled_node_by_node(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    gpus = [
        GpuScore(f"n{node}", k, f"u{node}{k}", "M", {"A": 1 + node / 10 + k / 100}, {}, 0.0, 1.0, ())
        for node in range(3)
        for k in range(2)
    ]
    path.write_bytes(encode(gpus, cluster="c", epoch=1, now_s=0.0))
    source = profile_of(f"snapshot:{path}")
    assert isinstance(source, Sampled)
    cluster = parse_cluster("6x2")
    drawn = source.draw(cluster, 1).slowdown
    nodes = [tuple(round(x, 2) for x in row) for row in cluster.rows(drawn["A"])]
    every = sorted((round(1 + node / 10, 2), round(1.01 + node / 10, 2)) for node in range(3))
    assert sorted(nodes[:3]) == sorted(nodes[3:]) == every
    assert set(drawn["B"]) == {1.0}, "a score that is missing reads as the median"
    broken = [gpu._replace(flags=("ecc",)) if gpu.node == "n2" else gpu for gpu in gpus]
    path.write_bytes(encode(broken, cluster="c", epoch=1, now_s=0.0))
    mended = sorted(profile_of(f"snapshot:{path}").draw(parse_cluster("3x2"), 1).slowdown["A"])
    assert [round(x, 2) for x in mended] == [1.0, 1.0, 1.0, 1.01, 1.1, 1.11], "a faulty GPU reads as the median"
    loose = source.draw(parse_cluster("1x6"), 1).slowdown["A"]
    assert sorted(round(x, 2) for x in loose) == sorted(x for node in every for x in node)


def test_a_snapshot_without_gpus_or_file(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(encode([], cluster="c", epoch=1, now_s=0.0))
    with pytest.raises(DataError, match="holds no GPU"):
        profile_of(f"snapshot:{path}")
    with pytest.raises(DataError, match="no snapshot"):
        profile_of(f"snapshot:{tmp_path / 'absent'}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "not one of drawn, medians"),
        ("drawn:5", "nothing after a colon"),
        ("medians:", "FILE_A,FILE_B,FILE_C"),
        ("medians:a.csv,b.csv", "FILE_A,FILE_B,FILE_C"),
        ("medians:/absent/a.csv,/absent/b.csv,/absent/c.csv", "cannot be read"),
    ],
)
def test_profiles_that_are_none(text: str, words: str) -> None:
    with pytest.raises(PalError, match=words):
        profile_of(text)


def test_a_directory_without_perf_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"A\.csv, B\.csv, C\.csv"):
        profile_of(str(tmp_path))


# -- slower GPUs ----------------------------------------------------------------------------


def test_slow_gpus_are_slower_by_the_factor_of_the_class() -> None:
    profile = Drawn().draw(CLUSTER, 1)
    slow = slowed(profile, parse_slow("0.03:1.5"), 7)
    assert slow == slowed(profile, SlowShare(0.03, 1.5), 7)
    ratio = {c: np.array(slow.slowdown[c]) / np.array(profile.slowdown[c]) for c in CLASSES}
    hit = ratio["A"] > 1.4
    assert hit.sum() == 2
    for c, factor in (("A", 1.5), ("B", 1.3), ("C", 1.3)):
        assert ratio[c][hit] == pytest.approx(factor)
        assert ratio[c][~hit] == pytest.approx(1.0)
    assert slowed(profile, SlowShare(), 7) is profile
    assert np.sum(np.array(slowed(profile, SlowShare(0.001, 2.0), 7).slowdown["A"]) > 1.9) == 1, "at least one"


@pytest.mark.parametrize("text", ["", "0.1", "2:1.5", "-0.1:1.5", "0.1:0.5", "0.1:x", "nan:1.5", "0.1:inf", "0.1:1:2"])
def test_bad_slow_gpus(text: str) -> None:
    with pytest.raises(UsageError, match="SHARE:FACTOR"):
        parse_slow(text)


# -- beliefs --------------------------------------------------------------------------------


def flat(table: Mapping[str, Table], c: str = "A") -> NDArray[np.float64]:
    return np.array([x for row in table[c] for x in row])


BIG = parse_cluster("250x4")
TRUE = tables(Drawn().draw(BIG, 1), BIG)


def test_exact_scores_are_the_truth() -> None:
    assert believed(TRUE, parse_scores("exact"), 1) is TRUE


def test_missing_scores_read_as_median_in_every_class() -> None:
    found = believed(TRUE, parse_scores("missing=0.25"), 1)
    gaps = [set(np.flatnonzero(flat(found, c) != flat(TRUE, c))) for c in ("A", "B")]
    assert gaps[0] == gaps[1]
    assert len(gaps[0]) == 250
    assert {flat(found, c)[i] for c in ("A", "B") for i in gaps[0]} == {1.0}


def test_noise_has_its_sd_and_drift_is_felt_by_class() -> None:
    noisy = np.log(flat(believed(TRUE, parse_scores("noise=0.03"), 1)) / flat(TRUE))
    assert noisy.std() == pytest.approx(0.03, rel=0.1)
    old = believed(TRUE, parse_scores("stale=0.03"), 1)
    drift = {c: np.log(flat(TRUE, c) / flat(old, c)) for c in CLASSES}
    assert drift["A"].std() == pytest.approx(0.03, rel=0.1)
    assert drift["B"].std() == pytest.approx(0.35 * 0.03, rel=0.1)
    assert drift["C"].std() < 0.001
    assert np.corrcoef(drift["A"], drift["B"])[0, 1] > 0.99, "it is the GPU that drifts"


@given(st.integers(0, 2**32), st.floats(0, 0.5), st.floats(0, 1))
def test_each_part_has_its_own_stream(seed: int, noise: float, missing: float) -> None:
    cluster = parse_cluster("8x4")
    true = tables(Drawn().draw(cluster, 1), cluster)
    both = flat(believed(true, Scores(noise_sd=noise, missing=missing), seed))
    alone = flat(believed(true, Scores(noise_sd=noise), seed))
    gaps = flat(believed(true, Scores(missing=missing), seed)) != flat(true)
    assert np.array_equal(both, np.where(gaps, 1.0, alone))


def test_scores_from_text() -> None:
    assert parse_scores("noise=0.01,missing=0.1,stale=0.02") == Scores(0.01, 0.1, 0.02)
    assert parse_scores("noise=0.01,missing=0.1").text() == "noise 0.01, missing 0.1"
    assert Scores().text() == "exact"


@pytest.mark.parametrize(
    "text",
    ["", "noise", "noise=x", "noise=-1", "noise=nan", "missing=1.5", "old=1", "exact,noise=0.1", "noise=0.1,noise=0.2"],
)
def test_bad_scores(text: str) -> None:
    with pytest.raises(UsageError, match="scores"):
        parse_scores(text)


def test_a_cluster_of_one_gpu() -> None:
    one = VirtualCluster(("n0",), (1,))
    true = tables(Drawn().draw(one, 1), one)
    assert [len(row) for row in believed(true, Scores(0.1, 1.0, 0.1), 1)["A"]] == [1]
