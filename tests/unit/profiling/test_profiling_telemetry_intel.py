# SPDX-License-Identifier: MIT
"""Intel telemetry from a made sysfs and procfs, laid out as the kernel documents them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from slurm_pal.profiling.node import telemetry, throttle
from slurm_pal.profiling.node.devices import Counters, DeviceInfo, SensorSample, Static
from slurm_pal.profiling.node.intel import IntelSysfs, _Look

from ...doubles.proc_double import proc

BUS = "0000:29:00.0"
COMMON = {
    "device/vendor": "0x8086",
    "device/device": "0x0bd5",
    "device/max_link_width": "16",
    "device/current_link_width": "8",
    "device/current_link_speed": "32.0 GT/s PCIe",
    "device/hwmon/hwmon3/power1_max": "450000000",
    "device/hwmon/hwmon3/power1_rated_max": "600000000",
    "device/hwmon/hwmon3/energy1_input": "5000000",
}
XE = COMMON | {
    "device/uevent": f"DRIVER=xe\nPCI_CLASS=38000\nPCI_SLOT_NAME={BUS}\n",
    "device/hwmon/hwmon3/temp2_input": "55000",
    "device/hwmon/hwmon3/temp2_label": "pkg",
    "device/hwmon/hwmon3/temp3_input": "62000",
    "device/hwmon/hwmon3/temp3_label": "vram",
    "device/tile0/gt0/freq0/act_freq": "1550",
    "device/tile1/gt0/freq0/act_freq": "1450",
    "device/tile0/gt1/freq0/act_freq": "300",  # the media engine
    "device/tile0/gt0/freq0/rp0_freq": "1600",
    "device/tile1/gt0/freq0/rp0_freq": "1600",
    "device/tile0/gt0/freq0/throttle/reason_pl1": "0",
    "device/tile1/gt0/freq0/throttle/reason_pl1": "1",
    "device/tile0/gt0/freq0/throttle/reason_thermal": "0",
    "device/tile0/gt0/freq0/throttle/reason_prochot": "0",
    "device/tile0/gt0/freq0/throttle/reason_vr_tdc": "0",
}
I915 = COMMON | {
    "device/uevent": f"DRIVER=i915\nPCI_SLOT_NAME={BUS}\n",
    "device/hwmon/hwmon3/temp1_input": "51000",
    "gt/gt0/rps_act_freq_mhz": "1300",
    "gt/gt0/rps_RP0_freq_mhz": "1550",
    "gt/gt0/throttle_reason_pl1": "0",
    "gt/gt0/throttle_reason_thermal": "1",
}


def card(root: Path, name: str, files: dict[str, str]) -> str:
    for path, text in files.items():
        place = root / "sys/class/drm" / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return str(root / "sys")


def one(root: Path, files: dict[str, str]) -> tuple[IntelSysfs, DeviceInfo]:
    sysfs = card(root, "card1", files)
    (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.12.1\n")
    intel = IntelSysfs(proc=str(root / "proc"), sysfs=sysfs, hz=100)
    (device,) = intel.devices("n1", (0,))
    return intel, device


def first_look(intel: IntelSysfs, device: DeviceInfo) -> SensorSample:
    watch = intel.watch(device)
    try:
        deadline = time.monotonic() + 20
        while not (found := watch.take()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found[0]._replace(t_s=0.0)
    finally:
        watch.close()


def test_discrete_devices_in_pci_order(tmp_path: Path) -> None:
    card(tmp_path, "card0", XE | {"device/uevent": "DRIVER=xe\nPCI_SLOT_NAME=0000:00:02.0"})  # of the processor
    card(tmp_path, "card1", XE | {"device/uevent": "DRIVER=xe\nPCI_SLOT_NAME=0000:9a:00.0"})
    card(tmp_path, "card2", {"device/vendor": "0x1a03", "device/uevent": "DRIVER=ast\nPCI_SLOT_NAME=0000:03:00.0"})
    sysfs = card(tmp_path, "card3", XE)
    card(tmp_path, "card3-DP-1", {"status": "disconnected"})
    numa = Path(sysfs) / "bus/pci/devices" / BUS
    numa.mkdir(parents=True)
    (numa / "numa_node").write_text("1\n")
    first, second = IntelSysfs(sysfs=sysfs).devices("n1", (2, 3))
    assert first == DeviceInfo(f"intel-n1-{BUS}", "intel", "Intel 0x0bd5", 2, BUS, numa_node=1)
    assert (second.uuid, second.slot) == ("intel-n1-0000:9a:00.0", 3)
    assert [d.pci_bus_id for d in IntelSysfs(sysfs=sysfs).devices("n1", (1,))] == ["0000:9a:00.0"]


def test_xe(tmp_path: Path) -> None:
    intel, device = one(tmp_path, XE)
    assert intel.static(device) == Static(
        driver="xe-6.12.1",
        power_limit_w=450.0,
        default_power_limit_w=600.0,
        max_sm_clk_mhz=1600.0,
        pcie_max_width=16,
    )
    sample = first_look(intel, device)
    assert sample == SensorSample(
        0.0, 1450.0, None, None, 55.0, 62.0, throttle.SW_POWER_CAP, pcie_gen=5, pcie_width=8
    )  # the slowest tile; no power before there are two looks
    flags = telemetry.flags([sample], intel.static(device), Counters(), Counters())
    assert flags == ("config_differs", "pcie_link")


def test_a_tile_that_sleeps_has_no_clock_and_a_card_that_sleeps_is_idle(tmp_path: Path) -> None:
    half = XE | {"device/tile1/gt0/freq0/act_freq": "0"}
    sample = first_look(*one(tmp_path / "half", half))
    assert (sample.sm_clk_mhz, sample.reasons) == (1550.0, throttle.SW_POWER_CAP)
    whole = half | {"device/tile0/gt0/freq0/act_freq": "0", "device/tile1/gt0/freq0/throttle/reason_pl1": "0"}
    sample = first_look(*one(tmp_path / "whole", whole))
    assert (sample.sm_clk_mhz, sample.reasons) == (None, throttle.IDLE)


def test_i915(tmp_path: Path) -> None:
    intel, device = one(tmp_path, I915)
    assert intel.static(device).driver == "i915-6.12.1" and intel.static(device).max_sm_clk_mhz == 1550.0
    sample = first_look(intel, device)
    assert (sample.sm_clk_mhz, sample.temp_c, sample.mem_temp_c) == (1300.0, 51.0, None)
    assert sample.reasons == throttle.SW_THERMAL


def test_power_is_energy_over_time(tmp_path: Path) -> None:
    intel, device = one(tmp_path, XE)
    energy = tmp_path / "sys/class/drm/card1/device/hwmon/hwmon3/energy1_input"
    watch = intel.watch(device)
    spent_uj, deadline = 5_000_000, time.monotonic() + 20
    powers: list[float] = []
    try:
        while len(powers) < 3 and time.monotonic() < deadline:
            spent_uj += 1_000_000
            energy.with_suffix(".new").write_text(str(spent_uj))
            energy.with_suffix(".new").rename(energy)
            powers += [s.power_w for s in watch.take() if s.power_w]
            time.sleep(0.01)
    finally:
        watch.close()
    assert len(powers) >= 3 and all(p > 0 for p in powers)
    assert intel.counters(device).energy_j == spent_uj / 1e6


def test_an_energy_counter_that_starts_anew_is_no_power(tmp_path: Path) -> None:
    intel, device = one(tmp_path, XE)
    look = _Look(intel._card(device))
    energy = tmp_path / "sys/class/drm/card1/device/hwmon/hwmon3/energy1_input"
    powers = [look().power_w]
    for text in ("9000000", "1000", "2000"):
        energy.write_text(text)
        powers.append(look().power_w)
    assert [p is None for p in powers] == [True, False, True, False]


def test_a_power_limit_of_nought_is_none(tmp_path: Path) -> None:
    none = {"device/hwmon/hwmon3/power1_max": "0", "device/hwmon/hwmon3/power1_rated_max": "0"}
    intel, device = one(tmp_path, XE | none)
    assert (intel.static(device).power_limit_w, intel.static(device).default_power_limit_w) == (None, None)


def client(root: Path, pid: int, number: int, name: str, memory: str, bus: str = BUS, descriptor: int = 3) -> None:
    place = root / "proc" / str(pid) / "fdinfo"
    place.mkdir(parents=True, exist_ok=True)
    (place / str(descriptor)).write_text(
        f"pos:\t0\nflags:\t02100002\ndrm-driver:\txe\ndrm-client-id:\t{number}\ndrm-pdev:\t{bus}\n{name}:\t{memory}\n"
    )


def test_clients_of_other_jobs_are_foreign(tmp_path: Path) -> None:
    intel, device = one(tmp_path, XE)
    root = tmp_path / "proc"
    proc(root, job="4")
    for pid, job in ((50, "4"), (51, "9"), (52, ""), (53, ""), (54, "")):
        proc(root, pid, job=job, comm="python3")
    client(tmp_path, 50, 1, "drm-resident-vram0", "9 GiB")
    client(tmp_path, 51, 2, "drm-resident-vram0", "2048 KiB")
    client(tmp_path, 51, 2, "drm-resident-vram0", "2048 KiB", descriptor=4)  # the same client once more
    client(tmp_path, 51, 3, "drm-resident-vram0", "1 MiB", descriptor=5)
    client(tmp_path, 52, 4, "drm-resident-local0", "7 MiB")  # i915's name
    client(tmp_path, 53, 5, "drm-resident-vram0", "0")  # a display server, say
    client(tmp_path, 54, 6, "drm-resident-vram0", "1 GiB", bus="0000:9a:00.0")
    uid = os.getuid()
    assert intel.counters(device) == Counters(
        energy_j=5.0, others=(f"pid 51 of uid {uid} (python3), 3 MiB", f"pid 52 of uid {uid} (python3), 7 MiB")
    )


@pytest.mark.parametrize("content", [None, "", "garbage\n"])
@pytest.mark.parametrize("name", sorted(set(XE) - {"device/vendor", "device/uevent"}))
def test_any_file_may_be_missing_or_empty(tmp_path: Path, name: str, content: str | None) -> None:
    intel, device = one(tmp_path, XE)
    path = tmp_path / "sys/class/drm/card1" / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    static, counters = intel.static(device), intel.counters(device)
    samples = [first_look(intel, device)]
    assert samples[0].temp_c in (55.0, None)
    telemetry.summary(samples, counters, counters)
    telemetry.flags(samples, static, counters, counters)


def test_a_card_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    intel, device = one(tmp_path, XE)
    shutil.rmtree(tmp_path / "sys/class/drm/card1")
    assert intel.devices("n1", (0,)) == ()
    assert intel.static(device) == Static(driver="")
    assert intel.counters(device) == Counters()
    assert first_look(intel, device) == SensorSample(0.0)
