# SPDX-License-Identifier: MIT
"""The PyTorch backend on the processor: numbers, gradients, memory, errors; no GPU is needed.

What only a GPU has (events, streams, graphs) is stood in for by doubles that keep PyTorch's rules.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.node import inputs, torch_backend
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, Benchmark, on_the_bus
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo
from slurm_pal.profiling.node.runner import StopRules, measure

from ...doubles.null_telemetry import Null, NullWatch
from ...doubles.stream_double import Streams

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its backend is not tested")
torch_block = pytest.importorskip("slurm_pal.profiling.node.torch_block")
torch_kernels = pytest.importorskip("slurm_pal.profiling.node.torch_kernels")
torch_runtime = pytest.importorskip("slurm_pal.profiling.node.torch_runtime")

DEFERRED = torch.cuda.DeferredCudaCallError
SHORT = StopRules(0.002, 0.0, 0.02, 2, 1e9, 1e9, 1.0, 2, 0.004, 0.02, 1e9, 1e9)
HERE, THERE = (DeviceInfo(f"CPU-{i}", "cpu", "processor", i) for i in range(2))
SMALL = {"gemm": ("64x48x32", 2.0 * 64 * 48 * 32), "tblock": ("d256-seq16-batch2", 1.0)}


class Sensors(Null):
    """Devices of the processor."""

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        return tuple(d for d in (HERE, THERE) if d.slot in indexes)


def small(spec: Benchmark) -> Benchmark:
    """The same benchmark in kilobytes."""
    shape, work = SMALL.get(spec.id.partition("_")[0], ("", 0.0))
    if shape:
        return spec._replace(shape=shape, work=work)
    if spec.id == "launch_latency":
        return spec
    arrays = {"hbm_triad": 3, "hbm_copy": 2}.get(spec.id, 1)
    row = spec._replace(shape=spec.shape.replace("1GiB", "64KiB").replace("256MiB", "64KiB"), work=arrays * 65536.0)
    return on_the_bus(row, 2) if row.peers < 0 else row


def backend() -> torch_backend.TorchBackend:
    made = torch_backend.TorchBackend("cpu", Sensors())
    assert made.devices("n1", (0, 1)) == (HERE, THERE)
    return made


def spec_of(name: str, **changes: Any) -> Benchmark:  # noqa: ANN401 - fields of Benchmark
    return small(next(b for b in BENCHMARKS if b.id == name))._replace(**changes)


def told(**fields: object) -> types.SimpleNamespace:
    return types.SimpleNamespace(**fields)


def site(spec: Benchmark, devices: int = 1, runtime: Any = None) -> Any:  # noqa: ANN401 - PyTorch may be missing
    generator = torch.Generator().manual_seed(inputs.seed(spec.id))
    places = (torch.device("cpu"),) * devices
    return torch_kernels.TorchWorkbench(runtime or torch_runtime.Processor(), spec, places, generator)


# The transformer block against float64 arithmetic of our own.


def norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    middle = x - x.mean(-1, keepdims=True)
    return middle / np.sqrt((middle**2).mean(-1, keepdims=True) + torch_block.EPSILON) * weight + bias


ERF = np.vectorize(math.erf)


def reference(x: np.ndarray, p: Sequence[np.ndarray], heads: int) -> np.ndarray:
    """The block written out, one head and one sequence at a time."""
    batch, seq, width = x.shape
    depth = width // heads
    a = np.empty_like(x)
    for one in range(batch):
        q, k, v = np.split(norm(x[one], p[0], p[1]) @ p[2].T, 3, axis=1)
        mixed = np.empty((seq, width))
        for head in range(heads):
            part = slice(head * depth, (head + 1) * depth)
            score = q[:, part] @ k[:, part].T / math.sqrt(depth)
            score[np.triu_indices(seq, 1)] = -np.inf
            weight = np.exp(score - score.max(1, keepdims=True))
            mixed[:, part] = weight / weight.sum(1, keepdims=True) @ v[:, part]
        a[one] = x[one] + mixed @ p[3].T
    up = norm(a, p[4], p[5]) @ p[6].T
    return a + (up * 0.5 * (1.0 + ERF(up / math.sqrt(2.0)))) @ p[7].T


def step_of(shape: str, dtype: Any) -> Any:  # noqa: ANN401 - PyTorch may be missing
    generator = torch.Generator().manual_seed(7)
    return torch_block.BlockStep(inputs.block(shape), dtype, torch.device("cpu"), generator)


def test_the_block_computes_what_its_formula_says() -> None:
    step = step_of("d256-seq5-batch2", torch.float64)
    assert step.heads == 2
    y, _ = step()
    expected = reference(step.x.detach().numpy(), [p.detach().numpy() for p in step.parameters], step.heads)
    assert np.abs(y.detach().numpy() - expected).max() < 1e-11


def test_every_gradient_agrees_with_differences_of_the_formula() -> None:
    step = step_of("d8-seq5-batch2", torch.float64)
    _, gradients = step()
    leaves = [t.detach().numpy() for t in (step.x, *step.parameters)]
    above = step.above.numpy()
    draw = np.random.default_rng(3)
    assert len(gradients) == len(leaves) == 9
    for position, gradient in enumerate(gradients):
        along = draw.standard_normal(leaves[position].shape)
        ends = []
        for sign in (1e-5, -1e-5):
            moved = [leaf + sign * along if i == position else leaf for i, leaf in enumerate(leaves)]
            ends.append((reference(moved[0], moved[1:], step.heads) * above).sum())
        assert (gradient.numpy() * along).sum() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 0.03), ("fp16", 0.004)])  # 8 and 11 digits, a dozen roundings
def test_the_block_in_short_numbers_is_the_block_within_their_digits(dtype: str, limit: float) -> None:
    kind = torch_runtime.DTYPES[dtype]
    low, high = step_of("d256-seq16-batch2", kind), step_of("d256-seq16-batch2", torch.float64)
    (y_low, grads_low), (y_high, grads_high) = low(), high()
    for found, wanted in zip((y_low, *grads_low), (y_high, *grads_high), strict=True):
        assert found.dtype == kind
        error = (found.double() - wanted).norm() / wanted.norm()
        assert error < limit


# All kernels through the runner.


@pytest.mark.parametrize(
    "spec", [small(b) for b in BENCHMARKS if not b.id.startswith("gemm_bf16_")], ids=lambda b: b.id
)
def test_every_benchmark_runs_and_gives_its_memory_back(spec: Benchmark) -> None:
    device = backend()
    assert device.lacks(HERE, spec) == ""
    before = held_items()
    kernel = device.prepare(HERE, spec, (THERE,) if spec.peers else ())
    assert kernel.unit == spec.unit and kernel.work == spec.work
    run = measure(kernel, spec, NullWatch(), SHORT)
    assert run.reason == "" and run.result.n_blocks >= 2
    assert math.isfinite(run.result.value) and run.result.value > 0
    kernel.close()
    kernel.close()
    gc.collect()
    assert held_items() == before
    with pytest.raises(DeviceError, match="closed"):
        kernel.run_block(1)


def held_items() -> int:
    """Elements of all tensors that are alive."""
    return sum(o.numel() for o in gc.get_objects() if type(o) is torch.Tensor)


def test_what_the_backend_tells_of_itself() -> None:
    device = backend()
    assert device.version == torch.__version__ and device.wall_scale == 1.0
    assert device.telemetry.static(HERE).libs == {"tblock": "eager"}
    alone = torch_backend.TorchBackend("cpu", Sensors())
    alone.devices("n1", (0,))
    assert "no other GPU" in alone.lacks(HERE, spec_of("p2p"))
    assert "no kernel" in alone.lacks(HERE, spec_of("p2p", id="gather"))


def test_variables_that_steer_the_libraries_are_part_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    device = backend()
    before = device.telemetry.static(HERE).comparable()
    monkeypatch.setenv("CUBLAS_LOGDEST_DBG", "stdout")
    monkeypatch.setenv("PYTORCH_TUNABLEOP_FILENAME", "/home/anna/tuned.csv")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    assert device.telemetry.static(HERE).comparable() == before
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert device.telemetry.static(HERE).comparable() == before | {"lib:NVIDIA_TF32_OVERRIDE": "0"}


def test_versions_of_the_gpu_runtime_and_of_cublas_are_part_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch_backend, "cublas_version", lambda cuda: {"12.8": "12.8.4"}[cuda])
    device = torch_backend.TorchBackend("cuda", Sensors())
    assert device.version == f"{torch.__version__}, cuda 12.8, cublas 12.8.4"
    assert device.telemetry.static(HERE).libs == {"cuda": "12.8", "cublas": "12.8.4", "tblock": "graph"}
    monkeypatch.setattr(torch.version, "xpu", "20250101")
    device = torch_backend.TorchBackend("xpu", Sensors())
    assert device.telemetry.static(HERE).libs == {"xpu": "20250101", "tblock": "eager"}


@pytest.mark.parametrize(("attribute", "kind"), [("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")])
def test_a_build_for_a_gpu_is_a_backend_where_its_gpus_are(
    monkeypatch: pytest.MonkeyPatch, attribute: str, kind: str
) -> None:
    for name in ("cuda", "hip", "xpu"):
        monkeypatch.setattr(torch.version, name, "1.0" if name == attribute else None)
    monkeypatch.setitem(torch_backend.SENSORS, kind, Sensors)
    assert torch_backend.available() == ""
    assert torch_backend.open_backend(Setting("torch")).devices("n1", (1,)) == (THERE,)
    monkeypatch.setattr(Sensors, "devices", lambda *_: ())
    assert torch_backend.available() == f"PyTorch is built for {kind}, and no such GPU answers here"

    def refuse(*_: object) -> None:
        raise DeviceError("NVML cannot be used")

    monkeypatch.setattr(Sensors, "devices", refuse)
    assert torch_backend.available() == "NVML cannot be used"


def test_a_build_for_the_processor_is_no_backend() -> None:
    if torch_runtime.built_for():
        pytest.skip("the PyTorch here is built for a GPU")
    assert "processor alone" in torch_backend.available()
    with pytest.raises(MissingPackageError, match="processor alone"):
        torch_backend.open_backend(Setting("torch"))


# What the kernels compute.


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "tf32", "fp32", "fp64"])
def test_a_gemm_writes_the_product_into_three_outputs_in_turn(dtype: str) -> None:
    body = torch_kernels._gemm(site(spec_of(f"gemm_{dtype}")))
    found = [body.launch() for _ in range(4)]
    assert len({out.data_ptr() for out in found}) == 3 and found[3].data_ptr() == found[0].data_ptr()
    again = site(spec_of(f"gemm_{dtype}"))
    kind = torch_runtime.DTYPES[dtype]
    a, b = again.normal(64, 32, dtype=kind).double(), again.normal(32, 48, dtype=kind).double()
    tolerance = 64 * 4 * torch.finfo(kind).eps
    assert all((out.double() - a @ b).abs().max() < tolerance for out in found)


def test_memory_kernels_move_what_they_say() -> None:
    again = site(spec_of("hbm_triad"))
    a, b, c = (again.normal(16384) for _ in range(3))
    assert not torch.equal(a, b)
    found = torch_kernels._triad(site(spec_of("hbm_triad"))).launch()
    assert torch.allclose(found, b + inputs.TRIAD_SCALE * c, rtol=0, atol=1e-6)  # one rounding where it is fused
    again = site(spec_of("hbm_copy"))
    assert torch.equal(torch_kernels._copy(site(spec_of("hbm_copy"))).launch(), [again.normal(16384) for _ in "ab"][1])
    for name in ("pcie_h2d", "pcie_d2h", "p2p"):
        moved = torch_kernels.BUILDERS[name](site(spec_of(name), 2)).launch()
        assert torch.equal(moved.view(torch.float32), site(spec_of(name)).normal(16384))


def test_data_are_normal_and_depend_on_the_benchmark_alone() -> None:
    values = site(spec_of("hbm_copy")).normal(100_000)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1.0) < 0.02
    assert torch.equal(values, site(spec_of("hbm_copy", version=2)).normal(100_000))
    assert not torch.equal(values, site(spec_of("hbm_triad")).normal(100_000))


def test_float32_products_are_set_for_the_benchmark_and_set_back() -> None:
    device, before = backend(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for name, wanted in (("gemm_tf32", "high"), ("gemm_fp32", "highest"), ("gemm_bf16", "highest")):
            kernel = device.prepare(HERE, spec_of(name))
            assert torch.get_float32_matmul_precision() == wanted
            kernel.close()
            assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(DeviceError, match="shape"):
            device.prepare(HERE, spec_of("gemm_tf32", shape="8192"))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


# All-reduce: PyTorch's streams, run in any order that their rules allow.


class Lanes(torch_runtime.Processor):
    """Streams whose work is done later, in a random order (stream_double.py).

    PyTorch's rule for a copy between devices: it runs in the source's stream, starts after
    and ends before what the target's stream does.
    """

    def __init__(self, seed: int) -> None:
        self.streams = Streams(seed)
        self.inside: list[int] = []
        self.main = self.stream(torch.device("cpu"))

    def stream(self, device: Any) -> Any:  # noqa: ANN401 - PyTorch may be missing
        number = self.streams.new()
        return told(number=number, wait_stream=lambda other: self.streams.after(number, other.number))

    def present(self) -> Any:  # noqa: ANN401
        return self.main

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:  # noqa: ANN401
        self.inside.append(stream.number)
        yield
        self.inside.pop()


class Later(torch.overrides.TorchFunctionMode):
    """Puts copies and additions into the streams in place of doing them."""

    def __init__(self, lanes: Lanes) -> None:
        super().__init__()
        self.lanes = lanes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        options, streams = kwargs or {}, self.lanes.streams
        if func is torch.Tensor.copy_:
            target, source = self.lanes.inside
            streams.after(source, target)
            streams.put(source, lambda: args[0].numpy().__setitem__(..., args[1].numpy()))
            streams.after(target, source)
            return args[0]
        if func is torch.add:
            work = args[0].numpy(), args[1].numpy(), options["out"].numpy()
            streams.put(self.lanes.inside[-1], lambda: np.add(work[0], work[1], out=work[2]))
            return options["out"]
        return func(*args, **options)


def all_reduce(lanes: Lanes, gpus: int) -> tuple[float, Any]:
    """Its work, and the reduction itself, of 1 KiB."""
    body = torch_kernels.BUILDERS["allreduce"](site(spec_of("allreduce", shape="1KiB-ring"), gpus, lanes))
    return body.work, body.clock


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_an_all_reduce_sums_in_every_order_that_streams_allow(gpus: int) -> None:
    for seed in range(8):
        lanes = Lanes(seed)
        work, ring = all_reduce(lanes, gpus)
        assert work == 2 * (gpus - 1) * (1024 // (4 * gpus)) * 4
        draw = np.random.default_rng(seed)
        members = ring.members
        for member in members:  # every device its own data
            member.input.numpy()[...] = draw.standard_normal(member.input.shape)
            member.sum.numpy()[...] = np.nan
        wanted = np.sum([member.input.numpy() for member in members], axis=0)
        right: list[bool] = []

        def look(at: np.ndarray, wanted: np.ndarray = wanted, right: list[bool] = right) -> None:
            right.append(np.allclose(at, wanted, atol=1e-5))

        with Later(lanes):
            for _ in range(3):
                ring.launch()
                for member in members:
                    lanes.streams.put(member.receive.number, functools.partial(look, member.sum.numpy()))
        lanes.streams.run()
        assert right == [True] * 3 * gpus


def test_moves_of_one_step_do_not_wait_for_each_other() -> None:
    lanes = Lanes(0)
    _, ring = all_reduce(lanes, 4)
    with Later(lanes):
        ring.launch()
    assert lanes.streams.first_work() == {member.send.number for member in ring.members}


# Errors.


@pytest.mark.parametrize(
    ("said", "flag", "told"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB.\nadvice", "", "out of memory"),
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might", "xid", "illegal memory"),
        ("HIP error: unspecified launch failure", "xid", "unspecified"),
        ("CUDA error: uncorrectable ECC error encountered", "ecc", "ECC"),
        ("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "xid", "LOST"),
    ],
)
def test_errors_of_the_library_become_one_line(
    monkeypatch: pytest.MonkeyPatch, said: str, flag: str, told: str
) -> None:
    def fail() -> None:
        raise RuntimeError(said)

    for when in ("prepare", "launch"):
        builder = (lambda _: fail()) if when == "prepare" else (lambda _: torch_kernels.KernelBody(fail))
        monkeypatch.setitem(torch_kernels.BUILDERS, "hbm_copy", builder)
        with pytest.raises(DeviceError, match=told) as caught:
            backend().prepare(HERE, spec_of("hbm_copy")).run_block(1)
        assert caught.value.flag == flag
        assert str(caught.value).startswith("hbm_copy: ") and "\n" not in str(caught.value)


def test_memory_of_a_kernel_that_could_not_be_built_is_free_when_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = held_items()
    seen: list[int] = []

    def build(place: Any) -> None:  # noqa: ANN401 - PyTorch may be missing
        kept = place.normal(1_000_000)
        raise RuntimeError(f"out of memory after {kept.numel()}")

    monkeypatch.setitem(torch_kernels.BUILDERS, "hbm_copy", build)
    monkeypatch.setattr(torch_runtime.Processor, "free", lambda self: seen.append(held_items()))
    with pytest.raises(DeviceError, match="out of memory after 1000000"):
        backend().prepare(HERE, spec_of("hbm_copy"))
    assert seen == [held]


def test_a_benchmark_that_nobody_knows_is_refused() -> None:
    with pytest.raises(DeviceError, match="no kernel for gather"):
        backend().prepare(HERE, spec_of("hbm_copy", id="gather"))
    with pytest.raises(DeviceError, match="p2p needs two devices or more and got 1"):
        backend().prepare(HERE, spec_of("p2p"))


def test_a_runtime_that_does_not_start_is_told_in_one_line(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise DEFERRED("CUDA call failed lazily at initialization with error: device >= 0\n\nCUDA call was invoked at:")

    monkeypatch.setattr(cuda, "device_count", broken)
    made = torch_backend.TorchBackend("cuda", Sensors())
    for ask in (made.lacks, made.prepare):
        with pytest.raises(DeviceError) as caught:
            ask(HERE, spec_of("hbm_copy"))
        assert str(caught.value) == "CPU-0: CUDA call failed lazily at initialization with error: device >= 0"


def test_closing_on_a_dead_device_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = backend().prepare(HERE, spec_of("hbm_copy"))
    kernel.run_block(2)

    def gone(*_: object) -> None:
        raise RuntimeError("CUDA error: the device is gone")

    for n in (2, 3):  # the block in flight, and one of another size behind it
        monkeypatch.setattr(torch_runtime.Processor, "wait", gone)
        with pytest.raises(DeviceError, match="hbm_copy: CUDA error: the device is gone"):
            kernel.run_block(n)
    monkeypatch.setattr(torch_runtime.Processor, "free", gone)
    kernel.close()


# Which device is which, and the accelerator's own calls.


def test_devices_are_found_by_address_by_uuid_or_by_order() -> None:
    a = DeviceInfo("GPU-aa-1", "nvidia", "X", 0, "00000000:3B:00.0")
    b = DeviceInfo("GPU-bb-2", "nvidia", "X", 1, "00000000:D8:00.0")
    by_address = [
        told(pci_domain_id=0, pci_bus_id=0xD8, pci_device_id=0, uuid="x"),
        told(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0, uuid="y"),
    ]
    assert [torch_runtime.find(d, (a, b), by_address) for d in (a, b)] == [1, 0]
    assert torch_runtime.find(b, (a, b), [told(uuid="BB-2"), told(uuid="aa-1")]) == 0
    assert [torch_runtime.find(d, (b, a), [told(), told()]) for d in (a, b)] == [0, 1]
    assert torch_runtime.find(b, (a, b), [told()]) == -1


class Cuda:
    """torch.cuda as far as it is used, writing down what happens."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.log: list[str] = []
        self.capability = capability
        self.Event = self._event
        self.Stream = lambda device=None: told(wait_stream=lambda other: self.log.append("wait"))
        self.CUDAGraph = lambda: told(replay=lambda: self.log.append("replay"))

    def _event(self, enable_timing: bool) -> types.SimpleNamespace:
        assert enable_timing
        stamp = len(self.log)
        return told(
            record=lambda: self.log.append("record"),
            synchronize=lambda: self.log.append("synchronize"),
            elapsed_time=lambda end: 250.0,
            stamp=stamp,
        )

    def device_count(self) -> int:
        return 2

    def get_device_properties(self, index: int) -> types.SimpleNamespace:
        return told(uuid=("aa-1", "bb-2")[index])

    def get_device_capability(self, device: object) -> tuple[int, int]:
        return self.capability

    def current_stream(self) -> object:
        return "main"

    @contextlib.contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        self.log.append("enter side")
        yield
        self.log.append("leave side")

    @contextlib.contextmanager
    def graph(self, graph: object, stream: object) -> Iterator[None]:
        self.log.append("capture")
        yield
        self.log.append("captured")

    def synchronize(self) -> None:
        self.log.append("idle")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    module = Cuda()
    monkeypatch.setattr(torch, "cuda", module)
    return module


