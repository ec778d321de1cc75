# SPDX-License-Identifier: MIT
"""The constants of scoring and classifying, as one table of data.

Shares are relative times: 0.01 is 1 %. The reasons are in docs/measuring.md.
"""

from __future__ import annotations

from typing import NamedTuple

DAY_S = 86400.0


class Params(NamedTuple):
    """How records become slowdowns, flags and classes."""

    method: str = "exact"  # or "pal", "pal-artifact" (see published.py)
    k: int | None = None  # number of classes of each group; None: chosen from the data

    # Age, days.
    stale_after_d: float = 30.0  # from here a score shrinks towards 1.0
    unknown_after_d: float = 90.0  # from here it is forgotten
    retention_d: float = 180.0  # records older than this take no part
    future_tolerance_s: float = 300.0  # clocks of two machines may differ by this much

    # Score over time.
    alpha: float = 0.6  # weight of a new run; best 90th percentile of error on Longhorn
    unsteady_weight: float = 0.25
    jump: float = 0.01  # a larger change must be confirmed by a second run ...
    jump_sigmas: float = 5.0  # ... if it is also larger than this many sigma of the GPU
    repeatability: float = 0.0012  # SD of one GPU's runs over weeks, where not measured
    repeatability_floor: float = 0.0006  # same-day SD: no run is known better than this
    sigma_28d: float = 0.0033  # total SD of a score that is 28 days old

    # Groups, outliers, flags.
    small_group: int = 4  # fewer GPUs than this have no median worth the name
    few_peers: int = 16  # fewer GPUs than this have one that is doubtful
    mad_floor: float = 0.002
    outlier_z: float = 5.0
    slow_z: float = 3.0
    slow: float = 1.05  # slower than this and beyond slow_z is an outlier as well
    degraded_duty: float = 0.01
    thermal_duty: float = 0.05
    noisy_cv_pct: float = 0.5
    capped_duty: float = 0.3  # a run met its power cap if the driver said so in this share of the looks ...
    capped_power: float = 0.97  # ... or if it drew this share of the limit in the median
    fault_power_share: float = 0.97  # slow and drawing less than this share of its peers: a fault
    quarantine_k: int = 2  # k slow runs, each of another sweep, ...
    quarantine_n: int = 4  # ... among the last n

    # Classes.
    k_max: int = 8
    gpus_per_class: int = 4
    explained: float = 0.9  # share of the variance between GPUs that classes are to explain
    min_gap: float = 0.003  # between neighbouring centroids ...
    gap_sigmas: float = 2.0  # ... and so many times the repeatability
    spread_factor: float = 1.25  # below this multiple of repeatability there is one class
    hysteresis: float = 0.0025
    refit_gain: float = 0.10  # share of the within-class squares that a refit must save
    max_lone_classes: int = 64  # outliers beyond this many share classes


TIME_UNITS = frozenset({"s", "ms", "us", "ns"})
"""Units in which less is better; every other unit is a throughput."""

PREFERRED = (
    "gemm_bf16", "gemm_bf16_cublas", "gemm_bf16_wgmma", "gemm_bf16_tcgen05", "gemm_fp16", "gemm_fp32", "gemm_tf32",
    "gemm_fp64",
    "tblock", "tblock_fp16", "hbm_triad", "hbm_copy", "gather", "spmv",
)  # fmt: skip
"""Which benchmark speaks for a sensitivity class when a GPU has several: the first of these."""


def preference(benchmark: str) -> tuple[int, str]:
    """Sort key: preferred benchmarks first, unknown ones by name."""
    return (PREFERRED.index(benchmark) if benchmark in PREFERRED else len(PREFERRED), benchmark)
