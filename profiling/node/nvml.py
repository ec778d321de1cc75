# SPDX-License-Identifier: MIT
"""NVIDIA devices and their sensors, by NVML (nvidia-ml-py), without privileges.

All names and units are those of the NVML API reference. Whatever a card, driver or
permission does not give is None; only a GPU that is lost is an error.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.gpm import Activity, Beside
from slurm_pal.profiling.node.process_owners import NodeProcesses
from slurm_pal.profiling.node.sampler import HZ, Eyes, Sampler

# Fields of nvmlDeviceGetFieldValues.
_MEMORY_TEMP, _POWER_AVERAGE, _POWER_INSTANT = 82, 185, 186
_VALUE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
_GPU_SENSOR = 0
_CLOCK_SM, _CLOCK_MEM = 1, 2
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_VIOLATIONS = {"power": 0, "thermal": 1, "board_limit": 3, "reliability": 5}  # NVML_PERF_POLICY_*
_XID = 8  # nvmlEventTypeXidCriticalError
_LOST = frozenset({15, 16})  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: the driver's own reserve is not counted as used
_EVENTS_AT_ONCE = 64

Foreign: TypeAlias = Any
"""What a vendor's package gives: it comes without types."""


class NvmlLibrary:
    """NVML as one process uses it: opened at the first call, never shared over a fork."""

    def __init__(self, module: Foreign = None) -> None:
        self._module = module
        self._pid = 0  # of the process that has opened it
        self._handles: dict[str, Foreign] = {}

    def open(self) -> Foreign:
        """The module, initialised. Raises DeviceError where there is no NVIDIA driver."""
        if self._module is None:
            import pynvml

            self._module = pynvml
        if self._pid != os.getpid():
            try:
                self._module.nvmlInit()
            except self._module.NVMLError as error:
                raise DeviceError(f"NVML cannot be used: {error}; is the NVIDIA driver loaded?") from None
            self._pid = os.getpid()
            self._handles.clear()
        return self._module

    def close(self) -> None:
        """Shut NVML down; the next call opens it again."""
        if self._pid == os.getpid():
            self.ask("nvmlShutdown")
        self._pid = 0
        self._handles.clear()

    def ask(self, name: str, *args: Foreign) -> Foreign:
        """Call a function; None where it is not there, not supported or not permitted.

        Raises DeviceError with flag "xid" when the GPU is lost.
        """
        module = self.open()
        function = getattr(module, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except module.NVMLError as error:
            if error.value in _LOST:
                raise DeviceError(f"{name}: {error}", "xid") from None
            return None

    def ask_first(self, names: Sequence[str], *args: Foreign) -> Foreign:
        """The answer of the first of these functions (new name, old name) that gives one."""
        return next((answer for name in names if (answer := self.ask(name, *args)) is not None), None)

    def handle(self, uuid: str) -> Foreign:
        """NVML's handle of a physical GPU; that of the whole GPU for a MIG device's UUID. Raises DeviceError."""
        part = self.part(uuid)
        if not uuid.startswith("MIG-"):
            return part
        whole = self.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part)
        if whole is None:
            raise DeviceError(f"NVML does not say which GPU {uuid} is a part of")
        return whole

    def part(self, uuid: str) -> Foreign:
        """NVML's handle of what this UUID names: a GPU or a MIG device. Raises DeviceError."""
        self.open()
        if uuid not in self._handles:
            handle = self.ask("nvmlDeviceGetHandleByUUID", uuid)
            if handle is None:
                raise DeviceError(f"NVML knows no device {uuid}")
            self._handles[uuid] = handle
        return self._handles[uuid]

    def fields(self, handle: Foreign, ids: Sequence[int]) -> dict[int, float]:
        """Those of the numbered fields that the device has."""
        values = self.ask("nvmlDeviceGetFieldValues", handle, list(ids)) or ()
        return {
            v.fieldId: getattr(v.value, _VALUE[v.valueType])
            for v in values
            if v.nvmlReturn == 0 and v.valueType < len(_VALUE)
        }


