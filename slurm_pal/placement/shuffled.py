# SPDX-License-Identifier: MIT
"""Random: any node that fits, by the seed in the rule (a baseline, not a recommendation)."""

from __future__ import annotations

from random import Random

from slurm_pal.placement.candidates import Preference
from slurm_pal.placement.view import Rule, View


def preferences(view: View, rule: Rule) -> list[Preference]:
    """Nodes in an order drawn from `rule.seed`."""
    ranks = list(range(len(view.free)))
    Random(rule.seed).shuffle(ranks)
    return [Preference(lambda node: len(view.free[node]), lambda node, count: (ranks[node],))]
