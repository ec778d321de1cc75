# SPDX-License-Identifier: MIT
"""Two sweeps against each other, GPU by GPU: before and after a maintenance, a driver, a firmware. Pure.

Each GPU is its own control: what counts is the ratio of its times, after to before; above 1 is
slower. Where both sweeps used the same method, the numbers themselves compare. Where they did
not (a new driver is part of the method), each GPU is taken relative to the median of its sweep:
this shows which GPUs changed places, but not whether all became faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from slurm_pal.base.errors import DataError
from slurm_pal.variability.kmeans import Floats
from slurm_pal.variability.params import Params
from slurm_pal.variability.power_limit import limit_text
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, Sighting, SweepObservation, group_of, number, sweeps
from slurm_pal.variability.track import drift_variance

FALSE_SHARE = 0.05  # at most this share of the GPUs called changed is so by chance (Benjamini-Hochberg)
CONFIDENCE = 0.95
ENOUGH_FOR_ORDER = 6  # fewer GPUs have no 95 % interval by order statistics
ENOUGH_FOR_NOISE = 20  # with at least this many the noise is also estimated from the ratios
SHORT = 1.6  # the shortest stretch of n normal values is shorter by this over the root of n (simulated)
SENSORS = {"clock_mhz": ("sm_clk_mhz", "p50"), "power_w": ("power_w", "p50"), "temp_c": ("temp_c", "p50")}


class GpuRatio(NamedTuple):
    """One GPU in one benchmark."""

    uuid: str
    node: str  # where it was afterwards
    slot: int
    ratio: float  # of times, after to before
    p_value: float  # of no change, two-sided
    changed: bool  # beyond noise, with the correction for many GPUs


class BenchmarkComparison(NamedTuple):
    """One benchmark on one GPU model, over all GPUs measured in both sweeps."""

    benchmark: str
    sensitivity: str  # "A", "B", "C", or "" for node health
    model: str
    relative: bool  # to each sweep's own median, because the methods differ
    differs: tuple[str, ...]  # what differs in the method, as far as the records show
    ratio: float  # median over GPUs
    raw_ratio: float  # of the numbers themselves; where methods differ, it compares different things
    low: float | None  # 95 % interval of the median; None for one GPU
    high: float | None
    interval: str  # "order" statistics, or "t" on logarithms for fewer than 6 GPUs; "" for one
    p_value: float | None  # Wilcoxon signed-rank over the GPUs; None for fewer than 6, and where relative
    noise: float  # relative SD of one GPU's ratio by chance
    gpus: tuple[GpuRatio, ...]  # all, most changed first
    sensors: dict[str, tuple[float, float]]  # name -> medians over the GPUs before, after

    @property
    def changed(self) -> tuple[GpuRatio, ...]:
        """The GPUs that changed beyond noise."""
        return tuple(g for g in self.gpus if g.changed)

    def to_json(self) -> dict[str, Any]:
        """One entry of `rows` in pal.compare/1."""
        table = self._asdict() | {"differs": list(self.differs)}
        table["gpus"] = [g._asdict() for g in self.gpus]
        table["sensors"] = {name: {"before": a, "after": b} for name, (a, b) in self.sensors.items()}
        return table | {"n_gpus": len(self.gpus), "n_changed": len(self.changed)}


class GpuSlots(NamedTuple):
    """A GPU and its slots; None where it was not seen."""

    uuid: str
    before: tuple[str, int] | None
    after: tuple[str, int] | None


class SweepComparison(NamedTuple):
    """What two sweeps have in common, and what they do not."""

    rows: tuple[BenchmarkComparison, ...]
    moved: tuple[GpuSlots, ...]
    appeared: tuple[GpuSlots, ...]  # on nodes that both sweeps measured
    vanished: tuple[GpuSlots, ...]  # likewise
    only_before: int  # GPUs of nodes that the other sweep did not measure
    only_after: int
    environment: dict[str, dict[str, int]]  # "driver 550.1 -> 560.2" and the like -> GPUs, by setting


class _Side(NamedTuple):
    """One sweep, ready to be looked up."""

    seen: dict[str, Sighting]
    observed: dict[tuple[str, str], SweepObservation]  # (uuid, benchmark) -> newest
    records: dict[tuple[str, Group], Record]  # newest


def compare(before: Sequence[Record], after: Sequence[Record], params: Params | None = None) -> SweepComparison:
    """Compare the records of two sweeps. Raises DataError when no GPU was measured in both."""
    params = params or Params()
    old, new = _side(before, params), _side(after, params)
    pairs: dict[tuple[Group, bool], list[tuple[SweepObservation, SweepObservation]]] = {}
    for key in sorted(old.observed.keys() & new.observed.keys()):
        a, b = old.observed[key], new.observed[key]
        if a.group.unit == b.group.unit:
            pairs.setdefault((b.group, a.group != b.group), []).append((a, b))
    if not pairs:
        raise DataError("the two sweeps have no GPU and benchmark in common: compare sweeps over the same nodes")
    rows = [_row(group, relative, some, old, new, params) for (group, relative), some in pairs.items()]
    rows.sort(key=lambda r: (not r.sensitivity, r.sensitivity, r.benchmark, r.model, r.relative))
    return SweepComparison(tuple(rows), *_places(old.seen, new.seen), _environment(old, new))


def _side(records: Sequence[Record], params: Params) -> _Side:
    horizon_s = max((r.ts_end for r in records), default=0.0)
    seen: dict[str, Sighting] = {}
    observed: dict[tuple[str, str], SweepObservation] = {}
    for sweep in sweeps(records, horizon_s, params._replace(retention_d=math.inf)):
        seen |= {s.uuid: s for s in sweep.sightings}
        for one in sweep.observations:
            key = (one.uuid, one.group.benchmark)
            if key not in observed or observed[key].ts <= one.ts:
                observed[key] = one
    newest = {(r.gpu.uuid, group_of(r)): r for r in sorted(records, key=lambda r: r.ts_end) if r.valid}
    return _Side(seen, observed, newest)


def _row(
    group: Group,
    relative: bool,
    pairs: Sequence[tuple[SweepObservation, SweepObservation]],
    old: _Side,
    new: _Side,
    params: Params,
) -> BenchmarkComparison:
    raw = np.array([a.speed - b.speed for a, b in pairs])
    logs = raw - np.median(raw) if relative else raw
    sd = _noise(logs, np.array([_pair_sd(a, b, params) for a, b in pairs]))
    p_values = _normal_p(np.abs(logs) / sd)
    changed = benjamini_hochberg(p_values)
    low, high, kind = median_interval(logs)
    gpus = [
        GpuRatio(b.uuid, new.seen[b.uuid].node, new.seen[b.uuid].slot, math.exp(x), float(p), bool(c))
        for (_, b), x, p, c in zip(pairs, logs, p_values, changed, strict=True)
    ]
    both = [(old.records[a.uuid, a.group], new.records[b.uuid, b.group]) for a, b in pairs]
    return BenchmarkComparison(
        benchmark=group.benchmark,
        sensitivity=group.sensitivity,
        model=group.model,
        relative=relative,
        differs=_differences(both) if relative else (),
        ratio=math.exp(float(np.median(logs))),
        raw_ratio=math.exp(float(np.median(raw))),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
        interval=kind,
        p_value=None if relative else signed_rank_p(logs),
        noise=float(np.median(sd)),
        gpus=tuple(sorted(gpus, key=lambda g: (g.p_value, g.uuid))),
        sensors=_sensors(both),
    )


def _pair_sd(a: SweepObservation, b: SweepObservation, params: Params) -> float:
    """SD of a GPU's log ratio when nothing has changed: two runs, and the GPU's wandering in between."""
    runs = sum(max(params.repeatability, one.noise, one.repeat_cv or 0.0) ** 2 / one.weight for one in (a, b))
    return math.sqrt(runs + drift_variance(abs(b.ts - a.ts), params))


def _noise(logs: Floats, known: Floats) -> Floats:
    """The known SD or, if larger, what the ratios themselves show.

    The two fifths that lie closest together show it: of a normal distribution the middle two
    fifths are 1.0488 SD wide. So up to three fifths may have changed without being taken for
    noise. The shortest of many stretches is somewhat short by chance, see `SHORT`.
    """
    if len(logs) < ENOUGH_FOR_NOISE:
        return known
    ordered = np.sort(logs)
    inside = math.ceil(0.4 * len(logs))
    width = float((ordered[inside - 1 :] - ordered[: len(logs) - inside + 1]).min())
    return np.maximum(known, width / 1.0488 / (1.0 - SHORT / math.sqrt(len(logs))))


def _normal_p(z: Floats) -> Floats:
    return np.array([math.erfc(x / math.sqrt(2.0)) for x in z])


def benjamini_hochberg(p_values: Floats, share: float = FALSE_SHARE) -> Any:  # noqa: ANN401 - a mask
    """Which of many tests to believe so that at most `share` of those believed are false (JRSS B 57, 1995)."""
    order = np.argsort(p_values, kind="stable")
    below = p_values[order] <= share * np.arange(1, len(p_values) + 1) / len(p_values)
    mask = np.zeros(len(p_values), dtype=np.bool_)
    if below.any():
        mask[order[: int(np.flatnonzero(below)[-1]) + 1]] = True
    return mask


def median_interval(values: Floats) -> tuple[float | None, float | None, str]:
    """(low, high, kind) of a 95 % interval of the median.

    By order statistics, which assume nothing about the distribution; by t for fewer than 6 values.
    """
    stats = import_module("scipy.stats")  # here: it takes long, and only comparisons need it

    n = len(values)
    if n < 2:
        return None, None, ""
    if n < ENOUGH_FOR_ORDER:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * float(values.std(ddof=1)) / math.sqrt(n)
        return float(values.mean()) - half, float(values.mean()) + half, "t"
    # The chance that fewer than `rank` values lie below the median is under 2.5 %, and likewise above.
    rank = int(stats.binom.ppf((1 - CONFIDENCE) / 2, n, 0.5))
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[n - rank]), "order"


def signed_rank_p(values: Floats) -> float | None:
    """Two-sided p of Wilcoxon's signed-rank test that the median is 0; None for fewer than 6 values."""
    stats = import_module("scipy.stats")  # here: it takes long, and only comparisons need it

    moved = values[values != 0.0]
    if len(values) < ENOUGH_FOR_ORDER:
        return None
    if len(moved) < ENOUGH_FOR_ORDER:
        return 1.0
    return float(stats.wilcoxon(moved, method="exact" if len(moved) <= 25 else "approx").pvalue)


