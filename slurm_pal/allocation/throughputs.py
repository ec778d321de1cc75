# SPDX-License-Identifier: MIT
"""What is known of throughputs, by application, number of GPUs and type of GPUs, and estimates for the rest.

A type is whatever the caller calls one: a GRES type or a partition. Errors are relative standard
errors, held as standard deviations of the natural logarithm. Known entries come from the site's
table and from past runs; gaps of a known row are completed (completion.py), another number of GPUs
is scaled from the nearest known one, and an unknown application gets the relative speeds of the
types. So every job has a throughput everywhere, except where the site's table says 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, hypot, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.allocation.completion import UNSEEN_ERROR, Completion, complete
from slurm_pal.base.errors import DataError

Matrix = NDArray[np.float64]

TABLE, PROGRESS, ESTIMATED, PRIOR = "table", "progress", "estimated", "prior"
ANY = "*"
"""The application whose rows in the site's table are the speeds of the types for unknown jobs."""

HALF_LIFE_S = 30 * 86400.0  # an entry of this age counts half
LEAST_ERROR, MOST_ERROR = 1e-3, UNSEEN_ERROR  # nothing is known better; an old entry is not worse than none
MOST_RATE = 1e9  # steps/s; the least is one step in this many seconds
EXPONENT, EXPONENT_ERROR, EXPONENT_COUNT = 0.8, 0.35, 3.0
"""Throughput grows with GPUs to this power until a table shows how (Gavel's: .68 to .85, scatter .17 to .49)."""


class ThroughputKey(NamedTuple):
    """What a throughput belongs to."""

    application: str
    gpus: int  # of the whole job
    type: str


class Entry(NamedTuple):
    """One throughput."""

    steps_per_s: float  # of the whole job, the geometric mean; 0: it cannot run there
    relative_error: float  # standard deviation of its logarithm
    runs: int = 0  # behind it; 0: not known
    age_s: float = 0.0
    source: str = TABLE
    relative: bool = False  # only ratios between types of the same application and number of GPUs mean something


class Estimates(NamedTuple):
    """Throughputs of m jobs on n types."""

    throughput: Matrix  # (m, n) steps/s; 0 only where the site's table says so
    relative_error: Matrix  # (m, n)
    source: tuple[tuple[str, ...], ...]  # (m, n) table, progress, estimated or prior
    absolute: tuple[bool, ...]  # (m,) false: not steps/s, only the ratios in the row mean something


class Model(NamedTuple):
    """Known entries made ready for `matrix`. Build it with `model`."""

    types: tuple[str, ...]
    known: Mapping[ThroughputKey, Entry]
    rows: Mapping[tuple[str, int], int]  # (application, GPUs) -> row of the completion
    sizes: Mapping[str, tuple[int, ...]]  # application -> numbers of GPUs to scale from
    unitless: frozenset[tuple[str, int]]  # rows of relative speeds
    completion: Completion | None  # None: nothing is known
    exponent: tuple[float, float]  # of throughput over GPUs, and its scatter


# -- several sources ----------------------------------------------------------------------


def merge(
    tables: Iterable[Mapping[ThroughputKey, Entry]], half_life_s: float = HALF_LIFE_S
) -> dict[ThroughputKey, Entry]:
    """One table of several. Entries of one key count by their inverse variance, which halves with each half-life.

    Where they disagree by more than their errors the error grows by as much. A 0 of the site's
    table stands. Relative speeds are brought to the unit of the other sources where a type is in
    both; where none is, they are left out, since their unit is unknown.

    Raises DataError for a half-life, throughput, error or age that is not allowed.
    """
    if not half_life_s > 0:
        raise DataError(f"the half-life of throughputs is {half_life_s:g} s; it must be above 0")
    found: dict[ThroughputKey, list[Entry]] = defaultdict(list)
    for key, entry in (pair for table in tables for pair in table.items()):
        _check(key, entry)
        found[key].append(_aged(entry, half_life_s))
    return {key: _combined(entries) for key, entries in sorted(_in_one_unit(found).items())}


def _check(key: ThroughputKey, entry: Entry) -> None:
    what = f"throughput of {key.application!r} on {key.gpus} GPUs of type {key.type!r}"
    if key.gpus < 1:
        raise DataError(f"{what}: the number of GPUs must be at least 1")
    if not (entry.steps_per_s == 0 or 1 / MOST_RATE <= entry.steps_per_s <= MOST_RATE):
        raise DataError(
            f"{what} is {entry.steps_per_s:g} steps/s; it must be 0 or from {1 / MOST_RATE:g} to {MOST_RATE:g}"
        )
    if not (isfinite(entry.age_s) and entry.age_s >= 0):
        raise DataError(f"{what}: the age is {entry.age_s:g} s; it must be a finite number of at least 0")
    if not (isfinite(entry.relative_error) and entry.relative_error > 0):
        raise DataError(f"{what}: the relative error is {entry.relative_error:g}; it must be above 0")


