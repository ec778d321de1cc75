# SPDX-License-Identifier: MIT
"""What users write cannot hold the filter up, and it leaves every job the nodes that Slurm could give it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ...doubles.lua_filter import PARTITIONS, install, job, run
from .test_filter import WHOLE_NODE, client, placed, records, write_table


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the filters and a table."""
    write_table(tmp_path / "pal_table.lua")
    return install(tmp_path)


READ_ONLY = """
local open = io.open
io.open = function(path, mode)
  if mode == "r+b" then return nil, "Permission denied", 13 end
  return open(path, mode)
end
"""


def test_a_fifo_is_no_table(site: Path) -> None:
    """Opened as a file is, it would wait for ever for somebody who writes into it."""
    path = site / "pal_table.lua"
    whole = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    _, seen = run(site, [job(tres_per_node="gres:gpu:2")])
    assert seen.mark["why"] == "table" and "it is not a regular file" in seen.logs[0]
    assert client(site, gres="gres:gpu:2") == {}
    path.unlink()
    path.write_bytes(whole)
    assert placed(site, tres_per_node="gres:gpu:2") == ("n1", "best")


def test_a_table_that_may_only_be_read_is_read(site: Path) -> None:
    _, seen = run(site, [job(tres_per_node="gres:gpu:2")], before=READ_ONLY)
    assert seen.values["set_req_nodes"] == "n1"


def test_the_client_filter_waits_for_no_script_that_is_a_fifo(site: Path) -> None:
    os.mkfifo(site / "script")
    got = client(site, gres="gres:gpu:2", wrap="", argv={1: str(site / "script")})
    assert got == {"set_prefer": "pal_A_v0|pal_A_v1"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"exc_nodes": "n[1-60000]," * 300}, "own"), ({"exc_nodes": "n[1-10000]" * 40000}, "own"),
        ({"exc_nodes": "n[1-9][1-9][1-9][1-9]"}, "own"), ({"exc_nodes": "n[100-611]"}, "best"),
        ({"exc_nodes": "n[100-612]"}, "own"), ({"exc_nodes": "n[2-1]"}, "own"), ({"exc_nodes": "n[1-2"}, "own"),
        ({"exc_nodes": "n1]"}, "own"), ({"exc_nodes": "n[[1]]"}, "own"), ({"exc_nodes": "m[1-2]x[3-4],n2"}, "best"),
        ({"exc_nodes": "n[007-9]"}, "best"), ({"exc_nodes": "m" * 300}, "own"),
        ({"features": "ib&" * 16 + "ib"}, "constraint"), ({"features": "ib&" * 15 + "ib"}, "best"),
        ({"features": "x" * 65}, "constraint"), ({"features": "ib" * 2000000}, "constraint"),
        ({"partition": "g" * 4194304}, "partition"), ({"tres_per_node": "gres:gpu:" + "9" * 100000}, "shape"),
        ({"tres_per_node": "gres:gpu:1" * 400000}, "shape"), ({"cpus_per_tres": "gres:gpu:1," * 100000}, "shape"),
        ({"script": "#PAL " + "a" * 65000}, "best"), ({"script": "#PAL class=A" + " a" * 2000000}, "best"),
        ({"comment": "a" * 4194304}, "best"), ({"name": "a" * 4194304}, "best"),
        ({"spank_job_env": ["_SLURM_SPANK_OPTION_pal_pal_class=" + "a" * 1000000] * 3}, "best"),
        ({"environment": {"SLURM_PAL_CLASS": "A" * 4194304, "SLURM_PAL_MOVABLE": "1" * 4194304}}, "best"),
        ({"sockets_per_node": 2}, "shape"), ({"pn_min_tmp_disk": 5}, "shape"), ({"bitflags": 0}, "best"),
    ],
)  # fmt: skip
def test_long_words_are_left_alone(site: Path, fields: dict[str, object], why: str) -> None:
    """How much is looked at is bounded: tests/fuzz/test_filter_clock.py."""
    assert placed(site, **{"tres_per_node": "gres:gpu:2"} | fields)[1] == why


