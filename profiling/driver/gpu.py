# SPDX-License-Identifier: MIT
"""One device as a benchmark uses it: its context, and all that is allocated in it until `close`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from ctypes import c_uint64, c_void_p

from slurm_pal.profiling.driver import ptx
from slurm_pal.profiling.driver.arguments import KERNELS
from slurm_pal.profiling.driver.library import MOST_SHARED_BYTES, CudaLibrary
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_UNTIMED = 2  # CU_EVENT_DISABLE_TIMING
_BLOCKING = 1  # CU_EVENT_BLOCKING_SYNC: who waits for it sleeps, and leaves the processor to the sampler


class GpuContext:
    """A device's primary context. Raises DeviceError, and then leaves nothing behind."""

    def __init__(self, library: CudaLibrary, info: DeviceInfo) -> None:
        self.library = library
        self.uuid = info.uuid
        self.device = library.find(info.uuid)
        self.limits = library.limits(self.device)
        self._undo: list[tuple[str | Callable[..., object], tuple[object, ...]]] = []
        self._functions: dict[str, c_void_p] = {}
        self.context = library.handle("cuDevicePrimaryCtxRetain", self.device)
        self._undo.append(("cuDevicePrimaryCtxRelease_v2", (self.device,)))
        try:
            self.stream = self.new_stream()
        except DeviceError:
            self.close()
            raise

    def use(self) -> None:
        """Make this the current context of the thread."""
        self.library.call("cuCtxSetCurrent", self.context)

    def load(self, names: Iterable[str]) -> None:
        """Compile these kernels for the device."""
        self.use()
        for mine, text in ptx.modules(self.limits.capability, frozenset(names)):
            module = self.library.module(text)
            self._undo.append(("cuModuleUnload", (module,)))
            for name in mine:
                function = self.library.handle("cuModuleGetFunction", module, name.encode())
                if shared := KERNELS[name].shared:
                    self.library.call("cuFuncSetAttribute", function, MOST_SHARED_BYTES, shared)
                self._functions[name] = function

    def allocate(self, size: int) -> int:
        """Address of `size` bytes of device memory."""
        self.use()
        address = c_uint64()
        self.library.call("cuMemAlloc_v2", ctypes.byref(address), size)
        self._undo.append(("cuMemFree_v2", (address,)))
        return address.value

    def pinned(self, size: int) -> c_void_p:
        """Page-locked host memory of `size` bytes."""
        self.use()
        memory = self.library.handle("cuMemHostAlloc", size, _PORTABLE)
        self._undo.append(("cuMemFreeHost", (memory,)))
        return memory

    def new_stream(self) -> c_void_p:
        """Another queue of work."""
        self.use()
        stream = self.library.handle("cuStreamCreate", _NON_BLOCKING)
        self._undo.append(("cuStreamDestroy_v2", (stream,)))
        return stream

    def event(self, timed: bool = True) -> c_void_p:
        """A mark in a stream."""
        self.use()
        event = self.library.handle("cuEventCreate", _BLOCKING if timed else _UNTIMED)
        self._undo.append(("cuEventDestroy_v2", (event,)))
        return event

    def launch(
        self, name: str, blocks: tuple[int, int], argument: ctypes.Structure | None = None
    ) -> Callable[[], None]:
        """A launch of a loaded kernel in this device's stream, to be called as often as wanted.

        Everything is converted here: calling it costs little more than the driver's own work.
        """
        check, function = self.library.check, self.library.function("cuLaunchKernel")
        parameters = (c_void_p * 1)(ctypes.addressof(argument)) if argument is not None else None
        kernel = KERNELS[name]
        fixed = (self._functions[name], *blocks, 1, kernel.threads, 1, 1, kernel.shared, self.stream, parameters, None)

        def start(kept: object = argument) -> None:
            code = function(*fixed)
            if code:
                check(f"cuLaunchKernel of {name}", code)

        return start

    def captured(self, launches: Iterable[Callable[[], None]]) -> Callable[[], None]:
        """These launches, in their order, as one graph that is started by one call."""
        self.use()
        self.library.call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        for launch in launches:
            launch()
        graph = c_void_p()
        self.library.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self._undo.append(("cuGraphDestroy", (graph,)))
        ready = self._instantiated(graph)
        self._undo.append(("cuGraphExecDestroy", (ready,)))
        check, function = self.library.check, self.library.function("cuGraphLaunch")
        return lambda: check("cuGraphLaunch", function(ready, self.stream))

    def _instantiated(self, graph: c_void_p) -> c_void_p:
        if self.library.has("cuGraphInstantiateWithFlags"):
            return self.library.handle("cuGraphInstantiateWithFlags", graph, 0)
        return self.library.handle("cuGraphInstantiate_v2", graph, None, None, 0)

    def at_end(self, function: Callable[..., object], *arguments: object) -> None:
        """Call this when the context is closed, before what was allocated earlier is freed."""
        self._undo.append((function, arguments))

    def wait(self) -> None:
        """Until the stream is empty."""
        self.use()
        self.library.call("cuStreamSynchronize", self.stream)

    def read(self, address: int, size: int) -> bytes:
        """Device memory, once the stream is empty."""
        self.wait()
        buffer = (ctypes.c_char * size)()
        self.library.call("cuMemcpyDtoH_v2", buffer, address, size)
        return buffer.raw

    def reach(self, other: GpuContext) -> None:
        """Let this device read and write the other's memory, where the machine can."""
        if self.library.integer("cuDeviceCanAccessPeer", self.device, other.device):
            self.use()
            self.library.enable_peer(other.context)

    def close(self) -> None:
        """Free everything, last first; what a dead context refuses is gone with it. Harmless when called twice."""
        undo, self._undo = self._undo, []
        if not undo:
            return  # the context is gone
        self.library.function("cuCtxSetCurrent")(self.context)
        for name, arguments in reversed(undo):
            (self.library.function(name) if isinstance(name, str) else name)(*arguments)
        self.library.function("cuCtxSetCurrent")(None)  # releasing it does not take it from the thread
        self._functions.clear()


class Marks:
    """A `Clock` (profiling/node/in_flight.py) on a device's stream; four marks are two blocks in flight."""

    def __init__(self, gpu: GpuContext) -> None:
        self._gpu = gpu
        self._events = [gpu.event() for _ in range(4)]
        self._next = 0

    def mark(self) -> c_void_p:
        event = self._events[self._next]
        self._next = (self._next + 1) % len(self._events)
        self._gpu.use()
        self._gpu.library.call("cuEventRecord", event, self._gpu.stream)
        return event

    def wait(self, mark: c_void_p) -> None:
        self._gpu.library.call("cuEventSynchronize", mark)

    def elapsed_s(self, start: c_void_p, end: c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._gpu.library.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3
