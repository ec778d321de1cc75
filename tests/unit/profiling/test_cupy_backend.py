# SPDX-License-Identifier: MIT
"""The CuPy backend on a double of CuPy (cupy_double.py): numbers, order of streams, memory, errors."""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.node import cupy_backend, inputs
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, Benchmark, on_the_bus
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo
from slurm_pal.profiling.node.runner import StopRules, measure

from ...doubles.cupy_double import WORK_S, Machine
from ...doubles.null_telemetry import Null, NullWatch

KERNELS = "slurm_pal.profiling.node.cupy_kernels"
SHORT = StopRules(0.02, 0.0, 0.1, 2, 1e9, 1e9, 1.0, 2, 0.04, 0.1, 1e9, 1e9)
HERE, THERE = (DeviceInfo(f"GPU-{i}", "nvidia", "X", i, f"00000000:{0x3B + i:02X}:00.0") for i in range(2))


class Sensors(Null):
    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        return tuple(d for d in (HERE, THERE) if d.slot in indexes)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., types.SimpleNamespace]]:
    """Makes a machine, and the kernels' module that runs on it."""

    def made(gpus: int = 2, seed: int = 0) -> types.SimpleNamespace:
        machine = Machine(gpus, seed)
        for name, module in machine.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules.pop(KERNELS, None)
        return types.SimpleNamespace(machine=machine, kernels=importlib.import_module(KERNELS))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield made
    sys.modules.pop(KERNELS, None)


def small(spec: Benchmark) -> Benchmark:
    if spec.id.startswith("gemm"):
        return spec._replace(shape="24x16x40", work=2.0 * 24 * 16 * 40)
    if spec.id == "launch_latency":
        return spec
    arrays = {"hbm_triad": 3, "hbm_copy": 2}.get(spec.id, 1)
    row = spec._replace(shape=spec.shape.replace("1GiB", "16KiB").replace("256MiB", "16KiB"), work=arrays * 16384.0)
    return on_the_bus(row, 2) if row.peers < 0 else row


def spec_of(name: str, **changes: Any) -> Benchmark:  # noqa: ANN401 - fields of Benchmark
    return small(next(b for b in BENCHMARKS if b.id == name))._replace(**changes)


def backend() -> cupy_backend.CupyBackend:
    made = cupy_backend.CupyBackend(Sensors())
    assert made.devices("n1", (0, 1)) == (HERE, THERE)
    return made


@pytest.mark.parametrize(
    "spec", [small(b) for b in BENCHMARKS if b.sensitivity_class != "B" and "bf16_" not in b.id], ids=lambda b: b.id
)
def test_every_benchmark_runs_and_gives_its_memory_back(build: Callable[..., Any], spec: Benchmark) -> None:
    machine, device = build().machine, backend()
    assert device.lacks(HERE, spec) == ""
    kernel = device.prepare(HERE, spec, (THERE,) if spec.peers else ())
    assert kernel.unit == spec.unit and kernel.work == spec.work
    assert machine.live_bytes() > 0 or spec.id == "launch_latency"
    run = measure(kernel, spec, NullWatch(), SHORT)
    assert run.reason == "" and run.result.n_blocks >= 2
    if spec.id != "allreduce":  # one launch is one work there
        assert run.result.value == pytest.approx(spec.value(1, WORK_S), rel=1e-6)
    assert machine.freed == []
    kernel.close()
    gc.collect()
    assert machine.live_bytes() == 0 and machine.within == [] and machine.present == [0]
    assert machine.freed == [0, *([1] if spec.peers else []), "pinned"]
    kernel.close()
    with pytest.raises(DeviceError, match="closed"):
        kernel.run_block(1)


def test_what_it_lacks_is_said(build: Callable[..., Any]) -> None:
    machine, device = build().machine, backend()
    for block in (b for b in BENCHMARKS if b.sensitivity_class == "B"):
        assert "automatic differentiation" in device.lacks(HERE, block)
    assert "no kernel" in device.lacks(HERE, spec_of("p2p", id="gather"))
    machine.capability = "75"
    assert "8.0 (this is 7.5)" in device.lacks(HERE, spec_of("gemm_bf16"))
    assert device.lacks(HERE, spec_of("gemm_fp16")) == ""
    with pytest.raises(DeviceError, match="no kernel for gather"):
        device.prepare(HERE, spec_of("hbm_copy", id="gather"))
    device.devices("n1", (0,))
    assert "no other GPU" in device.lacks(HERE, spec_of("allreduce"))


