# SPDX-License-Identifier: MIT
"""The Standard Workload Format: rows made by hand after its definition (version 2.2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.trace import Trace, TraceJob

NAMES = (
    "job", "submit", "wait", "run", "allocated", "cpu", "memory", "requested", "limit", "reqmem", "status", "user",
    "group", "app", "queue", "partition", "before", "think",
)  # fmt: skip
ROW = dict.fromkeys(NAMES, "-1") | {"job": "1", "submit": "10", "wait": "3", "run": "60", "allocated": "4"}


def parse(tmp_path: Path, *rows: dict[str, str] | str, options: ReaderOptions | None = None) -> Trace:
    lines = [row if isinstance(row, str) else "  ".join((ROW | row).values()) for row in rows]
    path = tmp_path / "log.swf"
    path.write_text("\n".join(["; Version: 2.2", ";", *lines]) + "\n", encoding="ascii")
    return read(str(path), "swf", options)


def test_all_fields(tmp_path: Path) -> None:
    row = {"limit": "120.5", "status": "1", "user": "3", "group": "5", "app": "7", "queue": "2", "partition": "2"}
    trace = parse(tmp_path, row, {"job": "2", "submit": "5.5"})
    assert trace.jobs == (
        TraceJob("2", 5.5, GpuShape(4), 60.0, "?"),
        TraceJob("1", 10.0, GpuShape(4), 60.0, "?", 120.5, app="7", user="u3", account="g5"),
    )
    assert (trace.bad, trace.skipped) == ((), {})


@pytest.mark.parametrize(
    ("allocated", "requested", "per_gpu", "gpus"),
    [("4", "8", 1, 4), ("-1", "8", 1, 8), ("0", "8", 1, 8), ("4", "-1", 4, 1), ("5", "-1", 4, 2), ("1", "-1", 64, 1)],
)
def test_processors_are_gpus(tmp_path: Path, allocated: str, requested: str, per_gpu: int, gpus: int) -> None:
    row = {"allocated": allocated, "requested": requested}
    (job,) = parse(tmp_path, row, options=ReaderOptions(processors_per_gpu=per_gpu)).jobs
    assert job.shape == GpuShape(gpus)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"run": "-1"}, "no run time"),
        ({"run": "0"}, "no run time"),
        ({"run": "-1", "status": "5"}, "cancelled before its start"),
        ({"allocated": "-1"}, "no processors"),
        ({"status": "2"}, "part of a job that has a line of its own"),
        ({"status": "3"}, "part of a job that has a line of its own"),
        ({"status": "4"}, "part of a job that has a line of its own"),
    ],
)
def test_rows_that_are_not_replayed(tmp_path: Path, row: dict[str, str], reason: str) -> None:
    trace = parse(tmp_path, row)
    assert (trace.jobs, trace.bad, trace.skipped) == ((), (), {reason: 1})


@pytest.mark.parametrize("status", ["-1", "0", "1", "5"])
def test_rows_that_are(tmp_path: Path, status: str) -> None:
    assert len(parse(tmp_path, {"status": status}).jobs) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1 2 3", "3 fields instead of 18: '1 2 3'"),
        ({"submit": "-1"}, "submit time = '-1' must be a number of at least 0"),
        ({"run": "long"}, "run time = 'long' must be"),
        ({"allocated": "2.5"}, "allocated processors = '2.5' must be"),
        ({"status": "9"}, "status = 9 is not one of -1, 0, 1, 2, 3, 4, 5"),
        ({"job": "one"}, "job number = 'one' must be"),
        ({"job": "7"}, "job id '7' was given before, on line 3"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, str] | str, reason: str) -> None:
    trace = parse(tmp_path, {"job": "7"}, row, {"job": "8"})
    assert [job.job_id for job in trace.jobs] == ["7", "8"]
    assert [bad.line for bad in trace.bad] == [4]
    assert reason in trace.bad[0].reason


def test_not_that_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no line has the 18 fields"):
        parse(tmp_path, "1 2 3")
    with pytest.raises(UsageError, match="processors per GPU = 0 must be at least 1"):
        parse(tmp_path, ROW, options=ReaderOptions(processors_per_gpu=0))