def _differences(pairs: Sequence[tuple[Record, Record]]) -> tuple[str, ...]:
    """What differs in the method, most common first."""
    found: Counter[str] = Counter()
    for a, b in pairs:
        for name, (x, y) in _method(a, b).items():
            if x != y:
                found[f"{name} {x or '?'} -> {y or '?'}"] += 1
    return tuple(text for text, _ in found.most_common(6)) or ("method",)


def _method(a: Record, b: Record) -> dict[str, tuple[str, str]]:
    def of(record: Record) -> dict[str, str]:
        env, bench = record.env, record.bench
        libs = {f"library {name}": version for name, version in env.libs.items()}
        return {
            "driver": env.driver, "backend": env.backend, "runtime": env.runtime, "settings": env.config_group,
            "power limit W": limit_text(env.power_limit_w),
            "ECC": record.gpu.ecc_mode, "MIG": record.gpu.mig_mode,
            "mode": bench.mode, "shape": bench.shape, "dtype": bench.dtype, "version": str(bench.version), **libs,
        }  # fmt: skip

    left, right = of(a), of(b)
    return {name: (left.get(name, ""), right.get(name, "")) for name in {**left, **right}}


def _sensors(pairs: Sequence[tuple[Record, Record]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, path in SENSORS.items():
        values = [(number(a.telemetry, *path), number(b.telemetry, *path)) for a, b in pairs]
        known = [(x, y) for x, y in values if x is not None and y is not None]
        if known:
            found[name] = (float(np.median([x for x, _ in known])), float(np.median([y for _, y in known])))
    return found


def _places(
    old: Mapping[str, Sighting], new: Mapping[str, Sighting]
) -> tuple[tuple[GpuSlots, ...], tuple[GpuSlots, ...], tuple[GpuSlots, ...], int, int]:
    nodes = {s.node for s in old.values()} & {s.node for s in new.values()}
    moved, appeared, vanished = [], [], []
    only_before = only_after = 0
    for uuid in sorted({*old, *new}):
        a, b = old.get(uuid), new.get(uuid)
        place = GpuSlots(uuid, (a.node, a.slot) if a else None, (b.node, b.slot) if b else None)
        if a and b:
            moved += [place] if place.before != place.after else []
        elif a:
            vanished += [place] if a.node in nodes else []
            only_before += a.node not in nodes
        elif b:
            appeared += [place] if b.node in nodes else []
            only_after += b.node not in nodes
    return tuple(moved), tuple(appeared), tuple(vanished), only_before, only_after


def _environment(old: _Side, new: _Side) -> dict[str, dict[str, int]]:
    """Which settings changed on how many GPUs, by the newest record of each."""
    latest = [{uuid: record for (uuid, _), record in side.records.items()} for side in (old, new)]
    found: dict[str, Counter[str]] = {}
    for uuid in latest[0].keys() & latest[1].keys():
        a, b = latest[0][uuid], latest[1][uuid]
        settings = {"VBIOS": (a.gpu.vbios, b.gpu.vbios), **_method(a, b)}
        for name in ("driver", "VBIOS", "power limit W", "ECC", "MIG", "runtime", "backend"):
            x, y = settings[name]
            if x != y:
                found.setdefault(name, Counter())[f"{x or '?'} -> {y or '?'}"] += 1
    return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}
