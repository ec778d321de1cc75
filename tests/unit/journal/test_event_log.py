# SPDX-License-Identifier: MIT
"""The log of the tick: whole lines, found again after a rotation, and never in the way."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_pal.journal.event_log import EventLog, human


@pytest.fixture(autouse=True)
def open_mask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_object_in_each_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(str(path), echo=False)
    log.write(12.34567, "move", job_id=7, target=("n1", "n2"), note="two\nlines")
    log.write(13.0, "paused")
    log.close()
    assert lines(path) == [
        {"schema": "pal.event/1", "at_s": 12.346, "what": "move", "job_id": 7, "target": ["n1", "n2"],
         "note": "two\nlines"},
        {"schema": "pal.event/1", "at_s": 13.0, "what": "paused"},
    ]  # fmt: skip


@pytest.mark.parametrize("mode", [0o640, 0o600])
def test_mode(tmp_path: Path, mode: int) -> None:
    log = EventLog(str(tmp_path / "log"), echo=False, mode=mode)
    log.write(1.0, "a")
    log.close()
    assert stat.S_IMODE(os.stat(tmp_path / "log").st_mode) == mode


@pytest.mark.parametrize("remade", [False, True])
def test_a_file_that_was_moved_away_gets_no_more(tmp_path: Path, remade: bool) -> None:
    path = tmp_path / "log"
    log = EventLog(str(path), echo=False)
    log.write(1.0, "before")
    path.rename(tmp_path / "log.1")
    if remade:  # logrotate's create
        path.touch(0o640)
    log.write(2.0, "after")
    log.close()
    assert [line["what"] for line in lines(tmp_path / "log.1")] == ["before"]
    assert [line["what"] for line in lines(path)] == ["after"]


def test_a_failure_is_told_once_and_the_log_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "away" / "log"
    log = EventLog(str(path), echo=False)
    log.write(1.0, "lost")
    log.write(2.0, "lost too")
    told = capsys.readouterr().err
    assert told == f"log {path} cannot be written (No such file or directory); the work goes on without it\n"
    path.parent.mkdir()
    log.write(3.0, "kept")
    path.unlink()
    path.parent.rmdir()
    log.write(4.0, "lost again")
    assert capsys.readouterr().err.count("cannot be written") == 1
    log.close()


def test_a_full_disk_costs_one_line_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    log = EventLog(str(path), echo=False)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    log.write(1.0, "torn")
    monkeypatch.undo()
    log.write(2.0, "whole")
    log.close()
    first, second = path.read_text().splitlines()
    assert len(first) == 10 and json.loads(second)["what"] == "whole"
    assert "only a part" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_a_plain_file_is_written(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    {"link": lambda: path.symlink_to(other), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    log = EventLog(str(path), echo=False)
    log.write(1.0, "a")
    log.close()
    assert capsys.readouterr().err.count("cannot be written") == 1 and not other.exists()


def test_strange_details_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    round_about: list[object] = []
    round_about.append(round_about)
    path = tmp_path / "log"
    log = EventLog(str(path), echo=False)
    log.write(1.0, "circle", found=round_about)
    log.write(2.0, "object", path=path)
    log.close()
    assert "cannot be written (Circular reference detected)" in capsys.readouterr().err
    assert [line["path"] for line in lines(path)] == [str(path)]


def test_the_echo_is_one_printable_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(str(tmp_path / "log"), echo=True)
    log.write(1.0, "nodelist", job_id=3, fields={"ReqNodeList": "n1"}, own="", reason="better\x1b[31m\nGPUs")
    log.close()
    assert capsys.readouterr().err == 'nodelist job_id=3 fields={"ReqNodeList": "n1"} reason=better?[31m?GPUs\n'
    assert human("paused", {}) == "paused"