class Nvml:
    """The `Telemetry` of NVIDIA GPUs, and their list.

    `module` stands in for pynvml; `proc` and `sysfs` are where procfs and sysfs are mounted.
    """

    def __init__(self, module: Foreign = None, proc: str = "/proc", sysfs: str = "/sys", hz: float = HZ) -> None:
        self._library = NvmlLibrary(module)
        self._processes = NodeProcesses(proc)
        self._sysfs = sysfs
        self._hz = hz
        self._samplers: dict[str, Sampler] = {}  # the last one of each device: it knows the Xids

    def devices(self, node: str, indexes: Sequence[int]) -> tuple[DeviceInfo, ...]:
        """The GPUs behind these Slurm indexes, which follow the PCI order.

        Slurm's cgroup hides the GPUs of other jobs: with as many visible GPUs as indexes both
        are matched in order, otherwise the index is the place in PCI order. A GPU that does not
        answer keeps its place and is left out. NVML is closed afterwards, so that workers may
        be forked. Raises DeviceError where NVML cannot be used.
        """
        try:
            seen = self._visible()
        finally:
            self._library.close()
        order = sorted(indexes) if len(indexes) == len(seen) else range(len(seen))
        slots = {slot: info for slot, info in zip(order, seen, strict=True) if info is not None}
        return tuple(slots[i]._replace(slot=i) for i in indexes if i in slots)

    def _visible(self) -> list[DeviceInfo | None]:
        """Every GPU that is not hidden from us, in PCI order; None for one that does not answer."""
        module = self._library.open()
        found: list[DeviceInfo | None] = []
        for position in range(self._library.ask("nvmlDeviceGetCount") or 0):
            try:
                found.append(self._info(module.nvmlDeviceGetHandleByIndex(position)))
            except module.NVMLError as error:
                if error.value != module.NVML_ERROR_NO_PERMISSION:
                    found.append(None)
            except DeviceError:
                found.append(None)
        # NVML itself counts in PCI order; a silent GPU can only stay where NVML counted it.
        known = iter(sorted((i for i in found if i is not None), key=lambda i: i.pci_bus_id.lower()))
        return [None if info is None else next(known) for info in found]

    def _info(self, handle: Foreign) -> DeviceInfo | None:
        ask = self._library.ask
        uuid, pci = ask("nvmlDeviceGetUUID", handle), ask("nvmlDeviceGetPciInfo", handle)
        if uuid is None or pci is None:
            return None
        bus_id = _text(pci.busId)
        memory = ask("nvmlDeviceGetMemoryInfo", handle)
        return DeviceInfo(
            uuid=_text(uuid),
            vendor="nvidia",
            model=_text(ask("nvmlDeviceGetName", handle)),
            slot=-1,
            pci_bus_id=bus_id,
            minor=ask("nvmlDeviceGetMinorNumber", handle),
            serial=_text(ask("nvmlDeviceGetSerial", handle)) or None,
            vbios=_text(ask("nvmlDeviceGetVbiosVersion", handle)),
            mem_bytes=0 if memory is None else memory.total,
            numa_node=numa_node(self._sysfs, bus_id),
        )

    def static(self, device: DeviceInfo) -> Static:
        """Driver, limits and modes of the device."""
        ask = self._library.ask
        handle = self._library.handle(device.uuid)
        cuda = ask("nvmlSystemGetCudaDriverVersion")
        ecc = ask("nvmlDeviceGetEccMode", handle)
        clock = ask("nvmlDeviceGetApplicationsClock", handle, _CLOCK_SM)
        usual = ask("nvmlDeviceGetDefaultApplicationsClock", handle, _CLOCK_SM)
        return Static(
            driver=_text(ask("nvmlSystemGetDriverVersion")),
            runtime="" if cuda is None else f"CUDA {cuda // 1000}.{cuda % 1000 // 10}",
            power_limit_w=_milli(ask("nvmlDeviceGetEnforcedPowerLimit", handle)) or None,  # 0: no limit is given
            default_power_limit_w=_milli(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)) or None,
            app_clocks_mhz=None if clock is None or usual is None or clock == usual else float(clock),
            ecc_mode="unknown" if ecc is None else "enabled" if ecc[0] else "disabled",
            mig_mode=self._mig_mode(device.uuid, handle),
            mps=self._mps(self._library.part(device.uuid)),
            max_sm_clk_mhz=_number(ask("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM)),
            pcie_max_width=ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        )

    def _mig_mode(self, uuid: str, handle: Foreign) -> str:
        """ "disabled", "enabled", or for a MIG device its profile, which ends its name ("... MIG 1g.10gb")."""
        if uuid.startswith("MIG-"):
            name = _text(self._library.ask("nvmlDeviceGetName", self._library.part(uuid)))
            return name.rpartition("MIG ")[2] or "enabled"
        mode = self._library.ask("nvmlDeviceGetMigMode", handle)
        return "enabled" if mode and mode[0] else "disabled"

    def _mps(self, handle: Foreign) -> bool:
        if self._library.ask("nvmlDeviceGetMPSComputeRunningProcesses", handle):
            return True
        return any(self._processes.serves_mps(pid) for pid in self._running(handle))

    def _running(self, handle: Foreign) -> dict[int, int | None]:
        """Compute processes on the device, MPS clients among them: pid -> device memory, bytes."""
        names = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
        return {p.pid: p.usedGpuMemory for name in names for p in self._library.ask(name, handle) or ()}

    def counters(self, device: DeviceInfo) -> Counters:
        """What only grows, and who else is there. Raises DeviceError when the GPU is lost."""
        ask = self._library.ask
        handle, part = self._library.handle(device.uuid), self._library.part(device.uuid)
        energy_mj = ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        rows = ask("nvmlDeviceGetRemappedRows", handle)
        memory = ask("nvmlDeviceGetMemoryInfo", part, _MEMORY_V2) or ask("nvmlDeviceGetMemoryInfo", part)
        slowed = {name: ask("nvmlDeviceGetViolationStatus", handle, policy) for name, policy in _VIOLATIONS.items()}
        sampler = self._samplers.get(device.uuid)
        if sampler:
            sampler.sample()  # reads what the pipe holds
        return Counters(
            energy_j=_milli(energy_mj),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE),
            others=self._others(part),
            ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", handle, _CORRECTED, _VOLATILE),
            remap_failed=None if rows is None else bool(rows[2] or rows[3]),
            pcie_replays=ask("nvmlDeviceGetPcieReplayCounter", handle),
            violation_s={name: v.violationTime / 1e9 for name, v in slowed.items() if v is not None},
            xids=tuple(sampler.events) if sampler else (),
            used_bytes=None if memory is None else memory.used,
        )

    def _others(self, handle: Foreign) -> tuple[str, ...]:
        """Foreign processes; an MPS server works for others and is reported by `Static.mps`."""
        who = self._processes
        running = sorted(self._running(handle).items())
        return tuple(who.describe(pid, used) for pid, used in running if who.foreign(pid) and not who.serves_mps(pid))

    def watch(self, device: DeviceInfo) -> Sampler:
        """Start a sampler. NVML is closed here first: its state must not go through a fork."""
        self._library.close()
        sampler = Sampler(lambda: _eyes(self._library, device.uuid), self._hz)
        if device.uuid in self._samplers:  # a counter only grows
            sampler.events.extend(self._samplers[device.uuid].events)
        self._samplers[device.uuid] = sampler
        return sampler


