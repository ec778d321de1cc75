"""How much GPUs differ, and how well a run repeats: the figures by which a benchmark is judged.

A benchmark is a fingerprint of GPUs when the spread between GPUs is far above the
spread of one GPU's runs, that is when ICC is near 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
    groups = [np.asarray(r, dtype=np.float64) for r in runs.values() if len(r)]
    if not groups:
        raise ValueError("no run to measure the spread of")
    slow = slowdowns([float(np.median(g)) for g in groups], is_time)
    q1, q3, p1, p99 = (float(np.quantile(slow, q)) for q in (0.25, 0.75, 0.01, 0.99))
    inside = slow[(slow >= q1 - 1.5 * (q3 - q1)) & (slow <= q3 + 1.5 * (q3 - q1))]
    cvs = [100 * g.std(ddof=1) / g.mean() for g in groups if len(g) >= 2]
    repeated = [g for g in groups if len(g) >= 2]
    return Spread(
        gpus=len(groups),
        runs_per_gpu=float(np.median([len(g) for g in groups])),
        whisker=float(inside.max() - inside.min()),
        p1=p1,
        p99=p99,
        slowest=float(slow.max()),
        within_cv_pct=float(np.median(cvs)) if cvs else float("nan"),
        between_sd_pct=100 * float(slow.std()),
        icc=icc(repeated),
    )


def icc(groups: Sequence[Floats]) -> float:
    """ICC(1) by one-way analysis of variance with unequal group sizes; nan where undefined."""
    n, total = len(groups), sum(len(g) for g in groups)
    if n < 2 or total <= n:
        return float("nan")
    grand = float(np.concatenate(groups).mean())
    between = sum(len(g) * (float(g.mean()) - grand) ** 2 for g in groups) / (n - 1)
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (total - n)
    size = (total - sum(len(g) ** 2 for g in groups) / total) / (n - 1)
    denominator = between + (size - 1) * within
    return (between - within) / denominator if denominator > 0 else float("nan")
