# SPDX-License-Identifier: MIT
"""AMD telemetry over a stand-in for amdsmi that returns what its Python reference documents."""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_pal.profiling.node import amd, process_owners, telemetry, throttle
from slurm_pal.profiling.node.amd import AmdSmi
from slurm_pal.profiling.node.devices import Counters, DeviceError, DeviceInfo, SensorSample, Static

from ...doubles.proc_double import proc

METRICS: dict[str, Any] = {
    "temperature_edge": "N/A",
    "temperature_hotspot": 61,
    "temperature_mem": 48,
    "average_gfx_activity": 97,
    "average_umc_activity": 34,
    "average_socket_power": "N/A",
    "current_socket_power": 748,
    "current_gfxclk": 1402,
    "current_gfxclks": [1402, 1398],
    "current_uclk": 1300,
    "pcie_link_width": 16,
    "pcie_link_speed": 320,
    "indep_throttle_status": "N/A",
    "accumulation_counter": 100,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 50,
    "socket_thm_residency_acc": 0,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 0,
}
ANSWERS: dict[str, Any] = {
    "amdsmi_get_gpu_device_uuid": "4fff74a1-0000-1000-80e3-d8f0a3b1c2d4",
    "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
    "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xE3D8F0A3"},
    "amdsmi_get_gpu_board_info": {"product_serial": "N/A", "product_name": "N/A"},
    "amdsmi_get_gpu_vbios_info": {"version": "022.040.003.042"},
    "amdsmi_get_gpu_vram_info": {"vram_size": 196592},
    "amdsmi_get_power_cap_info": {"power_cap": 650_000_000, "default_power_cap": 750_000_000, "dpm_cap": 2100},
    "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0},
    "amdsmi_get_pcie_info": {
        "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32},
        "pcie_metric": {"pcie_width": 16, "pcie_replay_count": 4},
    },
    "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.10.5"},
    "amdsmi_get_gpu_compute_partition": "SPX",
    "amdsmi_get_gpu_memory_partition": "NPS1",
    "amdsmi_get_clock_info": {"clk": 132, "min_clk": 132, "max_clk": 2100},
    "amdsmi_get_energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
    "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 285},
    "amdsmi_get_gpu_process_list": [],
    "amdsmi_get_gpu_metrics_info": METRICS,
    "amdsmi_get_power_info": {"socket_power": 701, "average_socket_power": "N/A"},
}


class FakeAmdSmi:
    """The module with some GPUs; a function without an answer is not supported."""

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = SimpleNamespace(GFX="gfx")

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus, self.opened = gpus, 0

    def amdsmi_init(self) -> None:
        self.opened += 1

    def amdsmi_shut_down(self) -> None:
        self.opened -= 1

    def amdsmi_get_processor_handles(self) -> list[dict[str, Any]]:
        assert self.opened == 1
        return list(self.gpus)

    def __getattr__(self, name: str) -> object:
        if not name.startswith("amdsmi_get"):
            raise AttributeError(name)

        def answer(gpu: dict[str, Any], *args: object) -> object:
            assert self.opened == 1
            if name not in gpu:
                raise self.AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
            return gpu[name]

        return answer


def gpu(**changes: object) -> dict[str, Any]:
    return copy.deepcopy(ANSWERS) | {f"amdsmi_get_{name}": value for name, value in changes.items()}


def one(answers: dict[str, Any], root: str = "/proc") -> tuple[AmdSmi, DeviceInfo]:
    smi = AmdSmi(FakeAmdSmi(answers), proc=root, hz=100)
    return smi, smi.devices("n1", (0,))[0]


def test_devices_in_pci_order() -> None:
    fake = FakeAmdSmi(gpu(gpu_device_uuid="b", gpu_device_bdf="0000:26:00.0"), gpu())
    first, second = AmdSmi(fake).devices("n1", (4, 5))
    assert fake.opened == 0
    assert first == DeviceInfo(
        uuid="4fff74a1-0000-1000-80e3-d8f0a3b1c2d4",
        vendor="amd",
        model="AMD Instinct MI300X",
        slot=4,
        pci_bus_id="0000:05:00.0",
        serial="0xE3D8F0A3",
        vbios="022.040.003.042",
        mem_bytes=196592 * 2**20,
    )
    assert (second.uuid, second.slot) == ("b", 5)
    assert [d.slot for d in AmdSmi(fake).devices("n1", (1,))] == [1]


