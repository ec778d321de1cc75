# SPDX-License-Identifier: MIT
"""What running jobs teach: their own pace, GPUs that became slow since they were measured, what moves brought.

Pure. A time factor is (slowdown x locality), 1.0 for median GPUs of one node. The `slowdown` of
an observation comes from the published scores, never from `corrected` ones: else what was
learnt would hide its own cause, and the next tick would unlearn it.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, isnan, log
from statistics import median, median_low
from typing import NamedTuple

from slurm_pal.base.cluster import Gpu
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.journal.journal import Move, Observation, Sample
from slurm_pal.journal.move_states import CARRIED_OUT, MoveOutcome
from slurm_pal.moves import work_fit
from slurm_pal.moves.work_fit import FittedWork
from slurm_pal.placement.penalties import Penalties, completed
from slurm_pal.store.snapshot import Snapshot, changeable, known_class

SHORTEST_S = 2.0
"""The least time between two looks: jobs report the time in whole seconds."""
NEWEST_SHARE = 0.3  # of the newest value in a running mean
MOST_CHANGE = 2.0  # bounds of one look relative to the mean: clocks jump
COHERENT = 0.15  # jobs of one name do the same work when half of them agree so well (difference of logarithms)
OTHER_WORK = 2.0  # a job slower or faster by this factor than others of its name does other work
CLEAR = 1.05  # up to here a job runs as fast as predicted, and so do its GPUs
CLEARED_S = 86400.0  # how long that speaks for a GPU
SLOW, SLOW_SAMPLES, SLOW_JOBS, SLOW_USERS = 1.10, 3.0, 2, 2
MOST_CORRECTION = 2.0
BELIEVED_S = 2 * 86400.0  # how long a report on a GPU counts for jobs of others
LEAST_VOTES = 3  # below this number of users the prior assumption has a vote, too
PRIOR_MOVES = 4  # moves that weigh as much as the prior assumption
ABSURD = 1e7  # bounds of a step, s
MOST_LEVELS = 16
LONGEST = 3.0  # times the median: the most that one move counts for
LEAST_CALIBRATION, MOST_CALIBRATION = 0.25, 1.5
WORST_OBSERVED = 0.5  # a job that became twice as slow counts in full, one beyond that no more
FAILED = frozenset({MoveOutcome.ELSEWHERE, MoveOutcome.ABANDONED})

_COUNT = re.compile(r"\d{1,15}")
_TIME = re.compile(r"\d{1,12}(\.\d{1,6})?")


# -- the pace of one job ---------------------------------------------------------------------


def sample(word: Mapping[str, str], job: SlurmJob) -> Sample | None:
    """The progress in a job's `pal:it=` word; None for one that cannot be read or is of an earlier incarnation."""
    texts = word.get("it", ""), word.get("at", ""), word.get("r", "")
    if not (_COUNT.fullmatch(texts[0]) and _TIME.fullmatch(texts[1]) and texts[2] == str(job.restarts)):
        return None
    return Sample(job.job_id, job.restarts, int(texts[0]), float(texts[1]))


def step_time(previous: Sample | None, word: Mapping[str, str], job: SlurmJob) -> float | None:
    """Seconds per iteration between the look before and this one.

    None where there is nothing to compare: no look before, another incarnation, no new
    iteration, or a clock that did not go on. Both times are by the clock of the job's node.
    """
    now = sample(word, job)
    if previous is None or now is None or previous[:2] != now[:2]:
        return None
    passed_s, done = now.at_s - previous.at_s, now.iteration - previous.iteration
    return passed_s / done if done > 0 and passed_s >= SHORTEST_S else None


def smoothed(before_s: float | None, step_s: float) -> float:
    """The running mean of step times, s; the newest look counts for `NEWEST_SHARE`."""
    if before_s is None or not before_s > 0:
        return step_s
    bounded_s = min(max(step_s, before_s / MOST_CHANGE), before_s * MOST_CHANGE)
    return (1.0 - NEWEST_SHARE) * before_s + NEWEST_SHARE * bounded_s


