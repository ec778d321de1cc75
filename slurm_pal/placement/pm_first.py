# SPDX-License-Identifier: MIT
"""PM-First: the best GPUs first, blind to nodes (PAL, SC'24)."""

from __future__ import annotations

from slurm_pal.placement.candidates import Preference, Scan
from slurm_pal.placement.need import Need, Picks, choose
from slurm_pal.placement.view import Rule, View


def pick(view: View, need: Need, rule: Rule) -> Picks | None:
    """Fixed counts: nodes whose handed-out GPUs are best. A total: the best GPUs one by one.

    Ties go to the node whose number of equally good GPUs is nearest to the job's size
    (the published "locality"), then to Slurm's node order.
    """
    if need.counts:
        wanted = Preference(lambda node: len(view.free[node]), lambda node, count: key(view, node, count))
        return choose(Scan(len(view.free), wanted), need)
    return best_total(view, need.total, float("inf"))


def key(view: View, node: int, count: int) -> tuple[float, ...]:
    """Order of nodes for `count` GPUs: their worst level, the published locality, node order."""
    level = max(view.level[node][:count])
    return (level, abs(sum(1 for x in view.level[node] if x == level) - count), node)


def best_total(view: View, total: int, limit: float) -> Picks | None:
    """The `total` best GPUs with level <= `limit`, as Slurm's hand-out order allows.

    A node's GPUs come lowest index first, so each one counts with the worst of those
    handed out before it.
    """
    offers: list[tuple[float, int, int, int]] = []
    for node, levels in enumerate(view.level):
        worst = 0.0
        for position, level in enumerate(levels):
            worst = max(worst, level)
            if worst > limit:
                break
            alike = sum(1 for x in levels if x == worst)
            offers.append((worst, abs(alike - total), node, position))
    if len(offers) < total:
        return None
    counts: dict[int, int] = {}
    for _, _, node, _ in sorted(offers)[:total]:
        counts[node] = counts.get(node, 0) + 1
    return list(counts.items())
