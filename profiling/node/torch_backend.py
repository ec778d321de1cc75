# SPDX-License-Identifier: MIT
"""GPUs measured with PyTorch: one path for CUDA, ROCm and XPU.

PyTorch is not a dependency: it is used where the site's Python has it. Importing it and asking
for its build is all that happens before the workers are forked; devices are listed by the
vendor's own management library.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slurm_pal.base.errors import MissingPackageError, one_line
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.device_errors import told
from slurm_pal.profiling.node.devices import ANY_SLOT, Backend, DeviceError, DeviceInfo, Kernel, Sensors, Telemetry
from slurm_pal.profiling.node.libraries import Described, cublas_version

if TYPE_CHECKING:
    from slurm_pal.profiling.node.torch_runtime import Runtime


def _nvml() -> Sensors:
    from slurm_pal.profiling.node.nvml import Nvml

    return Nvml()


def _amdsmi() -> Sensors:
    from slurm_pal.profiling.node.amd import AmdSmi

    return AmdSmi()


def _intel() -> Sensors:
    from slurm_pal.profiling.node.intel import IntelSysfs

    return IntelSysfs()


SENSORS: dict[str, Callable[[], Sensors]] = {"cuda": _nvml, "rocm": _amdsmi, "xpu": _intel}


def available() -> str:
    """Why this backend cannot be used here; "" when it can. Initialises no device."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    try:
        from slurm_pal.profiling.node.torch_runtime import built_for
    except Exception as error:  # whatever a broken installation raises
        return f"PyTorch cannot be imported: {one_line(error)}"
    kind = built_for()
    if not kind:
        return "the installed PyTorch is built for the processor alone"
    try:
        found = SENSORS[kind]().devices("", ANY_SLOT)
    except DeviceError as error:
        return str(error)
    return "" if found else f"PyTorch is built for {kind}, and no such GPU answers here"


def open_backend(setting: Setting) -> Backend:
    """The backend for the GPUs that PyTorch was built for. Raises MissingPackageError."""
    why = available()
    if why:
        raise MissingPackageError(f"backend torch cannot be used: {why}")
    from slurm_pal.profiling.node.torch_runtime import built_for

    return TorchBackend(built_for())


class TorchBackend:
    """GPUs through PyTorch.

    `kind` is a key of torch_runtime.FLAVOURS, or "cpu" in tests, which bring their own `sensors`.
    """

    name = "torch"
    wall_scale = 1.0

    def __init__(self, kind: str, sensors: Sensors | None = None) -> None:
        self._kind = kind
        self._sensors = sensors or SENSORS[kind]()
        self._listed: tuple[DeviceInfo, ...] = ()
        torch_version, others = _versions(kind)
        self.version = ", ".join((torch_version, *(f"{name} {number}" for name, number in others.items())))
        libs = others | {"tblock": _block_mode(kind)}
        self.telemetry: Telemetry = Described(self._sensors, lambda: libs)

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, as the vendor's library lists them."""
        self._listed = self._sensors.devices(node, indexes)
        return self._listed

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Why `spec` cannot run there, "" when it can. Initialises the device: ask in its worker."""
        from slurm_pal.profiling.node.torch_kernels import BUILDERS

        if spec.id not in BUILDERS:
            return f"backend torch has no kernel for {spec.id}"
        if spec.peers and len(self._listed) < 2:
            return "there is no other GPU"
        from slurm_pal.profiling.node.torch_runtime import ERRORS

        runtime = self._runtime()
        with told(ERRORS, device.uuid):
            return runtime.lacks(runtime.device(device), spec.dtype)

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> Kernel:
        """Allocate and fill what `spec` needs, on the device and its `peers`. Raises DeviceError."""
        from slurm_pal.profiling.node.torch_kernels import kernel
        from slurm_pal.profiling.node.torch_runtime import ERRORS

        runtime = self._runtime()
        with told(ERRORS, device.uuid):
            places = tuple(runtime.device(one) for one in (device, *peers))
        return kernel(runtime, spec, places)

    def _runtime(self) -> Runtime:
        from slurm_pal.profiling.node.torch_runtime import Accelerator, Processor

        return Processor() if self._kind == "cpu" else Accelerator(self._kind, self._listed)


def _versions(kind: str) -> tuple[str, dict[str, str]]:
    """PyTorch's version, and those of its GPU runtime and of cuBLAS where it can be asked."""
    import torch

    from slurm_pal.profiling.node.torch_runtime import FLAVOURS

    others: dict[str, str] = {}
    if kind in FLAVOURS:
        others[kind] = str(getattr(torch.version, FLAVOURS[kind].version))
    if kind == "cuda" and (cublas := cublas_version(others["cuda"])):
        others["cublas"] = cublas
    return str(torch.__version__), others


def _block_mode(kind: str) -> str:
    """How the transformer block is started: its launches cost differently, so it is part of the method."""
    from slurm_pal.profiling.node.torch_runtime import FLAVOURS

    return "graph" if kind in FLAVOURS and FLAVOURS[kind].graphs else "eager"
