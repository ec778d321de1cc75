# SPDX-License-Identifier: MIT
"""Gavel's traces and throughput tables: what is read, and the line for each kind of bad input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.inputs.gavel import NO_DEADLINE, read_rows
from slurm_pal.simulate.throughput_file import Throughputs, read_throughputs

A, B = ("A (batch size 1)", 1), ("B", 2)
TABLE: dict[str, Any] = {
    "k80": {
        "('A (batch size 1)', 1)": {"null": 2.0, "('A (batch size 1)', 1)": [1.5, 1.5]},
        "('B', 2)": {"null": 0},
    },
    "v100": {
        "('A (batch size 1)', 1)": {"null": 8.0, "('A (batch size 1)', 1)": [5.0, 0.0]},
        "('B', 2)": {"null": 3.0},
    },
    "v100_unconsolidated": {"('A (batch size 1)', 1)": {"null": 8.0}, "('B', 2)": {"null": 1.0}},
}
LINE = "A (batch size 1)\tpython3 main.py --data_dir=%s/x\tdir\t--steps\t1\t800\t1\t1\t-1.000000\t0.000000"
WIDE = "B\tpython3\tdir\t-n\t0\t30\t2\t5\t1.2\t12.5"


def written(path: Path, table: object) -> str:
    path.write_text(table if isinstance(table, str) else json.dumps(table), encoding="utf-8")
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> Throughputs:
    return read_throughputs(written(tmp_path / "t.json", TABLE))


def test_json_table(table: Throughputs) -> None:
    assert table.types == ("k80", "v100")
    assert table.packed == {A: (2.0, 8.0), B: (0.0, 3.0)}
    assert table.pairs == {(A, A): (1.5, 0.0)}  # who starves its partner does not share
    assert table.rates(*A, ("v100", "k80")) == (8.0, 2.0)


def test_csv_table(tmp_path: Path) -> None:
    text = "model,scale_factor,k80,v100,v100_unconsolidated\nA (batch size 1),1,2,8,8\n\nB,2,,3.0,1\n"
    found = read_throughputs(written(tmp_path / "t.csv", text))
    assert found.packed == {A: (2.0, 8.0), B: (0.0, 3.0)}
    assert found.pairs == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "must be an object with GPU types"),
        ({"v100": 3}, "t.json: v100: 3 must be an object"),
        ({"v100": {"A": {"null": 1}}}, "the key 'A' must be"),
        ({"v100": {"('A', 0)": {"null": 1}}}, "the key \"('A', 0)\" must be"),
        ({"v100": {"('A', 1)": {}}}, 'no "null"'),
        ({"v100": {"('A', 1)": {"null": -1}}}, "rate -1 must be steps/s"),
        ({"v100": {"('A', 1)": {"null": True}}}, "rate True must be"),
        ({"v100": {"('A', 1)": {"null": 10**400}}}, "must be steps/s: 0 (cannot run there), or 1e-09 to 1e+09"),
        ({"v100": {"('A', 1)": {"null": 1e308}}}, "rate 1e+308 must be"),
        ({"v100": {"('A', 1)": {"null": 1e-12}}}, "rate 1e-12 must be"),
        ({"v100": {"('A', 1)": {"null": 1, "('A', 1)": [1]}}}, "[1] must be the rates of two jobs"),
        ({"v100_unconsolidated": {"('A', 1)": {"null": 1}}}, "no GPU type in it"),
        ({"v100": {}}, "there is no row in it"),
        ("{", "cannot be read as a throughput table"),
        ('{"v100": {"(\'A\', 1)": {"null": NaN}}}', "rate nan must be"),
    ],
)
def test_bad_json(tmp_path: Path, given: object, words: str) -> None:
    with pytest.raises(DataError) as raised:
        read_throughputs(written(tmp_path / "t.json", given))
    assert words in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: '' must be model,scale_factor"),
        ("model,gpus,v100\n", "line 1: 'model,gpus,v100' must be"),
        ("model,scale_factor,v100,v100\n", "with own names"),
        ("model,scale_factor,v100,\nA,1,2,3\n", "with own names"),
        ("model,scale_factor,v100\nA,1\n", "line 2: 2 columns, but the header has 3"),
        ("model,scale_factor,v100\nA,zero,1\n", "line 2: model 'A', scale_factor 'zero'"),
        ("model,scale_factor,v100\nA,1,fast\n", "line 2: v100: rate 'fast'"),
        ("model,scale_factor,v100\nA,1,1\nA,1,2\n", "line 3: 'A' on 1 GPUs was given before, on line 2"),
        ("model,scale_factor\nA,1\n", "no GPU type"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError) as raised:
        read_throughputs(written(tmp_path / "t.csv", text))
    assert words in str(raised.value)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_throughputs(str(tmp_path / "none.csv"))


def test_unknown_rows_of_the_table(table: Throughputs) -> None:
    with pytest.raises(DataError, match="no 'B' on 1 GPUs: it has that model on 2"):
        table.rates("B", 1, ("v100",))
    with pytest.raises(DataError, match="no 'C' on 1 GPUs: it does not have that model"):
        table.rates("C", 1, ("v100",))
    with pytest.raises(DataError, match="'h100' is not in the throughput table, which has k80, v100"):
        table.rates(*A, ("h100",))


def test_rows_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.trace.gz"
    path.write_bytes(gzip.compress(f"{LINE}\n{WIDE}\n".encode()))
    first, second = read_rows(str(path))
    assert (first.job_type, first.total_steps, first.scale_factor) == (*A[:1], 800, 1)
    assert (first.needs_data_dir, first.slo, first.arrival_s) == (True, NO_DEADLINE, 0.0)
    assert (second.needs_data_dir, second.priority_weight, second.slo, second.arrival_s) == (False, 5.0, 1.2, 12.5)


def test_a_trace_for_the_replay(tmp_path: Path, table: Throughputs) -> None:
    path = written(tmp_path / "t.trace", f"{WIDE}\n{LINE}\nnonsense\n{LINE.replace('batch size 1', 'batch size 2')}\n")
    found = read(path, options=ReaderOptions(throughputs=table))
    assert [(job.job_id, job.submit_s, job.shape.total, job.ideal_s) for job in found.jobs] == [
        ("1", 0.0, 1, 100.0),  # 800 steps at 8 steps/s, the fastest type
        ("0", 12.5, 2, 10.0),
    ]
    assert [row.line for row in found.bad] == [3, 4]
    assert "not the 10 of a Gavel trace" in found.bad[0].reason
    assert "runs on no type of the throughput table" in found.bad[1].reason


def test_steps_without_a_throughput_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give steps/s by model and GPU type with --throughputs"):
        read(written(tmp_path / "t.trace", LINE))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no job"),
        (LINE.replace("800", "0"), "line 1: total_steps = '0' must be a whole number from 1"),
        (LINE.replace("\t1\t1\t-1", "\t1\t0\t-1"), "line 1: priority_weight = 0 must be from 1e-06 to 1e+06"),
        (LINE.replace("\t1\t1\t-1", "\t1\t1e300\t-1"), "line 1: priority_weight = 1e+300 must be from 1e-06"),
        (LINE.replace("-1.000000", "-2"), "line 1: SLO = -2 must be above 0, or -1 for none"),
        (LINE.replace("\t0.000000", "\t-5"), "line 1: arrival_time = '-5' must be a number of at least 0"),
        (LINE.replace("A (batch size 1)", " "), "line 1: job_type is empty"),
        (f"{WIDE}\n{LINE}", "line 2: arrival_time 0 is before that of the job above, 12.5"),
        (f"{LINE}\n{'x' * 70000}", "line 2: the line has more than"),
    ],
)
def test_bad_traces(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError) as raised:
        read_rows(written(tmp_path / "t.trace", text))
    assert words in str(raised.value)
