# SPDX-License-Identifier: MIT
"""Checks of one card, as pure judgements of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from slurm_pal.profiling.node.benchmarks import Benchmark, by_id
from slurm_pal.profiling.node.devices import DeviceInfo, Static
from slurm_pal.profiling.node.measurement import mig_refusal
from slurm_pal.profiling.node.repeat import GpuRepeats, spread
from slurm_pal.profiling.node.telemetry import config_group
from slurm_pal.profiling.selftest import limits
from slurm_pal.variability.params import TIME_UNITS, Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import met_cap

OK, FAILED, NOT_CHECKED = "ok", "failed", "not checked"
INCOMPLETE, INTERRUPTED = "incomplete", "interrupted"
"""Verdicts on the whole beside the first two."""

FLAG_REASONS = {
    "degraded": "the board held the clock back (hardware slowdown, heat or power brake): read its throttle reasons",
    "thermal_limited": "heat held the clock back: check cooling",
    "ecc": "memory errors that could not be corrected: reset the GPU",
    "xid": "the driver reported an error of the device: read dmesg",
    "foreign_process": "another process was on the GPU",
    "config_differs": "its power limit or clocks are not the default ones, or MPS is on",
    "host_noise": "the node's processors were busy, or their time was stolen: run it on an idle node",
    "pcie_link": "its PCIe link has fewer lanes than card and slot could use: reseat it",
    "unsteady": "block times or temperature did not settle during the warm-up",
    "noisy": f"blocks of a second scatter by more than {limits.BLOCK_CV_PCT:g} %",
}
MIG_ON = "MIG is enabled, and a partition is no whole GPU: switch it off (nvidia-smi -mig 0), or take another GPU"
NEEDED_SENSORS = ("sm_clk_mhz", "power_w", "temp_c", "reasons")
"""Without these a record cannot show in which regime a value was measured."""


OTHER_CAUSES = ("hw_slowdown", "hw_thermal", "sw_thermal", "power_brake")
"""Duties of a record that keep a clock low without the power cap."""


SET_OTHERWISE = "it is compared with GPUs set alike only, and our limits are for the default"
SAME = "all {} runs gave the same value: nothing was repeated"


class Check(NamedTuple):
    """One thing that holds, does not, or could not be looked at."""

    step: str
    name: str
    verdict: str
    text: str = ""  # what was seen; of a check that was not made, why
    value: float | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    source: str = ""  # of the limit

    def to_json(self) -> dict[str, Any]:
        """One entry of `checks` in pal.selftest/1."""
        return self._asdict() | {"value": _finite(self.value)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def holds(step: str, name: str, good: bool, text: str, source: str = "") -> Check:
    """A check without a number."""
    return Check(step, name, OK if good else FAILED, text, source=source)


def within(
    step: str,
    name: str,
    value: float | None,
    unit: str,
    low: float | None,
    high: float | None,
    source: str,
    text: str = "",
) -> Check:
    """A number that should be in a range; one that is missing or not finite is not."""
    if value is None or not math.isfinite(value):
        return Check(step, name, FAILED, text or "no number came out", None, unit, low, high, source)
    good = (low is None or value >= low) and (high is None or value <= high)
    return Check(step, name, OK if good else FAILED, text, value, unit, low, high, source)


def not_checked(step: str, name: str, why: str) -> Check:
    """A check that could not be made. It never counts as one that holds."""
    return Check(step, name, NOT_CHECKED, why)


def of_settings(static: Static) -> list[Check]:
    """What the driver says the card is set to."""
    group, refusal = config_group(static), mig_refusal(static, wanted=False)
    limit = "" if static.power_limit_w is None else f"{static.power_limit_w:g} W"
    default = "" if static.default_power_limit_w is None else f"{static.default_power_limit_w:g} W"
    rows = [holds("device", "MIG off", not refusal, MIG_ON if refusal else f"MIG {static.mig_mode}")]
    if not (limit and default):
        rows.append(not_checked("device", "default limits", "its power limits are not reported"))
    else:
        clocks = "" if static.app_clocks_mhz is None else f", clocks set to {static.app_clocks_mhz:g} MHz"
        text = f"power limit {limit} of {default}{clocks}"
        if group == "default":
            rows.append(holds("device", "default limits", True, text, "the driver's own defaults"))
        else:  # a site may have set them for good reasons, and a container may not change them
            rows.append(not_checked("device", "default limits", f"{text}: {SET_OTHERWISE}"))
    text = "an MPS server shares the GPU: stop it" if static.mps else "no MPS server"
    return [*rows, holds("device", "MPS off", not static.mps, text)]


def of_sensors(fields: Sequence[str], vendor: str) -> Check:
    """Whether the sensors show what a record needs. A file shows what it holds."""
    missing = [name for name in NEEDED_SENSORS if name not in fields]
    text = (
        f"{', '.join(fields)}"
        if not missing
        else f"not reported: {', '.join(missing)}; reported: {', '.join(fields) or 'nothing'}"
    )
    if missing and vendor == "replay":
        return not_checked("sensors", "fields", f"the file does not hold {', '.join(missing)}")
    return holds("sensors", "fields", not missing, text, "needed to see in which regime a value was measured")


def of_record(record: Record) -> Check:
    """Whether one benchmark ran cleanly."""
    name, result = record.bench.id, record.result
    grave = [flag for flag in record.flags if not _harmless(flag, record.bench.sensitivity_class)]
    reasons = [FLAG_REASONS.get(flag, flag) for flag in grave]
    if not record.valid:
        said = record.reason if record.reason not in record.flags else "; ".join(reasons)
        return Check("benchmarks", name, FAILED, said or "no value came out", unit=result.unit)
    if grave == ["host_noise"]:  # says nothing about the card
        return not_checked("benchmarks", name, reasons[0])
    figures = f"CV {result.cv_pct:.3f} %, 95 % interval {result.ci95_pct:.3f} %, warm-up {result.warmup_s:.3g} s"
    noted = "".join(f"; {flag}" for flag in record.flags if flag not in grave)
    text = "; ".join(reasons) or figures + noted
    return Check("benchmarks", name, FAILED if reasons else OK, text, result.value, result.unit)


def _harmless(flag: str, sensitivity: str) -> bool:
    """A busy host slows launches and copies, no product; nor does a narrow link; settings are a check of their own."""
    no_part = {"host_noise": ("A", "C"), "pcie_link": ("A", "B", "C")}
    return flag == "config_differs" or sensitivity in no_part.get(flag, ())


def of_level(record: Record, device: DeviceInfo) -> Check:
    """Whether a value is what such a card reaches."""
    spec = spec_of(record)
    link = record.telemetry.get("pcie") or {}
    known = (link["gen"], link["width"]) if {"gen", "width"} <= link.keys() else None
    name = f"{record.bench.id} level"
    found = limits.wanted(spec, device.vendor, device.model, record.env.backend, known)
    if found.unknown:
        return not_checked("levels", name, found.unknown)
    value, low, high = record.result.value, found.low, found.high
    text = _against(value, low, high)
    best = low if spec.unit in TIME_UNITS else high
    beyond = best is not None and (value < best if best == low else value > best)
    if device.vendor != "emu" and beyond:
        text = "more than the card can do: its time or its work is counted wrongly"
    return within("levels", name, value, record.result.unit, low, high, found.source, text)


def _against(value: float, low: float | None, high: float | None) -> str:
    if low is not None and value < low:
        return f"{_percent(1 - value / low)} % below what such a card reaches"
    if high is not None and value > high:
        return f"{_percent(value / high - 1)} % above what such a card reaches"
    return ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share > 0.1 else f"{100 * share:.2g}"


def spec_of(record: Record) -> Benchmark:
    """The row of the table, as it was run."""
    return by_id(record.bench.id)._replace(shape=record.bench.shape)


def fingerprint(records: Sequence[Record]) -> Record | None:
    """The run of class A that scores are formed from: of those that gave a value one that met the power cap comes
    first, then the order of the table."""
    own = [r for r in records if r.valid and r.bench.sensitivity_class == "A"]
    return next((r for r in own if _met_cap(r)), own[0] if own else None)


def _met_cap(record: Record) -> bool | None:
    """As scores know it: by throttle reasons, or by the power itself."""
    return met_cap(record, frozenset(record.flags), Params())


def of_regime(records: Sequence[Record]) -> Check:
    """Whether class A is measured where GPUs differ: under the power cap."""
    name, source = (
        "class A under the power cap",
        "estimate: GPUs differ by what they draw, so by the clock under the cap",
    )
    first = fingerprint(records)
    if first is None:
        return not_checked("regime", name, "no benchmark of class A gave a value")
    seen = first.telemetry
    share = (seen.get("duty") or {}).get("power_cap")
    if share is None and not _met_cap(first):
        return not_checked("regime", name, "throttle reasons are not reported")
    clock, power = (_p50(seen, field) for field in ("sm_clk_mhz", "power_w"))
    of_limit = "" if first.env.power_limit_w is None else f" of {first.env.power_limit_w:g} W"
    text = f"{first.bench.id}: SM {clock} MHz, {power}{of_limit or ' W'}"
    if _met_cap(first):
        own = (r for r in records if r.valid and r.bench.sensitivity_class == "A" and r is not first)
        if below := [r.bench.id for r in own if _met_cap(r) is False]:
            text += f"; it counts, since it meets the cap: not so {', '.join(below)}"
        shown = None if share is None else 100 * share
        return Check("regime", name, OK, text, shown, "% of the looks", source=source)
    held = [name for name, part in seen["duty"].items() if name in OTHER_CAUSES and part >= limits.CAP_SHARE]
    if held:
        text += f"; its clock was held back by {', '.join(held)} instead"
    else:
        text += "; below the cap GPUs of one model hardly differ, and their classes are flat"
    return within("regime", name, 100 * (share or 0.0), "% of the looks", 100 * limits.CAP_SHARE, None, source, text)


def _p50(seen: dict[str, Any], field: str) -> str:
    value = (seen.get(field) or {}).get("p50")
    return "?" if value is None else f"{value:g}"


def of_rate(records: Sequence[Record]) -> Check:
    """Whether looks at the sensors come as often as they should."""
    rates = [r.telemetry["hz"] for r in records if r.bench.sensitivity_class and "hz" in r.telemetry]
    if not rates:
        return not_checked("sensors", "looks a second", "no benchmark gave looks at the sensors")
    return within("sensors", "looks a second", min(rates), "Hz", limits.LEAST_HZ, None, "10 Hz are asked for")


def of_repeats(found: GpuRepeats, classes: dict[str, str]) -> list[Check]:
    """Run-to-run scatter; `classes` are the sensitivity classes of the benchmarks."""
    rows = []
    for name in found.benches:
        values = found.values(name)
        bad = next((run.reason for run in found.runs if run.bench == name and run.reason), "")
        if not bad and len(set(values)) == 1:
            rows.append(not_checked("repeat", f"{name} CV", SAME.format(len(values))))
            continue
        cv = spread(values)["cv_pct"]
        high = limits.REPEAT_CV_PCT[classes.get(name, "A")]
        text = FLAG_REASONS.get(bad, bad) or f"{len(values)} runs: {' '.join(f'{value:.5g}' for value in values)}"
        source = "estimate; public V100 runs scatter by .12 % within a GPU"
        rows.append(within("repeat", f"{name} CV", None if bad else cv, "%", None, high, source, text))
    return rows


def of_library(ours: Sequence[float], library: Sequence[float], what: str) -> Check:
    """Our product over the library's."""
    low, high = limits.LIBRARY_SHARE
    share = (sum(ours) / len(ours)) / (sum(library) / len(library))
    return within("library", what, share, "of the library's", low, high, "estimate, by generation .4 to 1")


