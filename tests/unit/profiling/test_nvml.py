# SPDX-License-Identifier: MIT
"""NVIDIA telemetry on scripted GPUs behind a stand-in for pynvml."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_pal.profiling.node import telemetry
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.nvml import Nvml, NvmlLibrary, look, numa_node

from ...doubles.nvml_double import (
    GIB,
    LOST,
    LOST_NOW,
    NO_PERMISSION,
    NOT_SUPPORTED,
    OPTIONAL,
    FakeNvml,
    Gpu,
    NVMLError,
    process,
)
from ...doubles.proc_double import proc


def one(**answers: object) -> tuple[Gpu, Nvml, DeviceInfo]:
    gpu = Gpu(0, **answers)
    nvml = Nvml(FakeNvml(gpu))
    return gpu, nvml, nvml.devices("n1", (0,))[0]


def seen(gpu: Gpu, lacks: tuple[str, ...] = ()) -> SensorSample:
    library = NvmlLibrary(FakeNvml(gpu, lacks=lacks))
    return look(library, library.handle(gpu.uuid))


def test_a_device_is_described_and_nvml_is_closed_again() -> None:
    fake = FakeNvml(Gpu(0))
    found = Nvml(fake).devices("n1", (0,))
    assert found == (
        DeviceInfo(
            uuid="GPU-0",
            vendor="nvidia",
            model="NVIDIA Double 80GB",
            slot=0,
            pci_bus_id="00000000:01:00.0",
            minor=0,
            serial="165000",
            vbios="96.00.74",
            mem_bytes=80 * GIB,
        ),
    )
    assert fake.opened == 0  # workers are forked next


def test_visible_gpus_are_matched_with_the_indexes_in_pci_order() -> None:
    late, early = Gpu(0), Gpu(1)
    late.answers["GetPciInfo"] = SimpleNamespace(busId="00000000:C1:00.0")
    found = Nvml(FakeNvml(late, early)).devices("n1", (5, 3))
    assert [(d.slot, d.uuid) for d in found] == [(5, "GPU-0"), (3, "GPU-1")]


def test_more_gpus_than_indexes_are_counted_in_pci_order() -> None:
    found = Nvml(FakeNvml(*(Gpu(i) for i in range(4)))).devices("n1", (2, 0))
    assert [(d.slot, d.uuid) for d in found] == [(2, "GPU-2"), (0, "GPU-0")]


def test_a_gpu_that_does_not_answer_keeps_its_place() -> None:
    gpus = [Gpu(i) for i in range(4)]
    gpus[1].fails["*"] = LOST
    found = Nvml(FakeNvml(*gpus)).devices("n1", (4, 5, 6, 7))
    assert [(d.slot, d.uuid) for d in found] == [(4, "GPU-0"), (6, "GPU-2"), (7, "GPU-3")]


def test_a_gpu_lost_only_to_questions_keeps_its_place() -> None:
    gpus = [Gpu(i) for i in range(3)]
    gpus[0].fails["GetUUID"] = LOST
    found = Nvml(FakeNvml(*gpus)).devices("n1", (0, 1, 2))
    assert [(d.slot, d.uuid) for d in found] == [(1, "GPU-1"), (2, "GPU-2")]


def test_gpus_of_other_jobs_are_not_counted() -> None:
    gpus = [Gpu(i) for i in range(4)]
    for gpu in gpus[:2]:
        gpu.fails["GetHandleByIndex"] = NO_PERMISSION
    found = Nvml(FakeNvml(*gpus)).devices("n1", (5, 7))
    assert [(d.slot, d.uuid) for d in found] == [(5, "GPU-2"), (7, "GPU-3")]


def test_without_a_driver_the_error_says_so() -> None:
    class Driverless(FakeNvml):
        def nvmlInit(self) -> None:
            raise NVMLError(9)

    with pytest.raises(DeviceError, match="NVIDIA driver"):
        Nvml(Driverless()).devices("n1", (0,))


def test_numa_node_of_a_device(tmp_path: Path) -> None:
    for bus_id, text in (("0000:07:00.0", "3\n"), ("0000:0f:00.0", "-1\n")):
        (tmp_path / "bus/pci/devices" / bus_id).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / bus_id / "numa_node").write_text(text)
    root = str(tmp_path)
    assert [numa_node(root, b) for b in ("00000000:07:00.0", "00000000:0F:00.0", "00000000:11:00.0")] == [3, None, None]


def test_static() -> None:
    _, nvml, device = one()
    assert nvml.static(device) == Static(
        driver="570.86.15",
        runtime="CUDA 12.8",
        power_limit_w=300.0,
        default_power_limit_w=300.0,
        ecc_mode="enabled",
        max_sm_clk_mhz=1980.0,
        pcie_max_width=16,
    )


@pytest.mark.parametrize(
    ("answers", "field", "value"),
    [
        ({"GetApplicationsClock": 1200}, "app_clocks_mhz", 1200.0),
        ({"GetEnforcedPowerLimit": 250_000}, "power_limit_w", 250.0),
        ({"GetEnforcedPowerLimit": 0}, "power_limit_w", None),
        ({"GetPowerManagementDefaultLimit": 0}, "default_power_limit_w", None),
        ({"GetEccMode": [0, 1]}, "ecc_mode", "disabled"),
        ({"GetMigMode": [1, 1]}, "mig_mode", "enabled"),
        ({"GetMPSComputeRunningProcesses": [process(1, 1)]}, "mps", True),
    ],
)
def test_settings_that_differ_are_told(answers: dict[str, Any], field: str, value: object) -> None:
    _, nvml, device = one(**answers)
    assert getattr(nvml.static(device), field) == value


def test_a_mig_device_is_known_by_its_profile_and_read_through_the_whole_gpu(tmp_path: Path) -> None:
    root = proc(tmp_path, job="5")
    proc(tmp_path, 31)
    whole, part = Gpu(0), Gpu(1, GetName="NVIDIA Double 80GB MIG 1g.10gb")
    part.uuid = "MIG-7"
    part.answers["GetDeviceHandleFromMigDeviceHandle"] = whole
    part.answers["GetMemoryInfo"] = SimpleNamespace(total=10 * GIB, used=9)
    part.answers["GetComputeRunningProcesses"] = [process(31, 5)]
    for name in ("GetClockInfo", "GetPowerUsage", "GetEccMode"):
        part.fails[name] = NOT_SUPPORTED
    nvml = Nvml(FakeNvml(whole, part), proc=root)
    device = DeviceInfo("MIG-7", "nvidia", "x", 0)
    assert nvml.static(device).mig_mode == "1g.10gb"
    assert nvml.static(device).ecc_mode == "enabled"
    counters = nvml.counters(device)
    assert counters.used_bytes == 9 and counters.energy_j == 5000.0
    assert counters.others == (f"pid 31 of uid {os.getuid()} (pal), 5 MiB",)


def test_a_look_takes_the_instantaneous_power_where_there_is_one() -> None:
    gpu = Gpu(0)
    sample = seen(gpu)
    assert sample._replace(t_s=0.0) == SensorSample(
        0.0, 1365.0, 1593.0, 290.5, 64.0, 71.0, 4, power_avg_w=281.0, utilisation=1.0, pcie_gen=4, pcie_width=16
    )
    gpu.fields.clear()
    older = seen(gpu)
    assert (older.power_w, older.power_avg_w, older.mem_temp_c) == (250.0, None, None)


def test_field_values_of_any_type_are_read() -> None:
    gpu = Gpu(0)
    gpu.fields = {186: (3, 412_000), 185: (0, 400_000), 82: (1, 0)}
    assert (seen(gpu).power_w, seen(gpu).power_avg_w, seen(gpu).mem_temp_c) == (412.0, 400.0, None)


@pytest.mark.parametrize(
    ("new", "old", "field", "value"),
    [
        ("GetCurrentClocksEventReasons", "GetCurrentClocksThrottleReasons", "reasons", 4),
        ("GetTemperature", "GetTemperatureV", "temp_c", 65.0),
    ],
)
@pytest.mark.parametrize("missing", ["in the package", "in the driver"])
def test_old_and_new_names_of_a_function(new: str, old: str, field: str, value: object, missing: str) -> None:
    gpu = Gpu(0)
    if missing == "in the driver":
        gpu.fails[new] = 13
    assert getattr(seen(gpu, (f"nvmlDevice{new}",) if missing == "in the package" else ()), field) == value


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, 999])
def test_any_single_function_may_be_missing(name: str, code: int) -> None:
    gpu = Gpu(0)
    gpu.fails[name] = code
    nvml = Nvml(FakeNvml(gpu))
    (device,) = nvml.devices("n1", (0,))
    static, counters, sample = nvml.static(device), nvml.counters(device), seen(gpu)
    whole = one()
    good_static, good_counters = whole[1].static(whole[2]), whole[1].counters(whole[2])
    good_sample = seen(Gpu(0))
    told = [
        f"{kind}.{f}"
        for kind, ours, good in (
            ("info", device, whole[2]),
            ("static", static, good_static),
            ("counters", counters, good_counters),
            ("sample", sample._replace(t_s=0.0), good_sample._replace(t_s=0.0)),
        )
        for f, a, b in zip(ours._fields, ours, good, strict=True)
        if a != b
    ]
    assert told == CHANGES[name]
    telemetry.summary([sample, sample], counters, counters)
    assert telemetry.flags([sample], static, counters, counters) == ()


CHANGES: dict[str, list[str]] = {
    "GetName": ["info.model"],
    "GetMinorNumber": ["info.minor"],
    "GetSerial": ["info.serial"],
    "GetVbiosVersion": ["info.vbios"],
    "GetMemoryInfo": ["info.mem_bytes", "counters.used_bytes"],
    "GetEnforcedPowerLimit": ["static.power_limit_w"],
    "GetPowerManagementDefaultLimit": ["static.default_power_limit_w"],
    "GetApplicationsClock": [],
    "GetDefaultApplicationsClock": [],
    "GetEccMode": ["static.ecc_mode"],
    "GetMigMode": [],
    "GetMaxClockInfo": ["static.max_sm_clk_mhz"],
    "GetMaxPcieLinkWidth": ["static.pcie_max_width"],
    "GetTotalEnergyConsumption": ["counters.energy_j"],
    "GetTotalEccErrors": ["counters.ecc_uncorrected", "counters.ecc_corrected"],
    "GetRemappedRows": ["counters.remap_failed"],
    "GetPcieReplayCounter": ["counters.pcie_replays"],
    "GetViolationStatus": ["counters.violation_s"],
    "GetComputeRunningProcesses": [],
    "GetMPSComputeRunningProcesses": [],
    "GetPowerUsage": [],
    "GetUtilizationRates": ["sample.utilisation"],
    "GetTemperature": ["sample.temp_c"],  # the newer function's answer
    "GetTemperatureV": [],
    "GetClockInfo": ["sample.sm_clk_mhz", "sample.mem_clk_mhz"],
    "GetCurrentClocksEventReasons": [],  # the older one answers the same
    "GetCurrentClocksThrottleReasons": [],
    "GetCurrPcieLinkGeneration": ["sample.pcie_gen"],
    "GetCurrPcieLinkWidth": ["sample.pcie_width"],
    "GetFieldValues": ["sample.power_w", "sample.mem_temp_c", "sample.power_avg_w"],
}


@pytest.mark.parametrize("code", [LOST, 16])
def test_a_lost_gpu_is_an_error_with_a_flag(code: int) -> None:
    gpu, nvml, device = one()
    gpu.fails["*"] = code
    for ask in (nvml.static, nvml.counters):
        with pytest.raises(DeviceError) as caught:
            ask(device)
        assert caught.value.flag == "xid"


def test_an_unknown_device_is_an_error() -> None:
    _, nvml, device = one()
    with pytest.raises(DeviceError, match="no device GPU-9"):
        nvml.counters(device._replace(uuid="GPU-9"))


def test_counters() -> None:
    _, nvml, device = one(GetRemappedRows=(0, 1, 1, 0))
    assert nvml.counters(device) == Counters(
        energy_j=5000.0,
        ecc_uncorrected=0,
        ecc_corrected=7,
        remap_failed=True,
        pcie_replays=2,
        violation_s={"power": 1.0, "thermal": 2.0, "board_limit": 4.0, "reliability": 6.0},
        used_bytes=3 * 2**20,
    )


def test_processes_of_our_job_are_not_foreign_and_an_mps_server_is_counted_apart(tmp_path: Path) -> None:
    root = proc(tmp_path, job="77")
    proc(tmp_path, 100, job="77", comm="python3")
    proc(tmp_path, 101, job="78", comm="python3")
    proc(tmp_path, 102, comm="nvidia-cuda-mps-server"[:15])
    gpu = Gpu(0)
    gpu.answers["GetComputeRunningProcesses"] = [process(101, 2048), process(100, 4096), process(102, 30)]
    gpu.answers["GetMPSComputeRunningProcesses"] = [process(101, 2048)]
    nvml = Nvml(FakeNvml(gpu), proc=root)
    (device,) = nvml.devices("n1", (0,))
    assert nvml.counters(device).others == (f"pid 101 of uid {os.getuid()} (python3), 2048 MiB",)
    gpu.answers["GetMPSComputeRunningProcesses"] = []
    assert nvml.static(device).mps


def until(nvml: Nvml, device: DeviceInfo, xids: tuple[int, ...]) -> tuple[int, ...]:
    deadline = time.monotonic() + 20
    while (found := nvml.counters(device).xids) != xids and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_the_sampler_reports_xids_and_counters_keep_them() -> None:
    gpu, nvml, device = one()
    nvml = Nvml(FakeNvml(gpu), hz=50)
    gpu.events = [(8, 79), (1, 5), (8, 31)]  # another kind of event is none of ours
    watch = nvml.watch(device)
    try:
        assert until(nvml, device, (79, 31)) == (79, 31)
    finally:
        watch.close()
    gpu.events = [(8, 48)]
    second = nvml.watch(device)
    try:
        assert until(nvml, device, (79, 31, 48)) == (79, 31, 48)
    finally:
        second.close()
    assert nvml.counters(device).xids == (79, 31, 48)


@pytest.mark.parametrize("after", [[], [(LOST_NOW, 0)]])
def test_the_sampler_of_a_lost_gpu_tells_the_last_xid_and_then_nothing(after: list[tuple[int, int]]) -> None:
    """Also where the wait for the next event is the first to say that the GPU is lost."""
    gpu, nvml, device = one()
    gpu.events = [(8, 79), *after]
    for name in ("GetClockInfo", "GetFieldValues"):
        gpu.fails[name] = LOST
    with_xid = nvml.watch(device)
    try:
        assert until(nvml, device, (79,)) == (79,)
        assert with_xid.sample()._replace(t_s=0.0) == SensorSample(0.0)
    finally:
        with_xid.close()


def test_a_ramp_of_power_and_throttling_comes_through_the_sampler() -> None:
    """The script advances inside the sampler: one step per look."""
    gpu = Gpu(0)
    steps = iter(range(10_000))

    def reasons() -> int:
        step = next(steps)
        gpu.fields[186] = (1, 100_000 + 10_000 * step)
        return 4 if step % 2 else 8

    gpu.answers["GetCurrentClocksEventReasons"] = reasons
    nvml = Nvml(FakeNvml(gpu), hz=100)
    (device,) = nvml.devices("n1", (0,))
    watch = nvml.watch(device)
    taken: list[SensorSample] = []
    try:
        deadline = time.monotonic() + 20
        while len(taken) < 10 and time.monotonic() < deadline:
            taken += watch.take()
            time.sleep(0.01)
    finally:
        watch.close()
    powers = [s.power_w for s in taken[1:10]]
    assert powers == [100.0 + 10 * i for i in range(9)]
    assert telemetry.duty(taken[:10])["hw_slowdown"] == 0.5
    assert telemetry.flags(taken[:10], nvml.static(device), Counters(), Counters()) == ("degraded",)
