# SPDX-License-Identifier: MIT
"""Variability classes of one group: how many, where, and who is in which.

The choice is made once and then held: a GPU changes class only when its score has
passed the boundary clearly, and boundaries move only when that explains much more.
Classes that flap would make every cached decision worthless.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slurm_pal.variability.flags import Mask, fast_outliers, slow_outliers
from slurm_pal.variability.kmeans import Clusters, Floats, Ints, cluster, silhouette
from slurm_pal.variability.params import Params
from slurm_pal.variability.slowdown import GroupSlowdowns

SILHOUETTE_GAIN = 0.05
"""Held classes are also given up for a partition whose silhouette is better by this much."""
GROWTH = 0.5
"""... and when the number of GPUs has changed by this share since they were made."""
FLAT_MARGIN = 1.1
"""Hysteresis of the choice between one class and several, as a factor on the spread."""


class Held(NamedTuple):
    """The classes of one group after a sweep; the next sweep starts from them."""

    centroids: tuple[float, ...]  # rising; slowdown relative to the median GPU
    members: dict[str, int]  # UUID -> class, for those that are not alone
    lone: frozenset[str]  # slow outliers: each is its own class, with its own slowdown
    flat: bool  # the GPUs differ by less than a few times the noise: one class, score 1.0
    fitted: int  # GPUs that the centroids were made from
    silhouette: float | None  # None with a single class


def choose(
    values: Floats, repeatability: float, params: Params, was_flat: bool | None = None
) -> tuple[Clusters | None, float | None]:
    """Clusters for the slowdowns (n,) of ordinary GPUs and their silhouette; None when flat.

    Smallest k in 2..min(8, n // 8) whose silhouette is within 0.02 of the best, among
    those with centroids at least 0.3 % apart; one cluster if there is none.
    """
    if params.k is not None:
        found = cluster(values, params.k)
        return found, silhouette(values, found.labels) if found.k > 1 else None
    margin = {None: 1.0, True: FLAT_MARGIN, False: 1 / FLAT_MARGIN}[was_flat]
    if float(values.std()) < params.spread_factor * repeatability * margin:
        return None, None
    tried: list[tuple[Clusters, float]] = []
    for k in range(2, min(params.k_max, len(values) // params.gpus_per_class) + 1):
        found = cluster(values, k)
        if found.k == k and float(np.diff(found.centroids).min()) >= params.min_gap:
            tried.append((found, silhouette(values, found.labels)))
    if not tried:
        return cluster(values, 1), None
    best = max(score for _, score in tried)
    return next((c, score) for c, score in tried if score >= best - params.silhouette_tolerance)


def step(
    held: Held | None, standing: GroupSlowdowns, unfit: frozenset[str], faulty: frozenset[str], params: Params
) -> Held | None:
    """The classes after a sweep, from those before it.

    `unfit` GPUs take part but do not shape the classes; `faulty` ones are treated like
    slow outliers. None when the group is too small for classes.
    """
    if standing.small:
        return None
    slow = standing.slowdown
    scale = standing.scale
    lone = _lone(held, standing, params) | np.array([u in faulty for u in standing.uuids])
    ordinary = ~lone & ~fast_outliers(slow, scale, params) & np.array([u not in unfit for u in standing.uuids])
    if not ordinary.any():  # everything is flagged: better classes of flagged GPUs than none
        ordinary = ~lone if not lone.all() else np.ones(len(slow), dtype=np.bool_)
    values = slow[ordinary]
    kept = held if held is not None and _still_good(held, values, standing.repeatability, params) else None
    if kept is None:
        found, score = choose(values, standing.repeatability, params, held.flat if held else None)
        centroids = (1.0,) if found is None else tuple(found.centroids.tolist())
        kept = Held(centroids, {}, frozenset(), found is None, len(values), score)
    labels = assign(slow, standing.uuids, kept, params)
    return kept._replace(
        members={u: int(labels[i]) for i, u in enumerate(standing.uuids) if not lone[i]},
        lone=frozenset(u for i, u in enumerate(standing.uuids) if lone[i]),
    )


def _lone(held: Held | None, standing: GroupSlowdowns, params: Params) -> Mask:
    """Slow outliers, with hysteresis for GPUs whose place is known."""
    slow, scale = standing.slowdown, standing.scale
    if held is None:
        return slow_outliers(slow, scale, params)
    shift = np.array(
        [params.hysteresis * ((u in held.lone) - (u in held.members)) for u in standing.uuids], dtype=np.float64
    )
    return slow_outliers(slow + shift, scale, params)


def _still_good(held: Held, values: Floats, repeatability: float, params: Params) -> bool:
    """Whether the held centroids explain the slowdowns about as well as new ones would."""
    if params.k is None and abs(len(values) - held.fitted) > GROWTH * held.fitted:
        return False
    found, score = choose(values, repeatability, params, held.flat)
    if held.flat or found is None:
        return held.flat and found is None
    labels = nearest(values, np.array(held.centroids))
    squares = float(((values - np.array(held.centroids)[labels]) ** 2).sum())
    if cluster(values, len(held.centroids)).squares < (1 - params.refit_gain) * squares:
        return False
    if params.k is not None or found.k == len(held.centroids):
        return True
    now = silhouette(values, labels) if len(np.unique(labels)) > 1 else -1.0
    return score is None or score <= now + SILHOUETTE_GAIN


def nearest(values: Floats, centroids: Floats) -> Ints:
    """Index of the nearest centroid for each value; a value on a boundary belongs below it."""
    return np.searchsorted((centroids[1:] + centroids[:-1]) / 2, values).astype(np.int64)


def assign(slowdown: Floats, uuids: tuple[str, ...], held: Held, params: Params) -> Ints:
    """Class of each GPU: the nearest centroid, but members leave only past the boundary + hysteresis."""
    centroids = np.array(held.centroids)
    labels = nearest(slowdown, centroids)
    old = np.array([held.members.get(u, -1) for u in uuids], dtype=np.int64)
    known = (old >= 0) & (old < len(centroids))
    up = known & (labels > old) & (nearest(slowdown - params.hysteresis, centroids) <= old)
    down = known & (labels < old) & (nearest(slowdown + params.hysteresis, centroids) >= old)
    return np.where(up | down, old, labels)
