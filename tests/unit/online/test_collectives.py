# SPDX-License-Identifier: MIT
"""Records of collectives: every format of the plug-ins, and files that hold anything."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError
from slurm_pal.emulation.collectives import Behaving, Rank, files
from slurm_pal.online import collectives, culprit
from slurm_pal.online.collectives import LONGEST_LINE, Limits

from ...doubles.trials import trials

HEADER = {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1}
ABOUT = {
    "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
    "dump_timestamp_us": 1748030377748202, "hostname": "n3.example.org", "pid": 1639453,
}  # fmt: skip
PERF = {
    "coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
    "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099,
}  # fmt: skip
LINE = {"header": HEADER, "metadata": ABOUT, "coll_perf": PERF}


def put(folder: Path, *rows: object, name: str = "a.log") -> None:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"
    (folder / name).write_text(text)


def test_a_line_as_nccl_documents_it(tmp_path: Path) -> None:
    put(tmp_path, LINE)
    (one,) = collectives.read(str(tmp_path)).collectives
    assert (one.comm, one.rank, one.ranks, one.number) == ("0x7f8c", 2, 8, 1407)
    assert (one.kind, one.host, one.pid) == ("allreduce 17179869184", "n3.example.org", 1639453)
    assert (one.exec_us, one.at_us, one.source) == (61974.0, 1748030377748202.0, "a.log")


def test_from_v4_3_on_the_context_stands_once_before_its_lines(tmp_path: Path) -> None:
    other = {"header": HEADER | {"id": "0x2", "rank": 0}, "metadata": ABOUT, "dump_stats": {"coll_records": 1}}
    put(
        tmp_path, {"coll_perf": PERF}, {"header": HEADER, "metadata": ABOUT, "dump_stats": {"coll_records": 2}},
        {"coll_perf": PERF}, {"proxy_trace": {"parent_sn": 1}}, {"coll_perf": PERF | {"coll_sn": 1408}}, other,
        {"coll_perf": PERF},
    )  # fmt: skip
    seen = collectives.read(str(tmp_path))
    assert [(one.comm, one.rank, one.number) for one in seen.collectives] == [
        ("0x7f8c", 2, 1407), ("0x7f8c", 2, 1408), ("0x2", 0, 1407)
    ]  # fmt: skip
    assert seen.refused == 1  # the first line has no context


def test_unknown_fields_and_records_are_skipped(tmp_path: Path) -> None:
    more = {"new": {"deep": [1]}, **LINE, "header": HEADER | {"comm_name": "DP", "x": None}}
    put(tmp_path, more, {"p2p_perf": {}}, {"anything": 1}, "", "no json at all")
    seen = collectives.read(str(tmp_path))
    assert len(seen.collectives) == 1 and seen.refused == 0


@pytest.mark.parametrize(
    "bad",
    [
        '{"coll_perf": ', '"coll_perf"', "[" * 50_000 + '"coll_perf"', '{"coll_perf": ' + "9" * 5000 + "}",
        json.dumps(LINE | {"header": 7}), json.dumps(LINE | {"coll_perf": None}),
        json.dumps(LINE | {"header": HEADER | {"rank": -1}}), json.dumps(LINE | {"header": HEADER | {"rank": 8}}),
        json.dumps(LINE | {"header": HEADER | {"rank": True}}),
        json.dumps(LINE | {"coll_perf": PERF | {"coll_exec_time_us": float("nan")}}),
        json.dumps(LINE | {"coll_perf": PERF | {"coll_exec_time_us": -1}}),
        json.dumps(LINE | {"coll_perf": PERF | {"coll_exec_time_us": 10**400}}),
        json.dumps(LINE | {"metadata": ABOUT | {"hostname": "h" * 300}}),
        json.dumps(LINE | {"filler": "x" * LONGEST_LINE}),
    ],
)  # fmt: skip
def test_lines_that_cannot_be_used_are_counted(tmp_path: Path, bad: str) -> None:
    put(tmp_path, LINE, bad, LINE)
    seen = collectives.read(str(tmp_path))
    assert (len(seen.collectives), seen.refused) == (2, 1)


@trials(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, 200))
def test_no_bytes_break_the_reader(tmp_path: Path, raw: bytes, at: int) -> None:
    line = json.dumps(LINE).encode()
    (tmp_path / "a.log").write_bytes(line[:at] + raw + line[at:] + b"\n" + line)
    culprit.find(collectives.read(str(tmp_path)).collectives)


def test_what_is_no_file_of_the_jobs_is_not_opened(tmp_path: Path) -> None:
    put(tmp_path, LINE)
    (tmp_path / "secret").symlink_to(tmp_path / "a.log")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub").mkdir()
    assert len(collectives.read(str(tmp_path), os.geteuid()).collectives) == 1
    with pytest.raises(DataError, match="does not belong"):
        collectives.read(str(tmp_path), os.geteuid() + 1)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match="no records"):
        collectives.read(str(tmp_path / "link"), os.geteuid())
    with pytest.raises(DataError, match="no records"):
        collectives.read(str(tmp_path / "none"))


def test_of_a_long_file_the_newest_whole_lines_are_read(tmp_path: Path) -> None:
    rows = [LINE | {"coll_perf": PERF | {"coll_sn": k}} for k in range(1000)]
    put(tmp_path, *rows)
    put(tmp_path, *rows, name="b.log")
    seen = collectives.read(str(tmp_path), limits=Limits(bytes=20_000))
    numbers = [one.number for one in seen.collectives if one.source == "a.log"]
    assert numbers == list(range(numbers[0], 1000)) and 20 < len(numbers) < 60 and not seen.refused
    assert collectives.read(str(tmp_path), limits=Limits(files=1)).cut == "only 1 files were read"


def test_time_is_bounded(tmp_path: Path) -> None:
    put(tmp_path, *[LINE] * 2000)
    ticks = iter(range(1000))
    seen = collectives.read(str(tmp_path), limits=Limits(seconds=3.0), clock=lambda: float(next(ticks)))
    assert 0 < len(seen.collectives) < 2000 and "ended after 3 s" in seen.cut


@pytest.mark.parametrize("version", ["v4.0", "v4.3"])
def test_what_the_emulation_writes_is_read_whole(tmp_path: Path, version: str) -> None:
    ranks = [Rank(f"n{h}", k) for h in range(2) for k in range(2)]
    for name, text in files(ranks, Behaving(steps=10), random.Random(1), version).items():
        (tmp_path / name).write_text(text)
    seen = collectives.read(str(tmp_path))
    assert (seen.files, len(seen.collectives), seen.refused) == (4, 4 * 10 * 4, 0)
