# SPDX-License-Identifier: MIT
"""Two board makers are two kinds, not outliers; a tail is no kind, and faults are seen beside both."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_pal.variability.classify import Classification
from slurm_pal.variability.kinds import Kinds, two_kinds
from slurm_pal.variability.records import Record

from ...doubles.records_factory import DAY_S, NOW_S, classify, record, sweep, uuid_of

FLOOR = 0.002


def relative(values: np.ndarray) -> np.ndarray:
    return values / np.median(values)


def makers(gpus: int, share: float, sd: float, apart: float = 0.06, seed: int = 1) -> np.ndarray:
    values = 1.0 + np.random.default_rng(seed).normal(0.0, sd, gpus)
    values[: round(gpus * share)] += apart
    return relative(values)


@pytest.mark.parametrize(
    ("share", "sd"), [(0.09, 0.01), (0.25, 0.01), (0.5, 0.01), (0.75, 0.01), (0.92, 0.01), (0.25, 0.02)]
)
def test_two_makers_are_found(share: float, sd: float) -> None:
    found = two_kinds(makers(400, share, sd), FLOOR)
    assert found is not None
    assert found.centres[1] / found.centres[0] == pytest.approx(1.06, abs=0.006)
    assert found.shares[1] == pytest.approx(share, abs=0.04) and found.width == pytest.approx(sd, rel=0.15)
    assert found.centres[0] < found.edge < found.centres[1]


@pytest.mark.parametrize("gpus", [40, 400, 5000])
def test_one_kind_is_not_taken_for_two(gpus: int) -> None:
    draw = np.random.default_rng(3)
    shapes = {
        "normal": lambda: draw.normal(0.0, 0.02, gpus), "slow tail": lambda: 0.02 * draw.gamma(1.5, 1.0, gpus),
        "fast tail": lambda: -0.02 * draw.gamma(4.0, 0.5, gpus), "both": lambda: 0.012 * draw.standard_t(4, gpus),
    }  # fmt: skip
    for name, shape in shapes.items():
        assert not [1 for _ in range(20) if two_kinds(relative(1.0 + shape()), FLOOR)], name


def test_few_or_far_gpus_are_no_kind() -> None:
    assert two_kinds(makers(39, 0.5, 0.01), FLOOR) is None
    assert two_kinds(makers(400, 0.03, 0.01), FLOOR) is None, "12 GPUs are outliers"
    assert two_kinds(makers(400, 0.2, 0.01, apart=0.3), FLOOR) is None, "boards of one model do not differ by 30 %"
    assert two_kinds(np.ones(400), FLOOR) is None
    assert two_kinds(np.array([]), FLOOR) is None


def test_kinds_seen_before_are_kept_more_easily() -> None:
    doubtful = [v for seed in range(60) if two_kinds(v := makers(400, 0.1, 0.02, seed=seed), FLOOR) is None]
    assert doubtful and sum(isinstance(two_kinds(v, FLOOR, before=True), Kinds) for v in doubtful) >= 0.8 * len(
        doubtful
    )


def swept(true: np.ndarray, **changes: object) -> list[Record]:
    return [
        r
        for i in range(3)
        for r in sweep({"A": true.tolist()}, f"s{i}", ts=NOW_S - (30 - 10 * i) * DAY_S, **changes)  # type: ignore[arg-type]
    ]


def flagged(found: Classification, flag: str) -> set[str]:
    return {gpu.uuid for gpu in found.gpus if flag in gpu.flags}


def test_the_gpus_of_another_maker_are_not_quarantined_and_broken_ones_are() -> None:
    true = makers(200, 0.1, 0.01)
    true[[3, 150]] *= 1.2
    found = classify(swept(true), NOW_S)
    broken = {uuid_of(3), uuid_of(150)}
    assert flagged(found, "quarantined") == flagged(found, "outlier") == broken
    (notice,) = [n for n in found.notices if n.state == "kinds"]
    assert notice.gpus in range(18, 22) and notice.other == 200
    scores = {gpu.uuid: gpu.slowdown["A"] for gpu in found.gpus}
    assert np.mean([scores[uuid_of(i)] for i in range(20) if i != 3]) == pytest.approx(1.06, abs=0.006)


def test_a_kind_that_draws_less_power_is_not_suspect_and_a_weak_gpu_of_it_is() -> None:
    true = makers(200, 0.2, 0.01)
    true[5] *= 1.1
    power = [280.0] * 40 + [300.0] * 160
    power[5] = 240.0
    made = []
    for day in (20, 10):
        made += [
            record(
                uuid_of(i), f"n{i // 4:04d}", i % 4, float(true[i]), ts=NOW_S - day * DAY_S, sweep=f"s{day}",
                telemetry={"power_w": {"p50": power[i]}},
            )
            for i in range(200)
        ]  # fmt: skip
    assert flagged(classify(made, NOW_S), "suspect_hw") == {uuid_of(5)}
