# SPDX-License-Identifier: MIT
"""Our own traces: seeded, with the size mix and run times of published GPU clusters.

Sizes follow the GPU demands of Microsoft's Philly trace, run times the log-uniform
mixture by which PAL's and Sia's artifacts fill in what that trace does not say. Classes,
users and time limits are choices of ours, written down as data below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs.reader_options import CLASSES
from slurm_pal.simulate.trace import Trace, TraceJob

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

JOBS_MAX = 10_000_000
SIZES: dict[int, float] = {1: 0.77, 2: 0.02, 4: 0.09, 8: 0.12}
"""GPUs -> share of jobs."""

CLASS_MIX: dict[str, float] = {"A": 0.4, "B": 0.3, "C": 0.3}


class RunTimeRange(NamedTuple):
    """A part of the run times: log-uniform between two bounds."""

    share: float  # of jobs
    low_s: float
    high_s: float

    def mean_s(self, cap_s: float) -> float:
        """The mean of min(run time, cap_s)."""
        top_s = min(self.high_s, max(self.low_s, cap_s))
        log_width = math.log(self.high_s / self.low_s)
        return (top_s - self.low_s + min(cap_s, self.high_s) * math.log(self.high_s / top_s)) / log_width


class LogNormal(NamedTuple):
    """Log-normal run times."""

    median_s: float
    sigma: float  # of the logarithm

    def mean_s(self, cap_s: float) -> float:
        """The mean of min(run time, cap_s)."""
        whole_s = self.median_s * math.exp(self.sigma**2 / 2)
        if math.isinf(cap_s):
            return whole_s
        place, below = (math.log(cap_s / self.median_s)) / self.sigma, NormalDist().cdf
        return whole_s * below(place - self.sigma) + cap_s * (1.0 - below(place))


RUN_TIMES = (RunTimeRange(0.8, 60 * 10**1.5, 60 * 10**3), RunTimeRange(0.2, 60 * 10**3, 60 * 10**4))

WEEKDAY = (
    0.5, 0.4, 0.4, 0.3, 0.3, 0.4, 0.5, 0.8, 1.2, 1.6, 1.8, 1.8,
    1.6, 1.7, 1.9, 1.9, 1.8, 1.6, 1.3, 1.1, 1.0, 0.9, 0.8, 0.6,
)  # fmt: skip
"""Relative rate of submissions in each hour of a working day."""
WEEKEND = tuple(0.45 * rate for rate in WEEKDAY)
WEEK: Floats = np.array(5 * WEEKDAY + 2 * WEEKEND) / np.mean(5 * WEEKDAY + 2 * WEEKEND)
"""Rate in each hour of a week from Monday 0:00, 1.0 on average."""

LIMITS_H = np.array([1, 2, 3, 4, 6, 8, 12, 24, 36, 48, 72, 96, 120, 144, 168], dtype=np.float64)
"""Time limits that people write; beyond the last, whole days."""
LIMIT_FACTOR_MEDIAN, LIMIT_FACTOR_SIGMA, LIMIT_FACTOR_LEAST = 2.0, 0.7, 1.1
SPREAD_FACTOR = 1.7
"""Users of several GPUs have seen the job run across nodes, and allow for that much more (PAL's locality penalty)."""
"""Limit over run time before rounding up: log-normal, never below the last."""

ARRIVALS = ("poisson", "diurnal")


class TraceSpec(NamedTuple):
    """What to generate. The defaults fill 80 % of 64 GPUs."""

    jobs: int = 1000
    seed: int = 1
    load: float = 0.8  # GPU-seconds submitted per second, over `cluster_gpus`
    cluster_gpus: int = 64
    rate_per_h: float | None = None  # submissions per hour, instead of `load`
    arrivals: str = "poisson"
    sizes: Mapping[int, float] = SIZES
    run_times: tuple[RunTimeRange, ...] = RUN_TIMES
    cap_s: float = math.inf  # longer jobs run this long
    classes: Mapping[str, float] = CLASS_MIX
    locality_penalties: Mapping[str, float] = {}  # class -> factor; others: the replay's default
    users: int = 40
    accounts: int = 8
    zipf: float = 1.2  # the k-th user submits in proportion to k^-zipf; so do the members of the k-th account
    log_normal: LogNormal | None = None  # run times instead of `run_times`
    burst: float = 1.0  # jobs that come together, on average (geometric)
    movable: float = 1.0  # share of jobs that can go on from a checkpoint
    partition: str = ""  # of all jobs


def generate(spec: TraceSpec) -> Trace:
    """Draw a trace; times count from 0, which is a Monday 0:00 for diurnal arrivals.

    Each property has a random stream of its own: changing the class mix, say, leaves
    arrivals, sizes and run times as they were. Raises UsageError for a value out of range.
    """
    _check(spec)
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(spec.seed).spawn(8)]
    arrivals, sizes, run_times, classes, limits, members, users, movable = streams
    run_s = np.round(_run_times_s(spec, run_times), 3)
    account_of = _zipf(members, spec.accounts, spec.zipf, spec.users)
    user = _zipf(users, spec.users, spec.zipf, spec.jobs)
    gpus = np.array(list(spec.sizes))[_choice(sizes, spec.sizes.values(), spec.jobs)]
    columns = (
        np.round(_arrivals_s(spec, arrivals), 3),
        gpus,
        run_s,
        np.array(list(spec.classes))[_choice(classes, spec.classes.values(), spec.jobs)],
        _limits_s(run_s, LIMIT_FACTOR_LEAST * np.where(gpus > 1, SPREAD_FACTOR, 1.0), limits),
        user + 1,
        account_of[user] + 1,
        movable.random(spec.jobs) < spec.movable,
    )
    jobs = _jobs(spec, *(column.tolist() for column in columns))
    return Trace(f"generated-{spec.arrivals}-{spec.jobs}-seed{spec.seed}", jobs)


