"""What the runner needs of a device: three protocols and the plain data they exchange.

A backend brings kernels and telemetry for one family of devices; the runner, the
watchdog and the record know nothing beyond what stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from slurm_pal.errors import PalError
from slurm_pal.profiling.benchmarks import Benchmark

# Throttle reasons, with NVML's bit values (nvmlClocksEventReason*).
IDLE, APP_CLOCKS, SW_POWER_CAP, HW_SLOWDOWN, SYNC_BOOST = 1, 2, 4, 8, 16
SW_THERMAL, HW_THERMAL, POWER_BRAKE, DISPLAY = 32, 64, 128, 256


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


class Static(NamedTuple):
    """What does not change while a benchmark runs, and decides what may be compared."""

    driver: str
    runtime: str = ""
    libs: dict[str, str] = {}
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    app_clocks_mhz: float | None = None
    ecc_mode: str = "unknown"
    mig_mode: str = "disabled"

    def comparable(self) -> dict[str, str]:
        """The part of this that enters the method hash."""
        limit = "" if self.power_limit_w is None else f"{self.power_limit_w:g}"
        fixed = {
            "driver": self.driver.partition(".")[0],
            "power_limit_w": limit,
            "ecc": self.ecc_mode,
            "mig": self.mig_mode,
        }
        return fixed | {f"lib:{name}": version for name, version in self.libs.items()}


class Sample(NamedTuple):
    """One look at the sensors; a device may lack any of them."""

    t_s: float  # device time, s
    sm_clk_mhz: float | None = None
    mem_clk_mhz: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    mem_temp_c: float | None = None
    reasons: int | None = None  # mask of throttle reasons


class Counters(NamedTuple):
    """Values that only grow, read before and after, and who else is on the device."""

    energy_j: float | None = None
    ecc_uncorrected: int | None = None
    others: tuple[str, ...] = ()  # compute processes that are not ours, described


class Kernel(Protocol):
    """One benchmark, ready to run on one device."""

    work: float  # FLOP, steps or bytes per launch
    unit: str

    def run_block(self, n: int) -> float:
        """Launch `n` times back to back; seconds of device time. Raises DeviceError."""
        ...


class Telemetry(Protocol):
    """The sensors of a backend's devices."""

    def static(self, device: DeviceInfo) -> Static: ...

    def sample(self, device: DeviceInfo) -> Sample: ...

    def counters(self, device: DeviceInfo) -> Counters: ...


class Backend(Protocol):
    """One family of devices."""

    name: str
    wall_scale: float  # wall seconds per second of device time: 1 on real devices

    @property
    def telemetry(self) -> Telemetry: ...

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The devices behind these Slurm indexes; one that does not answer is left out."""
        ...

    def prepare(self, device: DeviceInfo, spec: Benchmark) -> Kernel:
        """Allocate and build what `spec` needs. Raises DeviceError."""
        ...
