# SPDX-License-Identifier: MIT
"""A file of measurements in place of devices: what can be read, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError, Exit
from slurm_pal.profiling.node import host
from slurm_pal.profiling.node.backends import open_backend, resolve
from slurm_pal.profiling.node.bench import measure_node
from slurm_pal.profiling.node.benchmarks import select
from slurm_pal.profiling.node.host import Host
from slurm_pal.profiling.node.measurement import Order, RecordOrigin
from slurm_pal.profiling.node.replay import RecordedRun, ReplayBackend, read
from slurm_pal.variability.records import from_json


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_columns_may_be_more_fewer_and_in_any_order(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "\ufeffcolour,perf,uuid,ts,input_size,temp\r\n"  # as spreadsheets write it
        "red,80,G2,20,8192,60.5\r\nblue,70,G2,10,8192.0,\r\n,1,G1,-1.0,8192,\r\n,90,G1,,16384\r\n",
    )
    assert read(path) == {
        "G1": [RecordedRun(0.09, 16384, None, None, None, None)],
        "G2": [RecordedRun(0.07, 8192, None, None, None, None), RecordedRun(0.08, 8192, None, None, 60.5, None)],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column input_size, perf, uuid; a replay needs uuid,perf,input_size"),
        ("uuid,perf\nG1,5\n", "no column input_size;"),
        ("uuid,perf,input_size\n", "holds no run that has a time"),
        ("uuid,perf,input_size,ts\nG1,5,8192,-1\n", "holds no run that has a time"),
        ("uuid,perf,input_size\nG1,5,8192\nG1,5\n", "line 3: input_size '' must be a size from 1 to 1e6"),
        ("perf,input_size,uuid\n5,8192\n", "line 2: uuid '' must be a printable text"),
        ("uuid,perf,input_size\nG\x1b[31m,5,8192\n", r"line 2: uuid 'G\x1b[31m' must be a printable text"),
        ("uuid,perf,input_size\nG1,fast,8192\n", "line 2: perf 'fast' must be a time in ms"),
        ("uuid,perf,input_size\nG1,nan,8192\n", "line 2: perf 'nan' must be"),
        ("uuid,perf,input_size\nG1,inf,8192\n", "line 2: perf 'inf' must be"),
        ("uuid,perf,input_size\nG1,0,8192\n", "line 2: perf '0' must be"),
        ("uuid,perf,input_size\nG1,5,0\n", "line 2: input_size '0' must be"),
        ("uuid,perf,input_size\nG1,5,1" + 400 * "0", "line 2: input_size '1" + 39 * "0" + "' must be"),
        ("uuid,perf,input_size,ts\nG1,5,8192,monday\n", "line 2: ts 'monday' must be a time in s, or -1"),
        ("uuid,perf,input_size,pwr\nG1,5,8192,nan\n", "line 2: pwr 'nan' must be a power in W"),
        (b"uuid,perf,input_size\nG\xe9,5,8192\n", "cannot be read: 'utf-8' codec"),
        ('uuid,perf,input_size\n"G1,5,8192\nG2,5,8192\n', "must be"),  # a quote that is never closed
        ("uuid,perf,input_size\nG" + 200_000 * "1", "cannot be read: field larger than"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(path) and said in str(caught.value) and "\n" not in str(caught.value)


def test_a_path_that_is_no_file_is_named_once(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none.csv", "No such file or directory")):
        with pytest.raises(DataError) as caught:
            open_backend(resolve("replay", {}, str(path)))
        assert str(caught.value) == f"{path}: cannot be read: {why}"


def test_a_busy_machine_says_nothing_about_the_runs_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "look", lambda: Host(load=900.0, cores=2))
    backend = open_backend(resolve("replay", {}, written(tmp_path, "uuid,perf,input_size,pwr\nG1,70,8192,299\n")))
    assert isinstance(backend, ReplayBackend) and backend.nodes == ("r0",)
    place = RecordOrigin("s", "c", "r0", 0, 3, backend.name)
    outcome = measure_node(backend, place, range(1), 1, Order(select("gemm_fp32,tblock")), 60.0)
    (record,) = (from_json(line) for line in outcome.lines)
    assert outcome.exit_code == Exit.OK and record.valid and record.flags == ()
    assert record.result.value == pytest.approx(2.0 * 8192**3 / 0.07 / 1e12)
    assert outcome.notes == ("tblock: the file holds runs of gemm_fp32 only (GPU 0)",)
