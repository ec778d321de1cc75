"""The benchmarks as PyTorch work: for each id what is allocated and what one launch does.

To add one, write a function that gives a `Body` and name it in `BUILDERS`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from slurm_pal.profiling import inputs, ring
from slurm_pal.profiling.benchmarks import Benchmark
from slurm_pal.profiling.device_errors import device_error
from slurm_pal.profiling.devices import DeviceError
from slurm_pal.profiling.in_flight import Clock, InFlight
from slurm_pal.profiling.torch_block import Step
from slurm_pal.profiling.torch_runtime import DTYPES, Foreign, Runtime

OUTPUTS = 3  # matrices that a GEMM writes in turn
SCALE = 0.4  # s of a = b + s * c
_PRECISION = {"tf32": "high", "fp32": "highest"}  # of float32 matrix products


class Site(NamedTuple):
    """What a kernel is built from."""

    runtime: Runtime
    spec: Benchmark
    devices: tuple[torch.device, ...]  # its own first, then the peers
    generator: torch.Generator  # on its own device

    def normal(self, *size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """N(0,1) data on its own device."""
        return torch.randn(size, generator=self.generator, device=self.devices[0], dtype=dtype)


class Body(NamedTuple):
    """One launch, and what it does."""

    launch: Callable[[], object]
    work: float  # FLOP, steps, bytes or launches per launch
    clock: Clock[Foreign] | None = None  # where it is not the runtime's own


def _gemm(site: Site) -> Body:
    m, n, k = inputs.matrix(site.spec.shape)
    dtype = DTYPES[site.spec.dtype]
    a, b = site.normal(m, k, dtype=dtype), site.normal(k, n, dtype=dtype)
    outputs = [torch.empty(m, n, device=site.devices[0], dtype=dtype) for _ in range(OUTPUTS)]
    turn = itertools.cycle(outputs)
    return Body(lambda: torch.mm(a, b, out=next(turn)), 2.0 * m * n * k)


def _tblock(site: Site) -> Body:
    step = Step(inputs.block(site.spec.shape), DTYPES[site.spec.dtype], site.devices[0], site.generator)
    return Body(site.runtime.captured(step) if site.runtime.graphs else step, 1.0)


def _triad(site: Site) -> Body:
    size = inputs.array_bytes(site.spec.shape)
    a, b, c = (site.normal(size // 4) for _ in range(3))
    return Body(lambda: torch.add(b, c, alpha=SCALE, out=a), 3.0 * size)


def _copy(site: Site) -> Body:
    size = inputs.array_bytes(site.spec.shape)
    a, b = site.normal(size // 4), site.normal(size // 4)
    return Body(lambda: a.copy_(b), 2.0 * size)


def _host(site: Site) -> tuple[torch.Tensor, torch.Tensor]:
    """The same bytes in device memory and in page-locked host memory."""
    device = site.normal(inputs.array_bytes(site.spec.shape) // 4).view(torch.uint8)
    host = site.runtime.pinned(device.numel())
    host.copy_(device)
    return device, host


def _h2d(site: Site) -> Body:
    device, host = _host(site)
    return Body(lambda: device.copy_(host, non_blocking=True), float(host.numel()))


def _d2h(site: Site) -> Body:
    device, host = _host(site)
    return Body(lambda: host.copy_(device, non_blocking=True), float(host.numel()))


def _launch_latency(site: Site) -> Body:
    """The smallest kernel that PyTorch can be made to start: one element, one operation."""
    one = site.normal(1)
    return Body(one.abs_, 1.0)


def _p2p(site: Site) -> Body:
    if len(site.devices) < 2:
        raise DeviceError(f"{site.spec.id} needs two devices and got {len(site.devices)}")
    source = site.normal(inputs.array_bytes(site.spec.shape) // 4)
    target = torch.empty_like(source, device=site.devices[1])
    return Body(lambda: target.copy_(source, non_blocking=True), 4.0 * source.numel())


def _allreduce(site: Site) -> Body:
    if len(site.devices) < 2:
        raise DeviceError(f"{site.spec.id} needs two devices or more and got {len(site.devices)}")
    made = Ring(site)
    return Body(made.reduction.launch, made.work, made)


BUILDERS: dict[str, Callable[[Site], Body]] = {
    "gemm_bf16": _gemm,
    "gemm_fp16": _gemm,
    "gemm_tf32": _gemm,
    "gemm_fp32": _gemm,
    "gemm_fp64": _gemm,
    "tblock": _tblock,
    "hbm_triad": _triad,
    "hbm_copy": _copy,
    "pcie_h2d": _h2d,
    "pcie_d2h": _d2h,
    "launch_latency": _launch_latency,
    "p2p": _p2p,
    "allreduce": _allreduce,
}


class Ring:
    """All-reduce over the visible devices by copies and adds of one process (profiling/ring.py).

    `work` is what passes over each link per launch, 2 (n - 1) / n times the array of `shape`, so that
    a value is the bus bandwidth.
    """

    def __init__(self, site: Site) -> None:
        n = len(site.devices)
        items = inputs.array_bytes(site.spec.shape) // (4 * n)
        first = site.normal(n, items)
        self.work = ring.link_bytes(4 * items, n)
        self._runtime = site.runtime
        self.reduction = ring.AllReduce([self._member(first, device) for device in site.devices], self)
        for stream in self.reduction.streams():
            stream.wait_stream(site.runtime.present())

    def _member(self, first: torch.Tensor, device: torch.device) -> ring.Member:
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

    def mark(self) -> Foreign:
        """A mark in the first device's own stream, behind all streams of the ring."""
        present = self._runtime.present()
        for stream in self.reduction.streams():
            present.wait_stream(stream)
        return self._runtime.mark()

    def wait(self, mark: Foreign) -> None:
        self._runtime.wait(mark)

    def elapsed_s(self, start: Foreign, end: Foreign) -> float:
        return self._runtime.elapsed_s(start, end)


