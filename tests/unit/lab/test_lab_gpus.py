# SPDX-License-Identifier: MIT
"""Emulated GPUs: the drawn population, the registry file, tables of one's own, faults and swaps."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.emulation import gpus, models
from slurm_pal.emulation.gpus import EmuGpu, Registry
from slurm_pal.lab.conf import node_names

sizes = st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(-(2**40), 2**40))


def values(registry: Registry, sensitivity: str) -> list[float]:
    return [gpu.slowdown[sensitivity] for gpu in registry.gpus]


# -- the population -----------------------------------------------------------------


@settings(deadline=None)
@given(sizes)
def test_the_draw_depends_on_seed_and_slot_only(size: tuple[int, int, int]) -> None:
    nodes, per_node, seed = size
    drawn = gpus.draw_registry(node_names(nodes), per_node, seed)
    assert drawn.gpus == gpus.draw_registry(node_names(nodes), per_node, seed).gpus
    assert [(gpu.node, gpu.index) for gpu in drawn.gpus] == [(n, i) for n in node_names(nodes) for i in range(per_node)]
    grown = gpus.draw_registry(node_names(nodes + 3), per_node, seed)
    for gpu in drawn.gpus:
        same = grown.gpu(gpu.node, gpu.index)
        assert same.uuid == gpu.uuid
        if max(same.slowdown["A"], gpu.slowdown["A"]) < 1.1:  # who is an outlier depends on the crowd
            assert same == gpu


@settings(deadline=None)
@given(sizes)
def test_about_one_in_twenty_is_an_outlier(size: tuple[int, int, int]) -> None:
    nodes, per_node, seed = size
    drawn = gpus.draw_registry(node_names(nodes), per_node, seed)
    count = nodes * per_node
    outliers = [value for value in values(drawn, "A") if value >= 1.1]
    assert len(outliers) == (max(1, round(0.05 * count)) if count >= 8 else round(0.05 * count))
    assert all(value <= 1.5 for value in outliers)
    assert all(0.98 < value < 1.02 for value in values(drawn, "C"))


def test_the_population_resembles_the_published_one() -> None:
    drawn = gpus.draw_registry(node_names(2000), 4, seed=5)
    usual = [gpu for gpu in drawn.gpus if gpu.slowdown["A"] < 1.1]
    for sensitivity, spread in (("A", 0.02), ("B", 0.0086), ("C", 0.00054)):  # B: 0.35 x 2 % and 0.5 % together
        found = [gpu.slowdown[sensitivity] for gpu in usual]
        assert statistics.stdev(found) == pytest.approx(spread, rel=0.05)
        assert statistics.median(found) == pytest.approx(1.0, abs=spread / 20)
    outliers = [gpu for gpu in drawn.gpus if gpu.slowdown["A"] >= 1.1]
    assert statistics.mean(gpu.slowdown["A"] for gpu in outliers) == pytest.approx(1.3, abs=0.02)
    assert statistics.mean(gpu.slowdown["B"] for gpu in outliers) == pytest.approx(1 + 0.35 * 0.3, abs=0.01)


def test_seeds_and_slots_differ() -> None:
    one, other = (gpus.draw_registry(node_names(64), 4, seed) for seed in (1, 2))
    uuids = {gpu.uuid for gpu in (*one.gpus, *other.gpus)}
    assert len(uuids) == 2 * 64 * 4
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids)
    assert values(one, "A") != values(other, "A")


def test_uniform_stays_inside_the_open_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for byte in (b"\x00", b"\xff"):
        monkeypatch.setattr(gpus, "_digest", lambda *_, byte=byte: byte * 16)
        assert 0.0 < gpus._uniform(1, ("n0", 0), "A") < 1.0
        assert abs(gpus._normal(1, ("n0", 0), "A")) < 10


@pytest.mark.parametrize("model", ["", "a\nb", "x" * 65, "\x1b[31m"])
def test_a_model_must_be_a_name(model: str) -> None:
    with pytest.raises(UsageError, match="--model"):
        gpus.draw_registry(["n0"], 1, 1, model)


# -- the file -----------------------------------------------------------------------

faults = st.dictionaries(st.sampled_from(sorted(gpus.FLAGS)), st.just(True)) | st.dictionaries(
    st.sampled_from(sorted(gpus.FACTORS)), st.floats(0.1, 100.0)
)


@settings(deadline=None)
@given(sizes, st.dictionaries(st.integers(0, 19), faults))
def test_a_registry_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, size: tuple[int, int, int], ill: dict[int, dict[str, float | bool]]
) -> None:
    nodes, per_node, seed = size
    registry = gpus.draw_registry(node_names(nodes), per_node, seed)
    for number, held in ill.items():
        if number < nodes:
            registry.put(registry.gpu(f"n{number}", 0)._replace(faults=held))
    path = str(tmp_path_factory.mktemp("registry") / "emu_gpus.json")
    gpus.write_registry(path, registry)
    loaded = gpus.load_registry(path)
    assert loaded.gpus == registry.gpus
    assert loaded.seed == seed
    assert loaded.nodes == node_names(nodes)


GOOD_ROW = {"node": "n0", "index": 0, "uuid": "U", "model": "M", "slowdown": {"A": 1, "B": 1, "C": 1}, "faults": {}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ('{"schema": "pal.emu/1", "gpus": [', "not JSON"),
        ("[]", "schema None, this version reads 'pal.emu/1'"),
        ('{"schema": "pal.emu/2", "gpus": []}', "schema 'pal.emu/2'"),
        ('{"schema": "pal.emu/1"}', "record cannot be read"),
        (json.dumps({"schema": "pal.emu/1", "gpus": [GOOD_ROW, GOOD_ROW]}), "the same slot twice"),
        (json.dumps({"schema": "pal.emu/1", "gpus": [GOOD_ROW | {"slowdown": {"A": 1}}]}), "record cannot be read"),
        (
            json.dumps({"schema": "pal.emu/1", "gpus": [GOOD_ROW | {"slowdown": {"A": 0, "B": 1, "C": 1}}]}),
            "not in 0.1",
        ),
        (json.dumps({"schema": "pal.emu/1", "gpus": [GOOD_ROW | {"index": None}]}), "record cannot be read"),
    ],
)
def test_an_unusable_file_says_why(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "emu_gpus.json"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(complaint)) as caught:
        gpus.load_registry(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_and_one_for_everyone_to_write(tmp_path: Path) -> None:
    path = tmp_path / "emu_gpus.json"
    with pytest.raises(DataError, match="No such file"):
        gpus.load_registry(str(path))
    gpus.write_registry(str(path), Registry([]))
    path.chmod(0o666)
    with pytest.raises(DataError, match="can be written by everyone"):
        gpus.load_registry(str(path))


def test_the_registry_is_found_beside_slurm_conf(tmp_path: Path) -> None:
    conf = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert gpus.find_registry({}) is None
    assert gpus.find_registry({"SLURM_CONF": ""}) is None
    assert gpus.find_registry(conf) is None
    path = tmp_path / "emu_gpus.json"
    gpus.write_registry(str(path), Registry([]))
    assert gpus.find_registry(conf) == str(path)


def test_an_unknown_slot_names_those_that_exist() -> None:
    registry = gpus.draw_registry(node_names(3), 4, 1)
    with pytest.raises(UsageError, match="no GPU n1:4; n1 has indexes 0-3"):
        registry.gpu("n1", 4)
    with pytest.raises(UsageError, match="its nodes are n0 to n2"):
        registry.gpu("n7", 0)
    with pytest.raises(UsageError, match="its nodes are none"):
        Registry([]).gpu("n0", 0)
    assert registry.on_node("n7") == ()


# -- tables -------------------------------------------------------------------------

HEADER = "node,index,A,B,C\n"


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "gpus.csv"
    path.write_bytes(text.encode())
    return str(path)


def test_a_table_gives_the_truth(tmp_path: Path) -> None:
    path = table(
        tmp_path, "\ufeffindex, node, A, B, C, uuid, model\r\n1,n0,1.1,1.05,1,,\r\n0, n0 ,0.9,1,1,GPU-x,V100\r\n"
    )
    registry = gpus.read_table(path, ["n0"], 2, seed=3, model="M")
    assert registry.gpus == (
        EmuGpu("n0", 0, "GPU-x", "V100", {"A": 0.9, "B": 1.0, "C": 1.0}, {}),
        EmuGpu("n0", 1, gpus.gpu_uuid(3, "n0", 1), "M", {"A": 1.1, "B": 1.05, "C": 1.0}, {}),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: columns [] must be node,index,A,B,C"),
        ("node,index,A,B\n", "line 1: columns ['A', 'B', 'index', 'node']"),
        (HEADER.replace("C", "C,speed"), "may have uuid,model"),
        (HEADER + "n0,0,1,1,1\nn0,1,1,x,1\n", "line 3: B = 'x' must be a slowdown in 0.1..100"),
        (HEADER + "n0,0,nan,1,1\n", "line 2: A = 'nan'"),
        (HEADER + "n0,0,1,1,-1\n", "line 2: C = '-1'"),
        (HEADER + "n0,0,1,1\n", "line 2: the number of fields"),
        (HEADER + "n0,0,1,1,1,1\n", "line 2: the number of fields"),
        (HEADER + "n0,zero,1,1,1\n", "line 2: node 'n0', index 'zero'"),
        (HEADER + ",0,1,1,1\n", "line 2: node ''"),
        (HEADER + "n0,0,1,1,1\n\nn0,0,1,1,1\n", "line 4: n0:0 was given before"),
        (HEADER + "n0,0,1,1,1\n", "no line for GPU n0:1; the lab has 2 GPUs, the table 1"),
        (HEADER + "n0,0,1,1,1\nn0,1,1,1,1\nn1,0,1,1,1\n", "GPU n1:0 is not in the lab, which ends with n0:1"),
        ("node,index,A,B,C,uuid\nn0,0,1,1,1,u\nn0,1,1,1,1,u\n", "line 3: uuid 'u' is also in line 2"),
        ("node,index,A,B,C,uuid\nn0,0,1,1,1,../x\n", "line 2: uuid '../x'"),
    ],
)
def test_a_wrong_table_names_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DataError, match=re.escape(complaint)):
        gpus.read_table(table(tmp_path, text), ["n0"], 2, seed=1)


def test_a_table_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        gpus.read_table(str(tmp_path / "none.csv"), ["n0"], 1, 1)
    path = tmp_path / "binary.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        gpus.read_table(str(path), ["n0"], 1, 1)


# -- faults and swaps -----------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "emu_gpus.json")
    gpus.write_registry(name, gpus.draw_registry(node_names(4), 4, 1))
    return name


def test_faults_come_and_go(path: str) -> None:
    gpus.set_fault(path, "n1", 2, "ecc")
    gpu = gpus.set_fault(path, "n1", 2, "drift", 1.5)
    assert gpu.faults == {"ecc": True, "drift": 1.5}
    assert gpus.load_registry(path).gpu("n1", 2) == gpu
    assert gpu.true_slowdown("A") == pytest.approx(1.5 * gpu.slowdown["A"])
    assert gpu.true_slowdown("B") == pytest.approx((1 + 0.35 * 0.5) * gpu.slowdown["B"])
    assert gpu.true_slowdown("C") == pytest.approx(1.005 * gpu.slowdown["C"])
    gpus.set_fault(path, "n1", 2, "ecc", None)
    assert gpus.load_registry(path).gpu("n1", 2).faults == {"drift": 1.5}


@pytest.mark.parametrize("name", gpus.SLOWING)
def test_what_slows_a_gpu_slows_each_class_by_its_share(path: str, name: str) -> None:
    gpu = gpus.set_fault(path, "n0", 0, name, 1.2)
    for sensitivity, share in models.SHARE.items():
        assert gpu.true_slowdown(sensitivity) == pytest.approx(gpu.slowdown[sensitivity] * (1 + 0.2 * share))


def test_measuring_wears_a_gpu_that_ages_and_heals_a_transient_one(path: str) -> None:
    gpus.set_fault(path, "n0", 0, "ageing", 1.1)
    gpus.set_fault(path, "n0", 0, "transient", 2.8)
    gpus.set_fault(path, "n0", 0, "noisy")
    assert gpus.wear(path, "n0", 0).faults == {"ageing": 1.1, "noisy": True, "drift": 1.1}
    assert gpus.wear(path, "n0", 0).faults["drift"] == pytest.approx(1.21)
    before = gpus.load_registry(path).gpu("n0", 1)
    assert gpus.wear(path, "n0", 1) == before
    for _ in range(60):
        worn = gpus.wear(path, "n0", 0)
    assert worn.faults["drift"] == 100.0 and gpus.load_registry(path).gpu("n0", 0) == worn


@pytest.mark.parametrize(
    ("name", "value"),
    [("rust", True), ("rust", None), ("ecc", 2.0), ("drift", True), ("drift", 0.0), ("transient", float("inf"))],
)
def test_a_fault_that_is_not_allowed_changes_nothing(path: str, name: str, value: float | bool | None) -> None:
    before = Path(path).read_bytes()
    with pytest.raises(UsageError, match=name):
        gpus.set_fault(path, "n0", 0, name, value)
    assert Path(path).read_bytes() == before


def test_swapped_gpus_take_everything_with_them(path: str) -> None:
    gpus.set_fault(path, "n0", 0, "noisy")
    before = gpus.load_registry(path)
    gpus.swap_gpus(path, ("n0", 0), ("n3", 1))
    after = gpus.load_registry(path)
    assert after.gpu("n3", 1) == before.gpu("n0", 0)._replace(node="n3", index=1)
    assert after.gpu("n0", 0) == before.gpu("n3", 1)._replace(node="n0", index=0)
    assert after.nodes == before.nodes
    gpus.swap_gpus(path, ("n3", 1), ("n0", 0))
    assert gpus.load_registry(path).gpus == before.gpus
    with pytest.raises(UsageError, match="no GPU n0:9"):
        gpus.swap_gpus(path, ("n0", 9), ("n0", 1))


def test_bench_workers_load_the_standard_library_only() -> None:
    script = "import sys; import slurm_pal.emulation.gpus; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=os.sep)
    assert not {"numpy", "pandas", "click", "rich", "pydantic"} & set(done.stdout.split())
