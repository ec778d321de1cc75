# SPDX-License-Identifier: MIT
"""The benchmarks as PyTorch work: for each id what is allocated and what one launch does.

To add one, write a function that gives a `Body` and name it in `BUILDERS`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from slurm_pal.profiling.node import inputs, ring
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.library_kernel import Body, LibraryKernel, all_reduce
from slurm_pal.profiling.node.torch_block import Step
from slurm_pal.profiling.node.torch_runtime import DTYPES, ERRORS, Foreign, Runtime

_PRECISION = {"tf32": "high", "fp32": "highest"}  # of float32 matrix products


class Site(NamedTuple):
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
        """Of the size that the benchmark's shape tells."""
        return self.normal(inputs.items(self.spec.shape))


def _gemm(site: Site) -> Body:
    m, n, k = inputs.matrix(site.spec.shape)
    dtype = DTYPES[site.spec.dtype]
    a, b = site.normal(m, k, dtype=dtype), site.normal(k, n, dtype=dtype)
    outputs = [torch.empty(m, n, device=site.devices[0], dtype=dtype) for _ in range(inputs.OUTPUTS)]
    turn = itertools.cycle(outputs)
    return Body(lambda: torch.mm(a, b, out=next(turn)))


def _tblock(site: Site) -> Body:
    step = Step(inputs.block(site.spec.shape), DTYPES[site.spec.dtype], site.devices[0], site.generator)
    return Body(site.runtime.captured(step) if site.runtime.graphs else step)


def _triad(site: Site) -> Body:
    a, b, c = (site.array() for _ in range(3))
    return Body(lambda: torch.add(b, c, alpha=inputs.TRIAD_SCALE, out=a))


def _copy(site: Site) -> Body:
    a, b = site.array(), site.array()
    return Body(lambda: a.copy_(b))


def _host(site: Site) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes in device memory and in page-locked host memory."""
    device = site.array().view(torch.uint8)
    host = site.runtime.pinned(device.numel())
    host.copy_(device)
    return device, host


def _h2d(site: Site) -> Body:
    device, host = _host(site)
    return Body(lambda: device.copy_(host, non_blocking=True))


def _d2h(site: Site) -> Body:
    device, host = _host(site)
    return Body(lambda: host.copy_(device, non_blocking=True))


def _launch_latency(site: Site) -> Body:
    """The smallest kernel that PyTorch can be made to start: one element, one operation."""
    return Body(site.normal(1).abs_)


def _p2p(site: Site) -> Body:
    source = site.array()
    target = torch.empty_like(source, device=site.devices[1])
    return Body(lambda: target.copy_(source, non_blocking=True))


def _allreduce(site: Site) -> Body:
    return all_reduce(site, Lanes(site.runtime))


BUILDERS: dict[str, Callable[[Site], Body]] = {
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


class Lanes:
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
        # PyTorch queues it in the source's present stream, with a barrier to the target's around it.
        with self._runtime.on(receive), self._runtime.on(send):
            target.copy_(source, non_blocking=True)

    def add(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, lane: Foreign) -> None:
        with self._runtime.on(lane):
            torch.add(a, b, out=out)


@contextlib.contextmanager
def _site(runtime: Runtime, spec: Benchmark, devices: tuple[torch.device, ...]) -> Iterator[Site]:
    """Float32 products in TF32 or not, whatever the process had: set back at the end, and memory freed."""
    before = torch.get_float32_matmul_precision()
    try:
        runtime.use(devices[0])
        torch.set_float32_matmul_precision(_PRECISION.get(spec.dtype, "highest"))
        yield Site(runtime, spec, devices, torch.Generator(device=devices[0]).manual_seed(inputs.seed(spec.id)))
    finally:
        torch.set_float32_matmul_precision(before)
        runtime.free()


def kernel(runtime: Runtime, spec: Benchmark, devices: tuple[torch.device, ...]) -> LibraryKernel:
    """One benchmark on the first of `devices`, the others being its peers. Raises DeviceError."""
    return LibraryKernel(spec, BUILDERS, _site(runtime, spec, devices), ERRORS)