def test_what_a_long_pal_line_says_before_its_end_counts(site: Path) -> None:
    for script, found in (
        ("#PAL class=B " + "x" * 2000 + "\n#PAL app=stream\n", "B"),
        ("#PAL " + "x" * 1020 + " class=B\n", "?"),
        ("#\n" * 500 + "#PAL class=B\n", "B"),
        ("#\n" * 600 + "#PAL class=B\n", "?"),
        ("#PAL class=B checkpoint=" + "x" * 5000 + "\n", "B"),
    ):
        assert run(site, [job(tres_per_node="gres:gpu:2", script=script)])[1].mark["class"] == found


def test_a_mark_that_would_be_too_long_is_not_written(site: Path) -> None:
    """And without it no node list, since nobody could take it back."""
    _, seen = run(site, [job(tres_per_node="gres:gpu:2", admin_comment="x" * 8200)])
    assert set(seen.values) == {"verdict", "accesses"}
    own = {"gres": "gres:gpu:4", "time": "01:00:00"}
    assert client(site, **own, exclude=",".join(f"m{i}" for i in range(100)))["set_exclude"].endswith(",n3")
    assert client(site, **own, exclude=",".join(f"m{i}" for i in range(400))) == {}


SLOW = {"tres_per_node": "gres:gpu:4"}
"""A job that only n3 could take now, where all GPUs are slow; n0 could do better, n1 has three good GPUs."""


def kept_off(site: Path, **fields: object) -> bool:
    """Whether the job is kept off n3."""
    values = run(site, [job(**SLOW | fields)])[1].values
    return "set_exc_nodes" in values


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True), ({"exc_nodes": "n1"}, True), ({"exc_nodes": "n[0-1]"}, False), ({"exc_nodes": "n[0-2]"}, False),
        ({"tres_per_node": "gres:gpu:3", "exc_nodes": "n0"}, False), ({"features": "fast"}, False),
        ({"min_nodes": 2, "max_nodes": 2}, False), ({"cpus_per_task": 16}, True), ({"min_mem_per_node": 64000}, True),
        ({"min_mem_per_cpu": 16000, "cpus_per_task": 3}, False),
    ],
)  # fmt: skip
def test_a_job_is_kept_off_slow_nodes_only_where_others_could_take_it(
    site: Path, fields: dict[str, object], expected: bool
) -> None:
    table = records() | {"node.3": f"n3 {WHOLE_NODE} feat=fast A=1.2,1.2,1.2,1.2 B=1,1,1,1 C=1,1,1,1"}
    write_table(site / "pal_table.lua", table)
    assert kept_off(site, **fields) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("allcpus=16 allmem=64000 gpus=4 feat=", True), ("allcpus=16 allmem=64000 gpus=3 feat=", False),
        ("allcpus=3 allmem=64000 gpus=4 feat=", False), ("allcpus=16 allmem=3000 gpus=4 feat=", False),
        ("", False),
    ],
)  # fmt: skip
def test_a_node_that_may_be_too_small_is_none_to_wait_for(site: Path, size: str, expected: bool) -> None:
    table = {key: text for key, text in (records() | {"size.0": size}).items() if text}
    write_table(site / "pal_table.lua", table)
    assert kept_off(site) == expected


def test_a_node_outside_the_partition_is_none_to_wait_for(site: Path) -> None:
    few = {"gpu": PARTITIONS["gpu"] | {"nodes": "n[1-3]"}}
    assert "set_exc_nodes" not in run(site, [job(**SLOW)], partitions=few)[1].values


def test_a_node_smaller_than_others_is_not_named_where_defaults_may_ask_for_more(site: Path) -> None:
    """A partition's CPUs and memory for each GPU are not known; what its user states is."""
    table = records() | {"most.1": "allcpus=64 allmem=512000 cpusgpu=16 memgpu=64000"}
    write_table(site / "pal_table.lua", table)
    one = {"tres_per_node": "gres:gpu:1"}
    assert placed(site, **one) == ("n1", "best")
    assert placed(site, tres_per_node="gres:gpu:2") == ("", "size")
    stated = {"cpus_per_tres": "gres:gpu:2", "min_mem_per_node": 30000}
    assert placed(site, tres_per_node="gres:gpu:2", **stated) == ("n1", "best")
    limited = {"gpu": PARTITIONS["gpu"] | {"max_cpus_per_node": 8}}
    whole = job(tres_per_node="gres:gpu:2", shared=0)
    assert run(site, [whole], partitions=limited)[1].mark["why"] == "shape"
    assert client(site, gres="gres:gpu:1") == {} and not client(site, gres="gres:gpu:1", exclusive="exclusive")