def _aged(entry: Entry, half_life_s: float) -> Entry:
    """The entry with the error that its age leaves it."""
    growth = 2.0 ** min(entry.age_s / half_life_s / 2.0, 100.0)
    return entry._replace(relative_error=min(max(entry.relative_error, LEAST_ERROR) * growth, MOST_ERROR))


def _in_one_unit(found: Mapping[ThroughputKey, list[Entry]]) -> dict[ThroughputKey, list[Entry]]:
    """The same entries with relative speeds scaled to steps/s where others show the scale."""
    measured: dict[tuple[str, int], dict[str, Entry]] = defaultdict(dict)
    speeds: dict[tuple[str, int], dict[str, Entry]] = defaultdict(dict)
    for key, entries in found.items():
        for entry in entries:
            if entry.steps_per_s > 0:
                (speeds if entry.relative else measured)[key[:2]][key.type] = entry
    scales = {row: _scale(speeds[row], measured[row]) for row in speeds if row in measured}
    made: dict[ThroughputKey, list[Entry]] = defaultdict(list)
    for key, entries in found.items():
        for entry in entries:
            if not entry.relative or key[:2] not in scales or entry.steps_per_s == 0:
                made[key].append(entry)
            elif (scale := scales[key[:2]]) is not None:
                factor, error = scale
                known = min(hypot(entry.relative_error, error), MOST_ERROR)
                made[key].append(
                    entry._replace(steps_per_s=entry.steps_per_s * factor, relative_error=known, relative=False)
                )
    return made


def _scale(speeds: Mapping[str, Entry], measured: Mapping[str, Entry]) -> tuple[float, float] | None:
    """(steps/s for a relative speed of 1, its error) by the types that are in both; None where none is."""
    both = speeds.keys() & measured.keys()
    if not both:
        return None
    ratios = [
        Entry(measured[t].steps_per_s / speeds[t].steps_per_s, _both_errors(speeds[t], measured[t]))
        for t in sorted(both)
    ]
    scale = _combined(ratios)
    return scale.steps_per_s, scale.relative_error


def _both_errors(one: Entry, other: Entry) -> float:
    return hypot(one.relative_error, other.relative_error)


def _combined(entries: Sequence[Entry]) -> Entry:
    """One entry of those of one key, whose errors contain their age."""
    barred = next((entry for entry in entries if entry.steps_per_s == 0), None)
    if barred is not None or len(entries) == 1:
        return barred or entries[0]
    weights = [entry.relative_error**-2 for entry in entries]
    total = sum(weights)
    logs = [log(entry.steps_per_s) for entry in entries]
    mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / total
    excess = sum(w * (x - mean) ** 2 for w, x in zip(weights, logs, strict=True)) / (len(entries) - 1)
    heaviest = entries[weights.index(max(weights))]
    return heaviest._replace(
        steps_per_s=exp(mean),
        relative_error=min(sqrt(max(1.0, excess) / total), MOST_ERROR),
        runs=sum(entry.runs for entry in entries),
        age_s=sum(w * entry.age_s for w, entry in zip(weights, entries, strict=True)) / total,
    )


# -- every job on every type --------------------------------------------------------------


def model(known: Mapping[ThroughputKey, Entry], types: Sequence[str]) -> Model:
    """Complete what is known (as `merge` gives it) over `types`, the columns of the answer in their order.

    Entries of other types help too. Costs about .1 s for a hundred rows, so keep it while the table stays.
    Raises DataError for entries that are not allowed and for a type that is given twice.
    """
    if len(set(types)) < len(types):
        raise DataError(f"a type of GPUs is given twice: {', '.join(types)}")
    for key, entry in known.items():
        _check(key, entry)
    positive = {key: entry for key, entry in sorted(known.items()) if entry.steps_per_s > 0}
    columns = (*types, *sorted({key.type for key in positive} - set(types)))
    place = {name: j for j, name in enumerate(columns)}
    rows = {row: i for i, row in enumerate(dict.fromkeys(key[:2] for key in positive))}
    if not rows:
        return Model(tuple(types), known, {}, {}, frozenset(), None, (EXPONENT, EXPONENT_ERROR))
    seen = np.full((len(rows), len(columns)), np.nan)
    error = np.zeros(seen.shape)
    for key, entry in positive.items():
        at = rows[key[:2]], place[key.type]
        seen[at], error[at] = log(entry.steps_per_s), entry.relative_error
    completion = complete(seen, error, [application for application, _ in rows])
    unitless = frozenset(key[:2] for key, entry in positive.items() if entry.relative)
    return Model(tuple(types), known, rows, _sizes(rows, unitless), unitless, completion, _exponent(positive))


