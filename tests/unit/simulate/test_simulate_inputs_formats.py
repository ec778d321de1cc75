# SPDX-License-Identifier: MIT
"""Reading traces: detection, lines and their faults, Sia and Shockwave CSV, the description."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import FORMATS, ReaderOptions, describe, generate, own, read
from slurm_pal.simulate.inputs.lines import LINE_MAX_BYTES
from slurm_pal.simulate.inputs.reader_options import App, app_of, load_apps, parse_patterns
from slurm_pal.simulate.trace import BadRow, Trace, TraceJob

SIA_HEADER = "job_id,num_gpus,submit_time,duration,model\n"
SIA = SIA_HEADER + "0,1,98,100,vgg19\n1,12,40,10.5,DCGAN\n2,4,98,2,PointNet\n"
SHOCKWAVE = "name,model_name,time,num_iters,num_replicas\n1,res18,33,100,1\n2,res50,41,50,2\n"
SWF = "; MaxProcs: 8\n" + "1 0 5 60 4 -1 -1 4 120 -1 1 3 2 -1 1 -1 -1 -1\n"
SACCT = "JobID|Submit|State|ElapsedRaw|AllocTRES\n7|100|COMPLETED|60|gres/gpu=1\n"


def write(tmp_path: Path, data: str | bytes, name: str = "trace") -> str:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "jobs"),
    [
        ("sia", SIA, 3),
        ("shockwave", SHOCKWAVE, 0),
        ("swf", SWF, 1),
        ("swf", SWF.partition("\n")[2], 1),
        ("sacct", SACCT, 1),
        ("pal", own.as_text(generate.generate(generate.TraceSpec(jobs=5))), 5),
    ],
)
def test_the_first_line_tells_the_format(tmp_path: Path, name: str, text: str, jobs: int) -> None:
    path = write(tmp_path, text)
    assert len(read(path).jobs) == jobs
    assert read(path) == read(path, name)
    for other in FORMATS.keys() - {name}:
        with pytest.raises(UsageError, match=f"as {other}: "):
            read(path, other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no line of text"),
        (b"\r\n \n", "no line of text"),
        (b"\xff\xfe", "no line of text"),
        (b"a,b,c\n1,2,3\n", "'a,b,c' is of no known format .*sacct"),
        (b"\x1f\x8b\x08\x00rubbish", "cannot be unpacked as gzip"),
        (gzip.compress(SIA.encode(), mtime=0)[:-9], "cannot be unpacked as gzip"),
    ],
)
def test_a_file_of_no_format(tmp_path: Path, text: bytes, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read(write(tmp_path, text))


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="Is a directory"):
        read(str(tmp_path))
    with pytest.raises(UsageError, match="'csv' is not one of auto, pal"):
        read(write(tmp_path, SIA), "csv")


@pytest.mark.parametrize(
    "text", [SIA, SHOCKWAVE, SWF, SACCT, "JobID|Submit|AllocTRES|ElapsedRaw|State\n7|5|gres/gpu=1|60|COMPLETED\n"]
)
def test_line_ends_do_not_matter(tmp_path: Path, text: str) -> None:
    found = read(write(tmp_path, text))
    assert read(write(tmp_path, text.replace("\n", "\r\n"))) == found


@pytest.mark.parametrize("name", ["trace", "trace.gz"])
def test_gzip_crlf_bom_and_no_last_line_end(tmp_path: Path, name: str) -> None:
    text = b"\xef\xbb\xbf" + SIA.strip().replace("\n", "\r\n").encode()
    found = read(write(tmp_path, gzip.compress(text), name))
    assert found == read(write(tmp_path, SIA, name))
    assert found.name == name


def test_lines_that_are_no_text_are_bad_rows_and_the_rest_is_read(tmp_path: Path) -> None:
    long = b"9,1,1,1," + b"v" * 3 * LINE_MAX_BYTES
    lines = [SIA_HEADER.strip().encode(), b"0,1,5,1,vgg19", b"1,1,5,1,vgg\xff", b"", long, b"2,1,4,1,vgg19"]
    trace = read(write(tmp_path, b"\n".join(lines)))
    assert [job.job_id for job in trace.jobs] == ["2", "0"]
    assert [(row.line, row.reason) for row in trace.bad] == [
        (3, "byte 12 of the line is not UTF-8"),
        (5, f"the line has more than {LINE_MAX_BYTES} bytes"),
    ]


def test_sia(tmp_path: Path) -> None:
    trace = read(write(tmp_path, SIA, "workload.csv"))
    assert trace == Trace(
        "workload.csv",
        (
            TraceJob("1", 40.0, GpuShape(12), 10.5 * 0.0469266931, "B", app="DCGAN"),
            TraceJob("0", 98.0, GpuShape(1), 100 * 0.300610341, "C", app="vgg19"),
            TraceJob("2", 98.0, GpuShape(4), 2 * 0.28125, "D", app="PointNet"),
        ),
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("1,1,0,5,alexnet", "'alexnet': seconds per iteration are unknown"),
        ("1,two,0,5,BERT", "num_gpus = 'two' must be a whole number from 0"),
        ("1,1.5,0,5,BERT", "num_gpus = '1.5' must be"),
        ("1,-1,0,5,BERT", "num_gpus = '-1' must be"),
        ("1,1,-3,5,BERT", "submit_time = '-3' must be a number of at least 0"),
        ("1,1,nan,5,BERT", "submit_time = 'nan' must be"),
        ("1,1,0,1e999,BERT", "duration = '1e999' must be"),
        ("1,1,0,1_0,BERT", "duration = '1_0' must be"),
        ("1,1,0,,BERT", "duration = '' must be"),
        (",1,0,5,BERT", "the job id is empty"),
        ("1,1,0,5", "4 columns, but the header has 5: '1,1,0,5'"),
        ('1,1,0,5,"BERT', "cannot be read as CSV"),
        ("0,1,0,5,BERT", "job id '0' was given before, on line 2"),
    ],
)
def test_a_bad_row_is_reported_and_the_next_one_read(tmp_path: Path, row: str, reason: str) -> None:
    trace = read(write(tmp_path, f"{SIA_HEADER}0,1,0,5,BERT\n{row}\n7,1,0,5,BERT\n"))
    assert [job.job_id for job in trace.jobs] == ["0", "7"]
    (bad,) = trace.bad
    assert bad.line == 3
    assert reason in bad.reason
    assert "\n" not in bad.reason


def test_rows_without_work_are_counted(tmp_path: Path) -> None:
    trace = read(write(tmp_path, SIA_HEADER + "0,0,0,5,BERT\n1,1,0,0,BERT\n2,1,0,0.0,alexnet\n"))
    assert (trace.jobs, trace.bad, trace.skipped) == ((), (), {"no GPUs": 1, "no run time": 2})


def test_an_application_table_overrides_and_adds(tmp_path: Path) -> None:
    table = '[vgg19]\niteration_s = 2\n\n[DCGAN]\nclass = "A"\n\n[PointNet]\niteration_s = 3.0\nclass = "?"\n'
    apps = load_apps(write(tmp_path, table, "apps.toml"))
    jobs = read(write(tmp_path, SIA), options=ReaderOptions(apps=apps)).jobs
    assert [(job.ideal_s, job.sensitivity) for job in jobs] == [(10.5 * 0.0469266931, "A"), (200.0, "C"), (6.0, "?")]


def test_shockwave_needs_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, SHOCKWAVE)
    bare = read(path)
    assert [row.line for row in bare.bad] == [2, 3]
    assert all("seconds per iteration are unknown" in row.reason for row in bare.bad)
    table = json.dumps({"res18": {"iteration_s": 0.5}, "*": {"iteration_s": 2, "class": "B"}})
    options = ReaderOptions(apps=load_apps(write(tmp_path, table, "apps.json")))
    assert read(path, options=options).jobs == (
        TraceJob("1", 33.0, GpuShape(1), 50.0, "B", app="res18"),
        TraceJob("2", 41.0, GpuShape(2), 100.0, "B", app="res50"),
    )


def test_the_nearest_table_wins_field_by_field() -> None:
    own_table = {"a": App(iteration_s=1.0), "*": App(9.0, "C")}
    assert app_of("a", own_table, {"a": App(5.0, "B")}) == App(1.0, "B")
    assert app_of("b", own_table, {"b": App(5.0, None)}) == App(5.0, "C")
    assert app_of("c", {}, {}) == App(None, None)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("t.toml", "a = ", "cannot be read as an application table"),
        ("t.json", "[", "cannot be read as an application table"),
        ("t.json", '["a"]', "an application table maps models"),
        ("t.toml", "a = 1", "a = 1 must be a table with iteration_s and class"),
        ("t.toml", "[a]\nseconds = 1", "must be a table with iteration_s and class"),
        ("t.toml", "[a]\niteration_s = 0", "iteration_s = 0 must be seconds above 0"),
        ("t.toml", "[a]\niteration_s = inf", "iteration_s = inf must be"),
        ("t.toml", "[a]\niteration_s = true", "iteration_s = True must be"),
        ("t.toml", '[a]\nclass = "E"', "class = 'E' is not one of A, B, C, D, ?"),
        ("t.toml", b"\xff", "cannot be read as an application table"),
    ],
)
def test_a_bad_application_table(tmp_path: Path, name: str, text: str | bytes, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_apps(write(tmp_path, text, name))
    assert reason in str(caught.value)
    assert name in str(caught.value)


def test_no_application_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_apps(str(tmp_path / "t.toml"))


def test_patterns() -> None:
    assert parse_patterns(["train-*=resnet50", "x=y=B"]) == (("train-*", "resnet50"), ("x=y", "B"))
    for text in ("train", "=B", "train="):
        with pytest.raises(UsageError, match="GLOB=APP"):
            parse_patterns([text])


@given(st.lists(st.integers(0, 5), max_size=30))
def test_jobs_are_sorted_by_submission_and_ties_stay(
    tmp_path_factory: pytest.TempPathFactory, times: list[int]
) -> None:
    rows = "".join(f"{number},1,{at},1,BERT\n" for number, at in enumerate(times))
    jobs = read(write(tmp_path_factory.mktemp("sia"), SIA_HEADER + rows)).jobs
    expected = sorted(range(len(times)), key=lambda number: (times[number], number))
    assert [job.job_id for job in jobs] == [str(number) for number in expected]


def test_describe() -> None:
    jobs = tuple(
        TraceJob(str(i), 3600.0 * i, GpuShape(gpus), ideal_s, kind, limit_s, user=user)
        for i, (gpus, ideal_s, kind, limit_s, user) in enumerate(
            [(1, 3600.0, "A", 7200.0, "u"), (1, 3600.0, "A", None, "u"), (4, 1800.0, "?", 9000.0, "v")]
        )
    )
    found = describe(Trace("t", jobs, (BadRow(3, "x"),), {"no GPUs": 2}))
    assert json.loads(json.dumps(found)) == found
    assert {name: found[name] for name in ("name", "jobs", "users", "accounts", "gpu_hours", "bad", "skipped")} == {
        "name": "t", "jobs": 3, "users": 2, "accounts": 0, "gpu_hours": 4.0, "bad": 1, "skipped": {"no GPUs": 2},
    }  # fmt: skip
    assert (found["gpus_mean"], found["span_h"], found["arrivals_per_h"]) == (2.0, 2.0, 1.0)
    assert found["sizes"] == {"1": pytest.approx(2 / 3), "4": pytest.approx(1 / 3)}
    assert found["classes"] == {"?": pytest.approx(1 / 3), "A": pytest.approx(2 / 3)}
    assert found["run_time_s"]["mean"] == 3000.0
    assert found["run_time_s"]["p50"] == found["run_time_s"]["max"] == 3600.0
    assert (found["with_limit"], found["limit_over_run_time_median"]) == (pytest.approx(2 / 3), 3.5)


def test_describe_nothing() -> None:
    found = describe(Trace("t", ()))
    assert (found["jobs"], found["gpu_hours"], found["run_time_s"], found["arrivals_per_h"]) == (0, 0.0, None, None)
