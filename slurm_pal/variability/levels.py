# SPDX-License-Identifier: MIT
"""One list of classes v0, v1, ... per sensitivity class, from the classes of all its groups.

Readers see one number per GPU and sensitivity class, which indexes one list of levels;
a cluster with several GPU models has several groups, each with its own classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.kmeans import cluster
from slurm_pal.variability.params import Params

MAX_LEVELS = 255
"""The snapshot keeps class numbers in a byte, and 255 means no class."""


class Level(NamedTuple):
    """One class of one group before numbering."""

    value: float  # slowdown relative to the group's median GPU
    group: int  # which group, any numbering
    gpus: int  # how many GPUs are in it
    lone: bool  # a single outlier


def number(levels: Sequence[Level], params: Params) -> tuple[list[int], list[float]]:
    """Number the levels by rising value: (class number of each level, value of each class).

    Classes of different groups that are closer than the smallest gap share a number, since
    nothing distinguishes them in placement. At most `max_lone_classes` (64) numbers go to
    outliers: beyond that, neighbouring outliers share one.
    """
    shared = _share([i for i, level in enumerate(levels) if not level.lone], levels, params)
    alone = _fold([[i] for i, level in enumerate(levels) if level.lone], levels, params.max_lone_classes)
    shared = _fold(shared, levels, MAX_LEVELS - params.max_lone_classes)
    classes = sorted((_value(members, levels), members) for members in (*shared, *alone))
    numbers = [0] * len(levels)
    for position, (_, members) in enumerate(classes):
        for i in members:
            numbers[i] = position
    return numbers, [value for value, _ in classes]


def _share(positions: list[int], levels: Sequence[Level], params: Params) -> list[list[int]]:
    """Classes of different groups that nearly coincide, put together."""
    classes: list[list[int]] = []
    for i in sorted(positions, key=lambda i: (levels[i].value, levels[i].group)):
        near = classes and levels[i].value - levels[classes[-1][0]].value < params.min_gap
        if near and all(levels[j].group != levels[i].group for j in classes[-1]):
            classes[-1].append(i)
        else:
            classes.append([i])
    return classes


def _fold(classes: list[list[int]], levels: Sequence[Level], limit: int) -> list[list[int]]:
    """At most `limit` classes, by exact k-means over their values; equal values always share."""
    if not classes:
        return []
    found = cluster([_value(members, levels) for members in classes], limit)
    folded: list[list[int]] = [[] for _ in range(found.k)]
    for label, members in zip(found.labels.tolist(), classes, strict=True):
        folded[label].extend(members)
    return folded


def _value(members: list[int], levels: Sequence[Level]) -> float:
    """The level that stands for several: their mean, weighted by GPUs (exact for a single one)."""
    values = [levels[i].value for i in members]
    if len(set(values)) == 1:
        return values[0]
    return float(np.average(values, weights=[max(1, levels[i].gpus) for i in members]))
