# SPDX-License-Identifier: MIT
"""sacct exports: a real one of Slurm 22.05.8, rows by the manual, and exports without names.

The files in tests/data/sacct were written by sacct 22.05.8 on a private cluster of 4
nodes with 4 emulated GPUs each, of the type a100 on two of them.
"""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import ReaderOptions, read
from slurm_pal.simulate.inputs.anonymise import anonymise, hashed
from slurm_pal.simulate.inputs.sacct import gpus_of
from slurm_pal.simulate.trace import Trace, TraceJob

GOLDEN = Path(__file__).parents[2] / "data" / "sacct"
ROW = {
    "JobIDRaw": "5", "User": "eve", "Account": "lab", "Partition": "gpu", "Submit": "1000", "Eligible": "1000",
    "Start": "1010", "End": "1070", "ElapsedRaw": "60", "TimelimitRaw": "10", "NNodes": "1",
    "ReqTRES": "cpu=1,gres/gpu=1,node=1", "AllocTRES": "cpu=1,gres/gpu=1,node=1", "State": "COMPLETED",
    "JobName": "job",
}  # fmt: skip
HEADER = "|".join(ROW)
KEY = b"0123456789abcdef"


def export(*rows: dict[str, str], header: str = HEADER) -> str:
    lines = ["|".join((ROW | row).get(name, "") for name in header.split("|")) for row in rows]
    return "\n".join([header, *lines]) + "\n"


def parse(tmp_path: Path, text: str, options: ReaderOptions | None = None) -> Trace:
    path = tmp_path / "sacct.txt"
    path.write_text(text, encoding="utf-8")
    return read(str(path), options=options)


def one(tmp_path: Path, row: dict[str, str], header: str = HEADER) -> TraceJob:
    trace = parse(tmp_path, export(row, header=header))
    assert [bad for bad in trace.bad if bad.line > 1] == []
    (job,) = trace.jobs
    return job


# -- what sacct really writes ------------------------------------------------------------


def golden_job(job_id: str, submit_s: float, shape: GpuShape, ideal_s: float, limit_s: float | None) -> TraceJob:
    return TraceJob(job_id, submit_s, shape, ideal_s, "?", limit_s, user="root", account="root", partition="gpu")


def test_the_documented_command() -> None:
    trace = read(str(GOLDEN / "slurm-22.05.8.txt"))
    single, pair = GpuShape(1, 1, 1), GpuShape(2, 1, 2)
    assert {(job.cpus, job.memory_mib) for job in trace.jobs} >= {(1, 100)}
    assert tuple(job._replace(cpus=0, memory_mib=0) for job in trace.jobs) == (
        golden_job("1", 0, single, 3, 600),  # given an a100, but asked for any type
        golden_job("2", 0, GpuShape(2, 1, 2, "a100"), 4, 1200)._replace(app="resnet50", sensitivity="A"),
        golden_job("3", 0, GpuShape(4, 2, 2), 4, 1800),  # -N 2, one node of each type: 2 of 4 GPUs are typed
        golden_job("4", 0, GpuShape(6), 4, 31536000),  # --gpus=6 without -N, no limit but the partition's
        golden_job("7", 0, single, 6, 300),  # cancelled while running
        golden_job("9", 0, single, 62, 60),  # timed out
        golden_job("10", 0, single, 2, 300),  # named lr|0.1|adam
        golden_job("11", 0, single, 2, 300),  # named bad|4|gres/gpu=8
        golden_job("12", 0, single, 2, 300),  # its name has two lines
        golden_job("13", 0, single, 2, 300),
        golden_job("14", 0, single, 2, 300),  # failed
        golden_job("16", 0, GpuShape(4, 1, 4), 2, 86400),  # four tasks with a GPU each
        golden_job("17", 0, GpuShape(4, 1, 4), 2, 300),  # --exclusive: asked for 1, had 4
        golden_job("19", 0, single, 3, 300),  # heterogeneous job, first component
        golden_job("20", 0, pair, 3, 300),
        golden_job("21", 0, GpuShape(8, 2, 4), 2, 300),
        golden_job("23", 0, single, 3, 300),  # array
        golden_job("24", 0, single, 3, 300),
        golden_job("5", 0, single, 3, 300),
        golden_job("18", 19, single, 12, 300),  # requeued: from when it could start again
        golden_job("26", 131, single, 2, None),  # --time=UNLIMITED
        golden_job("27", 131, single, 2, 300),
        golden_job("28", 131, single, 2, None),
        golden_job("29", 131, single, 2, None),
        golden_job("30", 181, pair, 50, 300),  # after a node failure
    )
    assert trace.bad == ((12, "1 columns, but the header has 15: 'lines'"),)
    assert trace.skipped == {
        "no GPUs": 1,
        "no run time": 1,
        "still running": 1,
        "cancelled before its start": 1,
    }


