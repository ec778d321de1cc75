"""Packed: the node with the fewest GPUs left over, scores ignored (Tiresias-like)."""

from __future__ import annotations

from slurm_pal.placement.need import Need, Picks, pick_counts, pick_spread
from slurm_pal.placement.view import Rule, View


def pick(view: View, need: Need, rule: Rule) -> Picks | None:
    """Best fit: fewest free GPUs left, then Slurm's node order."""

    def key(node: int, count: int) -> tuple[float, ...]:
        return (len(view.free[node]) - count, node)

    return pick_counts(view, need.counts, key) if need.counts else pick_spread(view, need.total, key)
