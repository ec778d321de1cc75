# SPDX-License-Identifier: MIT
"""What happened to a GPU's level over its history: steps, drifts, transients.

A run that departs far from the held score is held back by track.py until a second one agrees; if the next run is back
where the others were, it was a transient. All believed runs since the last step are tested together after each run: do
they speak for one change of level, given the noise of a run and the usual wandering of GPUs over weeks? If so the step
is suspected, the GPU is to be measured again, and a run at the new level confirms it (a sequential test by likelihood
ratio). What a slope explains better is a drift.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from slurm_pal.variability.finding import DRIFT, STEP, TRANSIENT, UNCONFIRMED, Finding
from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import DAY_S, Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, SweepObservation, sweeps
from slurm_pal.variability.track import Track, drift_variance, observe, variance_of

MIN_RUNS = 5  # of a drift
MIN_SPAN_D = 14.0
MIN_DRIFT = 0.005  # a smaller drift over its whole span troubles nobody
DRIFT_SIGMAS = 4.0  # 1 in 16,000 by chance: a large site has as many series
STEP_SIZE = 0.015  # a step of this relative size is to be found, with runs as noisy as 0.5 %
SURE_ODDS = 7.0  # log of likelihood ratio, of such a step in any week to none, at which it is believed
SUSPECT_ODDS = 2.0  # from here another run is asked for
MOST_AFTER = 8  # ... unless so many are at the new level already: what is not known is the old one
PRIOR_D = 7.0  # the likelihood ratios of steps at any time are summed, each as often as the gap it may lie in has weeks
MOST_RUNS = 40  # since the last step; a multiple of 4. The algebra takes the third power of it
LOOK_SIGMAS = 2.0  # what is less by the quick look is no change by the algebra
MEMORY_D = 28.0  # of the wandering: values further apart than this are nearly independent
MIN_CHANGES = 6  # from run to run: of fewer a step may be the middle one
OTHER_CHANGES = 24  # how many of its own a GPU needs to be judged by its own scatter as much as by that of its group
BY_CHANCE = 2.0  # ratio of variances, its own to its group's, beyond which its own counts more and more
ODD_SIGMAS = 4.0  # by the median, which steps and transients do not spoil; larger changes are left out
CHANGES_TO_VARIANCE = 1.4826**2  # from the median of squares


class BelievedRun(NamedTuple):
    """A believed run."""

    ts: float
    speed: float
    variance: float  # of one run


_FIELDS, _SPEED = len(BelievedRun._fields), BelievedRun._fields.index("speed")


@dataclass(slots=True)
class Course:
    """The believed runs of one GPU in one group since the last step, and what happened before.

    There is one for each GPU and benchmark, so the runs are plain numbers, and nearly all share the empty tuple.
    """

    points: array[float] = field(default_factory=lambda: array("d"))  # ts, speed and variance, run after run
    events: tuple[Finding, ...] = ()
    suspected: bool = False  # a step, by the newest run

    def scatter(self, usual: float, params: Params) -> float:
        """Relative SD of a run of this GPU; `usual`: of runs in its group."""
        return scatter(np.diff(self.points[_SPEED::_FIELDS]).tolist(), usual, params)

    def follow(
        self, before: Track | None, after: Track, seen: SweepObservation, repeatability: float, params: Params
    ) -> None:
        """Take in what `observe` made of one more run. `repeatability`: relative SD of runs in the group."""
        if after is before:  # not taken in
            return
        self.suspected = False
        if before is None or seen.environment.changed_since(before.last.environment):
            self.points = array("d", _point(seen, params))
            return
        held_back = before.pending
        if after.pending is not None:  # not believed yet
            if before.runs == 1 and held_back is None and after.speed == seen.speed:
                self.points = array("d", _point(seen, params))  # the faster of two single runs is held
            return
        if held_back is not None:
            kept = after.speed != seen.speed or after.speed == before.speed
            far = _jump(TRANSIENT, before, held_back, self.scatter(repeatability, params), params)
            if kept and far.sigmas > params.jump_sigmas:
                self.events += (far._replace(seen_s=seen.ts),)
            elif kept or held_back.ts > before.ts:  # by the noise of its group it was not far away
                self._insert(_point(held_back, params))
            else:  # two runs agree against the single one that was held
                self.points = array("d", _point(held_back, params))
        self._insert(_point(seen, params))
        if len(self.points) > MOST_RUNS * _FIELDS:
            self.points = _thinned(self.points)
        found = _change_of(self, seen, repeatability, params)
        if found is not None and found[0].kind == STEP:
            self.events += (found[0],)
            del self.points[: found[1] * _FIELDS]
        self.suspected = found is not None and found[0].kind == UNCONFIRMED

    def _insert(self, run: BelievedRun) -> None:
        """In order of time: a run that was held back may be older than what is there, and sweeps overlap."""
        place = len(self.points)
        while place and self.points[place - _FIELDS] > run.ts:
            place -= _FIELDS
        self.points[place:place] = array("d", run)


def _finding(kind: str, seen: SweepObservation, since_s: float, slower: float, sd: float) -> Finding:
    """`slower`: natural logarithm of the ratio of times, new to old."""
    group = seen.group
    sigmas = abs(slower) / sd
    return Finding(
        kind, seen.uuid, group.sensitivity, group.benchmark, since_s, seen.ts, math.exp(slower) - 1.0, sigmas
    )


def _point(seen: SweepObservation, params: Params) -> BelievedRun:
    return BelievedRun(seen.ts, seen.speed, variance_of(seen, params.repeatability))


def _thinned(points: array[float]) -> array[float]:
    """The older half of the runs in pairs: each with the mean speed, and the time of the first, as one run."""
    half = MOST_RUNS // 2 * _FIELDS
    old, found = points[:half], array("d")
    for i in range(0, half, 2 * _FIELDS):
        one, other = (BelievedRun._make(old[k : k + _FIELDS]) for k in (i, i + _FIELDS))
        found.extend(BelievedRun(one.ts, (one.speed + other.speed) / 2.0, max(one.variance, other.variance)))
    return found + points[half:]


def _jump(kind: str, before: Track, seen: SweepObservation, repeatability: float, params: Params) -> Finding:
    """How far one run is from the held score."""
    noise = max(params.repeatability, repeatability)
    variance = before.variance + variance_of(seen, noise) + drift_variance(seen.ts - before.ts, params)
    return _finding(kind, seen, seen.ts, before.speed - seen.speed, math.sqrt(variance))


def _change_of(
    course: Course, last: SweepObservation, repeatability: float, params: Params
) -> tuple[Finding, int] | None:
    """What the runs since the last step show together, the newest one being `last`, and the first run that shows it.

    A step, which is sure, UNCONFIRMED where it is not, or a drift: whatever explains the runs best. A step is confirmed
    by at least two runs, of which the newest is nearer to the new level than to the old one.
    """
    if not course.points or not _looks_changed(course.points[_SPEED::_FIELDS], repeatability, params):
        return None
    ts, speed, variance = np.array(course.points).reshape(-1, _FIELDS).T
    days = (ts - ts[0]) / DAY_S
    fits = _fitted(days, speed - speed[0], variance, repeatability, params)
    for first in _by_misfit(fits, days):
        change, sd = float(fits.change[first]), float(fits.sd[first])
        found = _finding(STEP if first else DRIFT, last, float(ts[first]), -change, sd)
        if first == 0:
            if abs(found.change) >= MIN_DRIFT and found.sigmas >= DRIFT_SIGMAS:
                return found, first
            continue
        reached = (speed[-1] - speed[0] - float(fits.before[first])) / change  # 0: the old level, 1: the new one
        odds = _odds(fits, days, math.copysign(1.0, change))
        if reached < 0.5 or odds < SUSPECT_ODDS or (first == 1 and abs(change) <= params.jump):
            return None
        after = len(ts) - first
        sure = odds >= SURE_ODDS and after > 1
        if not sure and after > MOST_AFTER:
            return None
        return found._replace(kind=STEP if sure else UNCONFIRMED), first
    return None


def _odds(fits: _Fits, days: Floats, sign: float) -> float:
    """Logarithm of the likelihood ratio of a step of STEP_SIZE at an unknown time to none: the sum over all times."""
    with np.errstate(divide="ignore"):
        weeks = np.log(np.diff(days) / PRIOR_D)
    each = (sign * fits.change[1:] - STEP_SIZE / 2.0) * STEP_SIZE / fits.sd[1:] ** 2 + weeks
    return float(np.logaddexp.reduce(each))


def _by_misfit(fits: _Fits, days: Floats) -> list[int]:
    """The best explanations: the slope, where the runs are enough for one and it is better, and the best step."""
    step = 1 + int(np.argmin(fits.misfit[1:]))
    long = len(days) >= MIN_RUNS and days[-1] >= MIN_SPAN_D
    return [0, step] if long and fits.misfit[0] <= fits.misfit[step] else [step]


def _looks_changed(speeds: array[float], repeatability: float, params: Params) -> bool:
    """A quick look that spares the algebra for nearly all GPUs: as if neighbouring runs were independent."""
    n, total, after, newest = len(speeds), sum(speeds), 0.0, speeds[-1]
    least = LOOK_SIGMAS**2 * (repeatability**2 + _wandering(params))
    for k in range(1, n):
        after += speeds[-k]
        before = (total - after) / (n - k)
        apart = after / k - before
        if apart * apart * k * (n - k) > least * n and (newest - before) / apart > 0.5:
            return n > 2
    return False


def _wandering(params: Params) -> float:
    """Variance of a GPU's level about a level of its own."""
    return drift_variance(MEMORY_D * DAY_S, params) / (2.0 * (1.0 - math.exp(-1.0)))


