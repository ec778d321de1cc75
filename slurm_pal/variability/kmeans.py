# SPDX-License-Identifier: MIT
"""Exact k-means in one dimension, and its silhouette.

Dynamic programming on sorted values finds the best partition, so there is no seed and
no iteration: the same values give the same clusters in any order. All values are
dimensionless slowdowns, but any finite unit works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import kmeans1d
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Clusters(NamedTuple):
    """A partition: `labels` (n,) count up from 0 with rising `centroids` (k,)."""

    labels: Ints
    centroids: Floats
    squares: float  # sum over all values of (value - its centroid)^2

    @property
    def k(self) -> int:
        return len(self.centroids)


def cluster(values: Sequence[float] | Floats, k: int) -> Clusters:
    """The partition into `k` clusters with the least within-cluster squares.

    Fewer clusters come out when there are fewer than `k` distinct values. Raises
    ValueError when there is no value, one that is not finite, or k < 1.
    """
    data = np.asarray(values, dtype=np.float64)
    if k < 1 or data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise ValueError(f"k-means needs k >= 1 and finite values, not k = {k} and {data.shape} values")
    # Sorted, and shifted to the mean: the library sums squares of what it is given, and
    # slowdowns near 1.0 differ by 1e-3, so the shift saves six digits.
    order = np.argsort(data, kind="stable")
    ordered = data[order]
    shift = float(ordered.mean())
    found = kmeans1d.cluster((ordered - shift).tolist(), min(k, len(np.unique(data))))
    sorted_labels = np.asarray(found.clusters, dtype=np.int64)
    # Empty clusters cannot arise for distinct values; renumbering keeps that an invariant.
    present, sorted_labels = np.unique(sorted_labels, return_inverse=True)
    centroids = np.array([ordered[sorted_labels == i].mean() for i in range(len(present))])
    labels = np.empty(len(data), dtype=np.int64)
    labels[order] = sorted_labels
    return Clusters(labels, centroids, float(((data - centroids[labels]) ** 2).sum()))


def silhouette(values: Sequence[float] | Floats, labels: Ints) -> float:
    """Mean silhouette of a partition into intervals of the sorted values, -1..1.

    For each value (b - a) / max(a, b): `a` is the mean distance to the rest of its own
    cluster, `b` to the nearest other cluster; 0 for a cluster of one. In one dimension
    the nearest cluster is a neighbour, and prefix sums give all distances in O(n log n).
    Raises ValueError for fewer than two clusters, or clusters that overlap.
    """
    data = np.asarray(values, dtype=np.float64)
    order = np.argsort(data, kind="stable")
    x = data[order] - data.mean()
    own = np.asarray(labels, dtype=np.int64)[order]
    starts = np.flatnonzero(np.r_[True, own[1:] != own[:-1]])
    if len(starts) < 2 or len(starts) != len(np.unique(own)):
        raise ValueError("a silhouette needs at least two clusters that do not overlap")
    ends = np.r_[starts[1:], len(x)]
    sums = np.r_[0.0, np.cumsum(x)]
    totals, sizes = sums[ends] - sums[starts], ends - starts
    which = np.repeat(np.arange(len(starts)), sizes)

    position = np.arange(len(x))
    below = x * (position - starts[which]) - (sums[position] - sums[starts[which]])
    above = (sums[ends[which]] - sums[position]) - x * (ends[which] - position)
    inner = (below + above) / np.maximum(sizes[which] - 1, 1)
    means = totals / sizes
    left = np.where(which > 0, x - means[which - 1], np.inf)
    right = np.where(which < len(starts) - 1, means[(which + 1) % len(starts)] - x, np.inf)
    outer = np.minimum(left, right)
    largest = np.maximum(inner, outer)
    score = np.where((sizes[which] > 1) & (largest > 0), (outer - inner) / np.where(largest > 0, largest, 1.0), 0.0)
    return float(score.mean())
