# SPDX-License-Identifier: MIT
"""Files as we write and trust them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_pal.base import files
from slurm_pal.base.errors import BusyError, DataError, PalError, one_line


def test_write_atomic_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("old")
    files.write_atomic(str(target), "new", 0o600)
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["x"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x"
    target.write_text("old")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(str(target), "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_writer_killed_before_its_rename_keeps_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the next process has the same pid."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    target = tmp_path / "x"
    child = os.fork()
    if child == 0:
        os.replace = lambda old, new: signal.raise_signal(signal.SIGKILL)  # type: ignore[assignment]
        files.write_atomic(str(target), "torn")
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (left,) = tmp_path.iterdir()
    files.write_atomic(str(target), "new")
    assert target.read_text() == "new"
    assert files.remove_leftovers(str(tmp_path), time.time()) == 0  # its writer may be at work
    assert files.remove_leftovers(str(tmp_path), time.time() + files.LEFT_S + 60) == 1
    assert not left.exists()
    assert os.listdir(tmp_path) == ["x"]


def test_a_temporary_name_that_is_taken_is_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(os, "urandom", lambda size: b"\xab" * size)
    (tmp_path / f"x.{'ab' * 8}.tmp").symlink_to(victim)
    with pytest.raises(OSError):
        files.write_atomic(str(tmp_path / "x"), "new")
    assert victim.read_text() == "precious"


def test_only_leftovers_of_our_own_are_removed(tmp_path: Path) -> None:
    ours = ["x.0123456789abcdef.tmp", "x.y.4711.tmp"]
    kept = ["x.0123456789ABCDEF.tmp", "x.tmp", "x.\u0663.tmp", "notes.txt", "x.0123456789abcde.tmp", "x.4711.tmp.bak"]
    for name in (*ours, *kept):
        (tmp_path / name).touch()
    (tmp_path / "folder.1.tmp").mkdir()
    (tmp_path / "link.1.tmp").symlink_to(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "pipe.1.tmp")
    if os.geteuid() == 0:
        (tmp_path / "theirs.1.tmp").touch()
        os.chown(tmp_path / "theirs.1.tmp", 65534, 65534)
        kept.append("theirs.1.tmp")
    assert files.remove_leftovers(str(tmp_path), time.time() + 2 * files.LEFT_S) == len(ours)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "folder.1.tmp", "link.1.tmp", "pipe.1.tmp"])
    assert files.remove_leftovers(str(tmp_path / "none"), time.time()) == 0


def test_world_writable_is_not_trusted(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("text")
    target.chmod(0o646)
    with pytest.raises(DataError, match="chmod o-w"):
        files.read_trusted(str(target))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_reads_only_its_own_and_slurm_users_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("SlurmUser=root\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    target = tmp_path / "x"
    target.write_text("text")
    os.chown(target, 65534, 65534)
    with pytest.raises(DataError, match="belongs to uid 65534"):
        files.read_trusted(str(target))
    for name in ("nobody", "65534", "nobody(65534)"):
        conf.write_text(f"# comment\nSlurmUser={name}  # the account of slurmctld\n")
        assert files.read_trusted(str(target)) == b"text", name


def test_a_lock_names_its_holder_and_ends_with_the_block(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = pytest.raises(BusyError, match=f"sweep is already at work .pid {os.getpid()}")
    with files.locked(path, "sweep"), held, files.locked(path, "sweep"):
        raise AssertionError("locked twice")
    with files.locked(path, "sweep"):
        pass


@pytest.mark.parametrize("mode", [None, 0o644, 0o666])
def test_nobody_else_can_take_a_lock(tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "lock"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    before = os.umask(0)
    try:
        with files.locked(str(path), "sweep"):
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_causes_are_flattened_to_one_line_without_control_characters() -> None:
    error = PalError("cannot sweep\n n1")
    error.__cause__ = OSError(28, "No space left on device\x1b[31m")
    assert one_line(error) == "cannot sweep n1: [Errno 28] No space left on device\\x1b[31m"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_regular_files_are_read(tmp_path: Path, make: Callable[[str], None]) -> None:
    make(str(tmp_path / "x"))
    with pytest.raises(DataError, match="not a regular file"):
        files.read_trusted(str(tmp_path / "x"))
