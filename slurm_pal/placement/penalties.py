# SPDX-License-Identifier: MIT
"""Locality penalties by level of the network: the factor on iteration time at level 1, 2, ... (Topology.span). Pure.

One factor for all levels is what PAL has (SC'24). Where a sweep has timed all-reduces between nodes, all penalties of
one kind of work follow from one number: the share of its iteration that it spends in communication within a node. That
share times (time of an all-reduce at the level / within a node - 1) is what the level adds. No level is faster than the
one below it.
"""

from __future__ import annotations

from slurm_pal.base.light import Mapping

Penalties = tuple[float, ...]
"""The factor at level 1, 2, ...; at levels beyond the last it is that of the last."""
MOST = 20.0


def expected(constant: float, ratios: Mapping[int, float]) -> Penalties:
    """The penalties of work of which nothing is known but the site's `constant`, which is that of level 1.

    `ratios` is the time of an all-reduce at each level over that within a node.
    """
    return completed({1: constant}, ratios, (constant,))


def completed(known: Mapping[int, float], ratios: Mapping[int, float], otherwise: Penalties) -> Penalties:
    """The penalties of work of which those of some levels are `known`, the others by the ratios; where these show
    nothing, as at the nearest lower level that is known, and `otherwise` below all of them, or at most as above."""
    shares = [(known[level] - 1.0) / (ratios[level] - 1.0) for level in known if ratios.get(level, 1.0) > 1.0]
    share = min(1.0, sum(shares) / len(shares)) if shares else None
    found: list[float] = []
    for level in range(1, max((*known, *ratios, 1)) + 1):
        if level in known:
            factor = known[level]
        elif share is not None and level in ratios:
            factor = max([1.0 + share * (ratios[level] - 1.0), *found[-1:]])
        elif found:
            factor = found[-1]
        else:
            factor = min(at(otherwise, level), *known.values()) if known else at(otherwise, level)
        found.append(min(max(factor, 1.0), MOST))
    return tuple(found)


def at(penalties: Penalties, level: int) -> float:
    """The factor at a level; 1.0 at level 0."""
    return penalties[min(level, len(penalties)) - 1] if level and penalties else 1.0
