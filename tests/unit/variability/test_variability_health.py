# SPDX-License-Identifier: MIT
"""Faults of GPUs: seen, kept through everything but a clean measurement, and then gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from slurm_pal.base.faults import FAULTS, OK, cure_of, fault_line, state_of
from slurm_pal.store.snapshot import FLAGS
from slurm_pal.variability.classify import GpuStanding
from slurm_pal.variability.records import Record

from ...doubles.records_factory import DAY_S, NOW_S, classify, sweep, truth, uuid_of

SICK = 5
"""The GPU that fails in these tests."""


def at(day: float, name: str = "") -> list[Record]:
    """A sweep of 16 GPUs so many days ago."""
    return sweep(truth(16), name or f"s{day:g}", ts=NOW_S - day * DAY_S)


def failed(records: Sequence[Record], *flags: str, stop: str = "error", gpu: int = SICK) -> list[Record]:
    """The same, but the runs of one GPU gave nothing."""
    return [
        replace(r, valid=False, reason="failed", flags=flags, result=replace(r.result, value=0.0, stop_reason=stop))
        if r.gpu.uuid == uuid_of(gpu)
        else r
        for r in records
    ]


def absent(records: Sequence[Record], gpu: int = SICK) -> list[Record]:
    """The same, but the driver did not list one GPU: what the node writes of it has no UUID."""
    first = next(r for r in records if r.gpu.uuid == uuid_of(gpu))
    name = f"missing:{first.node_name}:{first.gpu.slurm_index}"
    lost = failed([first], "missing", gpu=gpu)[0]
    lost = replace(lost, run_id=f"lost{first.run_id}", gpu=replace(first.gpu, uuid=name, model="", vendor=""))
    return [*(r for r in records if r.gpu.uuid != uuid_of(gpu)), lost]


def standing(*sweeps: list[Record], gpu: int = SICK) -> GpuStanding:
    """What is known now of the GPU that fails."""
    made = [record for one in sweeps for record in one]
    slots = {(r.node_name, r.gpu.slurm_index) for r in at(0) if r.gpu.uuid == uuid_of(gpu)}
    (found,) = [g for g in classify(made, NOW_S).gpus if (g.node, g.slot) in slots]
    return found


@pytest.mark.parametrize(
    ("flag", "flags", "stop"),
    [("no_answer", (), "timeout"), ("ecc", ("ecc",), "error"), ("xid", ("xid",), "error")],
)
def test_a_fault_lasts_until_a_clean_measurement(flag: str, flags: tuple[str, ...], stop: str) -> None:
    seen = (at(9), failed(at(8), *flags, stop=stop))
    assert flag in standing(*seen).flags and standing(*seen).slowdown
    for unclean in (
        [r for r in at(7) if r.gpu.uuid != uuid_of(SICK)],  # a sweep of other nodes
        failed(at(7), "foreign_process"),  # somebody else was on it
        failed(at(7)),  # no reason is known
        [*failed([r for r in at(7) if r.bench.id == "gemm_bf16"]), *(r for r in at(7) if r.bench.id != "gemm_bf16")],
        [replace(r, bench=replace(r.bench, sensitivity_class="", id="pcie_h2d")) for r in at(7)],  # a health check
    ):
        assert flag in standing(*seen, unclean).flags
    assert not standing(*seen, at(7)).flags & set(FAULTS)
    assert not standing(at(7), *seen).flags & set(FAULTS), "the order of reading does not matter"
    again = failed(at(6), *flags, stop=stop)
    assert flag in standing(*seen, at(7), again).flags


def test_a_missing_gpu_keeps_its_place_and_its_scores() -> None:
    before, lost = standing(at(9)), standing(at(9), absent(at(8)))
    assert lost.flags == before.flags | {"missing"} and state_of(lost.flags) == "missing"
    assert (lost.uuid, lost.model) == (before.uuid, before.model)
    assert lost.slowdown["A"] == pytest.approx(before.slowdown["A"], abs=0.01)
    assert not standing(at(9), absent(at(8)), at(7)).flags & set(FAULTS)
    hung = standing(at(9), absent(at(8)), failed(at(7), stop="timeout"))
    assert {"missing", "no_answer"} <= hung.flags and state_of(hung.flags) == "missing"


def test_a_gpu_that_was_never_there_has_a_row_too() -> None:
    lost = standing(absent(at(8)))
    assert "missing" in lost.flags and lost.slowdown == {} and lost.measured_s == 0.0
    assert lost.model == next(g.model for g in classify(at(8), NOW_S).gpus), "else its node would have two models"
    found = standing(absent(at(8)), at(7))
    assert found.uuid == uuid_of(SICK) and not found.flags & set(FAULTS)


def test_a_fault_goes_where_the_gpu_goes_and_a_missing_one_stays_with_the_slot() -> None:
    def swapped(records: list[Record]) -> list[Record]:
        places = {uuid_of(g): next(r for r in records if r.gpu.uuid == uuid_of(g)) for g in (SICK, 0)}
        other = {uuid_of(SICK): places[uuid_of(0)], uuid_of(0): places[uuid_of(SICK)]}
        return [
            replace(
                r,
                node_name=other[r.gpu.uuid].node_name,
                gpu=replace(r.gpu, slurm_index=other[r.gpu.uuid].gpu.slurm_index),
            )
            if r.gpu.uuid in other
            else r
            for r in records
        ]

    hung = failed(at(8), stop="timeout")
    moved = [r for r in swapped(failed(at(7))) if r.gpu.uuid in (uuid_of(SICK), uuid_of(0))]
    assert "no_answer" in standing(at(9), hung, moved, gpu=0).flags
    assert "no_answer" not in standing(at(9), hung, moved).flags
    back = [r for r in swapped(at(7)) if r.gpu.uuid == uuid_of(0)]  # another GPU, in the place of the lost one
    assert "missing" not in standing(at(9), absent(at(8)), back).flags


def test_a_suspect_stays_suspect_until_it_is_measured_again() -> None:
    def powered(records: list[Record], watts: float) -> list[Record]:
        return [
            replace(r, telemetry={"power_w": {"p50": watts if r.gpu.uuid == uuid_of(15) else 297.0}}) for r in records
        ]

    true = truth(16, sd=0.01, outliers=(1.2,))
    low = powered(sweep(true, "low", ts=NOW_S - 120 * DAY_S), 250.0)
    others = [r for r in powered(sweep(true, "new", ts=NOW_S - DAY_S), 297.0) if r.gpu.uuid != uuid_of(15)]
    assert "suspect_hw" in standing(low, gpu=15).flags
    assert "suspect_hw" in standing(low, others, gpu=15).flags, "its number is too old to count, the doubt is not"
    well = powered(sweep(truth(16), "new", ts=NOW_S - DAY_S), 297.0)
    assert "suspect_hw" not in standing(low, well, gpu=15).flags


def test_faults_have_one_name_order_and_cure() -> None:
    assert set(FAULTS) <= set(FLAGS)
    assert [fault.name for fault in FAULTS.values()] == ["missing", "no-answer", "xid", "ecc", "suspect"]
    assert state_of(("outlier", "suspect_hw", "ecc")) == "ecc" and state_of(("outlier",)) == state_of(()) == OK
    for flag in FAULTS:
        cure = cure_of((flag,), "n5", 2)
        assert cure.endswith("; then pal-profile run -w n5") and "{" not in cure and "\n" not in cure
        assert fault_line((flag,), "n5", 2) == f"n5:2 {state_of((flag,))}: {cure}"
    assert cure_of(("drift",), "n5", 2) == ""
