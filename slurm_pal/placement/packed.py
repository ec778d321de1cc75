# SPDX-License-Identifier: MIT
"""Packed: the node with the fewest GPUs left over, scores ignored (Tiresias-like)."""

from __future__ import annotations

from slurm_pal.placement.candidates import Preference
from slurm_pal.placement.view import Rule, View


def preferences(view: View, rule: Rule) -> list[Preference]:
    """Best fit: fewest free GPUs left, then Slurm's node order."""
    return [
        Preference(lambda node: len(view.free[node]), lambda node, count: (len(view.free[node]) - count, node)),
    ]
