# SPDX-License-Identifier: MIT
"""Variables that steer GPU libraries."""

from __future__ import annotations

import pytest

from slurm_pal.profiling.node.devices import DeviceInfo
from slurm_pal.profiling.node.emu import EmuTelemetry
from slurm_pal.profiling.node.libraries import Described, steering


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE", "CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY",
        "PYTORCH_TUNABLEOP_ENABLED",
        "PYTORCH_TUNABLEOP_TUNING", "PYTORCH_TUNABLEOP_ROTATING_BUFFER_SIZE", "TORCH_BLAS_PREFER_HIPBLASLT",
        "ROCBLAS_USE_HIPBLASLT", "HIPBLASLT_TENSILE_LIBPATH",
    ],
)  # fmt: skip
def test_what_changes_results_or_speed_is_part_of_the_method(name: str) -> None:
    assert steering({"PATH": "/bin", name: "1"}) == {name: "1"}
    assert steering({name: ""}) == {}


@pytest.mark.parametrize(
    "name",
    [
        "CUBLAS_LOGINFO_DBG", "CUBLAS_LOGDEST_DBG", "CUBLASLT_LOG_LEVEL", "CUBLASLT_LOG_FILE",
        "PYTORCH_TUNABLEOP_VERBOSE",
        "PYTORCH_TUNABLEOP_FILENAME", "ROCBLAS_LAYER", "ROCBLAS_LOG_PATH", "CUDA_VISIBLE_DEVICES", "MY_CUBLAS_HOME",
    ],
)  # fmt: skip
def test_what_is_only_written_about_it_is_not(name: str) -> None:
    assert steering({name: "1"}) == {}


def test_sensors_of_a_library_backend_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sensors, device = Described(EmuTelemetry({}), lambda: {"cublas": "12.8.4"}), DeviceInfo("GPU-1", "emu", "m", 0)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")
    before = sensors.static(device).comparable()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert sensors.static(device).comparable() == before | {"lib:NVIDIA_TF32_OVERRIDE": "0"}
