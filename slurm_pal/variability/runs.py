# SPDX-License-Identifier: MIT
"""From records to observations: one number per GPU, benchmark and sweep.

Everything that decides whether two numbers may be compared is in `Group`; everything
that makes an older number of the same GPU worthless is in `Environment`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean, median, stdev
from typing import NamedTuple

from slurm_pal.variability import regime
from slurm_pal.variability.packed import Layout, Packed
from slurm_pal.variability.params import DAY_S, TIME_UNITS, Params
from slurm_pal.variability.power_limit import limit_text
from slurm_pal.variability.records import Record

INVALIDATING = frozenset({"foreign_process", "ecc", "xid"})
RUN_FLAGS = INVALIDATING | {
    "no_answer", "missing", "degraded", "thermal_limited", "config_differs", "host_noise", "unsteady", "noisy",
    "clock_skew", "pcie_link",
}  # fmt: skip
"""Flags that a run may carry; those that come from comparing GPUs are set only in this room."""


class Group(NamedTuple):
    """Numbers are compared only within one group."""

    sensitivity: str  # "A", "B", "C", or "" for node health
    benchmark: str
    vendor: str
    model: str
    mem_gib: int  # rounded: drivers reserve a little, and not always the same
    config_group: str
    method_hash: str
    unit: str


class Environment(NamedTuple):
    """What turns a GPU's older numbers into unknown ones when it changes; "" where not known."""

    driver_major: str
    vbios: str
    power_limit_w: str
    ecc_mode: str
    mig_mode: str

    def changed_since(self, older: Environment) -> bool:
        """Whether a setting that both know differs."""
        return self != older and any(a != b and a and b for a, b in zip(self, older, strict=True))


class SweepObservation(NamedTuple):
    """One GPU's value in one sweep: the median over its usable runs there."""

    uuid: str
    group: Group
    ts: float  # Unix s of the newest run used
    speed: float  # natural logarithm of throughput, or of 1/time: larger is faster
    weight: float  # 1 valid, 0.25 unsteady
    noise: float  # relative SD that the runs themselves report (by their confidence interval)
    repeat_cv: float | None  # relative SD over the runs of this sweep, None for a single run
    flags: frozenset[str]
    power_w: float | None  # median under load
    environment: Environment
    met_cap: float | None = None  # share of its runs that met the power cap; None where not known


class Sighting(NamedTuple):
    """Where and how a GPU was last seen; valid or not, every run is one."""

    ts: float
    run_id: str
    uuid: str
    node: str
    slot: int  # Slurm's GPU index on the node
    vendor: str
    model: str
    environment: Environment
    settings: tuple[str, ...]  # what peers of the same model should share
    flags: frozenset[str]  # of all its runs in that sweep
    clean: bool  # it was measured in a sensitivity class, and none of its runs failed


OBSERVATIONS = Layout(
    kind=SweepObservation._make,
    fields=SweepObservation._fields,
    numbers=frozenset({"ts", "speed", "noise", "repeat_cv", "power_w", "met_cap"}),
    optional=frozenset({"repeat_cv", "power_w", "met_cap"}),
    load={"group": Group._make, "flags": frozenset, "environment": Environment._make},
)
SIGHTINGS = Layout(
    kind=Sighting._make,
    fields=Sighting._fields,
    numbers=frozenset({"ts"}),
    optional=frozenset(),
    load={"environment": Environment._make, "settings": tuple, "flags": frozenset},
)


class SweepRuns(NamedTuple):
    """All runs of one sweep, as far as they have come in; both by UUID."""

    ts: float  # lower median of its runs
    sweep_id: str
    observations: Packed[SweepObservation]
    sightings: Packed[Sighting]


def sweeps(records: Iterable[Record], now_s: float, params: Params) -> list[SweepRuns]:
    """The sweeps within the retention horizon, in time order.

    The order of `records` does not matter, nor do repeated `run_id`s. A run from the
    future (a clock that was wrong) counts as made now, and is flagged.
    """
    unique = {record.run_id: record for record in sorted(records, key=_sort_key, reverse=True)}
    by_sweep: dict[str, dict[str, list[Record]]] = {}
    for record in unique.values():
        by_sweep.setdefault(record.sweep_id, {}).setdefault(record.gpu.uuid, []).append(record)
    found = (
        reduced(sweep_id, (runs for _, runs in sorted(by_gpu.items())), now_s, params)
        for sweep_id, by_gpu in by_sweep.items()
    )
    return sorted((sweep for sweep in found if sweep is not None), key=_by_time)


