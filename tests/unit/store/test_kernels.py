# SPDX-License-Identifier: MIT
"""Where the sweep's own kernels lie, from its records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.sensitivity.behaviour import Centroid
from slurm_pal.store import kernels
from slurm_pal.variability.records import Record

from ...doubles.records_factory import record

SEEN: Mapping[str, tuple[float, float, float]] = {
    "A": (1.0, 1350.0, 297.0), "B": (0.0, 1500.0, 180.0), "C": (0.0, 1500.0, 81.0),
}  # fmt: skip


def records(sensitivity: str, gpus: int = 4, **changes: object) -> list[Record]:
    duty, clock, power = SEEN[sensitivity]
    telemetry = {
        "sm_clk_mhz": {"p5": clock, "p50": clock, "p95": clock}, "power_w": {"p50": power}, "duty": {"power_cap": duty},
    }  # fmt: skip
    more: dict[str, object] = {"telemetry": telemetry} | changes
    return [record(f"GPU-{i}", index=i, sensitivity=sensitivity, **more) for i in range(gpus)]  # type: ignore[arg-type]


def telling(sensitivity: str, gpus: int, **more: float) -> list[Record]:
    """Records that tell how busy memory and pipes were."""
    clock = SEEN[sensitivity]
    spreads = {name: {"p5": 0.0, "p50": value, "p95": 1.0} for name, value in more.items()}
    telemetry = {
        "sm_clk_mhz": {"p50": clock[1], "p95": clock[1]}, "power_w": {"p50": clock[2]}, "duty": {"power_cap": clock[0]},
    } | spreads  # fmt: skip
    return records(sensitivity, gpus, telemetry=telemetry)


def gathered(of: list[Record]) -> dict[str, kernels.Kernels]:
    points = kernels.Points()
    for one in of:
        points.take(kernels.told(one))
    return points.kernels()


def test_each_model_has_a_place_for_each_class() -> None:
    found = gathered([*records("A"), *records("B"), *records("C"), *records("A", model="Other")])
    assert found["Emu V100"] == kernels.Kernels(
        1500.0, {"A": Centroid(1.0, 0.9, 0.99), "B": Centroid(0.0, 1.0, 0.6), "C": Centroid(0.0, 1.0, 0.27)}
    )
    assert found["Other"] == kernels.Kernels(1350.0, {"A": Centroid(1.0, 1.0, 0.99)})


def test_only_products_at_the_power_cap_stand_for_class_a() -> None:
    """Two products below it would hide the third, and what they look like is mixed work."""
    sensors = {"sm_clk_mhz": {"p50": 1500.0, "p95": 1500.0}, "power_w": {"p50": 225.0}, "duty": {"power_cap": 0.0}}
    below = [one for name in ("gemm_fp16", "gemm_tf32") for one in records("A", bench=name, telemetry=sensors)]
    at = [*records("A", bench="gemm_fp32"), *records("B")]
    assert gathered([*below, *at])["Emu V100"].centroids["A"] == Centroid(1.0, 0.9, 0.99)
    alone = Centroid(0.0, 1.0, 0.75)
    assert gathered(below)["Emu V100"].centroids["A"] == alone, "better than none"
    assert gathered([*below, *records("A", 3, bench="gemm_fp32")])["Emu V100"].centroids["A"] == alone, "too few"


def test_memory_and_pipes_are_told_where_enough_gpus_tell_them() -> None:
    found = gathered(
        [
            *telling("A", 4, dram=0.31, tensor=0.87), *telling("B", 3, dram=0.4, tensor=0.5), *records("B"),
            *telling("C", 4, dram=0.91),
        ]
    )["Emu V100"].centroids  # fmt: skip
    assert {c: at[3:] for c, at in found.items()} == {"A": (0.31, 0.87), "B": (None, None), "C": (0.91, None)}


def test_a_file_without_memory_and_pipes_is_as_before_them(tmp_path: Path) -> None:
    path = str(tmp_path / "k")
    kernels.write(path, gathered([*records("A"), *telling("C", 4, tensor=0.05)]))
    assert json.loads(Path(path).read_text())["models"] == {
        "Emu V100": [1500.0, {"A": [1.0, 0.9, 0.99], "C": [0.0, 1.0, 0.27, None, 0.05]}]
    }
    assert kernels.read(path)["Emu V100"].centroids == {
        "A": Centroid(1.0, 0.9, 0.99), "C": Centroid(0.0, 1.0, 0.27, None, 0.05),
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"valid": False}, {"telemetry": {}}, {"telemetry": {"sm_clk_mhz": {"p50": 1, "p95": 1}}},
        {"power_limit_w": None}, {"sensitivity_class": ""}, {"gpus": 3},
        {"telemetry": {"sm_clk_mhz": 5, "power_w": None, "duty": []}},
    ],
)  # fmt: skip
def test_records_that_do_not_tell_are_left_out(changes: dict[str, object]) -> None:
    assert gathered(records("A", **changes)) == {}  # type: ignore[arg-type]


def test_what_is_written_is_read_and_an_equal_file_is_left_alone(tmp_path: Path) -> None:
    path = kernels.path_of(str(tmp_path / "gpus.txt"))
    assert kernels.read(path) == {}
    found = gathered([*records("A"), *records("C")])
    kernels.write(path, found)
    assert kernels.read(path) == found
    before = Path(path).stat().st_ino
    kernels.write(path, found)
    assert Path(path).stat().st_ino == before
    kernels.write(path, {})
    assert kernels.read(path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "x"}',
        '{"schema": "pal.kernels/1", "models": {"m": {"A": [1]}}}',
        '{"schema": "pal.kernels/1", "models": {"m": [1, {"A": [1, null, 1]}]}}',
        '{"schema": "pal.kernels/1", "models": {"m": [1, {"A": [1, 1, 1, 1, 1, 1]}]}}',
    ],
)
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(DataError, match="the next publication replaces it"):
        kernels.read(str(tmp_path / "k"))
