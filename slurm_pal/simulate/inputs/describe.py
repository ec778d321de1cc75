# SPDX-License-Identifier: MIT
"""A trace in a few figures: what to compare before believing a replay of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from slurm_pal.simulate.trace import Trace

_Value = TypeVar("_Value", int, str)

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def describe(trace: Trace) -> dict[str, Any]:
    """The figures of a trace, ready for JSON; those that need jobs are None without any.

    `gpu_hours` and `run_time_s` are on median GPUs of one node (`ideal_s`). `span_h` goes
    from the first submission to the last, `arrivals_per_h` counts those after the first.
    `sizes` and `classes` are shares of jobs.
    """
    jobs = trace.jobs
    gpus = np.array([job.shape.total for job in jobs], dtype=np.float64)
    run_s = np.array([job.ideal_s for job in jobs], dtype=np.float64)
    span_h = (jobs[-1].submit_s - jobs[0].submit_s) / 3600 if jobs else 0.0
    limits = [job.limit_s / job.ideal_s for job in jobs if job.limit_s]
    return {
        "name": trace.name,
        "jobs": len(jobs),
        "users": len({job.user for job in jobs if job.user}),
        "accounts": len({job.account for job in jobs if job.account}),
        "gpu_hours": float((gpus * run_s).sum()) / 3600,
        "gpus_mean": float(gpus.mean()) if jobs else None,
        "sizes": {str(size): share for size, share in _shares(job.shape.total for job in jobs).items()},
        "run_time_s": _distribution(run_s) if jobs else None,
        "span_h": span_h,
        "arrivals_per_h": (len(jobs) - 1) / span_h if span_h > 0 else None,
        "classes": _shares(job.sensitivity for job in jobs),
        "with_limit": len(limits) / len(jobs) if jobs else None,
        "limit_over_run_time_median": float(np.median(limits)) if limits else None,
        "bad": len(trace.bad),
        "skipped": dict(trace.skipped),
    }


def _shares(values: Iterable[_Value]) -> dict[_Value, float]:
    counts = Counter(values)
    total = sum(counts.values())
    return {value: counts[value] / total for value in sorted(counts)}


def _distribution(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    points = np.quantile(values, QUANTILES)
    named = {f"p{round(100 * q)}": float(point) for q, point in zip(QUANTILES, points, strict=True)}
    return {"mean": float(values.mean()), **named, "max": float(values.max())}
