# SPDX-License-Identifier: MIT
"""Versions of the libraries that a backend's kernels come from: part of the method."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

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
        return found._replace(libs={**found.libs, **self._libs()})

    def watch(self, device: DeviceInfo) -> Watch:
        return self._sensors.watch(device)

    def counters(self, device: DeviceInfo) -> Counters:
        return self._sensors.counters(device)


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
