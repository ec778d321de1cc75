# SPDX-License-Identifier: MIT
"""Measuring as it is done, on devices whose truth is known: the public V100 runs, replayed and emulated.

The files are read from $PAL_REFERENCE_DATA, or from ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from slurm_pal.base.errors import Exit
from slurm_pal.emulation.gpus import EmuGpu, Registry, draw_registry
from slurm_pal.profiling.node.backends import open_backend, resolve
from slurm_pal.profiling.node.bench import measure_node
from slurm_pal.profiling.node.benchmarks import by_id, fitted, select
from slurm_pal.profiling.node.devices import Backend
from slurm_pal.profiling.node.emu import EmuBackend
from slurm_pal.profiling.node.measurement import Order, RecordOrigin
from slurm_pal.profiling.node.replay import ReplayBackend
from slurm_pal.profiling.node.runner import measure, rules_for
from slurm_pal.variability.classify import Classification
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.records import Record, from_json
from slurm_pal.variability.spread import measure as spread_of

from ..doubles.records_factory import classify

DATA = Path(os.environ.get("PAL_REFERENCE_DATA") or Path(__file__).parents[3] / "shared" / "data") / "pal"
SGEMM = DATA / "profiles" / "sgemm-longhorn-agg.csv"
pytestmark = pytest.mark.skipif(not SGEMM.is_file(), reason=f"no reference data in {DATA}; set PAL_REFERENCE_DATA")

NOW_S = 1_800_000_000.0


def replayed(seed: int) -> ReplayBackend:
    backend = open_backend(resolve("replay", {}, str(SGEMM))._replace(seed=seed))
    assert isinstance(backend, ReplayBackend)
    return backend


def test_the_runner_on_replayed_runs_gives_the_table_of_the_specification() -> None:
    """392 GPUs, each run measured by the rules of a hot device: the figures of SGEMM in docs/measuring.md."""
    spec = by_id("gemm_fp32")
    rules = rules_for(spec, hot=True)
    runs: dict[str, list[float]] = {}
    backend = replayed(0)
    devices = [device for node in backend.nodes for device in backend.devices(node, range(4))]
    counts = {uuid: len(rows) for uuid, rows in backend.runs.items()}
    for seed in range(max(counts.values())):
        backend = ReplayBackend(backend.runs, seed)
        for device in (d for d in devices if seed < counts[d.uuid]):
            found = measure(backend.prepare(device, fitted(spec, device.mem_bytes)), spec, backend.watch(device), rules)
            runs.setdefault(device.uuid, []).append(1.0 / found.result.value)
    seen = spread_of(runs, is_time=True)
    assert (seen.gpus, seen.runs_per_gpu) == (392, 22)
    assert round(100 * seen.whisker, 1) == 8.9
    assert (round(seen.p1, 3), round(seen.p99, 3), round(seen.slowest, 3)) == (0.964, 1.050, 1.203)
    assert round(seen.within_cv_pct, 3) == 0.124
    assert (round(seen.between_sd_pct, 2), round(seen.icc, 2)) == (1.99, 0.97)


def test_a_replayed_node_gives_ordinary_records() -> None:
    backend = replayed(3)
    outcome = measure_node(
        backend, RecordOrigin("s", "c", "r7", 0, 3, backend.name), range(4), 4, Order(select("")), 60.0
    )
    records = [from_json(line) for line in outcome.lines]
    assert outcome.exit_code == Exit.OK and [r.bench.id for r in records] == ["gemm_fp32"] * 4
    assert all(r.valid and r.gpu.vendor == "replay" for r in records)
    for record in records:
        row = backend.runs[record.gpu.uuid][3 % len(backend.runs[record.gpu.uuid])]
        assert record.result.value == pytest.approx(2.0 * row.n**3 / row.time_s / 1e12)
        assert record.telemetry["power_w"]["p50"] == pytest.approx(row.power_w, abs=0.01)
        assert 12.0 < record.result.value < 16.0  # TFLOP/s; the card's peak is 15.7


# -- the emulated Longhorn ------------------------------------------------------------


@functools.cache
def longhorn() -> Registry:
    """Emulated GPUs whose true class-A slowdowns are the medians of the public runs."""
    times: dict[str, list[float]] = {}
    with open(SGEMM, newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if row["ts"] != "-1":
                times.setdefault(row["uuid"], []).append(float(row["perf"]))
    medians = {uuid: float(np.median(values)) for uuid, values in sorted(times.items())}
    middle = float(np.median(list(medians.values())))
    nodes = [f"n{i}" for i in range(-(-len(medians) // 4))]
    drawn = draw_registry(nodes, 4, 1)
    made: list[EmuGpu] = []
    for gpu, (uuid, value) in zip(drawn.gpus, medians.items(), strict=False):
        made.append(gpu._replace(uuid=uuid, slowdown=gpu.slowdown | {"A": value / middle}))
    return Registry(made, 1)


def sweep(seed: int, share: int) -> list[Record]:
    """The cluster or one node of `share`, its class-A benchmark only, as one sweep a day."""
    registry = longhorn()
    backend: Backend = EmuBackend(registry, seed, 0.0)
    lines: list[str] = []
    for node in registry.nodes[::share]:
        place = RecordOrigin(f"s{seed}", "c", node, 0, seed, "emu")
        lines += measure_node(backend, place, range(4), 0, Order(select("gemm_bf16")), 60.0).lines
    at_s = NOW_S + seed * DAY_S
    records = [from_json(line) for line in lines]
    return [replace(r, ts_start=at_s, ts_end=at_s + 60.0) for r in records]


@functools.cache
def two_sweeps(share: int) -> tuple[Classification, Classification]:
    """The standing after the first sweep and after the second, at K = 3."""
    first, second = sweep(1, share), sweep(2, share)
    params = Params(k=3)
    return classify(first, NOW_S + 1.5 * DAY_S, params), classify(first + second, NOW_S + 2.5 * DAY_S, params)


SHARES = pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.long)])
"""A quarter of the nodes; and all of them."""


@SHARES
def test_an_emulated_longhorn_is_ranked_as_it_is(share: int) -> None:
    nodes = longhorn().nodes[::share]
    truth = {gpu.uuid: gpu.true_slowdown("A") for gpu in longhorn().gpus if gpu.node in nodes}
    found = {gpu.uuid: gpu.slowdown["A"] for gpu in two_sweeps(share)[0].gpus}
    assert set(found) == set(truth) and len(truth) == {1: 392, 4: 100}[share]
    ranks = [np.argsort(np.argsort([table[uuid] for uuid in sorted(truth)])) for table in (truth, found)]
    assert float(np.corrcoef(*ranks)[0, 1]) > 0.99  # Spearman
    errors = np.array([found[uuid] / truth[uuid] - 1.0 for uuid in truth])
    assert float(np.quantile(np.abs(errors - np.median(errors)), 0.95)) < 0.005


@SHARES
def test_classes_churn_by_less_than_one_percent(share: int) -> None:
    before, after = ({g.uuid: g.variability_class["A"] for g in found.gpus} for found in two_sweeps(share))
    levels = [found.centroids["A"] for found in two_sweeps(share)]
    (group,) = two_sweeps(share)[1].groups
    assert group.classes == 3
    changed = [u for u in before if abs(levels[0][before[u]] - levels[1][after[u]]) > 0.005]
    assert len(changed) < 0.01 * len(before), [(levels[0][before[u]], levels[1][after[u]]) for u in changed]