def test_a_captured_step_is_warmed_up_aside_and_then_only_replayed(cuda: Cuda) -> None:
    runtime = torch_runtime.Accelerator("cuda", ())
    replay = runtime.captured(lambda: cuda.log.append("step"))
    warm = ["wait", "enter side", "step", "step", "step", "leave side", "idle"]
    assert cuda.log == [*warm, "capture", "step", "captured", "idle"]
    cuda.log.clear()
    replay()
    assert cuda.log == ["replay"]
    mark = runtime.mark()
    runtime.wait(mark)
    assert cuda.log == ["replay", "record", "synchronize"] and runtime.elapsed_s(mark, mark) == 0.25


def test_the_device_is_the_one_that_the_worker_shows(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    a = DeviceInfo("GPU-aa-1", "nvidia", "X", 0)
    b = DeviceInfo("GPU-bb-2", "nvidia", "X", 1)
    runtime = torch_runtime.Accelerator("cuda", (a, b))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb-2,GPU-aa-1")
    assert [runtime.device(d).index for d in (a, b)] == [1, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert [runtime.device(d).index for d in (a, b)] == [0, 1]
    with pytest.raises(DeviceError, match="sees 2 devices and not GPU-cc-3"):
        torch_runtime.Accelerator("cuda", (a,)).device(DeviceInfo("GPU-cc-3", "nvidia", "X", 2))


def test_formats_that_a_card_lacks_are_named(cuda: Cuda) -> None:
    runtime, place = torch_runtime.Accelerator("cuda", ()), torch.device("cuda", 0)
    assert [runtime.lacks(place, d) for d in ("bf16", "fp16", "tf32", "fp32", "fp64", "bytes")] == [""] * 6
    cuda.capability = (7, 5)
    assert "8.0 (this is 7.5)" in runtime.lacks(place, "bf16") and runtime.lacks(place, "fp16") == ""
    assert "tf32" in torch_runtime.Accelerator("rocm", ()).lacks(place, "tf32")


def test_intel_cards_are_asked_for_as_cards_in_pci_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "FLAT")  # a site's own word stands
    monkeypatch.delenv("ZE_ENABLE_PCI_ID_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(torch, "xpu", told(get_device_properties=lambda device: told(has_fp64=False)))
    runtime = torch_runtime.Accelerator("xpu", ())
    assert os.environ["ZE_FLAT_DEVICE_HIERARCHY"] == "FLAT" and os.environ["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] == "1"
    assert runtime.graphs is False
    assert "fp64" in runtime.lacks(torch.device("xpu", 0), "fp64")
    assert "tf32" in runtime.lacks(torch.device("xpu", 0), "tf32")
