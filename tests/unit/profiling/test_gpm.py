# SPDX-License-Identifier: MIT
"""NVML's performance monitoring on scripted GPUs: what is told of it, and when it is given up."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_pal.profiling.node import gpm
from slurm_pal.profiling.node.gpm import Activity, Beside, open_gpm
from slurm_pal.profiling.node.nvml import NvmlLibrary

from ...doubles.nvml_double import LOST, NO_PERMISSION, NOT_SUPPORTED, FakeNvml, Gpu

TENSOR, DRAM, FP64, FP32, FP16 = 5, 10, 11, 12, 13
BUSY = {TENSOR: 61.0, DRAM: 42.5, FP64: 0.0, FP32: 12.0, FP16: 3.0}


def library(gpu: Gpu) -> NvmlLibrary:
    return NvmlLibrary(FakeNvml(gpu))


def read(metrics: dict[int, float]) -> Activity | None:
    found = open_gpm(library(Gpu(0, gpm=metrics)), "GPU-0")
    assert found is not None
    return found.read()


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (BUSY, Activity(0.425, 0.61)),
        (BUSY | {FP64: 93.0}, Activity(0.425, 0.93)),  # the busiest pipe, tensor or not
        ({TENSOR: 20.0, DRAM: 80.0}, Activity(0.8, 0.2)),
        ({DRAM: 80.0, FP32: 5.0}, Activity(0.8, None)),  # nothing is said of the tensor cores
        ({TENSOR: 20.0}, Activity(None, 0.2)),
        (BUSY | {DRAM: math.nan, TENSOR: 100.4}, Activity(None, 1.0)),
        ({}, Activity(None, None)),
    ],
)
def test_what_is_told(metrics: dict[int, float], told: Activity) -> None:
    assert read(metrics) == told


def test_each_reading_is_of_the_time_since_the_one_before() -> None:
    gpu = Gpu(0, gpm=BUSY)
    found = open_gpm(library(gpu), "GPU-0")
    assert found is not None
    for _ in range(3):
        found.read()
    assert gpu.spans == [(1, 2), (2, 3), (3, 4)]  # numbers of the samples
    found.close()
    assert gpu.held == 0


@pytest.mark.parametrize("name", ["QueryDeviceSupport", "SampleAlloc", "SampleGet"])
def test_without_support_or_permission_there_is_none_and_nothing_is_kept(name: str) -> None:
    gpu = Gpu(0, gpm=BUSY)
    gpu.fails[f"Gpm{name}"] = NO_PERMISSION
    assert open_gpm(library(gpu), "GPU-0") is None and gpu.held == 0
    assert open_gpm(library(Gpu(0)), "GPU-0") is None  # a card or a package before GPM


def test_a_mig_device_is_read_by_its_instance() -> None:
    whole, part = Gpu(0, gpm=BUSY), Gpu(1, GetGpuInstanceId=3, GetDeviceHandleFromMigDeviceHandle=None)
    part.uuid, part.answers["GetDeviceHandleFromMigDeviceHandle"] = "MIG-7", whole
    shared = NvmlLibrary(FakeNvml(whole, part))
    found = open_gpm(shared, "MIG-7")
    assert found is not None and found.read() == Activity(0.425, 0.61)
    assert whole.instances == [3, 3]
    part.fails["GetGpuInstanceId"] = NOT_SUPPORTED
    assert open_gpm(shared, "MIG-7") is None


def until(happened: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + 20.0
    while time.monotonic() < deadline_s:
        if happened():
            return True
        time.sleep(0.001)
    return False


@contextlib.contextmanager
def reading(gpu: Gpu) -> Iterator[Beside]:
    """Read all the time, and to the end of the thread."""
    beside = Beside(library(gpu), "GPU-0", every_s=0.001)
    try:
        yield beside
    finally:
        gpu.fails["*"] = NOT_SUPPORTED
        beside.thread.join(20.0)
        assert not beside.thread.is_alive()


def readings(gpu: Gpu, enough: int) -> int:
    """Samples taken until there were `enough`, or it was given up."""
    with reading(gpu) as beside:
        assert until(lambda: gpu.taken >= enough or not beside.thread.is_alive())
    return gpu.taken


@pytest.mark.parametrize("name", ["GpmSampleGet", "GpmMetricsGet"])
def test_a_failure_or_two_are_forgiven_and_more_end_it(name: str) -> None:
    gpu = Gpu(0, gpm=BUSY)
    gpu.stumbles[name] = [0, 0, 3, 3, 0, 3, 3, 0]
    assert readings(gpu, 20) >= 20
    assert all(after == before + 1 for before, after in gpu.spans)  # no sample is used twice, and none forgotten
    broken = Gpu(0, gpm=BUSY)
    broken.stumbles[name] = [0, 3, 3, 3]
    assert readings(broken, 20) < 20 and broken.held == 0


def test_a_lost_gpu_ends_it_quietly() -> None:
    gpu = Gpu(0, gpm=BUSY)
    gpu.stumbles["GpmSampleGet"] = [0, 0, LOST]
    assert readings(gpu, 20) < 20


def test_a_reading_is_taken_once() -> None:
    with reading(gpu := Gpu(0, gpm=BUSY)) as beside:
        assert until(lambda: beside.take() == Activity(0.425, 0.61))
        told = [beside.take() for _ in range(20_000)]
        assert len(told) - told.count(Activity()) <= gpu.taken
    assert gpm.EVERY_S >= 0.1  # what NVML asks for between two samples


def test_a_user_without_another_thread_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert Beside(library(Gpu(0, gpm=BUSY)), "GPU-0").take() == Activity()
