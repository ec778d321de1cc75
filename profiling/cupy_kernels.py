"""The benchmarks as CuPy work: for each id what is allocated and what one launch does.

Matrix products call cuBLAS (cublasGemmEx) with data and compute type named, so that nothing
depends on CuPy's settings and bfloat16, which CuPy's arrays do not know, is there too.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import cupy
import cupyx

from slurm_pal.profiling import inputs, ring
from slurm_pal.profiling.benchmarks import Benchmark
from slurm_pal.profiling.device_errors import device_error
from slurm_pal.profiling.devices import DeviceError
from slurm_pal.profiling.in_flight import Clock, InFlight

Foreign: TypeAlias = Any
"""CuPy's own: an array, a stream, an event."""

ERRORS = (RuntimeError, MemoryError, ImportError)  # CuPy's own errors derive from these; a missing library is the last
OUTPUTS = 3  # matrices that a GEMM writes in turn
SCALE = 0.4  # s of a = b + s * c
_NO_TRANSPOSE, _ANY_ALGORITHM = 0, -1  # CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT


class _Format(NamedTuple):
    """A number format in cuBLAS's terms (cudaDataType_t, cublasComputeType_t)."""

    data: int
    compute: int
    stored: str  # CuPy's type of the same size
    scalar: type[ctypes.c_float] | type[ctypes.c_double]  # of alpha and beta


_FORMATS = {
    "bf16": _Format(14, 68, "uint16", ctypes.c_float),  # CUDA_R_16BF, CUBLAS_COMPUTE_32F
    "fp16": _Format(2, 68, "float16", ctypes.c_float),
    "tf32": _Format(0, 77, "float32", ctypes.c_float),  # CUBLAS_COMPUTE_32F_FAST_TF32
    "fp32": _Format(0, 68, "float32", ctypes.c_float),
    "fp64": _Format(1, 70, "float64", ctypes.c_double),  # CUBLAS_COMPUTE_64F
}


class EventClock:
    """Marks are CUDA events in one stream."""

    def __init__(self, stream: Foreign) -> None:
        self._stream = stream

    def mark(self) -> Foreign:
        event = cupy.cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, mark: Foreign) -> None:
        mark.synchronize()

    def elapsed_s(self, start: Foreign, end: Foreign) -> float:
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3


class Site(NamedTuple):
    """What a kernel is built from. Device and stream are the present ones while it is built and runs."""

    spec: Benchmark
    devices: Sequence[int]  # CuPy's numbers, its own first
    stream: Foreign
    generator: Foreign

    def normal(self, *size: int, dtype: str = "float32") -> Foreign:
        """N(0,1) data on its own device; bfloat16 as its 16 bits."""
        drawn = self.generator.standard_normal(size, dtype="float64" if dtype == "float64" else "float32")
        if dtype == "uint16":
            return ((drawn.view("uint32") + 0x8000) >> 16).astype("uint16")  # rounded to the nearest
        return drawn.astype(dtype, copy=False)


class Body(NamedTuple):
    """One launch, and what it does."""

    launch: Callable[[], object]
    work: float  # FLOP, bytes or launches per launch
    clock: Clock[Foreign] | None = None  # where it is not that of the site's stream


def _gemm(site: Site) -> Body:
    from cupy.cuda import cublas  # loads the library

    m, n, k = inputs.matrix(site.spec.shape)
    kind = _FORMATS[site.spec.dtype]
    a, b = site.normal(m, k, dtype=kind.stored), site.normal(k, n, dtype=kind.stored)
    turn = itertools.cycle([cupy.empty((m, n), dtype=kind.stored) for _ in range(OUTPUTS)])
    one, zero = kind.scalar(1.0), kind.scalar(0.0)
    handle = cupy.cuda.device.get_cublas_handle()

    def launch() -> Foreign:
        # cuBLAS counts by columns: row by row it is C' = B' A'.
        out = next(turn)
        cublas.gemmEx(
            *(handle, _NO_TRANSPOSE, _NO_TRANSPOSE, n, m, k, ctypes.addressof(one)),
            *(b.data.ptr, kind.data, n, a.data.ptr, kind.data, k),
            *(ctypes.addressof(zero), out.data.ptr, kind.data, n, kind.compute, _ANY_ALGORITHM),
        )
        return out

    return Body(launch, 2.0 * m * n * k)


