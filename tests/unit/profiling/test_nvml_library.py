# SPDX-License-Identifier: MIT
"""NVIDIA telemetry through the real nvidia-ml-py, over a library in C that stands in for the driver's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOUBLES = Path(__file__).parents[2] / "doubles"
UUID = "GPU-00000000-0000-0000-0000-00000000000"

SCRIPT = """
import json, os, sys, time
from slurm_pal.profiling.node.devices import DeviceError
from slurm_pal.profiling.node.nvml import Nvml

nvml = Nvml(hz=100)
devices = nvml.devices("n1", (0, 1))
told = {"devices": [d._asdict() for d in devices]}
device = devices[0]
told["static"] = [nvml.static(d)._asdict() for d in devices]
before = nvml.counters(device)  # NVML is open here: the sampler must open its own
watch = nvml.watch(device)
samples = []
deadline = time.monotonic() + 20
wanted = lambda: len(samples) < 5 or "TOLD" in os.environ and not any(s.dram for s in samples)
while wanted() and time.monotonic() < deadline:
    samples += watch.take()
    time.sleep(0.01)
watch.close()
told["samples"] = [s._replace(t_s=0.0)._asdict() for s in samples]
told["before"], told["after"] = before._asdict(), nvml.counters(device)._asdict()
try:
    nvml.counters(device._replace(uuid="GPU-none"))
except DeviceError as error:
    told["unknown"] = str(error)
print(json.dumps(told))
"""


@pytest.fixture(scope="module", params=["new driver", "old driver"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("needs gcc")
    place = tmp_path_factory.mktemp("nvml")
    flags = ["-DOLD_DRIVER"] if request.param == "old driver" else []
    source, target = DOUBLES / "nvml_library.c", place / "libnvidia-ml.so.1"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([gcc, "-shared", "-fPIC", *warnings, *flags, "-o", str(target), str(source)], check=True)
    return request.param, place


def told(place: Path, **settings: str) -> dict[str, Any]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("FAKE_NVML")}
    environ |= {"LD_LIBRARY_PATH": str(place), **settings}
    done = subprocess.run([sys.executable, "-P", "-c", SCRIPT], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_devices_and_static(library: tuple[str, Path]) -> None:
    found = told(library[1])
    first, second = found["devices"]
    assert {k: v for k, v in first.items() if k != "numa_node"} == {
        "uuid": f"{UUID}0",
        "vendor": "nvidia",
        "model": "NVIDIA Library 80GB",
        "slot": 0,
        "pci_bus_id": "00000000:07:00.0",
        "minor": 0,
        "serial": "1650",
        "vbios": "96.00",
        "mem_bytes": 80 * 2**30,
        "parent": "",
    }
    assert (second["uuid"], second["slot"], second["pci_bus_id"]) == (f"{UUID}1", 1, "00000000:08:00.0")
    assert found["static"][0] == {
        "driver": "570.86.15",
        "runtime": "CUDA 12.8",
        "libs": {},
        "power_limit_w": 650.0,
        "default_power_limit_w": 700.0,
        "app_clocks_mhz": 1410.0,
        "ecc_mode": "enabled",
        "mig_mode": "disabled",
        "mps": False,
        "max_sm_clk_mhz": 1980.0,
        "pcie_max_width": 16,
    }
    assert found["static"][1]["mig_mode"] == "enabled"
    assert found["unknown"] == "NVML knows no device GPU-none"


def look(driver: str) -> dict[str, object]:
    new = driver == "new driver"
    return {
        "t_s": 0.0,
        "sm_clk_mhz": 1365.0,
        "mem_clk_mhz": 2619.0,
        "power_w": 641.5 if new else 612.0,
        "temp_c": 61.0,
        "mem_temp_c": 88.0,
        "reasons": 0x4 if new else 0x24,
        "power_avg_w": 612.0 if new else None,
        "utilisation": 0.98,
        "pcie_gen": 5,
        "pcie_width": 8,
        "dram": None,
        "tensor": None,
    }


@pytest.mark.parametrize("gpm", ["", "denied", "hangs"])
def test_samples_come_from_a_process_of_their_own(library: tuple[str, Path], gpm: str) -> None:
    """And none of them is lost where performance monitoring is not there, not allowed or never answers."""
    driver, place = library
    assert told(place, **{"FAKE_NVML_GPM": gpm} if gpm else {})["samples"][:5] == 5 * [look(driver)]


def test_performance_monitoring_is_told_beside_the_rest(library: tuple[str, Path]) -> None:
    driver, place = library
    samples = told(place, FAKE_NVML_GPM="works", **{"TOLD": "1"} if driver == "new driver" else {})["samples"]
    assert samples[0] == look(driver)  # it takes two samples, 100 ms apart at least
    if driver == "new driver":
        told_so = [s for s in samples if s["dram"] is not None]
        assert told_so[0] == look(driver) | {"dram": 0.425, "tensor": 0.61}
        assert len(told_so) < len(samples) / 2  # each reading is told once


def test_counters_and_an_xid_during_the_watch(library: tuple[str, Path]) -> None:
    driver, place = library
    found = told(place, FAKE_NVML_XID="94")
    used = 3 * 2**20 if driver == "new driver" else 600 * 2**20
    before = {
        "energy_j": 5000000000.001,
        "ecc_uncorrected": 0,
        "others": [],
        "ecc_corrected": 7,
        "remap_failed": False,
        "pcie_replays": 2,
        "violation_s": {"power": 1.5, "thermal": 3.0, "board_limit": 6.0},
        "xids": [],
        "used_bytes": used,
    }
    assert found["before"] == before
    assert found["after"] == before | {"xids": [94]}


def test_foreign_processes_are_told_and_our_session_is_not(library: tuple[str, Path]) -> None:
    _, place = library
    gone = 2**22 + 1  # above the largest pid of Linux: a number of another namespace
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            found = told(place, FAKE_NVML_PIDS=f"{os.getpid()}:2048,{other.pid}:300,{gone}:300")
        finally:
            other.kill()
    assert found["after"]["others"] == [f"pid {other.pid} of uid {os.getuid()} (sleep), 300 MiB"]


def test_a_lost_gpu_is_left_out_and_the_other_keeps_its_index(library: tuple[str, Path]) -> None:
    found = told(library[1], FAKE_NVML_LOST="0")
    assert [(d["uuid"], d["slot"]) for d in found["devices"]] == [(f"{UUID}1", 1)]
