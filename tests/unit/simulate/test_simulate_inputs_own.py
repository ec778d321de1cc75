# SPDX-License-Identifier: MIT
"""Our own CSV: what is written reads back equal, and what was edited wrongly is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import own, read
from slurm_pal.simulate.inputs.reader_options import CLASSES
from slurm_pal.simulate.trace import BadRow, Trace, TraceJob

texts = st.text(st.characters(blacklist_categories=("Cs",)), max_size=12)
moments = st.floats(0, 1e12)
positive = st.floats(1e-9, 1e12)
shapes = st.one_of(
    st.builds(GpuShape, st.integers(1, 10**6), st.none(), st.none(), texts, st.booleans()),
    st.builds(lambda nodes, each: GpuShape(nodes * each, nodes, each), st.integers(1, 99), st.integers(1, 99)),
    st.builds(lambda total, nodes: GpuShape(total, nodes), st.integers(1, 99), st.integers(1, 99)),
)
jobs = st.builds(
    TraceJob,
    job_id=texts.filter(bool),
    submit_s=moments,
    shape=shapes,
    ideal_s=positive,
    sensitivity=st.sampled_from(CLASSES),
    limit_s=st.none() | positive,
    app=texts,
    user=texts,
    account=texts,
    partition=texts,
    locality_penalty=st.none() | st.floats(1, 100),
    move_cost_s=st.none() | moments,
    movable=st.booleans(),
    cpus=st.integers(0, 10**6),
    memory_mib=st.integers(0, 10**12),
    qos=texts,
)


@given(texts, st.lists(jobs, max_size=8, unique_by=lambda job: job.job_id))
def test_nothing_is_lost(tmp_path_factory: pytest.TempPathFactory, name: str, drawn: list[TraceJob]) -> None:
    trace = Trace(name, tuple(sorted(drawn, key=lambda job: job.submit_s)))
    path = str(tmp_path_factory.mktemp("own") / "trace.csv")
    Path(path).write_text(own.as_text(trace), encoding="utf-8", newline="")
    assert read(path) == trace


GOOD = TraceJob("1", 0.0, GpuShape(4, 2, 2), 60.0, "A", 120.0, "app", "u", "a", "p", 1.5, 30.0)


def test_the_form(tmp_path: Path) -> None:
    trace = Trace("night", (GOOD,), (BadRow(3, "x"),), {"no GPUs": 1})
    assert own.as_text(trace).splitlines() == [
        "# pal.trace/1 night",
        "job_id,submit_s,gpus,nodes,per_node,gpu_type,whole_nodes,ideal_s,sensitivity,limit_s,app,user,account,"
        "partition,locality_penalty,move_cost_s,movable",
        "1,0.0,4,2,2,,0,60.0,A,120.0,app,u,a,p,1.5,30.0,1",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("1,0.0,", ",0.0,", "the job id is empty"),
        (",0.0,", ",-1,", "submit_s = '-1' must be"),
        (",4,2,2,", ",0,2,2,", "gpus = '0' must be"),
        (",4,2,2,", ",5,2,2,", "gpus = 5 is not nodes x per_node = 2 x 2"),
        (",60.0,", ",0,", "ideal_s = '0' must be above 0"),
        (",60.0,", ",inf,", "ideal_s = 'inf' must be a number"),
        (",A,", ",E,", "sensitivity = 'E' is not one of A, B, C, D, ?"),
        (",120.0,", ",-1,", "limit_s = '-1' must be above 0"),
        (",1.5,", ",0.9,", "locality_penalty = '0.9' must be"),
        (",30.0,1", ",30.0,yes", "movable = 'yes' is not one of 0, 1"),
        (",30.0,1", ",30.0", "16 columns, but the header has 17"),
    ],
)
def test_bad_rows(tmp_path: Path, old: str, new: str, reason: str) -> None:
    head, columns, row, *_ = own.as_text(Trace("t", (GOOD,))).split("\n")
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([head, columns, row.replace(old, new, 1), row.replace("1,", "2,", 1)]), encoding="utf-8")
    trace = read(str(path))
    assert trace.jobs == (GOOD._replace(job_id="2"),)
    assert [bad.line for bad in trace.bad] == [3]
    assert reason in trace.bad[0].reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [("# pal.trace/2 t\nx\n", "must be '# pal.trace/1 NAME'"), ("# pal.trace/1 t\njob_id\n", "is not the header")],
)
def test_another_schema(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=reason):
        read(str(path))
