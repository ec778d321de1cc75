# SPDX-License-Identifier: MIT
"""The GPUs on which jobs started, kept beside the snapshot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm import parse
from slurm_pal.store import starts
from slurm_pal.store.starts import Starts, find


def running(number: int, node: str = "n1", at_s: float = 100.0, task: int | None = None) -> SlurmJob:
    made = parse.nobodys(number, {"JobState": "RUNNING", "JobName": "x"})
    array = 5 if task is not None else None
    return made._replace(
        gpus={node: (0, 2)}, nodes=(node,), start_s=at_s, user="ada", array_job_id=array, array_task_id=task
    )


def test_a_run_is_written_once_and_found_by_job_and_by_task(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    writer = Starts(path)
    jobs = [running(7), running(8, "n2", task=3), running(9)._replace(gpus={})]
    assert [writer.add(jobs, private=False), writer.add(jobs, private=False)] == [jobs[:2], []]
    assert Starts(path).add(jobs, private=False) == []  # a new process knows them
    assert Path(starts.path_of(path)).read_text().count("\n") == 2
    seven = find(path, 7)
    assert seven is not None and (seven.user, seven.at_s, seven.gpus) == ("ada", 100.0, {"n1": (0, 2)})
    assert starts.noted(seven) == {"at_s": 100.0, "gpus": [["n1", 0], ["n1", 2]]}
    assert find(path, 5, 3) == find(path, 8) != seven
    assert find(path, 5, 4) is None and find(path, 70) is None and find(path, 9) is None


def test_the_last_run_of_a_requeued_job_counts(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    writer = Starts(path)
    writer.add([running(7)], private=False)
    writer.add([], private=False)
    writer.add([running(7, "n3", 200.0)], private=False)
    again = find(path, 7)
    assert again is not None and (again.at_s, list(again.gpus)) == (200.0, ["n3"])


def test_where_slurm_hides_jobs_only_its_user_can_read(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    writer = Starts(path)
    kept = Path(starts.path_of(path))
    for private, mode in ((True, 0o600), (False, 0o644), (True, 0o600)):
        writer.add([running(7)], private)
        assert kept.stat().st_mode & 0o777 == mode
    assert [starts.hidden(text) for text in ("jobs", "cloud, Jobs", "all", "cloud", "(null)", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_it_stays_bounded_and_a_torn_line_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "snapshot")
    monkeypatch.setattr(starts, "MOST_BYTES", 1000)
    writer = Starts(path)
    for number in range(1, 101):
        writer.add([running(number)], private=False)
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 2000
    assert find(path, 100) is not None and find(path, 1) is None
    with open(starts.path_of(path), "a") as stream:
        stream.write('{"schema": "pal.start/1", "job": 101,')
    assert find(path, 101) is None and find(path, 100) is not None
    Path(starts.path_of(path)).write_text('{"schema": "pal.start/2", "job": 7, "gpus": {}}\n[]\n"job": 7,\n')
    assert find(path, 7) is None


def test_a_file_that_all_may_write_is_not_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    Starts(path).add([running(7)], private=False)
    os.chmod(starts.path_of(path), 0o666)
    with pytest.raises(DataError, match="written by everyone"):
        find(path, 7)


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    (tmp_path / "victim").write_text("")
    os.symlink(tmp_path / "victim", starts.path_of(path))
    with pytest.raises(OSError, match="symbolic links"):
        Starts(path).add([running(7)], private=False)
    assert (tmp_path / "victim").read_text() == ""
