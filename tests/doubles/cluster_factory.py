# SPDX-License-Identifier: MIT
"""Small clusters for tests of placement and replay: seeded slowdowns, and views made from scratch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.class_fit import INSENSITIVE
from slurm_pal.placement.faulty import FAULTY
from slurm_pal.placement.view import View

CLASSES = ("A", "B", "C", "D")
Table = list[list[float]]


def tables(sizes: Sequence[int], seed: int, outliers: float = 0.15, faulty: float = 0.0) -> dict[str, Table]:
    """Slowdowns for each class on nodes of these sizes; values repeat, so that ties occur. `faulty`: share of GPUs."""
    draw, fate = random.Random(seed), random.Random(f"faulty {seed}")
    slow = [[draw.random() < outliers for _ in range(size)] for size in sizes]
    found = {
        name: [[draw.choice((1.4, 1.6)) if bad else draw.choice((0.9, 0.95, 1.0, 1.05)) for bad in row] for row in slow]
        for name in CLASSES
    }
    for node, size in enumerate(sizes):
        for k in range(size):
            if fate.random() < faulty:
                for table in found.values():
                    table[node][k] = FAULTY
    return found


def levels(slowdown: Mapping[str, Table]) -> dict[str, Table]:
    """Coarser values, as classes are."""
    return {name: [[round(x, 1) for x in row] for row in table] for name, table in slowdown.items()}


def scanned(
    names: Sequence[str],
    free: Sequence[set[int]],
    slowdown: Mapping[str, Table],
    sensitivity: str,
    best_first: bool = False,
    nodes: Sequence[int] | None = None,
) -> View:
    """The view of these nodes (default: all) written straight from its description."""
    known = "A" if sensitivity == "?" else sensitivity
    chosen = range(len(names)) if nodes is None else nodes
    by, sign = ("A", -1.0) if known in INSENSITIVE else (known, 1.0)
    order = {
        i: sorted(free[i], key=lambda k, i=i: (sign * slowdown[by][i][k], k) if best_first else (0.0, k))  # type: ignore[misc]
        for i in chosen
    }
    level = levels(slowdown)
    return View(
        names=[names[i] for i in chosen],
        free=[order[i] for i in chosen],
        slowdown=[[slowdown[known][i][k] for k in order[i]] for i in chosen],
        level=[[level[known][i][k] for k in order[i]] for i in chosen],
        slowdown_a=[[slowdown["A"][i][k] for k in order[i]] for i in chosen],
        node_gpus=[len(slowdown["A"][i]) for i in chosen],
        weight=[1] * len(chosen),
        position=list(chosen),
        cpus_free=[len(order[i]) for i in chosen],
    )


def shapes(largest: int) -> list[GpuShape]:
    """Requests of all forms for nodes of this size."""
    return [
        *(GpuShape(n) for n in (1, 2, 3, largest, largest + 1, 2 * largest)),
        *(GpuShape(n, nodes=1, per_node=n) for n in (1, largest)),
        GpuShape(4, nodes=2, per_node=2),
        GpuShape(3, nodes=3, per_node=1),
        GpuShape(largest + 1, nodes=2),
    ]