def test_steps_duplicates_and_local_time() -> None:
    """-D without -X, other columns, JobName in the middle: the same jobs as from the documented command."""
    plain, full = (read(str(GOLDEN / f"slurm-22.05.8{name}.txt")) for name in ("", "-steps"))
    assert full.skipped == plain.skipped | {"step of a job": 31, "earlier run of a requeued job": 2}
    assert [bad.line for bad in full.bad] == [1, 1, 1, 1, 20, 21]  # four columns are missing; a name of two lines
    renamed = {"19+0": "19", "19+1": "20", "5_0": "23", "5_1": "24", "5_2": "5"}
    found = {renamed.get(job.job_id, job.job_id): job for job in full.jobs}
    expected = {job.job_id: job for job in plain.jobs if job.job_id != "12"}
    assert found.keys() == expected.keys()
    for job_id, job in found.items():
        known = expected[job_id]
        assert (job.shape.total, job.ideal_s, job.limit_s, job.user, job.app, job.sensitivity) == (
            known.shape.total, known.ideal_s, known.limit_s, known.user, known.app, known.sensitivity
        )  # fmt: skip
        assert job.shape.nodes is None  # nobody told what was asked for
        requeued = job_id in ("18", "30")  # Eligible, which has Slurm's delay of 6 s, is missing
        assert job.submit_s == known.submit_s - (6 if requeued else 0)


# -- columns -----------------------------------------------------------------------------


def test_needed_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse(tmp_path, "JobID|User|Start\n1|eve|5\n")
    text = str(caught.value)
    for label in ("Submit", "State", "ElapsedRaw, Elapsed, or Start and End", "AllocTRES, ReqTRES or AllocGRES"):
        assert label in text
    assert "JobIDRaw" not in text.partition("has no column")[2]
    with pytest.raises(UsageError, match="submit appear twice"):
        parse(tmp_path, f"{HEADER}|Submit\n")


def test_missing_columns_that_one_can_do_without_are_noted(tmp_path: Path) -> None:
    trace = parse(tmp_path, export({}, header="jobid|submit|state|elapsed|alloctres").replace("|||", "|x||"))
    assert [row.line for row in trace.bad][:7] == [1] * 7
    lost = " ".join(row.reason for row in trace.bad)
    for name in ("TimelimitRaw", "ReqTRES", "Eligible", "Partition", "User", "Account", "JobName"):
        assert f"column {name} is missing" in lost
    assert "NNodes" not in lost  # AllocTRES tells


def test_order_case_extra_columns_and_closing_separators(tmp_path: Path) -> None:
    expected = parse(tmp_path, export({}))
    names = HEADER.split("|")[::-1]
    assert parse(tmp_path, export({}, header="|".join([*names, "NodeList"]))) == expected
    closed = "".join(f"{line}|\n" for line in export({}).splitlines())
    assert parse(tmp_path, closed.replace(HEADER, HEADER.lower())) == expected
    broken = parse(tmp_path, closed + "|".join(ROW.values()) + "x\n")
    assert [(row.line, row.reason.partition(":")[0]) for row in broken.bad] == [
        (3, "does not end with | as the header does")
    ]