def test_static() -> None:
    smi, device = one(gpu())
    assert smi.static(device) == Static(
        driver="6.10.5",
        power_limit_w=650.0,
        default_power_limit_w=750.0,
        ecc_mode="enabled",
        mig_mode="disabled",
        max_sm_clk_mhz=2100.0,
        pcie_max_width=16,
    )


def test_a_partition_is_told_as_one() -> None:
    smi, device = one(gpu(gpu_compute_partition="CPX", gpu_memory_partition="NPS4"))
    assert smi.static(device).mig_mode == "CPX-NPS4"


def test_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = proc(tmp_path, job="5")
    proc(tmp_path, 30, job="5")
    proc(tmp_path, 31, comm="python3")
    listed = [
        {"pid": 30, "name": "ours", "memory_usage": {"vram_mem": 900 * 2**20}},
        {"pid": 31, "name": "N/A", "memory_usage": {"vram_mem": 700 * 2**20}},
        {"pid": 32, "name": "N/A", "memory_usage": {"vram_mem": "N/A"}},
        {"pid": 33, "name": "N/A", "memory_usage": "N/A"},
        {"name": "gone"},
        "N/A",
    ]
    monkeypatch.setattr(process_owners, "_exists", lambda pid: pid == 32)  # 33: of another namespace
    smi, device = one(gpu(gpu_process_list=listed), root)
    assert smi.counters(device) == Counters(
        energy_j=15.3,
        ecc_uncorrected=1,
        others=(f"pid 31 of uid {os.getuid()} (python3), 700 MiB", "pid 32"),
        ecc_corrected=3,
        pcie_replays=4,
        used_bytes=285 * 2**20,
    )


def test_tables_within_tables_may_be_missing() -> None:
    smi, device = one(gpu(pcie_info={"pcie_static": "N/A", "pcie_metric": "N/A"}))
    assert smi.static(device).pcie_max_width is None and smi.counters(device).pcie_replays is None


def test_the_older_name_of_the_energy_counter() -> None:
    smi, device = one(gpu(energy_count={"power": 2_000_000, "counter_resolution": 15.0, "timestamp": 1}))
    assert smi.counters(device).energy_j == 30.0


def looked(answers: dict[str, Any]) -> tuple[AmdSmi, Any, SensorSample]:
    smi, device = one(answers)
    eyes = smi._eyes(device.uuid)
    return smi, eyes, eyes.look()._replace(t_s=0.0)


def test_a_look_and_residencies_that_grow_as_throttle_reasons() -> None:
    answers = gpu()
    _, eyes, first = looked(answers)
    expected = SensorSample(
        0.0, 1402.0, 1300.0, 748.0, 61.0, 48.0, None, power_avg_w=None, utilisation=0.97, pcie_gen=5, pcie_width=16,
        dram=0.34,
    )  # fmt: skip
    assert first == expected  # no reasons before there is something to compare with
    metrics = answers["amdsmi_get_gpu_metrics_info"]
    seen = []
    for name in ("accumulation_counter", "ppt_residency_acc", "hbm_thm_residency_acc", "prochot_residency_acc"):
        metrics[name] += 7
        seen.append(eyes.look().reasons)
    assert seen == [0, throttle.SW_POWER_CAP, throttle.SW_THERMAL, throttle.HW_THERMAL]


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0, 0),
        (1 << 0, throttle.SW_POWER_CAP),
        (1 << 22, throttle.SW_POWER_CAP),
        (1 << 36, throttle.SW_THERMAL),
        (1 << 47, throttle.HW_THERMAL),
        (1 << 1 | 1 << 34, throttle.SW_POWER_CAP | throttle.SW_THERMAL),
        (1 << 56, 0),
    ],
)
def test_an_older_card_gives_a_mask(bits: int, reasons: int) -> None:
    older = {k: v for k, v in METRICS.items() if not k.endswith("_acc")}
    older |= {"indep_throttle_status": bits, "current_socket_power": "N/A", "average_socket_power": 500}
    older |= {"temperature_edge": 44, "temperature_hotspot": "N/A", "current_gfxclk": ["N/A", 1650]}
    sample = looked(gpu(gpu_metrics_info=older))[2]
    assert sample.reasons == reasons
    assert (sample.power_w, sample.power_avg_w, sample.temp_c, sample.sm_clk_mhz) == (500.0, None, 44.0, 1650.0)


