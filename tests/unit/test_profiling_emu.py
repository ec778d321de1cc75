"""The emulated device: deterministic, near its hidden truth, and ill when told to be."""

from __future__ import annotations

import numpy as np
import pytest

from slurm_pal.lab.gpus import Registry, draw_registry
from slurm_pal.profiling.benchmarks import BENCHMARKS, Benchmark
from slurm_pal.profiling.devices import SW_POWER_CAP, DeviceError
from slurm_pal.profiling.emu import EmuBackend
from slurm_pal.profiling.runner import Run, measure


def with_fault(registry: Registry, index: int, name: str, value: float | bool = True) -> Registry:
    registry.put(registry.gpu("n0", index)._replace(faults={name: value}))
    return registry


def measured(backend: EmuBackend, node: str, indexes: range, spec: Benchmark = BENCHMARKS[0]) -> dict[int, Run]:
    found = {}
    for device in backend.devices(node, indexes):
        kernel = backend.prepare(device, spec)
        found[device.slot] = measure(kernel, spec, lambda device=device: backend.telemetry.sample(device))  # type: ignore[misc]
    return found


def test_the_same_sweep_gives_the_same_numbers_and_another_does_not() -> None:
    registry = draw_registry(["n0"], 2, 1)
    first = measured(EmuBackend(registry, 5, 0.0), "n0", range(2))
    again = measured(EmuBackend(registry, 5, 0.0), "n0", range(2))
    other = measured(EmuBackend(registry, 6, 0.0), "n0", range(2))
    assert first == again
    assert first[0].result.samples != other[0].result.samples
    assert first[0].result.value == pytest.approx(other[0].result.value, rel=0.005)


@pytest.mark.parametrize(("position", "tolerance"), [(0, 0.004), (1, 0.003), (2, 0.001)])
def test_values_are_near_the_hidden_truth(position: int, tolerance: float) -> None:
    spec = BENCHMARKS[position]
    registry = draw_registry([f"n{i}" for i in range(16)], 4, 2)
    backend = EmuBackend(registry, 7, 0.0)
    truth, seen = [], []
    for node in registry.nodes:
        for index, run in measured(backend, node, range(4), spec).items():
            truth.append(registry.gpu(node, index).true_slowdown(spec.sensitivity_class))
            seen.append(spec.nominal / run.result.value)
            assert run.result.steady and run.flags == ()
    assert np.abs(np.array(seen) / np.array(truth) - 1).max() < tolerance
    if position == 0:
        ranks = [np.argsort(np.argsort(x)) for x in (truth, seen)]
        assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.99  # Spearman


def test_class_a_is_power_capped_and_hot_and_the_others_are_not() -> None:
    backend = EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.0)
    (device,) = backend.devices("n0", [0])
    last = {}
    for spec in BENCHMARKS:
        measure(backend.prepare(device, spec), spec, lambda: backend.telemetry.sample(device))
        last[spec.sensitivity_class] = backend.telemetry.sample(device)
    assert last["A"].reasons == SW_POWER_CAP and last["A"].power_w == 300.0
    assert (last["A"].sm_clk_mhz or 0) < 1530.0 and 62.0 < (last["A"].temp_c or 0) < 68.0
    assert last["B"].reasons == last["C"].reasons == 0
    assert last["B"].sm_clk_mhz == last["C"].sm_clk_mhz == 1530.0
    assert (last["C"].temp_c or 0) < (last["B"].temp_c or 0) < (last["A"].temp_c or 0)
    assert device.vendor == "emu"


def test_block_noise_is_as_documented() -> None:
    backend = EmuBackend(draw_registry(["n0"], 4, 1), 1, 0.0)
    spread = [run.result.cv_pct for run in measured(backend, "n0", range(4), BENCHMARKS[2]).values()]
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
    monkeypatch.setattr("slurm_pal.profiling.emu.time.sleep", slept.append)
    run = measured(EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.02), "n0", range(1))[0]
    device_s = run.result.warmup_s + run.result.n_blocks * run.result.block_s
    assert sum(slept) == pytest.approx(0.02 * device_s, rel=0.05)
    slept.clear()
    measured(EmuBackend(draw_registry(["n0"], 1, 1), 1, 0.0), "n0", range(1))
    assert slept == []