def _triad(site: Site) -> Body:
    size = inputs.array_bytes(site.spec.shape)
    a, b, c = (site.normal(size // 4) for _ in range(3))
    triad = cupy.ElementwiseKernel("float32 b, float32 c, float32 s", "float32 a", "a = b + s * c", "triad")
    return Body(lambda: triad(b, c, SCALE, a), 3.0 * size)


def _copy(site: Site) -> Body:
    size = inputs.array_bytes(site.spec.shape)
    a, b = site.normal(size // 4), site.normal(size // 4)
    return Body(lambda: a.data.copy_from_device_async(b.data, size, site.stream), 2.0 * size)


def _host(site: Site) -> tuple[Foreign, Foreign, int]:
    """The same bytes in device memory and in page-locked host memory, and how many."""
    size = inputs.array_bytes(site.spec.shape)
    device = site.normal(size // 4)
    host = cupyx.empty_pinned(device.shape, dtype="float32")
    device.data.copy_to_host_async(host.ctypes.data, size, site.stream)
    site.stream.synchronize()
    return device, host, size


def _h2d(site: Site) -> Body:
    device, host, size = _host(site)
    return Body(lambda: device.data.copy_from_host_async(host.ctypes.data, size, site.stream), float(size))


def _d2h(site: Site) -> Body:
    device, host, size = _host(site)
    return Body(lambda: device.data.copy_to_host_async(host.ctypes.data, size, site.stream), float(size))


def _launch_latency(site: Site) -> Body:
    """A kernel that does nothing."""
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    return Body(lambda: nothing((1,), (1,), ()), 1.0)


def _p2p(site: Site) -> Body:
    if len(site.devices) < 2:
        raise DeviceError(f"{site.spec.id} needs two devices and got {len(site.devices)}")
    size = inputs.array_bytes(site.spec.shape)
    source = site.normal(size // 4)
    with cupy.cuda.Device(site.devices[1]):
        target = cupy.empty(source.shape, dtype="float32")
    return Body(lambda: target.data.copy_from_device_async(source.data, size, site.stream), float(size))


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
    "hbm_triad": _triad,
    "hbm_copy": _copy,
    "pcie_h2d": _h2d,
    "pcie_d2h": _d2h,
    "launch_latency": _launch_latency,
    "p2p": _p2p,
    "allreduce": _allreduce,
}


class _Lane(NamedTuple):
    device: int
    stream: Foreign


class Ring(EventClock):
    """All-reduce over the visible devices (profiling/ring.py); marks stand behind all its streams.

    `work` is what passes over each link per launch, 2 (n - 1) / n times the array of `shape`, so that
    a value is the bus bandwidth.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site.stream)
        n = len(site.devices)
        items = inputs.array_bytes(site.spec.shape) // (4 * n)
        first = site.normal(n, items)
        self.work = ring.link_bytes(4 * items, n)
        self._own = _Lane(site.devices[0], site.stream)
        self.reduction = ring.AllReduce([self._member(first, device) for device in site.devices], self)

    def _member(self, first: Foreign, device: int) -> ring.Member:
        with cupy.cuda.Device(device):
            send, receive = (_Lane(device, cupy.cuda.Stream(non_blocking=True)) for _ in range(2))
            part, total = (cupy.empty(first.shape, dtype="float32") for _ in range(2))
            stage = cupy.empty(first.shape[1:], dtype="float32")
        part.data.copy_from_device_async(first.data, first.nbytes, self._own.stream)
        for lane in (send, receive):
            self.after(lane, self._own)
        return ring.Member(part, total, stage, send, receive)

    def after(self, later: _Lane, earlier: _Lane) -> None:
        with cupy.cuda.Device(earlier.device):  # an event belongs to the device of what it marks
            event = cupy.cuda.Event(disable_timing=True)
            event.record(earlier.stream)
        later.stream.wait_event(event)

    def copy(self, target: Foreign, source: Foreign, send: _Lane, receive: _Lane) -> None:
        self.after(send, receive)
        target.data.copy_from_device_async(source.data, source.nbytes, send.stream)
        self.after(receive, send)

    def add(self, a: Foreign, b: Foreign, out: Foreign, lane: _Lane) -> None:
        with cupy.cuda.Device(lane.device), lane.stream:
            cupy.add(a, b, out=out)

    def mark(self) -> Foreign:
        for lane in self.reduction.streams():
            self.after(self._own, lane)
        return super().mark()


class CupyKernel:
    """One benchmark on one device. Raises DeviceError where it cannot be built."""

    def __init__(self, spec: Benchmark, devices: Sequence[int]) -> None:
        self.unit = spec.unit
        self._id = spec.id
        self._devices = devices
        self._until_close = contextlib.ExitStack()
        self._flight: InFlight[Foreign] | None = None
        try:
            self._until_close.enter_context(cupy.cuda.Device(devices[0]))
            stream = self._until_close.enter_context(cupy.cuda.Stream(non_blocking=True))
            generator = cupy.random.default_rng(inputs.seed(spec.id))
            body = BUILDERS[spec.id](Site(spec, devices, stream, generator))
        except (*ERRORS, DeviceError) as error:
            failure = error if isinstance(error, DeviceError) else device_error(error, spec.id)
        else:
            self.work = body.work
            self._flight = InFlight(body.launch, body.clock or EventClock(stream))
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
        except ERRORS as error:
            raise device_error(error, self._id) from None

    def close(self) -> None:
        """Wait and free the memory. A device that is gone frees nothing."""
        flight, self._flight = self._flight, None
        with contextlib.suppress(*ERRORS):
            if flight is not None:
                flight.drain()
        del flight
        with contextlib.suppress(*ERRORS):
            self._until_close.close()
            for device in self._devices:
                with cupy.cuda.Device(device):
                    cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