@pytest.mark.parametrize(
    ("told", "power_w"),
    [
        ({"socket_power": 701, "average_socket_power": "N/A"}, 701.0),
        ({"current_socket_power": 702, "average_socket_power": "N/A"}, 702.0),  # ROCm 6.0 to 6.3
        ({"current_socket_power": "N/A", "average_socket_power": 203}, 203.0),
        ({"socket_power": 0, "average_socket_power": 203}, 203.0),
        ({"socket_power": 0, "average_socket_power": 0}, None),
    ],
)
def test_power_without_the_metrics_table(told: dict[str, object], power_w: float | None) -> None:
    answers = gpu(power_info=told)
    del answers["amdsmi_get_gpu_metrics_info"]
    assert looked(answers)[2] == SensorSample(0.0, power_w=power_w)


def test_the_second_die_of_a_card_reports_no_power() -> None:
    """MI250: 0 W and 0 J, since the first die reports for both."""
    zero = METRICS | {"current_socket_power": "N/A", "average_socket_power": 0}
    answers = gpu(gpu_metrics_info=zero, power_info={"socket_power": 0, "average_socket_power": 0})
    sample = looked(answers)[2]
    assert (sample.power_w, sample.power_avg_w) == (None, None)
    assert telemetry.summary([sample], Counters(), Counters()).get("power_w") is None
    smi, device = one(gpu(energy_count={"energy_accumulator": 0, "counter_resolution": 15.3}))
    assert smi.counters(device).energy_j is None


@pytest.mark.parametrize("name", sorted(name for name in METRICS if not name.endswith("_acc")))
def test_a_metric_of_all_ones_is_not_there(name: str) -> None:
    missing, blank = gpu(), gpu()
    missing["amdsmi_get_gpu_metrics_info"][name] = "N/A"
    blank["amdsmi_get_gpu_metrics_info"][name] = 0xFFFF
    assert looked(blank)[2] == looked(missing)[2]


def test_a_partition_without_a_cap_of_its_own_has_no_limit() -> None:
    smi, device = one(gpu(power_cap_info={"power_cap": 0, "default_power_cap": 0}))
    assert (smi.static(device).power_limit_w, smi.static(device).default_power_limit_w) == (None, None)


def test_a_node_whose_gpus_cannot_be_listed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: FakeAmdSmi) -> None:
        raise FakeAmdSmi.AmdSmiException("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    monkeypatch.setattr(FakeAmdSmi, "amdsmi_get_processor_handles", refused)
    smi = AmdSmi(FakeAmdSmi(gpu()))
    assert smi.devices("n1", (0,)) == ()
    with pytest.raises(DeviceError, match="knows no device"):
        smi.static(DeviceInfo("u", "amd", "x", 0))


@pytest.mark.parametrize("gone", ["not supported", "N/A"])
@pytest.mark.parametrize("name", sorted(set(ANSWERS) - {"amdsmi_get_gpu_device_uuid", "amdsmi_get_gpu_device_bdf"}))
def test_any_function_may_be_missing(name: str, gone: str) -> None:
    answers = gpu()
    if gone == "N/A":
        answers[name] = "N/A"
    else:
        del answers[name]
    smi, _, sample = looked(answers)
    (device,) = smi.devices("n1", (0,))
    counters, static = smi.counters(device), smi.static(device)
    telemetry.summary([sample], counters, counters)
    assert set(telemetry.flags([sample], static, counters, counters)) <= {"config_differs"}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_any_metric_may_be_missing(name: str) -> None:
    answers = gpu()
    answers["amdsmi_get_gpu_metrics_info"][name] = "N/A"
    _, eyes, first = looked(answers)
    assert eyes.look()._replace(t_s=0.0, reasons=None) == first


def test_the_sampler_opens_the_library_itself() -> None:
    smi, device = one(gpu())
    smi.counters(device)
    watch = smi.watch(device)
    try:
        deadline = time.monotonic() + 20
        while watch.sample().power_w is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert watch.sample().power_w == 748.0
    finally:
        watch.close()


def test_without_the_package_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise KeyError("ROCM_HOME")  # what the package itself does where ROCm is not installed

    monkeypatch.setattr(amd.importlib, "import_module", missing)
    with pytest.raises(DeviceError, match="amdsmi cannot be used"):
        AmdSmi().devices("n1", (0,))


def test_an_unknown_device_is_an_error() -> None:
    smi, device = one(gpu())
    with pytest.raises(DeviceError, match="no device gone"):
        smi.counters(device._replace(uuid="gone"))
