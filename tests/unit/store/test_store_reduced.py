# SPDX-License-Identifier: MIT
"""What sweeps were reduced to is kept, and never believed when the records say otherwise."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError
from slurm_pal.store import kernels, reduced
from slurm_pal.store.database import Database, database_path, open_database
from slurm_pal.store.publish import publish
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import sweeps

from ...doubles.records_factory import DAY_S, NOW_S, classify, record, sweep, truth, uuid_of
from ...doubles.trials import trials

TELEMETRY = {
    "sm_clk_mhz": {"p5": 1.0, "p50": 1300.0, "p95": 1400.0},
    "power_w": {"p50": 280.0},
    "duty": {"power_cap": 1.0},
    "dram": {"p50": 0.3},
    "tensor": {"p50": 0.8},
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(str(tmp_path), write=True) as opened:
        yield opened


def names(directory: Path) -> list[str]:
    with closing(sqlite3.connect(database_path(str(directory)))) as connection:
        return [row[0] for row in connection.execute("SELECT sweep FROM reduced ORDER BY sweep")]


RUNS = st.tuples(
    st.integers(0, 8), st.integers(0, 3), st.sampled_from(["A", "A", "B", ""]), st.floats(-200.0, 30.0),
    st.sampled_from([0.99, 1.0, 1.001, 1.02, 1.4]), st.booleans(), st.sampled_from(["550.1", "560.1"]),
)  # fmt: skip
STEPS = st.tuples(st.lists(RUNS, max_size=15), st.floats(-10.0, 40.0), st.booleans())


def made(run: tuple[int, int, str, float, float, bool, str], run_id: str, now_s: float) -> Record:
    gpu, number, sensitivity, at_d, slow, steady, driver = run
    return record(
        f"GPU-{gpu}", f"n{gpu // 4}", gpu % 4, slow, sensitivity=sensitivity, ts=now_s + at_d * DAY_S,
        sweep=f"s{number}", run_id=run_id, steady=steady, driver=driver, telemetry=TELEMETRY,
    )  # fmt: skip


@trials(25)
@given(st.lists(STEPS, min_size=1, max_size=5))
def test_a_publication_says_what_all_records_say(steps: list[tuple[list[object], float, bool]]) -> None:
    """Sweeps grow after they were kept, clocks go back, records leave the retention, constants change."""
    now_s = NOW_S
    with TemporaryDirectory() as place:
        config = Config()
        config.set("paths", "state_dir", place, "test")
        with open_database(place, write=True) as database:
            database.insert([record("GPU-0", "n0", 0, ts=NOW_S - DAY_S)], NOW_S)
            for number, (runs, later_d, other) in enumerate(steps):
                now_s = max(NOW_S - 5 * DAY_S, now_s + later_d * DAY_S)
                new = [made(run, f"{number}-{k}", now_s) for k, run in enumerate(runs)]  # type: ignore[arg-type]
                database.insert([*new, record("GPU-0", "n0", 0, ts=now_s - 60, run_id=f"{number}")], now_s)
                config.set("classes", "stale_after_d", 20.0 if other else 30.0, "test")
                params = Params(stale_after_d=20.0 if other else 30.0)
                for _ in range(2):  # from the records, then from what was kept
                    found = publish(config, now_s, database).classification
                    assert found == classify(database.records(), now_s, params)


def test_only_what_is_finished_is_kept_and_the_rest_forgotten(tmp_path: Path) -> None:
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    with open_database(str(tmp_path), write=True) as database:
        for name, age_s in (("old", 100 * DAY_S), ("done", 2 * 3600.0), ("running", 60.0)):
            database.insert(sweep(truth(4), name, ts=NOW_S - age_s), NOW_S)
        publish(config, NOW_S, database)
        assert names(tmp_path) == ["done", "old"]
        publish(config, NOW_S + 120 * DAY_S, database)
        assert names(tmp_path) == ["done", "running"]


def test_records_of_a_kept_sweep_are_not_read_again(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.insert(sweep(truth(4), ts=NOW_S - DAY_S, telemetry=TELEMETRY), NOW_S)
    (extent,) = database.extents(0.0)
    first = reduced.read(database, extent, NOW_S, Params())
    monkeypatch.setattr(Database, "by_gpu", None)
    assert reduced.read(database, extent, NOW_S + DAY_S, Params(method="pal")) == first
    assert first.sweep == sweeps(database.records(), NOW_S, Params())[0]


@pytest.mark.parametrize("what", ["record", "constant", "version", "format"])
def test_what_it_was_made_from_counts(database: Database, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database.insert(sweep(truth(4), ts=NOW_S - DAY_S, cv_pct=0.4), NOW_S)
    reduced.read(database, database.extents(0.0)[0], NOW_S, Params())
    params, read = Params(), []
    if what == "record":
        database.insert([record(uuid_of(0), ts=NOW_S - 2 * DAY_S)], NOW_S)
    elif what == "constant":
        params = Params(noisy_cv_pct=0.3)
    else:
        monkeypatch.setattr(reduced, *(("__version__", "9") if what == "version" else ("FORMAT", 99)))
    by_gpu = Database.by_gpu
    monkeypatch.setattr(Database, "by_gpu", lambda self, name: read.append(name) or by_gpu(self, name))
    found = reduced.read(database, database.extents(0.0)[0], NOW_S, params)
    assert read == ["s1"]
    assert found.sweep == sweeps(database.records(), NOW_S, params)[0]


def test_a_publication_does_not_depend_on_keeping(tmp_path: Path) -> None:
    """A report that reads for long holds SQLite's lock: nothing can be written, but the records can be read."""
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    with open_database(str(tmp_path), write=True) as database:
        database.insert(sweep(truth(8), ts=NOW_S - DAY_S), NOW_S)
        publish(config, NOW_S, database)
        (extent,) = database.extents(0.0)
        database.keep("s1", "", b"")
        database._connection.execute("PRAGMA busy_timeout = 0")
        with closing(sqlite3.connect(database_path(str(tmp_path)))) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM records").fetchone()
            with pytest.raises(BusyError):
                database.keep("s1", "", b"")
            assert publish(config, NOW_S, database).gpus == 8
        assert database.kept("s1", reduced._stamp(extent, Params())) is None


