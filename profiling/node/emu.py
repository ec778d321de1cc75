# SPDX-License-Identifier: MIT
"""The emulated device: a GPU with a virtual clock, heat, noise and, if wanted, faults.

Real sleeping and real CPU kernels are far too noisy on a shared machine to show a
spread of 2 %, so time is virtual: `run_block` returns what the block would have taken
and sleeps only a small share of it, so that Slurm sees jobs that last. All draws come
from (UUID, sweep seed): the same sweep on the same lab gives the same numbers. Records
carry vendor "emu" and never mix with real ones. The hidden truth of each GPU, faults
included, is the lab's (slurm_pal.emulation.gpus).

Constants follow the public Longhorn SGEMM measurements (V100, 300 W): block noise,
temperature coefficient, and power and clock of each class (docs/measuring.md).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.emulation.gpus import EmuGpu, Registry
from slurm_pal.emulation.models import BELOW_CAP, EmuModel, emulated_model
from slurm_pal.profiling.node import throttle
from slurm_pal.profiling.node.benchmarks import Benchmark
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.host import Host
from slurm_pal.variability.params import TIME_UNITS

POWER_CAP_W = 300.0
MAX_CLOCK_MHZ = 1530.0
CAPPED_CLOCK_MHZ = 1365.0
NOISE = 0.0005  # of block time; once white, once AR(1)
AR_COEFFICIENT = 0.7
DEFAULT_WALL_SCALE = 0.01
MIG_PROFILE = "3g.8gb"


HELD_BACK = {"throttle": throttle.HW_SLOWDOWN, "thermal": throttle.SW_THERMAL, "power_brake": throttle.POWER_BRAKE}
"""Faults that hold the clock back, with the throttle reason that each gives."""

HOT_C = 16.0  # warmer than its peers under the fault `thermal`
LANES = 16
HZ = 10.0  # looks at the sensors per second of device time
HOST_CORES = 16
PAIR_SPREAD = 0.005  # relative SD between links


class _Load(NamedTuple):
    power: float  # share of the power cap
    per_c: float  # loss of speed per degree
    capped: bool
    dram: float = 0.0  # share of the memory bandwidth [our choice, as is the next]
    tensor: float = 0.0  # share of the time of the busiest pipe


LOADS = {
    "A": _Load(1.0, 0.00107, True, 0.30, 0.85),
    "B": _Load(0.6, 0.35 * 0.00107, False, 0.45, 0.40),
    "C": _Load(0.27, 0.0, False, 0.90, 0.05),
    "": _Load(0.15, 0.0, False),
}


def _steady_c(load: _Load) -> float:
    return 41.5 + 23.5 * load.power  # 65 degC at the cap, 45 degC idle


def _load(model: EmuModel, spec: Benchmark) -> _Load:
    """What a benchmark makes of a GPU of this model."""
    usual = LOADS[spec.sensitivity_class]
    power = model.power_share(spec.id, spec.sensitivity_class)
    return usual._replace(power=power, capped=power >= 1.0, per_c=usual.per_c if power >= usual.power else 0.0)


class Device:
    """The state of one emulated GPU: virtual clock, temperature, energy, load."""

    def __init__(self, gpu: EmuGpu, node: str, seed: int, wall_scale: float, host_factor: float = 1.0) -> None:
        self.gpu = gpu
        self.seed = seed
        self.faults = gpu.faults
        self.model = emulated_model(gpu.model)
        self.tau_s = self.model.time_constant_s(random.Random(f"{gpu.uuid} tau").random())
        self.host_factor = host_factor  # launches and host-bound work take this many times as long
        self.clock_s = 0.0
        self.energy_j = 0.0
        self.load = LOADS[""]
        self.sm_clk_mhz = MAX_CLOCK_MHZ
        self.ecc_errors = 0
        self.busy = False
        self.watch: EmuWatch | None = None
        self.prepared: dict[str, int] = {}  # what ran on it -> how often: no two runs have the same noise
        # The room is not the same in every sweep, nor in every corner of it.
        draw = random.Random(f"{seed} {node} room")
        self.room_c = draw.gauss(0.0, 0.5) + random.Random(f"{seed} {gpu.uuid} slot").gauss(0.0, 0.5)
        self.temp_c = _steady_c(self.load) + self.room_c
        self._wall_scale = wall_scale
        self._owed_s = 0.0

    @property
    def power_w(self) -> float:
        """Power now; a GPU that is held back draws less than its peers."""
        held = max((self.gpu.factor(name) for name in HELD_BACK), default=1.0)
        return self.load.power * POWER_CAP_W / (held if self.load.capped else 1.0)

    @property
    def reasons(self) -> int:
        """Mask of throttle reasons now."""
        if not self.busy:
            return throttle.IDLE
        held = [bit for name, bit in HELD_BACK.items() if name in self.faults]
        return sum(held) if held else throttle.SW_POWER_CAP if self.load.capped else 0

    def advance(self, seconds: float, load: _Load, sm_clk_mhz: float) -> None:
        """Let device time pass under a load; sleeps the agreed share of it."""
        self.load, self.sm_clk_mhz, self.busy = load, sm_clk_mhz, True
        goal_c = _steady_c(load) + self.room_c + (HOT_C if "thermal" in self.faults else 0.0)
        start_s, start_c = self.clock_s, self.temp_c
        end_s = start_s + seconds
        if self.watch:
            for at_s in self.watch.due(end_s):
                self.clock_s, self.temp_c = at_s, self._towards(goal_c, start_c, at_s - start_s)
                self.watch.look()
        self.clock_s, self.temp_c = end_s, self._towards(goal_c, start_c, seconds)
        self.energy_j += seconds * self.power_w
        self._owed_s += seconds * self._wall_scale
        if self._owed_s >= 0.02:  # a few long sleeps cost less CPU than many short ones
            time.sleep(self._owed_s)
            self._owed_s = 0.0

    def _towards(self, goal_c: float, start_c: float, seconds: float) -> float:
        return goal_c + (start_c - goal_c) * math.exp(-seconds / self.tau_s)


class EmuWatch:
    """Looks at an emulated GPU, ten for each second of its virtual time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._taken: list[SensorSample] = []
        self._next_s = device.clock_s
        device.watch = self

    def due(self, end_s: float) -> Iterator[float]:
        """The times up to `end_s` at which to look."""
        while self._next_s <= end_s:
            yield self._next_s
            self._next_s += 1.0 / HZ

    def look(self) -> None:
        """Keep one look at the device as it is now."""
        self._taken.append(self.sample())

    def sample(self) -> SensorSample:
        now = self._device
        return SensorSample(
            t_s=now.clock_s,
            sm_clk_mhz=now.sm_clk_mhz,
            mem_clk_mhz=877.0,
            power_w=now.power_w,
            temp_c=now.temp_c,
            mem_temp_c=now.temp_c + 5.0,
            reasons=now.reasons,
            pcie_gen=3,
            pcie_width=max(1, min(LANES, int(LANES / now.gpu.factor("pcie")))),
            dram=now.load.dram if now.busy else 0.0,
            tensor=now.load.tensor if now.busy else 0.0,
        )

    def take(self) -> tuple[SensorSample, ...]:
        taken, self._taken = tuple(self._taken), []
        return taken

    def close(self) -> None:
        self._device.watch = None


