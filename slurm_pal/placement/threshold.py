# SPDX-License-Identifier: MIT
"""Threshold, then pack: among GPUs nearly as good as the best attainable set, the fewest nodes.

A design that was compared and not kept (docs/placement.md): it takes the *worst* GPUs that
are still acceptable, since a job runs at its slowest GPU, and leaves the better ones.
"""

from __future__ import annotations

from slurm_pal.placement.candidates import Preference, Scan
from slurm_pal.placement.need import Need, Picks, choose, least
from slurm_pal.placement.view import Rule, View

TOLERANCE = 1.01


def pick(view: View, need: Need, rule: Rule) -> Picks | None:
    """The least slowdown that the need can be met with, widened by a hundredth; then the fullest or tightest nodes."""
    levels = sorted({slowdown for row in view.slowdown for slowdown in row})
    return least(levels, lambda level: choose(Scan(len(view.free), _within(view, level * TOLERANCE)), need))


def _within(view: View, limit: float) -> Preference:
    def usable(node: int) -> int:
        row = view.slowdown[node]
        return next((position for position, slowdown in enumerate(row) if slowdown > limit), len(row))

    return Preference(
        usable, lambda node, count: (len(view.free[node]) - count, -max(view.slowdown[node][:count]), node)
    )