@given(name=st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20))
@pytest.mark.parametrize("place", [0, 5, 14])
def test_any_one_line_job_name_is_put_together_again(
    tmp_path_factory: pytest.TempPathFactory, place: int, name: str
) -> None:
    columns = HEADER.split("|")[:-1]
    columns.insert(place, "JobName")
    trace = parse(tmp_path_factory.mktemp("name"), export({"JobName": name}, header="|".join(columns)))
    assert trace.bad == ()
    (job,) = trace.jobs
    assert (job.user, job.ideal_s, job.shape) == ("eve", 60.0, GpuShape(1, 1, 1))


def test_a_separator_that_may_be_elsewhere_makes_a_bad_row(tmp_path: Path) -> None:
    header = f"Comment|{HEADER}"
    trace = parse(tmp_path, export({"Comment": "x"}, {"Comment": "a|b", "JobIDRaw": "6"}, header=header))
    assert [job.job_id for job in trace.jobs] == ["5"]
    assert [row.line for row in trace.bad] == [3]
    assert "may stand in any of comment, jobname" in trace.bad[0].reason


# -- one row -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tres", "total", "types"),
    [
        ("billing=4,cpu=8,gres/gpu=4,mem=10G,node=1", 4, {}),
        ("gres/gpu:a100=4,gres/gpu=4", 4, {"a100": 4}),
        ("gres/gpu=6,gres/gpu:a100=2", 6, {"a100": 2}),
        ("gres/gpu:a100=4", 4, {"a100": 4}),
        ("gres/gpu:a100=2,gres/gpu:v100=1", 3, {"a100": 2, "v100": 1}),
        ("cpu=1,gres/gpumem=4G,gres/gpuutil=50,gres/shard=2", 0, {}),
        ("", 0, {}),
    ],
)
def test_gpus_are_counted_once(tres: str, total: int, types: dict[str, int]) -> None:
    assert gpus_of("AllocTRES", tres) == (total, types)


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        ({"NNodes": "2", "ReqTRES": "gres/gpu=8,node=2", "AllocTRES": "gres/gpu=8,node=2"}, GpuShape(8, 2, 4)),
        ({"NNodes": "2", "ReqTRES": "gres/gpu=8,node=1", "AllocTRES": "gres/gpu=8,node=2"}, GpuShape(8)),
        ({"NNodes": "3", "ReqTRES": "gres/gpu=8,node=3", "AllocTRES": "gres/gpu=8,node=3"}, GpuShape(8)),
        ({"NNodes": "", "ReqTRES": "gres/gpu=4,node=2", "AllocTRES": "gres/gpu=4,node=2"}, GpuShape(4, 2, 2)),
        ({"ReqTRES": "gres/gpu=2,node=1", "AllocTRES": ""}, GpuShape(2, 1, 2)),
        ({"ReqTRES": "", "AllocTRES": "gres/gpu=2"}, GpuShape(2)),
        ({"ReqTRES": "gres/gpu:h100=2,gres/gpu=2,node=1", "AllocTRES": "gres/gpu=2"}, GpuShape(2, 1, 2, "h100")),
        ({"ReqTRES": "gres/gpu:h100=1,gres/gpu=2,node=1", "AllocTRES": "gres/gpu=2"}, GpuShape(2, 1, 2)),
    ],
)
def test_shapes(tmp_path: Path, row: dict[str, str], shape: GpuShape) -> None:
    assert one(tmp_path, row).shape == shape


@pytest.mark.parametrize(("gres", "total"), [("gpu:4", 4), ("gpu:a100:2", 2), ("gpu", 1)])
def test_the_older_gres_column(tmp_path: Path, gres: str, total: int) -> None:
    header = HEADER.replace("ReqTRES|AllocTRES", "AllocGRES")
    assert one(tmp_path, {"AllocGRES": gres}, header).shape == GpuShape(total)


@pytest.mark.parametrize(
    ("header", "row", "elapsed_s"),
    [
        ("ElapsedRaw", {"ElapsedRaw": "3661"}, 3661.0),
        ("Elapsed", {"Elapsed": "1-02:03:04"}, 93784.0),
        ("Start|End", {"Start": "2026-01-01T00:00:00", "End": "2026-01-02T00:00:01"}, 86401.0),
    ],
)
def test_run_times(tmp_path: Path, header: str, row: dict[str, str], elapsed_s: float) -> None:
    assert one(tmp_path, row, f"JobID|JobIDRaw|Submit|State|AllocTRES|{header}").ideal_s == elapsed_s


