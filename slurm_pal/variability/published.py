# SPDX-License-Identifier: MIT
"""The binning of PAL (SC'24, arXiv 2408.11919), as intended and as its artifact does it.

Input is one relative iteration time per GPU; the result is a binned slowdown `sf` per
GPU. These exist for comparison with the paper: they refit every time, so GPUs change
bins with the noise; the product's own classes are in classes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.flags import Mask
from slurm_pal.variability.kmeans import Floats, Ints, cluster, silhouette

SIGMAS = 3.0
K_RANGE = range(2, 11)
ARTIFACT_K = 2
"""The artifact returns from inside its loop over k, so its "optimal k" is always the first."""


class Bins(NamedTuple):
    """Bins with rising levels; `labels` (n,) index into `levels` (k,)."""

    labels: Ints
    levels: Floats
    lone: Mask  # (n,), outliers that have a bin of their own

    @property
    def sf(self) -> Floats:
        """Binned slowdown of each GPU, (n,)."""
        return self.levels[self.labels]


def outliers(slowdown: Floats) -> Mask:
    """One-sided three-sigma rule with the sample SD (ddof 1)."""
    if len(slowdown) < 2:
        return np.zeros(len(slowdown), dtype=np.bool_)
    limit = float(slowdown.mean() + SIGMAS * slowdown.std(ddof=1))
    return slowdown > limit


def as_intended(slowdown: Sequence[float] | Floats) -> Bins:
    """`--method pal`: outliers apart, k by best silhouette over 2..10, sf relative to the median GPU.

    Raises ValueError without values.
    """
    data = np.asarray(slowdown, dtype=np.float64)
    lone = outliers(data)
    rest = data[~lone]
    found = cluster(rest, 1)
    best = -2.0
    for k in K_RANGE:
        if k <= len(np.unique(rest)) and k < len(rest):
            tried = cluster(rest, k)
            score = silhouette(rest, tried.labels)
            if score > best:
                found, best = tried, score
    labels = np.empty(len(data), dtype=np.int64)
    labels[~lone] = found.labels
    labels[lone] = found.k + np.arange(int(lone.sum()))
    levels = np.r_[found.centroids, data[lone]] / float(np.median(data))
    order = np.argsort(levels, kind="stable")
    return Bins(np.argsort(order, kind="stable")[labels], levels[order], lone)


def as_shipped(slowdown: Sequence[float] | Floats) -> Bins:
    """`--method pal-artifact`: k = 2 + number of outliers over all GPUs, sf relative to the median centroid.

    Raises ValueError without values.
    """
    data = np.asarray(slowdown, dtype=np.float64)
    found = cluster(data, ARTIFACT_K + int(outliers(data).sum()))
    levels = found.centroids / float(np.median(found.centroids))
    return Bins(found.labels, levels, np.zeros(len(data), dtype=np.bool_))
