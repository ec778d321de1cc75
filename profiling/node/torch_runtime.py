# SPDX-License-Identifier: MIT
"""PyTorch's devices behind one interface: torch.cuda (CUDA and ROCm), torch.xpu, and the processor.

Nothing here touches a device before a kernel is prepared: the workers are forked first.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from slurm_pal.profiling.node.device_errors import FOREIGN
from slurm_pal.profiling.node.devices import DeviceError, DeviceInfo
from slurm_pal.profiling.node.visible import PciAddress, pci_address, shown

Foreign: TypeAlias = Any  # PyTorch's own: a module, stream, event, graph; or the result of a step

ERRORS = (*FOREIGN, torch.cuda.DeferredCudaCallError)

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


class Flavour(NamedTuple):
    """One kind of device that a build of PyTorch serves."""

    label: str
    module: str  # of torch
    version: str  # attribute of torch.version; None there where the build does not serve it
    graphs: bool  # whether work is captured once and replayed
    environ: dict[str, str] = {}  # wanted before the runtime is initialised


FLAVOURS: dict[str, Flavour] = {
    "cuda": Flavour("CUDA", "cuda", "cuda", True),
    "rocm": Flavour("ROCm", "cuda", "hip", True),
    # One device is one card, in PCI order: Level Zero's defaults are tiles, in an order of its own.
    "xpu": Flavour(
        "XPU",
        "xpu",
        "xpu",
        False,
        {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"},
    ),
}


def built_for() -> str:
    """The flavour that the installed PyTorch was built for; "" for a build that knows only the processor."""
    return next((name for name, flavour in FLAVOURS.items() if getattr(torch.version, flavour.version, None)), "")


class Accelerator:
    """The device of this worker, and its peers, by torch.cuda or torch.xpu.

    A `Clock` too (profiling/node/in_flight.py): marks are events in the current stream.
    """

    def __init__(self, name: str, listed: Sequence[DeviceInfo]) -> None:
        self.name = name
        self.flavour = FLAVOURS[name]
        self.graphs = self.flavour.graphs
        self._listed = listed
        for variable, value in self.flavour.environ.items():
            os.environ.setdefault(variable, value)
        self.module = getattr(torch, self.flavour.module)

    def device(self, info: DeviceInfo) -> torch.device:
        """PyTorch's own name of a device. Raises DeviceError where PyTorch does not see it."""
        return torch.device(self.flavour.module, self._index(info))

    def _index(self, info: DeviceInfo) -> int:
        count = self.module.device_count()
        index = shown(info)
        if index is None:
            index = find(info, self._listed, [self.module.get_device_properties(i) for i in range(count)])
        if not 0 <= index < count:
            raise DeviceError(f"PyTorch ({self.flavour.label}) sees {count} devices and not {info.uuid}")
        return index

    def use(self, device: torch.device) -> None:
        self.module.set_device(device)

    def lacks(self, device: torch.device, dtype: str) -> str:
        """Why a number format cannot be measured there; "" when it can."""
        return _LACKS[self.name](self.module, device, dtype)

    def pinned(self, size: int) -> torch.Tensor:
        """Page-locked host memory: `size` bytes."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def stream(self, device: torch.device) -> Foreign:
        return self.module.Stream(device=device)

    def on(self, stream: Foreign) -> contextlib.AbstractContextManager[Foreign]:
        """Queue in this stream; its device is the current one inside."""
        context: contextlib.AbstractContextManager[Foreign] = self.module.stream(stream)
        return context

    def present(self) -> Foreign:
        """The stream that work goes to now."""
        return self.module.current_stream()

    def captured(self, step: Callable[[], Foreign]) -> Callable[[], Foreign]:
        """`step` as a graph, to be replayed.

        Warmed up in the stream that captures: what libraries allocate at first use in a stream
        must not happen within the capture.
        """
        stream = self.module.Stream()
        stream.wait_stream(self.present())
        with self.module.stream(stream):
            for _ in range(3):
                step()
        self.module.synchronize()
        graph = self.module.CUDAGraph()
        with self.module.graph(graph, stream=stream):
            kept = step()  # its tensors are written by every replay
        self.module.synchronize()
        return _Replay(graph, kept)

    def mark(self) -> Foreign:
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: Foreign) -> None:
        mark.synchronize()

    def elapsed_s(self, start: Foreign, end: Foreign) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def free(self) -> None:
        """Give freed memory back to the device."""
        self.module.empty_cache()


class _Replay:
    def __init__(self, graph: Foreign, kept: Foreign) -> None:
        self._graph = graph
        self._kept = kept

    def __call__(self) -> Foreign:
        self._graph.replay()
        return self._kept


def _cuda_lacks(module: Foreign, device: torch.device, dtype: str) -> str:
    least = {"bf16": (8, 0), "tf32": (8, 0), "fp16": (7, 0)}.get(dtype, (0, 0))
    has = module.get_device_capability(device)
    if tuple(has) < least:
        return f"no {dtype} matrix units before compute capability {least[0]}.{least[1]} (this is {has[0]}.{has[1]})"
    return ""


def _rocm_lacks(module: Foreign, device: torch.device, dtype: str) -> str:
    return "PyTorch's ROCm build has no tf32 by default" if dtype == "tf32" else ""


def _xpu_lacks(module: Foreign, device: torch.device, dtype: str) -> str:
    has = module.get_device_properties(device)
    known = {
        "fp64": getattr(has, "has_fp64", True),
        "fp16": getattr(has, "has_fp16", True),
        "bf16": getattr(has, "has_bfloat16_conversions", True),
        "tf32": getattr(has, "has_subgroup_matrix_multiply_accumulate_tensor_float32", False),
    }
    return "" if known.get(dtype, True) else f"the device has no {dtype}"


_LACKS = {"cuda": _cuda_lacks, "rocm": _rocm_lacks, "xpu": _xpu_lacks}


def find(info: DeviceInfo, listed: Sequence[DeviceInfo], properties: Sequence[Foreign]) -> int:
    """Which of the devices that PyTorch sees (their `properties`, in its order) is `info`; -1 when none is.

    By PCI address where PyTorch gives it, else by UUID, else by place in PCI order when PyTorch
    sees exactly the listed devices.
    """
    for told, wanted in ((_pci, pci_address(info.pci_bus_id)), (_uuid, _plain(info.uuid))):
        seen = [told(p) for p in properties]
        if wanted and wanted in seen:
            return seen.index(wanted)
    if len(properties) == len(listed):
        order = sorted(listed, key=lambda d: (pci_address(d.pci_bus_id) or (), d.slot))
        return next((i for i, d in enumerate(order) if d.uuid == info.uuid), -1)
    return -1


def _pci(properties: Foreign) -> PciAddress | None:
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    parts = tuple(part for name in names if isinstance(part := getattr(properties, name, None), int))
    return parts if len(parts) == 3 else None


def _uuid(properties: Foreign) -> str:
    return _plain(str(getattr(properties, "uuid", "")))


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


class Processor:
    """The processor with the same interface, for tests of the kernels: real time, no streams, no graphs.

    Its times mean nothing on a shared machine; no backend name leads here.
    """

    name = "cpu"
    graphs = False

    def device(self, info: DeviceInfo) -> torch.device:
        return torch.device("cpu")

    def use(self, device: torch.device) -> None:
        """There is only one."""

    def lacks(self, device: torch.device, dtype: str) -> str:
        return ""

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def stream(self, device: torch.device) -> Foreign:
        return _Order()

    @contextlib.contextmanager
    def on(self, stream: Foreign) -> Iterator[None]:
        yield

    def present(self) -> Foreign:
        return _Order()

    def captured(self, step: Callable[[], Foreign]) -> Callable[[], Foreign]:
        return step

    def mark(self) -> float:
        return time.perf_counter()

    def wait(self, mark: float) -> None:
        """Whatever was called has been done."""

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def free(self) -> None:
        """Memory goes back by itself."""


class _Order:
    """A stream of the processor: everything is in order already."""

    def wait_stream(self, other: Foreign) -> None:
        """Nothing to wait for."""


Runtime = Accelerator | Processor