def place(kernels: types.ModuleType, spec: Benchmark, gpus: int = 1) -> Any:  # noqa: ANN401 - a Site
    """Where a kernel is built; stays in its stream."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True).__enter__()
    return kernels.CupyWorkbench(spec, range(gpus), stream, cupy.random.default_rng(inputs.seed(spec.id)))


@pytest.mark.parametrize(
    ("dtype", "digits", "types_used"),
    [("bf16", 8, (14, 68)), ("fp16", 11, (2, 68)), ("tf32", 24, (0, 77)), ("fp32", 24, (0, 68)), ("fp64", 53, (1, 70))],
)
def test_a_gemm_is_the_product_of_rows_with_the_compute_type_named(
    build: Callable[..., Any], dtype: str, digits: int, types_used: tuple[int, int]
) -> None:
    node = build()
    spec = spec_of(f"gemm_{dtype}")
    body = node.kernels._gemm(place(node.kernels, spec))
    found = [body.launch() for _ in range(4)]
    node.machine.streams.run()
    assert set(node.machine.products) == {types_used}
    assert len({out.data.ptr for out in found}) == 3 and found[0].shape == (24, 16)
    draw = np.random.default_rng(inputs.seed(spec.id))
    exact = [
        draw.standard_normal(size, dtype=np.float64 if digits == 53 else np.float32) for size in ((24, 40), (40, 16))
    ]
    for out in found:
        values = np.asarray(out)
        if dtype == "bf16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        assert np.abs(values - exact[0].astype(float) @ exact[1]).max() < 64 * 2.0**-digits


def test_memory_kernels_move_what_they_say(build: Callable[..., Any]) -> None:
    node = build()

    def drawn(name: str, count: int) -> list[np.ndarray]:
        draw = np.random.default_rng(inputs.seed(name))
        return [draw.standard_normal(4096, dtype=np.float32) for _ in range(count)]

    def touched(name: str, gpus: int = 1) -> list[np.ndarray]:
        """The arrays that a body holds, after one launch."""
        body = node.kernels.BUILDERS[name](place(node.kernels, spec_of(name), gpus))
        body.launch()
        node.machine.streams.run()
        cells = body.launch.__closure__ or ()
        return [np.asarray(c.cell_contents) for c in cells if isinstance(c.cell_contents, np.ndarray)]

    a, b, c = drawn("hbm_triad", 3)
    assert any(np.allclose(array, b + np.float32(0.4) * c) for array in touched("hbm_triad"))
    assert not np.allclose(a, b)
    assert all(np.array_equal(array, drawn("hbm_copy", 2)[1]) for array in touched("hbm_copy"))
    for name in ("pcie_h2d", "pcie_d2h"):
        assert all(np.array_equal(array, drawn(name, 1)[0]) for array in touched(name))
    arrays = touched("p2p", 2)
    assert len(arrays) == 2 and all(np.array_equal(array, drawn("p2p", 1)[0]) for array in arrays)


def all_reduce(kernels: types.ModuleType, spec: Benchmark, gpus: int) -> tuple[float, Any]:
    """Its work, and the reduction itself."""
    body = kernels.BUILDERS["allreduce"](place(kernels, spec, gpus))
    return body.work, body.clock


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_an_all_reduce_sums_in_every_order_that_streams_allow(build: Callable[..., Any], gpus: int) -> None:
    for seed in range(6):
        node = build(gpus, seed)
        work, ring = all_reduce(node.kernels, spec_of("allreduce", shape="1KiB-ring"), gpus)
        assert work == 2 * (gpus - 1) * (1024 // (4 * gpus)) * 4
        node.machine.streams.run()
        members, draw = ring.members, np.random.default_rng(seed)
        for number, member in enumerate(members):  # every device its own data
            assert member.input.gpu == member.sum.gpu == member.stage.gpu == number
            member.input[...] = draw.standard_normal(member.input.shape)
        wanted = np.sum([np.asarray(member.input) for member in members], axis=0)
        right: list[bool] = []

        def look(at: np.ndarray, wanted: np.ndarray = wanted, right: list[bool] = right) -> None:
            right.append(np.allclose(at, wanted, atol=1e-5))

        start = ring.mark()
        for _ in range(3):
            ring.launch()
            for member in members:
                member.receive.stream.work(functools.partial(look, np.asarray(member.sum)))
        end = ring.mark()
        ring.wait(end)
        assert right == [True] * 3 * gpus  # the last mark stands behind all streams
        assert ring.elapsed_s(start, end) > 0


@pytest.mark.parametrize("seed", range(6))
def test_the_first_all_reduce_waits_for_its_inputs(build: Callable[..., Any], seed: int) -> None:
    node = build(3, seed)
    _, ring = all_reduce(node.kernels, spec_of("allreduce"), 3)
    ring.launch()
    ring.wait(ring.mark())
    draw = np.random.default_rng(inputs.seed("allreduce"))
    part = draw.standard_normal((3, 16384 // 12), dtype=np.float32)
    assert all(np.allclose(np.asarray(member.sum), 3 * part, atol=1e-5) for member in ring.members)


def test_errors_become_one_line_and_free_the_memory(build: Callable[..., Any]) -> None:
    machine = build().machine
    kernel = backend().prepare(HERE, spec_of("hbm_copy"))
    machine.fault = "cudaErrorIllegalAddress: an illegal memory access was encountered"
    with pytest.raises(DeviceError, match="hbm_copy: cudaErrorIllegalAddress") as caught:
        kernel.run_block(1)
    assert caught.value.flag == "xid"
    kernel.close()
    with pytest.raises(DeviceError, match="pcie_h2d: ") as caught:
        backend().prepare(HERE, spec_of("pcie_h2d"))
    assert caught.value.flag == "xid"
    del caught
    gc.collect()
    assert machine.live_bytes() == 0 and machine.within == [] and machine.present == [0]
    machine.fault = ""
    machine.compiler_says = 'triad.cu(1): error: cannot open source file "cuda_fp16.h"\nCompilation terminated'
    with pytest.raises(DeviceError, match=r"^hbm_triad: triad.cu\(1\): error: cannot open [^\n]*$"):
        backend().prepare(HERE, spec_of("hbm_triad"))
    del sys.modules["cupy.cuda"].cublas
    with pytest.raises(DeviceError, match=r"gemm_fp32: .*cublas"):
        backend().prepare(HERE, spec_of("gemm_fp32"))


def test_memory_that_is_out_is_said(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    node = build()

    def full(site: object) -> None:
        raise MemoryError("Out of memory allocating 1,073,741,824 bytes")

    monkeypatch.setitem(node.kernels.BUILDERS, "hbm_copy", full)
    with pytest.raises(DeviceError, match=r"Out of memory.*exclusive job") as caught:
        backend().prepare(HERE, spec_of("hbm_copy"))
    assert caught.value.flag == ""


def test_the_device_is_the_one_that_the_worker_shows(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build()
    assert [cupy_backend._number(d) for d in (HERE, THERE)] == [0, 1]  # by PCI address
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-0")
    assert [cupy_backend._number(d) for d in (HERE, THERE)] == [1, 0]
    with pytest.raises(DeviceError, match="sees 2 devices and not GPU-9"):
        cupy_backend._number(DeviceInfo("GPU-9", "nvidia", "X", 9, "00000000:99:00.0"))
    build(gpus=1)
    with pytest.raises(DeviceError, match="sees 1 devices"):
        cupy_backend._number(HERE)


def test_versions_of_the_libraries_are_told(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(cupy_backend, "installed", lambda: ("cupy-cuda12x", "14.2.0"))
    monkeypatch.setattr(cupy_backend, "cublas_version", lambda cuda: {"12.9": "12.9.1"}.get(cuda, ""))
    device = backend()
    assert device.version == "cupy-cuda12x 14.2.0" and device.wall_scale == 1.0
    assert device.telemetry.static(HERE).libs == {"cuda": "12.9", "cublas": "12.9.1"}
    del sys.modules["cupy.cuda"].cublas
    assert device.telemetry.static(HERE).libs == {"cuda": "12.9"}


def test_availability_names_what_is_missing(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_backend, "PACKAGES", ("cupy-that-nobody-has",))
    assert cupy_backend.available() == "CuPy for CUDA is not installed"
    with pytest.raises(MissingPackageError, match="CuPy for CUDA is not installed"):
        cupy_backend.open_backend(Setting("cupy"))
    monkeypatch.setattr(cupy_backend, "installed", lambda: ("cupy-cuda12x", "14.2.0"))
    monkeypatch.setattr(cupy_backend.importlib.util, "find_spec", lambda name: object())

    class NoDriver(Sensors):
        def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
            raise DeviceError("NVML cannot be used")

    for sensors, why in ((NoDriver, "NVML cannot be used"), (Sensors, "")):
        monkeypatch.setattr(cupy_backend, "Nvml", sensors)
        assert cupy_backend.available() == why
    assert cupy_backend.open_backend(Setting("cupy")).name == "cupy"
    monkeypatch.setattr(Sensors, "devices", lambda *_: ())
    assert cupy_backend.available() == "NVML lists no GPU"
