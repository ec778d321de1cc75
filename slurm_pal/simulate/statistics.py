# SPDX-License-Identifier: MIT
"""Is one policy better than another? Ratios over pairs of runs, with 95 % intervals.

Two runs with the same trace, queue and seed meet the same jobs on the same GPUs; only the policy
differs. Their ratio is one observation. A single ratio says little (pal.md, 8.6: anywhere
between 0.4 and 1.6), so a claim needs many and an interval. Seeds move the submissions of a trace
by minutes and draw other GPUs: they do not make another trace of it. What is independent is
traces, or weeks of one; the ratios of all seeds are averaged in each such piece, and the interval is that over pieces.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_pal.base.errors import MissingPackageError, UsageError
from slurm_pal.simulate.metrics import Metrics, ReplayMetrics, measure_all
from slurm_pal.simulate.result import Replay

Runs = Iterable[Replay | ReplayMetrics]
Verdict = Literal["gain", "loss", "unclear", "cannot tell"]

LEVEL = 0.95
LEAST_PIECES = 6
"""With fewer independent pieces nothing is claimed, whatever the number of seeds."""
BOOTSTRAP_PIECES = 8
"""With at least this many the interval is a bootstrap's; with fewer, too few different resamples exist."""
RESAMPLES = 9999
SEED = 20240801
SAME = 1e-12  # logs of ratios that differ by less are one value, and rounding


