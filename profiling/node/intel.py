# SPDX-License-Identifier: MIT
"""Intel devices and their sensors, from sysfs (drivers xe and i915), without a library.

The files are those of the kernel's ABI documents sysfs-driver-intel-xe-hwmon,
sysfs-driver-intel-i915-hwmon and "Xe GT Frequency Management"; client memory is that of
"DRM client usage stats". Kernels and cards have some of them. Written from the documents.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from glob import glob

from slurm_pal.profiling.node import throttle
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.nvml import numa_node
from slurm_pal.profiling.node.process_owners import NodeProcesses
from slurm_pal.profiling.node.sampler import HZ, Eyes, Sampler

_DRIVERS = ("xe", "i915")
_VENDOR = "0x8086"
_INTEGRATED = "0000:00:02.0"  # where Intel puts the graphics of its processors
_REASONS = {
    "pl1": throttle.SW_POWER_CAP,
    "pl2": throttle.SW_POWER_CAP,
    "pl4": throttle.SW_POWER_CAP,
    "thermal": throttle.SW_THERMAL,
    "ratl": throttle.SW_THERMAL,
    "prochot": throttle.HW_THERMAL,
    "vr_thermalert": throttle.HW_THERMAL,
    "vr_tdc": throttle.HW_SLOWDOWN,
}
# Per driver, below the card: frequency files of the compute engines of every tile, and the reasons' prefix.
_ACTUAL = {"xe": "device/tile*/gt0/freq0/act_freq", "i915": "gt/gt*/rps_act_freq_mhz"}
_TOP = {"xe": "device/tile*/gt0/freq0/rp0_freq", "i915": "gt/gt*/rps_RP0_freq_mhz"}
_THROTTLE = {"xe": "device/tile*/gt0/freq0/throttle/reason_", "i915": "gt/gt*/throttle_reason_"}
_GENERATION = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # by GT/s
_LOCAL_MEMORY = ("drm-resident-vram0", "drm-resident-local0")  # xe, i915
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class IntelSysfs:
    """The `Telemetry` of discrete Intel GPUs, and their list.

    `proc` and `sysfs` are where procfs and sysfs are mounted.
    """

    def __init__(self, proc: str = "/proc", sysfs: str = "/sys", hz: float = HZ) -> None:
        self._proc = proc
        self._sysfs = sysfs
        self._hz = hz
        self._processes = NodeProcesses(proc)

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, by the rule of `Nvml.devices`.

        The kernel gives no UUID: the key is node and PCI address, and does not follow a card
        that is moved.
        """
        seen = sorted(bus_id for bus_id in self._cards() if bus_id != _INTEGRATED)
        order = sorted(indexes) if len(indexes) == len(seen) else range(len(seen))
        slots = dict(zip(order, seen, strict=True))
        return tuple(self._info(node, i, slots[i]) for i in indexes if i in slots)

    def _cards(self) -> dict[str, str]:
        """PCI address -> directory of the card in sysfs."""
        found = {}
        for card in glob(os.path.join(self._sysfs, "class/drm/card*")):
            event = _table(_read(card, "device/uevent"), "=")
            if _read(card, "device/vendor") == _VENDOR and event.get("DRIVER") in _DRIVERS:
                found[event.get("PCI_SLOT_NAME", "")] = card
        return found

    def _info(self, node: str, slot: int, bus_id: str) -> DeviceInfo:
        card = self._cards()[bus_id]
        return DeviceInfo(
            uuid=f"intel-{node}-{bus_id}",
            vendor="intel",
            model=f"Intel {_read(card, 'device/device')}",
            slot=slot,
            pci_bus_id=bus_id,
            numa_node=numa_node(self._sysfs, bus_id),
        )

    def _card(self, device: DeviceInfo) -> _Card:
        return _Card(self._cards().get(device.pci_bus_id, ""))

    def static(self, device: DeviceInfo) -> Static:
        """Kernel driver and limits of the device."""
        card = self._card(device)
        kernel = _read(self._proc, "sys/kernel/osrelease")
        return Static(
            driver=f"{card.driver}-{kernel}" if card.driver and kernel else card.driver,
            power_limit_w=_scaled(card.sensor("power1_max", "power2_max"), 1e6) or None,  # 0: no limit
            default_power_limit_w=_scaled(card.sensor("power1_rated_max", "power2_rated_max"), 1e6) or None,
            max_sm_clk_mhz=min(card.numbers(_TOP.get(card.driver, "")), default=None),
            pcie_max_width=_whole(card.read("device/max_link_width")),
        )

    def counters(self, device: DeviceInfo) -> Counters:
        """Energy, and who else is there as far as an ordinary user may see."""
        clients = self._clients(device.pci_bus_id)
        who = self._processes
        return Counters(
            energy_j=self._card(device).energy_j(),
            others=tuple(who.describe(pid, used) for pid, used in sorted(clients.items()) if who.foreign(pid)),
        )

    def _clients(self, bus_id: str) -> dict[int, int]:
        """Processes that hold memory on the device: pid -> bytes."""
        used: dict[tuple[int, str], int] = {}
        for path in glob(os.path.join(self._proc, "[0-9]*/fdinfo/*")):
            about = _table(_read(path))
            if about.get("drm-pdev") == bus_id:
                pid = int(os.path.relpath(path, self._proc).split(os.sep)[0])
                # Descriptors of one client all report the same memory.
                used[pid, about.get("drm-client-id", path)] = sum(
                    _bytes(about.get(name, "0")) for name in _LOCAL_MEMORY
                )
        found: dict[int, int] = {}
        for (pid, _), amount in used.items():
            found[pid] = found.get(pid, 0) + amount
        return {pid: amount for pid, amount in found.items() if amount}

    def watch(self, device: DeviceInfo) -> Sampler:
        """Start a sampler."""
        return Sampler(lambda: Eyes(_Look(self._card(device))), self._hz)


