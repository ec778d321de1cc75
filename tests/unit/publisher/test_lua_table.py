# SPDX-License-Identifier: MIT
"""The filter's table: what is written is read back, by us and by Lua, and nothing else is believed."""

from __future__ import annotations

import shutil
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.config import Config
from slurm_pal.base.errors import DataError
from slurm_pal.decide.case import Settings
from slurm_pal.publisher.standing import standing
from slurm_pal.publisher.table import applications, avoided, records
from slurm_pal.store.lua_table import FilterTable, Header, encode, name, read_header, read_table

from .test_standing import cluster, node, scores

HEADER = Header(epoch=1763712345678, written_s=1763712345, max_age_s=30.0, clears="daemon")
KEYS = st.text(string.ascii_letters + string.digits + "_.-", min_size=1).filter(lambda key: key != "end")
VALUES = st.text(string.ascii_letters + string.digits + "_.,:|=+@ -")


def written(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "pal_table.lua"
    path.write_bytes(data)
    return str(path)


@given(st.dictionaries(KEYS, VALUES))
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, body: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "table.lua"
    path.write_bytes(encode(HEADER, body))
    assert read_table(str(path)) == FilterTable(HEADER, body)
    assert read_header(str(path)) == HEADER
    path.unlink()


def test_the_first_and_the_last_line_keep_their_contract() -> None:
    lines = encode(HEADER, {"pool.gpu.-": "1"}).decode().split("\n")
    assert lines == [
        'return { ["schema"] = "pal.table/1", ["epoch"] = "1763712345678", ["written_s"] = "1763712345", '
        '["max_age_s"] = "30", ["clears"] = "daemon",',
        '["pool.gpu.-"] = "1",',
        '["end"] = "1763712345678" }',
        "",
    ]


@given(st.characters(exclude_characters=string.ascii_letters + string.digits + "_.-"))
def test_no_other_character_gets_into_a_name(char: str) -> None:
    with pytest.raises(DataError, match="only A-Z"):
        name(f"n{char}", "node")
    with pytest.raises(DataError, match="cannot be in"):
        encode(HEADER, {f"pool.{char}": "1"})
    if char not in ",:|=+@ ":
        with pytest.raises(DataError, match="cannot be in"):
            encode(HEADER, {"pool.a": f"1{char}"})


@pytest.mark.parametrize("key", ["", "end"])
def test_keys_that_would_confuse_a_reader(key: str) -> None:
    with pytest.raises(DataError, match="cannot be in"):
        encode(HEADER, {key: "1"})


@pytest.mark.parametrize("header", [HEADER._replace(clears='"'), HEADER._replace(epoch=-1)])
def test_a_first_line_that_would_not_be_read(header: Header) -> None:
    with pytest.raises(DataError, match="cannot begin with"):
        encode(header, {})


GOOD = encode(HEADER, {"pool.gpu.-": "1", "node.1": "n0"})


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "is not a table of"),
        (GOOD[:-2], "truncated"),
        (GOOD[: len(GOOD) // 2], "truncated|is not a table"),
        (GOOD.replace(b'["end"] = "1763712345678"', b'["end"] = "1"'), "truncated"),
        (GOOD.replace(b"pal.table/1", b"pal.table/2"), "newer than"),
        (GOOD.replace(b"pal.table/1", b"pal.gpus/1"), "is not a table of"),
        (GOOD.replace(b'"n0"', b'"n0" .. os.exit()'), r"damaged \(line 3\)"),
        (GOOD.replace(b'["node.1"]', b'["pool.gpu.-"]'), r"damaged \(line 3\)"),
        (GOOD.replace(b'"30"', b'"3.0.0"'), "max_age_s"),
        (GOOD.replace(b"n0", b"n\xff"), "not plain text"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(data: bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=complaint):
        read_table(written(tmp_path, data))


def test_a_missing_or_open_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run pal publish-table"):
        read_table(str(tmp_path / "none"))
    path = written(tmp_path, GOOD)
    Path(path).chmod(0o666)
    with pytest.raises(DataError, match="chmod o-w"):
        read_table(path)


MEMORY = {"DefMemPerCPU": "500", "MaxMemPerNode": "UNLIMITED", "JobDefaults": "(null)"}
"""What Slurm's configuration says of memory."""


def test_the_nodes_with_slow_gpus_are_named_the_slowest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node(name, ("v100", "v100")) for name in ("n0", "n1", "n2", "odd name")]
    table = {("n0", 0): 1.2, ("n0", 1): 1.0, ("n1", 1): 1.4, ("n2", 0): 1.01, ("odd name", 0): 3.0}
    found = avoided(nodes, scores(table, {"A": [0.9, 1.2]}), 1.02)
    assert found["avoid.A"] == "n1=1.4 n0=1.2"
    monkeypatch.setattr("slurm_pal.publisher.table.MOST_AVOIDED", 1)
    assert avoided(nodes, scores(table, {"A": [0.9, 1.2]}), 1.02)["avoid.A"] == "n1=1.4"


def test_the_records_of_a_cluster(tmp_path: Path) -> None:
    config = Config()
    config.apps = {"VASP": "B", "resnet50": "C", "a b": "A"}
    features = frozenset({"ib", "pal_A_v0"})
    overview = cluster(node("n0", ("v100", "v100"), features=features), node("n1", ("v100", "v100"), 1, "MIXED"))
    scored = scores({("n0", 0): 1.2, ("n1", 1): 0.9}, {"A": [0.9, 1.2]})
    body = records(standing(overview, scored, Settings(), True), config, 17, MEMORY)
    assert body["scores_epoch"] == "17"
    assert body["settings"] == (
        "pass_s=3 lease_max_s=600 run_share=0.5 run_s=3600 barred=1.05 avoid=1.1 locality=1.7 mem_cpu=500 "
        "wait_share=0.5 faulty=10"
    )
    assert body["app.vasp"] == "B" and body["app.resnet50"] == "C" and applications(config)[1] == ("a b",)
    assert body["prefer.A"] == "pal_A_v0"
    assert body["pool.gpu.-"] == body["pool.gpu.v100"] == "1"
    nodes = {text.split()[0]: text for key, text in body.items() if key.startswith("node.")}
    scored_text = "feat=ib,pal_A_v0 A=1.2,1 B=1.2,1 C=1.02,1"
    assert nodes["n0"] == f"n0 cpus=16 mem=64000 gpus=2 free=2 allcpus=16 allmem=64000 {scored_text}"
    assert nodes["n1"] == "n1 cpus=15 mem=63500 gpus=2 free=1 allcpus=16 allmem=64000 feat= A=0.9 B=0.9 C=0.99"
    number = next(key for key, text in body.items() if text == nodes["n1"]).removeprefix("node.")
    assert body["list.1.A.1.1"].split()[0] == str(int(number) * 64)
    assert body["plain.1.A.2"] == "1.2:n0:1" and body["slow.1.A.2"] == "n0"
    assert body["spare.1.A"] == "0:n0=1 1:n1=2" and body["size.1"] == "allcpus=16 allmem=64000 gpus=2 feat="
    assert body["most.1"] == "allcpus=16 allmem=64000 cpusgpu=8 memgpu=32000"
    assert body["slow.1.A.x"] == "n0" and "slow.1.C.2" not in body
    assert read_table(written(tmp_path, encode(HEADER, body))).records == body


@pytest.mark.skipif(not shutil.which("lua5.1"), reason="no lua5.1 here: apt-get install lua5.1")
def test_lua_reads_it_too(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    code = 't = dofile(arg[1]); io.write(t.schema, " ", t["pool.gpu.-"], " ", t["end"])'
    (tmp_path / "read.lua").write_text(code)
    done = subprocess.run(["lua5.1", str(tmp_path / "read.lua"), path], capture_output=True, text=True, check=False)
    assert done.stdout == "pal.table/1 1 1763712345678", done.stderr
