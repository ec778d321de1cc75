# SPDX-License-Identifier: MIT
"""Two kinds of GPUs in one group, such as those of two board makers: each GPU is compared with its own kind.

Where a share of the GPUs is slower by a few per cent, the slower ones are no outliers, let alone broken. Two
normal distributions of one width are fitted (EM); they count as two kinds if they explain the GPUs far better than
one does, with a tail or without, and lie apart. What is far from both is left out, so that faults are still seen
beside them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.kmeans import Floats

FEWEST = 40  # GPUs of a group in which two kinds can be distinguished from chance
SHARE = 0.05  # of the GPUs at least are of the smaller kind, ...
MINOR = 8  # ... and so many: fewer are single outliers
WIDE = 0.12  # kinds are no further apart than this: boards of one model do not differ by more
APART = 2.5  # centres, in widths
GAIN = 30.0  # twice the gain of log likelihood over one kind
BETTER = 10.0  # ... and over one kind with a tail
KEPT = (2.0, 15.0, 0.0)  # APART, GAIN and BETTER for kinds that were seen before
ROUNDS = 200
BINS = 960  # of .025 %, an eighth of the least width
TAILS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0)  # from the lower end to the fastest GPU, in standard deviations


class Kinds(NamedTuple):
    """Two kinds; slowdowns relative to the median of the group."""

    centres: tuple[float, float]  # rising
    shares: tuple[float, float]
    width: float  # standard deviation within each kind

    @property
    def edge(self) -> float:
        """A GPU at this slowdown is as likely of either kind."""
        a, b = self.centres
        return (a + b) / 2.0 + self.width**2 * math.log(self.shares[0] / self.shares[1]) / (b - a)


def two_kinds(slowdown: Floats, floor: float, before: bool = False) -> Kinds | None:
    """The two kinds, None where there is but one. `floor`: no width is less; `before`: two were seen last time."""
    values = slowdown[np.abs(slowdown - 1.0) <= WIDE]
    if len(values) < max(FEWEST, 0.8 * len(slowdown)):
        return None
    counts, edges = np.histogram(values, BINS, (1.0 - WIDE, 1.0 + WIDE))  # so that 40,000 GPUs take no longer than 400
    filled = counts > 0
    x, weight = (edges[:-1] + edges[1:])[filled] / 2.0, counts[filled].astype(np.float64)
    if len(x) < 2:
        return None
    found, likelihood = _fit(x, weight, floor)
    apart, gain, better = KEPT if before else (APART, GAIN, BETTER)
    low, high = found.centres
    fewest = max(MINOR, SHARE * len(values))
    if not apart * found.width <= high - low <= WIDE or min(found.shares) * len(values) < fewest:
        return None
    width = max(float(values.std()), floor)
    one = float((weight * _density(x, float(values.mean()), width)).sum())
    if 2.0 * (likelihood - one) < gain:
        return None
    tail = values if found.shares[0] >= found.shares[1] else -values
    return found if 2.0 * (likelihood - _skewed(tail)) >= better else None


def _fit(x: Floats, weight: Floats, floor: float) -> tuple[Kinds, float]:
    """Two normal distributions of one width, and their log likelihood; `x` rises. From the best two clusters."""
    total = float(weight.sum())
    n, sums = np.cumsum(weight)[:-1], np.cumsum(weight * x)
    between = sums[:-1] ** 2 / n + (sums[-1] - sums[:-1]) ** 2 / (total - n)
    at = int(np.argmax(between))
    shares = np.array([n[at], total - n[at]]) / total
    centres = np.array([sums[at] / n[at], (sums[-1] - sums[at]) / (total - n[at])])
    width = max(math.sqrt(max(0.0, (float((weight * x**2).sum()) - float(between[at])) / total)), floor)
    last = likelihood = -math.inf
    for _ in range(ROUNDS):
        logs = np.log(np.maximum(shares, 1e-12)) + np.column_stack([_density(x, c, width) for c in centres])
        top = logs.max(axis=1, keepdims=True)
        each = top[:, 0] + np.log(np.exp(logs - top).sum(axis=1))
        likelihood = float((weight * each).sum())
        if likelihood - last < 1e-3:
            break
        last = likelihood
        belongs = np.exp(logs - each[:, None]) * weight[:, None]
        sizes = np.maximum(belongs.sum(axis=0), 1e-12)
        shares, centres = sizes / total, (belongs * x[:, None]).sum(axis=0) / sizes
        width = max(math.sqrt(float((belongs * (x[:, None] - centres) ** 2).sum()) / total), floor)
    order = np.argsort(centres, kind="stable")
    low, high = (float(centres[i]) for i in order)
    return Kinds((low, high), (float(shares[order[0]]), float(shares[order[1]])), width), likelihood


def _skewed(values: Floats) -> float:
    """Log likelihood of one kind with a tail above: the best of some gamma distributions with a lower end."""
    least, sd = float(values.min()), float(values.std())
    best = -math.inf
    for below in TAILS if sd > 0.0 else ():
        x = values - (least - below * sd)
        mean, spread = float(x.mean()), math.log(float(x.mean())) - float(np.log(x).mean())
        # The shape of largest likelihood, by a usual approximation (Minka 2002), within 1.5 %.
        shape = (3.0 - spread + math.sqrt((spread - 3.0) ** 2 + 24.0 * spread)) / (12.0 * spread)
        logs = (shape - 1.0) * np.log(x) - x * shape / mean
        best = max(best, float(logs.sum()) + len(x) * (shape * math.log(shape / mean) - math.lgamma(shape)))
    return best + len(values) * math.log(math.sqrt(2.0 * math.pi))  # as in _density


def _density(values: Floats, centre: float, width: float) -> Floats:
    """Log of the normal density, without the constant."""
    found: Floats = -((values - centre) ** 2) / (2.0 * width**2) - math.log(width)
    return found
