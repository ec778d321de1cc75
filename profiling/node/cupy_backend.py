# SPDX-License-Identifier: MIT
"""NVIDIA GPUs measured with CuPy, where the site's Python has it.

Nothing of CuPy is imported before the workers are forked; devices are listed by NVML.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib import metadata

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.device_errors import FOREIGN, told
from slurm_pal.profiling.node.devices import ANY_SLOT, Backend, DeviceError, DeviceInfo, Kernel, Telemetry
from slurm_pal.profiling.node.libraries import Described, cublas_version, cuda_version
from slurm_pal.profiling.node.nvml import Nvml
from slurm_pal.profiling.node.visible import pci_address, shown

PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")
"""Distributions that bring the module for CUDA, newest first; those for ROCm go by other names."""

_LEAST = {"bf16": 80, "tf32": 80, "fp16": 70}  # compute capability, times ten, with matrix units for a format
_NO_BLOCK = "CuPy has no automatic differentiation: use backend torch for the transformer block"


def installed() -> tuple[str, str]:
    """Distribution and version of CuPy for CUDA; ("", "") when there is none. Imports nothing of it."""
    for name in PACKAGES:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "", ""


def available() -> str:
    """Why this backend cannot be used here; "" when it can. Initialises no device."""
    if importlib.util.find_spec("cupy") is None or not installed()[0]:
        return "CuPy for CUDA is not installed"
    try:
        found = Nvml().devices("", ANY_SLOT)
    except DeviceError as error:
        return str(error)
    return "" if found else "NVML lists no GPU"


def open_backend(setting: Setting) -> Backend:
    """The backend for NVIDIA's GPUs. Raises MissingPackageError."""
    why = available()
    if why:
        raise MissingPackageError(f"backend cupy cannot be used: {why}")
    return CupyBackend(Nvml())


class CupyBackend:
    """NVIDIA GPUs through CuPy."""

    name = "cupy"
    wall_scale = 1.0

    def __init__(self, sensors: Nvml) -> None:
        self._sensors = sensors
        self._listed: tuple[DeviceInfo, ...] = ()
        self.version = " ".join(installed())
        self.telemetry: Telemetry = Described(sensors, _libraries)

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, as NVML lists them."""
        self._listed = self._sensors.devices(node, indexes)
        return self._listed

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Why `spec` cannot run there, "" when it can. Initialises the device: ask in its worker."""
        from slurm_pal.profiling.node.cupy_kernels import BUILDERS

        if spec.id not in BUILDERS:
            return _NO_BLOCK if spec.id.startswith("tblock") else f"backend cupy has no kernel for {spec.id}"
        if spec.peers and len(self._listed) < 2:
            return "there is no other GPU"
        least = _LEAST.get(spec.dtype, 0)
        has = _capability(_number(device)) if least else 0
        if has < least:
            return f"no {spec.dtype} matrix units before compute capability {least / 10} (this is {has / 10})"
        return ""

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> Kernel:
        """Allocate and fill what `spec` needs, on the device and its `peers`. Raises DeviceError."""
        from slurm_pal.profiling.node.cupy_kernels import kernel

        return kernel(spec, [_number(one) for one in (device, *peers)])


def _number(info: DeviceInfo) -> int:
    """CuPy's number of a device. Raises DeviceError where CuPy does not see it."""
    import cupy

    with told(FOREIGN, info.uuid):
        count = cupy.cuda.runtime.getDeviceCount()
        number = shown(info)
        if number is None:
            addresses = [pci_address(cupy.cuda.runtime.deviceGetPCIBusId(i)) for i in range(count)]
            wanted = pci_address(info.pci_bus_id)
            number = addresses.index(wanted) if wanted in addresses else -1
    if not 0 <= number < count:
        raise DeviceError(f"CuPy sees {count} devices and not {info.uuid}")
    return number


def _capability(number: int) -> int:
    import cupy

    with told(FOREIGN, f"device {number}"):
        return int(cupy.cuda.Device(number).compute_capability)  # "90"


def _libraries() -> dict[str, str]:
    """CUDA's runtime, and cuBLAS where it can be loaded; asked in the worker, and touches no device."""
    import cupy

    cuda = cuda_version(cupy.cuda.runtime.runtimeGetVersion())
    try:
        from cupy.cuda import cublas  # noqa: F401 - loads the library
    except ImportError:
        return {"cuda": cuda}
    version = cublas_version(cuda)
    return {"cuda": cuda} | ({"cublas": version} if version else {})
