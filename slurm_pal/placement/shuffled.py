"""Random: any node that fits, by the seed in the rule (a baseline, not a recommendation)."""

from __future__ import annotations

from random import Random

from slurm_pal.placement.need import Need, Picks, pick_counts, pick_spread
from slurm_pal.placement.view import Rule, View


def pick(view: View, need: Need, rule: Rule) -> Picks | None:
    """Nodes in an order drawn from `rule.seed`."""
    ranks = list(range(len(view.free)))
    Random(rule.seed).shuffle(ranks)

    def key(node: int, count: int) -> tuple[float, ...]:
        return (ranks[node],)

    return pick_counts(view, need.counts, key) if need.counts else pick_spread(view, need.total, key)