def test_whoever_only_reads_finds_the_same_and_keeps_nothing(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        for number in range(3):
            database.insert(sweep(truth(4), f"s{number}", ts=NOW_S - (3 - number) * DAY_S), NOW_S)
        extents = database.extents(0.0)
        first = reduced.read(database, extents[0], NOW_S, Params())
        known = sweeps(database.records(), NOW_S, Params())
    before = Path(database_path(str(tmp_path))).read_bytes()
    with open_database(str(tmp_path)) as reader:
        assert list(reduced.sweeps(reader, extents, NOW_S, Params())) == known
        assert reduced.read(reader, extents[0], NOW_S, Params()) == first
    assert names(tmp_path) == ["s0"] and Path(database_path(str(tmp_path))).read_bytes() == before


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 99])
def test_what_cannot_be_read_is_made_again(database: Database, damage: bytes) -> None:
    database.insert(sweep(truth(4), ts=NOW_S - DAY_S), NOW_S)
    (extent,) = database.extents(0.0)
    first = reduced.read(database, extent, NOW_S, Params())
    kept = database.kept("s1", reduced._stamp(extent, Params()))
    assert kept is not None
    database.keep("s1", reduced._stamp(extent, Params()), damage or kept[:-1])
    assert reduced.read(database, extent, NOW_S, Params()) == first


def test_the_kernels_are_those_of_the_records(database: Database) -> None:
    broken = [{}, {"sm_clk_mhz": {"p95": 1500.0}}, {"sm_clk_mhz": 3}]
    records = sweep(truth(12), ts=NOW_S - DAY_S, telemetry=TELEMETRY)
    records += [record(f"GPU-{i}", ts=NOW_S - DAY_S, telemetry=t) for i, t in enumerate(broken)]
    records += [record("GPU-x", ts=NOW_S - DAY_S, valid=False, telemetry=TELEMETRY)]
    database.insert(records, NOW_S)
    told, kept = kernels.Points(), kernels.Points()
    for one in records:
        told.take(kernels.told(one))
    for row in reduced.read(database, database.extents(0.0)[0], NOW_S, Params()).kernels:
        kept.take(row)
    assert kept.kernels() == told.kernels() != {}


def plain(value: object) -> object:
    """Without the order of a set, and without the digits in which mathematical libraries differ."""
    return sorted(value) if isinstance(value, frozenset) else f"{value:.9g}" if isinstance(value, float) else value


def test_the_format_is_the_one_that_is_numbered(database: Database) -> None:
    """When this fails, records are reduced to something else than before: raise `reduced.FORMAT`, renew the sum."""
    some = sweep(truth(4), ts=NOW_S - DAY_S, telemetry=TELEMETRY)
    some += [replace(one, run_id=f"{one.run_id}-2") for one in sweep(truth(4), ts=NOW_S - DAY_S + 60, cv_pct=0.7)]
    some += sweep(truth(4), ts=NOW_S - DAY_S + 90, bench="x", flags=["xid", "host_noise"], unit="s", steady=False)
    database.insert(some, NOW_S)
    found = reduced.read(database, database.extents(0.0)[0], NOW_S, Params())
    assert found.sweep is not None
    rows = [*found.sweep.observations, *found.sweep.sightings, *found.kernels]
    text = "\n".join(repr([plain(value) for value in row]) for row in rows)
    assert all(math.isfinite(row.speed) for row in found.sweep.observations)
    assert (reduced.FORMAT, hashlib.sha256(text.encode()).hexdigest()[:16]) == (3, "f3b197ec20716579")