def reduced(sweep_id: str, by_gpu: Iterable[list[Record]], now_s: float, params: Params) -> SweepRuns | None:
    """One sweep from the records of one GPU after another, by UUID; None when all are too old.

    Only the records of one GPU need to be in memory at a time.
    """
    oldest_s = horizon_s(now_s, params)
    observations, sightings, ends = Packed[SweepObservation](OBSERVATIONS), Packed[Sighting](SIGHTINGS), array("d")
    for all_runs in by_gpu:
        runs = [record for record in all_runs if record.ts_end >= oldest_s]
        if not runs:
            continue
        runs.sort(key=lambda r: (min(r.ts_end, now_s), r.run_id))
        ends.extend(min(record.ts_end, now_s) for record in runs)
        _reduce(runs, observations, sightings, now_s, params)
    if not ends:
        return None
    return SweepRuns(sorted(ends)[(len(ends) - 1) // 2], sweep_id, observations, sightings)


def horizon_s(now_s: float, params: Params) -> float:
    """Records older than this (Unix s) take no part."""
    return now_s - params.retention_d * DAY_S


def in_order(batches: Iterable[tuple[float, SweepRuns | None]], now_s: float) -> Iterator[SweepRuns]:
    """Sweeps in time order, with only those in memory that overlap in time.

    A batch is (Unix s of the oldest record of a sweep, that sweep); they come in order of that time.
    """
    waiting: list[SweepRuns] = []
    for first_s, sweep in batches:
        over_s = min(first_s, now_s)  # no sweep still to come is older
        yield from sorted((one for one in waiting if one.ts < over_s), key=_by_time)
        waiting = [one for one in waiting if one.ts >= over_s]
        waiting += [sweep] if sweep is not None else []
        del sweep  # else it would stay while the next one is read
    yield from sorted(waiting, key=_by_time)


def _by_time(sweep: SweepRuns) -> tuple[float, str]:
    return (sweep.ts, sweep.sweep_id)


def _sort_key(record: Record) -> tuple[str, float, str, str]:
    return (record.run_id, record.ts_end, record.gpu.uuid, record.bench.id)


def _reduce(
    runs: list[Record],
    observations: Packed[SweepObservation],
    sightings: Packed[Sighting],
    now_s: float,
    params: Params,
) -> None:
    """Add what the runs of one GPU in one sweep show; `runs` by time."""
    by_group: dict[Group, list[Record]] = {}
    flags = {record.run_id: run_flags(record, now_s, params) for record in runs}
    for record in runs:
        by_group.setdefault(group_of(record), []).append(record)
    for group, mine in sorted(by_group.items()):
        seen = _observation(runs[0].gpu.uuid, group, mine, flags, now_s, params)
        if seen is not None:
            observations.append(seen)
    sightings.append(_sighting(runs, flags, now_s))


def group_of(record: Record) -> Group:
    """The group within which the record's value may be compared."""
    gpu, bench = record.gpu, record.bench
    return Group(
        sensitivity=bench.sensitivity_class,
        benchmark=bench.id,
        vendor=gpu.vendor,
        model=gpu.model,
        mem_gib=round(gpu.mem_bytes / 2**30),
        config_group=record.env.config_group,
        method_hash=bench.method_hash,
        unit=record.result.unit,
    )


def environment_of(record: Record) -> Environment:
    """The settings in force during the run."""
    return Environment(
        driver_major=record.env.driver.partition(".")[0],
        vbios=record.gpu.vbios,
        power_limit_w=limit_text(record.env.power_limit_w),
        ecc_mode="" if record.gpu.ecc_mode == "unknown" else record.gpu.ecc_mode,
        mig_mode="" if record.gpu.mig_mode == "unknown" else record.gpu.mig_mode,
    )


def run_flags(record: Record, now_s: float, params: Params) -> frozenset[str]:
    """Flags of one run: those it brought along, and those its telemetry and clock show."""
    found = set(record.flags) & RUN_FLAGS
    duty = {name: number(record.telemetry, "duty", name) or 0.0 for name in _DUTIES}
    if max(duty["hw_slowdown"], duty["hw_thermal"], duty["power_brake"]) > params.degraded_duty:
        found.add("degraded")
    if duty["sw_thermal"] > params.thermal_duty:
        found.add("thermal_limited")
    if record.result.stop_reason == "timeout":
        found.add("no_answer")
    if not record.result.steady and record.valid:
        found.add("unsteady")
    # Health checks say whether a link works; transfers and launches jitter on a healthy node, too.
    if record.bench.sensitivity_class and record.result.cv_pct > params.noisy_cv_pct:
        found.add("noisy")
    if record.ts_end > now_s + params.future_tolerance_s:
        found.add("clock_skew")
    return frozenset(found)


_DUTIES = ("hw_slowdown", "hw_thermal", "power_brake", "sw_thermal")


def met_cap(record: Record, flags: frozenset[str], params: Params) -> bool | None:
    """Whether a run met the power cap of its GPU; `flags` are its own. None where the sensors do not show it."""
    return regime.met_cap(
        number(record.telemetry, "duty", "power_cap"),
        number(record.telemetry, "power_w", "p50"),
        record.env.power_limit_w,
        bool(flags & {"degraded", "thermal_limited"}),
        params,
    )


def weight_of(record: Record, flags: frozenset[str], params: Params) -> float:
    """1 for a valid run, less for an unsteady or noisy one, 0 for one that says nothing."""
    if not record.valid or record.result.value <= 0 or flags & INVALIDATING:
        return 0.0
    if "host_noise" in flags and record.bench.sensitivity_class in ("B", ""):
        return 0.0  # a busy host slows launches and copies, not a GEMM
    return params.unsteady_weight if flags & {"unsteady", "noisy"} else 1.0


def number(table: Mapping[str, object], *path: str) -> float | None:
    """A finite number somewhere in a telemetry table; None where it is absent or something else."""
    value: object = table
    for name in path:
        value = value.get(name) if isinstance(value, dict | Mapping) else None  # dict first: the common and fast case
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _observation(
    uuid: str, group: Group, records: list[Record], flags: dict[str, frozenset[str]], now_s: float, params: Params
) -> SweepObservation | None:
    weights = [weight_of(record, flags[record.run_id], params) for record in records]
    best = max(weights)
    if best == 0.0:
        return None
    used = [record for record, weight in zip(records, weights, strict=True) if weight == best]
    # One to a few values: the standard library is ten times faster here than an array.
    values = [float(record.result.value) for record in used]
    log_value = math.log(median(values))
    powers = [w for r in used if (w := number(r.telemetry, "power_w", "p50"))]  # 0 W: not known (second die of a card)
    return SweepObservation(
        uuid=uuid,
        group=group,
        ts=min(used[-1].ts_end, now_s),
        speed=-log_value if group.unit in TIME_UNITS else log_value,
        weight=best,
        noise=max(0.0, median([r.result.ci95_pct for r in used])) / 196.0,
        repeat_cv=stdev(values) / fmean(values) if len(used) > 1 else None,
        flags=frozenset().union(*(flags[r.run_id] for r in used)),
        power_w=median(powers) if powers else None,
        environment=environment_of(used[-1]),
        met_cap=regime.share(met_cap(r, flags[r.run_id], params) for r in used),
    )


def _sighting(records: list[Record], flags: dict[str, frozenset[str]], now_s: float) -> Sighting:
    last = records[-1]
    env = last.env
    limits = (limit_text(env.power_limit_w), limit_text(env.default_power_limit_w))
    clocks = "default" if env.app_clocks_mhz is None else f"{env.app_clocks_mhz:g}"
    return Sighting(
        ts=min(last.ts_end, now_s),
        run_id=last.run_id,
        uuid=last.gpu.uuid,
        node=last.node_name,
        slot=last.gpu.slurm_index,
        vendor=last.gpu.vendor,
        model=last.gpu.model,
        environment=environment_of(last),
        settings=(env.config_group, "" if last.gpu.ecc_mode == "unknown" else last.gpu.ecc_mode, *limits, clocks),
        flags=frozenset().union(*(flags[r.run_id] for r in records)),
        clean=all(r.valid and not flags[r.run_id] & INVALIDATING for r in records)
        and any(r.bench.sensitivity_class for r in records),
    )