def _eyes(library: NvmlLibrary, uuid: str) -> Eyes:
    """Opened in the sampler. Xids are heard from registration on."""
    handle = library.handle(uuid)
    heard = library.ask("nvmlEventSetCreate")
    if heard is not None:
        library.ask("nvmlDeviceRegisterEvents", handle, _XID, heard)
    gpm = Beside(library, uuid)
    return Eyes(lambda: look(library, handle, gpm.take()), lambda: _xids(library, heard))


def _xids(library: NvmlLibrary, heard: Foreign) -> tuple[int, ...]:
    """Numbers of the critical errors since the last call; NVML says "timeout" when there are no more.

    A GPU that is lost meanwhile is reported by the look: the Xid that says why must not be lost with it.
    """
    found: list[int] = []
    with contextlib.suppress(DeviceError):
        for _ in range(_EVENTS_AT_ONCE if heard is not None else 0):
            event = library.ask("nvmlEventSetWait", heard, 0)
            if event is None:
                break
            if event.eventType == _XID:
                found.append(event.eventData)
    return tuple(found)


def look(library: NvmlLibrary, handle: Foreign, activity: Activity = Activity()) -> SensorSample:  # noqa: B008
    """All sensors of a device once; `activity` is what GPM reported since the previous look.

    Where the card has the instantaneous power (Ampere and later), nvmlDeviceGetPowerUsage is a
    1-s average; on older ones it is the present value.
    """
    fields = library.fields(handle, (_POWER_INSTANT, _POWER_AVERAGE, _MEMORY_TEMP))
    instant = fields.get(_POWER_INSTANT) or None
    power = library.ask("nvmlDeviceGetPowerUsage", handle) if instant is None else instant
    busy = library.ask("nvmlDeviceGetUtilizationRates", handle)
    temperature = library.ask_first(("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), handle, _GPU_SENSOR)
    return SensorSample(
        t_s=time.monotonic(),
        sm_clk_mhz=_number(library.ask("nvmlDeviceGetClockInfo", handle, _CLOCK_SM)),
        mem_clk_mhz=_number(library.ask("nvmlDeviceGetClockInfo", handle, _CLOCK_MEM)),
        power_w=_milli(power),
        temp_c=_number(temperature),
        mem_temp_c=_number(fields.get(_MEMORY_TEMP) or None),  # 0 where there is no sensor
        reasons=library.ask_first(
            ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle
        ),
        power_avg_w=None if instant is None else _milli(fields.get(_POWER_AVERAGE)),
        utilisation=None if busy is None else busy.gpu / 100.0,
        pcie_gen=library.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=library.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        dram=activity.dram,
        tensor=activity.tensor,
    )


def numa_node(sysfs: str, bus_id: str) -> int | None:
    """The NUMA node that a PCI device is attached to; None where there is only one or none is given."""
    domain, _, rest = bus_id.lower().partition(":")  # NVML writes 8 digits of domain, the kernel 4
    try:
        with open(os.path.join(sysfs, "bus/pci/devices", f"{domain[-4:]}:{rest}", "numa_node")) as stream:
            node = int(stream.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _milli(value: float | None) -> float | None:
    return None if value is None else value / 1000.0


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
