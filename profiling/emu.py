"""The emulated device: a GPU with a virtual clock, heat, noise and, if wished, faults.

Real sleeping and real CPU kernels are far too noisy on a shared machine to show a
spread of 2 %, so time is virtual: `run_block` returns what the block would have taken
and sleeps only a small share of it, so that Slurm sees jobs that last. All draws come
from (UUID, sweep seed): the same sweep on the same lab gives the same numbers. Records
carry vendor "emu" and never mix with real ones. The hidden truth of each GPU, faults
included, is the lab's (slurm_pal.lab.gpus).

Constants follow the public Longhorn SGEMM measurements (V100, 300 W): block noise,
temperature coefficient, and power and clock of each class (docs/measuring.md).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_pal.errors import UsageError
from slurm_pal.lab.gpus import EmuGpu, Registry
from slurm_pal.profiling import devices as bits
from slurm_pal.profiling.benchmarks import Benchmark
from slurm_pal.profiling.devices import Counters, DeviceError, DeviceInfo, Sample, Static

POWER_CAP_W = 300.0
MAX_CLOCK_MHZ = 1530.0
CAPPED_CLOCK_MHZ = 1365.0
THERMAL_TAU_S = 20.0
NOISE = 0.0005  # of block time; once white, once AR(1)
AR_COEFFICIENT = 0.7
DEFAULT_WALL_SCALE = 0.01


class _Load(NamedTuple):
    power: float  # share of the power cap
    per_c: float  # loss of speed per degree
    capped: bool


_LOADS = {
    "A": _Load(1.0, 0.00107, True),
    "B": _Load(0.6, 0.35 * 0.00107, False),
    "C": _Load(0.27, 0.0, False),
    "": _Load(0.15, 0.0, False),
}


def _steady_c(load: _Load) -> float:
    return 41.5 + 23.5 * load.power  # 65 degC at the cap, 45 degC idle


class Device:
    """The state of one emulated GPU: virtual clock, temperature, energy, load."""

    def __init__(self, gpu: EmuGpu, node: str, seed: int, wall_scale: float) -> None:
        self.gpu = gpu
        self.seed = seed
        self.faults = gpu.faults
        self.clock_s = 0.0
        self.energy_j = 0.0
        self.load = _LOADS[""]
        self.sm_clk_mhz = MAX_CLOCK_MHZ
        self.ecc_errors = 0
        # The room is not the same in every sweep, nor in every corner of it.
        draw = random.Random(f"{seed} {node} room")
        self.room_c = draw.gauss(0.0, 0.5) + random.Random(f"{seed} {gpu.uuid} slot").gauss(0.0, 0.5)
        self.temp_c = _steady_c(self.load) + self.room_c
        self._wall_scale = wall_scale
        self._owed_s = 0.0

    def advance(self, seconds: float, load: _Load, sm_clk_mhz: float) -> None:
        """Let device time pass under a load; sleeps the agreed share of it."""
        self.load = load
        self.sm_clk_mhz = sm_clk_mhz
        self.clock_s += seconds
        self.energy_j += seconds * load.power * POWER_CAP_W
        goal_c = _steady_c(load) + self.room_c
        self.temp_c = goal_c + (self.temp_c - goal_c) * math.exp(-seconds / THERMAL_TAU_S)
        self._owed_s += seconds * self._wall_scale
        if self._owed_s >= 0.02:  # few long sleeps cost less CPU than many short ones
            time.sleep(self._owed_s)
            self._owed_s = 0.0


class EmuKernel:
    """One benchmark on one emulated GPU."""

    def __init__(self, device: Device, spec: Benchmark) -> None:
        self.work = spec.work
        self.unit = spec.unit
        self._device = device
        self._class = spec.sensitivity_class
        self._load = _LOADS[spec.sensitivity_class]
        self._slowdown = device.gpu.true_slowdown(spec.sensitivity_class)
        self._slowdown *= float(device.faults.get("transient", 1.0))
        self._launch_s = spec.value(1, 1.0) / spec.nominal
        self._noise = NOISE * (30.0 if "noisy" in device.faults else 1.0)
        self._draw = random.Random(f"{device.gpu.uuid} {device.seed} {spec.id}")
        self._ar = 0.0

    def run_block(self, n: int) -> float:
        """Seconds of virtual device time for `n` launches. Raises DeviceError under the fault `error`."""
        device = self._device
        self._suffer()
        speed = 1.0 - self._load.per_c * (device.temp_c - _steady_c(self._load))
        innovation = self._noise * math.sqrt(1.0 - AR_COEFFICIENT**2)
        self._ar = AR_COEFFICIENT * self._ar + self._draw.gauss(0.0, innovation)
        jitter = 1.0 + self._ar + self._draw.gauss(0.0, self._noise)
        seconds = n * self._launch_s * self._slowdown / speed * max(jitter, 0.5)
        clock = min(MAX_CLOCK_MHZ, CAPPED_CLOCK_MHZ * speed / self._slowdown) if self._load.capped else MAX_CLOCK_MHZ
        device.advance(seconds, self._load, clock)
        return seconds

    def _suffer(self) -> None:
        device = self._device
        if "error" in device.faults:
            raise DeviceError(f"emulated fault: {device.gpu.uuid} has fallen off the bus (Xid 79)", "xid")
        if "ecc" in device.faults and not device.ecc_errors:
            device.ecc_errors = 2
        while "hang" in device.faults and self._class == "A":
            time.sleep(3600)


class EmuTelemetry:
    """Sensors of the emulated GPUs."""

    def __init__(self, devices: dict[str, Device]) -> None:
        self._devices = devices

    def static(self, device: DeviceInfo) -> Static:
        return Static(
            driver="emu-1",
            power_limit_w=POWER_CAP_W,
            default_power_limit_w=POWER_CAP_W,
            ecc_mode="enabled",
        )

    def sample(self, device: DeviceInfo) -> Sample:
        now = self._devices[device.uuid]
        reasons = bits.SW_POWER_CAP if now.load.capped else 0
        return Sample(
            now.clock_s, now.sm_clk_mhz, 877.0, now.load.power * POWER_CAP_W, now.temp_c, now.temp_c + 5.0, reasons
        )

    def counters(self, device: DeviceInfo) -> Counters:
        now = self._devices[device.uuid]
        others = ("pid 4711 of uid 65534, 2048 MiB (emulated)",) if "foreign_process" in now.faults else ()
        return Counters(now.energy_j, now.ecc_errors, others)


class EmuBackend:
    """Emulated GPUs of a lab, as its registry describes them.

    `spend(node, index)` is called for a GPU with a `transient` fault, once it has been
    listed: only its first measurement suffers.
    """

    name = "emu"

    def __init__(
        self,
        registry: Registry,
        seed: int,
        wall_scale: float = DEFAULT_WALL_SCALE,
        spend: Callable[[str, int], None] | None = None,
    ) -> None:
        self.wall_scale = wall_scale
        self._registry = registry
        self._seed = seed
        self._spend = spend
        self._devices: dict[str, Device] = {}
        self.telemetry = EmuTelemetry(self._devices)

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs in these slots of `node`; an empty slot or a `missing` GPU is left out."""
        found = []
        for index in indexes:
            try:
                gpu = self._registry.gpu(node, index)
            except UsageError:
                continue
            if "missing" in gpu.faults:
                continue
            if "transient" in gpu.faults and self._spend:
                self._spend(node, index)
            self._devices[gpu.uuid] = Device(gpu, node, self._seed, self.wall_scale)
            bus = f"00000000:{index + 1:02X}:00.0"
            found.append(DeviceInfo(gpu.uuid, "emu", gpu.model, index, bus, index, vbios="emu-1", mem_bytes=16 * 2**30))
        return tuple(found)

    def prepare(self, device: DeviceInfo, spec: Benchmark) -> EmuKernel:
        """A kernel on one of `devices()`."""
        return EmuKernel(self._devices[device.uuid], spec)
