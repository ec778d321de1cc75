# SPDX-License-Identifier: MIT
"""Every field of a record that came over a shared directory is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slurm_pal.base.errors import DataError
from slurm_pal.variability.records import from_json
from slurm_pal.variability.validate import check_types

from ...doubles.records_factory import record


def changed(path: str, value: Any) -> str:  # noqa: ANN401 - any JSON value
    table = json.loads(record().to_json())
    part = table
    *parents, last = path.split(".")
    for name in parents:
        part = part[name]
    part[last] = value
    return json.dumps(table)


def test_a_good_record_passes_and_comes_back_equal() -> None:
    made = record(flags=["noisy"], telemetry={"power_w": {"p50": 290.0}})
    back = from_json(made.to_json())
    check_types(back)
    assert back == made


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sweep_id", ""),
        ("sweep_id", {}),
        ("cluster", "a\nb"),
        ("gpu.model", "V100\nV100"),
        ("gpu.model", "x" * 3000),
        ("gpu.mem_bytes", "16"),
        ("gpu.mem_bytes", True),
        ("gpu.minor", 1.5),
        ("gpu.serial", 5),
        ("env.libs", {"cublas": 12}),
        ("env.power_limit_w", "300"),
        ("env.app_clocks_mhz", float("nan")),
        ("bench.sensitivity_class", None),
        ("bench.id", ["gemm"]),
        ("result.unit", 5),
        ("result.value", 1e-12),
        ("result.value", 1e299),
        ("result.steady", "yes"),
        ("result.ci95_pct", float("inf")),
        ("result.cv_pct", 1e301),
        ("result.samples", [float("nan")]),
        ("telemetry", [1]),
        ("flags", [5]),
        ("valid", 1),
        ("slurm_job_id", 2**70),
    ],
)
def test_wrong_types_are_refused_by_name(path: str, value: object) -> None:
    with pytest.raises(DataError, match=path.split(".")[-1]):
        check_types(from_json(changed(path, value)))
