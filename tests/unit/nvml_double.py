"""A stand-in for the pynvml module: GPUs whose answers a test writes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, TIMEOUT, LOST = 3, 4, 6, 10, 15
GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({NOT_SUPPORTED: "Not Supported", LOST: "GPU is lost"}.get(value, f"error {value}"))
        self.value = value


def process(pid: int, mib: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=None if mib is None else mib * 2**20)


class Gpu:
    """One GPU: every NVML function with its answer, or a function of the handle and arguments."""

    def __init__(self, position: int = 0, **answers: object) -> None:
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

    def nvmlEventSetCreate(self) -> list[Gpu]:
        return []

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, chosen: list[Gpu]) -> None:
        self._checked(gpu, "RegisterEvents")
        assert kinds == 8
        chosen.append(gpu)

    def nvmlEventSetWait(self, chosen: list[Gpu], timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0
        for gpu in chosen:
            if gpu.events:
                kind, data = gpu.events.pop(0)
                return SimpleNamespace(eventType=kind, eventData=data)
        raise NVMLError(TIMEOUT)

    def _checked(self, gpu: Gpu, name: str) -> Gpu:
        assert self.opened > 0, "NVML was used before nvmlInit or after nvmlShutdown"
        code = gpu.fails.get(name, gpu.fails.get("*", 0))
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
