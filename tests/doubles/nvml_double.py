# SPDX-License-Identifier: MIT
"""A stand-in for the pynvml module: GPUs whose answers a test writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, LOST = 3, 4, 6, 10, 15
LOST_NOW = -1  # in place of an event's type: from here on the wait says that the GPU is lost
GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({NOT_SUPPORTED: "Not Supported", LOST: "GPU is lost"}.get(value, f"error {value}"))
        self.value = value


def process(pid: int, mib: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * 2**20)


class Gpu:
    """One GPU: every NVML function with its answer, or a function of the handle and arguments.

    `gpm` are its performance metrics in percent, by number; without them it has no GPM.
    """

    def __init__(self, position: int = 0, gpm: dict[int, float] | None = None, **answers: object) -> None:
        self.gpm, self.stumbles = gpm, dict[str, list[int]]()  # function -> error codes of its next calls
        self.taken, self.held = 0, 0  # samples of GPM: filled so far, allocated now
        self.spans, self.instances = list[tuple[int, int]](), list[int]()
        self.uuid = f"GPU-{position}"
        self.fails: dict[str, int] = {}  # function -> error code; "*" all
        self.fields: dict[int, tuple[int, int]] = {186: (1, 290_500), 185: (1, 281_000), 82: (1, 71)}
        self.events: list[tuple[int, int]] = []  # (type, data)
        self.answers: dict[str, Any] = {
            "GetUUID": self.uuid,
            "GetPciInfo": SimpleNamespace(busId=f"00000000:{position + 1:02X}:00.0".encode()),
            "GetName": "NVIDIA Double 80GB",
            "GetMinorNumber": position,
            "GetSerial": f"16500{position}",
            "GetVbiosVersion": "96.00.74",
            "GetMemoryInfo": SimpleNamespace(total=80 * GIB, used=3 * 2**20),
            "GetEnforcedPowerLimit": 300_000,
            "GetPowerManagementDefaultLimit": 300_000,
            "GetApplicationsClock": 1410,
            "GetDefaultApplicationsClock": 1410,
            "GetEccMode": [1, 1],
            "GetMigMode": [0, 0],
            "GetMaxClockInfo": 1980,
            "GetMaxPcieLinkWidth": 16,
            "GetTotalEnergyConsumption": 5_000_000,
            "GetTotalEccErrors": lambda kind, counter: 7 if kind == 0 else 0,
            "GetRemappedRows": (1, 0, 0, 0),
            "GetPcieReplayCounter": 2,
            "GetViolationStatus": lambda policy: SimpleNamespace(violationTime=(policy + 1) * 10**9),
            "GetComputeRunningProcesses": [],
            "GetMPSComputeRunningProcesses": [],
            "GetPowerUsage": 250_000,
            "GetUtilizationRates": SimpleNamespace(gpu=100, memory=40),
            "GetTemperature": 64,
            "GetTemperatureV": 65,
            "GetClockInfo": lambda kind: 1365 if kind == 1 else 1593,
            "GetCurrentClocksEventReasons": 4,
            "GetCurrentClocksThrottleReasons": 4,
            "GetCurrPcieLinkGeneration": 4,
            "GetCurrPcieLinkWidth": 16,
        } | answers


OPTIONAL = tuple(sorted({*Gpu().answers, "GetFieldValues"} - {"GetUUID", "GetPciInfo"}))
"""Every function of a device that may be missing."""


class FakeNvml:
    """The module. `lacks` are functions that this version of the library does not have."""

    NVMLError = NVMLError
    NVML_ERROR_NO_PERMISSION = NO_PERMISSION

    def __init__(self, *gpus: Gpu, lacks: tuple[str, ...] = ()) -> None:
        self.gpus = list(gpus)
        self.opened = 0  # nvmlInit less nvmlShutdown
        self._lacks = lacks

    def nvmlInit(self) -> None:
        assert not self.opened, "NVML was open when this process was forked"
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12080

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self._checked(self.gpus[index], "GetHandleByIndex")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return self._checked(gpu, "GetHandleByUUID")
        raise NVMLError(NOT_FOUND)

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, ids: list[int]) -> list[SimpleNamespace]:
        self._checked(gpu, "GetFieldValues")
        return [self._field(gpu, i) for i in ids]

    def _field(self, gpu: Gpu, number: int) -> SimpleNamespace:
        if number not in gpu.fields:
            return SimpleNamespace(fieldId=number, nvmlReturn=NOT_SUPPORTED, valueType=0, value=None)
        kind, value = gpu.fields[number]
        union = SimpleNamespace(uiVal=value, ullVal=value, dVal=float(value))
        return SimpleNamespace(fieldId=number, nvmlReturn=0, valueType=kind, value=union)

    NVML_GPM_METRICS_GET_VERSION = 1

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(477)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmQueryDeviceSupport(self, gpu: Gpu) -> SimpleNamespace:
        self._checked(gpu, "GpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> list[tuple[Gpu, int]]:
        self._checked(self.gpus[0], "GpmSampleAlloc")
        self.gpus[0].held += 1
        return []

    def nvmlGpmSampleFree(self, sample: list[tuple[Gpu, int]]) -> None:
        self.gpus[0].held -= 1

    def nvmlGpmSampleGet(self, gpu: Gpu, sample: list[tuple[Gpu, int]]) -> list[tuple[Gpu, int]]:
        self._checked(gpu, "GpmSampleGet")
        gpu.taken += 1
        sample[:] = [(gpu, gpu.taken)]
        return sample

    def nvmlGpmMigSampleGet(self, gpu: Gpu, instance: int, sample: list[tuple[Gpu, int]]) -> list[tuple[Gpu, int]]:
        gpu.instances.append(instance)
        return self.nvmlGpmSampleGet(gpu, sample)

    def nvmlGpmMetricsGet(self, wanted: SimpleNamespace) -> SimpleNamespace:
        assert wanted.version == 1
        ((gpu, before),), ((_, after),) = wanted.sample1, wanted.sample2
        self._checked(gpu, "GpmMetricsGet")
        gpu.spans.append((before, after))
        assert gpu.gpm is not None
        for one in wanted.metrics[: wanted.numMetrics]:
            told = gpu.gpm.get(one.metricId)
            one.nvmlReturn, one.value = (NOT_SUPPORTED, 99.0) if told is None else (0, told)
        return wanted

    def nvmlEventSetCreate(self) -> list[Gpu]:
        return []

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, chosen: list[Gpu]) -> None:
        self._checked(gpu, "RegisterEvents")
        assert kinds == 8
        chosen.append(gpu)

    def nvmlEventSetWait(self, chosen: list[Gpu], timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        for gpu in chosen:
            if gpu.events and gpu.events[0][0] == LOST_NOW:
                raise NVMLError(LOST)
            if gpu.events:
                kind, data = gpu.events.pop(0)
                return SimpleNamespace(eventType=kind, eventData=data)
        raise NVMLError(TIMEOUT)

    def _checked(self, gpu: Gpu, name: str) -> Gpu:
        assert self.opened > 0, "NVML was used before nvmlInit or after nvmlShutdown"
        ahead = gpu.stumbles.get(name)
        code = ahead.pop(0) if ahead else gpu.fails.get(name, gpu.fails.get("*", 0))
        if code:
            raise NVMLError(code)
        return gpu

    def __getattr__(self, name: str) -> Callable[..., Any]:
        short = name.removeprefix("nvmlDevice")
        if short == name or name in self._lacks:
            raise AttributeError(name)

        def answer(gpu: Gpu, *args: object) -> object:
            self._checked(gpu, short)
            if short not in gpu.answers:
                raise NVMLError(NOT_SUPPORTED)
            value = gpu.answers[short]
            return value(*args) if callable(value) else value

        return answer