@contextlib.contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Float32 products in TF32 or not, whatever the process had; set back at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(_PRECISION.get(dtype, "highest"))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TorchKernel:
    """One benchmark on one device. Raises DeviceError where it cannot be built."""

    def __init__(self, runtime: Runtime, spec: Benchmark, devices: tuple[torch.device, ...]) -> None:
        self.unit = spec.unit
        self._id = spec.id
        self._runtime = runtime
        self._until_close = contextlib.ExitStack()
        self._flight: InFlight[Foreign] | None = None
        try:
            runtime.use(devices[0])
            self._until_close.enter_context(_precision(spec.dtype))
            generator = torch.Generator(device=devices[0]).manual_seed(inputs.seed(spec.id))
            body = BUILDERS[spec.id](Site(runtime, spec, devices, generator))
        except (RuntimeError, DeviceError) as error:
            failure = error if isinstance(error, DeviceError) else device_error(error, spec.id)
        else:
            self.work = body.work
            self._flight = InFlight(body.launch, body.clock or runtime)
            return
        # Only here are the frames gone that held what had been allocated.
        self.close()
        raise failure

    def run_block(self, n: int) -> float:
        """Launch `n` times; seconds of device time, one block behind. Raises DeviceError."""
        if self._flight is None:
            raise DeviceError(f"{self._id}: the kernel is closed")
        try:
            return self._flight.run_block(n)
        except RuntimeError as error:
            raise device_error(error, self._id) from None

    def close(self) -> None:
        """Wait, free the memory and set PyTorch's switches back. A device that is gone frees nothing."""
        flight, self._flight = self._flight, None
        with contextlib.suppress(RuntimeError):
            if flight is not None:
                flight.drain()
        del flight
        self._until_close.close()
        with contextlib.suppress(RuntimeError):
            self._runtime.free()
