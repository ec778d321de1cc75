# SPDX-License-Identifier: MIT
"""What the rules gain on an average lab: mean true slowdown over plain Slurm's, without running anything.

Usage: expected_gain.py [--labs N]. Draws N labs of 8 x 4 emulated GPUs, gives the
demonstration's jobs GPUs one after the other by each rule, knowing the true slowdowns,
and by the prediction of plain Slurm. Jobs stay; a job that fits on no single node is
counted as not placed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from slurm_pal.base.jobs import GpuShape
from slurm_pal.emulation.gpus import Registry, draw_registry
from slurm_pal.lab.demo import WORKLOAD
from slurm_pal.placement import POLICIES, place
from slurm_pal.placement.plain import plain_pick
from slurm_pal.placement.view import Placement, Rule, View

NAMES = [f"n{i}" for i in range(8)]
Choose = Callable[[View, GpuShape, Rule], Placement | None]


def fill(registry: Registry, choose: Choose, barred: float) -> list[tuple[str, float | None]]:
    """(class, true slowdown of its slowest GPU or None) for each job of the workload."""
    free = {name: [0, 1, 2, 3] for name in NAMES}
    jobs = dict.fromkeys(NAMES, 0)
    given: list[tuple[str, float | None]] = []
    for job in WORKLOAD:
        names = [name for name in NAMES if free[name]]
        true = [[registry.gpu(n, k).true_slowdown(job.sensitivity) for k in free[n]] for n in names]
        view = View(
            names=names,
            free=[free[n] for n in names],
            slowdown=true,
            level=[[round(x, 2) for x in row] for row in true],
            slowdown_a=[[registry.gpu(n, k).true_slowdown("A") for k in free[n]] for n in names],
            node_gpus=[4] * len(names),
            weight=[1] * len(names),
            position=[NAMES.index(n) for n in names],
            cpus_free=[16 - jobs[n] for n in names],
        )
        placed = choose(view, GpuShape(job.gpus, 1, job.gpus), Rule(job.sensitivity, 1.7, barred))
        given.append((job.sensitivity, placed.slowdown if placed else None))
        if placed:
            name = names[placed.nodes[0]]
            free[name] = [k for k in free[name] if k not in placed.gpus[0]]
            jobs[name] += 1
    return given


def mean(given: list[tuple[str, float | None]], sensitivity: str) -> float:
    return statistics.fmean(x for name, x in given if name == sensitivity and x is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labs", type=int, default=200)
    labs = [draw_registry(NAMES, 4, seed, "m") for seed in range(1, parser.parse_args().labs + 1)]
    plain = [fill(lab, plain_pick, 1.05) for lab in labs]
    print("| rule | barred beyond | A | B | C | jobs without a place |\n|---|---|---|---|---|---|")
    others = [name for name in POLICIES if name not in ("class-fit", "random")]
    rows = [("class-fit", bar, True) for bar in (1.05, 1.1, 1.2)] + [("class-fit", 1.05, False)]
    for policy, barred, measured in [*rows, *((name, 1.05, True) for name in others)]:

        def choose(
            view: View, shape: GpuShape, rule: Rule, policy: str = policy, measured: bool = measured
        ) -> Placement | None:
            return place(policy, view, shape, rule._replace(measured=measured))

        ours = [fill(lab, choose, barred) for lab in labs]
        ratios = [statistics.fmean(mean(a, c) / mean(b, c) for a, b in zip(ours, plain, strict=True)) for c in "ABC"]
        lost = sum(x is None for given in ours for _, x in given) / len(labs) / len(WORKLOAD)
        name = policy if measured else f"{policy}, class C not measured"
        print(f"| {name} | {barred} | " + " | ".join(f"{r:.3f}" for r in ratios) + f" | {100 * lost:.1f} % |")


if __name__ == "__main__":
    main()
