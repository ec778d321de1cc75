# SPDX-License-Identifier: MIT
"""PAL: walk the (locality, variability) products in ascending order (SC'24, arXiv 2408.11919)."""

from __future__ import annotations

from slurm_pal.placement import pm_first
from slurm_pal.placement.lxv import lxv
from slurm_pal.placement.need import Need, Picks
from slurm_pal.placement.view import Rule, View


def pick(view: View, need: Need, rule: Rule) -> Picks | None:
    """One GPU, or more than a node holds: PM-First. Otherwise the L x V walk.

    A job that must stay on one node sees only the `within` entries.
    """
    single = need.total if not need.counts else need.counts[0]
    if len(need.counts) > 1 or single == 1 or single > max(view.node_gpus):
        return pm_first.pick(view, need, rule)
    for level, within, _ in lxv(list(dict.fromkeys(x for levels in view.level for x in levels)), rule.locality_penalty):
        if within:
            node = _within(view, single, level)
            if node is not None:
                return [(node, single)]
        elif not need.counts:
            picks = pm_first.best_total(view, single, level)
            if picks is not None:
                return picks
    return None


def _within(view: View, count: int, limit: float) -> int | None:
    """The node with most GPUs of level <= limit among those that would hand out such ones.

    This is worst fit, as published; ties go to Slurm's node order.
    """
    best: tuple[int, int] | None = None
    for node, levels in enumerate(view.level):
        if len(levels) >= count and max(levels[:count]) <= limit:
            offer = (-sum(1 for x in levels if x <= limit), node)
            best = offer if best is None else min(best, offer)
    return None if best is None else best[1]
