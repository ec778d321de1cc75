# SPDX-License-Identifier: MIT
"""Class fit, the default: pack first, and let class fit decide where packing does not care.

On a scheduler that does not move jobs, taking the best GPU anywhere breaks up nodes and
costs more than it gains; exact ties on packing are where class fit is free. So GPUs up to
`rule.barred_slowdown` count as alike, and beyond it slower is worse, on several nodes
`rule.locality_penalty` times as much (place). Whether to wait for others is for patience.py.
Why this and not another rule: docs/placement.md.
"""

from __future__ import annotations

from slurm_pal.base.light import Callable
from slurm_pal.placement.candidates import Key, Preference
from slurm_pal.placement.view import Rule, View

INSENSITIVE = frozenset({"C", "D"})


def preferences(view: View, rule: Rule) -> list[Preference]:
    """The order of nodes: GPUs up to the bar, then the least slow; then
    sensitive jobs: fewest left over, and outliers among these; the fastest slowest GPU;
    measured insensitive jobs: those of 1 GPU onto outliers; fewest left over, the GPUs that sensitive jobs want least;
    other insensitive jobs: no outliers of class A, since their class may be wrong; then the same."""
    return [Preference(lambda node: len(view.free[node]), _key(view, rule))]


def limited(view: View, rule: Rule, limit: float) -> Preference:
    """The same order for the leading free GPUs that are not slower than `limit`: Slurm hands them out in this order."""

    def usable(node: int) -> int:
        row = view.slowdown[node]
        return next((position for position, slowdown in enumerate(row) if slowdown > limit), len(row))

    return Preference(usable, _key(view, rule))


def _key(view: View, rule: Rule) -> Callable[[int, int], Key]:
    bar = rule.barred_slowdown

    def packed(node: int, count: int) -> Key:
        """Fewest left over; of these what wide jobs want least, since they run at the slowest GPU of a node."""
        left = len(view.free[node]) - count
        return (left, -max(bar, *view.slowdown_a[node]) if left else -bar)

    def sensitive(node: int, count: int) -> Key:
        slowest = max(view.slowdown[node][:count])
        return (max(slowest, bar), *packed(node, count), slowest, node)

    def insensitive(node: int, count: int) -> Key:
        own, slowest = max(view.slowdown[node][:count]), max(view.slowdown_a[node][:count])
        outliers = not (count == 1 and slowest > bar) if rule.measured else max(slowest, bar)
        return (max(own, bar), outliers, *packed(node, count), -slowest, node)

    return insensitive if rule.sensitivity in INSENSITIVE else sensitive