class _Card:
    """One card's directory in sysfs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.driver = _table(_read(path, "device/uevent"), "=").get("DRIVER", "") if path else ""
        self._sensors = next(iter(glob(os.path.join(path, "device/hwmon/hwmon*"))), "") if path else ""

    def read(self, name: str) -> str:
        return _read(self._path, name) if self._path else ""

    def sensor(self, *names: str) -> float | None:
        """The first of these files of the sensor chip that holds a number."""
        return next((n for name in names if (n := _number(_read(self._sensors, name))) is not None), None)

    def numbers(self, pattern: str) -> list[float]:
        """One value for each tile."""
        paths = glob(os.path.join(self._path, pattern)) if self._path and pattern else []
        return [n for path in paths if (n := _number(_read(path))) is not None]

    def energy_j(self) -> float | None:
        """Energy so far: of the card (channel 1) or, where it is not known, of the package."""
        return _scaled(self.sensor("energy1_input", "energy2_input"), 1e6)

    def degrees(self, label: str, *names: str) -> float | None:
        """Temperature of the sensor with this label, else of the first of these files, degC."""
        for path in glob(os.path.join(self._sensors, "temp*_label")) if self._sensors else []:
            if _read(path) == label:
                return _scaled(_number(_read(path.replace("_label", "_input"))), 1e3)
        return _scaled(self.sensor(*names), 1e3) if names else None

    def reasons(self) -> int | None:
        """NVML's bits for the throttle reasons of all tiles; None where no file has any."""
        told = {word: self.numbers(_THROTTLE.get(self.driver, "") + word) for word in _REASONS if self.driver}
        if not any(told.values()):
            return None
        mask = 0
        for word, values in told.items():
            mask |= _REASONS[word] if any(values) else 0
        return mask


class _Look:
    """Looks at a card. Power is the energy since the previous look over the time since then."""

    def __init__(self, card: _Card) -> None:
        self._card = card
        self._last: tuple[float, float] | None = None  # s, J

    def __call__(self) -> SensorSample:
        card, now_s = self._card, time.monotonic()
        clocks, reasons = card.numbers(_ACTUAL.get(card.driver, "")), card.reasons()
        asleep = bool(clocks) and not any(clocks)  # in C6 the clock reads 0
        return SensorSample(
            t_s=now_s,
            sm_clk_mhz=min(filter(None, clocks), default=None),  # of the slowest tile that is awake
            power_w=self._power_w(now_s),
            temp_c=card.degrees("pkg", "temp2_input", "temp1_input"),
            mem_temp_c=card.degrees("vram"),
            reasons=reasons if reasons is None or not asleep else reasons | throttle.IDLE,
            pcie_gen=_GENERATION.get(card.read("device/current_link_speed").partition(" ")[0]),
            pcie_width=_whole(card.read("device/current_link_width")),
        )

    def _power_w(self, now_s: float) -> float | None:
        energy_j = self._card.energy_j()
        last, self._last = self._last, None if energy_j is None else (now_s, energy_j)
        if last is None or energy_j is None or now_s <= last[0] or energy_j < last[1]:
            return None
        return (energy_j - last[1]) / (now_s - last[0])


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _table(text: str, mark: str = ":") -> dict[str, str]:
    """Lines of "name: value"."""
    parts = (line.partition(mark) for line in text.splitlines())
    return {name.strip(): value.strip() for name, found, value in parts if found}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _bytes(text: str) -> int:
    """A size as the kernel writes it: "23992 KiB", or bytes without a unit."""
    amount, _, unit = text.partition(" ")
    return int(amount) * _UNITS.get(unit, 1) if amount.isdecimal() else 0
