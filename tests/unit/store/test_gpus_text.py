# SPDX-License-Identifier: MIT
"""gpus.txt: what the plug-in on the nodes reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.store import gpus_text, snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.publish import publish
from slurm_pal.store.snapshot import GpuScore, Snapshot

from ...doubles.records_factory import NOW_S, sweep, truth


def score(node: str, index: int, slowdown: dict[str, float], bins: dict[str, str]) -> GpuScore:
    return GpuScore(node, index, f"{node}-{index}", "m", slowdown, bins, 1.0, 1.0, ())


def made(tmp_path: Path, *gpus: GpuScore, cluster: str = "palab") -> Snapshot:
    path = str(tmp_path / "snapshot")
    snapshot.publish(path, gpus, cluster=cluster, epoch=17, now_s=1763712345.0)
    return snapshot.read(path)


def test_the_text_keeps_its_contract(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        score("n10", 0, {"A": 1.00004}, {"A": "v0"}),
        score("n0", 1, {"A": 0.98}, {"A": "v0", "B": "v1"}),
        score("n0", 0, {"A": 1.0371, "B": 1.016, "C": 1.0}, {"A": "v1", "B": "v1", "C": "v0"}),
        score("n2", 0, {"A": 1.1}, {}),
    )
    assert gpus_text.encode(found).split("\n") == [
        "# pal.gpus/1 epoch=17 written_s=1763712345 cluster=palab",
        "n0 0:A=v1@1.0371:B=v1@1.016:C=v0@1 1:A=v0@0.98",
        "n10 0:A=v0@1",
        "n2 0",
        "# end 17",
        "",
    ]


def test_it_is_written_only_when_it_differs(tmp_path: Path) -> None:
    found, path = made(tmp_path, score("n0", 0, {"A": 1.0}, {"A": "v0"})), tmp_path / "gpus.txt"
    assert gpus_text.write(str(path), found) is True
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat().st_mtime_ns
    assert gpus_text.write(str(path), found) is False
    assert path.stat().st_mtime_ns == before
    path.write_bytes(b"\xff")
    assert gpus_text.write(str(path), found) is True
    assert sorted(os.listdir(tmp_path)) == ["gpus.txt", "snapshot"]


@pytest.mark.parametrize(("node", "cluster"), [("n 0", "c"), ("n0", "a b")])
def test_names_that_the_plug_in_cannot_read(node: str, cluster: str, tmp_path: Path) -> None:
    found = made(tmp_path, score(node, 0, {"A": 1.0}, {"A": "v0"}), cluster=cluster)
    with pytest.raises(DataError, match=r"holds more than A-Z .* gpus.txt stays"):
        gpus_text.write(str(tmp_path / "gpus.txt"), found)
    assert not (tmp_path / "gpus.txt").exists()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = Config()
    config.set("paths", "state_dir", str(tmp_path / "state"), "test")
    with open_database(config.state_dir, write=True) as database:
        database.insert(sweep(truth(16)), NOW_S)
    return config


def test_whoever_publishes_the_snapshot_writes_it(config: Config) -> None:
    publish(config, NOW_S)
    path = Path(config.state_dir, "gpus.txt")
    assert path.read_text() == gpus_text.encode(snapshot.read(config.snapshot_path))
    path.unlink()
    assert publish(config, NOW_S).changed is False and path.exists()


def test_the_snapshot_is_in_place_where_gpus_txt_cannot_be_written(config: Config, tmp_path: Path) -> None:
    config.set("paths", "gpus", str(tmp_path / "absent" / "gpus.txt"), "test")
    with pytest.raises(DataError, match="the snapshot itself is in place"):
        publish(config, NOW_S)
    assert snapshot.read(config.snapshot_path).epoch == 1
