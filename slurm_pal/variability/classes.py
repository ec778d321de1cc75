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
from slurm_pal.variability.kmeans import Clusters, Floats, Ints, cluster
from slurm_pal.variability.params import Params
from slurm_pal.variability.slowdown import GroupSlowdowns

GROWTH = 0.5
"""Held classes are given up when the number of GPUs has changed by this share since they were made, ..."""
SLACK = 0.02
"""... and when the number of classes is wrong even if so much less, or more, of the variance is to be explained ..."""
GAP_SLACK = 1.1
"""... and centroids may be closer, or must be further apart, by this factor."""


class Held(NamedTuple):
    """The classes of one group after a sweep; the next sweep starts from them."""

    centroids: tuple[float, ...]  # rising; slowdown relative to the median GPU
    members: dict[str, int]  # UUID -> class, for those that are not alone
    lone: frozenset[str]  # slow outliers: each is its own class, with its own slowdown
    flat: bool  # one class, since the GPUs differ too little for more
    fitted: int  # GPUs that the centroids were made from
    explained: float  # share of the variance between them that the centroids explain
    icc: float = 1.0  # share of the variance between scores that is of the GPUs; the rest is noise of the runs


class _Fit(NamedTuple):
    """The best partition into k classes."""

    found: Clusters
    explained: float
    gap: float  # between the closest centroids


def choose(values: Floats, repeatability: float, params: Params) -> tuple[Clusters, float]:
    """Clusters for the slowdowns (n,) of ordinary GPUs, and the share of the variance that they explain.

    The fewest classes that explain 90 % of it. Not more than 8, of 4 GPUs each on average, with centroids at
    least 0.3 % and twice the repeatability apart: if these do not explain so much, then as many as that allows.
    One where the GPUs differ hardly more than the runs of one.
    """
    if params.k is not None:
        forced = _fit(values, params.k)
        return forced.found, forced.explained
    fit = _pick(_fits(values, params), repeatability, params)
    return fit.found, fit.explained


def _fit(values: Floats, k: int) -> _Fit:
    found = cluster(values, k)
    total = float(((values - values.mean()) ** 2).sum())
    gap = float(np.diff(found.centroids).min()) if found.k > 1 else np.inf
    return _Fit(found, 1.0 - found.squares / total if total > 0.0 else 1.0, gap)


def _fits(values: Floats, params: Params) -> list[_Fit]:
    """The partitions that come into question, with a rising number of classes."""
    fits = [_fit(values, 1)]
    most = max(2, len(values) // params.gpus_per_class) if len(values) >= params.small_group else 1
    for k in range(2, min(params.k_max, most) + 1):
        if fits[-1].explained >= params.explained + SLACK:
            break
        fit = _fit(values, k)
        if fit.found.k < k:
            break
        fits.append(fit)
    return fits


def _pick(fits: list[_Fit], repeatability: float, params: Params, slack: float = 0.0, closer: float = 1.0) -> _Fit:
    one = fits[0].found
    if closer * np.sqrt(one.squares / len(one.labels)) < params.spread_factor * repeatability:
        return fits[0]  # else a single GPU that noise has set apart would be a class
    apart = max(params.min_gap, params.gap_sigmas * repeatability) / closer
    allowed = [fit for fit in fits if fit.gap >= apart]
    return next((fit for fit in allowed if fit.explained >= params.explained + slack), allowed[-1])


def icc_of(values: Floats, repeatability: float) -> float:
    """The share of the variance between scores that is not noise of the runs; 0..1."""
    variance = float(values.var())
    return max(0.0, 1.0 - repeatability**2 / variance) if variance > 0.0 else 0.0


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
    lone = _lone(held, standing, params) | np.array([u in faulty for u in standing.uuids])
    fast = fast_outliers(standing.relative, standing.scale, params)
    ordinary = ~lone & ~fast & np.array([u not in unfit for u in standing.uuids])
    if not ordinary.any():  # everything is flagged: better classes of flagged GPUs than none
        ordinary = ~lone if not lone.all() else np.ones(len(slow), dtype=np.bool_)
    values = slow[ordinary]
    kept = held if held is not None and _still_good(held, values, standing.repeatability, params) else None
    if kept is None:
        found, explained = choose(values, standing.repeatability, params)
        flat = found.k == 1 and params.k is None
        centroids = (1.0,) if flat else tuple(found.centroids.tolist())
        kept = Held(centroids, {}, frozenset(), flat, len(values), explained)
    labels = assign(slow, standing.uuids, kept, params)
    return kept._replace(
        members={u: int(labels[i]) for i, u in enumerate(standing.uuids) if not lone[i]},
        lone=frozenset(u for i, u in enumerate(standing.uuids) if lone[i]),
        icc=icc_of(values, standing.repeatability),
    )


def _lone(held: Held | None, standing: GroupSlowdowns, params: Params) -> Mask:
    """Slow outliers among their kind, with hysteresis for GPUs whose place is known."""
    relative, scale, slow_z = standing.relative, standing.scale, standing.slow_z
    if held is None:
        return slow_outliers(relative, scale, slow_z, params)
    shift = np.array(
        [params.hysteresis * ((u in held.lone) - (u in held.members)) for u in standing.uuids], dtype=np.float64
    )
    return slow_outliers(relative + shift, scale, slow_z, params)


def _still_good(held: Held, values: Floats, repeatability: float, params: Params) -> bool:
    """Whether the held centroids explain the slowdowns about as well as new ones would."""
    k = len(held.centroids)
    if params.k is None:
        if abs(len(values) - held.fitted) > GROWTH * held.fitted:
            return False
        fits = _fits(values, params)
        fewest = _pick(fits, repeatability, params, -SLACK, 1.0 / GAP_SLACK)
        most = _pick(fits, repeatability, params, SLACK, GAP_SLACK)
        if not fewest.found.k <= k <= most.found.k:
            return False
        if held.flat:
            return True
    labels = nearest(values, np.array(held.centroids))
    squares = float(((values - np.array(held.centroids)[labels]) ** 2).sum())
    found = cluster(values, k if params.k is None else params.k)
    return (params.k is None or found.k == k) and found.squares >= (1 - params.refit_gain) * squares


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