def remaining_s(word: Mapping[str, str], step_s: float) -> float | None:
    """Seconds to go at this pace; None where the job does not state its number of iterations."""
    done, total = word.get("it", ""), word.get("of", "")
    if not (_COUNT.fullmatch(done) and _COUNT.fullmatch(total)):
        return None
    return max(0, int(total) - int(done)) * step_s


# -- what jobs report of GPUs -------------------------------------------------------------------


class Residual(NamedTuple):
    """How much slower jobs of one sensitivity class found one GPU than it is believed to be, since it was measured."""

    factor: float  # observed over predicted time: median over users of the running mean of each; 1.0: as believed
    samples: float  # number of looks; one that other GPUs may explain counts in part
    slow_jobs: frozenset[int]  # jobs that found it slower than believed
    slow: bool  # whether it became slow, by several looks, jobs and users


class Corrections(NamedTuple):
    """What observations add to the published scores."""

    jobs: dict[int, float]  # job -> its time factor where it is by its own steps; absent: nothing to compare with
    sensitivity: dict[str, float]  # key -> exponent on predicted factors; 0: not felt, 1: as predicted
    base_s: dict[str, float]  # key -> step time on median GPUs of one node
    gpus: dict[tuple[Gpu, str], Residual]  # by GPU and sensitivity class
    penalties: dict[str, Penalties] = {}  # key -> locality penalties, where step times show that of some level

    @property
    def exposed(self) -> tuple[tuple[Gpu, float], ...]:
        """GPUs that became slow since they were measured, worst first; the factor of the class that feels it most."""
        most: dict[Gpu, float] = {}
        for (gpu, _), seen in self.gpus.items():
            if seen.slow:
                most[gpu] = max(most.get(gpu, 0.0), min(seen.factor, MOST_CORRECTION))
        return tuple(sorted(most.items(), key=lambda pair: (-pair[1], pair[0])))


class _Group(NamedTuple):
    """Observations of jobs that do the same work."""

    seen: tuple[Observation, ...]
    work: FittedWork

    def ratio(self, one: Observation) -> float:
        """Observed over predicted time; the prediction is as this work feels it."""
        return one.step_s / self.work.predicted_s(one)

    @property
    def coherent(self) -> bool:
        return median(abs(log(self.ratio(one))) for one in self.seen) <= COHERENT


def corrections(
    observations: Iterable[Observation],
    snapshot: Snapshot | None = None,
    users: int = SLOW_USERS,
    since_s: float = -inf,
    expected: Penalties = (1.0,),
    ratios: Mapping[int, float] = {},
) -> Corrections:
    """Learn by comparing jobs of one key on GPUs of one model. Pure.

    With `snapshot`, observations of a GPU before its newest measurement are left out, since its score
    has them; so are those before `since_s`. A GPU became slow only when this number of `users`
    (first word of the key) and half of all users who reported on it found it so, each by the mean of
    their own jobs: a job can report anything, and nobody may keep others off a good GPU. `users` is 1
    for a user who steers only their own jobs. `expected` and `ratios` are what is known of locality penalties
    (placement/penalties.py).
    """
    sound = [
        one for one in observations
        if 1 / ABSURD < one.step_s < ABSURD and 1 / ABSURD < one.slowdown < ABSURD and 0 <= one.level < MOST_LEVELS
    ]  # fmt: skip
    several = snapshot is not None and len(set(snapshot.columns["model"])) > 1
    by_key: dict[str, list[Observation]] = defaultdict(list)
    alike: dict[tuple[str, frozenset[int]], list[Observation]] = defaultdict(list)
    for one in sorted(sound, key=lambda one: (one.at_s, one.job_id, one.restarts)):
        by_key[one.key].append(one)
        alike[one.key, _models(one, snapshot) if several else frozenset()].append(one)
    groups = [group for seen in alike.values() for group in _groups(seen, expected)]
    jobs: dict[int, float] = {}
    votes: list[tuple[Observation, float]] = []
    for group in groups:
        for one in group.seen:
            ratio = group.ratio(one)
            if 1 / OTHER_WORK < ratio < OTHER_WORK:
                jobs[one.job_id] = one.step_s / group.work.base_s
                votes.append((one, ratio))
    whole = {group.seen[0].key: group for group in groups if len(by_key[group.seen[0].key]) == len(group.seen)}
    votes.sort(key=lambda pair: pair[0].at_s)
    levels = {key: work_fit.known(group.work, group.seen) for key, group in whole.items()}
    return Corrections(
        jobs,
        {key: group.work.sensitivity for key, group in whole.items()},
        {key: group.work.base_s for key, group in whole.items()},
        _residuals(votes, snapshot, users, since_s),
        {key: completed(known, ratios, expected) for key, known in levels.items() if known},
    )


