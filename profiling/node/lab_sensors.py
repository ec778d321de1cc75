# SPDX-License-Identifier: MIT
"""Sensors of a lab's emulated GPUs in real time: they show the load that `pal lab work` claims to be.

The devices of `emu` have a virtual clock of their own and are busy only while they are measured. An
observer looks from outside at jobs that run in real time, so it needs this other view of the same
GPUs: power, clock and throttle reasons of a class by emu's table, the clock slower on a slow GPU, and how busy
memory and pipes are.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from slurm_pal.base.errors import UsageError
from slurm_pal.emulation.gpus import EmuGpu, Registry
from slurm_pal.emulation.load import load_of
from slurm_pal.profiling.node import emu
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.throttle import IDLE, SW_POWER_CAP

NOISE = 0.01
"""Of power and, under the cap, of the clock; white from second to second."""


class LabSensors:
    """The `Telemetry` of the GPUs in the registry at `path`, and their list."""

    def __init__(self, path: str, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._registry, self._clock = path, registry, clock
        self._slots: dict[str, EmuGpu] = {}

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs in these slots of `node`; an empty slot is left out."""
        found = []
        for index in indexes:
            try:
                gpu = self._registry.gpu(node, index)
            except UsageError:
                continue
            self._slots[gpu.uuid] = gpu
            found.append(DeviceInfo(gpu.uuid, "emu", gpu.model, index))
        return tuple(found)

    def static(self, device: DeviceInfo) -> Static:
        """The limits of emu's device."""
        return Static("emu", power_limit_w=emu.POWER_CAP_W, max_sm_clk_mhz=emu.MAX_CLOCK_MHZ)

    def counters(self, device: DeviceInfo) -> Counters:
        """Nothing is counted here."""
        return Counters()

    def watch(self, device: DeviceInfo) -> LabWatch:
        """The sensors of one of `devices()`."""
        return LabWatch(self._path, self._slots[device.uuid], self._clock)


class LabWatch:
    """The sensors of one emulated GPU."""

    def __init__(self, path: str, gpu: EmuGpu, clock: Callable[[], float]) -> None:
        self._path, self._gpu, self._clock = path, gpu, clock

    def sample(self) -> SensorSample:
        """What the GPU shows just now."""
        gpu, now_s = self._gpu, self._clock()
        sensitivity = load_of(self._path, gpu.node, gpu.index)
        load = emu.LOADS[sensitivity]
        draw = random.Random(f"{gpu.uuid} {int(now_s)}")
        power_w = emu.POWER_CAP_W * load.power * (1.0 - abs(draw.gauss(0.0, NOISE)))
        clock_mhz = emu.MAX_CLOCK_MHZ
        if load.capped:
            clock_mhz = emu.CAPPED_CLOCK_MHZ / gpu.true_slowdown(sensitivity) * draw.gauss(1.0, NOISE)
        reasons = IDLE if not sensitivity else SW_POWER_CAP if load.capped else 0
        dram, tensor = (share * (1.0 - abs(draw.gauss(0.0, NOISE))) for share in (load.dram, load.tensor))
        return SensorSample(
            now_s, min(clock_mhz, emu.MAX_CLOCK_MHZ), power_w=power_w, reasons=reasons,
            utilisation=1.0 if sensitivity else 0.0, dram=dram, tensor=tensor,
        )  # fmt: skip

    def take(self) -> tuple[SensorSample, ...]:
        """The current look: nobody looks in between."""
        return (self.sample(),)

    def close(self) -> None:
        """Nothing is open."""
