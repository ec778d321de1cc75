# SPDX-License-Identifier: MIT
"""Where a benchmark is built: its devices, arrays filled by seeded numbers, and what one launch is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from slurm_pal.profiling.driver.arguments import Normal, NumberFormat
from slurm_pal.profiling.driver.gpu import GpuContext
from slurm_pal.profiling.node import inputs
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import DeviceError
from slurm_pal.profiling.node.in_flight import Clock

_MOST_BLOCKS = 4096


class Array(NamedTuple):
    """Numbers in device memory, row-major."""

    address: int
    format: NumberFormat
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.format.size


class BenchLaunch(NamedTuple):
    """One launch of a benchmark, and what it works on."""

    launch: Callable[[], object]
    work: float  # FLOP, steps, bytes or launches per launch
    arrays: dict[str, Array] = {}
    clock: Clock[Any] | None = None  # where it is not the first device's own
    libs: dict[str, str] = {}  # what it runs besides the backend's own kernels, with its version


class DriverWorkbench:
    """What a benchmark is built from: the device that it measures first, then the peers."""

    def __init__(self, spec: Benchmark, gpus: tuple[GpuContext, ...]) -> None:
        self.spec = spec
        self.gpus = gpus
        self.gpu = gpus[0]
        self._streams: Iterator[int] = itertools.count()

    def load(self, names: Iterable[str]) -> None:
        """Compile these kernels, and the one that draws numbers."""
        self.gpu.load({*names, "normal_fill"})

    def empty(self, form: NumberFormat, *shape: int) -> Array:
        """An array on the first device, not filled."""
        array = Array(0, form, shape)
        return array._replace(address=self.gpu.allocate(array.size))

    def normal(self, form: NumberFormat, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
        """An array of N(offset, scale^2) numbers, the same in every run of this benchmark."""
        array = self.empty(form, *shape)
        count = math.prod(shape)
        seed, stream = inputs.seed(self.spec.id), next(self._streams)
        drawn = Normal(array.address, count, seed, stream, form, scale, offset)
        self.gpu.launch("normal_fill", (max(1, min(_MOST_BLOCKS, count // 1024)), 1), drawn)()
        self.gpu.wait()
        return array

    def array_bytes(self, multiple: int) -> int:
        """Bytes of one array, from the benchmark's shape. Raises DeviceError unless a multiple of `multiple`."""
        size = inputs.array_bytes(self.spec.shape)
        if size % multiple:
            raise DeviceError(f"{self.spec.id}: arrays of {size} bytes; wanted a multiple of {multiple}")
        return size