def _sizes(rows: Iterable[tuple[str, int]], unitless: frozenset[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """The numbers of GPUs to scale an application from: those with steps/s if there are any."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row[1])
    measured = {name: [gpus for gpus in known if (name, gpus) not in unitless] for name, known in found.items()}
    return {name: tuple(sorted(measured[name] or known)) for name, known in found.items()}


def _exponent(known: Mapping[ThroughputKey, Entry]) -> tuple[float, float]:
    """How throughput grows with GPUs: the mean and the scatter of the slopes, with what was assumed as a few more."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for key, entry in known.items():
        if not entry.relative:
            lines[key.application, key.type].append((log(key.gpus), log(entry.steps_per_s)))
    slopes = [
        (y2 - y1) / (x2 - x1) for points in map(sorted, lines.values()) for (x1, y1), (x2, y2) in pairwise(points)
    ]
    total = EXPONENT_COUNT + len(slopes)
    mean = (EXPONENT_COUNT * EXPONENT + sum(slopes)) / total
    squares = EXPONENT_COUNT * EXPONENT_ERROR**2 + sum((slope - mean) ** 2 for slope in slopes)
    return mean, sqrt(squares / total)


def matrix(made: Model, jobs: Sequence[tuple[str, int]]) -> Estimates:
    """Throughputs of jobs, each (application, GPUs), on the types of the model. Every job gets one.

    Raises DataError for a job of less than one GPU.
    """
    shape = (len(jobs), len(made.types))
    throughput, error = np.zeros(shape), np.zeros(shape)
    answers = {job: _answer(made, *job) for job in dict.fromkeys(jobs)}
    for i, job in enumerate(jobs):
        throughput[i] = [entry.steps_per_s for entry in answers[job]]
        error[i] = [entry.relative_error for entry in answers[job]]
    sources = tuple(tuple(entry.source for entry in answers[job]) for job in jobs)
    return Estimates(throughput, error, sources, tuple(_absolute(answers[job]) for job in jobs))


def _absolute(answer: Iterable[Entry]) -> bool:
    """Whether a row is steps/s; 0 is 0 in any unit."""
    return not any(entry.relative for entry in answer if entry.steps_per_s > 0)


def _answer(made: Model, application: str, gpus: int) -> list[Entry]:
    """One job's entries over the types: the known ones, and guesses for the others."""
    if gpus < 1:
        raise DataError(f"a job of {application!r} has {gpus} GPUs; its throughput needs at least 1")
    guesses = _guesses(made, application, gpus)
    keys = (ThroughputKey(application, gpus, name) for name in made.types)
    return [made.known.get(key, guess) for key, guess in zip(keys, guesses, strict=True)]


def _guesses(made: Model, application: str, gpus: int) -> list[Entry]:
    n = len(made.types)
    if made.completion is None:
        return [Entry(1.0, UNSEEN_ERROR, source=PRIOR, relative=True)] * n
    if application not in made.sizes:
        return _prior(made, made.completion, gpus)
    size = _nearest(made, application, gpus)
    i = made.rows[application, size]
    exponent, scatter = made.exponent
    far, relative = log(gpus / size), (application, size) in made.unitless
    return [
        Entry(exp(value + exponent * far), hypot(error, scatter * far), source=ESTIMATED, relative=relative)
        for value, error in zip(made.completion.value[i, :n], made.completion.error[i, :n], strict=True)
    ]


def _nearest(made: Model, application: str, gpus: int) -> int:
    return min(made.sizes[application], key=lambda size: (abs(log(size / gpus)), size))


def _prior(made: Model, completion: Completion, gpus: int) -> list[Entry]:
    """Speeds of the types, with the geometric mean 1: those that the site states for any application, else of all."""
    n = len(made.types)
    speeds, spread = completion.relative[:n], completion.relative_error[:n]
    if ANY in made.sizes:
        i = made.rows[ANY, _nearest(made, ANY, gpus)]
        speeds, spread = completion.value[i, :n], np.hypot(spread, completion.error[i, :n])
    middle = float(speeds.mean()) if n else 0.0
    return [
        Entry(exp(speed - middle), float(error), source=PRIOR, relative=True)
        for speed, error in zip(speeds, spread, strict=True)
    ]
