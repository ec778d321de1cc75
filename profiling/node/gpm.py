# SPDX-License-Identifier: MIT
"""How busy memory and pipes of an NVIDIA GPU are, by NVML's GPU performance monitoring (GPM).

Hopper and later, driver 520 and later. NVML counts between two samples that it takes itself, at least 100 ms apart
(NVML API reference, "GPM Functions"). GPM has its own counters, so it does not disturb profilers, unlike
DCGM on older cards. Whether an ordinary user may ask depends on the driver: the first sample shows.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from slurm_pal.profiling.node.devices import DeviceError

if TYPE_CHECKING:
    from slurm_pal.profiling.node.nvml import Foreign, NvmlLibrary

EVERY_S = 0.5
"""Between two samples: often enough for the looks of an observer, seldom enough to cost next to nothing."""
_TENSOR, _DRAM = 5, 10  # NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL
_FLOATS = (11, 12, 13)  # NVML_GPM_METRIC_FP64_UTIL, FP32, FP16: the pipes beside the tensor cores
_METRICS = (_TENSOR, _DRAM, *_FLOATS)
_TRIES = 3  # failures in a row, after which it stops asking


class Activity(NamedTuple):
    """Means since the previous look; None where the card does not report them."""

    dram: float | None = None  # share of the highest memory bandwidth in use, 0..1
    tensor: float | None = None  # share of time: the highest of tensor, FP64, FP32 and FP16 pipes, 0..1


class Gpm:
    """GPM of one device, or of one MIG instance of it. `open_gpm` makes it."""

    def __init__(
        self, library: NvmlLibrary, handle: Foreign, instance: int | None, samples: tuple[Foreign, Foreign]
    ) -> None:
        self._library, self._handle, self._instance = library, handle, instance
        self._before, self._after = samples
        module = library.open()
        self._wanted = module.c_nvmlGpmMetricsGet_t()  # 19 KB: made once
        self._wanted.version, self._wanted.numMetrics = module.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        for i, number in enumerate(_METRICS):
            self._wanted.metrics[i].metricId = number

    def sample(self) -> bool:
        """Take a sample in place of the older one; return whether that was possible."""
        name = "nvmlGpmSampleGet" if self._instance is None else "nvmlGpmMigSampleGet"
        which = (self._handle,) if self._instance is None else (self._handle, self._instance)
        if self._library.ask(name, *which, self._before) is None:
            return False
        self._before, self._after = self._after, self._before
        return True

    def read(self) -> Activity | None:
        """What happened since the last call; None where that is unknown. Raises DeviceError when the GPU is lost."""
        if not self.sample():
            return None
        self._wanted.sample1, self._wanted.sample2 = self._before, self._after
        if self._library.ask("nvmlGpmMetricsGet", self._wanted) is None:
            return None
        return _activity({number: _share(self._wanted.metrics[i]) for i, number in enumerate(_METRICS)})

    def close(self) -> None:
        """Free the samples."""
        for sample in (self._before, self._after):
            self._library.ask("nvmlGpmSampleFree", sample)


def open_gpm(library: NvmlLibrary, uuid: str) -> Gpm | None:
    """GPM of a GPU or MIG device, its first sample taken; None where card, driver or permission lacks it.

    Raises DeviceError when the GPU is lost.
    """
    handle = library.handle(uuid)
    support = library.ask("nvmlGpmQueryDeviceSupport", handle)
    if support is None or not support.isSupportedDevice:
        return None
    instance = library.ask("nvmlDeviceGetGpuInstanceId", library.part(uuid)) if uuid.startswith("MIG-") else None
    if uuid.startswith("MIG-") and instance is None:
        return None
    samples = library.ask("nvmlGpmSampleAlloc"), library.ask("nvmlGpmSampleAlloc")
    if None in samples:
        return None
    gpm = Gpm(library, handle, instance, samples)
    if gpm.sample():
        return gpm
    gpm.close()
    return None


class Beside:
    """GPM read in a thread of its own: a call that hangs or is slow delays this, but no look at the other sensors."""

    def __init__(self, library: NvmlLibrary, uuid: str, every_s: float = EVERY_S) -> None:
        self._library, self._uuid, self._every_s = library, uuid, every_s
        self._newest: Activity | None = None
        self.thread = threading.Thread(target=self._live, daemon=True)
        with contextlib.suppress(RuntimeError):  # threads count among a user's processes, which may be used up
            self.thread.start()

    def take(self) -> Activity:
        """The newest reading, once; one without values if there is none since the last call."""
        newest, self._newest = self._newest, None
        return newest or Activity()

    def _live(self) -> None:
        """Read until it has failed too often. Any failure here only leaves two fields empty."""
        try:
            gpm = open_gpm(self._library, self._uuid)
            failed = 0
            while gpm is not None and failed < _TRIES:
                time.sleep(self._every_s)
                self._newest = gpm.read()
                failed = 0 if self._newest else failed + 1
            if gpm is not None:
                gpm.close()
        except (DeviceError, AttributeError, TypeError, ValueError, OSError):
            pass  # GPU lost, or a package that does not know GPM


def _share(metric: Foreign) -> float | None:
    """One metric, given in percent."""
    if metric.nvmlReturn != 0 or not math.isfinite(metric.value):
        return None
    return float(min(max(metric.value / 100.0, 0.0), 1.0))


def _activity(told: dict[int, float | None]) -> Activity:
    """Without the tensor cores nothing is reported on the pipes: the others alone would call a matrix product idle."""
    tensor = told[_TENSOR]
    if tensor is not None:
        tensor = max(tensor, *(share for number in _FLOATS if (share := told[number]) is not None), 0.0)
    return Activity(told[_DRAM], tensor)
