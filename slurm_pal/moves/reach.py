# SPDX-License-Identifier: MIT
"""A bound on how good a running job's GPUs could become, without trying a placement.

Nearly all running jobs already have their best place. A cheap bound that no placement can beat
skips the attempts that cannot pay, and so changes no decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from slurm_pal.base.jobs import GpuShape
from slurm_pal.placement.occupancy import DRAWN_ANEW, Occupancy, kept
from slurm_pal.placement.view import Placement, Rule

Held = Sequence[tuple[int, Sequence[int]]]
"""GPUs as (node, indexes)."""


class Reach:
    """Bounds on placements by one policy on one occupancy; `forget` must follow every change of it.

    A rule that says node by node what it wants either takes the nodes it would take
    anyway, or takes GPUs on a node that the job gives back.
    """

    def __init__(self, occupancy: Occupancy, policy: str) -> None:
        self._occupancy, self._policy = occupancy, policy
        self._bounded = kept(policy) and policy not in DRAWN_ANEW
        self._elsewhere: dict[tuple[object, ...], Placement | None] = {}
        self._free: dict[str, list[float]] = {}  # class -> slowdowns of all free GPUs, in order

    def forget(self) -> None:
        """The occupancy has changed."""
        self._elsewhere.clear()
        self._free.clear()

    def least_product(self, shape: GpuShape, rule: Rule, partition: str, held: Held) -> float:
        """At most the product that `Occupancy.place` would find once these GPUs are given back; 0.0 where unknown."""
        if not self._bounded or shape.whole_nodes:
            return 0.0
        elsewhere = self.elsewhere(shape, rule, partition)
        if elsewhere is not None and any(node in elsewhere.nodes for node, _ in held):
            return 0.0
        here = self.here(shape, rule, held)
        return here if elsewhere is None else min(here, elsewhere.product)

    def elsewhere(self, shape: GpuShape, rule: Rule, partition: str) -> Placement | None:
        """The placement of such a job while those that run keep their GPUs; None, too, where nothing is bounded."""
        if not self._bounded or shape.whole_nodes:
            return None
        key = (shape, rule.sensitivity, rule.measured, rule.locality_penalty, rule.barred_slowdown, partition)
        if key not in self._elsewhere:
            self._elsewhere[key] = self._occupancy.place(self._policy, shape, rule, partition)
        return self._elsewhere[key]

    def here(self, shape: GpuShape, rule: Rule, held: Held) -> float:
        """At most the product of a placement that uses one of these nodes, the GPUs given back; 0.0 where unknown."""
        if not self._bounded or shape.whole_nodes:
            return 0.0
        if len(held) == 1:
            return self._here(shape.total, rule, *held[0])
        return min(self._here(shape.total, rule, node, indexes) for node, indexes in held)

    def anywhere(self, shape: GpuShape, rule: Rule, held: Held, together: bool = True) -> float:
        """At most the product of a placement among these GPUs and all that are free; 0.0 where unknown.

        Its slowest GPU is no faster than if it took the fastest of them all, wherever they are. Where few are free
        that is hardly better than what the job has. `together`: the free GPUs of one node may be enough.
        """
        if shape.whole_nodes:
            return 0.0
        sensitivity, total = rule.sensitivity, shape.total
        if sensitivity not in self._free:
            self._free[sensitivity] = sorted(chain.from_iterable(self._occupancy.view(sensitivity).slowdown))
        believed = self._occupancy.believed(sensitivity)
        own = [believed[node][index] for node, indexes in held for index in indexes]
        slowest = sorted(own + self._free[sensitivity][:total])[total - 1]
        together = together or any(self._occupancy.free(node) + len(gpus) >= total for node, gpus in held)
        return slowest * (min(1.0, rule.locality_penalty) if together else rule.locality_penalty)

    def _here(self, total: int, rule: Rule, node: int, indexes: Sequence[int]) -> float:
        """A bound for placements that use this node: for the whole job, or for a part of it, the first GPU at least."""
        offered = self._occupancy.handed_out(rule.sensitivity, node, indexes)
        if total == 1:
            return offered[0]
        spread = offered[0] * rule.locality_penalty
        return min(spread, max(offered[:total])) if total <= len(offered) else spread
