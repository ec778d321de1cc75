# SPDX-License-Identifier: MIT
"""By how much an allocation breaks its limits."""

from __future__ import annotations

from slurm_pal.allocation.problem import Allocation, Problem


def violation(made: Problem, found: Allocation) -> float:
    """By how much an allocation breaks its limits at most (signs, time, capacity); 0 where it holds."""
    shares = found.shares
    time, use = shares.sum(axis=1), made.scale @ shares
    least = float(shares.min(initial=0.0))
    for pair in found.pairs:
        time[pair.first] += pair.shares.sum()
        time[pair.second] += pair.shares.sum()
        use = use + made.scale[pair.first] * pair.shares
        least = min(least, float(pair.shares.min(initial=0.0)))
    over = (made.uses @ use - made.capacity).max(initial=0.0)
    return max(0.0, -least, float((time - 1.0).max(initial=0.0)), float(over))