def of_sampler(found: Sequence[tuple[bool, GpuRepeats]], scatter_pct: float) -> list[Check]:
    """What the sampler changes: runs with it over runs without it, and its share of a processor.

    `scatter_pct` is how far repeated runs are apart (CV): what lies within three times that shows nothing, nor does
    what is no more than runs of one kind differ by, each in a process of its own.
    """
    rows = []
    usual = max(limits.SAMPLER_EFFECT_PCT, 3 * scatter_pct)
    for name in found[0][1].benches:
        means, apart = {}, 0.0
        for watched in (True, False):
            values = [value for kind, gpu in found if kind == watched for value in gpu.values(name)]
            means[watched] = sum(values) / len(values) if values else math.nan
            apart = max(apart, spread(values)["range_pct"] or 0.0)
        bound = max(apart, limits.SAMPLER_LATENCY_PCT if name == "launch_latency" else usual)
        effect = 100 * (means[True] / means[False] - 1)
        rows.append(within("sampler", f"effect on {name}", effect, "%", -bound, bound, "estimate"))
    shares = [100 * gpu.sampler_share for kind, gpu in found if kind and gpu.sampler_share is not None]
    text = "processor time of the sampler" if shares else "no run with the sampler ended"
    rows.append(
        within(
            "sampler",
            "share of a core",
            max(shares, default=None),
            "%",
            None,
            limits.SAMPLER_CPU_PCT,
            "measured: .3 % without the driver's own time",
            text,
        )
    )
    return rows


def overall(checks: Sequence[Check]) -> str:
    """failed if one check does not hold; incomplete if no benchmark gave a value, and so nothing is shown; else ok."""
    if any(check.verdict == FAILED for check in checks):
        return FAILED
    return OK if any(check.step == "benchmarks" and check.verdict == OK for check in checks) else INCOMPLETE
