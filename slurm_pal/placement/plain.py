"""What plain Slurm would pick, so that a decision can say what it changed.

Measured on select/cons_tres: lowest node weight, then the first node in order that
holds the whole request; several nodes are filled in the same order. A prediction: jobs
that start in between and multi-node fits can differ.
"""

from __future__ import annotations

from slurm_pal.jobs import GpuShape
from slurm_pal.placement import placement, whole
from slurm_pal.placement.need import Picks, need_of, pick_counts
from slurm_pal.placement.view import Placement, Rule, View


def plain_pick(view: View, shape: GpuShape, rule: Rule) -> Placement | None:
    """The placement stock Slurm would choose now, or None when the job would wait."""
    need = need_of(shape, view)
    if need is None:
        return None
    weights = view.weight or [1] * len(view.free)
    order = sorted(range(len(view.free)), key=lambda node: (weights[node], node))
    if need.counts or any(len(free) >= need.total for free in view.free):
        picks = pick_counts(view, need.counts or (need.total,), lambda node, _: (weights[node], node))
    else:
        picks = _fill(view, order, need.total)
    return None if picks is None else placement(view, whole(view, picks) if shape.whole_nodes else picks, rule)


def _fill(view: View, order: list[int], total: int) -> Picks | None:
    picks: Picks = []
    for node in order:
        count = min(total, len(view.free[node]))
        picks += [(node, count)] if count else []
        total -= count
        if total == 0:
            return picks
    return None
