# SPDX-License-Identifier: MIT
"""Whether class A was measured at the power cap: what shows it, what is flagged, which benchmark counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slurm_pal.variability import regime
from slurm_pal.variability.classify import Classification
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record

from ...doubles.records_factory import DAY_S, NOW_S, classify, record, sweep, truth, uuid_of

P = Params()
AT = {"duty": {"power_cap": 1.0}, "power_w": {"p50": 299.0}}
BELOW = {"duty": {"power_cap": 0.0}, "power_w": {"p50": 240.0}}


def flagged(found: Classification) -> set[str]:
    return {g.uuid for g in found.gpus if regime.NOT_CAPPED in g.flags}


def site(**telemetry: Mapping[str, Any]) -> list[Record]:
    """Sixteen GPUs; telemetry by benchmark."""
    slow = truth(16)["A"]
    made = []
    for name, shown in telemetry.items():
        spread = [1.0] * 16 if shown is BELOW else slow  # below the cap all are alike
        made += sweep({"A": spread}, noise=0.0, bench=name, telemetry=shown)
    return made


@pytest.mark.parametrize(
    ("power_cap", "power_w", "limit_w", "held_back", "met"),
    [
        (1.0, 300.0, 300.0, False, True),
        (0.3, 250.0, 300.0, False, True),
        (0.29, 250.0, 300.0, False, False),
        (0.0, 291.0, 300.0, False, True),  # at the cap, whatever the driver calls it
        (None, 291.0, 300.0, False, True),
        (None, 290.0, 300.0, False, False),
        (0.0, None, None, False, False),
        (None, None, 300.0, False, None),
        (None, 240.0, None, False, None),
        (None, 0.0, 560.0, False, None),  # the second die of a card, whose power is that of the first
        (1.0, 0.0, 560.0, False, True),
        (0.0, 240.0, 300.0, True, None),  # heat or the board decided its clock
        (0.5, 300.0, 300.0, True, True),
    ],
)
def test_what_shows_that_a_run_met_its_limit(
    power_cap: float | None, power_w: float | None, limit_w: float | None, held_back: bool, met: bool | None
) -> None:
    assert regime.met_cap(power_cap, power_w, limit_w, held_back, P) is met


def test_gpus_measured_below_the_limit_are_flagged_and_no_others() -> None:
    made = sweep(truth(16), only=range(8), telemetry=AT) + sweep(truth(16), only=range(8, 12), telemetry=BELOW)
    hot = {"duty": {"power_cap": 0.0, "sw_thermal": 0.5}, "power_w": {"p50": 240.0}}
    made += sweep(truth(16), only=range(12, 14), telemetry=hot) + sweep(truth(16), only=range(14, 16))
    found = classify(made, NOW_S)
    assert flagged(found) == {uuid_of(i) for i in range(8, 12)}
    (group,) = (g for g in found.groups if g.group.sensitivity == "A")
    assert group.met_cap == pytest.approx(8 / 12), "of those of which it is known"
    assert found.met_cap == {"Emu V100": {"A": 0.667, "B": 0.667, "C": 0.667}}


def test_classes_b_and_c_below_the_limit_are_as_they_should_be() -> None:
    made = sweep({"A": truth(16)["A"]}, telemetry=AT)
    made += sweep({"B": [1.0] * 16, "C": [1.0] * 16}, telemetry=BELOW)
    assert flagged(classify(made, NOW_S)) == set()


def test_the_flag_ends_with_a_sweep_that_meets_the_limit() -> None:
    before = sweep({"A": truth(16)["A"]}, "s0", ts=NOW_S - 3 * DAY_S, telemetry=BELOW)
    assert len(flagged(classify(before, NOW_S))) == 16
    after = sweep({"A": truth(16)["A"]}, "s1", telemetry=AT)
    assert flagged(classify([*before, *after], NOW_S)) == set()
    assert flagged(classify(before, NOW_S + 100 * DAY_S)) == set(), "a forgotten score is unknown, nothing more"


def test_the_product_that_meets_the_limit_speaks_for_class_a() -> None:
    """V100: tensor cores below the cap, fp32 at it. The usual order would show sixteen equal GPUs."""
    alone = classify(site(gemm_fp16=BELOW), NOW_S)
    assert {g.slowdown["A"] for g in alone.gpus} == {1.0} and len(flagged(alone)) == 16
    both = classify(site(gemm_fp16=BELOW, gemm_fp32=AT), NOW_S)
    assert len({g.slowdown["A"] for g in both.gpus}) == 16 and flagged(both) == set()
    usual = classify(site(gemm_fp16=AT, gemm_fp32=AT), NOW_S)
    assert usual.groups[0].group.benchmark == "gemm_fp16"
    assert [g.slowdown for g in usual.gpus] == [g.slowdown for g in both.gpus]
    neither = classify(site(gemm_fp16=BELOW, gemm_fp32=BELOW), NOW_S)
    assert len(flagged(neither)) == 16


def test_below_the_cap_little_power_is_no_fault_of_a_gpu_that_is_hardly_slower() -> None:
    """At the cap all draw the same; below it a good chip draws less at the same clock, and is not broken."""

    def suspects(slowdown: float, duty: float) -> set[str]:
        slow = [1.0 + 0.0005 * (i % 3 - 1) for i in range(15)] + [slowdown]
        made = [
            record(
                uuid_of(i), f"n{i}", 0, s,
                telemetry={"duty": {"power_cap": duty}, "power_w": {"p50": 220.0 if i == 15 else 235.0}},
            )
            for i, s in enumerate(slow)
        ]  # fmt: skip
        return {g.uuid for g in classify(made, NOW_S).gpus if "suspect_hw" in g.flags}

    assert suspects(1.01, duty=1.0) == {uuid_of(15)}
    assert suspects(1.01, duty=0.0) == set()
    assert suspects(1.06, duty=0.0) == {uuid_of(15)}


def test_without_sensors_the_usual_order_holds() -> None:
    made = sweep({"A": [1.0] * 7 + [1.2]}, noise=0.0) + sweep({"A": [1.0] * 7 + [1.6]}, noise=0.0, bench="gemm_fp32")
    found = classify(made, NOW_S)
    assert max(g.slowdown["A"] for g in found.gpus) == pytest.approx(1.2)
    assert flagged(found) == set() and found.met_cap == {}


def test_a_group_on_the_border_does_not_flap() -> None:
    below: frozenset[str] = frozenset()
    seen = []
    for now in (0.5, 0.41, 0.39, 0.45, 0.59, None, 0.61, 0.45):
        below = regime.step(below, "g", now)
        seen.append("g" in below)
    assert seen == [False, False, True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ({"A": 1.0, "B": 0.0}, ""),
        ({"A": 0.9, "B": 0.6}, "both kernels met the power cap"),
        ({"A": 0.1, "B": 0.0}, "neither kernel met the power cap"),
        ({"A": 0.0, "B": 1.0}, ""),
        ({"A": 1.0}, ""),
        ({}, ""),
    ],
)
def test_where_a_and_b_are_one_class(shares: dict[str, float], why: str) -> None:
    assert regime.one_class(shares) == why


def test_a_single_run_counts_by_its_own_limit() -> None:
    found = classify([record("GPU-x", telemetry={"power_w": {"p50": 240.0}}, power_limit_w=240.0)], NOW_S)
    assert flagged(found) == set()