class _Fits(NamedTuple):
    """A level and one change of it, by generalised least squares: at 0 a slope, at k a step before run k; (n_runs,)."""

    change: Floats  # of log speed
    sd: Floats
    misfit: Floats  # chi square
    before: Floats  # the level without the change


def _fitted(days: Floats, speed: Floats, variance: Floats, repeatability: float, params: Params) -> _Fits:
    """The covariance holds the noise of each run and the wandering given by `sigma_28d`, with a memory of 28 days.

    Each GPU wanders about a level of its own: a random walk, which bounds what is known of an old score, would excuse
    any change over half a year.
    """
    noise = scatter(np.diff(speed).tolist(), repeatability, params)
    wandered = _wandering(params) * (1.0 - math.exp(-float(np.median(np.diff(days))) / MEMORY_D))  # from run to run
    noise = math.sqrt(max(params.repeatability_floor**2, noise**2 - wandered))
    apart = np.exp(-np.abs(np.subtract.outer(days, days)) / MEMORY_D)
    weights = np.linalg.inv(np.diag(np.maximum(variance, noise**2)) + _wandering(params) * apart)
    shapes = np.triu(np.ones((len(days), len(days))))
    shapes[0] = days / max(days[-1], 1.0)
    sums = weights.sum(axis=0)
    total, mean = float(sums.sum()), float(sums @ speed) / float(sums.sum())
    level = shapes @ sums  # of each shape against a level
    power = np.maximum(((shapes @ weights) * shapes).sum(axis=1) - level**2 / total, 1e-9)  # 0: runs at one time
    change = (shapes @ (weights @ speed) - level * mean) / power
    misfit = float(speed @ weights @ speed) - total * mean**2 - change**2 * power
    return _Fits(change, 1.0 / np.sqrt(power), misfit, mean - change * level / total)


