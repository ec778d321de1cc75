# SPDX-License-Identifier: MIT
"""The benchmarks as CuPy work: for each id what is allocated and what one launch does.

Matrix products call cuBLAS (cublasGemmEx) with data and compute types named, so that nothing
depends on CuPy's settings, and bfloat16, which CuPy's arrays lack, is possible too.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import cupy
import cupyx

from slurm_pal.profiling.node import inputs, ring
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.device_errors import FOREIGN
from slurm_pal.profiling.node.library_kernel import KernelBody, LibraryKernel, all_reduce

Foreign: TypeAlias = Any
"""CuPy's own: an array, a stream, an event."""

ERRORS = (*FOREIGN, cupy.cuda.compiler.CompileException)
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


class CupyWorkbench(NamedTuple):
    """What a kernel is built from. Device and stream are the current ones while it is built and runs."""

    spec: Benchmark
    devices: Sequence[int]  # CuPy's numbers, its own first
    stream: Foreign
    generator: Foreign

    @property
    def clock(self) -> EventClock:
        return EventClock(self.stream)

    def normal(self, *size: int, dtype: str = "float32") -> Foreign:
        """N(0,1) data on its own device; bfloat16 as its 16 bits."""
        drawn = self.generator.standard_normal(size, dtype="float64" if dtype == "float64" else "float32")
        if dtype == "uint16":
            return ((drawn.view("uint32") + 0x8000) >> 16).astype("uint16")  # rounded to the nearest
        return drawn.astype(dtype, copy=False)

    def array(self) -> Foreign:
        """Data of the size that the benchmark's shape gives."""
        return self.normal(inputs.items(self.spec.shape))


def _gemm(bench: CupyWorkbench) -> KernelBody:
    from cupy.cuda import cublas  # loads the library

    m, n, k = inputs.matrix(bench.spec.shape)
    kind = _FORMATS[bench.spec.dtype]
    a, b = bench.normal(m, k, dtype=kind.stored), bench.normal(k, n, dtype=kind.stored)
    turn = itertools.cycle([cupy.empty((m, n), dtype=kind.stored) for _ in range(inputs.OUTPUTS)])
    one, zero = kind.scalar(1.0), kind.scalar(0.0)
    handle = cupy.cuda.device.get_cublas_handle()

    def launch() -> Foreign:
        # cuBLAS is column-major: row by row it is C' = B' A'.
        out = next(turn)
        cublas.gemmEx(
            *(handle, _NO_TRANSPOSE, _NO_TRANSPOSE, n, m, k, ctypes.addressof(one)),
            *(b.data.ptr, kind.data, n, a.data.ptr, kind.data, k),
            *(ctypes.addressof(zero), out.data.ptr, kind.data, n, kind.compute, _ANY_ALGORITHM),
        )
        return out

    return KernelBody(launch)


def _triad(bench: CupyWorkbench) -> KernelBody:
    a, b, c = (bench.array() for _ in range(3))
    triad = cupy.ElementwiseKernel("float32 b, float32 c, float32 s", "float32 a", "a = b + s * c", "triad")
    return KernelBody(lambda: triad(b, c, inputs.TRIAD_SCALE, a))


def _copy(bench: CupyWorkbench) -> KernelBody:
    a, b = bench.array(), bench.array()
    return KernelBody(lambda: a.data.copy_from_device_async(b.data, a.nbytes, bench.stream))


def _host(bench: CupyWorkbench) -> tuple[Foreign, Foreign]:
    """The same bytes in device memory and in page-locked host memory."""
    device = bench.array()
    host = cupyx.empty_pinned(device.shape, dtype="float32")
    device.data.copy_to_host_async(host.ctypes.data, device.nbytes, bench.stream)
    bench.stream.synchronize()
    return device, host


def _h2d(bench: CupyWorkbench) -> KernelBody:
    device, host = _host(bench)
    return KernelBody(lambda: device.data.copy_from_host_async(host.ctypes.data, host.nbytes, bench.stream))


def _d2h(bench: CupyWorkbench) -> KernelBody:
    device, host = _host(bench)
    return KernelBody(lambda: device.data.copy_to_host_async(host.ctypes.data, host.nbytes, bench.stream))


def _launch_latency(bench: CupyWorkbench) -> KernelBody:
    """A kernel that does nothing."""
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    return KernelBody(lambda: nothing((1,), (1,), ()))


def _p2p(bench: CupyWorkbench) -> KernelBody:
    source = bench.array()
    with cupy.cuda.Device(bench.devices[1]):
        target = cupy.empty(source.shape, dtype="float32")
    return KernelBody(lambda: target.data.copy_from_device_async(source.data, source.nbytes, bench.stream))


def _allreduce(bench: CupyWorkbench) -> KernelBody:
    return all_reduce(bench, CupyLanes(_Lane(bench.devices[0], bench.stream)))


BUILDERS: dict[str, Callable[[CupyWorkbench], KernelBody]] = {
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


class CupyLanes:
    """CuPy's streams for an all-reduce (profiling/node/ring.py)."""

    def __init__(self, main: _Lane) -> None:
        self.main = main

    def member(self, first: Foreign, device: int) -> ring.Member:
        with cupy.cuda.Device(device):
            send, receive = (_Lane(device, cupy.cuda.Stream(non_blocking=True)) for _ in range(2))
            part, total = (cupy.empty(first.shape, dtype="float32") for _ in range(2))
            stage = cupy.empty(first.shape[1:], dtype="float32")
        part.data.copy_from_device_async(first.data, first.nbytes, self.main.stream)
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


@contextlib.contextmanager
def _bench(spec: Benchmark, devices: Sequence[int]) -> Iterator[CupyWorkbench]:
    """In a stream of its own on the first device; at the end the memory of all of them is freed."""
    try:
        with cupy.cuda.Device(devices[0]), cupy.cuda.Stream(non_blocking=True) as stream:
            yield CupyWorkbench(spec, devices, stream, cupy.random.default_rng(inputs.seed(spec.id)))
    finally:
        for device in devices:
            with cupy.cuda.Device(device):
                cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def kernel(spec: Benchmark, devices: Sequence[int]) -> LibraryKernel:
    """One benchmark on the first of `devices`, the others being its peers. Raises DeviceError."""
    return LibraryKernel(spec, BUILDERS, _bench(spec, devices), ERRORS)