def key_of(user: str, name: str, gpus: int, sensitivity: str) -> str:
    """The key of jobs that should take the same time per step."""
    return f"{user} {name} {gpus} {sensitivity}"


def work_of(key: str) -> tuple[str, str, int]:
    """(user, job name, GPUs) of a key; a job name may hold blanks."""
    user, _, rest = key.partition(" ")
    name, gpus, _ = rest.rsplit(" ", 2)
    return user, name, int(gpus)


def _models(one: Observation, snapshot: Snapshot | None) -> frozenset[int]:
    """The models of its GPUs: predictions are relative to one, so step times on another model show nothing."""
    rows = [snapshot.row(node, k) for node, k in one.gpus] if snapshot is not None else []
    return frozenset(int(snapshot.columns["model"][row]) for row in rows if row is not None and snapshot is not None)


def _groups(seen: Sequence[Observation], expected: Penalties) -> list[_Group]:
    """The observations of one key as one group, or job by job where jobs of one name do different work.

    One observation alone shows nothing, nor does a job that contradicts itself.
    """
    if len(seen) < 2:
        return []
    group = _Group(tuple(seen), work_fit.fitted(seen, expected))
    if group.coherent:
        return [group]
    by_job: dict[int, list[Observation]] = defaultdict(list)
    for one in seen:
        by_job[one.job_id].append(one)
    alone = [_Group(tuple(own), work_fit.fitted(own, expected)) for own in by_job.values() if 1 < len(own) < len(seen)]
    return [group for group in alone if group.coherent]


