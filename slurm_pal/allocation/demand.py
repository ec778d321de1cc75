# SPDX-License-Identifier: MIT
"""What an owner will need of its nodes, and how many of them may therefore be open to guests (Aryl, section 2).

Aryl predicts with an LSTM; a quantile of the same hour of past weeks needs no training, is explained in a sentence, and
errs to the owner's side: it is above the demand of that hour in all but a share of the past.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from slurm_pal.base.errors import UsageError

HOUR_S = 3600.0
WEEK_H = 168
ENOUGH = 3
"""Samples of an hour of the week, from as many weeks, before they are believed by themselves."""


class DemandSample(NamedTuple):
    """What the owner used at a time."""

    time_s: float  # Unix time
    nodes: float  # nodes in use, those that its jobs wait for included where they are known


def predicted_nodes(
    samples: Iterable[DemandSample],
    from_s: float,
    until_s: float,
    *,
    quantile: float = 0.95,
    utc_offset_s: float = 0.0,
    hour_s: float = HOUR_S,
) -> float | None:
    """The quantile of the owner's demand in each hour of the week that `from_s`..`until_s` touches: the largest.

    An hour with samples of fewer than ENOUGH weeks is judged by the same hour of all days, if that has ENOUGH days, and
    else by all samples. None without samples: nothing is known, so nothing may be lent. The hours are those of
    `utc_offset_s` all the year; `hour_s` is another length, where demand repeats after another time than a week.

    Raises UsageError for a quantile outside 0..1 and a time that ends before it begins.
    """
    if not 0 <= quantile <= 1 or until_s < from_s:
        raise UsageError(
            f"quantile {quantile} of {from_s} to {until_s} s: it must be 0 to 1, the end not before the start"
        )
    past = [
        (math.floor((sample.time_s + utc_offset_s) / hour_s), sample.nodes)
        for sample in samples
        if sample.time_s < from_s
    ]
    if not past:
        return None
    first, last = (math.floor((time_s + utc_offset_s) / hour_s) for time_s in (from_s, until_s))
    return max(_of_hour(past, hour, quantile) for hour in range(first, min(last, first + WEEK_H - 1) + 1))


def _of_hour(past: list[tuple[int, float]], hour: int, quantile: float) -> float:
    """The quantile of one hour, given (hour, nodes) of the past."""
    for period_h in (WEEK_H, 24):
        alike = [(its, nodes) for its, nodes in past if (its - hour) % period_h == 0]
        if len({its for its, _ in alike}) >= ENOUGH:
            return _quantile([nodes for _, nodes in alike], quantile)
    return _quantile([nodes for _, nodes in past], quantile)


def _quantile(values: list[float], quantile: float) -> float:
    """The smallest value that at least this share of all does not exceed: one that was seen, never between two."""
    return sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]


def loan_order(total: int, used: float, waiting: float, predicted: float | None, headroom: float = 0.02) -> int:
    """How many of the owner's `total` nodes may be open to guests until the next order, 0..total.

    What stays is at least what the owner uses and waits for, at least what it is `predicted` to need (None: nothing is
    known, so all), and `headroom`, a share of `total` to the nearest node, on top. Raises UsageError for numbers below
    0.
    """
    if not (total >= 0 and used >= 0 and waiting >= 0 and (predicted is None or predicted >= 0) and headroom >= 0):
        raise UsageError(
            f"total {total}, used {used}, waiting {waiting}, predicted {predicted} nodes and headroom {headroom}: "
            "all must be at least 0"
        )
    if predicted is None:
        return 0
    kept = math.ceil(max(used + waiting, predicted) - 1e-9) + math.floor(headroom * total + 0.5)
    return max(0, total - kept)
