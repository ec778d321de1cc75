# SPDX-License-Identifier: MIT
"""How much GPUs differ, and how well a run repeats: the figures by which a benchmark is judged.

A benchmark is a fingerprint of GPUs when the spread between GPUs is far above the
spread of one GPU's runs, that is when ICC is near 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.variability.kmeans import Floats


class Spread(NamedTuple):
    """Figures of one benchmark over a group of GPUs. Slowdowns are relative to the median GPU."""

    gpus: int
    runs_per_gpu: float  # median
    whisker: float  # slowest minus fastest GPU inside the Tukey fences
    p1: float
    p99: float
    slowest: float
    within_cv_pct: float  # SD (ddof 1) over mean of one GPU's runs, median over GPUs
    between_sd_pct: float  # population SD of the slowdowns
    icc: float  # ICC(1): share of the variance of runs that lies between GPUs; nan without repeats


def slowdowns(values: Sequence[float] | Floats, is_time: bool) -> Floats:
    """Slowdown of each GPU from its value: 1.0 is the median GPU, larger is slower.

    `values` (n,) are times, or throughputs when `is_time` is false; all > 0.
    """
    data = np.asarray(values, dtype=np.float64)
    middle = float(np.median(data))
    return data / middle if is_time else middle / data


def measure(runs: Mapping[str, Sequence[float]], is_time: bool = True) -> Spread:
    """The figures from all runs of each GPU. Raises ValueError when there is no run."""
    groups = [r for r in runs.values() if len(r)]
    if not groups:
        raise ValueError("no run to measure the spread of")
    found, repeated = _moments(groups), [g for g in groups if len(g) >= 2]
    slow = slowdowns(found.median, is_time)
    q1, q3, p1, p99 = (float(np.quantile(slow, q)) for q in (0.25, 0.75, 0.01, 0.99))
    inside = slow[(slow >= q1 - 1.5 * (q3 - q1)) & (slow <= q3 + 1.5 * (q3 - q1))]
    many = found.runs >= 2
    cvs = 100 * np.sqrt(found.squares[many] / (found.runs[many] - 1)) / found.mean[many]
    return Spread(
        gpus=len(groups),
        runs_per_gpu=float(np.median(found.runs)),
        whisker=float(inside.max() - inside.min()),
        p1=p1,
        p99=p99,
        slowest=float(slow.max()),
        within_cv_pct=float(np.median(cvs)) if repeated else float("nan"),
        between_sd_pct=100 * float(slow.std()),
        icc=icc(repeated),
    )


class _Moments(NamedTuple):
    """Of each GPU's runs, (n,)."""

    runs: NDArray[np.int64]
    median: Floats
    mean: Floats
    squares: Floats  # sum of the squared distances from the mean


def _moments(groups: Sequence[Sequence[float] | Floats]) -> _Moments:
    """Of all GPUs with the same number of runs at once: thousands of numpy calls, one for each, take seconds."""
    runs = np.array([len(g) for g in groups], dtype=np.int64)
    found = _Moments(runs, *np.zeros((3, len(groups))))
    for size in np.unique(runs):
        at = np.flatnonzero(runs == size)
        values = np.array([groups[i] for i in at.tolist()], dtype=np.float64)
        mean = values.mean(axis=1)
        found.median[at], found.mean[at] = np.median(values, axis=1), mean
        found.squares[at] = ((values - mean[:, None]) ** 2).sum(axis=1)
    return found


def icc(groups: Sequence[Sequence[float] | Floats]) -> float:
    """ICC(1) by one-way analysis of variance with unequal group sizes; nan where undefined."""
    n, total = len(groups), sum(len(g) for g in groups)
    if n < 2 or total <= n:
        return float("nan")
    grand, found = float(np.concatenate(groups).mean()), _moments(groups)
    between = sum(len(g) * (mean - grand) ** 2 for g, mean in zip(groups, found.mean.tolist(), strict=True)) / (n - 1)
    within = sum(found.squares.tolist()) / (total - n)
    size = (total - sum(len(g) ** 2 for g in groups) / total) / (n - 1)
    denominator = between + (size - 1) * within
    return (between - within) / denominator if denominator > 0 else float("nan")