def scatter(changes: Sequence[float], usual: float, params: Params) -> float:
    """Relative SD of a run by changes of log speed from run to run, of which few may be odd.

    `usual` counts as much as OTHER_CHANGES of them, and less where they scatter by far more: that is no chance.
    The wandering from one run to the next is in it.
    """
    if len(changes) < MIN_CHANGES:
        return usual
    squares = np.square(changes)
    ordinary = squares[squares <= ODD_SIGMAS**2 * CHANGES_TO_VARIANCE * float(np.median(squares))]
    own = float(ordinary.mean()) / 2.0
    others = OTHER_CHANGES * min(1.0, BY_CHANCE * usual**2 / max(own, 1e-30)) ** 2
    share = len(changes) / (len(changes) + others)
    variance = (1.0 - share) * usual**2 + share * own
    return max(params.repeatability_floor, math.sqrt(variance))


def scatter_of(tracks: Iterable[Track], params: Params) -> float:
    """The same of a group of GPUs, by the newest runs of each."""
    changes = [b - a for track in tracks for a, b in pairwise(track.recent)]
    return scatter(changes, params.repeatability, params)


def findings(history: Iterable[SweepObservation], params: Params | None = None) -> list[Finding]:
    """All events of one GPU in one group, oldest first; `history` in time order."""
    params = params or Params()
    course, track, changes, repeatability = Course(), None, list[float](), params.repeatability
    for seen in history:
        changes += [] if track is None else [seen.speed - track.last.speed]
        repeatability = scatter(changes, params.repeatability, params)
        before, track = track, observe(track, seen, params, course.scatter(repeatability, params))
        course.follow(before, track, seen, repeatability, params)
    return [] if track is None else _known(track, course, repeatability, params)


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
    tracks: dict[str, Track], courses: dict[str, Course], repeatability: float, params: Params
) -> list[Finding]:
    """The events of all GPUs of a group."""
    found: list[Finding] = []
    for uuid, course in sorted(courses.items()):
        found += _known(tracks[uuid], course, repeatability, params)
    return found


def _known(track: Track, course: Course, repeatability: float, params: Params) -> list[Finding]:
    """What has happened, what is going on, and what waits for confirmation: one run far away, or a suspected step."""
    found = list(course.events)
    change = _change_of(course, track.last, repeatability, params)
    if track.pending is not None:
        found.append(_jump(UNCONFIRMED, track, track.pending, repeatability, params))
    if change is not None and (track.pending is None or change[0].kind != UNCONFIRMED):
        found.append(change[0])
    return found
