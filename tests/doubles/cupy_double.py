# SPDX-License-Identifier: MIT
"""CuPy without a GPU: arrays of numpy, streams that do their work later, cuBLAS in float64.

It keeps CUDA's rules where a mistake would hurt: an event is recorded only in a stream of its own
device, a copy stays within its arrays, and nothing is done before what it waits for.
"""

from __future__ import annotations

import ctypes
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .stream_double import Streams

WORK_S = 0.001  # device time of everything
_DATA = {0: np.float32, 1: np.float64, 2: np.float16, 14: np.uint16}  # cudaDataType_t
_COMPUTE = {68: ctypes.c_float, 77: ctypes.c_float, 70: ctypes.c_double}


class CUDARuntimeError(RuntimeError):
    """As CuPy names it."""


class CompileException(Exception):
    """As CuPy names it: what the compiler of kernels says."""


class Array(np.ndarray):
    """An array on a device of the machine."""

    machine: ClassVar[Machine]
    gpu: int

    def __array_finalize__(self, other: object) -> None:
        self.gpu = other.gpu if isinstance(other, Array) else self.machine.present[-1]
        if self.base is None:
            self.machine.alive.append(weakref.ref(self))

    @property
    def data(self) -> Pointer:
        return Pointer(self)


class Pointer:
    """Where an array begins."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.ptr = array.__array_interface__["data"][0]

    def copy_from_device_async(self, source: Pointer, size: int, stream: Any) -> None:  # noqa: ANN401
        assert size <= self.array.nbytes and size <= source.array.nbytes
        assert stream.device in (self.array.gpu, source.array.gpu)
        stream.work(lambda: ctypes.memmove(self.ptr, source.ptr, size))

    def copy_from_host_async(self, address: int, size: int, stream: Any) -> None:  # noqa: ANN401
        assert size <= self.array.nbytes and stream.device == self.array.gpu
        stream.work(lambda: ctypes.memmove(self.ptr, address, size))

    def copy_to_host_async(self, address: int, size: int, stream: Any) -> None:  # noqa: ANN401
        assert size <= self.array.nbytes and stream.device == self.array.gpu
        stream.work(lambda: ctypes.memmove(address, self.ptr, size))


class Machine:
    """A node of `gpus` devices and the modules by which CuPy reaches them."""

    def __init__(self, gpus: int = 2, seed: int = 0) -> None:
        self.gpus = gpus
        self.streams = Streams(seed)
        self.present = [0]  # devices, the last one is in use
        self.within: list[Any] = []  # streams, likewise
        self.clock_s = 0.0
        self.alive: list[weakref.ref[Array]] = []
        self.freed: list[object] = []  # devices whose pool was emptied, "pinned" for the host's
        self.products: list[tuple[int, int]] = []  # data and compute type of each
        self.capability = "90"
        self.fault = ""  # what every launch says, when not empty
        self.compiler_says = ""  # likewise
        Array.machine = self

    def live_bytes(self) -> int:
        return sum(array.nbytes for ref in self.alive if (array := ref()) is not None and array.base is None)

    def work(self, action: Callable[[], object]) -> None:
        """In the present stream."""
        self.within[-1].work(action)

    def modules(self) -> dict[str, types.ModuleType]:
        """For sys.modules."""
        cupy, cuda, cupyx = (types.ModuleType(name) for name in ("cupy", "cupy.cuda", "cupyx"))
        cuda.Device, cuda.Stream, cuda.Event = _devices(self), _streams(self), _events(self)
        cuda.get_elapsed_time = lambda start, end: 1e3 * (end.at_s - start.at_s)
        cuda.cublas = types.SimpleNamespace(gemmEx=self._gemm_ex)
        cuda.device = types.SimpleNamespace(get_cublas_handle=lambda: 17)
        cuda.compiler = types.SimpleNamespace(CompileException=CompileException)
        cuda.runtime = types.SimpleNamespace(
            getDeviceCount=lambda: self.gpus,
            deviceGetPCIBusId=lambda i: f"0000:{0x3B + i:02X}:00.0",
            runtimeGetVersion=lambda: 12090,
        )
        cupy.cuda = cuda
        cupy.empty = lambda shape, dtype: self._garbage(shape, dtype)
        cupy.add = lambda a, b, out: self._add(a, b, out)
        cupy.random = types.SimpleNamespace(default_rng=lambda seed: _Generator(seed))
        cupy.ElementwiseKernel = lambda *text: self._triad(text)
        cupy.RawKernel = lambda code, name: lambda grid, block, args: self.work(lambda: None)
        cupy.get_default_memory_pool = lambda: _pool(lambda: self.freed.append(self.present[-1]))
        cupy.get_default_pinned_memory_pool = lambda: _pool(lambda: self.freed.append("pinned"))
        cupyx.empty_pinned = lambda shape, dtype: np.full(shape, np.nan, dtype)
        return {"cupy": cupy, "cupy.cuda": cuda, "cupyx": cupyx}

    def _garbage(self, shape: object, dtype: str) -> Array:
        made = np.ndarray.__new__(Array, shape, dtype)
        made[...] = 99
        return made

    def _add(self, a: Array, b: Array, out: Array) -> None:
        assert a.gpu == b.gpu == out.gpu == self.present[-1] == self.within[-1].device
        parts = [np.asarray(x) for x in (a, b, out)]
        self.work(lambda: np.add(parts[0], parts[1], out=parts[2]))

    def _triad(self, text: tuple[str, ...]) -> Callable[..., None]:
        if self.compiler_says:
            raise CompileException(self.compiler_says)
        assert text == ("float32 b, float32 c, float32 s", "float32 a", "a = b + s * c", "triad")
        return lambda b, c, s, a: self.work(lambda: np.copyto(a, b + np.float32(s) * c))

    def _gemm_ex(self, handle: int, ta: int, tb: int, m: int, n: int, k: int, *rest: int) -> None:
        """C = alpha A B + beta C of column-major matrices, as the cuBLAS reference has it."""
        alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algorithm = rest
        assert (handle, ta, tb, algorithm) == (17, 0, 0, -1) and a_type == b_type == c_type
        self.products.append((a_type, compute))
        scalar = _COMPUTE[compute]
        left, right, out = (_columns(p, a_type, ld, cols) for p, ld, cols in ((a, lda, k), (b, ldb, n), (c, ldc, n)))

        def multiply() -> None:
            one, zero = (scalar.from_address(p).value for p in (alpha, beta))
            assert zero == 0.0  # what the output held is not read, not even when it is no number
            out[:m] = _narrow(one * (_wide(left[:m]) @ _wide(right[:k])), a_type)

        self.work(multiply)


def _columns(address: int, kind: int, rows: int, columns: int) -> np.ndarray:
    dtype = np.dtype(_DATA[kind])
    memory = (ctypes.c_uint8 * (rows * columns * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(columns, rows).T


def _wide(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def _narrow(values: np.ndarray, kind: int) -> np.ndarray:
    if kind == 14:
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(_DATA[kind])


class _Generator:
    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def standard_normal(self, size: tuple[int, ...], dtype: str) -> Array:
        values = self._draw.standard_normal(size, dtype=np.dtype(dtype))
        made = np.ndarray.__new__(Array, values.shape, values.dtype)
        made[...] = values
        return made


def _pool(free: Callable[[], None]) -> types.SimpleNamespace:
    return types.SimpleNamespace(free_all_blocks=free)


def _devices(machine: Machine) -> type:
    class Device:
        def __init__(self, number: int) -> None:
            self.number = number
            self.compute_capability = machine.capability

        def __enter__(self) -> Device:
            machine.present.append(self.number)
            return self

        def __exit__(self, *_: object) -> None:
            assert machine.present.pop() == self.number

    return Device


def _streams(machine: Machine) -> type:
    class Stream:
        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking
            self.device = machine.present[-1]
            self.number = machine.streams.new()

        def __enter__(self) -> Stream:
            machine.within.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            assert machine.within.pop() is self

        def work(self, action: Callable[[], object]) -> int:
            if machine.fault:
                raise CUDARuntimeError(machine.fault)

            def timed() -> None:
                machine.clock_s += WORK_S
                action()

            return machine.streams.put(self.number, timed)

        def wait_event(self, event: Any) -> None:  # noqa: ANN401
            machine.streams.wait_for(self.number, event.number)

        def synchronize(self) -> None:
            machine.streams.run(machine.streams.put(self.number, lambda: None))

    return Stream


def _events(machine: Machine) -> type:
    class Event:
        def __init__(self, disable_timing: bool = False) -> None:
            self.device = machine.present[-1]
            self.at_s = float("nan")

        def record(self, stream: Any) -> None:  # noqa: ANN401
            assert stream.device == self.device, "an event is recorded on its own device"
            self.number = machine.streams.put(stream.number, self._stamp)

        def _stamp(self) -> None:
            self.at_s = machine.clock_s

        def synchronize(self) -> None:
            machine.streams.run(self.number)

    return Event
