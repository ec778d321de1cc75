# SPDX-License-Identifier: MIT
"""bench on a whole node: fallbacks, health checks, modes, MIG, MPS, the host; what --list says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.emulation.gpus import draw_registry, load_registry, set_fault, write_registry
from slurm_pal.profiling.node import bench, binding, catalogue
from slurm_pal.profiling.node.backends import BACKENDS
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, DEFAULT, Benchmark, select
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, Static
from slurm_pal.profiling.node.emu import EmuBackend, EmuKernel, EmuTelemetry
from slurm_pal.profiling.node.measurement import Order, RecordOrigin, agenda
from slurm_pal.variability import regime
from slurm_pal.variability.records import Record, from_json
from slurm_pal.variability.validate import check_types

from ...doubles.records_factory import classify
from ...doubles.watchdog import HOUR_S, hasten

PLACE = RecordOrigin("s1", "c", "n0", 7, 3, "emu")
LONG_S = 120.0


@pytest.fixture
def registry(tmp_path: Path) -> str:
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 4, 3))
    return path


def measured(
    registry: str, ids: str = "", gpus: int = 4, mode: str = "concurrent", mig: bool = False
) -> tuple[bench.BenchOutput, list[Record]]:
    backend = EmuBackend(load_registry(registry), PLACE.seed, 0.0)
    order = Order(select(ids), mode, mig)
    outcome = bench.measure_node(backend, PLACE, range(gpus), gpus, order, LONG_S)
    records = [from_json(line) for line in outcome.lines]
    for record in records:
        check_types(record)
    return outcome, records


def test_the_default_set_on_a_healthy_node(registry: str) -> None:
    outcome, records = measured(registry)
    assert outcome.exit_code == Exit.OK and outcome.notes == () and all(r.valid and not r.flags for r in records)
    per_gpu = {i: [r.bench.id for r in records if r.gpu.slurm_index == i] for i in range(4)}
    assert per_gpu[0] == list(DEFAULT)
    assert all(per_gpu[i] == [name for name in DEFAULT if name != "allreduce"] for i in (1, 2, 3))
    assert {r.bench.id for r in records if not r.bench.sensitivity_class} == {
        "pcie_h2d", "pcie_d2h", "launch_latency", "p2p", "allreduce",
    }  # fmt: skip
    assert {r.bench.mode for r in records if r.bench.sensitivity_class} == {"concurrent"}
    assert {r.bench.peers_busy for r in records if r.bench.id.startswith("pcie")} == {0}


def test_libraries_of_one_benchmark_are_part_of_its_method_alone(
    registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, hashes, version = EmuBackend.prepare, [], "12.4.5"

    def prepare(self: EmuBackend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        kernel = made(self, device, spec, peers)
        if spec.id == "gemm_fp32":
            kernel.libs = {"cublas": version}  # type: ignore[attr-defined]
        return kernel

    monkeypatch.setattr(EmuBackend, "prepare", prepare)
    for version in ("12.4.5", "12.8.0"):
        _, (product, copy) = measured(registry, "gemm_fp32,hbm_copy", gpus=1)
        assert product.env.libs["cublas"] == version and "cublas" not in copy.env.libs
        hashes.append((product.bench.method_hash, copy.bench.method_hash))
    (one, same), (other, again) = hashes
    assert one != other and same == again


def test_p2p_is_a_matrix_and_its_record_the_worst_link(registry: str) -> None:
    _, records = measured(registry, "p2p")
    uuids = {r.gpu.uuid for r in records}
    assert len(records) == 4
    for record in records:
        matrix = record.telemetry["p2p_gb_s"]
        assert set(matrix) == uuids - {record.gpu.uuid}
        assert record.result.value == pytest.approx(min(matrix.values()), rel=1e-4)


def test_allreduce_is_one_record_of_the_node_and_counts_the_bus(registry: str) -> None:
    _, four = measured(registry, "allreduce")
    _, two = measured(registry, "allreduce", gpus=2)
    (record,), (other,) = four, two
    assert record.gpu.slurm_index == 0 and len(record.telemetry["gpus"]) == 4 and record.bench.peers_busy == 3
    assert record.result.value == pytest.approx(200.0, rel=0.03)
    assert record.bench.method_hash != other.bench.method_hash  # another ring


def test_a_single_gpu_has_no_links_and_that_is_a_remark(registry: str) -> None:
    outcome, records = measured(registry, "hbm_copy,p2p,allreduce", gpus=1)
    assert outcome.exit_code == Exit.OK and [r.bench.id for r in records] == ["hbm_copy"]
    assert outcome.notes == ("p2p: it needs another GPU (GPU 0)", "allreduce: it needs another GPU (GPU 0)")


class Old(EmuBackend):
    """Devices without some number formats."""

    without: dict[int, tuple[str, ...]] = {}

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        return f"no {spec.dtype} here" if spec.dtype in self.without.get(device.slot, ()) else ""


def test_a_lacking_number_format_falls_back_with_one_remark(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Old, "without", {0: ("bf16", "tf32"), 1: ("bf16", "tf32"), 2: ("bf16", "fp16", "fp64")})
    backend = Old(load_registry(registry), 3, 0.0)
    order = Order(select("gemm_bf16,gemm_tf32,gemm_fp32,gemm_fp64,tblock"))
    outcome = bench.measure_node(backend, PLACE, range(4), 4, order, LONG_S)
    records = [from_json(line) for line in outcome.lines]
    ran = {i: [r.bench.id for r in records if r.gpu.slurm_index == i] for i in range(4)}
    assert ran == {
        0: ["gemm_fp16", "gemm_fp32", "gemm_fp64", "tblock_fp16"],
        1: ["gemm_fp16", "gemm_fp32", "gemm_fp64", "tblock_fp16"],
        2: ["gemm_fp32", "gemm_tf32"],  # the fallback is not run twice
        3: ["gemm_bf16", "gemm_tf32", "gemm_fp32", "gemm_fp64", "tblock"],
    }
    assert outcome.exit_code == Exit.OK and all(r.valid for r in records)
    assert set(outcome.notes) == {
        "gemm_bf16: no bf16 here; gemm_fp16 instead (GPU 0, 1)", "gemm_bf16: no bf16 here; gemm_fp32 instead (GPU 2)",
        "gemm_tf32: no tf32 here (GPU 0, 1)", "gemm_fp64: no fp64 here (GPU 2)",
        "tblock: no bf16 here; tblock_fp16 instead (GPU 0, 1)", "tblock: no bf16 here (GPU 2)",
    }  # fmt: skip
    blocks = {r.bench.dtype: r.bench for r in records if r.bench.sensitivity_class == "B"}
    assert set(blocks) == {"bf16", "fp16"} and blocks["bf16"].method_hash != blocks["fp16"].method_hash
    long = [r for r in records if r.result.warmup_s > 10.0]  # whatever comes first heats the GPU up
    assert [(r.gpu.slurm_index, r.bench.id) for r in sorted(long, key=lambda r: r.gpu.slurm_index)] == [
        (0, "gemm_fp16"), (1, "gemm_fp16"), (2, "gemm_fp32"), (3, "gemm_bf16"),
    ]  # fmt: skip


def test_a_large_device_gets_large_matrices(registry: str) -> None:
    backend = EmuBackend(load_registry(registry), 3, 0.0)
    (device,) = backend.devices("n0", [0])
    rows, _ = agenda(backend, device._replace(mem_bytes=80 * 2**30), select("gemm_bf16,hbm_triad"), 1)
    assert [row.shape for row in rows if row] == ["16384x16384x16384", "3x1GiB"]


def test_solo_is_one_gpu_at_a_time_each_still_hot(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = measured(registry, "gemm_bf16,tblock,pcie_h2d")[1]
    alone = measured(registry, "gemm_bf16,tblock,pcie_h2d", mode="solo")[1]
    spans = sorted((r.ts_start, r.ts_end, r.gpu.slurm_index) for r in alone if r.bench.sensitivity_class)
    assert [slot for *_, slot in spans] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(end <= start + 0.001 for (_, end, _), (start, _, _) in pairwise(spans))
    assert {(r.bench.mode, r.bench.peers_busy) for r in alone} == {("solo", 0)}
    assert all(r.result.warmup_s < 10.0 for r in alone if r.bench.id == "tblock")
    hashes = [{(r.bench.id, r.bench.method_hash) for r in records} for records in (together, alone)]
    assert {name for name, _ in hashes[0] & hashes[1]} == {"pcie_h2d"}  # in turns either way


@pytest.mark.parametrize("mode", ["concurrent", "solo"])
def test_a_hung_gpu_leaves_the_others_to_all_their_checks(
    registry: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)
    set_fault(registry, "n0", 1, "hang")
    outcome, records = measured(registry, "gemm_bf16,tblock,pcie_h2d,p2p,allreduce", mode=mode)
    assert outcome.exit_code == Exit.PARTIAL
    (bad,) = [r for r in records if not r.valid]
    assert (bad.gpu.slurm_index, bad.bench.id, bad.result.stop_reason) == (1, "gemm_bf16", "timeout")
    for slot in (0, 2, 3):
        ran = [r.bench.id for r in records if r.gpu.slurm_index == slot]
        assert ran == ["gemm_bf16", "tblock", "pcie_h2d", "p2p", *(["allreduce"] if slot == 0 else [])]
    links = [r.telemetry["p2p_gb_s"] for r in records if r.bench.id == "p2p"]
    assert [len(matrix) for matrix in links] == [2, 2, 2] and not any(bad.gpu.uuid in matrix for matrix in links)


def test_a_peer_that_hangs_costs_one_gpu_its_check_and_the_others_nothing(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasten(tmp_path, monkeypatch)
    original = EmuBackend.prepare

    def hanging(self: EmuBackend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        if spec.id == "p2p" and 2 in (device.slot, *(peer.slot for peer in peers)):
            time.sleep(HOUR_S)
        return original(self, device, spec, peers)

    monkeypatch.setattr(EmuBackend, "prepare", hanging)
    outcome, records = measured(registry, "hbm_copy,p2p,allreduce")
    bad = {r.gpu.slurm_index: r.reason for r in records if not r.valid}
    # 0 hangs on 2, after which nobody uses 2; 2 then hangs on its own turn.
    assert bad == {
        0: "no answer within 120 s in p2p with GPU 2", 2: "no answer within 120 s in p2p with GPU 1",
    }  # fmt: skip
    good = {(r.gpu.slurm_index, r.bench.id) for r in records if r.valid}
    assert good == {(i, "hbm_copy") for i in range(4)} | {(1, "p2p"), (3, "p2p"), (1, "allreduce")}
    assert outcome.exit_code == Exit.PARTIAL


def test_a_link_that_is_refused_is_named_and_costs_no_other(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EmuBackend.prepare

    def refusing(self: EmuBackend, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        if (device.slot, *(peer.slot for peer in peers)) == (0, 2):
            raise DeviceError("peer access is not supported")
        return original(self, device, spec, peers)

    monkeypatch.setattr(EmuBackend, "prepare", refusing)
    outcome, records = measured(registry, "p2p")
    (bad,) = [r for r in records if not r.valid]
    assert bad.reason == "to GPU 2: p2p cannot be prepared: peer access is not supported"
    assert len(bad.telemetry["p2p_gb_s"]) == 1 and outcome.exit_code == Exit.PARTIAL
    assert outcome.notes == (f"GPU 0 p2p: {bad.reason}",)


def test_mig_is_refused_with_one_line_and_measured_as_a_partition_when_asked(registry: str) -> None:
    set_fault(registry, "n0", 1, "mig")
    parent = load_registry(registry).gpu("n0", 1).uuid
    outcome, records = measured(registry, "gemm_bf16,p2p")
    assert outcome.exit_code == Exit.PARTIAL
    (note,) = outcome.notes
    assert "GPU 1" in note and "--mig" in note
    (bad,) = [r for r in records if not r.valid]
    assert bad.gpu.mig_mode == "3g.8gb" and "MIG is enabled" in bad.reason
    assert sum(r.valid for r in records) == 6
    outcome, records = measured(registry, "gemm_bf16,pcie_h2d", mig=True)
    assert outcome.exit_code == Exit.OK and outcome.notes == ()
    part = [r for r in records if r.gpu.slurm_index == 1]
    assert {r.gpu.uuid for r in part} == {f"{parent}/3g.8gb"} and len(part) == 2
    whole = {r.bench.method_hash for r in records if r.gpu.slurm_index != 1}
    assert not whole & {r.bench.method_hash for r in part}


def test_partitions_come_from_the_job() -> None:
    whole = DeviceInfo("GPU-1", "nvidia", "H100", 0)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}
    parts = bench.partitions((whole,), environ)
    assert [(d.uuid, d.parent) for d in parts] == [("MIG-a", "GPU-1"), ("MIG-b", "GPU-1")]
    assert bench.partitions((whole,), {"CUDA_VISIBLE_DEVICES": "0"}) == (whole,)
    assert bench.partitions((whole, whole._replace(uuid="GPU-2", slot=1)), environ)[0] == whole


def test_mig_without_a_partition_is_refused_even_when_asked(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EmuTelemetry.static
    monkeypatch.setattr(EmuTelemetry, "static", lambda self, d: original(self, d)._replace(mig_mode="enabled"))
    outcome, records = measured(registry, "hbm_copy", gpus=1, mig=True)
    assert outcome.exit_code == Exit.PARTIAL and "this job was given no partition" in records[0].reason


def test_mps_is_noted_and_flagged(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EmuTelemetry.static
    monkeypatch.setattr(EmuTelemetry, "static", lambda self, device: original(self, device)._replace(mps=True))
    _, (record,) = measured(registry, "hbm_copy", gpus=1)
    assert record.valid and record.flags == ("config_differs",) and record.telemetry["mps"] is True


def test_a_busy_host_is_flagged(registry: str) -> None:
    set_fault(registry, "n0", 0, "host", 2.0)
    _, records = measured(registry, "hbm_copy", gpus=2)
    assert [r.flags for r in records] == [("host_noise",)] * 2


def test_a_narrow_link_is_flagged(registry: str) -> None:
    set_fault(registry, "n0", 1, "pcie", 2.0)
    _, records = measured(registry, "pcie_h2d", gpus=2)
    assert [r.flags for r in records] == [(), ("pcie_link",)]
    assert records[1].result.value == pytest.approx(records[0].result.value / 2.0, rel=0.01)


def test_a_gpu_that_is_lost_before_it_begins_is_a_hardware_fault(
    registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: EmuTelemetry, device: DeviceInfo) -> Static:
        raise DeviceError("GPU is lost", "xid")

    monkeypatch.setattr(EmuTelemetry, "static", lost)
    outcome, (record,) = measured(registry, "hbm_copy", gpus=1)
    assert outcome.exit_code == Exit.HARDWARE and record.flags == ("xid",) and record.reason == "GPU is lost"


def test_an_error_that_shows_only_at_the_end_is_no_value(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: EmuKernel) -> None:
        raise DeviceError("an illegal memory access was encountered", "xid")

    monkeypatch.setattr(EmuKernel, "close", broken)
    _, (record,) = measured(registry, "hbm_copy", gpus=1)
    assert not record.valid and record.result.value == 0.0 and "illegal memory access" in record.reason


def test_a_gpu_lost_during_its_run_is_told_by_its_counters(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = EmuTelemetry.counters

    def counters(self: EmuTelemetry, device: DeviceInfo) -> Counters:
        calls.append(device)
        if len(calls) > 2:  # preflight, before, and now after
            raise DeviceError("GPU is lost", "xid")
        return original(self, device)

    monkeypatch.setattr(EmuTelemetry, "counters", counters)
    outcome, (record,) = measured(registry, "hbm_copy", gpus=1)
    assert outcome.exit_code == Exit.HARDWARE and record.flags == ("xid",) and not record.valid


def test_version_of_the_backend_is_part_of_the_method(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = measured(registry, "hbm_copy", gpus=1)[1]
    monkeypatch.setattr(EmuBackend, "version", "3")
    (second,) = measured(registry, "hbm_copy", gpus=1)[1]
    assert first.env.libs["emu"] != second.env.libs["emu"] == "3"
    assert first.bench.method_hash != second.bench.method_hash


# -- where a worker runs ------------------------------------------------------------


def test_only_cuda_is_told_what_it_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "before")
    peers = [DeviceInfo(f"GPU-{i}", "nvidia", "H100", i) for i in (0, 2)]
    binding.show(DeviceInfo("emu-1", "emu", "m", 1), peers)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    binding.show(DeviceInfo("GPU-1", "nvidia", "H100", 1), peers)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0,GPU-2"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("numa_node", "text", "kept"),
    [
        (0, "0-3,8\n", {1, 2, 3, 8}),
        (0, "5\n", {1, 2, 3, 4, 5, 8} & {5}),
        (0, "40-47\n", None),  # none of them is the job's
        (0, "rubbish\n", None),
        (1, "0-3\n", None),  # no such node
        (None, "0-3\n", None),
        (-1, "0-3\n", None),
    ],
)
def test_workers_run_near_their_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numa_node: int | None, text: str, kept: set[int] | None
) -> None:
    allowed = {1, 2, 3, 4, 5, 8}
    node = tmp_path / "devices" / "system" / "node" / "node0"
    node.mkdir(parents=True)
    (node / "cpulist").write_text(text)
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: asked[-1] if asked else allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: asked.append(set(cpus)))
    device = DeviceInfo("GPU-1", "nvidia", "H100", 1, numa_node=numa_node)
    assert set(binding.bind(device, str(tmp_path))) == (kept or allowed)
    assert asked == ([kept] if kept else [])


# -- the list -----------------------------------------------------------------------


def test_list_names_every_benchmark_as_json_and_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "pal.benchmarks/1"
    rows = {row["id"]: row for row in found["benchmarks"]}
    assert list(rows) == [row.id for row in BENCHMARKS]
    assert (rows["gemm_bf16"]["class"], rows["gemm_bf16"]["unit"], rows["gemm_bf16"]["kind"]) == (
        "A",
        "TFLOP/s",
        "score",
    )
    assert rows["gemm_bf16"]["fallbacks"] == ["gemm_fp16", "gemm_fp32"]
    assert rows["p2p"]["kind"] == "health" and rows["p2p"]["class"] == "" and rows["launch_latency"]["unit"] == "us"
    assert [row["id"] for row in found["benchmarks"] if row["default"]] == list(DEFAULT)
    assert [row["id"] for row in found["benchmarks"] if row["quick"]] == ["gemm_bf16", "tblock", "hbm_triad"]
    backends = {row["name"]: row for row in found["backends"]}
    assert list(backends) == [name for name in BACKENDS if name != "auto"]
    assert all(row["available"] == (row["reason"] == "") for row in backends.values())
    assert bench.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(row.id in said for row in BENCHMARKS) and all(name in said for name in backends)


def test_list_says_which_backends_could_measure_here(registry: str, tmp_path: Path) -> None:
    os.rename(registry, tmp_path / "emu_gpus.json")
    found = catalogue.table({"SLURM_CONF": str(tmp_path / "slurm.conf")})
    emu = next(row for row in found["backends"] if row["name"] == "emu")
    assert emu["available"] and all("emu" in row["backends"] for row in found["benchmarks"])
    emu = next(row for row in catalogue.table({})["backends"] if row["name"] == "emu")
    assert not emu["available"] and "pal lab up" in emu["reason"]


def test_the_setting_names_the_benchmarks_of_a_trial(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PAL_PROFILE_BENCHMARKS", "hbm_copy,launch_latency")
    monkeypatch.setenv("SLURM_PAL_CONFIG", str(tmp_path / "pal.toml"))
    (tmp_path / "pal.toml").write_text("")
    argv = ["--node=n0", "--expected=1", f"--spool={tmp_path}", "--backend=emu", f"--registry={registry}"]
    for more, ran in (([], 2), (["--quick"], 3), (["--bench=tblock"], 1), (["--sweep=s9", "--quick"], 3)):
        for old in (tmp_path / "incoming").glob("*.jsonl"):
            old.unlink()
        assert bench.main([*argv, "--wall-scale=0", *more]) == Exit.OK
        (path,) = (tmp_path / "incoming").glob("*.jsonl")
        assert len(path.read_text().splitlines()) == ran


@pytest.mark.parametrize(
    ("model", "flag", "counts", "one"),
    [
        ("PAL Emulated GPU", False, "gemm_bf16", False),
        ("PAL Emulated Cool", True, "gemm_bf16", True),
        ("PAL Emulated Half", False, "gemm_fp32", False),
        ("PAL Emulated Hot", False, "gemm_bf16", True),
    ],
)
def test_what_a_model_does_at_its_power_cap_reaches_flags_and_classes(
    tmp_path: Path, model: str, flag: bool, counts: str, one: bool
) -> None:
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 4, 3, model))
    _, records = measured(path, "gemm_bf16,gemm_fp32,tblock")
    found = classify(records, max(r.ts_end for r in records))
    assert [regime.NOT_CAPPED in gpu.flags for gpu in found.gpus] == [flag] * 4
    assert bool(regime.one_class(found.met_cap[model])) is one
    value = {(r.gpu.uuid, r.bench.id): r.result.value for r in records}
    middle = median(value[gpu.uuid, counts] for gpu in found.gpus)
    for gpu in found.gpus:
        seen = 1.0 if flag else middle / value[gpu.uuid, counts]  # below the cap they are alike: one class
        assert gpu.slowdown["A"] == pytest.approx(seen, rel=2e-4)
