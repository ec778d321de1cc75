# SPDX-License-Identifier: MIT
"""Reading the snapshot and classifying at 10,000 GPUs; figures in docs/benchmarks.md.

No time decides whether these pass: only the results are asserted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_pal.store.snapshot import FLAGS, GpuScore, encode, read

from ..doubles.records_factory import NOW_S, classify, sweep, truth, uuid_of

GPUS = 10_000
PER_NODE = 4


def scores(gpus: int) -> list[GpuScore]:
    true = truth(gpus)
    return [
        GpuScore(
            node=f"node{i // PER_NODE:05d}",
            index=i % PER_NODE,
            uuid=f"GPU-{uuid_of(i)[4:12]}-0000-0000-0000-{uuid_of(i)[4:]}",
            model="NVIDIA A100-SXM4-80GB",
            slowdown={c: true[c][i] for c in true},
            variability_class={"A": f"v{i % 4}", "B": f"v{i % 2}", "C": "v0"},
            measured_s=NOW_S - i,
            confidence=0.9,
            flags=FLAGS[i % 7 : i % 7 + 1],
        )
        for i in range(gpus)
    ]


@pytest.mark.parametrize("gpus", [100, 1_000, GPUS])
def test_read_snapshot(benchmark: Any, tmp_path: Path, gpus: int) -> None:  # noqa: ANN401 - pytest-benchmark's fixture
    raw = encode(scores(gpus), cluster="c", epoch=1, now_s=NOW_S, centroids={"A": [0.97, 0.99, 1.01, 1.03]})
    path = tmp_path / "snapshot"
    path.write_bytes(raw)
    path.chmod(0o644)
    found = benchmark(read, str(path))
    benchmark.extra_info["bytes"] = len(raw)
    assert len(found) == gpus and len(found.nodes) == gpus // PER_NODE


def test_encode_snapshot(benchmark: Any) -> None:  # noqa: ANN401
    rows = scores(GPUS)
    raw = benchmark.pedantic(encode, (rows,), {"cluster": "c", "epoch": 1, "now_s": NOW_S}, rounds=3)
    assert raw.startswith(b'{"schema": "pal.snapshot/1"')


def test_classify(benchmark: Any) -> None:  # noqa: ANN401
    gpus = GPUS if benchmark.enabled else 500  # only make bench takes its time
    records = sweep(truth(gpus, outliers=(1.5, 1.3)))
    found = benchmark.pedantic(classify, (records, NOW_S), rounds=3)
    assert len(found.gpus) == gpus
    assert sum("outlier" in gpu.flags for gpu in found.gpus) < GPUS / 100
