# SPDX-License-Identifier: MIT
"""From the spool to the database: good lines in, bad ones named, nothing lost, nothing hung."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError
from slurm_pal.store import ingest as module
from slurm_pal.store.database import Database, open_database
from slurm_pal.store.ingest import ingest

from ...doubles.records_factory import DAY_S, NOW_S, record, sweep, truth
from ...doubles.trials import trials


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool" / "incoming").mkdir(parents=True)
    return tmp_path / "spool"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(str(tmp_path / "state"), write=True) as opened:
        yield opened


def drop(spool: Path, name: str, *lines: str | bytes) -> None:
    raw = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    (spool / "incoming" / name).write_bytes(raw)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory)) if directory.exists() else []


def test_good_files_are_taken_in_and_moved(spool: Path, database: Database) -> None:
    made = sweep(truth(8))
    for node in ("n0001", "n0002"):
        drop(spool, f"s1.{node}.jsonl", *(r.to_json() for r in made if r.node_name == node), "", "  ")
    drop(spool, "s1.n0003.jsonl.tmp", "half a rec")
    drop(spool, "notes.txt", "not ours")
    report = ingest(str(spool), database, NOW_S)
    assert (report.files, report.new, report.known, report.bad, report.complaints) == (2, 24, 0, 0, ())
    assert names(spool / "incoming") == ["notes.txt", "s1.n0003.jsonl.tmp"]
    assert names(spool / "ingested") == ["s1.n0001.jsonl", "s1.n0002.jsonl"]
    assert not (spool / "rejected").exists()
    assert sorted(r.run_id for r in database.records()) == sorted(r.run_id for r in made)


def test_again_is_harmless(spool: Path, database: Database) -> None:
    for _ in range(3):
        drop(spool, "s1.n1.jsonl", record().to_json())
        ingest(str(spool), database, NOW_S)
    assert len(database) == 1
    assert names(spool / "ingested") == ["s1.n1.jsonl", "s1.n1.jsonl.1", "s1.n1.jsonl.2"]
    assert ingest(str(spool), database, NOW_S).files == 0


def test_the_newest_attempt_has_the_plain_name(spool: Path, database: Database) -> None:
    for attempt in ("first", "second"):
        drop(spool, "s1.n1.jsonl", record(run_id=attempt).to_json())
        ingest(str(spool), database, NOW_S)
    assert "second" in (spool / "ingested" / "s1.n1.jsonl").read_text()
    assert "first" in (spool / "ingested" / "s1.n1.jsonl.1").read_text()
    assert len(database) == 2


def table(**changes: object) -> dict[str, object]:
    return {**json.loads(record(run_id="bad").to_json()), **changes}


BAD_LINES = {
    "{": "not JSON",
    "[1, 2]": "a record is a JSON object",
    "null": "a record is a JSON object",
    "[" * 100_000: "nested too deeply",
    b"\xff\xfe\xfd": "not UTF-8",  # type: ignore[dict-item]
    json.dumps({"schema": "pal.record/1"}): "field missing",
    json.dumps(table(schema="pal.record/2")): "newer than 'pal.record/1'",
    json.dumps(table(schema="pal.snapshot/1")): "is needed",
    json.dumps(table(surprise=1)): "surprise",
    json.dumps(table(gpu=5)): "field missing or unknown",
    json.dumps(table(flags=5)): "field missing or unknown",
    json.dumps(table(sweep_id=["x"])): "sweep_id",
    json.dumps(table(node_name="a\nb")): "node_name",
    json.dumps(table(ts_end="now")): "ts_end",
    json.dumps(table(ts_end=1e400)): "ts_end",
    json.dumps(table(result={**json.loads(record().to_json())["result"], "value": -1})): "result.value",
    json.dumps(table(ts_end=10**400)): "ts_end",
    json.dumps(table(result={**json.loads(record().to_json())["result"], "value": 10**400})): "result.value",
    json.dumps(table(result={**json.loads(record().to_json())["result"], "samples": [10**400]})): "too large",
    json.dumps(table(telemetry={"power_w": float("nan")})): "telemetry",
    json.dumps(table(telemetry={"a": [10**400]})): "telemetry",
    json.dumps(table(telemetry={"a": "\x1b[2J"})): "telemetry",
    json.dumps(table(schema="pal.record/\u00b2")): "is needed",
    json.dumps(table(**{"a\u2028b\u202e": 1})): r"a b\u202e",
    record().to_json()[:200]: "not JSON",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_bad_lines_are_named_and_the_good_ones_kept(spool: Path, database: Database, line: str, reason: str) -> None:
    drop(spool, "s1.n1.jsonl", record().to_json(), line, record("GPU-2", index=1).to_json())
    report = ingest(str(spool), database, NOW_S)
    assert (report.files, report.new, report.bad) == (1, 2, 1)
    assert str(report.complaints[0]).startswith("s1.n1.jsonl:2: ")
    assert reason in str(report.complaints[0])
    assert "\n" not in str(report.complaints[0])
    assert names(spool / "rejected") == ["s1.n1.jsonl"] and names(spool / "incoming") == []


def test_conflicting_runs_are_told(spool: Path, database: Database) -> None:
    drop(spool, "a.jsonl", record(run_id="r", slowdown=1.0).to_json())
    drop(spool, "b.jsonl", record(run_id="r", slowdown=1.5).to_json())
    report = ingest(str(spool), database, NOW_S)
    assert report.new == 1 and "run 'r' is known with other content" in str(report.complaints[0])
    assert names(spool / "rejected") == ["b.jsonl"]


def test_many_bad_lines_are_all_counted(spool: Path, database: Database) -> None:
    drop(spool, "s.jsonl", *["x"] * 1000)
    report = ingest(str(spool), database, NOW_S)
    assert report.bad == 1000 and len(report.complaints) == module.MAX_REASONS


def test_an_empty_file_is_good(spool: Path, database: Database) -> None:
    drop(spool, "s.jsonl")
    assert ingest(str(spool), database, NOW_S)[:4] == (1, 0, 0, 0)
    assert names(spool / "ingested") == ["s.jsonl"]


def test_links_pipes_directories_and_giants_are_refused_unread(
    spool: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = spool / "incoming"
    (spool / "secret").write_text(record().to_json())
    (incoming / "link.jsonl").symlink_to(spool / "secret")
    os.mkfifo(incoming / "pipe.jsonl")
    (incoming / "directory.jsonl").mkdir()
    monkeypatch.setattr(module, "MAX_BYTES", 5000)
    drop(spool, "giant.jsonl", "x" * 6000)
    report = ingest(str(spool), database, NOW_S)
    reasons = {c.file: c.reason for c in report.complaints}
    assert "symbolic link" in reasons["link.jsonl"]
    assert "not a regular file" in reasons["pipe.jsonl"] and "not a regular file" in reasons["directory.jsonl"]
    assert "more than 5000 allowed" in reasons["giant.jsonl"]
    assert len(database) == 0 and names(incoming) == []
    assert (spool / "secret").exists() and (spool / "rejected" / "link.jsonl").is_symlink()


def test_hostile_names(spool: Path, database: Database) -> None:
    for i, name in enumerate(["a\nb.jsonl", "-rf.jsonl", "'; DROP TABLE records;.jsonl", "ü .jsonl"]):
        drop(spool, name, record(f"GPU-{i}", run_id=f"r{i}").to_json(), "bad")
    report = ingest(str(spool), database, NOW_S)
    assert (report.new, report.bad) == (4, 4)
    assert all(str(c).isprintable() for c in report.complaints)
    assert len(names(spool / "rejected")) == 4


def test_an_absent_spool_is_empty(tmp_path: Path, database: Database) -> None:
    assert ingest(str(tmp_path / "nowhere"), database, NOW_S) == (0, 0, 0, 0, ())


def test_a_spool_that_everyone_writes_is_refused(spool: Path, database: Database) -> None:
    drop(spool, "s.jsonl", record().to_json())
    os.chmod(spool / "incoming", 0o777)
    with pytest.raises(DataError, match="could be forged: chmod o-w"):
        ingest(str(spool), database, NOW_S)
    assert len(database) == 0


def test_a_spool_that_is_a_file(tmp_path: Path, database: Database) -> None:
    (tmp_path / "spool").touch()
    with pytest.raises(DataError, match="cannot be read"):
        ingest(str(tmp_path / "spool"), database, NOW_S)


def test_what_cannot_be_stored_stays_in_incoming(spool: Path, database: Database) -> None:
    drop(spool, "s1.jsonl", *(r.to_json() for r in sweep(truth(64))))
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DataError, match="no space left"):
        ingest(str(spool), database, NOW_S)
    assert names(spool / "incoming") == ["s1.jsonl"] and len(database) == 0
    database._connection.execute("PRAGMA max_page_count = 100000")
    assert ingest(str(spool), database, NOW_S).new == 192


def test_a_file_that_cannot_be_moved(spool: Path, database: Database) -> None:
    (spool / "ingested").touch()
    drop(spool, "s1.jsonl", record().to_json())
    with pytest.raises(DataError, match="cannot be moved"):
        ingest(str(spool), database, NOW_S)
    os.unlink(spool / "ingested")
    assert ingest(str(spool), database, NOW_S)[:3] == (1, 0, 1)


def test_records_from_the_future_get_the_time_of_taking_in(spool: Path, database: Database) -> None:
    drop(spool, "s1.jsonl", record(ts=NOW_S + 900 * DAY_S).to_json())
    ingest(str(spool), database, NOW_S)
    assert database.records()[0].ts_end == NOW_S


@trials(40)
@given(st.lists(st.binary(max_size=200), max_size=6))
def test_noise_never_raises(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    spool = tmp_path_factory.mktemp("noise")
    (spool / "incoming").mkdir()
    drop(spool, "s.jsonl", *lines)
    with open_database(str(spool / "state"), write=True) as database:
        assert ingest(str(spool), database, NOW_S).new == 0
    assert names(spool / "incoming") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_does_not_take_a_strangers_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    path = tmp_path / "spool" / "incoming" / "s.n.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{}\n")
    os.chown(path, 12345, 12345)
    with open_database(str(tmp_path), write=True) as database:
        (complaint,) = ingest(str(tmp_path / "spool"), database).complaints
    assert "belongs to uid 12345" in complaint.reason
