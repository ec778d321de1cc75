# SPDX-License-Identifier: MIT
"""The emulated device: deterministic, near its hidden truth, and ill when told to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slurm_pal.emulation.gpus import Registry, draw_registry, load_registry, set_fault, wear, write_registry
from slurm_pal.profiling.node import host, telemetry
from slurm_pal.profiling.node.benchmarks import BENCHMARKS, Benchmark, by_id, select
from slurm_pal.profiling.node.devices import Counters, DeviceError, OwnHost
from slurm_pal.profiling.node.emu import EmuBackend
from slurm_pal.profiling.node.runner import BenchRun, measure, rules_for
from slurm_pal.profiling.node.throttle import IDLE, SW_POWER_CAP


def with_fault(registry: Registry, index: int, name: str, value: float | bool = True) -> Registry:
    registry.put(registry.gpu("n0", index)._replace(faults={name: value}))
    return registry


def measured(backend: EmuBackend, node: str, indexes: range, spec: Benchmark = BENCHMARKS[0]) -> dict[int, BenchRun]:
    found = {}
    for device in backend.devices(node, indexes):
        kernel = backend.prepare(device, spec)
        watch = backend.telemetry.watch(device)
        found[device.slot] = measure(kernel, spec, watch)
        watch.close()
    return found


def test_the_same_sweep_gives_the_same_numbers_and_another_does_not() -> None:
    registry = draw_registry(["n0"], 2, 1)
    first = measured(EmuBackend(registry, 5, 0.0), "n0", range(2))
    again = measured(EmuBackend(registry, 5, 0.0), "n0", range(2))
    other = measured(EmuBackend(registry, 6, 0.0), "n0", range(2))
    assert first == again
    assert first[0].result.samples != other[0].result.samples
    assert first[0].result.value == pytest.approx(other[0].result.value, rel=0.005)


@pytest.mark.parametrize(("name", "tolerance"), [("gemm_bf16", 0.004), ("tblock", 0.003), ("hbm_triad", 0.001)])
def test_values_are_near_the_hidden_truth(name: str, tolerance: float) -> None:
    spec = by_id(name)
    registry = draw_registry([f"n{i}" for i in range(16)], 4, 2)
    backend = EmuBackend(registry, 7, 0.0)
    truth, seen = [], []
    for node in registry.nodes:
        for index, run in measured(backend, node, range(4), spec).items():
            truth.append(registry.gpu(node, index).true_slowdown(spec.sensitivity_class))
            seen.append(spec.nominal / run.result.value)
            assert run.result.steady and run.flags == ()
    assert np.abs(np.array(seen) / np.array(truth) - 1).max() < tolerance
    if name == "gemm_bf16":
        ranks = [np.argsort(np.argsort(x)) for x in (truth, seen)]
        assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.99  # Spearman


def test_class_a_is_power_capped_and_hot_and_the_others_are_not() -> None:
    backend = EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.0)
    (device,) = backend.devices("n0", [0])
    last = {}
    watch = backend.telemetry.watch(device)
    for spec in select("gemm_bf16,tblock,hbm_triad"):
        measure(backend.prepare(device, spec), spec, watch)
        last[spec.sensitivity_class] = watch.sample()
    assert last["A"].reasons == SW_POWER_CAP and last["A"].power_w == 300.0
    assert (last["A"].sm_clk_mhz or 0) < 1530.0 and 62.0 < (last["A"].temp_c or 0) < 68.0
    assert last["B"].reasons == last["C"].reasons == 0
    assert last["B"].sm_clk_mhz == last["C"].sm_clk_mhz == 1530.0
    assert (last["C"].temp_c or 0) < (last["B"].temp_c or 0) < (last["A"].temp_c or 0)
    assert device.vendor == "emu"


def test_block_noise_is_as_documented() -> None:
    backend = EmuBackend(draw_registry(["n0"], 4, 1), 1, 0.0)
    spread = [run.result.cv_pct for run in measured(backend, "n0", range(4), by_id("hbm_triad")).values()]
    assert 0.03 < np.median(spread) < 0.12


def test_missing_and_unknown_gpus_are_left_out() -> None:
    registry = with_fault(draw_registry(["n0"], 4, 1), 2, "missing")
    backend = EmuBackend(registry, 1, 0.0)
    assert [d.slot for d in backend.devices("n0", range(6))] == [0, 1, 3]
    assert backend.devices("elsewhere", range(4)) == ()


def test_error_ecc_and_foreign_process_show_where_they_should() -> None:
    registry = draw_registry(["n0"], 4, 1)
    for index, name in enumerate(("error", "ecc", "foreign_process")):
        with_fault(registry, index, name)
    backend = EmuBackend(registry, 1, 0.0)
    bad, ecc, foreign, good = backend.devices("n0", range(4))
    with pytest.raises(DeviceError, match="fallen off the bus") as caught:
        backend.prepare(bad, BENCHMARKS[0]).run_block(1)
    assert caught.value.flag == "xid"
    assert backend.telemetry.counters(ecc).ecc_uncorrected == 0
    backend.prepare(ecc, BENCHMARKS[0]).run_block(1)
    assert (backend.telemetry.counters(ecc).ecc_uncorrected or 0) > 0
    assert backend.telemetry.counters(foreign).others and not backend.telemetry.counters(good).others


def test_noisy_drift_and_transient_change_the_measurement() -> None:
    registry = draw_registry(["n0"], 4, 1)
    healthy = measured(EmuBackend(registry, 1, 0.0), "n0", range(3))
    with_fault(with_fault(with_fault(registry, 0, "noisy"), 1, "drift", 1.3), 2, "transient", 2.8)
    spent: list[tuple[str, int]] = []
    ill = measured(EmuBackend(registry, 1, 0.0, lambda *slot: spent.append(slot)), "n0", range(3))
    assert "noisy" in ill[0].flags
    assert healthy[1].result.value / ill[1].result.value == pytest.approx(1.3, rel=1e-3)
    assert healthy[2].result.value / ill[2].result.value == pytest.approx(2.8, rel=1e-3)
    assert spent == [("n0", 2)]


def test_sleeping_follows_the_wall_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("slurm_pal.profiling.node.emu.time.sleep", slept.append)
    run = measured(EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.02), "n0", range(1))[0]
    device_s = run.result.warmup_s + run.result.n_blocks * run.result.block_s
    assert sum(slept) == pytest.approx(0.02 * device_s, rel=0.05)
    slept.clear()
    measured(EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.0), "n0", range(1))
    assert slept == []


def test_looks_come_at_ten_hertz_of_device_time() -> None:
    run = measured(EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.0), "n0", range(1))[0]
    looks = [look.t_s for look in run.samples]
    assert np.diff(looks) == pytest.approx(0.1)
    assert looks[-1] - looks[0] == pytest.approx(run.result.n_blocks * run.result.block_s, abs=0.3)
    assert len({look.temp_c for look in run.samples}) > run.result.n_blocks  # not one look per block, repeated


@pytest.mark.parametrize(
    ("fault", "flag", "duty"),
    [
        ("throttle", "degraded", "hw_slowdown"),
        ("power_brake", "degraded", "power_brake"),
        ("thermal", "thermal_limited", "sw_thermal"),
    ],
)
def test_a_gpu_that_is_held_back_is_slow_flagged_and_draws_less(fault: str, flag: str, duty: str) -> None:
    registry = with_fault(draw_registry(["n0"], 2, 1), 1, fault, 1.2)
    backend = EmuBackend(registry, 1, 0.0)
    healthy = measured(EmuBackend(draw_registry(["n0"], 2, 1), 1, 0.0), "n0", range(2))
    ill = measured(backend, "n0", range(2))
    assert healthy[0] == ill[0]
    assert healthy[1].result.value / ill[1].result.value == pytest.approx(1.2, abs=0.025)  # heat slows it more
    (device,) = backend.devices("n0", [1])
    static = backend.telemetry.static(device)
    assert telemetry.flags(ill[1].samples, static, Counters(), Counters()) == (flag,)
    assert telemetry.duty(ill[1].samples)[duty] == 1.0
    assert ill[1].samples[-1].power_w == pytest.approx(250.0)
    hotter = (ill[1].samples[-1].temp_c or 0) - (healthy[1].samples[-1].temp_c or 0)
    assert (hotter > 10.0) == (fault == "thermal")


def test_a_narrow_link_shows_in_copies_and_lanes_only() -> None:
    registry = with_fault(draw_registry(["n0"], 2, 1), 0, "pcie", 2.0)
    backend = EmuBackend(registry, 1, 0.0)
    for name, factor in (("pcie_h2d", 2.0), ("pcie_d2h", 2.0), ("gemm_bf16", 1.0), ("launch_latency", 1.0)):
        spec = by_id(name)
        ill, well = measured(backend, "n0", range(2), spec).values()
        shares = registry.gpu("n0", 0).slowdown["A"] / registry.gpu("n0", 1).slowdown["A"] if "gemm" in name else 1.0
        truth = factor * shares
        assert well.result.value / ill.result.value == pytest.approx(truth, rel=0.01)
        assert {look.pcie_width for look in ill.samples} == {8} and {look.pcie_width for look in well.samples} == {16}
    fast = EmuBackend(with_fault(registry, 0, "pcie", 0.5), 1, 0.0)
    (device,) = fast.devices("n0", [0])
    assert fast.telemetry.watch(device).sample().pcie_width == 16  # no link has more lanes than the card


def test_a_busy_host_slows_the_whole_node_and_says_so() -> None:
    calm, busy = draw_registry(["n0"], 2, 1), with_fault(draw_registry(["n0"], 2, 1), 0, "host", 2.0)
    for name, factor in (("tblock", 2.0), ("launch_latency", 0.5), ("gemm_bf16", 1.0), ("hbm_copy", 1.0)):
        backends = [EmuBackend(registry, 1, 0.0) for registry in (calm, busy)]
        well, ill = (measured(backend, "n0", range(2), by_id(name)) for backend in backends)
        for index in range(2):
            assert well[index].result.value / ill[index].result.value == pytest.approx(factor, rel=1e-3)
        looks = [backend.host() for backend in backends]
        assert all(isinstance(backend, OwnHost) for backend in backends)
        assert [bool(host.noise(look, look)) for look in looks] == [False, True]


def test_every_benchmark_runs_near_its_nominal_value() -> None:
    backend = EmuBackend(draw_registry(["n0"], 4, 1), 1, 0.0)
    first, *others = backend.devices("n0", range(4))
    for spec in BENCHMARKS:
        peers = others[: spec.peers] if spec.peers >= 0 else others
        watch = backend.telemetry.watch(first)
        kernel = backend.prepare(first, spec, peers)
        found = measure(kernel, spec, watch, rules_for(spec, hot=True))
        kernel.close()
        assert found.result.value == pytest.approx(spec.nominal, rel=0.06) and found.result.unit == spec.unit
        assert watch.sample().reasons == IDLE


def test_links_are_the_same_both_ways_and_differ_between_pairs() -> None:
    backend = EmuBackend(draw_registry(["n0"], 3, 1), 1, 0.0)
    devices, spec = backend.devices("n0", range(3)), by_id("p2p")
    took = {
        (a.slot, b.slot): backend.prepare(a, spec, (b,)).run_block(1000) for a in devices for b in devices if a != b
    }
    assert took[0, 1] == pytest.approx(took[1, 0], rel=0.003) != pytest.approx(took[0, 2], rel=1e-5)


def test_ageing_and_transient_change_the_registry_when_they_are_measured(tmp_path: Path) -> None:
    path = str(tmp_path / "gpus.json")
    write_registry(path, draw_registry(["n0"], 2, 1))
    set_fault(path, "n0", 0, "ageing", 1.01)
    set_fault(path, "n0", 1, "transient", 2.8)
    truth = load_registry(path).gpu("n0", 0).true_slowdown("A")
    for sweep in range(3):
        EmuBackend(load_registry(path), sweep, 0.0, lambda *slot: wear(path, *slot)).devices("n0", range(2))
    aged = load_registry(path).gpu("n0", 0)
    assert aged.true_slowdown("A") == pytest.approx(truth * 1.01**3)
    assert load_registry(path).gpu("n0", 1).faults == {}


def test_no_two_runs_of_a_benchmark_have_the_same_noise() -> None:
    """The first has that of its sweep alone, so that sweeps can be repeated."""
    firsts, laters = [], []
    for _ in range(2):
        backend = EmuBackend(draw_registry(["n0"], 1, 3), 7, 0.0)
        (device,) = backend.devices("n0", (0,))
        spec = by_id("hbm_triad")
        firsts.append(backend.prepare(device, spec).run_block(10))
        laters.append(backend.prepare(device, spec).run_block(10))
    assert firsts[0] == firsts[1] != laters[0] == laters[1]


MODEL_SLOWDOWNS = {i: 1.0 + 0.01 * (i - 2) for i in range(5)}


def of_model(name: str) -> Registry:
    """Five GPUs of one model, from 2 % fast to 2 % slow."""
    drawn = draw_registry(["n0"], 5, 1, name)
    return Registry(gpu._replace(slowdown={c: MODEL_SLOWDOWNS[gpu.index] for c in "ABC"}) for gpu in drawn.gpus)


@pytest.mark.parametrize(
    ("name", "capped"),
    [
        ("PAL Emulated GPU", {"gemm_bf16", "gemm_fp16", "gemm_tf32", "gemm_fp32"}),
        ("PAL Emulated Cool", set()),
        ("PAL Emulated Half", {"gemm_fp32"}),
        ("PAL Emulated Hot", {"gemm_bf16", "gemm_fp16", "gemm_tf32", "gemm_fp32", "tblock"}),
        ("A Name Of One's Own", {"gemm_bf16", "gemm_fp16", "gemm_tf32", "gemm_fp32"}),
    ],
)
def test_gpus_of_a_model_differ_where_its_kernels_meet_the_cap(name: str, capped: set[str]) -> None:
    backend = EmuBackend(of_model(name.replace("'", "")), 1, 0.0)
    met = set()
    for spec in (by_id(n) for n in ("gemm_bf16", "gemm_fp16", "gemm_tf32", "gemm_fp32", "tblock")):
        runs = measured(backend, "n0", range(5), spec)
        looks = [sample for run in runs.values() for sample in run.samples]
        at = {bool((s.reasons or 0) & SW_POWER_CAP) for s in looks}
        assert len(at) == 1
        met |= {spec.id} if at.pop() else set()
        clocks = {s.sm_clk_mhz for s in looks}
        values = [run.result.value for run in runs.values()]
        spread = max(values) / min(values) - 1.0
        if spec.sensitivity_class == "A" and spec.id not in met:
            assert spread < 0.006 and clocks == {1530.0} and max(s.power_w or 0.0 for s in looks) < 291.0
        else:
            assert 0.03 < spread < 0.05
    assert met == capped


def test_heat_still_slows_a_gpu_below_its_power_cap() -> None:
    registry = with_fault(of_model("PAL Emulated Cool"), 0, "thermal", 1.2)
    first, *others = measured(EmuBackend(registry, 1, 0.0), "n0", range(5)).values()
    assert first.result.value < 0.85 * min(run.result.value for run in others)


def test_the_gpus_of_one_model_settle_at_different_times() -> None:
    usual, uneven = (
        [run.result.warmup_s for run in measured(EmuBackend(of_model(name), 1, 0.0), "n0", range(5)).values()]
        for name in ("PAL Emulated GPU", "PAL Emulated Uneven")
    )
    assert max(uneven) - min(uneven) > 10.0 > max(usual) - min(usual), (usual, uneven)