def _jobs(
    spec: TraceSpec,
    submit_s: list[float],
    gpus: list[int],
    run_s: list[float],
    classes: list[str],
    limit_s: list[float],
    users: list[int],
    accounts: list[int],
    movable: list[bool],
) -> tuple[TraceJob, ...]:
    shapes = {size: GpuShape(size) for size in spec.sizes}
    rows = zip(submit_s, gpus, run_s, classes, limit_s, users, accounts, movable, strict=True)
    return tuple(
        TraceJob(
            job_id=str(number),
            submit_s=at_s,
            shape=shapes[size],
            ideal_s=ran_s,
            sensitivity=kind,
            limit_s=allowed_s,
            user=f"u{user}",
            account=f"a{account}",
            locality_penalty=spec.locality_penalties.get(kind),
            movable=moves,
            partition=spec.partition,
        )
        for number, (at_s, size, ran_s, kind, allowed_s, user, account, moves) in enumerate(rows, start=1)
    )


def side_by_side(traces: Sequence[Trace]) -> Trace:
    """Traces of several partitions as one, in the order of submission; a job's id begins with its partition."""
    jobs = [job._replace(job_id=f"{job.partition or 'job'}-{job.job_id}") for trace in traces for job in trace.jobs]
    return Trace("+".join(trace.name for trace in traces), tuple(sorted(jobs, key=lambda job: job.submit_s)))


def rate_per_h(spec: TraceSpec) -> float:
    """Submissions per hour: as given, or such that the mean job times the rate offers `load`."""
    if spec.rate_per_h is not None:
        return spec.rate_per_h
    mean_gpus = sum(size * share for size, share in spec.sizes.items()) / sum(spec.sizes.values())
    return 3600 * spec.load * spec.cluster_gpus / (mean_gpus * mean_run_time_s(spec))


def mean_run_time_s(spec: TraceSpec) -> float:
    """The expected run time, cap included."""
    if spec.log_normal is not None:
        return spec.log_normal.mean_s(spec.cap_s)
    return sum(span.share * span.mean_s(spec.cap_s) for span in spec.run_times) / sum(s.share for s in spec.run_times)


def _arrivals_s(spec: TraceSpec, rng: np.random.Generator) -> Floats:
    """Moments of a Poisson process, s; for diurnal arrivals its clock runs as fast as the hour's rate."""
    gaps = rng.exponential(spec.burst / rate_per_h(spec), spec.jobs)
    if spec.burst > 1:
        gaps *= rng.random(spec.jobs) < 1 / spec.burst
    hours = np.cumsum(gaps)
    if spec.arrivals == "diurnal":
        edges = np.r_[0.0, np.cumsum(WEEK)]
        weeks, rest = np.divmod(hours, edges[-1])
        hours = weeks * len(WEEK) + np.interp(rest, edges, np.arange(len(edges)))
    return 3600 * hours


