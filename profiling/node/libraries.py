# SPDX-License-Identifier: MIT
"""Libraries that a backend's kernels come from, their versions and what steers them: part of the method."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping

from slurm_pal.profiling.node.devices import Counters, DeviceInfo, Static, Telemetry, Watch


class Described:
    """Sensors of another module, whose `static` shows the libraries as well.

    `libs` is asked in the worker, where the library may be loaded; no device may be touched yet.
    """

    def __init__(self, sensors: Telemetry, libs: Callable[[], dict[str, str]]) -> None:
        self._sensors = sensors
        self._libs = libs

    def static(self, device: DeviceInfo) -> Static:
        found = self._sensors.static(device)
        return found._replace(libs={**found.libs, **self._libs(), **steering(os.environ)})

    def watch(self, device: DeviceInfo) -> Watch:
        return self._sensors.watch(device)

    def counters(self, device: DeviceInfo) -> Counters:
        return self._sensors.counters(device)


_STEERING = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "DISABLE_ADDMM_CUDA_LT",
    "DISABLE_ADDMM_HIP_LT",
    "CUDA_LAUNCH_BLOCKING",
    "HIP_LAUNCH_BLOCKING",
)
_STEERING_ALL = ("CUBLAS_", "CUBLASLT_", "TORCH_BLAS_", "TORCH_CUBLAS", "PYTORCH_TUNABLEOP_", "ROCBLAS_", "HIPBLASLT_")
_NOT_STEERING = ("LOG", "LAYER", "VERBOSE", "FILENAME")
"""In such a name: it says what is written about the work, not how the work is done."""


def steering(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set and make the libraries compute otherwise, faster or slower.

    Number format (TF32 for FP32, FP32 put together from BF16), workspace, which library, which kernel of it, tuned
    kernels. Unset ones are no part of the method: a new name here parts no numbers that were measured without it.
    """
    return {
        name: value
        for name, value in sorted(environ.items())
        if value
        and (name in _STEERING or name.startswith(_STEERING_ALL))
        and not any(word in name for word in _NOT_STEERING)
    }


def cuda_version(number: int) -> str:
    """CUDA's version as words: 12080 is "12.8"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def cublas_version(cuda: str) -> str:
    """Version of the cuBLAS that this process has loaded, e.g. "12.8.4"; "" where it has none.

    `cuda` is the CUDA version whose major number names the library. Asks cublasGetProperty
    (cuBLAS reference, section 2.4), which needs no device.
    """
    name = f"libcublas.so.{cuda.partition('.')[0]}"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        ask = library.cublasGetProperty
    except (OSError, AttributeError):
        return ""
    parts = [ctypes.c_int() for _ in range(3)]  # libraryPropertyType: major, minor, patch
    if any(ask(kind, ctypes.byref(part)) for kind, part in enumerate(parts)):
        return ""
    return ".".join(str(part.value) for part in parts)