class Ratio(NamedTuple):
    """Policy / baseline over pairs; below 1 the policy's metric is the smaller one.

    `low`, `high`: 95 % interval of `mean`, the arithmetic mean of the ratios. `geo_low`,
    `geo_high`: that of `geomean`, the geometric mean, for which a ratio of 2 and one of 1/2
    cancel. Intervals are None with fewer than `LEAST_PIECES` independent pieces. `log_sd` is the standard deviation
    of the logs of the pieces' ratios; `n` counts pairs of runs.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    geomean: float
    geo_low: float | None
    geo_high: float | None
    log_sd: float | None = None
    pieces: int = 0  # traces, or weeks of one: what the interval goes by


class WorstTenth(NamedTuple):
    """The tenth of all users (accounts) that a policy serves worst, compared with the baseline."""

    ratio: float  # geometric mean over them of their JCT ratio, itself a geometric mean over pairs
    members: int
    of: int


class WorstGpus(NamedTuple):
    """The comparison as it is, and with the `k` slowest GPUs replaced by median ones."""

    k: int
    total: Ratio
    capped: Ratio

    @property
    def share(self) -> float | None:
        """Share of the gain (in logs) due to these GPUs; None when there is no clear gain to share."""
        if verdict(self.total) != "gain":
            return None
        return share_of_worst(self.total.geomean, self.capped.geomean)


def paired(runs: Runs, policy: str, baseline: str, metric: str) -> Ratio | None:
    """The ratio policy / baseline of `metric` (a name that `Metrics.value` knows) over all pairs.

    With at least `BOOTSTRAP_PIECES` pieces, intervals are BCa bootstraps (Efron 1987: corrects bias and
    skew; seeded, so the same runs give the same interval), widened for few pieces (Hesterberg
    2015, expanded percentiles): unwidened, 95 % intervals of 8 values hold the truth 88 times in
    100, widened 93 to 95 times (lognormal ratios, 1000 draws). With fewer, ratios are taken as
    lognormal: a t interval on the logs for the geometric mean, and Cox's interval with t
    quantiles for the arithmetic one. None when no pair has the metric.

    Raises UsageError for a policy that was not run, ValueError for an unknown metric, or a
    policy run twice with one queue and seed.
    """
    return compared([((ours,), (theirs,)) for ours, theirs in _pairs(runs, policy, baseline)], metric)


Piece = tuple[int, int]
"""(number of the trace, week of it)."""
Sides = tuple[Sequence[ReplayMetrics], Sequence[ReplayMetrics]]
"""Runs of one trace and seed above and below a fraction line."""


def compared(sides: Sequence[Sides], metric: str) -> Ratio | None:
    """The ratio of the products of a metric over pieces; None when no piece has it, or where it is zero anywhere.

    Weeks of a trace share its queue, so they are pieces only where there are too few traces.
    """
    found: dict[Piece, list[float]] = {}
    counted = 0
    weekly = len({run.trace for above, _ in sides for run in above}) < LEAST_PIECES
    for above, below in sides:
        known = False
        runs = (*above, *below)
        each = zip(*(run.pieces(metric) if weekly else (run.metrics,) for run in runs), strict=True)
        for week, metrics in enumerate(each):
            values = [one.value(metric) for one in metrics]
            if any(value is None for value in values):
                continue
            if any(value is not None and value <= 0 for value in values):
                return None
            logs = [math.log(value) for value in values if value is not None]
            log = math.fsum(logs[: len(above)]) - math.fsum(logs[len(above) :])
            found.setdefault((above[0].trace, week), []).append(math.exp(log))
            known = True
        counted += known
    return over_pieces(found, counted) if found else None


def ratios(runs: Runs, policy: str, baseline: str, metric: str) -> list[float]:
    """The ratio of each pair of whole runs, by trace, queue and seed.

    Pairs in which either side lacks the metric (no job of that class) are left out. Where
    any pair has a zero (no wait, no moves) there is no ratio, and leaving out just those
    pairs would bend the rest, so the answer is empty.
    """
    found: list[float] = []
    for ours, theirs in pairs(runs, policy, baseline):
        above, below = ours.value(metric), theirs.value(metric)
        if above is None or below is None:
            continue
        if above <= 0 or below <= 0:
            return []
        found.append(above / below)
    return found


def pairs(runs: Runs, policy: str, baseline: str) -> list[tuple[Metrics, Metrics]]:
    """(policy's, baseline's) metrics of each pair, by trace, queue and seed. Errors as for `paired`."""
    return [(ours.metrics, theirs.metrics) for ours, theirs in _pairs(runs, policy, baseline)]


def _pairs(runs: Runs, policy: str, baseline: str) -> list[tuple[ReplayMetrics, ReplayMetrics]]:
    """The two runs of each pair.

    Interrupted runs are left out: which of their jobs had ended depends on the policy.
    Errors as for `paired`.
    """
    sides: dict[str, dict[tuple[int, str, int], ReplayMetrics]] = {policy: {}, baseline: {}}
    names: dict[str, None] = {}
    for run in measure_all(runs):
        names[run.policy] = None
        if run.complete and run.policy in sides:
            if (run.trace, run.queue, run.seed) in sides[run.policy]:
                raise ValueError(f"{run.policy} was run twice with queue {run.queue} and seed {run.seed}")
            sides[run.policy][run.trace, run.queue, run.seed] = run
    for name in sides:
        if name not in names:
            raise UsageError(f"no run of policy {name!r}; there are runs of {', '.join(names) or 'none'}")
    keys = sorted(sides[policy].keys() & sides[baseline].keys())
    both = [(sides[policy][key], sides[baseline][key]) for key in keys]
    for key, (ours, theirs) in zip(keys, both, strict=True):
        if ours.metrics.jobs != theirs.metrics.jobs:
            jobs = f"{ours.metrics.jobs} jobs under {policy}, {theirs.metrics.jobs} under {baseline}"
            raise ValueError(f"{key} is not a pair: {jobs}")
    return both


def summary(values: Sequence[float]) -> Ratio:
    """Means and 95 % intervals of independent ratios (n,), all > 0, n >= 1; see `paired` for the method."""
    return _summary(values, [math.log(value) for value in values], len(values))


def over_pieces(found: Mapping[Piece, Sequence[float]], counted: int) -> Ratio:
    """Of ratios, all > 0, in each independent piece (one for each seed), averaged there; `counted` pairs of runs."""
    means = [math.fsum(values) / len(values) for values in found.values()]
    return _summary(means, [math.fsum(map(math.log, values)) / len(values) for values in found.values()], counted)


def _summary(means: Sequence[float], mean_logs: Sequence[float], counted: int) -> Ratio:
    """Of the pieces' arithmetic means and mean logs (n,), over `counted` pairs."""
    data, logs = np.asarray(means, dtype=np.float64), np.asarray(mean_logs, dtype=np.float64)
    n = len(data)
    mean, geomean = float(data.mean()), float(np.exp(logs.mean()))
    sd = float(logs.std(ddof=1)) if n > 1 else None
    if n < LEAST_PIECES:
        return Ratio(mean, None, None, counted, geomean, None, None, sd, n)
    if np.ptp(logs) < SAME:
        return Ratio(mean, mean, mean, counted, geomean, geomean, geomean, 0.0, n)
    arithmetic = _bootstrap(data) or _cox(logs)
    inner = _bootstrap(logs)
    geometric = (math.exp(inner[0]), math.exp(inner[1])) if inner else _student(logs)
    return Ratio(mean, *arithmetic, counted, geomean, *geometric, sd, n)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of values (n,) that are not ratios, and its 95 % t interval; no width for n = 1."""
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    half = _t(len(data)) * float(data.std(ddof=1)) / math.sqrt(len(data)) if len(data) > 1 else 0.0
    return mean, mean - half, mean + half


def needed(ratio: Ratio, half_width: float) -> int | None:
    """How many independent pieces would bring the geometric mean's interval to geomean x/ (1 + half_width).

    `half_width` is relative: 0.02 for 2 %. Supposes that further pieces scatter as these do.
    None with a single one, whose scatter is unknown. Raises ValueError for half_width <= 0.
    """
    if half_width <= 0:
        raise ValueError(f"a half-width is above 0, not {half_width}")
    if ratio.log_sd is None:
        return None
    sd, most = ratio.log_sd, math.log1p(half_width)

    def wide(n: int) -> bool:
        return _t(n) * sd / math.sqrt(n) > most

    low, high = 1, 2  # one piece has no interval
    while wide(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wide(middle) else (low, middle)
    return high


def verdict(ratio: Ratio | None) -> Verdict:
    """Whether the policy is clearly below (gain) or above (loss) the baseline.

    Both intervals must agree: one skewed piece can carry the arithmetic mean alone. Without enough independent
    pieces there is none, and nothing can be told.
    """
    if ratio is None:
        return "unclear"
    if ratio.low is None or ratio.high is None or ratio.geo_low is None or ratio.geo_high is None:
        return "cannot tell"
    if max(ratio.high, ratio.geo_high) < 1:
        return "gain"
    return "loss" if min(ratio.low, ratio.geo_low) > 1 else "unclear"


def share_of_worst(total_ratio: float, capped_ratio: float) -> float | None:
    """The share of the gain that is lost when the k worst GPUs are replaced by median ones, 0..1.

    1 - log(capped) / log(total). 1 when nothing is gained without those GPUs (also when the
    policy then loses), 0 when as much or more is gained without them; None when there is no
    gain in the first place. Raises ValueError for ratios that are not above 0.
    """
    if not (total_ratio > 0 and capped_ratio > 0):
        raise ValueError(f"ratios are above 0, not {total_ratio} and {capped_ratio}")
    if total_ratio >= 1:
        return None
    return min(1.0, max(0.0, 1.0 - math.log(capped_ratio) / math.log(total_ratio)))


def worst_tenth(runs: Runs, policy: str, baseline: str, group: str = "user_jct_s") -> WorstTenth | None:
    """The tenth (at least one) of users, or accounts, whose JCT ratio is the highest.

    Being the highest of many noisy ratios, it lies above 1 even when a policy treats all
    alike. None with fewer than two users that every pair knows.
    """
    both = pairs(runs, policy, baseline)
    sides = [(getattr(ours, group), getattr(theirs, group)) for ours, theirs in both]
    known = sorted(set.intersection(*(set(ours) & set(theirs) for ours, theirs in sides)) if sides else ())
    each = [[ours[name] / theirs[name] for ours, theirs in sides if theirs[name] > 0] for name in known]
    logs = sorted((float(np.log(values).mean()) for values in each if values and min(values) > 0), reverse=True)
    if len(logs) < 2:
        return None
    members = math.ceil(len(logs) / 10)
    return WorstTenth(math.exp(math.fsum(logs[:members]) / members), members, len(logs))


def _stats() -> ModuleType:
    """scipy.stats, imported here: it takes long, and most commands never need it."""
    try:
        return import_module("scipy.stats")
    except ImportError as error:
        text = "intervals need SciPy: apt-get install python3-scipy, or pip install scipy"
        raise MissingPackageError(text) from error


def _t(n: int) -> float:
    return float(_stats().t.ppf((1 + LEVEL) / 2, n - 1))


def _student(logs: NDArray[np.float64]) -> tuple[float, float]:
    """t interval on the logs: of the geometric mean."""
    half = _t(len(logs)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def _cox(logs: NDArray[np.float64]) -> tuple[float, float]:
    """Cox's interval for the mean of a lognormal, with t quantiles (Olsson 2005)."""
    n, variance = len(logs), float(logs.var(ddof=1))
    half = _t(n) * math.sqrt(variance / n + variance**2 / (2 * (n - 1)))
    centre = float(logs.mean()) + variance / 2
    return math.exp(centre - half), math.exp(centre + half)


def _bootstrap(data: NDArray[np.float64]) -> tuple[float, float] | None:
    """BCa interval of the mean; None with too few values, or where BCa is not defined."""
    if len(data) < BOOTSTRAP_PIECES:
        return None
    stats = _stats()
    # Resamples scatter by the divisor n, not n - 1, and know no t quantile: ask for a higher
    # level, by just what turns a normal quantile into t x sqrt(n / (n - 1)).
    quantile = _t(len(data)) * math.sqrt(len(data) / (len(data) - 1))
    level = float(stats.norm.cdf(quantile) - stats.norm.cdf(-quantile))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # BCa not defined: shown by its NaN
        found = stats.bootstrap(
            (data,),
            np.mean,
            confidence_level=level,
            n_resamples=RESAMPLES,
            method="BCa",
            random_state=np.random.default_rng(SEED),
        ).confidence_interval
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
