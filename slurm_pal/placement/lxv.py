# SPDX-License-Identifier: MIT
"""The list of (locality, variability) products that PAL walks (SC'24, arXiv 2408.11919)."""

from __future__ import annotations

from collections.abc import Iterable


def lxv(levels_in_first_appearance_order: Iterable[float], locality_penalty: float) -> list[tuple[float, bool, float]]:
    """(level, within one node, product) in ascending order of the product.

    A level counts unchanged within a node, and `locality_penalty` times as much across
    nodes. The sort is stable: of equal products the level that appeared first comes
    first, and `within` before `across`. Repeated levels are taken once.
    """
    entries: list[tuple[float, bool, float]] = []
    for level in dict.fromkeys(levels_in_first_appearance_order):
        entries.append((level, True, level))
        entries.append((level, False, locality_penalty * level))
    return sorted(entries, key=lambda entry: entry[2])
