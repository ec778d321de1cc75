# SPDX-License-Identifier: MIT
"""The score of one GPU over time: EWMA in log space, with jumps believed only when they repeat.

Public data show slow single runs (up to 2.8x) of GPUs whose other runs are healthy. So a
run that departs from the held score is kept aside until a second one agrees with it. What departs
follows from how much the runs of the group scatter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.runs import SweepObservation


class Track(NamedTuple):
    """What is held of one GPU in one group."""

    speed: float  # log scale, as in SweepObservation
    variance: float  # of the held speed, without drift
    ts: float  # of the newest observation that the held speed contains
    runs: int  # observations since the last reset
    pending: SweepObservation | None  # departs from the held speed, not confirmed yet
    recent: tuple[float, ...]  # newest steady observations, oldest first, believed or not
    last: SweepObservation


def observe(track: Track | None, seen: SweepObservation, params: Params, repeatability: float = 0.0) -> Track:
    """The track after one more observation. `repeatability`: relative SD of runs in the group, as far as known."""
    noise = max(params.repeatability, repeatability)
    changed = track is not None and seen.environment.changed_since(track.last.environment)
    if changed and track is not None and seen.ts < track.last.ts:
        return track  # sweeps overlap: what came in before was measured later, in the environment of today
    keep = params.quarantine_n if seen.weight == 1.0 else 0
    recent = (*(track.recent if track else ()), seen.speed)[-keep:] if keep else (track.recent if track else ())
    if track is None or changed:
        return _start(seen, 1, recent if track is None else recent[-1:], noise)
    pending = track.pending
    if _agree(track.speed, track.variance, track.ts, seen, noise, params):
        share = params.alpha * seen.weight
        return Track(
            speed=(1 - share) * track.speed + share * seen.speed,
            variance=(1 - share) ** 2 * track.variance + share**2 * variance_of(seen, noise),
            ts=max(track.ts, seen.ts),
            runs=track.runs + 1,
            pending=None,
            recent=recent,
            last=seen,
        )
    if pending and _agree(pending.speed, variance_of(pending, noise), pending.ts, seen, noise, params):
        return _start(seen, 2, recent, noise)
    if track.runs == 1 and pending is None and seen.speed > track.speed:
        # Two single runs contradict each other. Slow transients are common, fast ones are
        # not physical, so the faster run is held and the slower one must prove itself.
        doubtful = seen._replace(speed=track.speed, ts=track.ts, weight=1.0)
        return _start(seen, 1, recent, noise)._replace(pending=doubtful)
    return track._replace(recent=recent, last=seen, pending=seen)


def _start(seen: SweepObservation, runs: int, recent: tuple[float, ...], noise: float) -> Track:
    return Track(seen.speed, variance_of(seen, noise), seen.ts, runs, None, recent, seen)


def variance_of(seen: SweepObservation, noise: float) -> float:
    """Of one run; `noise`: relative SD of runs like it, unless the run itself reports more."""
    return max(noise, seen.noise) ** 2 / seen.weight


def _agree(speed: float, variance: float, ts: float, seen: SweepObservation, noise: float, params: Params) -> bool:
    apart = abs(seen.speed - speed)
    if apart <= params.jump:  # most runs: spares the arithmetic
        return True
    total = variance + variance_of(seen, noise) + drift_variance(seen.ts - ts, params)
    return apart <= params.jump_sigmas * math.sqrt(total)


def drift_variance(age_s: float, params: Params) -> float:
    """Variance that a score gains with age: a random walk, fitted to the 28-day figure."""
    per_day = max(0.0, params.sigma_28d**2 - params.repeatability**2) / 28.0
    return per_day * max(0.0, age_s) / DAY_S


def sigma(track: Track, at_s: float, params: Params) -> float:
    """Standard deviation of the held score at a moment, relative."""
    return math.sqrt(track.variance + drift_variance(at_s - track.ts, params))


def repeat_sd(track: Track) -> float | None:
    """Relative SD of this GPU's own runs, where there are enough of them: over sweeps, else within the last one.

    The median of such values over GPUs is that of all runs: few runs mostly look closer together than they are.
    """
    free = len(track.recent) - 1
    if free < 2:
        return track.last.repeat_cv
    mean = sum(track.recent) / len(track.recent)
    variance = sum((x - mean) ** 2 for x in track.recent) / free
    return math.sqrt(variance / (1.0 - 2.0 / (9.0 * free)) ** 3)  # median of chi square: Wilson and Hilferty 1931
