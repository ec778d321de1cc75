# SPDX-License-Identifier: MIT
"""What the kernels of all libraries share: blocks in flight, sizes and seeds, the ring, errors, versions."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.node import inputs, libraries, ring, torch_backend, visible
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, fitted
from slurm_pal.profiling.node.device_errors import device_error
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo
from slurm_pal.profiling.node.in_flight import InFlight


class Device:
    """Work is done when it is waited for; each launch takes a second."""

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.passed_s = 0.0
        self.idle = False

    def launch(self) -> None:
        self.queued_s += 1.0

    def mark(self) -> float:
        return self.queued_s

    def wait(self, mark: float) -> None:
        self.passed_s = max(self.passed_s, mark)
        self.idle = self.idle or self.passed_s == self.queued_s

    def elapsed_s(self, start: float, end: float) -> float:
        assert end <= self.passed_s, "the time of work that was not waited for"
        return end - start


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_each_block_has_its_own_time_and_one_more_is_always_queued(sizes: list[int]) -> None:
    device = Device()
    flight = InFlight(device.launch, device)
    for n in sizes:
        assert flight.run_block(n) == n
        assert device.queued_s - device.passed_s == n
    flight.drain()
    assert device.passed_s == device.queued_s
    flight.drain()


def test_the_device_is_never_idle_between_blocks_of_one_size() -> None:
    device = Device()
    flight = InFlight(device.launch, device)
    for _ in range(10):
        flight.run_block(3)
    assert not device.idle and device.queued_s == 11 * 3  # one block more than was asked for


def test_a_block_that_failed_is_not_taken_for_one_in_flight() -> None:
    device = Device()
    launch: list[Callable[[], None]] = [device.launch]
    flight = InFlight(lambda: launch[0](), device)
    flight.run_block(2)

    def fail() -> None:
        raise RuntimeError("lost")

    launch[0] = fail
    with pytest.raises(RuntimeError):
        flight.run_block(2)
    launch[0] = device.launch
    assert flight.run_block(2) == 2


def test_every_shape_of_the_table_can_be_read() -> None:
    for spec in (*BENCHMARKS, *(fitted(b, 2 * 80 * 10**9) for b in BENCHMARKS)):
        if spec.id.startswith("gemm"):
            m, n, k = inputs.matrix(spec.shape)
            assert 2.0 * m * n * k == spec.work
        elif spec.id.startswith("tblock"):
            assert inputs.block(spec.shape) == (2048, 2048, 4) and inputs.block(spec.shape).heads == 16
        elif spec.id != "launch_latency":
            arrays = {"hbm_triad": 3, "hbm_copy": 2}.get(spec.id, 1)
            assert arrays * inputs.array_bytes(spec.shape) == spec.work


@pytest.mark.parametrize("shape", ["", "8192", "8192x8192", "1GB", "x1GiB", "d2048-seq2048"])
def test_a_shape_that_cannot_be_read_is_named(shape: str) -> None:
    for read in (inputs.matrix, inputs.block, inputs.array_bytes):
        with pytest.raises(DeviceError, match=f"shape '{shape}' cannot be read"):
            read(shape)


def test_seeds_stay_what_they_are() -> None:
    assert inputs.seed("gemm_bf16") == 5658244649496853180  # records of all releases compare
    seeds = {inputs.seed(b.id) for b in BENCHMARKS}
    assert len(seeds) == len(BENCHMARKS) and all(0 <= s < 2**63 for s in seeds)


class Eager:
    """Lanes that do at once what is queued, and write down what waits for what."""

    main = "main"

    def __init__(self) -> None:
        self.waits: list[tuple[object, object]] = []

    def member(self, first: object, device: object) -> ring.Member:
        raise NotImplementedError

    def after(self, later: object, earlier: object) -> None:
        self.waits.append((later, earlier))

    def copy(self, target: list[int], source: list[int], send: object, receive: object) -> None:
        target[:] = source

    def add(self, a: list[int], b: list[int], out: list[int], lane: object) -> None:
        out[:] = [x + y for x, y in zip(a, b, strict=True)]


@given(st.integers(2, 9), st.randoms(use_true_random=False))
def test_the_ring_leaves_the_sum_everywhere(n: int, draw: object) -> None:
    data = [[[draw.randrange(1000)] for _ in range(n)] for _ in range(n)]  # member, chunk, item
    members = [ring.Member(part, [[-1] for _ in range(n)], [-1], f"s{i}", f"r{i}") for i, part in enumerate(data)]
    lanes, device = Eager(), Device()
    reduction = ring.AllReduce(members, lanes, device)
    streams = {f"{way}{i}" for i in range(n) for way in "sr"}
    assert set(lanes.waits) == {(stream, "main") for stream in streams}
    for _ in range(2):
        reduction.launch()
        for member in members:
            assert member.sum == [[sum(part[chunk][0] for part in data)] for chunk in range(n)]
    lanes.waits.clear()
    device.launch()
    assert reduction.mark() == 1.0 and set(lanes.waits) == {("main", stream) for stream in streams}
    reduction.wait(1.0)
    assert reduction.elapsed_s(0.0, 1.0) == 1.0


@given(st.integers(2, 16))
def test_every_link_carries_one_chunk_per_step(n: int) -> None:
    steps = ring.steps(n)
    assert len(steps) == 2 * (n - 1)
    for moves in steps:
        assert sorted(m.source for m in moves) == list(range(n))
        assert all(m.target == (m.source + 1) % n for m in moves)
        assert len({m.chunk for m in moves}) == n
    assert ring.link_bytes(10, n) == 10 * len(steps)


def test_an_error_is_its_first_line() -> None:
    error = device_error(RuntimeError("CUDA error: device-side assert\nfor debugging\nconsider"), "tblock")
    assert str(error) == "tblock: CUDA error: device-side assert" and error.flag == ""
    assert str(device_error(MemoryError(), "tblock")) == "tblock: MemoryError"


def test_the_version_of_a_loaded_cublas_is_asked_of_itself(tmp_path: Path) -> None:
    source = tmp_path / "cublas.c"
    source.write_text("int cublasGetProperty(int kind, int *value) { *value = (int[]){77, 8, 4}[kind]; return 0; }\n")
    path = tmp_path / "libcublas.so.77"
    made = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", os.fspath(path), os.fspath(source)]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    assert libraries.cublas_version("77.1") == ""  # not loaded: nothing is searched for
    kept = ctypes.CDLL(os.fspath(path))
    assert libraries.cublas_version("77.1") == "77.8.4"
    assert libraries.cublas_version("78.0") == "" and kept is not None
    assert [libraries.cuda_version(n) for n in (12080, 13000, 11020)] == ["12.8", "13.0", "11.2"]


def test_the_place_that_a_worker_shows_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceInfo("GPU-b", "nvidia", "X", 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert visible.shown(device) == 1
    assert visible.shown(device._replace(uuid="GPU-c")) is None
    assert visible.shown(device._replace(vendor="amd")) is None
    assert visible.pci_address("00000000:3B:00.0") == visible.pci_address("0000:3b:00") == (0, 0x3B, 0)
    assert visible.pci_address("") is None and visible.pci_address("card0") is None


def test_a_missing_or_broken_pytorch_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend.importlib.util, "find_spec", lambda name: None)
    assert torch_backend.available() == "PyTorch is not installed"
    with pytest.raises(MissingPackageError, match="backend torch cannot be used: PyTorch is not installed"):
        torch_backend.open_backend(Setting("torch"))
    monkeypatch.setattr(torch_backend.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "slurm_pal.profiling.node.torch_runtime", None)  # importing it fails
    assert torch_backend.available().startswith("PyTorch cannot be imported: ")
    monkeypatch.delitem(sys.modules, "slurm_pal.profiling.node.torch_runtime")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # a folder of that name, say
    assert torch_backend.available().startswith("PyTorch cannot be imported: module 'torch' has no attribute")
