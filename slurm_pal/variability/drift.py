# SPDX-License-Identifier: MIT
"""What happened to a GPU's level over its history: steps, drifts, transients.

Steps and transients come from the mechanism that decides which runs are believed
(track.py): a jump is held back until a second run agrees, and then it was a step; if the
next run is back where the others were, it was a transient. A change too slow or too small for
that shows only in all believed runs since the last step together: a slope, or one change of
level, that neither the noise of a run nor the usual wandering of GPUs over weeks explains.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, SweepObservation, sweeps
from slurm_pal.variability.track import Track, drift_variance, observe

STEP, DRIFT, TRANSIENT, UNCONFIRMED = "step", "drift", "transient", "unconfirmed"

MIN_RUNS = 5
MIN_SPAN_D = 14.0
MIN_CHANGE = 0.005  # a smaller drift over its whole span troubles nobody
DRIFT_SIGMAS = 4.0  # 1 in 16,000 by chance: a large site has as many series
MEMORY_D = 28.0  # of the wandering: values further apart than this are nearly independent
FLAGGED_D = 30.0  # a step or drift is a flag for this long after it was seen


class Finding(NamedTuple):
    """One event in the history of one GPU in one benchmark."""

    kind: str  # step, drift, transient or unconfirmed
    uuid: str
    sensitivity: str
    benchmark: str
    since_s: float  # Unix s of the first run that shows it; of a drift, of the first run of the slope
    seen_s: float  # Unix s of the run after which it was known
    change: float  # relative change in time: 0.021 is 2.1 % slower; of a drift, over its span
    sigmas: float  # the same, in standard deviations of chance


class BelievedRun(NamedTuple):
    """A believed run."""

    ts: float
    speed: float
    variance: float  # of one run


_FIELDS = len(BelievedRun._fields)
_TS, _SPEED = BelievedRun._fields.index("ts"), BelievedRun._fields.index("speed")


@dataclass(slots=True)
class Course:
    """The believed runs of one GPU in one group since the last step, and what happened before.

    There is one for each GPU and benchmark, so the runs are plain numbers, and nearly all share the empty tuple.
    """

    points: array[float] = field(default_factory=lambda: array("d"))  # ts, speed and variance, run after run
    events: tuple[Finding, ...] = ()

    def follow(self, before: Track | None, after: Track, seen: SweepObservation, params: Params) -> None:
        """Take in what `observe` made of one more run."""
        if after is before:  # not taken in
            return
        if before is None or seen.environment.changed_since(before.last.environment):
            self.points = array("d", _point(seen, params))
            return
        held_back = before.pending
        if after.pending is not None:  # not believed yet
            if before.runs == 1 and held_back is None and after.speed == seen.speed:
                self.points = array("d", _point(seen, params))  # the faster of two single runs is held
            return
        if held_back is None:
            self.points.extend(_point(seen, params))
        elif after.speed == seen.speed != before.speed:  # the held score was given up
            if held_back.ts > before.ts:
                level = (held_back.speed + seen.speed) / 2.0
                self._note(STEP, before, held_back, seen, level, params)
            self.points = array("d", (*_point(held_back, params), *_point(seen, params)))
        else:
            self._note(TRANSIENT, before, held_back, seen, held_back.speed, params)
            self.points.extend(_point(seen, params))

    def _note(
        self, kind: str, before: Track, first: SweepObservation, seen: SweepObservation, level: float, params: Params
    ) -> None:
        sd = _jump_sd(before, first, params)
        self.events += (_finding(kind, seen, first.ts, before.speed - level, sd),)


def _finding(kind: str, seen: SweepObservation, since_s: float, slower: float, sd: float) -> Finding:
    """`slower`: natural logarithm of the ratio of times, new to old."""
    group = seen.group
    sigmas = abs(slower) / sd
    return Finding(
        kind, seen.uuid, group.sensitivity, group.benchmark, since_s, seen.ts, math.exp(slower) - 1.0, sigmas
    )


def _point(seen: SweepObservation, params: Params) -> BelievedRun:
    return BelievedRun(seen.ts, seen.speed, max(params.repeatability, seen.noise) ** 2 / seen.weight)


def _jump_sd(before: Track, seen: SweepObservation, params: Params) -> float:
    wander = drift_variance(seen.ts - before.ts, params)
    return math.sqrt(before.variance + _point(seen, params).variance + wander)


def doubt(track: Track, params: Params) -> Finding | None:
    """The jump that waits for confirmation, if any."""
    first = track.pending
    if first is None:
        return None
    return _finding(UNCONFIRMED, first, first.ts, track.speed - first.speed, _jump_sd(track, first, params))


def drift_of(course: Course, last: SweepObservation, repeatability: float, params: Params) -> Finding | None:
    """What the runs since the last confirmed step show together: a drift, or a step too small to be seen at once.

    `repeatability`: relative SD of runs in the group. Generalised least squares of log speed on
    time. The covariance holds the noise of each run and the wandering given by `sigma_28d`, with
    a memory of 28 days: each GPU wanders about a level of its own. (A random walk, which bounds
    what is known of an old score, would excuse any slope over half a year.) A step is what one
    change of level explains better than a slope.
    """
    first, last_of = course.points[:_FIELDS], course.points[-_FIELDS:]
    span_d = (last_of[_TS] - first[_TS]) / DAY_S if first else 0.0
    if len(course.points) < MIN_RUNS * _FIELDS or span_d < MIN_SPAN_D:
        return None
    if abs(last_of[_SPEED] - first[_SPEED]) < MIN_CHANGE / 2.0:  # spares the algebra for nearly all GPUs
        return None
    points = [BelievedRun._make(course.points[i : i + _FIELDS]) for i in range(0, len(course.points), _FIELDS)]
    days = np.array([(p.ts - points[0].ts) / DAY_S for p in points])
    speed = np.array([p.speed - points[0].speed for p in points])
    covariance = _covariance(points, days, repeatability, params)
    slope = _fit(days / span_d, speed, covariance)
    if abs(math.expm1(-slope.change)) < MIN_CHANGE or abs(slope.change) < DRIFT_SIGMAS * slope.sd:
        return None
    levels = [_fit((days >= days[k]).astype(np.float64), speed, covariance) for k in range(2, len(points) - 1)]
    k = min(range(len(levels)), key=lambda i: levels[i].misfit)
    if levels[k].misfit < slope.misfit and abs(levels[k].change) > DRIFT_SIGMAS * levels[k].sd:
        found = _finding(STEP, last, points[k + 2].ts, -levels[k].change, levels[k].sd)
        return found._replace(seen_s=points[k + 3].ts)
    return _finding(DRIFT, last, points[0].ts, -slope.change, slope.sd)._replace(seen_s=points[-1].ts)


class _Fit(NamedTuple):
    """A level and one change of it, by generalised least squares."""

    change: float  # of log speed
    sd: float
    misfit: float  # chi square


def _covariance(points: Sequence[BelievedRun], days: Floats, repeatability: float, params: Params) -> Floats:
    noise = np.array([max(p.variance, repeatability**2) for p in points])
    apart = np.abs(np.subtract.outer(days, days)) / MEMORY_D
    wander = drift_variance(MEMORY_D * DAY_S, params) / (2.0 * (1.0 - math.exp(-1.0)))
    covariance: Floats = np.diag(noise) + wander * np.exp(-apart)
    return covariance


def _fit(shape: Floats, speed: Floats, covariance: Floats) -> _Fit:
    """speed = level + change * shape."""
    design = np.column_stack((np.ones_like(shape), shape))
    weighted = np.linalg.solve(covariance, design)
    inverse = np.linalg.inv(design.T @ weighted)
    found = inverse @ (weighted.T @ speed)
    rest = speed - design @ found
    return _Fit(float(found[1]), math.sqrt(float(inverse[1, 1])), float(rest @ np.linalg.solve(covariance, rest)))


def findings(history: Iterable[SweepObservation], params: Params | None = None) -> list[Finding]:
    """All events of one GPU in one group, oldest first; `history` in time order."""
    params = params or Params()
    course, track = Course(), None
    for seen in history:
        before, track = track, observe(track, seen, params)
        course.follow(before, track, seen, params)
    if track is None:
        return []
    now = [doubt(track, params), drift_of(course, track.last, params.repeatability, params)]
    return [*course.events, *(f for f in now if f)]


def of_records(records: Iterable[Record], now_s: float, params: Params | None = None) -> list[Finding]:
    """All events of one GPU in all its groups with a sensitivity class, by time."""
    params = params or Params()
    by_group: dict[Group, list[SweepObservation]] = {}
    for sweep in sweeps(records, now_s, params):
        for seen in sweep.observations:
            if seen.group.sensitivity:
                by_group.setdefault(seen.group, []).append(seen)
    found = [finding for _, history in sorted(by_group.items()) for finding in findings(history, params)]
    return sorted(found, key=lambda f: (f.seen_s, f.benchmark))


def of_group(
    group: Group, tracks: dict[str, Track], courses: dict[str, Course], repeatability: float, params: Params
) -> list[Finding]:
    """The events of all GPUs of a group."""
    found: list[Finding] = []
    for uuid, course in sorted(courses.items()):
        now = [doubt(tracks[uuid], params), drift_of(course, tracks[uuid].last, repeatability, params)]
        found += [*course.events, *(f for f in now if f)]
    return found


def flagged(finding: Finding, now_s: float) -> bool:
    """Whether a finding is a flag of its GPU now: a step or drift that was seen lately."""
    days = math.floor(now_s / DAY_S) - math.floor(finding.seen_s / DAY_S)
    return finding.kind in (STEP, DRIFT) and days <= FLAGGED_D