class EmuKernel:
    """One benchmark on one emulated GPU, beside its `peers`."""

    def __init__(self, device: Device, spec: Benchmark, peers: Sequence[Device] = (), across: float = 1.0) -> None:
        self.work = spec.work
        self.unit = spec.unit
        self._device = device
        self._class = spec.sensitivity_class
        self._load = _load(device.model, spec)
        self._slowdown = _slowdown(device, spec, peers, self._load) * device.gpu.factor("transient")
        self._launch_s = _launch_s(spec) * across  # what the network makes of work over several nodes
        self._noise = NOISE * (30.0 if "noisy" in device.faults else 1.0)
        names = " ".join((spec.id, *(peer.gpu.uuid for peer in peers)))
        again = device.prepared.get(names, 0)
        device.prepared[names] = again + 1
        self._draw = random.Random(f"{device.gpu.uuid} {device.seed} {names}" + (f" {again}" if again else ""))
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

    def close(self) -> None:
        """Nothing is held."""
        self._device.busy = False

    def _suffer(self) -> None:
        device = self._device
        if "error" in device.faults:
            raise DeviceError(f"emulated fault: {device.gpu.uuid} has fallen off the bus (Xid 79)", "xid")
        if "ecc" in device.faults and not device.ecc_errors:
            device.ecc_errors = 2
        while "hang" in device.faults and self._class == "A":
            time.sleep(3600)


