# SPDX-License-Identifier: MIT
"""The benchmarks as PyTorch work: for each id what is allocated and what one launch does.

To add one, write a function that gives a `KernelBody` and name it in `BUILDERS`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from slurm_pal.profiling.node import inputs, ring
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.library_kernel import KernelBody, LibraryKernel, all_reduce
from slurm_pal.profiling.node.torch_block import BlockStep
from slurm_pal.profiling.node.torch_runtime import DTYPES, ERRORS, Foreign, Runtime

_PRECISION = {"tf32": "high", "fp32": "highest"}  # of float32 matrix products


class TorchWorkbench(NamedTuple):
    """What a kernel is built from."""

    runtime: Runtime
    spec: Benchmark
    devices: tuple[torch.device, ...]  # its own first, then the peers
    generator: torch.Generator  # on its own device

    @property
    def clock(self) -> Runtime:
        return self.runtime

    def normal(self, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """N(0,1) data on its own device."""
        return torch.randn(size, generator=self.generator, device=self.devices[0], dtype=dtype)

    def array(self) -> torch.Tensor:
        """Data of the size that the benchmark's shape gives."""
        return self.normal(inputs.items(self.spec.shape))


def _gemm(bench: TorchWorkbench) -> KernelBody:
    m, n, k = inputs.matrix(bench.spec.shape)
    dtype = DTYPES[bench.spec.dtype]
    a, b = bench.normal(m, k, dtype=dtype), bench.normal(k, n, dtype=dtype)
    outputs = [torch.empty(m, n, device=bench.devices[0], dtype=dtype) for _ in range(inputs.OUTPUTS)]
    turn = itertools.cycle(outputs)
    return KernelBody(lambda: torch.mm(a, b, out=next(turn)))


def _tblock(bench: TorchWorkbench) -> KernelBody:
    step = BlockStep(inputs.block(bench.spec.shape), DTYPES[bench.spec.dtype], bench.devices[0], bench.generator)
    return KernelBody(bench.runtime.captured(step) if bench.runtime.graphs else step)


def _triad(bench: TorchWorkbench) -> KernelBody:
    a, b, c = (bench.array() for _ in range(3))
    return KernelBody(lambda: torch.add(b, c, alpha=inputs.TRIAD_SCALE, out=a))


def _copy(bench: TorchWorkbench) -> KernelBody:
    a, b = bench.array(), bench.array()
    return KernelBody(lambda: a.copy_(b))


def _host(bench: TorchWorkbench) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes in device memory and in page-locked host memory."""
    device = bench.array().view(torch.uint8)
    host = bench.runtime.pinned(device.numel())
    host.copy_(device)
    return device, host


def _h2d(bench: TorchWorkbench) -> KernelBody:
    device, host = _host(bench)
    return KernelBody(lambda: device.copy_(host, non_blocking=True))


def _d2h(bench: TorchWorkbench) -> KernelBody:
    device, host = _host(bench)
    return KernelBody(lambda: host.copy_(device, non_blocking=True))


def _launch_latency(bench: TorchWorkbench) -> KernelBody:
    """The smallest kernel that PyTorch can be made to start: one element, one operation."""
    return KernelBody(bench.normal(1).abs_)


def _p2p(bench: TorchWorkbench) -> KernelBody:
    source = bench.array()
    target = torch.empty_like(source, device=bench.devices[1])
    return KernelBody(lambda: target.copy_(source, non_blocking=True))


def _allreduce(bench: TorchWorkbench) -> KernelBody:
    return all_reduce(bench, TorchLanes(bench.runtime))


BUILDERS: dict[str, Callable[[TorchWorkbench], KernelBody]] = {
    "gemm_bf16": _gemm,
    "gemm_fp16": _gemm,
    "gemm_tf32": _gemm,
    "gemm_fp32": _gemm,
    "gemm_fp64": _gemm,
    "tblock": _tblock,
    "tblock_fp16": _tblock,
    "hbm_triad": _triad,
    "hbm_copy": _copy,
    "pcie_h2d": _h2d,
    "pcie_d2h": _d2h,
    "launch_latency": _launch_latency,
    "p2p": _p2p,
    "allreduce": _allreduce,
}


class TorchLanes:
    """PyTorch's streams for an all-reduce (profiling/node/ring.py)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.main = runtime.present()

    def member(self, first: torch.Tensor, device: torch.device) -> ring.Member:
        part = first.to(device, copy=True)
        stream = self._runtime.stream
        return ring.Member(part, torch.empty_like(part), torch.empty_like(part[0]), stream(device), stream(device))

    def after(self, later: Foreign, earlier: Foreign) -> None:
        later.wait_stream(earlier)

    def copy(self, target: torch.Tensor, source: torch.Tensor, send: Foreign, receive: Foreign) -> None:
        # PyTorch queues it in the source's current stream, with a barrier to the target's around it.
        with self._runtime.on(receive), self._runtime.on(send):
            target.copy_(source, non_blocking=True)

    def add(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, lane: Foreign) -> None:
        with self._runtime.on(lane):
            torch.add(a, b, out=out)


@contextlib.contextmanager
def _bench(runtime: Runtime, spec: Benchmark, devices: tuple[torch.device, ...]) -> Iterator[TorchWorkbench]:
    """Set whether float32 products are in TF32; at the end restore what the process had, and free memory."""
    before = torch.get_float32_matmul_precision()
    try:
        runtime.use(devices[0])
        torch.set_float32_matmul_precision(_PRECISION.get(spec.dtype, "highest"))
        yield TorchWorkbench(
            runtime, spec, devices, torch.Generator(device=devices[0]).manual_seed(inputs.seed(spec.id))
        )
    finally:
        torch.set_float32_matmul_precision(before)
        runtime.free()


def kernel(runtime: Runtime, spec: Benchmark, devices: tuple[torch.device, ...]) -> LibraryKernel:
    """One benchmark on the first of `devices`, the others being its peers. Raises DeviceError."""
    return LibraryKernel(spec, BUILDERS, _bench(runtime, spec, devices), ERRORS)