@pytest.mark.parametrize(
    ("name", "text", "limit_s"),
    [
        ("TimelimitRaw", "90", 5400.0),
        ("TimelimitRaw", "UNLIMITED", None),
        ("TimelimitRaw", "Partition_Limit", None),
        ("TimelimitRaw", "", None),
        ("Timelimit", "1-00:00:00", 86400.0),
        ("Timelimit", "01:30:00", 5400.0),
        ("Timelimit", "Partition_Limit", None),
        ("Timelimit", "UNLIMITED", None),
    ],
)
def test_limits(tmp_path: Path, name: str, text: str, limit_s: float | None) -> None:
    assert one(tmp_path, {name: text}, HEADER.replace("TimelimitRaw", name)).limit_s == limit_s


def test_local_times_do_not_depend_on_the_zone_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """02:30 does not exist in Berlin on that day, and the hours around it are 1 h apart there."""
    stamps = ("2026-03-29T01:30:00", "2026-03-29T02:30:00", "2026-03-29T03:30:00")
    text = export(*({"JobIDRaw": str(i), "Submit": at, "Eligible": "Unknown"} for i, at in enumerate(stamps)))
    for zone in ("UTC", "Europe/Berlin"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert [job.submit_s for job in parse(tmp_path, text).jobs] == [0.0, 3600.0, 7200.0]
    monkeypatch.undo()
    time.tzset()


def test_submission_is_when_slurm_could_have_started_the_job(tmp_path: Path) -> None:
    trace = parse(
        tmp_path,
        export(
            {"JobIDRaw": "1", "Submit": "1000", "Eligible": "5000"},
            {"JobIDRaw": "2", "Submit": "3000", "Eligible": "2000"},
            {"JobIDRaw": "3", "Submit": "4000", "Eligible": "Unknown"},
        ),
    )
    assert [(job.job_id, job.submit_s) for job in trace.jobs] == [("2", 0.0), ("3", 1000.0), ("1", 2000.0)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"State": "PENDING", "Start": "Unknown"}, "not started"),
        ({"State": "RUNNING"}, "still running"),
        ({"State": "SUSPENDED"}, "still running"),
        ({"State": "REQUEUED"}, "earlier run of a requeued job"),
        ({"State": "REVOKED"}, "revoked: ran on another cluster"),
        ({"State": "CANCELLED by 1000", "ElapsedRaw": "0", "AllocTRES": ""}, "cancelled before its start"),
        ({"State": "CANCELLED", "Start": "None", "ElapsedRaw": "0"}, "cancelled before its start"),
        ({"State": "BOOT_FAIL", "ElapsedRaw": "0"}, "no run time"),
        ({"ReqTRES": "cpu=1,node=1", "AllocTRES": "cpu=1,node=1"}, "no GPUs"),
        ({"JobIDRaw": "5.batch"}, "step of a job"),
        ({"JobIDRaw": "5_3.0"}, "step of a job"),
        ({"JobIDRaw": "5+1.extern"}, "step of a job"),
        ({"JobIDRaw": "5_[3-9%2]", "State": "PENDING"}, "not started"),
    ],
)
def test_rows_that_are_not_replayed(tmp_path: Path, row: dict[str, str], reason: str) -> None:
    trace = parse(tmp_path, export(row))
    assert (trace.jobs, trace.bad, trace.skipped) == ((), (), {reason: 1})


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 1000", "OUT_OF_MEMORY", "NODE_FAIL"])
def test_a_job_that_ran_is_replayed_however_it_ended(tmp_path: Path, state: str) -> None:
    assert one(tmp_path, {"State": state}).ideal_s == 60.0