def _residuals(
    ratios: Sequence[tuple[Observation, float]], snapshot: Snapshot | None, users: int, since_s: float
) -> dict[tuple[Gpu, str], Residual]:
    """The votes on each GPU, from (observation, observed over predicted) in order of time.

    A job of several GPUs runs at the pace of the slowest, so a slow job votes on all of them.
    What a job of class C feels, more sensitive jobs feel too; not the other way round.
    """
    heard_s = {gpu: max(since_s, _measured_s(snapshot, gpu)) for one, _ in ratios for gpu in one.gpus}
    cleared: dict[tuple[Gpu, str], list[Observation]] = defaultdict(list)
    for one, ratio in ratios:
        if ratio <= CLEAR:
            for gpu in one.gpus:
                cleared[gpu, known_class(one.sensitivity)].append(one)
    found: dict[tuple[Gpu, str], dict[str, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    for one, ratio in ratios:
        c = known_class(one.sensitivity)
        slow = ratio > CLEAR
        answerable = (_suspects(one, cleared, users) or one.gpus) if slow else one.gpus
        weight = 1.0 / len(answerable) if slow else 1.0
        for gpu in answerable:
            if one.at_s >= heard_s[gpu]:
                for felt_by in SENSITIVITY_CLASSES[: SENSITIVITY_CLASSES.index(c) + 1] if slow else (c,):
                    found[gpu, felt_by][_user(one)].add(ratio, weight, one.job_id if slow else None)
    return {key: _residual(sums, users) for key, sums in found.items()}


def _user(one: Observation) -> str:
    return one.key.partition(" ")[0]


class _Sums:
    """The vote of one user's jobs on one GPU: a running mean that starts at the first value, so that early ones
    count in full."""

    def __init__(self) -> None:
        self._above = self._below = 0.0
        self.samples = 0.0
        self.slow_jobs: set[int] = set()

    def add(self, ratio: float, weight: float, accuser: int | None) -> None:
        share = NEWEST_SHARE * weight
        self._above = (1 - share) * self._above + share * ratio
        self._below = (1 - share) * self._below + share
        self.samples += weight
        if accuser is not None:
            self.slow_jobs.add(accuser)

    @property
    def factor(self) -> float:
        return self._above / self._below


def _residual(by_user: Mapping[str, _Sums], users: int) -> Residual:
    """The joint vote. On a tie the measurement stands."""
    factor = median_low(sums.factor for sums in by_user.values())
    samples = sum(sums.samples for sums in by_user.values())
    slow_jobs = frozenset(job_id for sums in by_user.values() for job_id in sums.slow_jobs)
    accusers = sum(sums.factor > SLOW for name, sums in by_user.items() if name)
    enough = samples > SLOW_SAMPLES - 1e-9 and len(slow_jobs) >= SLOW_JOBS
    return Residual(factor, samples, slow_jobs, enough and accusers >= users and factor > SLOW)


def _suspects(
    one: Observation, cleared: Mapping[tuple[Gpu, str], Sequence[Observation]], users: int
) -> tuple[Gpu, ...]:
    """GPUs of a slow job that no other jobs of its class found fast; () when all were.

    Jobs of its own user count, or of this number of `users`: else one user could steer the blame to any GPU.
    """
    c = known_class(one.sensitivity)

    def is_cleared(gpu: Gpu) -> bool:
        speakers = {
            _user(other)
            for other in cleared.get((gpu, c), ())
            if other.job_id != one.job_id and other.at_s >= one.at_s - CLEARED_S
        }
        return _user(one) in speakers or len(speakers) >= users

    return tuple(gpu for gpu in one.gpus if not is_cleared(gpu))


def _measured_s(snapshot: Snapshot | None, gpu: Gpu) -> float:
    row = snapshot.row(*gpu) if snapshot is not None else None
    return float(snapshot.columns["measured_s"][row]) if snapshot is not None and row is not None else 0.0


def slowest(snapshot: Snapshot, sensitivity: str, gpus: Mapping[str, Iterable[int]]) -> float:
    """The slowdown of the slowest of these GPUs; 1.0 where it is not known."""
    known = (snapshot.slowdown(sensitivity, node, index) for node, indexes in gpus.items() for index in indexes)
    return max((1.0 if value is None else value for value in known), default=1.0)


def corrected(snapshot: Snapshot, learnt: Corrections, most: float = inf) -> Snapshot:
    """The scores with the GPUs that became slow made slower, in slowdown and class; the snapshot stays as it is.

    None is made slower than `most`, nor any faster than it was measured.
    """
    slow = [(key, min(seen.factor, MOST_CORRECTION)) for key, seen in learnt.gpus.items() if seen.slow]
    if not slow:
        return snapshot
    made = copy.copy(snapshot)
    names = [f"{kind}_{c}" for kind in ("slowdown", "class") for c in SENSITIVITY_CLASSES]
    made.columns = {**snapshot.columns, **{name: changeable(snapshot, name) for name in names}}
    for (gpu, c), factor in slow:
        row = snapshot.row(*gpu)
        if row is not None:
            _slow_down(made, c, row, factor, most)
    return made


def _slow_down(made: Snapshot, c: str, row: int, factor: float, most: float) -> None:
    """Multiply one slowdown (1.0 where it is unknown) and put it into the nearest class."""
    measured = float(made.columns[f"slowdown_{c}"][row])
    before = 1.0 if isnan(measured) else measured
    slowdown = max(before, min(factor * before, most))
    if slowdown == before:
        return
    made.columns[f"slowdown_{c}"][row] = slowdown
    levels = made.centroids.get(c, [])
    if levels:
        made.columns[f"class_{c}"][row] = min(range(len(levels)), key=lambda k: abs(levels[k] - slowdown))


# -- what moves brought ----------------------------------------------------------------------


def observed_gain_s(move: Move) -> float | None:
    """Run time that a move saved by the job's own steps, cost not deducted; None where they do not show.

    `gain_s` is base time to go x (before - after); the same time to go at the observed speed-up.
    """
    predicted = _predicted_share(move)
    if move.observed is None or move.outcome not in CARRIED_OUT or not predicted:
        return None
    return move.gain_s / predicted * _observed_share(move.observed)


def calibration(moves: Iterable[Move]) -> float:
    """Share of the predicted gain that finished moves brought, median over users, for reports. 1.0 before any."""
    by_user = calibrations(moves)
    return median(by_user.values()) if by_user else 1.0


def calibrations(moves: Iterable[Move]) -> dict[str, float]:
    """User -> share of the predicted gain that their finished moves brought; it multiplies predictions.

    1.0 before any; between 0.25 and 1.5. Moves that led elsewhere or were abandoned brought
    nothing; those whose job does not report its pace are left out.
    """
    by_user: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        if _predicted_share(move) > 0 and (_is_observed(move) or move.outcome in FAILED):
            by_user[move.user].append(move)
    return {user: _calibration(own) for user, own in by_user.items()}


def agreed(votes: Iterable[float], otherwise: float) -> float:
    """The median over users; `otherwise` has a vote, too, where they are few or split in halves.

    So no single user leads beyond what others reported, or the prior assumption.
    """
    cast = [*votes]
    silent = max(LEAST_VOTES - len(cast), 1 - len(cast) % 2)
    return median([*cast, *[otherwise] * silent])


def _is_observed(move: Move) -> bool:
    return move.observed is not None and move.outcome is MoveOutcome.MOVED


def _calibration(moves: Sequence[Move]) -> float:
    """The same for the moves of one user, of which there are some."""
    predicted = sum(map(_predicted_share, moves))
    observed = sum(_observed_share(move.observed or 0.0) for move in moves if _is_observed(move))
    prior = PRIOR_MOVES * predicted / len(moves)
    return min(max((observed + prior) / (predicted + prior), LEAST_CALIBRATION), MOST_CALIBRATION)


def _predicted_share(move: Move) -> float:
    """The predicted share of the remaining run time that a move saves; 0.0 where none was predicted."""
    return max(0.0, 1.0 - move.after / move.before) if move.before > 0 else 0.0


def _observed_share(observed: float) -> float:
    return 1.0 - 1.0 / max(observed, WORST_OBSERVED) if isfinite(observed) else 0.0


def move_costs_s(moves: Iterable[tuple[Move, Sequence[tuple[str, float]]]], default_s: float) -> dict[str, float]:
    """User -> what a move costs, checkpoint and Slurm's gap, s: the mean from first step until the job runs again.

    `moves` come with their steps (Journal.steps_of). `default_s` weighs as much as four moves. A move
    that took far longer than most (a tick was killed in the middle of it) counts in part.
    """
    by_user: dict[str, list[float]] = defaultdict(list)
    for move, steps in moves:
        if move.outcome is MoveOutcome.MOVED and steps and 0 <= (took := move.ended_s - steps[0][1]) < inf:
            by_user[move.user].append(took)
    means: dict[str, float] = {}
    for user, costs in by_user.items():
        most_s = LONGEST * median(costs)
        total = sum(min(cost, most_s) for cost in costs) + PRIOR_MOVES * default_s
        means[user] = total / (len(costs) + PRIOR_MOVES)
    return means
