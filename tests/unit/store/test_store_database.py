# SPDX-License-Identifier: MIT
"""The database: what it keeps, who may write, and what it says when something is wrong."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import BusyError, DataError, one_line
from slurm_pal.store import database as module
from slurm_pal.store.database import Database, database_path, interrupted, open_database
from slurm_pal.tick.intake import Intake

from ...doubles.privileges import unprivileged
from ...doubles.records_factory import DAY_S, NOW_S, record, sweep, truth
from ...doubles.trials import trials


def filled(directory: Path) -> str:
    with open_database(str(directory), write=True) as database:
        database.insert(sweep(truth(8)), NOW_S)
    return str(directory)


def test_records_come_back_equal_and_by_time(tmp_path: Path) -> None:
    made = [record(f"GPU-{i}", ts=NOW_S - i, telemetry={"hz": 10.0}, flags=["noisy"]) for i in range(5)]
    with open_database(str(tmp_path), write=True) as database:
        assert database.insert(made, NOW_S).new == 5
    with open_database(str(tmp_path)) as database:
        assert database.records() == made[::-1]
        assert database.records(NOW_S - 2) == made[2::-1]
        assert len(database) == 5


def test_records_one_after_another_keep_no_writer_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages end between records of the same time, and another program may write meanwhile."""
    made = [record(f"GPU-{i % 4}", ts=NOW_S - i // 3, run_id=f"r{i}") for i in range(10)]
    with open_database(str(tmp_path), write=True) as database:
        database.insert(made[::-1], NOW_S)
        database._connection.execute("PRAGMA busy_timeout = 0")
        for page in (1, 2, 3, 4, 10, 11):
            monkeypatch.setattr(module, "PAGE", page)
            with open_database(str(tmp_path)) as reader:
                found = reader.by_time(NOW_S - 2)
                seen = [next(found)]
                database.next_epoch()
                assert [*seen, *found] == sorted(made[:9], key=lambda r: (r.ts_end, r.run_id))
                gpus = reader.by_gpu("s1")
                first = next(gpus)
                database.next_epoch()
                assert [first, *gpus] == [[made[i] for i in range(9, -1, -1) if i % 4 == gpu] for gpu in range(4)]


def test_the_same_record_twice_is_kept_once(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        assert database.insert([record(), record()], NOW_S) == (1, 1, ())
        assert database.insert([record()], NOW_S) == (0, 1, ())
        assert len(database) == 1


def test_the_same_run_with_other_content_is_told_and_the_first_kept(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        database.insert([record(run_id="r1", slowdown=1.0)], NOW_S)
        assert database.insert([record(run_id="r1", slowdown=2.0)], NOW_S) == (0, 0, ("r1",))
        assert database.records()[0].result.value == 250.0


def test_last_measured_counts_valid_records_only(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        database.insert([record(node="n1", ts=NOW_S - 9), record(node="n1", ts=NOW_S - 5, valid=False)], NOW_S)
        database.insert([record(node="n2", ts=NOW_S - 7), record(node="n3", valid=False)], NOW_S)
        assert database.last_measured() == {"n1": NOW_S - 9, "n2": NOW_S - 7}
        assert database.last_measured(NOW_S - 8) == {"n1": NOW_S - 9}


def test_a_time_in_the_future_is_corrected_for_good(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        database.insert([record(ts=NOW_S + 400 * DAY_S)], NOW_S)
        (back,) = database.records()
        assert back.ts_end == NOW_S and back.ts_start <= NOW_S
        assert back.flags == ("clock_skew",)
        assert database.last_measured() == {"n1": NOW_S}


def test_epochs_only_rise(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True) as database:
        assert database.epoch() == 0
        assert [database.next_epoch(), database.next_epoch(), database.next_epoch(41), database.next_epoch(3)] == [
            1, 2, 42, 43,
        ]  # fmt: skip
    with open_database(str(tmp_path)) as database:
        assert database.epoch() == 43


@trials(30)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=30))
def test_any_name_is_data(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    with open_database(str(tmp_path_factory.mktemp("names")), write=True) as database:
        database.insert([record(uuid=name, node=name, run_id=name)], NOW_S)
        assert database.last_measured() == {name: NOW_S - 3600}


@pytest.mark.parametrize("name", ["with space", "it's", "q?mode=memory", "100%41", "ä#b", "x; DROP TABLE records"])
def test_any_directory_name(tmp_path: Path, name: str) -> None:
    directory = filled(tmp_path / name)
    assert os.path.exists(os.path.join(directory, "pal.db"))
    with open_database(directory) as database:
        assert len(database) == 24


def test_insert_is_all_or_none(tmp_path: Path) -> None:
    def half() -> Iterator[object]:
        yield record()
        raise KeyboardInterrupt

    with open_database(str(tmp_path), write=True) as database:
        with pytest.raises(KeyboardInterrupt):
            database.insert(half(), NOW_S)  # type: ignore[arg-type]
        assert len(database) == 0


def test_modes(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        directory = filled(tmp_path / "state")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(database_path(directory)).st_mode) == 0o644


def test_one_writer(tmp_path: Path) -> None:
    with open_database(str(tmp_path), write=True):
        with pytest.raises(BusyError, match="another writer of the database"):
            open_database(str(tmp_path), write=True)
        with open_database(str(tmp_path)) as reader:
            assert len(reader) == 0
    with open_database(str(tmp_path), write=True):
        pass


def test_a_failed_opening_gives_the_lock_back(tmp_path: Path) -> None:
    Path(database_path(str(tmp_path))).write_bytes(b"this is not a database" * 50)
    for _ in range(2):
        with pytest.raises(DataError, match="damaged"):
            open_database(str(tmp_path), write=True)


def fails(directory: Path, match: str, write: bool = False, kind: type[Exception] = DataError) -> None:
    with pytest.raises(kind, match=match) as error:
        open_database(str(directory), write=write)
    assert "\n" not in one_line(error.value)


def test_missing(tmp_path: Path) -> None:
    fails(tmp_path, "no database at .*: run pal-profile run")
    fails(tmp_path / "absent", "no database")
    assert os.listdir(tmp_path) == []


def test_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = database_path(filled(tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = Path(path).read_bytes()
    for write in (False, True):
        fails(tmp_path, f"schema 99, newer than {module.SCHEMA_VERSION} known here: update slurm-pal", write)
    assert Path(path).read_bytes() == before


def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(database_path(str(tmp_path)))) as connection, connection:
        connection.execute("CREATE TABLE music (title TEXT)")
    for write in (False, True):
        fails(tmp_path, "not a database of slurm-pal", write)


def test_an_empty_file_is_not_taken_for_a_new_database(tmp_path: Path) -> None:
    path = Path(database_path(filled(tmp_path)))
    path.write_bytes(b"")
    for write in (False, True):
        fails(tmp_path, r"has 0 bytes, .* lost: put a backup in its place, or mv .*pal.db.empty-\d+, then move", write)
    assert path.stat().st_size == 0
    path.rename(tmp_path / "pal.db.empty")
    open_database(str(tmp_path), write=True).close()
    assert sorted(os.listdir(tmp_path)) == ["pal.db", "pal.db.empty", "pal.db.lock"]


def test_a_database_bears_its_name_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is killed while it makes one leaves nothing that the next one stumbles over."""
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(os, "rename", lambda old, new: signal.raise_signal(signal.SIGKILL))
        open_database(str(tmp_path), write=True)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not os.path.exists(database_path(str(tmp_path)))
    with open_database(filled(tmp_path)) as database:
        assert len(database) == 24


def killed_while_writing(directory: Path) -> None:
    """Leave what a writer leaves that is killed with a part of its transaction in the file already."""
    child = os.fork()
    if child == 0:
        try:
            connection = open_database(str(directory), write=True)._connection
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("UPDATE records SET json = '{' || json")
        finally:
            signal.raise_signal(signal.SIGKILL)
    os.waitpid(child, 0)
    assert os.path.getsize(database_path(str(directory)) + "-journal") > 0


def test_a_killed_writer_keeps_nobody_from_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not write reads what was committed last from a copy, and leaves none behind."""
    directory = opened_up(tmp_path)
    filled(directory)
    killed_while_writing(directory)
    before = Path(database_path(str(directory))).read_bytes()
    copies = tmp_path / "copies"
    copies.mkdir()
    copies.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    os.chmod(directory, 0o555)
    with unprivileged(), open_database(str(directory)) as database:
        assert len(database.records()) == 24
        with pytest.raises(DataError, match="cannot be opened or written"):
            database.insert([record(run_id="new")], NOW_S)
    assert os.listdir(copies) == []
    assert Path(database_path(str(directory))).read_bytes() == before
    os.chmod(directory, 0o755)
    with open_database(str(directory)) as database:  # the owner puts it right
        assert len(database.records()) == 24
    assert interrupted(str(directory)) is False


def test_where_there_is_no_room_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened_up(tmp_path)
    filled(directory)
    killed_while_writing(directory)
    os.chmod(directory, 0o555)

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with unprivileged():
        fails(
            directory, "was killed, and its last state cannot be copied .*: its owner runs pal-profile publish-scores"
        )
    os.chmod(directory, 0o755)


def test_a_copy_is_never_made_of_a_file_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = opened_up(tmp_path)
    filled(directory)
    killed_while_writing(directory)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(database_path(str(directory)), os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 510, 0x40000002)  # as SQLite's writer has it while it writes
        os.write(ready[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with contextlib.ExitStack() as stack, pytest.raises(BusyError, match="being repaired"):
        module._copied(database_path(str(directory)), stack)
    os.write(go[1], b".")
    os.waitpid(child, 0)
    for end in (*ready, *go):
        os.close(end)


def test_the_tick_puts_right_what_a_killed_writer_left(tmp_path: Path) -> None:
    """Also a journal that holds nothing: else each tick would look again."""
    config = Config()
    config.set("paths", "state_dir", str(tmp_path), "test")
    filled(tmp_path)
    intake = Intake(config)
    intake.take(NOW_S)
    killed_while_writing(tmp_path)
    assert intake.take(NOW_S + 1) == 0
    assert not interrupted(str(tmp_path))
    Path(database_path(str(tmp_path)) + "-journal").touch()
    intake.take(NOW_S + 2)
    assert not interrupted(str(tmp_path))
    with open_database(str(tmp_path)) as database:
        assert len(database.records()) == 24


def test_the_journal_of_a_database_that_is_gone_is_not_rolled_back_into_a_new_one(tmp_path: Path) -> None:
    path = Path(database_path(filled(tmp_path)))
    killed_while_writing(tmp_path)
    path.unlink()
    with open_database(filled(tmp_path)) as database:
        assert len(database.records()) == 24


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_a_regular_file_is_a_database(tmp_path: Path, make: Callable[[str], None]) -> None:
    make(database_path(str(tmp_path)))
    for write in (False, True):
        fails(tmp_path, "not a regular file", write)


def test_an_interrupted_migration_leaves_the_old_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    broken = (*module.MIGRATIONS, ("CREATE TABLE fine (x)", "CREATE TABLE fine (x)"))
    with monkeypatch.context() as patch:
        patch.setattr(module, "MIGRATIONS", broken)
        patch.setattr(module, "SCHEMA_VERSION", len(broken))
        fails(tmp_path, "cannot be used", write=True)
    with open_database(str(tmp_path), write=True) as database:
        assert len(database) == 24


def test_migration_keeps_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    longer = (*module.MIGRATIONS, ("ALTER TABLE records ADD COLUMN note TEXT",))
    monkeypatch.setattr(module, "MIGRATIONS", longer)
    monkeypatch.setattr(module, "SCHEMA_VERSION", len(longer))
    fails(tmp_path, f"older than {len(longer)}: run pal-profile publish-scores")
    with open_database(str(tmp_path), write=True) as database:
        assert len(database) == 24


def test_damage_is_told_with_the_way_out(tmp_path: Path) -> None:
    path = Path(database_path(filled(tmp_path)))
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged") as error, open_database(str(tmp_path)) as database:
        database.records()
    assert "SPOOL/ingested" in one_line(error.value)


def test_truncated(tmp_path: Path) -> None:
    path = Path(database_path(filled(tmp_path)))
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match="damaged"), open_database(str(tmp_path)) as database:
        database.records()


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    with closing(sqlite3.connect(database_path(filled(tmp_path)))) as connection, connection:
        connection.execute("UPDATE records SET json = '{'")
    with pytest.raises(DataError, match="not JSON"), open_database(str(tmp_path)) as database:
        database.records()


def test_disk_full(tmp_path: Path) -> None:
    """SQLite's own limit on pages gives the same error as a full disk."""
    with open_database(filled(tmp_path), write=True) as database:
        pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
        database._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match=r"no space left .* nothing was stored"):
            database.insert(sweep(truth(64), "s2"), NOW_S)
        assert len(database) == 24


def test_world_writable_is_not_trusted(tmp_path: Path) -> None:
    os.chmod(database_path(filled(tmp_path)), 0o666)
    for write in (False, True):
        fails(tmp_path, "can be written by everyone: chmod o-w", write)


def test_locked_by_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.0)
    with closing(sqlite3.connect(database_path(filled(tmp_path)))) as stranger:
        stranger.execute("BEGIN EXCLUSIVE")
        fails(tmp_path, "locked by another program", kind=BusyError)


def opened_up(tmp_path: Path) -> Path:
    """A directory below tmp_path that others can reach (pytest's own are private)."""
    for parent in (tmp_path, *tmp_path.parents):
        if os.stat(parent).st_uid == os.geteuid() and parent != parent.parent and "pytest" in str(parent):
            os.chmod(parent, os.stat(parent).st_mode | 0o011)
    directory = tmp_path / "state"
    directory.mkdir(mode=0o755)
    return directory


def test_others_read_but_do_not_write(tmp_path: Path) -> None:
    directory = opened_up(tmp_path)
    filled(directory)
    os.chmod(directory, 0o555)
    with unprivileged():
        with open_database(str(directory)) as database:
            assert len(database.records()) == 24
        if os.getuid() == 0:
            fails(directory, "cannot be written", write=True)
    os.chmod(directory, 0o755)


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fails(tmp_path / "file" / "state", "cannot be made .*: set paths.state_dir", write=True)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with open_database(filled(tmp_path)) as database, pytest.raises(DataError, match="cannot be opened or written"):
        database.insert([record(run_id="new")], NOW_S)


def test_close_is_enough(tmp_path: Path) -> None:
    database = open_database(filled(tmp_path), write=True)
    assert isinstance(database, Database)
    database.close()
    open_database(str(tmp_path), write=True).close()
