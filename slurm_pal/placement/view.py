# SPDX-License-Identifier: MIT
"""What a placement rule sees: free GPUs and their slowdowns for one job, as plain arrays.

No numpy: palsub uses the same code, and at 10,000 GPUs a decision in the standard
library takes a few milliseconds (docs/benchmarks.md).
"""

from __future__ import annotations

from slurm_pal.base.light import NamedTuple, Sequence
from slurm_pal.placement.penalties import at


class View(NamedTuple):
    """The nodes that may run one job, in Slurm's order.

    Positions `i` are nodes. `free[i]` holds the free GPU indexes in the order in which
    Slurm hands them out (lowest first); `slowdown[i][k]` is the slowdown of GPU
    `free[i][k]` for the job's sensitivity class, 1.0 where unknown (never best);
    `level[i][k]` is the binned slowdown (centroid of its variability class) that the
    L x V walk compares; `slowdown_a` are class-A slowdowns, by which insensitive jobs
    are sent to slow GPUs. A GPU that was seen to fail has FAULTY (faulty.py) in all three.
    `node_gpus[i]` counts all GPUs of the node. Only usable nodes with at least one free GPU
    are in a view.
    """

    names: Sequence[str]
    free: Sequence[Sequence[int]]
    slowdown: Sequence[Sequence[float]]
    level: Sequence[Sequence[float]]
    slowdown_a: Sequence[Sequence[float]]
    node_gpus: Sequence[int]
    # For what plain Slurm would pick; empty means nodes in a row, all alike.
    weight: Sequence[int] = ()  # node weights
    position: Sequence[int] = ()  # in Slurm's list of all nodes
    cpus_free: Sequence[int] = ()


class Placement(NamedTuple):
    """The GPUs chosen: for each node (position in the view) how many, and which we expect."""

    nodes: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...]  # GPU indexes per chosen node, as Slurm will hand them out
    slowdown: float  # predicted: slowest GPU of the set, without locality
    locality: float  # 1.0 on one node, else the locality penalty

    @property
    def product(self) -> float:
        """Predicted iteration time relative to median GPUs on one node (PAL's L x V)."""
        return self.slowdown * self.locality


class Rule(NamedTuple):
    """Parameters of a placement, all of them data."""

    sensitivity: str  # A, B, C or ?
    locality_penalty: float
    barred_slowdown: float
    seed: int = 0  # for `random` only
    measured: bool = False  # the class was measured, not stated or guessed
    farther: tuple[float, ...] = ()  # the penalty at level 2, 3, ... of the network; where it ends, as the one before

    def locality(self, level: int) -> float:
        """The factor on iteration time at a level (Topology.span)."""
        return at((self.locality_penalty, *self.farther), level)


ALIKE = 1.005
"""GPUs that differ by less are equally fast: a sweep could not tell them apart."""


def alike(view: View) -> bool:
    """Whether all free GPUs are equally fast, for the job's class and for class A: which of them it gets matters to
    nobody."""
    for table in (view.slowdown, view.slowdown_a):
        if max(map(max, table), default=1.0) > ALIKE * min(map(min, table), default=1.0):
            return False
    return True
