# SPDX-License-Identifier: MIT
"""The whole way from records to standings: order, idempotence, swaps, age, flags, churn."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_pal.variability.classify import Classification, GpuStanding
from slurm_pal.variability.params import Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import environment_of

from ...doubles.records_factory import DAY_S, NOW_S, classify, record, sweep, truth, uuid_of
from ...doubles.trials import trials


def by_uuid(found: Classification) -> dict[str, GpuStanding]:
    return {gpu.uuid: gpu for gpu in found.gpus}


def history(gpus: int = 24, sweeps: int = 4) -> list[Record]:
    """Sweeps two weeks apart, one GPU slow for good, one slow once."""
    made: list[Record] = []
    for number in range(sweeps):
        true = truth(gpus, outliers=(1.3,))
        true["A"][0] = 2.8 if number == 1 else true["A"][0]
        made += sweep(true, f"s{number}", ts=NOW_S - (sweeps - number) * 14 * DAY_S)
    return made


def spearman(x: list[float], y: list[float]) -> float:
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_a_small_sweep_gives_sensible_classes() -> None:
    found = classify(sweep(truth(32, outliers=(1.5, 1.2))), NOW_S)
    gpus = by_uuid(found)
    assert len(gpus) == 32
    worst, bad = gpus[uuid_of(31)], gpus[uuid_of(30)]
    ordinary = [g.variability_class["A"] for g in found.gpus if g not in (worst, bad)]
    last = max(ordinary)
    assert 1 <= last <= 3 and set(ordinary) == set(range(last + 1))
    assert worst.slowdown["A"] == pytest.approx(1.5, rel=0.02)
    assert (bad.variability_class["A"], worst.variability_class["A"]) == (last + 1, last + 2)
    assert found.centroids["A"][-1] == pytest.approx(worst.slowdown["A"])
    assert {"outlier", "unconfirmed"} <= worst.flags and "quarantined" not in worst.flags
    assert found.centroids["C"] == [1.0]
    assert {g.slowdown["C"] for g in found.gpus} == {1.0}
    assert all(0.5 < g.confidence <= 1.0 for g in found.gpus)


def test_ranks_follow_the_truth() -> None:
    true = truth(400)
    gpus = by_uuid(classify(sweep(true, noise=0.0005), NOW_S))
    measured = [gpus[uuid_of(i)].slowdown["A"] for i in range(400)]
    assert spearman(measured, true["A"]) > 0.99


@pytest.mark.parametrize("seed", range(5))
def test_churn_between_two_sweeps_is_below_one_percent(seed: int) -> None:
    """The hysteresis must be what does it: without it churn is several times larger."""
    true = truth(400, seed=seed)
    first = sweep(true, "s0", ts=NOW_S - 2 * DAY_S, seed=seed)
    second = sweep(true, "s1", ts=NOW_S - 1 * DAY_S, seed=seed)

    def churn(params: Params) -> float:
        before, after = by_uuid(classify(first, NOW_S, params)), by_uuid(classify([*first, *second], NOW_S, params))
        return sum(before[u].variability_class["A"] != after[u].variability_class["A"] for u in before) / len(before)

    assert churn(Params(k=3)) < 0.01


def test_hysteresis_is_what_prevents_churn() -> None:
    def total(hysteresis: float) -> int:
        params, moved = Params(k=3, hysteresis=hysteresis), 0
        for seed in range(3):
            true = truth(150, seed=seed)
            first = sweep(true, "s0", ts=NOW_S - 2 * DAY_S, seed=seed)
            second = sweep(true, "s1", ts=NOW_S - DAY_S, seed=seed)
            before, after = (by_uuid(classify(r, NOW_S, params)) for r in (first, [*first, *second]))
            moved += sum(before[u].variability_class["A"] != after[u].variability_class["A"] for u in before)
        return moved

    assert total(0.0025) < total(0.0)


RECORDS = history()
REFERENCE = classify(RECORDS, NOW_S)


@trials(25)
@given(st.permutations(range(len(RECORDS))), st.lists(st.integers(0, len(RECORDS) - 1), max_size=20))
def test_any_order_and_any_repetition_give_the_same(order: list[int], again: list[int]) -> None:
    assert classify([RECORDS[i] for i in (*order, *again)], NOW_S) == REFERENCE


def test_published_methods_are_order_independent_too() -> None:
    for method in ("pal", "pal-artifact"):
        params = Params(method=method)
        shuffled = random.Random(5).sample(RECORDS, len(RECORDS))
        assert classify(shuffled, NOW_S, params) == classify(RECORDS, NOW_S, params)


def test_the_same_day_gives_the_same_numbers() -> None:
    start = NOW_S - NOW_S % DAY_S
    made = [replace(r, ts_end=r.ts_end - 40 * DAY_S) for r in sweep(truth(16))]
    assert classify(made, start + 3 * 3600) == classify(made, start + 9 * 3600)


def test_slow_for_good_is_quarantined_and_slow_once_is_not() -> None:
    gpus = by_uuid(REFERENCE)
    assert {"quarantined", "outlier"} <= gpus[uuid_of(23)].flags
    assert gpus[uuid_of(0)].slowdown["A"] < 1.1
    assert not gpus[uuid_of(0)].flags & {"quarantined", "outlier"}


def test_two_slow_runs_in_one_sweep_are_one_observation() -> None:
    made = sweep(truth(16, outliers=(1.4,)))
    made += [replace(r, run_id=r.run_id + "-again") for r in made]
    gpu = by_uuid(classify(made, NOW_S))[uuid_of(15)]
    assert "outlier" in gpu.flags and "quarantined" not in gpu.flags


def test_quarantine_ends_when_the_gpu_has_recovered() -> None:
    made = sweep(truth(16, outliers=(1.4,)), "s0", ts=NOW_S - 9 * DAY_S)
    made += sweep(truth(16, outliers=(1.4,)), "s1", ts=NOW_S - 8 * DAY_S)
    assert "quarantined" in by_uuid(classify(made, NOW_S))[uuid_of(15)].flags
    made += sweep(truth(16), "s2", ts=NOW_S - 7 * DAY_S) + sweep(truth(16), "s3", ts=NOW_S - 6 * DAY_S)
    assert not by_uuid(classify(made, NOW_S))[uuid_of(15)].flags & {"quarantined", "outlier"}


def test_swapped_gpus_take_their_history_with_them() -> None:
    before = sweep(truth(16, outliers=(1.4,)), "s0", ts=NOW_S - 9 * DAY_S)
    swap = {uuid_of(15): ("n0001", 0), uuid_of(0): ("n0004", 3)}
    # After the swap both are seen only by runs that say nothing about their speed.
    after = [record(u, node, slot, ts=NOW_S - DAY_S, sweep="s1", valid=False) for u, (node, slot) in swap.items()]
    gpus = classify([*before, *after], NOW_S).gpus
    slots = {(g.node, g.slot): g for g in gpus}
    assert len(gpus) == 16
    assert slots["n0001", 0].uuid == uuid_of(15)
    assert slots["n0001", 0].slowdown["A"] == pytest.approx(1.4, rel=0.03)
    assert slots["n0004", 3].slowdown["A"] < 1.1


def test_a_slot_whose_gpu_was_seen_elsewhere_later_is_empty() -> None:
    before = sweep(truth(16), "s0", ts=NOW_S - 9 * DAY_S)
    moved = record(uuid_of(5), "n0009", 2, ts=NOW_S - DAY_S, sweep="s1")
    slots = {(g.node, g.slot): g.uuid for g in classify([*before, moved], NOW_S).gpus}
    assert ("n0002", 1) not in slots
    assert slots["n0009", 2] == uuid_of(5)


def test_a_new_gpu_in_a_slot_starts_without_history() -> None:
    before = sweep(truth(16, outliers=(1.4,)), "s0", ts=NOW_S - 9 * DAY_S)
    new = record("GPU-new", "n0004", 3, ts=NOW_S - DAY_S, sweep="s1")
    gpus = by_uuid(classify([*before, new], NOW_S))
    assert uuid_of(15) not in gpus
    assert gpus["GPU-new"].slowdown["A"] == pytest.approx(1.0, abs=0.03)
    assert "B" not in gpus["GPU-new"].slowdown


@pytest.mark.parametrize(
    ("age_d", "expected", "flag"),
    [
        (29, 1.4, None),
        (31, 1 + 0.4 * np.exp(-1 / 60), "stale"),
        (89, 1 + 0.4 * np.exp(-59 / 60), "stale"),
        (92, 1.0, "unknown"),
    ],
)
def test_old_scores_shrink_and_are_forgotten(age_d: float, expected: float, flag: str | None) -> None:
    made = sweep(truth(32, sd=0.01, outliers=(1.4,)), ts=NOW_S - age_d * DAY_S - 3600, noise=0.0)
    found = classify(made, NOW_S)
    gpu = by_uuid(found)[uuid_of(31)]
    assert gpu.slowdown["A"] == pytest.approx(expected, abs=0.004)
    assert gpu.flags & {"stale", "unknown"} == ({flag} if flag else set())
    if flag == "unknown":
        assert gpu.variability_class == {} and gpu.confidence == 0.0 and found.centroids == {}
    else:
        assert found.centroids["A"][gpu.variability_class["A"]] == pytest.approx(gpu.slowdown["A"])


def test_confidence_falls_with_age_and_doubt() -> None:
    true = truth(16)
    fresh, old = (by_uuid(classify(sweep(true, ts=NOW_S - d * DAY_S), NOW_S))[uuid_of(0)] for d in (1, 80))
    assert fresh.confidence > old.confidence > 0
    doubt = [*sweep(true, "s0", ts=NOW_S - 2 * DAY_S), record(uuid_of(0), "n0001", 0, 1.9, sweep="s1")]
    gpu = by_uuid(classify(doubt, NOW_S))[uuid_of(0)]
    assert gpu.confidence < fresh.confidence * 0.6
    assert "unconfirmed" in gpu.flags and gpu.slowdown["A"] < 1.1


@pytest.mark.parametrize(
    "changes", [{"vbios": "9.9"}, {"driver": "999.1"}, {"power_limit_w": 200.0}, {"ecc_mode": "enabled"}]
)
def test_a_changed_environment_makes_older_scores_unknown(changes: dict[str, object]) -> None:
    before = sweep(truth(16, outliers=(1.4,)), "s0", ts=NOW_S - 9 * DAY_S, ecc_mode="disabled")
    seen = {"ecc_mode": "disabled", **changes}
    after = record(uuid_of(15), "n0004", 3, sweep="s1", valid=False, **seen)  # type: ignore[arg-type]
    gpu = by_uuid(classify([*before, after], NOW_S))[uuid_of(15)]
    assert gpu.slowdown["A"] == 1.0 and "A" not in gpu.variability_class
    assert "unknown" in gpu.flags and gpu.confidence == 0.0


def test_small_groups_score_one_and_say_so() -> None:
    gpus = classify(sweep({"A": [1.0, 1.3, 1.1]}), NOW_S).gpus
    assert [g.slowdown for g in gpus] == [{"A": 1.0}] * 3
    assert all(g.flags == {"small_group"} and g.variability_class == {} for g in gpus)


def test_a_gpu_without_a_valid_run_is_unknown_not_best() -> None:
    made = [*sweep(truth(8)), record("GPU-x", "n0099", 0, flags=["ecc"])]
    gpu = by_uuid(classify(made, NOW_S))["GPU-x"]
    assert (gpu.slowdown, gpu.variability_class, gpu.measured_s) == ({}, {}, 0.0)
    assert {"unknown", "ecc"} <= gpu.flags


def test_models_have_their_own_median_and_share_one_list_of_classes() -> None:
    slow_model = sweep({"A": [2.0 * s for s in truth(32, seed=2)["A"]]}, model="Emu K80")
    made = sweep({"A": truth(32)["A"]}) + [
        replace(r, run_id="k" + r.run_id, node_name="k" + r.node_name, gpu=replace(r.gpu, uuid="k" + r.gpu.uuid))
        for r in slow_model
    ]
    found = classify(made, NOW_S)
    for model in ("Emu K80", "Emu V100"):
        values = [g.slowdown["A"] for g in found.gpus if g.model == model]
        assert float(np.median(values)) == pytest.approx(1.0)
    assert found.centroids["A"] == sorted(found.centroids["A"])
    for gpu in found.gpus:
        assert found.centroids["A"][gpu.variability_class["A"]] == pytest.approx(gpu.slowdown["A"], abs=0.04)


def test_the_preferred_benchmark_speaks_for_its_class() -> None:
    made = sweep({"A": [1.0] * 7 + [1.2]}, noise=0.0)
    made += sweep({"A": [1.0] * 7 + [1.6]}, noise=0.0, bench="gemm_fp64")
    found = classify(made, NOW_S)
    assert by_uuid(found)[uuid_of(7)].slowdown["A"] == pytest.approx(1.2)
    assert {g.group.benchmark for g in found.groups} == {"gemm_bf16", "gemm_fp64"}


def test_suspect_hardware_needs_low_power() -> None:
    telemetry = {"power_w": {"p50": 297.0}}
    made = sweep(truth(32, sd=0.01, outliers=(1.2, 1.2)), telemetry=telemetry)
    made = [replace(r, telemetry={"power_w": {"p50": 250.0}}) if r.gpu.uuid == uuid_of(31) else r for r in made]
    gpus = by_uuid(classify(made, NOW_S))
    assert "suspect_hw" in gpus[uuid_of(31)].flags
    assert "suspect_hw" not in gpus[uuid_of(30)].flags and "outlier" in gpus[uuid_of(30)].flags


def test_dies_that_report_no_power_are_no_suspects() -> None:
    """MI250: the first die of a card reports for both, the second one 0 W and no limit."""
    even, odd = {"power_w": {"p50": 540.0}}, {"power_w": {"p50": 0.0}}
    made = sweep(truth(32, sd=0.01, outliers=(1.2,) * 8), power_limit_w=560.0)
    made = [replace(r, telemetry=odd if r.gpu.slurm_index % 2 else even) for r in made]
    made = [replace(r, env=replace(r.env, power_limit_w=None)) if r.gpu.slurm_index % 2 else r for r in made]
    found = classify(made, NOW_S).gpus
    assert sum("outlier" in gpu.flags for gpu in found) >= 4
    assert not any({"suspect_hw", "config_differs"}.intersection(gpu.flags) for gpu in found)


def test_a_node_that_is_slow_as_a_whole_in_class_b_only() -> None:
    true = truth(32, sd=0.005)
    for i in range(4):
        true["B"][i] = 1.12
        true["A"][i] = 1.0
    gpus = by_uuid(classify(sweep(true), NOW_S))
    assert all("node_coupled" in gpus[uuid_of(i)].flags for i in range(4))
    assert not any("node_coupled" in gpus[uuid_of(i)].flags for i in range(4, 32))
    for i in range(4):
        true["A"][i] = 1.12  # now the GPUs themselves are slow
    assert not any("node_coupled" in g.flags for g in classify(sweep(true), NOW_S).gpus)


def test_pcie_can_show_a_coupled_node() -> None:
    true = {**truth(32, sd=0.005), "": [1.3] * 4 + [1.0] * 28}
    gpus = by_uuid(classify(sweep(true), NOW_S))
    assert all("node_coupled" in gpus[uuid_of(i)].flags for i in range(4))
    assert set(gpus[uuid_of(0)].slowdown) == {"A", "B", "C"}


def test_settings_that_peers_do_not_share() -> None:
    made = [
        replace(r, env=replace(r.env, app_clocks_mhz=1200.0)) if r.gpu.uuid == uuid_of(3) else r
        for r in sweep(truth(16))
    ]
    flagged = [g.uuid for g in classify(made, NOW_S).gpus if "config_differs" in g.flags]
    assert flagged == [uuid_of(3)]


def test_a_limit_that_each_board_reports_a_little_differently_is_one_limit() -> None:
    made = sweep(truth(16), power_limit_w=300.0)
    made = [replace(r, env=replace(r.env, power_limit_w=299.4 + 0.08 * r.gpu.slurm_index)) for r in made]
    assert not any("config_differs" in g.flags for g in classify(made, NOW_S).gpus)
    assert {environment_of(r) for r in made} == {environment_of(made[0])}


def test_a_cluster_wide_power_limit_is_no_difference() -> None:
    made = sweep(truth(16), power_limit_w=250.0)
    assert not any("config_differs" in g.flags for g in classify(made, NOW_S).gpus)


def test_flags_of_the_last_sweep_replace_those_of_earlier_ones() -> None:
    true = truth(8)
    made = sweep(true, "s0", ts=NOW_S - 2 * DAY_S, flags=["xid"]) + sweep(true, "s1", ts=NOW_S - DAY_S)
    assert not any("xid" in g.flags for g in classify(made, NOW_S).gpus)


def test_clocks_that_go_backwards_never_crash() -> None:
    made = sweep(truth(16), "s0", ts=NOW_S + 400 * DAY_S) + sweep(truth(16), "s1", ts=-5.0) + sweep(truth(16), "s2")
    found = classify(made, NOW_S)
    assert len(found.gpus) == 16
    assert all(g.measured_s <= NOW_S for g in found.gpus)
    assert all("clock_skew" in g.flags for g in found.gpus)
    assert classify(made, 0.0).gpus  # and the controller's own clock may be wrong, too


def test_partial_sweeps_are_judged_against_the_whole_group() -> None:
    true = truth(64, outliers=(1.3,))
    made = sweep(true, "s0", ts=NOW_S - 20 * DAY_S)
    made += sweep(true, "s1", ts=NOW_S - DAY_S, only=range(60, 64))
    gpus = by_uuid(classify(made, NOW_S))
    assert gpus[uuid_of(63)].slowdown["A"] == pytest.approx(1.3, rel=0.02)
    assert gpus[uuid_of(60)].slowdown["A"] == pytest.approx(true["A"][60], rel=0.02)


def test_no_records_is_an_empty_result() -> None:
    assert classify([], NOW_S) == Classification((), {}, ())


def test_published_methods() -> None:
    made = sweep(truth(64, outliers=(1.5,)))
    intended = classify(made, NOW_S, Params(method="pal"))
    shipped = classify(made, NOW_S, Params(method="pal-artifact"))
    worst = by_uuid(intended)[uuid_of(63)]
    assert intended.centroids["A"][worst.variability_class["A"]] == pytest.approx(worst.slowdown["A"])
    assert len(shipped.centroids["A"]) == 3
    assert len(shipped.centroids["C"]) == 2  # the artifact bins noise as well


HOSTILE = st.tuples(
    st.integers(0, 8), st.integers(0, 2), st.integers(0, 3), st.floats(1e-3, 1e3) | st.sampled_from([1e-9, 1e12]),
    st.sampled_from(["A", "B", "C", ""]), st.floats(-1e9, 4e9), st.sampled_from(["s1", "s2", "s3"]),
    st.sampled_from(["s", "TFLOP/s"]), st.booleans(), st.booleans(), st.floats(-1, 200),
    st.sampled_from(["550.1", "560.1"]), st.sampled_from(["hash", "hash", "other"]),
)  # fmt: skip


@trials(30)
@given(st.lists(HOSTILE, min_size=1, max_size=30))
def test_hostile_records_never_crash(runs: list[tuple[Any, ...]]) -> None:
    made = [
        record(
            f"GPU-{gpu}", f"n{node}", index, slow, run_id=f"r{i}", sensitivity=c, ts=ts, sweep=name, unit=unit,
            steady=steady, valid=valid, ci95_pct=ci, driver=driver, method_hash=method,
        )
        for i, (gpu, node, index, slow, c, ts, name, unit, steady, valid, ci, driver, method) in enumerate(runs)
    ]  # fmt: skip
    found = classify(made, NOW_S)
    slots = [(g.node, g.slot) for g in found.gpus]
    assert slots == sorted(set(slots))
    assert len({g.uuid for g in found.gpus}) == len(slots)
    for gpu in found.gpus:
        assert 0.0 <= gpu.confidence <= 1.0
        assert all(np.isfinite(v) and v > 0 for v in gpu.slowdown.values())
        assert all(0 <= n < len(found.centroids[c]) for c, n in gpu.variability_class.items())
    assert classify(list(reversed(made)), NOW_S) == found


def part(uuid: str, profile: str, ts: float, **changes: object) -> Record:
    made = record(f"{uuid}/{profile}", "n0001", 0, 2.0, ts=ts, sweep=f"mig-{ts}", method_hash=profile, **changes)
    return replace(made, gpu=replace(made.gpu, mig_mode=profile))


def test_partitions_of_a_gpu_are_in_no_slot_and_do_not_stand_for_it() -> None:
    whole = sweep(truth(16), "s0", ts=NOW_S - 9 * DAY_S)
    parts = [part(uuid_of(0), p, NOW_S - d * DAY_S) for p, d in (("1g.10gb", 3), ("2g.20gb", 2), ("1g.10gb", 1))]
    found = classify([*whole, *parts], NOW_S)
    assert {(g.node, g.slot) for g in found.gpus} == {(f"n{i // 4 + 1:04d}", i % 4) for i in range(1, 16)}
    assert not any("/" in g.uuid for g in found.gpus)
    assert sorted(g.gpus for g in found.groups) == [1, 1, 16, 16, 16]  # as ever: with its like, for reports


def test_a_gpu_that_is_whole_again_is_back_in_its_slot() -> None:
    whole = sweep(truth(16), "s0", ts=NOW_S - 9 * DAY_S)
    parts = [part(uuid_of(0), "1g.10gb", NOW_S - 3 * DAY_S)]
    again = sweep(truth(16), "s1", ts=NOW_S - DAY_S, only=[0])
    assert by_uuid(classify([*whole, *parts, *again], NOW_S)).keys() == {uuid_of(i) for i in range(16)}


def test_a_gpu_refused_in_mig_mode_is_unknown() -> None:
    whole = sweep(truth(16), "s0", ts=NOW_S - 9 * DAY_S)
    refused = record(uuid_of(0), "n0001", 0, ts=NOW_S - DAY_S, sweep="s1", valid=False, mig_mode="enabled")
    gpu = by_uuid(classify([*whole, refused], NOW_S))[uuid_of(0)]
    assert gpu.variability_class == {} and set(gpu.slowdown.values()) == {1.0} and "unknown" in gpu.flags


def updated(true: dict[str, list[float]], nodes: int, **changes: object) -> list[Record]:
    """A new driver, which makes everything 5 % faster; the first `nodes` nodes of 4 GPUs are swept again."""
    before = sweep(true, "s0", ts=NOW_S - 22 * DAY_S)
    faster = {c: [0.95 * x for x in values] for c, values in true.items()}
    method = {"driver": "560.1", "method_hash": "other", **changes}
    return before + sweep(faster, "s1", ts=NOW_S - DAY_S, only=range(4 * nodes), seed=9, **method)


@pytest.mark.parametrize("nodes", [1, 3, 8, 15, 16])
def test_an_update_that_has_reached_some_nodes_changes_nobodys_place(nodes: int) -> None:
    """New numbers are not compared with old ones, and neither few new nor few old ones are left without classes."""
    true = truth(64, outliers=(1.3,))
    true["A"][:4] = [x * 1.06 for x in true["A"][:4]]  # the first node updated is a slow one
    now = classify(updated(true, nodes), NOW_S)
    before, after = by_uuid(classify(sweep(true, "s0", ts=NOW_S - 22 * DAY_S), NOW_S)), by_uuid(now)
    for uuid, old in before.items():
        assert after[uuid].slowdown["A"] == pytest.approx(old.slowdown["A"], abs=0.004)
        assert set(after[uuid].variability_class) == {"A", "B", "C"}
        assert not after[uuid].flags & {"small_group", "unknown", "stale"}
    levels = [now.centroids["A"][after[u].variability_class["A"]] for u in before]
    assert np.allclose(levels, [after[u].slowdown["A"] for u in before], atol=0.03)
    counted = {g.group.method_hash: g.gpus for g in now.groups if g.group.sensitivity == "A"}
    assert counted == {name: n for name, n in (("hash", 64 - 4 * nodes), ("other", 4 * nodes)) if n}


def test_a_gpu_that_an_update_slowed_is_found_among_few() -> None:
    true = truth(64)
    made = updated(true, 3)
    made = [
        replace(r, result=replace(r.result, value=r.result.value / 1.2))
        if r.sweep_id == "s1" and r.gpu.uuid == uuid_of(2) and r.bench.sensitivity_class == "A"
        else r
        for r in made
    ]
    gpu = by_uuid(classify(made, NOW_S))[uuid_of(2)]
    assert gpu.slowdown["A"] == pytest.approx(1.2 * true["A"][2], abs=0.02) and "outlier" in gpu.flags


def test_settings_of_their_own_have_a_median_of_their_own() -> None:
    """A lower power limit is no new method: its GPUs compare with each other, whatever they were before."""
    gpus = by_uuid(classify(updated(truth(64), 2, power_limit_w=200.0, config_group="limit200"), NOW_S))
    assert float(np.median([gpus[uuid_of(i)].slowdown["A"] for i in range(8)])) == pytest.approx(1.0, abs=0.001)


def test_a_benchmark_that_is_measured_no_longer_gives_way() -> None:
    made = sweep({"A": [1.0] * 7 + [1.2]}, "s0", ts=NOW_S - 40 * DAY_S, noise=0.0)
    made += sweep({"A": [1.0] * 7 + [1.6]}, "s1", ts=NOW_S - DAY_S, noise=0.0, bench="gemm_fp16")
    gpu = by_uuid(classify(made, NOW_S))[uuid_of(7)]
    assert gpu.slowdown["A"] == pytest.approx(1.6) and "stale" not in gpu.flags


def test_an_older_run_that_comes_in_later_does_not_bring_old_settings_back() -> None:
    """A long sweep measured the GPU before its firmware changed; its middle is later than a sweep after that."""
    made = sweep(truth(16), "long", ts=NOW_S - 2 * DAY_S, only=range(1, 16))
    made.append(record(uuid_of(0), "n0001", 0, ts=NOW_S - 9 * DAY_S, sweep="long"))
    made.append(record(uuid_of(0), "n0001", 0, 1.3, ts=NOW_S - 5 * DAY_S, sweep="short", vbios="2.0"))
    gpu = by_uuid(classify(made, NOW_S))[uuid_of(0)]
    assert gpu.slowdown["A"] == pytest.approx(1.3, rel=0.03) and "unknown" not in gpu.flags
