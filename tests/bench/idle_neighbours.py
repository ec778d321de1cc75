# SPDX-License-Identifier: MIT
"""How much of the measuring time has an idle neighbour: on emulated nodes, by the GPUs' own clocks.

    python -P tests/bench/idle_neighbours.py [--nodes N] [--gpus N] [--model NAME] [--json]

The nodes are measured by `pal-profile bench` itself; every block that a GPU runs is noted, recorded or not. Time
counts from the moment when all GPUs of a node begin a benchmark. A GPU's measuring time (without warm-up) has an
idle neighbour from the moment when the first of the others has run its last block. "before" leaves out the blocks
that nobody records, as if each GPU had stopped when its own measurement was over; "steps" is the time until the
last GPU has ended.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from slurm_pal.emulation.gpus import DEFAULT_MODEL, Registry, draw_registry
from slurm_pal.profiling.node import bench
from slurm_pal.profiling.node.benchmarks import Benchmark, select
from slurm_pal.profiling.node.devices import DeviceInfo
from slurm_pal.profiling.node.emu import EmuBackend, EmuKernel
from slurm_pal.profiling.node.measurement import Order, RecordOrigin
from slurm_pal.variability.records import Record, from_json

PATIENCE_S = 120.0  # of the watchdog
MODELS = (DEFAULT_MODEL, "PAL Emulated Uneven")


class Noted(EmuKernel):
    """A kernel that leaves the times of its blocks in a file."""

    path: Path

    def run_block(self, n: int) -> float:
        seconds = super().run_block(n)
        with self.path.open("a") as stream:
            stream.write(f"{seconds!r}\n")
        return seconds


class NotedBackend(EmuBackend):
    """Emulated GPUs that note their blocks in `folder`, a file for each GPU and benchmark."""

    folder: Path

    def prepare(self, device: DeviceInfo, spec: Benchmark, peers: Sequence[DeviceInfo] = ()) -> EmuKernel:
        kernel = Noted(self._devices[device.uuid], spec, [self._devices[peer.uuid] for peer in peers])
        kernel.path = self.folder / f"{spec.id}.{device.slot}"
        return kernel


class Turn(NamedTuple):
    """One GPU in one benchmark, s since all began."""

    warm_s: float  # its measurement begins
    measured_s: float  # it is over
    last_s: float  # its last block is over, recorded or not


def turn(record: Record, folder: Path) -> Turn:
    path = folder / f"{record.bench.id}.{record.gpu.slurm_index}"
    ends = list(accumulate(float(line) for line in path.read_text().splitlines()))
    first = next(i for i, end in enumerate(ends) if end > record.result.warmup_s - 0.001)
    return Turn(ends[first], ends[first + record.result.n_blocks], ends[-1])


def idle_s(turns: Sequence[Turn], ends: Sequence[float]) -> float:
    """Measuring time after the first neighbour's end, summed over the GPUs."""
    found = 0.0
    for i, mine in enumerate(turns):
        first = min(end for j, end in enumerate(ends) if j != i)
        found += max(0.0, mine.measured_s - max(mine.warm_s, first))
    return found


def node(registry: Registry, name: str, gpus: int, seed: int) -> list[tuple[str, list[Turn], int]]:
    """Benchmark, its GPUs' turns, unsteady runs."""
    with tempfile.TemporaryDirectory() as folder:
        backend = NotedBackend(registry, seed, 0.0)
        backend.folder = Path(folder)
        specs = tuple(spec for spec in select("") if spec.together)
        place = RecordOrigin("s", "c", name, 0, seed, "emu")
        outcome = bench.measure_node(backend, place, range(gpus), gpus, Order(specs), PATIENCE_S)
        records = [from_json(line) for line in outcome.lines]
        if outcome.exit_code or len(records) != gpus * len(specs):
            sys.exit(f"{name}: {len(records)} records, {outcome.notes}")
        return [
            (
                spec.id,
                [turn(r, backend.folder) for r in records if r.bench.id == spec.id],
                sum(not r.result.steady for r in records if r.bench.id == spec.id),
            )
            for spec in specs
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", action="append", default=[], help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for model in options.model or MODELS:
        names = [f"n{i}" for i in range(options.nodes)]
        registry = draw_registry(names, options.gpus, options.seed, model)
        measured = [node(registry, name, options.gpus, options.seed) for name in names]
        for found in zip(*measured, strict=True):
            total = sum(t.measured_s - t.warm_s for _, turns, _ in found for t in turns)
            before = sum(idle_s(turns, [t.measured_s for t in turns]) for _, turns, _ in found)
            now = sum(idle_s(turns, [t.last_s for t in turns]) for _, turns, _ in found)
            rows.append(
                {
                    "model": model,
                    "benchmark": found[0][0],
                    "idle_before": before / total,
                    "idle_now": now / total,
                    "steps_before_s": sum(max(t.measured_s for t in turns) for _, turns, _ in found) / len(found),
                    "steps_now_s": sum(max(t.last_s for t in turns) for _, turns, _ in found) / len(found),
                    "unsteady": sum(bad for *_, bad in found) / (len(found) * options.gpus),
                }
            )
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{options.nodes} nodes of {options.gpus} GPUs; share of measuring time with an idle neighbour")
    print(f"{'model':20} {'benchmark':10} {'before':>7} {'now':>7} {'steps before':>13} {'now':>8} {'unsteady':>9}")
    for row in rows:
        print(
            f"{row['model']:20} {row['benchmark']:10} {row['idle_before']:7.1%} {row['idle_now']:7.1%}"
            f" {row['steps_before_s']:11.1f} s {row['steps_now_s']:6.1f} s {row['unsteady']:9.1%}"
        )


if __name__ == "__main__":
    main()