@pytest.mark.parametrize("job_id", ["12", "12_3", "12+0"])
def test_job_ids(tmp_path: Path, job_id: str) -> None:
    assert one(tmp_path, {"JobIDRaw": job_id}).job_id == job_id


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"JobIDRaw": "x12"}, "job id = 'x12' must be like"),
        ({"JobIDRaw": ""}, "job id = '' must be like"),
        ({"State": "SLEEPING"}, "State = 'SLEEPING' is not a state of Slurm"),
        ({"Submit": "yesterday"}, "Submit = 'yesterday' must be a time like"),
        ({"Submit": "2026-02-30T00:00:00"}, "Submit = '2026-02-30T00:00:00' must be a time like"),
        ({"Submit": "Unknown"}, "Submit = 'Unknown' must be a time"),
        ({"ElapsedRaw": "-5"}, "ElapsedRaw = '-5' must be a whole number"),
        ({"TimelimitRaw": "01:00:00"}, "TimelimitRaw = '01:00:00' must be"),
        ({"AllocTRES": "gres/gpu=many"}, "gres/gpu in AllocTRES = 'many' must be"),
        ({"NNodes": "0"}, "NNodes = '0' must be"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, str], reason: str) -> None:
    trace = parse(tmp_path, export(row, {"JobIDRaw": "6"}))
    assert [job.job_id for job in trace.jobs] == ["6"]
    assert [bad.line for bad in trace.bad] == [2]
    assert reason in trace.bad[0].reason


def test_end_before_start(tmp_path: Path) -> None:
    header = "JobIDRaw|Submit|State|Start|End|AllocTRES"
    trace = parse(tmp_path, export({"Start": "20", "End": "10"}, header=header))
    assert "End = '10' is before Start = '20'" in trace.bad[-1].reason


