# SPDX-License-Identifier: MIT
"""From the database to the snapshot: idempotent, atomic, careful with what is in place."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError
from slurm_pal.store import late, snapshot
from slurm_pal.store.database import open_database
from slurm_pal.store.publish import params_of, publish
from slurm_pal.variability.records import Record

from ...doubles.records_factory import DAY_S, NOW_S, record, sweep, truth, uuid_of


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = Config()
    made.set("paths", "state_dir", str(tmp_path / "state"), "test")
    return made


def store(config: Config, records: list[Record]) -> None:
    with open_database(config.state_dir, write=True) as database:
        database.insert(records, NOW_S)


def test_the_snapshot_says_what_the_classification_says(config: Config) -> None:
    store(config, sweep(truth(32, outliers=(1.5,))))
    report = publish(config, NOW_S)
    found = snapshot.read(config.snapshot_path)
    assert (report.changed, report.epoch, report.gpus, report.path) == (True, 1, 32, config.snapshot_path)
    assert (found.cluster, found.epoch, found.written_s) == ("lab", 1, NOW_S)
    assert found.centroids == report.classes
    worst = found.gpu(31)
    assert worst.uuid == uuid_of(31) and worst.slowdown["A"] == pytest.approx(1.5, rel=0.02)
    assert found.centroids["A"][int(worst.variability_class["A"][1:])] == pytest.approx(worst.slowdown["A"])
    assert set(worst.flags) == {"outlier", "unconfirmed"}
    assert report.flagged == 1


def test_gpus_that_jobs_wait_for_are_flagged_until_they_are_measured(config: Config) -> None:
    store(config, sweep(truth(32)))
    publish(config, NOW_S)
    one = snapshot.read(config.snapshot_path).gpu(3)
    heard = late.Heard(1, "ada", 1.4, "A", NOW_S)
    path = late.path_of(config.state_dir)
    late.write(path, [late.LateGpu(one.node, one.index, one.uuid, late.AVOID, NOW_S, (heard,))])
    assert publish(config, NOW_S).changed
    seen = snapshot.read(config.snapshot_path).gpu(3)
    assert "late" in seen.flags and seen.slowdown["A"] == pytest.approx(1.4) and seen.measured_s == one.measured_s
    late.write(path, [late.LateGpu(one.node, one.index, one.uuid, late.AVOID, NOW_S, (heard._replace(at_s=1.0),))])
    publish(config, NOW_S)
    assert snapshot.read(config.snapshot_path).gpu(3) == one
    Path(path).write_text("{")
    publish(config, NOW_S)
    assert snapshot.read(config.snapshot_path).gpu(3) == one, "what cannot be read stops no publication"


def test_the_same_records_change_nothing(config: Config) -> None:
    store(config, sweep(truth(32)))
    publish(config, NOW_S)
    before = Path(config.snapshot_path).read_bytes()
    stat = os.stat(config.snapshot_path)
    report = publish(config, NOW_S + 3600)
    assert (report.changed, report.epoch) == (False, 1)
    assert Path(config.snapshot_path).read_bytes() == before
    assert os.stat(config.snapshot_path).st_mtime_ns == stat.st_mtime_ns


def test_the_order_of_arrival_changes_nothing(config: Config, tmp_path: Path) -> None:
    made = sweep(truth(32), "s0", ts=NOW_S - 3 * DAY_S) + sweep(truth(32), "s1", ts=NOW_S - DAY_S)
    store(config, made)
    publish(config, NOW_S)
    other = Config()
    other.set("paths", "state_dir", str(tmp_path / "other"), "test")
    shuffled = random.Random(1).sample(made, len(made))
    for part in range(0, len(made), 50):
        store(other, shuffled[part : part + 50])
    publish(other, NOW_S)
    assert Path(config.snapshot_path).read_bytes() == Path(other.snapshot_path).read_bytes()


def test_new_records_raise_the_epoch(config: Config) -> None:
    store(config, sweep(truth(16), "s0", ts=NOW_S - 2 * DAY_S))
    assert publish(config, NOW_S).epoch == 1
    store(config, sweep(truth(16), "s1", ts=NOW_S - DAY_S))
    report = publish(config, NOW_S)
    assert (report.changed, report.epoch) == (True, 2)


def test_a_lost_or_damaged_snapshot_is_written_again_with_a_new_epoch(config: Config) -> None:
    store(config, sweep(truth(16)))
    publish(config, NOW_S)
    os.unlink(config.snapshot_path)
    assert publish(config, NOW_S).epoch == 2
    Path(config.snapshot_path).write_bytes(b"damaged")
    assert publish(config, NOW_S).epoch == 3
    assert snapshot.read(config.snapshot_path).epoch == 3


def test_epochs_rise_even_when_the_database_was_lost(config: Config) -> None:
    store(config, sweep(truth(16)))
    snapshot.publish(config.snapshot_path, [], cluster="lab", epoch=41, now_s=0.0)
    assert publish(config, NOW_S).epoch == 42


def test_a_newer_snapshot_is_not_replaced(config: Config) -> None:
    store(config, sweep(truth(16)))
    Path(config.snapshot_path).write_bytes(b'{"schema": "pal.snapshot/9"}\nanything')
    with pytest.raises(DataError, match="newer than"):
        publish(config, NOW_S)
    assert Path(config.snapshot_path).read_bytes().endswith(b"anything")


def test_nothing_to_publish_leaves_the_snapshot(config: Config) -> None:
    store(config, sweep(truth(16), ts=NOW_S - 500 * DAY_S))
    snapshot.publish(config.snapshot_path, [], cluster="lab", epoch=3, now_s=0.0)
    with pytest.raises(DataError, match="no measurement of the last 180 days"):
        publish(config, NOW_S)
    assert snapshot.read(config.snapshot_path).epoch == 3


def test_where_it_cannot_be_written(config: Config, tmp_path: Path) -> None:
    config.set("paths", "snapshot", str(tmp_path / "absent" / "snapshot"), "test")
    store(config, sweep(truth(16)))
    with pytest.raises(DataError, match="cannot be written"):
        publish(config, NOW_S)


def test_one_publisher(config: Config) -> None:
    store(config, sweep(truth(16)))
    with open_database(config.state_dir, write=True) as database:
        with pytest.raises(BusyError):
            publish(config, NOW_S)
        assert publish(config, NOW_S, database).epoch == 1


def test_settings_reach_the_classification(config: Config) -> None:
    config.set("classes", "method", "pal", "test")
    config.set("classes", "stale_after_d", 5.0, "test")
    config.set("classes", "unknown_after_d", 400.0, "test")
    params = params_of(config)
    assert (params.method, params.stale_after_d, params.unknown_after_d) == ("pal", 5.0, 400.0)
    assert params.retention_d > 400
    assert params_of(config, "pal-artifact").method == "pal-artifact"
    store(config, sweep(truth(32)))
    first = publish(config, NOW_S)
    second = publish(config, NOW_S, method="exact")
    assert first.classes != second.classes and second.changed


def test_a_gpu_that_moved_is_published_where_it_is(config: Config) -> None:
    store(config, sweep(truth(16), "s0", ts=NOW_S - 9 * DAY_S))
    store(config, [record(uuid_of(0), "n0009", 1, ts=NOW_S - DAY_S, sweep="s1")])
    publish(config, NOW_S)
    found = snapshot.read(config.snapshot_path)
    assert found.row("n0001", 0) is None
    row = found.row("n0009", 1)
    assert row is not None and found.gpu(row).uuid == uuid_of(0)


def test_a_clock_that_went_backwards(config: Config) -> None:
    store(config, sweep(truth(16)))
    publish(config, NOW_S)
    report = publish(config, NOW_S - 90 * DAY_S)
    assert report.gpus == 16
    found = snapshot.read(config.snapshot_path)
    assert all("clock_skew" in found.gpu(row).flags for row in range(len(found)))