def _run_times_s(spec: TraceSpec, rng: np.random.Generator) -> Floats:
    if spec.log_normal is not None:
        drawn = rng.lognormal(math.log(spec.log_normal.median_s), spec.log_normal.sigma, spec.jobs)
        return np.minimum(drawn, spec.cap_s)
    part = _choice(rng, [span.share for span in spec.run_times], spec.jobs)
    low = np.log([span.low_s for span in spec.run_times])[part]
    high = np.log([span.high_s for span in spec.run_times])[part]
    return np.minimum(np.exp(rng.uniform(low, high)), spec.cap_s)


def _limits_s(run_s: Floats, least: Floats, rng: np.random.Generator) -> Floats:
    factor = rng.lognormal(math.log(LIMIT_FACTOR_MEDIAN), LIMIT_FACTOR_SIGMA, len(run_s))
    wanted_h = run_s * np.maximum(factor, least) / 3600
    place = np.searchsorted(LIMITS_H, wanted_h)
    beyond = place == len(LIMITS_H)
    return 3600 * np.where(beyond, 24 * np.ceil(wanted_h / 24), LIMITS_H[np.where(beyond, 0, place)])


def _choice(rng: np.random.Generator, weights: Iterable[float], count: int) -> Ints:
    """`count` indexes, drawn with probabilities in proportion to the weights."""
    edges = np.cumsum(np.array(list(weights), dtype=np.float64))
    found: Ints = np.searchsorted(edges[:-1], rng.random(count) * edges[-1], side="right")
    return found


def _zipf(rng: np.random.Generator, kinds: int, exponent: float, count: int) -> Ints:
    return _choice(rng, np.arange(1, kinds + 1, dtype=np.float64) ** -exponent, count)


# -- what is allowed ------------------------------------------------------------------------


def _check(spec: TraceSpec) -> None:
    for name, value, least, most in (
        ("jobs", spec.jobs, 1, JOBS_MAX),
        ("seed", spec.seed, 0, math.inf),
        ("cluster GPUs", spec.cluster_gpus, 1, 10_000_000),
        ("users", spec.users, 1, 1_000_000),
        ("accounts", spec.accounts, 1, 1_000_000),
        ("zipf exponent", spec.zipf, 0, 10),
        ("load", spec.load, 1e-6, 100),
        ("jobs of a burst", spec.burst, 1, 1e6),
        ("share of movable jobs", spec.movable, 0, 1),
        ("submissions per hour", 1.0 if spec.rate_per_h is None else spec.rate_per_h, 1e-6, 1e9),
    ):
        _within(name, value, least, most)
    if spec.arrivals not in ARRIVALS:
        raise UsageError(f"arrivals {spec.arrivals!r} is not one of {', '.join(ARRIVALS)}")
    _check_run_times(spec)
    _check_shares("sizes", spec.sizes)
    _check_shares("classes", spec.classes)
    for size in spec.sizes:
        _within("job size in GPUs", size, 1, spec.cluster_gpus)
    for kind in (*spec.classes, *spec.locality_penalties):
        if kind not in CLASSES:
            raise UsageError(f"class {kind!r} is not one of {', '.join(CLASSES)}")
    for kind, factor in spec.locality_penalties.items():
        _within(f"locality penalty of class {kind}", factor, 1, 100)


def _check_run_times(spec: TraceSpec) -> None:
    if spec.log_normal is not None:
        _within("median run time in s", spec.log_normal.median_s, 1e-3, 1e9)
        _within("sigma of run times", spec.log_normal.sigma, 1e-3, 10)
        return
    for span in spec.run_times:
        if not 0 < span.low_s < span.high_s < math.inf:
            raise UsageError(f"run times from {span.low_s:g} to {span.high_s:g} s must rise, from above 0")
    _check_shares("run times", dict(enumerate(span.share for span in spec.run_times)))
    least_s = min(span.low_s for span in spec.run_times)
    if not spec.cap_s >= least_s:
        raise UsageError(f"run time cap {spec.cap_s:g} s is below the shortest run time, {least_s:g} s")


def _check_shares(name: str, shares: Mapping[Any, float]) -> None:
    if not shares or not min(shares.values()) >= 0 or not 0 < sum(shares.values()) < math.inf:
        raise UsageError(f"{name}: shares {list(shares.values())} must be at least 0, and one of them above 0")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # NaN is not, either
        raise UsageError(f"{name} {value:g} must be in {least:g}..{most:g}")