# -- several rows of one job -------------------------------------------------------------


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED"])
@pytest.mark.parametrize("later", ["COMPLETED", "RUNNING"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_run_that_a_later_row_continues_is_left_out(tmp_path: Path, state: str, later: str, turned: bool) -> None:
    rows = [{"State": state, "Submit": "1000"}, {"State": later, "Submit": "2000", "Eligible": "2000"}]
    trace = parse(tmp_path, export(*(rows[::-1] if turned else rows)))
    assert len(trace.jobs) == (later == "COMPLETED")
    assert trace.skipped["earlier run of a requeued job"] == 1


def test_rows_and_headers_of_exports_put_together(tmp_path: Path) -> None:
    text = export({}, {"JobIDRaw": "6"})
    trace = parse(tmp_path, text + text)
    assert [job.job_id for job in trace.jobs] == ["5", "6"]
    assert trace.skipped == {"repeated header": 1, "repeated row": 2}
    assert trace.bad == ()


def test_a_job_id_used_again_after_a_reset(tmp_path: Path) -> None:
    trace = parse(tmp_path, export({}, {"Submit": "9000", "Eligible": "9000"}))
    assert [(job.job_id, job.submit_s) for job in trace.jobs] == [("5", 0.0), ("5#2", 8000.0)]


# -- applications ------------------------------------------------------------------------


def test_applications(tmp_path: Path) -> None:
    names = ("ResNet50", "my-solver", "train-7", "LLM-x", "resnet50-v2")
    text = export(*({"JobIDRaw": str(i), "JobName": name} for i, name in enumerate(names)))
    options = ReaderOptions(site_apps={"My-Solver": "B"}, patterns=(("train-?", "hpcg"), ("llm-*", "C")))
    found = [(job.app, job.sensitivity) for job in parse(tmp_path, text, options).jobs]
    assert found == [("resnet50", "A"), ("my-solver", "B"), ("hpcg", "C"), ("", "C"), ("", "?")]
    with pytest.raises(UsageError, match="application 'nothing' is not known"):
        parse(tmp_path, text, ReaderOptions(patterns=(("x", "nothing"),)))


# -- exports without names ---------------------------------------------------------------


def hidden(text: str, key: bytes = KEY) -> tuple[str, list[int]]:
    out = io.StringIO()
    left_out = anonymise(text.splitlines(keepends=True), out, key)
    return out.getvalue(), [row.line for row in left_out]


def test_anonymised_exports_replay_the_same(tmp_path: Path) -> None:
    original = (GOLDEN / "slurm-22.05.8.txt").read_text(encoding="utf-8")
    text, left_out = hidden(original)
    assert left_out == [12]
    found, expected = parse(tmp_path, text), read(str(GOLDEN / "slurm-22.05.8.txt"))
    who = {"user": hashed("user", "root", KEY), "account": hashed("account", "root", KEY)}
    assert found.jobs == tuple(job._replace(**who) for job in expected.jobs)
    assert found.skipped == expected.skipped


def test_nothing_personal_is_left() -> None:
    row = {"State": "CANCELLED by 4711", "JobName": "secret-name|x", "User": "eve", "Account": "lab"}
    personal = {"UID": "4711", "GID": "4712", "Group": "evesgroup", "QOS": "vip"}
    text, left_out = hidden(export(row | personal, header=f"{'|'.join(personal)}|{HEADER}"))
    assert left_out == []
    body = text.partition("\n")[2]
    assert not re.search("eve|lab|4711|4712|vip|secret", body)
    free, _ = hidden(export({"Comment": "of eve", "WorkDir": "/home/eve"}, header=f"Comment|WorkDir|{HEADER}"))
    assert free.partition("\n")[2].startswith("||5|")


def test_hashes_are_stable_apart_and_keyed() -> None:
    rows = [{"User": "eve", "Account": "eve", "JobName": "hpl"}, {"User": "eve", "Account": "bob", "JobName": "own"}]
    first, second = (line.split("|") for line in hidden(export(*rows))[0].splitlines()[1:])
    assert first[1] == second[1] != first[2] != second[2]
    assert re.fullmatch("[0-9a-f]{16}", first[1])
    assert first[-1] == "hpl"
    assert second[-1] == hashed("jobname", "own", KEY) != "own"
    other = hidden(export(*rows), KEY[::-1])[0].splitlines()[1].split("|")
    assert other[1] != first[1]


def test_a_row_that_cannot_be_cut_is_left_out_unquoted() -> None:
    out = io.StringIO()
    left_out = anonymise([HEADER, "secret\n", *export({}).splitlines()[1:]], out, KEY)
    assert [row.line for row in left_out] == [2]
    assert "secret" not in left_out[0].reason + out.getvalue()


def test_closing_separators_stay(tmp_path: Path) -> None:
    closed = "".join(f"{line}|\n" for line in export({}).splitlines())
    text, left_out = hidden(closed)
    assert left_out == []
    assert len(parse(tmp_path, text).jobs) == 1


@pytest.mark.parametrize("key", [b"", b"short", bytes(65)])
def test_keys_have_16_to_64_bytes(key: bytes) -> None:
    with pytest.raises(UsageError, match=f"the key has {len(key)} bytes"):
        hidden(export({}), key)


def test_only_exports_are_anonymised() -> None:
    with pytest.raises(UsageError, match="not a sacct export"):
        hidden("user,secret\n")


TAKEN = [
    ("cpu=8,mem=62.50G,gres/gpu=2,node=1", "cpu=2,mem=1G,gres/gpu=2,node=1", (8, 64000)),
    ("", "cpu=4,mem=512000K,gres/gpu=2,node=1", (4, 500)),
    ("gres/gpu=2,node=1", "gres/gpu=2,node=1", (0, 0)),
    ("cpu=3,mem=100M,gres/gpu=2,node=1", "", (3, 100)),
]


@pytest.mark.parametrize(("alloc", "req", "had"), TAKEN)
def test_cpus_and_memory_are_what_the_job_had_else_what_it_asked_for(
    tmp_path: Path, alloc: str, req: str, had: tuple[int, int]
) -> None:
    found = one(tmp_path, {"AllocTRES": alloc, "ReqTRES": req, "QOS": "high"}, HEADER.replace("User", "QOS|User"))
    assert (found.cpus, found.memory_mib, found.qos) == (*had, "high")


def test_an_amount_of_memory_that_is_none_makes_a_bad_row(tmp_path: Path) -> None:
    trace = parse(tmp_path, export({"AllocTRES": "mem=much,gres/gpu=2"}))
    assert not trace.jobs and "mem in AllocTRES = 'much' must be an amount of memory" in trace.bad[-1].reason
