# SPDX-License-Identifier: MIT
"""AMD devices and their sensors, by the amdsmi package of ROCm, where it is installed.

Names and units are those of the AMD SMI Python reference; a value that a card does not
have is the word "N/A" there and None here. Written from the documentation.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping, Sequence

from slurm_pal.profiling.node import throttle
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.nvml import Foreign, numa_node
from slurm_pal.profiling.node.process_owners import NodeProcesses
from slurm_pal.profiling.node.sampler import HZ, Eyes, Sampler

# MI300 and later count the time spent below the wanted clock, by cause.
_RESIDENCIES = {
    "ppt_residency_acc": throttle.SW_POWER_CAP,
    "socket_thm_residency_acc": throttle.SW_THERMAL,
    "vr_thm_residency_acc": throttle.SW_THERMAL,
    "hbm_thm_residency_acc": throttle.SW_THERMAL,
    "prochot_residency_acc": throttle.HW_THERMAL,
}
# Older ones give a mask that is the same for all chips (SMU_THROTTLER_* of the kernel's amdgpu driver).
_THROTTLERS = (
    (0x0000_0000_00FF_00FF, throttle.SW_POWER_CAP),  # power and current limits
    (0x0000_0FFF_0000_0000, throttle.SW_THERMAL),  # temperatures
    (0x0000_F000_0000_0000, throttle.HW_THERMAL),  # regulator hot, processor hot
)
_BLANK = frozenset((2**16 - 1, 2**32 - 1, 2**64 - 1))  # "not there", which the package before ROCm 6.1 hands on
_WHOLE = ("", "SPX")  # one partition that is the whole device
_UJ_PER_J = _UW_PER_W = 1e6
_GENERATION_GT_S = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)  # PCI Express 1 to 6


class AmdSmi:
    """The `Telemetry` of AMD GPUs, and their list.

    `module` stands in for amdsmi; `proc` and `sysfs` are where procfs and sysfs are mounted.
    """

    def __init__(self, module: Foreign = None, proc: str = "/proc", sysfs: str = "/sys", hz: float = HZ) -> None:
        self._module = module
        self._pid = 0
        self._handles: dict[str, Foreign] = {}
        self._processes = NodeProcesses(proc)
        self._sysfs = sysfs
        self._hz = hz

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, by the rule of `Nvml.devices`.

        Raises DeviceError where amdsmi cannot be used.
        """
        try:
            found = [self._info(handle) for handle in self._ask("amdsmi_get_processor_handles") or ()]
        finally:
            self._close()
        seen = sorted((info for info in found if info is not None), key=lambda info: info.pci_bus_id)
        order = sorted(indexes) if len(indexes) == len(seen) else range(len(seen))
        slots = dict(zip(order, seen, strict=True))
        return tuple(slots[i]._replace(slot=i) for i in indexes if i in slots)

    def _info(self, handle: Foreign) -> DeviceInfo | None:
        uuid, bus_id = self._ask("amdsmi_get_gpu_device_uuid", handle), self._ask("amdsmi_get_gpu_device_bdf", handle)
        if not uuid or not bus_id:
            return None
        asic, board = self._table("amdsmi_get_gpu_asic_info", handle), self._table("amdsmi_get_gpu_board_info", handle)
        memory = self._number("amdsmi_get_gpu_vram_info", handle, key="vram_size")  # MiB
        return DeviceInfo(
            uuid=str(uuid),
            vendor="amd",
            model=_word(asic.get("market_name")) or _word(board.get("product_name")),
            slot=-1,
            pci_bus_id=str(bus_id),
            serial=_word(board.get("product_serial")) or _word(asic.get("asic_serial")) or None,
            vbios=_word(self._table("amdsmi_get_gpu_vbios_info", handle).get("version")),
            mem_bytes=int((memory or 0) * 2**20),
            numa_node=numa_node(self._sysfs, str(bus_id)),
        )

    def static(self, device: DeviceInfo) -> Static:
        """Driver, limits and modes of the device."""
        handle = self._handle(device.uuid)
        caps = self._table("amdsmi_get_power_cap_info", handle)
        ecc = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
        link = _inner(self._table("amdsmi_get_pcie_info", handle), "pcie_static")
        return Static(
            driver=_word(self._table("amdsmi_get_gpu_driver_info", handle).get("driver_version")),
            power_limit_w=_scaled(caps.get("power_cap"), _UW_PER_W) or None,  # 0: a partition's
            default_power_limit_w=_scaled(caps.get("default_power_cap"), _UW_PER_W) or None,
            ecc_mode="unknown" if ecc is None else "enabled",
            mig_mode=self._partition(handle),
            max_sm_clk_mhz=_number(self._clock(handle, "GFX").get("max_clk")),
            pcie_max_width=_whole(link.get("max_pcie_width")),
        )

    def _partition(self, handle: Foreign) -> str:
        """ "disabled" for a whole device, else compute and memory partition, e.g. "CPX-NPS4"."""
        compute = _word(self._ask("amdsmi_get_gpu_compute_partition", handle))
        memory = _word(self._ask("amdsmi_get_gpu_memory_partition", handle))
        if compute in _WHOLE and memory in ("", "NPS1"):
            return "disabled"
        return "-".join(part for part in (compute, memory) if part)

    def counters(self, device: DeviceInfo) -> Counters:
        """What only grows, and who else is there. Raises DeviceError for an unknown device."""
        handle = self._handle(device.uuid)
        energy = self._table("amdsmi_get_energy_count", handle)
        steps = _first(energy, "energy_accumulator", "power")  # the name until ROCm 6
        step_uj = _number(energy.get("counter_resolution"))
        ecc = self._table("amdsmi_get_gpu_total_ecc_count", handle)
        link = _inner(self._table("amdsmi_get_pcie_info", handle), "pcie_metric")
        used = self._number("amdsmi_get_gpu_vram_usage", handle, key="vram_used")  # MiB
        return Counters(
            energy_j=None if not steps or step_uj is None else steps * step_uj / _UJ_PER_J,  # 0 as in _watts
            ecc_uncorrected=_whole(ecc.get("uncorrectable_count")),
            others=self._others(handle),
            ecc_corrected=_whole(ecc.get("correctable_count")),
            pcie_replays=_whole(link.get("pcie_replay_count")),
            used_bytes=None if used is None else int(used * 2**20),
        )

    def _others(self, handle: Foreign) -> tuple[str, ...]:
        listed = self._ask("amdsmi_get_gpu_process_list", handle) or ()
        told = [p for p in listed if isinstance(p, Mapping)]
        found = {
            pid: _whole(_inner(p, "memory_usage").get("vram_mem"))
            for p in told
            if (pid := _whole(p.get("pid"))) is not None
        }
        who = self._processes
        return tuple(who.describe(pid, used) for pid, used in sorted(found.items()) if who.foreign(pid))

    def watch(self, device: DeviceInfo) -> Sampler:
        """Start a sampler. The library is closed here first: its state must not go through a fork."""
        self._close()
        return Sampler(lambda: self._eyes(device.uuid), self._hz)

    def _eyes(self, uuid: str) -> Eyes:
        handle = self._handle(uuid)
        last: dict[str, float] = {}
        return Eyes(lambda: self._look(handle, last))

    def _look(self, handle: Foreign, last: dict[str, float]) -> SensorSample:
        """One table holds nearly all; `last` keeps its residency counters from look to look."""
        seen = self._table("amdsmi_get_gpu_metrics_info", handle)
        present = _watts(seen, "current_socket_power")
        power = present if present is not None else _watts(seen, "average_socket_power")
        speed = _number(seen.get("pcie_link_speed"))  # 0.1 GT/s
        return SensorSample(
            t_s=time.monotonic(),
            sm_clk_mhz=_first(seen, "current_gfxclk", "average_gfxclk_frequency"),
            mem_clk_mhz=_first(seen, "current_uclk", "average_uclk_frequency"),
            power_w=power if power is not None else self._power_w(handle),
            temp_c=_first(seen, "temperature_hotspot", "temperature_edge"),
            mem_temp_c=_number(seen.get("temperature_mem")),
            reasons=_reasons(seen, last),
            power_avg_w=None if present is None else _watts(seen, "average_socket_power"),
            utilisation=_share(seen.get("average_gfx_activity")),
            pcie_gen=None if not speed else _generation(speed / 10.0),
            pcie_width=_whole(seen.get("pcie_link_width")) or None,
            dram=_share(seen.get("average_umc_activity")),
        )

    def _power_w(self, handle: Foreign) -> float | None:
        """Where the table lacks it; the names are those of ROCm 6.4 and later, then the earlier ones."""
        told = self._table("amdsmi_get_power_info", handle)
        return _watts(told, "socket_power", "current_socket_power", "average_socket_power")

    def _clock(self, handle: Foreign, name: str) -> Mapping[str, Foreign]:
        kind = getattr(getattr(self._open(), "AmdSmiClkType", None), name, None)
        return {} if kind is None else self._table("amdsmi_get_clock_info", handle, kind)

    def _open(self) -> Foreign:
        """The module, initialised in this process. Raises DeviceError where it cannot be."""
        try:
            self._module = self._module or importlib.import_module("amdsmi")
            if self._pid != os.getpid():
                self._module.amdsmi_init()
                self._pid = os.getpid()
                self._handles.clear()
        except Exception as error:  # the package raises its own kinds, and KeyError where ROCm is missing
            raise DeviceError(f"amdsmi cannot be used: {error or type(error).__name__}") from None
        return self._module

    def _close(self) -> None:
        if self._pid == os.getpid():
            self._ask("amdsmi_shut_down")
        self._pid = 0
        self._handles.clear()

    def _handle(self, uuid: str) -> Foreign:
        if not self._handles:
            for handle in self._ask("amdsmi_get_processor_handles") or ():
                self._handles[str(self._ask("amdsmi_get_gpu_device_uuid", handle))] = handle
        if uuid not in self._handles:
            raise DeviceError(f"amdsmi knows no device {uuid}")
        return self._handles[uuid]

    def _ask(self, name: str, *args: Foreign) -> Foreign:
        """Call a function; None where it is not there, not supported or not permitted."""
        module = self._open()
        function = getattr(module, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except module.AmdSmiException:
            return None

    def _table(self, name: str, *args: Foreign) -> Mapping[str, Foreign]:
        answer = self._ask(name, *args)
        return answer if isinstance(answer, Mapping) else {}

    def _number(self, name: str, *args: Foreign, key: str) -> float | None:
        return _number(self._table(name, *args).get(key))


def _reasons(seen: Mapping[str, Foreign], last: dict[str, float]) -> int | None:
    """NVML's bits for what AMD reports; None where it reports nothing (and at the first look at counters)."""
    now = {name: value for name in _RESIDENCIES if (value := _number(seen.get(name))) is not None}
    if now:
        mask = 0
        for name, value in now.items():
            if value > last.get(name, value):
                mask |= _RESIDENCIES[name]
        known = bool(last)
        last.update(now)
        return mask if known else None
    told = _number(seen.get("indep_throttle_status"))
    if told is None:
        return None
    return sum(bit for bits_of, bit in _THROTTLERS if int(told) & bits_of)


def _generation(gt_s: float) -> int | None:
    """PCI Express generation of a transfer rate, GT/s."""
    return next((i for i, rate in enumerate(_GENERATION_GT_S, 1) if abs(gt_s - rate) < 0.1), None)


def _number(value: object) -> float | None:
    """A number, or the first one of a list; None for "N/A" and for the driver's own value for it."""
    if isinstance(value, list | tuple):
        return next((n for v in value if (n := _number(v)) is not None), None)
    if not isinstance(value, int | float) or isinstance(value, bool) or value in _BLANK:
        return None
    return float(value)


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _scaled(value: object, scale: float) -> float | None:
    number = _number(value)
    return None if number is None else number / scale


def _share(value: object) -> float | None:
    """A share, 0..1, from percent."""
    number = _number(value)
    return None if number is None else min(number / 100.0, 1.0)


def _first(table: Mapping[str, Foreign], *names: str) -> float | None:
    return next((n for name in names if (n := _number(table.get(name))) is not None), None)


def _watts(table: Mapping[str, Foreign], *names: str) -> float | None:
    """A power; None for 0, which a second die reports: the first one of the card reports for both (MI250)."""
    return next((watts for name in names if (watts := _number(table.get(name)))), None)


def _inner(table: Mapping[str, Foreign], name: str) -> Mapping[str, Foreign]:
    """A table within a table; an empty one for "N/A"."""
    value = table.get(name)
    return value if isinstance(value, Mapping) else {}


def _word(value: object) -> str:
    return value if isinstance(value, str) and value != "N/A" else ""
