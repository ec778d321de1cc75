# SPDX-License-Identifier: MIT
"""GPUs with nothing but the NVIDIA driver: kernels of our own as PTX, driven through libcuda."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.profiling.driver import allreduce, block, gemm, proof, ptx, traffic, vendor
from slurm_pal.profiling.driver.gpu import GpuContext, Marks
from slurm_pal.profiling.driver.library import LIBRARY, CudaLibrary
from slurm_pal.profiling.driver.workbench import Array, BenchLaunch, DriverWorkbench
from slurm_pal.profiling.node.backends import Setting
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import ANY_SLOT, DeviceError, DeviceInfo, Sensors, Telemetry
from slurm_pal.profiling.node.in_flight import InFlight

BUILDERS: dict[str, Callable[[DriverWorkbench], BenchLaunch]] = {
    "gemm_bf16": gemm.build,
    "gemm_bf16_wgmma": gemm.build,
    "gemm_bf16_tcgen05": gemm.build,
    "gemm_bf16_cublas": vendor.build,
    "gemm_fp16": gemm.build,
    "gemm_tf32": gemm.build,
    "gemm_fp32": gemm.build,
    "gemm_fp64": gemm.build,
    "tblock": block.build,
    "hbm_triad": traffic.triad,
    "hbm_copy": traffic.copy,
    "pcie_h2d": traffic.pcie_h2d,
    "pcie_d2h": traffic.pcie_d2h,
    "launch_latency": traffic.launch_latency,
    "p2p": traffic.p2p,
    "allreduce": allreduce.build,
}
LEAST_CAPABILITY = {"bf16": 80, "tf32": 80}
ALONE = {name: ptx.target_with(name) for name in ("gemm_bf16_wgmma", "gemm_bf16_tcgen05")}
"""Benchmarks whose kernel some architectures alone have."""


def _nvml() -> Sensors:
    from slurm_pal.profiling.node.nvml import Nvml

    return Nvml()


def available() -> str:
    """Why this backend cannot be used here; "" when it can. Initialises no device."""
    try:
        CudaLibrary(LIBRARY)
        return "" if _nvml().devices("", ANY_SLOT) else "there is no NVIDIA GPU here that answers"
    except DeviceError as error:
        return str(error)


def open_backend(setting: Setting) -> DriverBackend:
    """The backend for this machine's NVIDIA GPUs. Raises MissingPackageError."""
    why = available()
    if why:
        raise MissingPackageError(f"backend driver cannot be used: {why}")
    return DriverBackend(_nvml())


class DriverBackend:
    """NVIDIA GPUs, listed and watched by `sensors`, run through the library at `path`."""

    name = "driver"
    wall_scale = 1.0

    def __init__(self, sensors: Sensors, path: str = LIBRARY) -> None:
        self.version = ptx.version()
        self.telemetry: Telemetry = sensors
        self._sensors = sensors
        self._path = path
        self._library: CudaLibrary | None = None

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, as the management library lists them."""
        return self._sensors.devices(node, indexes)

    def library(self) -> CudaLibrary:
        """The driver, initialised in this process: only in a worker. Raises DeviceError."""
        if self._library is None:
            self._library = CudaLibrary(self._path)
        self._library.start()
        return self._library

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Why `spec` is not to be measured there, "" when it is. Initialises the driver: ask in its worker.

        A kernel that no card has confirmed is tried first.
        """
        return self.unable(device, spec) or proof.failure(device, spec, self._path)

    def unable(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Why `spec` cannot run there, "" when it can, right or wrong."""
        if spec.id not in BUILDERS:
            return f"backend driver has no kernel for {spec.id}"
        library = self.library()
        driver = library.driver_version()
        if driver < ptx.LEAST_DRIVER:
            return f"the driver serves CUDA {driver // 1000}.{driver % 1000 // 10}; the kernels need 11.0"
        missing = library.lacks(spec.id)
        if missing:
            return missing
        has = library.limits(library.find(device.uuid)).capability
        needs = max(LEAST_CAPABILITY.get(spec.dtype, 0), ptx.TARGETS[-1].least)
        alone = ALONE.get(spec.id)
        if alone and not alone.serves(has):
            return f"{spec.id} needs compute capability {alone.needs} (this is {has / 10:.1f})"
        if alone and driver < alone.driver:
            return f"{spec.id} needs a driver for CUDA {alone.driver // 1000}.{alone.driver % 1000 // 10} or later"
        if has < needs:
            what = spec.dtype if spec.dtype in LEAST_CAPABILITY else "kernel of this backend"
            return f"no {what} before compute capability {needs / 10:.1f} (this is {has / 10:.1f})"
        return vendor.lacks() if spec.id == "gemm_bf16_cublas" else ""

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> DriverKernel:
        """Allocate and fill what `spec` needs, on the device and its `peers`. Raises DeviceError."""
        return DriverKernel(self.library(), spec, (device, *peers))


class DriverKernel:
    """One benchmark on one device. Raises DeviceError where it cannot be built, and frees what it had."""

    def __init__(self, library: CudaLibrary, spec: Benchmark, devices: Sequence[DeviceInfo]) -> None:
        if spec.id not in BUILDERS:
            raise DeviceError(f"backend driver has no kernel for {spec.id}")
        self.unit = spec.unit
        self._id = spec.id
        self._gpus: list[GpuContext] = []
        self._flight: InFlight[Any] | None = None
        try:
            for info in devices:
                self._gpus.append(GpuContext(library, info))
            body = BUILDERS[spec.id](DriverWorkbench(spec, tuple(self._gpus)))
            self._flight = InFlight(body.launch, body.clock or Marks(self._gpus[0]))
        except DeviceError:
            self.close()
            raise
        self.work = body.work
        self.arrays = body.arrays
        self.libs = body.libs

    def run_block(self, n: int) -> float:
        """Launch `n` times; seconds of device time, with one block more in flight. Raises DeviceError."""
        if self._flight is None:
            raise DeviceError(f"{self._id}: the kernel is closed")
        self._gpus[0].use()
        return self._flight.run_block(n)

    def read(self, array: Array) -> bytes:
        """An array of the first device as it is when all that was launched has ended. Raises DeviceError."""
        return self._gpus[0].read(array.address, array.size)

    def close(self) -> None:
        """Wait for what is in flight and free everything. Harmless when called twice."""
        flight, self._flight = self._flight, None
        if flight is not None:
            with contextlib.suppress(DeviceError):  # a dead context takes its work along
                flight.drain()
        for gpu in self._gpus:
            with contextlib.suppress(DeviceError):
                gpu.wait()
        for gpu in reversed(self._gpus):  # only now: a peer's work may use the memory of another
            gpu.close()
        self._gpus.clear()