def _launch_s(spec: Benchmark) -> float:
    """Seconds that one launch takes on a device of nominal speed."""
    if spec.unit in TIME_UNITS:
        return spec.nominal / spec.scale
    return spec.value(1, 1.0) / spec.nominal


def _slowdown(device: Device, spec: Benchmark, peers: Sequence[Device], load: _Load) -> float:
    """How much slower than nominal this benchmark is here, faults included."""
    if spec.sensitivity_class:
        host = device.host_factor if spec.sensitivity_class == "B" else 1.0
        slower = device.gpu.true_slowdown(spec.sensitivity_class)
        if spec.sensitivity_class == "A" and not load.capped:
            held = math.prod(device.gpu.factor(name) for name in HELD_BACK)  # what holds it back does so at any power
            slower = held * (1.0 + BELOW_CAP * (slower / held - 1.0))
        return slower * host
    if peers:  # over links of their own, each pair with its own fixed slowdown
        pair = " ".join(sorted(one.gpu.uuid for one in (device, *peers)))
        return 1.0 + abs(random.Random(pair).gauss(0.0, PAIR_SPREAD))
    if spec.unit in TIME_UNITS:
        return device.host_factor
    return device.gpu.factor("pcie") * device.host_factor


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
            mig_mode=MIG_PROFILE if device.parent else "disabled",
            max_sm_clk_mhz=MAX_CLOCK_MHZ,
            pcie_max_width=LANES,
        )

    def watch(self, device: DeviceInfo) -> EmuWatch:
        return EmuWatch(self._devices[device.uuid])

    def counters(self, device: DeviceInfo) -> Counters:
        now = self._devices[device.uuid]
        others = ("pid 4711 of uid 65534, 2048 MiB (emulated)",) if "foreign_process" in now.faults else ()
        return Counters(now.energy_j, now.ecc_errors, others)


class EmuBackend:
    """Emulated GPUs of a lab, as its registry describes them.

    `wear(node, index)` is called for a GPU whose faults change when it is measured, once it has
    been listed: `transient` is gone afterwards, `ageing` makes it slower.
    """

    name = "emu"
    version = "2"  # raised whenever the emulated physics change

    def __init__(
        self,
        registry: Registry,
        seed: int,
        wall_scale: float = DEFAULT_WALL_SCALE,
        wear: Callable[[str, int], None] | None = None,
    ) -> None:
        self.wall_scale = wall_scale
        self._registry = registry
        self._seed = seed
        self._wear = wear
        self._devices: dict[str, Device] = {}
        self.telemetry = EmuTelemetry(self._devices)

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs in these slots of `node`; an empty slot or a `missing` GPU is left out."""
        found = []
        host = max((gpu.factor("host") for gpu in self._registry.on_node(node)), default=1.0)
        for index in indexes:
            try:
                gpu = self._registry.gpu(node, index)
            except UsageError:
                continue
            if "missing" in gpu.faults:
                continue
            if self._wear and {"transient", "ageing"}.intersection(gpu.faults):
                self._wear(node, index)
            part = "mig" in gpu.faults
            uuid = gpu.uuid.replace("GPU-", "MIG-", 1) if part else gpu.uuid
            self._devices[uuid] = Device(gpu, node, self._seed, self.wall_scale, host)
            bus = f"00000000:{index + 1:02X}:00.0"
            info = DeviceInfo(uuid, "emu", gpu.model, index, bus, index, vbios="emu-1", mem_bytes=16 * 2**30)
            found.append(info._replace(parent=gpu.uuid if part else ""))
        return tuple(found)

    def lacks(self, device: DeviceInfo, spec: Benchmark) -> str:
        """Nothing: every benchmark can be emulated."""
        return ""

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        """A kernel on one of `devices()`; its peers may be those of other nodes."""
        own, others = self._devices[device.uuid], [self._devices[peer.uuid] for peer in peers]
        return EmuKernel(own, spec, others, self._registry.across({one.gpu.node for one in (own, *others)}))

    def host(self) -> Host:
        """The emulated node, whose processors have nothing to do with this machine's."""
        busy = max((device.host_factor for device in self._devices.values()), default=1.0) > 1.0
        return Host(load=2.0 * HOST_CORES if busy else 1.0, cores=HOST_CORES)
