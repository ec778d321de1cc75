# SPDX-License-Identifier: MIT
"""The driver-only backend against a double of libcuda: what it runs, what it says, what it gives back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.driver import backend as module
from slurm_pal.profiling.driver import check, ptx
from slurm_pal.profiling.driver.gpu import GpuContext
from slurm_pal.profiling.driver.library import GRAPH_MAKERS, PROTOTYPES, CudaLibrary
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, Benchmark, by_id
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo
from slurm_pal.profiling.node.runner import StopRules, measure

from ..driver_double.machine import Machine, Quiet, Without, compiled, late_machine, machine

__all__ = ["compiled", "late_machine", "machine"]

SHAPES = check.SHAPES | {"hbm_triad": "3x64KiB", "hbm_copy": "2x64KiB", "allreduce": "256KiB-ring"}


NEW = {"gemm_bf16_wgmma", "gemm_bf16_tcgen05", "gemm_bf16_cublas"}
OTHERS = {"tblock_fp16", *NEW}
"""Benchmarks that only the libraries have, or one architecture."""
TINY_BLOCK = "d128-seq128-batch1"
WORK = {
    "gemm_fp32": 2.0 * 256 * 384 * 160, "hbm_triad": 3 * 65536.0, "hbm_copy": 2 * 65536.0,
    "pcie_h2d": 2.0**20, "pcie_d2h": 2.0**20, "launch_latency": 1.0,
}  # fmt: skip


def small(name: str) -> Benchmark:
    spec = by_id(name)
    return spec._replace(shape=SHAPES[name], work=WORK.get(name, spec.work))


def test_it_has_the_benchmarks_of_the_table(machine: Machine) -> None:
    backend = machine.backend()
    lacking = [spec.id for spec in BENCHMARKS if backend.lacks(machine.devices[0], spec)]
    assert lacking == ["gemm_bf16_wgmma", "gemm_bf16_tcgen05", "gemm_bf16_cublas", "tblock_fp16"]
    assert "no kernel for gather" in backend.lacks(machine.devices[0], small("hbm_copy")._replace(id="gather"))
    with pytest.raises(DeviceError, match="no kernel for gather"):
        backend.prepare(machine.devices[0], small("hbm_copy")._replace(id="gather"))


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        (61, {b.id for b in BENCHMARKS}),
        (70, {*NEW, "gemm_bf16", "gemm_tf32", "tblock", "tblock_fp16"}),
        (75, {*NEW, "gemm_bf16", "gemm_tf32", "tblock", "tblock_fp16"}),
        (90, {*NEW, "tblock_fp16"} - {"gemm_bf16_wgmma"}),
        (100, {*NEW, "tblock_fp16"} - {"gemm_bf16_tcgen05"}),
        (103, {*NEW, "tblock_fp16"} - {"gemm_bf16_tcgen05"}),
        (120, {*NEW, "tblock_fp16"}),
    ],
)
def test_what_older_devices_lack(machine: Machine, capability: int, lacking: set[str]) -> None:
    machine.reset(capability=capability)
    backend = machine.backend()
    assert {spec.id for spec in BENCHMARKS if backend.unable(machine.devices[0], spec)} == lacking


def test_an_old_driver_cannot_read_the_kernels(machine: Machine) -> None:
    machine.double.double_driver(10020)
    said = machine.backend().lacks(machine.devices[0], small("hbm_copy"))
    assert said == "the driver serves CUDA 10.2; the kernels need 11.0"


def test_version_is_that_of_the_kernels(machine: Machine) -> None:
    assert machine.backend().version == ptx.version()
    assert len(ptx.version()) == 8


@pytest.mark.parametrize("name", sorted(WORK))
def test_the_runner_measures_device_time(machine: Machine, name: str) -> None:
    spec = small(name)
    moved = spec.id.startswith("pcie")
    machine.double.double_launch_s(0.25)
    kernel = machine.backend().prepare(machine.devices[0], spec)
    rules = StopRules(
        block_s=0.5 if not moved else 2e-5, warmup_min_s=0, warmup_max_s=0, measure_min_s=0, measure_max_s=0
    )
    run = measure(kernel, spec, Quiet(()), rules)
    kernel.close()
    assert run.reason == "" and kernel.work == spec.work
    launch_s = 2**20 * 1e-11 if moved else 0.25
    assert run.result.value == pytest.approx(spec.value(1, launch_s), rel=1e-5)
    assert run.result.cv_pct < 0.01


def test_one_block_more_is_in_flight_and_each_call_gives_its_own_time(machine: Machine) -> None:
    machine.double.double_launch_s(0.125)
    kernel = machine.backend().prepare(machine.devices[0], small("launch_latency"))
    assert [kernel.run_block(n) for n in (1, 1, 4, 4, 2)] == pytest.approx([0.125, 0.125, 0.5, 0.5, 0.25])
    kernel.close()


def test_a_matrix_product_walks_over_three_outputs(machine: Machine) -> None:
    kernel = machine.backend().prepare(machine.devices[0], small("gemm_fp32")._replace(shape="128x128x32"))
    memory = 2 * 128 * 32 * 4 + 3 * 128 * 128 * 4
    kernel.close()
    machine.double.double_memory(memory)
    machine.backend().prepare(machine.devices[0], small("gemm_fp32")._replace(shape="128x128x32")).close()
    machine.double.double_memory(memory - 1)
    with pytest.raises(DeviceError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY .* free the GPU"):
        machine.backend().prepare(machine.devices[0], small("gemm_fp32")._replace(shape="128x128x32"))


def test_bytes_come_over_to_the_peer(machine: Machine) -> None:
    spec = small("p2p")
    kernel = machine.backend().prepare(machine.devices[0], spec, machine.devices[1:])
    kernel.run_block(1)
    assert kernel.read(kernel.arrays["target"]) == kernel.read(kernel.arrays["source"])
    assert kernel.work == 2**20
    kernel.close()


@pytest.mark.parametrize("reach", [0, 1])
@pytest.mark.parametrize("devices", [2, 3, 4, 5])
def test_every_device_has_the_sum(machine: Machine, devices: int, reach: int) -> None:
    """Streams of the double run as late as their events allow: a wait too few gives another sum.

    Only neighbours are let into each other's memory.
    """
    machine.reset(devices=devices)
    machine.double.double_peers(reach)
    kernel = machine.backend().prepare(machine.devices[0], small("allreduce"), machine.devices[1:])
    kernel.run_block(1)
    own = np.frombuffer(kernel.read(kernel.arrays["input"]), np.float32)
    for device in range(devices):
        sums = np.frombuffer(kernel.read(kernel.arrays[f"sums{device}"]), np.float32)
        np.testing.assert_allclose(sums, devices * own, rtol=1e-5)
    assert machine.double.double_links() == reach * (2 if devices == 2 else 2 * devices)
    assert kernel.work == 2 * (devices - 1) * own.nbytes / devices
    kernel.close()


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("gemm_bf16", "8192x100x32", "8192x100x32; wanted multiples of 128"),
        ("gemm_fp32", "128x128x33", "multiples of 128 rows, 128 columns, and 32 between"),
        ("gemm_fp32", "8192", "'8192' cannot be read"),
        ("tblock", "d200-seq128-batch1", "width 200 and sequence 128; wanted multiples of 128"),
        ("hbm_triad", "3x1KiB", "wanted a multiple of 16384"),
        ("p2p", "1MiB", "needs one peer and got 0"),
        ("allreduce", "1MiB-ring", "needs two devices or more and got 1"),
    ],
)
def test_sizes_that_do_not_fit(machine: Machine, name: str, shape: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        machine.backend().prepare(machine.devices[0], by_id(name)._replace(shape=shape))


def test_a_ring_needs_a_piece_for_each(machine: Machine) -> None:
    with pytest.raises(DeviceError, match="an array of 16384 bytes; wanted 32768 or more for 2 devices"):
        machine.backend().prepare(
            machine.devices[0], by_id("allreduce")._replace(shape="16KiB-ring"), machine.devices[1:]
        )


def test_arrays_must_be_larger_than_the_cache(machine: Machine) -> None:
    machine.double.double_l2(65536)
    with pytest.raises(DeviceError, match="65536 bytes for a cache of 65536; wanted 4 times the cache or more"):
        machine.backend().prepare(machine.devices[0], small("hbm_copy"))


def test_closed_is_closed(machine: Machine) -> None:
    kernel = machine.backend().prepare(machine.devices[0], small("hbm_copy"))
    kernel.run_block(1)
    kernel.close()
    kernel.close()
    with pytest.raises(DeviceError, match="the kernel is closed"):
        kernel.run_block(1)


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = str(tmp_path / "libcuda.so.1")
    with pytest.raises(DeviceError, match=r"cannot be loaded \(.*No such file.*\): is the NVIDIA driver installed"):
        CudaLibrary(missing)
    monkeypatch.setattr(module, "LIBRARY", missing)
    assert "cannot be loaded" in module.available()
    with pytest.raises(MissingPackageError, match=r"backend driver cannot be used: .*cannot be loaded"):
        module.open_backend(Setting("driver"))


def test_opened_where_the_library_and_a_gpu_are(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARY", machine.path)
    monkeypatch.setattr(module, "_nvml", lambda: Quiet(machine.devices))
    assert module.available() == ""
    backend = module.open_backend(Setting("driver"))
    assert backend.name == "driver" and backend.wall_scale == 1.0
    assert backend.devices("n0", [1]) == machine.devices[1:]
    monkeypatch.setattr(module, "_nvml", lambda: Quiet(machine.devices[1:]))
    assert module.available() == ""  # the first one does not answer
    monkeypatch.setattr(module, "_nvml", lambda: Quiet(()))
    assert module.available() == "there is no NVIDIA GPU here that answers"


def test_no_device(machine: Machine) -> None:
    machine.double.double_reset(0, 80)
    with pytest.raises(DeviceError, match=r"cuInit: CUDA_ERROR_NO_DEVICE .*no NVIDIA GPU is visible"):
        machine.backend().prepare(machine.devices[0], small("hbm_copy"))


def test_a_device_that_is_not_shown(machine: Machine) -> None:
    other = machine.devices[0]._replace(uuid="GPU-ffffffff-0000-0000-0000-000000000000")
    with pytest.raises(DeviceError, match=r"shows 2 devices and not GPU-ffffffff.*CUDA_VISIBLE_DEVICES"):
        machine.backend().prepare(other, small("hbm_copy"))


def test_a_later_driver_names_partitions_and_makes_graphs_in_its_way(late_machine: Machine) -> None:
    """A MIG device is shown by its own UUID."""
    part = late_machine.devices[1]._replace(uuid="MIG-eeeeeeee-eeee-eeee-eeee-eeeeeeeeee01")
    kernel = late_machine.backend().prepare(part, by_id("tblock")._replace(shape=TINY_BLOCK))
    assert kernel.run_block(1) > 0
    kernel.close()
    late_machine.fail("cuGraphInstantiateWithFlags", 1)
    with pytest.raises(DeviceError, match="cuGraphInstantiateWithFlags"):
        late_machine.backend().prepare(part, by_id("tblock")._replace(shape=TINY_BLOCK))


@pytest.mark.parametrize("late", [False, True])
def test_a_partition_named_as_before_driver_470(machine: Machine, late_machine: Machine, late: bool) -> None:
    """Slurm passes on the name that the driver gives, and only one partition is visible."""
    here = late_machine if late else machine
    assert CudaLibrary(here.path).find(here.devices[1].uuid.lower()) == 1
    assert CudaLibrary(here.path).find(f"MIG-{here.devices[1].uuid}/7/0") == 1
    with pytest.raises(DeviceError, match="shows 2 devices and not all of them"):
        CudaLibrary(here.path).find("all of them")


@pytest.mark.parametrize(
    ("missing", "lacking"),
    [
        (("cuMemcpyPeerAsync",), {"p2p", "allreduce"}),
        (("cuMemHostAlloc",), {"pcie_h2d", "pcie_d2h"}),
        (GRAPH_MAKERS[1:], {"tblock"}),
        (("cuStreamWaitEvent", "cuGraphLaunch"), {"allreduce", "tblock"}),
    ],
)
def test_a_driver_without_a_function_runs_what_does_not_need_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], lacking: set[str]
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda path: Without(machine.double, missing))
    backend = machine.backend()
    said = {spec.id: backend.lacks(machine.devices[0], spec) for spec in BENCHMARKS if spec.id not in OTHERS}
    assert {name for name, lack in said.items() if lack} == lacking
    assert all(lack.startswith("the NVIDIA driver has no cu") for lack in said.values() if lack)
    with pytest.raises(DeviceError, match=f"the NVIDIA driver has no {missing[0]}"):
        CudaLibrary(machine.path).function(missing[0])
    assert all(f.good for f in check.check(backend, machine.devices[0], small("hbm_copy")))


def test_a_driver_before_11_0_is_told_of(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda path: Without(machine.double, ("cuDevicePrimaryCtxRelease_v2",)))
    assert module.available() == "the NVIDIA driver has no cuDevicePrimaryCtxRelease_v2: CUDA 11.0 or later is needed"


@pytest.mark.parametrize("graphs", [GRAPH_MAKERS[:1], GRAPH_MAKERS[1:]])
def test_either_way_to_make_a_graph_will_do(
    late_machine: Machine, monkeypatch: pytest.MonkeyPatch, graphs: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda path: Without(late_machine.double, graphs))
    backend, spec = late_machine.backend(), by_id("tblock")._replace(shape=TINY_BLOCK)
    assert backend.lacks(late_machine.devices[0], spec) == ""
    backend.prepare(late_machine.devices[0], spec).close()


def test_what_the_drivers_compiler_says_is_told(machine: Machine) -> None:
    machine.fail("cuModuleLoadDataEx", 218)
    with pytest.raises(DeviceError) as caught:
        machine.backend().prepare(machine.devices[0], small("hbm_copy"))
    said = str(caught.value)
    assert said.startswith(
        "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (a PTX JIT compilation failed); ptxas application"
    )
    assert "line 8; error : no such thing; please report" in said and "\n" not in said


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("cuInit", 802, "nvidia-fabricmanager"),
        ("cuInit", 803, "reboot"),
        ("cuInit", 999, "/dev/nvidia-uvm"),
        ("cuDevicePrimaryCtxRetain", 46, "compute mode"),
        ("cuModuleLoadDataEx", 221, "libnvidia-ptxjitcompiler"),
        ("cuModuleLoadDataEx", 223, "CUDA_DISABLE_PTX_JIT"),
    ],
)
def test_a_node_that_is_not_set_up_is_told_what_to_do(machine: Machine, name: str, code: int, hint: str) -> None:
    machine.fail(name, code)
    with pytest.raises(DeviceError, match=f"^{name}: .*; .*{hint}") as caught:
        machine.backend().prepare(machine.devices[0], small("hbm_copy"))
    assert caught.value.flag == ""


def test_the_context_is_not_left_current(machine: Machine) -> None:
    """The next benchmark of the worker begins without one, rather than with one that is gone."""
    library = CudaLibrary(machine.path)
    library.start()
    for _ in range(2):
        gpu = GpuContext(library, machine.devices[0])
        gpu.close()
        gpu.close()
        with pytest.raises(DeviceError, match="error 201"):
            library.handle("cuStreamCreate", 1)


@pytest.mark.parametrize(("code", "flag"), [(719, "xid"), (226, "xid"), (214, "ecc"), (2, ""), (4242, "")])
def test_a_kernel_that_fails_ends_in_a_flag_and_the_next_one_runs(machine: Machine, code: int, flag: str) -> None:
    backend = machine.backend()
    kernel = backend.prepare(machine.devices[0], small("hbm_triad"))
    machine.fail("hbm_triad", code)
    with pytest.raises(DeviceError) as caught:
        kernel.run_block(3)
    assert caught.value.flag == flag
    assert ("CUDA_ERROR" in str(caught.value)) == (code != 4242)
    with pytest.raises(DeviceError):
        kernel.run_block(3)
    kernel.close()
    machine.heal()
    assert all(f.good for f in check.check(backend, machine.devices[0], small("hbm_triad")))


_UNDOING = ("Destroy", "Free", "Unload", "Release")
_ASKING = ("cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion")
CALLS = sorted(
    name for name in PROTOTYPES if name not in _ASKING and not any(word in name for word in _UNDOING)
)  # fmt: skip
LATE = {"cuDeviceGetUuid_v2", GRAPH_MAKERS[0]}
"""Functions that `machine` has not: its driver is of CUDA 11.0."""


@pytest.mark.parametrize("name", [name for name in CALLS if name not in LATE])
def test_whatever_call_fails_nothing_is_left_behind(machine: Machine, name: str) -> None:
    """Each call of a prepare, two blocks and a read, failing at each of its turns; `machine` counts what lives."""
    graphs = "Graph" in name or "Capture" in name
    one = "tblock" if graphs else "gemm_bf16_tcgen05" if name == "cuFuncSetAttribute" else ""
    met = 0
    for bench in (one,) if one else ("allreduce", "pcie_h2d", "pcie_d2h", "p2p"):
        for after in (0,) if one else (0, 1, 2, 5, 11):
            machine.reset(capability=100 if one == "gemm_bf16_tcgen05" else 80)
            machine.fail(name, 1, after)
            peers = machine.devices[1:] if by_id(bench).peers else ()
            met += _fails(machine, bench, peers)
            assert machine.live() == 0, (bench, after)
    assert met, f"{name} is never called"


def test_a_launch_that_fails_while_a_graph_is_made(machine: Machine) -> None:
    machine.fail("cuLaunchKernel", 1, 20)
    with pytest.raises(DeviceError, match="cuLaunchKernel of"):
        machine.backend().prepare(machine.devices[0], by_id("tblock")._replace(shape=TINY_BLOCK))
    assert machine.live() == 0


def _fails(machine: Machine, bench: str, peers: tuple[DeviceInfo, ...]) -> bool:
    shapes = {"tblock": TINY_BLOCK, "gemm_bf16_tcgen05": "256x128x32"}
    spec = by_id(bench)._replace(shape=shapes.get(bench, "64KiB-small"))
    try:
        kernel = machine.backend().prepare(machine.devices[0], spec, peers)
    except DeviceError as error:
        assert "CUDA_ERROR_INVALID_VALUE (invalid argument)" in str(error)
        return True
    try:
        kernel.run_block(1)
        kernel.run_block(2)
        kernel.read(next(iter(kernel.arrays.values())))
    except DeviceError:
        return True
    finally:
        kernel.close()
    return False
