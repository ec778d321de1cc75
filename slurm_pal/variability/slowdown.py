# SPDX-License-Identifier: MIT
"""Slowdowns: each GPU against the median GPU of its group, and what age does to them.

slowdown = time on this GPU / median time over the group's GPUs; 1.0 is the median GPU,
larger is slower. Never a mean: one sick GPU would shift all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.flags import robust_scale
from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import DAY_S, TIME_UNITS, Params
from slurm_pal.variability.runs import Group
from slurm_pal.variability.spread import slowdowns
from slurm_pal.variability.track import Track, repeat_sd, sigma

ENOUGH_REPEATS = 8
"""Repeatability is measured once this many GPUs have repeated runs."""


class GroupSlowdowns(NamedTuple):
    """The GPUs of one group at one moment; arrays are (n_gpus,), in order of UUID."""

    uuids: tuple[str, ...]
    slowdown: Floats
    z: Floats  # (slowdown - 1) / scale
    scale: float  # robust sigma of the slowdowns
    repeatability: float  # relative SD of one GPU's runs
    small: bool  # too few GPUs: no median worth the name


def standing(group: Group, tracks: Mapping[str, Track], params: Params) -> GroupSlowdowns:
    """Slowdowns of the GPUs in `tracks`: those not too old, and what stands in for others (succession.py)."""
    uuids = tuple(sorted(tracks))
    is_time = group.unit in TIME_UNITS
    speeds = np.array([tracks[u].speed for u in uuids], dtype=np.float64)
    slow = slowdowns(np.exp(-speeds if is_time else speeds), is_time) if uuids else speeds
    scale = robust_scale(slow, params) if uuids else params.mad_floor
    return GroupSlowdowns(
        uuids=uuids,
        slowdown=slow,
        z=(slow - 1.0) / scale,
        scale=scale,
        repeatability=repeatability(tracks, params),
        small=len(uuids) < params.small_group,
    )


def repeatability(tracks: Mapping[str, Track], params: Params) -> float:
    """Relative SD of one GPU's runs: measured where runs were repeated, else the default.

    Never less than what the runs themselves report by their confidence intervals.
    """
    measured = [sd for sd in (repeat_sd(t) for t in tracks.values()) if sd is not None]
    base = params.repeatability
    if len(measured) >= ENOUGH_REPEATS:
        base = max(params.repeatability_floor, float(np.median(measured)))
    return max(base, float(np.median([t.last.noise for t in tracks.values()])) if tracks else 0.0)


def age_days(ts: float, now_s: float) -> int:
    """Age in calendar days (UTC): publishing twice on one day gives the same numbers."""
    return max(0, math.floor(now_s / DAY_S) - math.floor(ts / DAY_S))


def age_state(ts: float, now_s: float, params: Params) -> str:
    """`fresh`, `stale` or `unknown`."""
    age_d = age_days(ts, now_s)
    if age_d > params.unknown_after_d:
        return "unknown"
    return "stale" if age_d >= params.stale_after_d else "fresh"


def shrunk(slowdown: float, ts: float, now_s: float, params: Params) -> float:
    """A stale slowdown moved towards 1.0, exponentially with the days since it became stale."""
    over_d = age_days(ts, now_s) - params.stale_after_d
    scale_d = max(1.0, params.unknown_after_d - params.stale_after_d)
    return slowdown if over_d <= 0 else 1.0 + (slowdown - 1.0) * math.exp(-over_d / scale_d)


def confidence(track: Track, now_s: float, params: Params) -> float:
    """How far a score can be relied on, 0..1: 1 - sigma / (the change that counts as a jump).

    Half of it while a departing run waits for confirmation.
    """
    at_s = track.ts + age_days(track.ts, now_s) * DAY_S
    sure = min(1.0, max(0.0, 1.0 - sigma(track, at_s, params) / params.jump))
    return sure / 2 if track.pending else sure
