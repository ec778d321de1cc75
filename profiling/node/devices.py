# SPDX-License-Identifier: MIT
"""What the runner needs of a device: three protocols and the plain data they exchange.

A backend brings kernels and telemetry for one family of devices; the runner, the
watchdog and the record know nothing beyond what is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from slurm_pal.base.errors import PalError
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.host import Host
from slurm_pal.variability.power_limit import limit_text

# Throttle reasons, with NVML's bit values (nvmlClocksEventReason*).
IDLE, SW_POWER_CAP, HW_SLOWDOWN = 1, 4, 8
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 32, 64, 128

ANY_SLOT = range(64)
"""More than a node has: to find out whether there is any GPU, since the first may be dead."""


class DeviceError(PalError):
    """A device refused or broke; the text is what it said.

    `flag` is the record's flag for it, e.g. "xid" when the driver reported a fault.
    """

    def __init__(self, text: str, flag: str = "") -> None:
        super().__init__(text)
        self.flag = flag


class DeviceInfo(NamedTuple):
    """Which GPU this is."""

    uuid: str
    vendor: str
    model: str
    slot: int  # Slurm's GPU index, which follows the PCI order
    pci_bus_id: str = ""
    minor: int | None = None
    serial: str | None = None
    vbios: str = ""
    mem_bytes: int = 0
    numa_node: int | None = None
    parent: str = ""  # UUID of the physical GPU when this is a partition of it (MIG)


class Static(NamedTuple):
    """What does not change while a benchmark runs, and decides what may be compared."""

    driver: str
    runtime: str = ""
    libs: dict[str, str] = {}
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    app_clocks_mhz: float | None = None
    ecc_mode: str = "unknown"
    mig_mode: str = "disabled"  # or "enabled", or the profile of the partition that is measured
    mps: bool = False  # an MPS server shares the device
    max_sm_clk_mhz: float | None = None
    pcie_max_width: int | None = None  # lanes that device and slot have

    def comparable(self) -> dict[str, str]:
        """The part of this that enters the method hash."""
        fixed = {
            "driver": self.driver.partition(".")[0],
            "power_limit_w": limit_text(self.power_limit_w),
            "ecc": self.ecc_mode,
            "mig": self.mig_mode,
        }
        return fixed | {f"lib:{name}": version for name, version in self.libs.items()}


class SensorSample(NamedTuple):
    """One look at the sensors; a device may lack any of them."""

    t_s: float  # device time, s
    sm_clk_mhz: float | None = None
    mem_clk_mhz: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    reasons: int | None = None  # mask of throttle reasons
    power_avg_w: float | None = None  # the driver's own average, where `power_w` is the instantaneous one
    utilisation: float | None = None  # share of the last interval with a kernel running, 0..1
    pcie_gen: int | None = None
    pcie_width: int | None = None
    dram: float | None = None  # share of the highest memory bandwidth in use, 0..1
    tensor: float | None = None  # share of time that tensor or floating-point pipes were busy, 0..1


class Counters(NamedTuple):
    """Values that only grow, read before and after, and who else is on the device."""

    energy_j: float | None = None
    ecc_uncorrected: int | None = None
    others: tuple[str, ...] = ()  # compute processes that are not ours, described
    ecc_corrected: int | None = None
    remap_failed: bool | None = None  # a row of memory could not be remapped, or waits for a reset
    pcie_replays: int | None = None
    violation_s: dict[str, float] = {}  # time spent below the wanted clock, by cause (power, thermal, ...)
    xids: tuple[int, ...] = ()  # critical errors that the driver reported since the watch began
    used_bytes: int | None = None  # device memory in use by anybody


class Kernel(Protocol):
    """One benchmark, ready to run on one device."""

    work: float  # FLOP, steps or bytes per launch
    unit: str

    def run_block(self, n: int) -> float:
        """Launch `n` times back to back; return seconds of device time. Raises DeviceError.

        A real device may keep the next block in flight and return the time of the one before,
        so that it never idles between blocks; but what it returns is always the time of `n`
        launches, so after a call with another `n` it starts afresh.
        """
        ...

    def close(self) -> None:
        """Wait for what is in flight and free the device's memory; harmless when called twice."""
        ...


class Watch(Protocol):
    """Sensors of one device while something runs on it."""

    def sample(self) -> SensorSample:
        """The newest look; all fields but `t_s` may be None."""
        ...

    def take(self) -> tuple[SensorSample, ...]:
        """All looks since the last call, oldest first."""
        ...

    def close(self) -> None:
        """Stop looking; harmless when called twice."""
        ...


class Telemetry(Protocol):
    """The sensors of a backend's devices; every field they give is optional."""

    def static(self, device: DeviceInfo) -> Static: ...

    def watch(self, device: DeviceInfo) -> Watch: ...

    def counters(self, device: DeviceInfo) -> Counters: ...


class Sensors(Telemetry, Protocol):
    """A vendor's management library, or what stands in for it: sensors that list their devices."""

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The devices behind these Slurm indexes; one that does not answer is left out."""
        ...


@runtime_checkable
class OwnHost(Protocol):
    """A backend whose devices are not on this machine's processors: it reports on their host itself."""

    def host(self) -> Host: ...


class Backend(Protocol):
    """One family of devices. One that also emulates the host is an `OwnHost` as well."""

    name: str
    version: str  # of the library or kernels: enters the method hash
    wall_scale: float  # wall seconds per second of device time: 1 on real devices

    @property
    def telemetry(self) -> Telemetry: ...

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The devices behind these Slurm indexes; one that does not answer is left out."""
        ...

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Why `spec` cannot run there ("no bf16 before compute capability 8.0"); "" when it can."""
        ...

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> Kernel:
        """Allocate and build what `spec` needs, `peers` being the other GPUs. Raises DeviceError."""
        ...
