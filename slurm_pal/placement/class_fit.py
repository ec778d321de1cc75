# SPDX-License-Identifier: MIT
"""Class fit, the default: pack first, and let class fit decide where packing does not care.

On a scheduler that does not move jobs, taking the best GPU anywhere breaks up nodes and
costs more than it gains; exact ties on packing are where class fit is free. Sensitive
jobs are kept off outliers altogether while other GPUs will do; whether to wait for
others is for patience.py. Why this and not another rule: docs/placement.md.
"""

from __future__ import annotations

from slurm_pal.placement.candidates import Key, Preference
from slurm_pal.placement.view import Rule, View

INSENSITIVE = frozenset({"C", "D"})


def preferences(view: View, rule: Rule) -> list[Preference]:
    """Sensitive jobs: without the outliers, then with them; fewest left over, then the fastest slowest GPU.
    Insensitive 1-GPU jobs: onto the outliers first; others: fewest left over, then the
    GPUs that sensitive jobs want least."""

    def free(node: int) -> int:
        return len(view.free[node])

    if rule.sensitivity in INSENSITIVE:
        return [Preference(free, lambda node, count: _insensitive_key(view, rule, node, count))]

    def clean(node: int) -> int:
        """Leading free GPUs before the first outlier: Slurm hands them out in this order."""
        for position, slowdown in enumerate(view.slowdown[node]):
            if slowdown > rule.barred_slowdown:
                return position
        return len(view.slowdown[node])

    def key(node: int, count: int) -> Key:
        return (len(view.free[node]) - count, max(view.slowdown[node][:count]), node)

    def key_with_outliers(node: int, count: int) -> Key:
        worst = max(view.slowdown[node][:count])
        return (worst > rule.barred_slowdown, len(view.free[node]) - count, worst, node)

    return [Preference(clean, key), Preference(free, key_with_outliers)]


def _insensitive_key(view: View, rule: Rule, node: int, count: int) -> Key:
    own = max(view.slowdown[node][:count])
    slowest = max(view.slowdown_a[node][:count])
    takes_outlier = count == 1 and slowest > rule.barred_slowdown
    return (own > rule.barred_slowdown, not takes_outlier, len(view.free[node]) - count, -slowest, node)
