# SPDX-License-Identifier: MIT
"""Two sweeps against each other: changes, noise, methods that differ, GPUs that came and went."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.base.errors import DataError
from slurm_pal.variability.compare import benjamini_hochberg, compare, median_interval, signed_rank_p
from slurm_pal.variability.records import Record

from ...doubles.records_factory import DAY_S, NOW_S, sweep, truth, uuid_of

TRUE = truth(64)


def pair(change: dict[int, float] | None = None, noise: float = 0.0008, gpus: int = 64, **after: object,
         ) -> tuple[list[Record], list[Record]]:  # fmt: skip
    """Two sweeps a day apart; `change`: GPU -> factor on its class-A time."""
    old = {c: v[:gpus] for c, v in TRUE.items()}
    new = old | {"A": [s * (change or {}).get(i, 1.0) for i, s in enumerate(old["A"])]}
    before = sweep(old, "before", ts=NOW_S - DAY_S, noise=noise)
    return before, sweep(new, "after", ts=NOW_S - 3600.0, noise=noise, **after)  # type: ignore[arg-type]


def test_nothing_changed() -> None:
    found = compare(*pair())
    assert [(r.benchmark, r.sensitivity) for r in found.rows] == [
        ("gemm_bf16", "A"), ("tblock", "B"), ("hbm_triad", "C"),
    ]  # fmt: skip
    for row in found.rows:
        assert not row.relative and len(row.gpus) == 64 and not row.changed
        assert row.ratio == pytest.approx(1.0, abs=0.001) and row.low is not None and row.high is not None
        assert row.low <= row.ratio <= row.high and row.interval == "order"
        assert row.p_value is not None and row.p_value > 0.001
    assert not found.moved and not found.appeared and not found.vanished and found.environment == {}


def test_a_few_changed_gpus_are_found_and_no_others() -> None:
    change = {3: 1.03, 17: 0.96, 40: 1.012}
    row = compare(*pair(change)).rows[0]
    found = {g.uuid: g.ratio for g in row.changed}
    assert set(found) == {uuid_of(i) for i in change}
    for i, factor in change.items():
        assert found[uuid_of(i)] == pytest.approx(factor, abs=0.004)
    assert row.gpus[0].uuid == uuid_of(17) and row.ratio == pytest.approx(1.0, abs=0.001)


def test_all_changed_alike() -> None:
    row = compare(*pair(dict.fromkeys(range(64), 1.02))).rows[0]
    assert row.ratio == pytest.approx(1.02, abs=0.001) and len(row.changed) == 64
    assert row.p_value is not None and row.p_value < 1e-8 and row.low is not None and row.low > 1.018


def test_half_of_the_gpus_changed() -> None:
    row = compare(*pair({i: 1.0 + 0.02 + i / 2000 for i in range(32)})).rows[0]
    assert {g.uuid for g in row.changed} >= {uuid_of(i) for i in range(32)} and len(row.changed) <= 34


def test_a_noisy_benchmark_changes_nothing() -> None:
    row = compare(*pair(noise=0.02)).rows[0]
    assert len(row.changed) <= 3 and row.noise > 0.015


def test_another_driver_compares_each_sweep_to_its_own_median() -> None:
    before, after = pair({5: 1.04} | {i: 1.0 for i in range(64)} | {5: 1.04}, driver="560.2", method_hash="other")
    after = [replace(r, result=replace(r.result, value=r.result.value * 1.5)) for r in after]
    found = compare(before, after)
    row = found.rows[0]
    assert row.relative and row.differs == ("driver 550.1 -> 560.2",) and row.p_value is None
    assert row.ratio == pytest.approx(1.0, abs=1e-9) and row.raw_ratio == pytest.approx(1 / 1.5, rel=0.002)
    assert [g.uuid for g in row.changed] == [uuid_of(5)]
    assert found.environment == {"driver": {"550.1 -> 560.2": 64}}


def test_gpus_that_moved_came_or_went() -> None:
    before, after = pair(gpus=16)
    slot = {r.gpu.uuid: (r.node_name, r.gpu.slurm_index) for r in before}
    a, b = uuid_of(0), uuid_of(4)
    swapped = [
        replace(r, node_name=slot[other][0], gpu=replace(r.gpu, slurm_index=slot[other][1]))
        if (other := {a: b, b: a}.get(r.gpu.uuid)) else r
        for r in after
    ]  # fmt: skip
    swapped = [replace(r, gpu=replace(r.gpu, uuid="GPU-new")) if r.gpu.uuid == uuid_of(15) else r for r in swapped]
    swapped = [r for r in swapped if r.node_name != "n0003"]
    found = compare(before, swapped)
    assert {p.uuid for p in found.moved} == {a, b} and found.moved[0].before != found.moved[0].after
    assert [p.uuid for p in found.appeared] == ["GPU-new"] and found.appeared[0].before is None
    assert [p.uuid for p in found.vanished] == [uuid_of(15)]
    assert (found.only_before, found.only_after) == (4, 0)


def test_sensors_stand_beside() -> None:
    before, _ = pair(gpus=8, telemetry={"power_w": {"p50": 290.0}})
    _, after = pair(gpus=8, telemetry={"power_w": {"p50": 280.0}, "sm_clk_mhz": {"p50": 1400.0}})
    before = [replace(r, telemetry={"power_w": {"p50": 290.0}}) for r in before]
    assert compare(before, after).rows[0].sensors == {"power_w": (290.0, 280.0)}


@pytest.mark.parametrize(("gpus", "kind"), [(1, ""), (3, "t"), (5, "t"), (6, "order")])
def test_few_gpus(gpus: int, kind: str) -> None:
    row = compare(*pair(gpus=gpus)).rows[0]
    assert row.interval == kind and (row.p_value is None) == (gpus < 6) and (row.low is None) == (gpus == 1)


def test_nothing_in_common_is_one_line() -> None:
    before, after = pair(gpus=4)
    other = [replace(r, gpu=replace(r.gpu, uuid=f"X{r.gpu.uuid}")) for r in after]
    with pytest.raises(DataError, match="no GPU and benchmark in common"):
        compare(before, other)
    with pytest.raises(DataError):
        compare([], [])


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60))
def test_the_correction_for_many_gpus_is_that_of_the_paper(p_values: list[float]) -> None:
    mask = benjamini_hochberg(np.array(p_values))
    ordered = sorted(p_values)
    limit = max((p for i, p in enumerate(ordered, 1) if p <= 0.05 * i / len(ordered)), default=-1.0)
    assert mask.tolist() == [p <= limit for p in p_values]


def test_intervals_hold_the_median_as_often_as_they_say() -> None:
    draw = np.random.default_rng(3)
    for n, low, high in ((6, 0.94, 1.0), (20, 0.93, 0.99), (101, 0.93, 0.99)):
        hits = [a <= 0.0 <= b for a, b, _ in (median_interval(draw.standard_normal(n)) for _ in range(600))]
        assert low <= np.mean(hits) <= high, n


def test_signed_ranks() -> None:
    assert signed_rank_p(np.zeros(8)) == 1.0 and signed_rank_p(np.ones(5)) is None
    draw = random.Random(1)
    assert signed_rank_p(np.array([draw.gauss(1.0, 0.1) for _ in range(60)])) < 1e-6  # type: ignore[operator]
    assert signed_rank_p(np.array([draw.gauss(1.0, 0.1) for _ in range(12)])) == pytest.approx(2 / 2**12)
