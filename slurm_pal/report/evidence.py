# SPDX-License-Identifier: MIT
"""The bundle that a vendor asks for when a GPU is returned: what was measured, and how its peers compare.

Everything comes from records alone. It names no user, no job and no other GPU: peers are numbered
in the order of their values, and names of foreign processes are left out.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.gpus.reasons import why_refused
from slurm_pal.report.table import counted
from slurm_pal.variability import drift
from slurm_pal.variability.finding import DRIFT, STEP, TRANSIENT, UNCONFIRMED, Finding
from slurm_pal.variability.params import TIME_UNITS, Params
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import Group, group_of, number, weight_of

FIELDS = (
    "sm_clk_mhz.p5", "sm_clk_mhz.p50", "sm_clk_mhz.p95", "mem_clk_mhz.p50", "power_w.p50", "temp_c.p50",
    "mem_temp_c.p50", "duty.power_cap", "duty.sw_thermal", "duty.hw_thermal", "duty.hw_slowdown", "duty.power_brake",
    "ecc_corrected", "ecc_uncorrected", "remap_failed", "pcie_replays", "pcie.gen", "pcie.width",
)  # fmt: skip
"""Sensors and counters of telemetry.csv, as the record names them; `xids` follows them."""


class PeerStanding(NamedTuple):
    """One GPU among its peers in one benchmark."""

    group: Group
    value: float  # median over its valid runs
    runs: int
    last_s: float  # Unix s of the newest of them
    peers: tuple[float, ...]  # value of each other GPU, rising
    slowdown: float  # time relative to the median of all

    @property
    def slower_than(self) -> int:
        """How many peers are faster."""
        is_time = self.group.unit in TIME_UNITS
        return sum(1 for p in self.peers if (p < self.value if is_time else p > self.value))


class PeerValues(NamedTuple):
    """The measurements of all GPUs of the site in the groups in which one GPU has runs, itself included."""

    usable: dict[Group, dict[str, array[float]]]  # of the runs that count, by GPU and time
    at_s: dict[Group, dict[str, array[float]]]  # when these ended, Unix s
    valid: dict[Group, array[float]]  # of all valid runs


def values_beside(own: Sequence[Record], records: Iterable[Record]) -> PeerValues:
    """From all `records` by time, including the GPU's (`own`), the values to compare it with; nothing else is kept."""
    params, groups = Params(), {group_of(record) for record in own}
    found = PeerValues({g: {} for g in groups}, {g: {} for g in groups}, {g: array("d") for g in groups})
    for record in records:
        group = group_of(record)
        if group not in groups:
            continue
        if weight_of(record, frozenset(record.flags), params) > 0.0:
            found.usable[group].setdefault(record.gpu.uuid, array("d")).append(record.result.value)
            found.at_s[group].setdefault(record.gpu.uuid, array("d")).append(record.ts_end)
        if record.valid:
            found.valid[group].append(record.result.value)
    return found


def bundle(own: Sequence[Record], beside: PeerValues, flags: Sequence[str], now_s: float) -> dict[str, str]:
    """File name -> text, for everything but the picture.

    `own`: all records of the GPU by time, at least one; `beside`: see `values_beside`; `flags`: as published.
    """
    found = standings(own, beside)
    return {
        "summary.txt": summary(own, found, findings(own, beside, now_s), flags, now_s),
        "runs.jsonl": "".join(scrubbed(record).to_json() + "\n" for record in own),
        "peers.csv": peers_csv(found),
        "telemetry.csv": telemetry_csv(own),
        "environment.json": json.dumps(environment(own), indent=2) + "\n",
    }


def standings(own: Sequence[Record], beside: PeerValues) -> list[PeerStanding]:
    """The GPU among its peers, in each group in which it has valid runs."""
    uuid = own[-1].gpu.uuid
    found = []
    for group, by_gpu in sorted(beside.usable.items()):
        if uuid not in by_gpu:
            continue
        mine = median(by_gpu[uuid])
        peers = sorted(median(runs) for other, runs in by_gpu.items() if other != uuid)
        middle = median([mine, *peers])
        slowdown = mine / middle if group.unit in TIME_UNITS else middle / mine
        last_s = max(r.ts_end for r in own if group_of(r) == group)
        found.append(PeerStanding(group, mine, len(by_gpu[uuid]), last_s, tuple(peers), slowdown))
    return found


def scrubbed(record: Record) -> Record:
    """The record without what may identify people: names of foreign processes, the host name, job numbers."""
    table = {k: v for k, v in record.telemetry.items() if k not in ("gpus", "p2p_gb_s")}  # these name other GPUs
    reason = _FOLDERS.sub(".../", why_refused(record))
    return replace(record, slurm_job_id=0, host="", telemetry=table, reason=reason)


_FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.+@-]+/)+")
"""The folders of an absolute path: an error may quote one, and they may hold people's names."""


def summary(
    own: Sequence[Record],
    found: Sequence[PeerStanding],
    events: Sequence[Finding],
    flags: Sequence[str],
    now_s: float,
) -> str:
    """What people read first."""
    last = own[-1]
    lines = [
        f"GPU {last.gpu.uuid}",
        f"model       {last.gpu.vendor} {last.gpu.model}, {last.gpu.mem_bytes / 2**30:.0f} GiB",
        f"serial      {last.gpu.serial or 'unknown'}",
        f"VBIOS       {last.gpu.vbios or 'unknown'}",
        f"driver      {last.env.driver}",
        f"flags       {', '.join(flags) or 'none'}",
        f"written     {_day(now_s)}, {len(own)} runs from {_day(own[0].ts_end)} to {_day(last.ts_end)}",
        "",
        "Where it was",
        *(f"  {first} to {until}  {place}" for place, first, until in stays(own)),
        "",
        "Against its peers (same model, memory, settings and method; slowdown 1 is their median, above 1 slower)",
        *(_standing_line(s) for s in found),
        "",
        "What happened",
        *([f"  {_event_line(e)}" for e in events] or ["  no step, drift or transient in its history"]),
        "",
        "Hardware errors and throttling",
        *([f"  {line}" for line in troubles(own)] or ["  none reported"]),
    ]
    return "\n".join(lines) + "\n"


def _standing_line(s: PeerStanding) -> str:
    runs = f"{s.runs} run{'s' * (s.runs > 1)} up to {_day(s.last_s)}"
    head = f"  {s.group.benchmark:14} {s.value:.5g} {s.group.unit}, {runs}"
    if not s.peers:
        return f"{head}; no peer was measured by the same method"
    return (
        f"{head}; {counted(len(s.peers), 'peer')} {s.peers[0]:.5g} to {s.peers[-1]:.5g}, median {median(s.peers):.5g}; "
        f"slowdown {s.slowdown:.4f}, slower than {s.slower_than} of {len(s.peers)}"
    )


def _event_line(event: Finding) -> str:
    sure = {
        STEP: f"confirmed on {_day(event.seen_s)}",
        DRIFT: f"until {_day(event.seen_s)}",
        TRANSIENT: f"not confirmed on {_day(event.seen_s)}",
        UNCONFIRMED: "not measured again yet",
    }[event.kind]
    return (
        f"{_day(event.since_s)}  {event.kind} in {event.benchmark}: {100 * event.change:+.2f} % time "
        f"({event.sigmas:.0f} sigma), {sure}"
    )


def troubles(own: Sequence[Record]) -> list[str]:
    """A line for each run with an error or throttling by hardware or heat."""
    lines = []
    for record in own:
        words = [f"{name} {value:g}" for name in FIELDS if (value := _trouble(record, name))]
        words += [f"Xid {', '.join(map(str, xids))}"] if (xids := record.telemetry.get("xids")) else []
        words += [f"invalid: {scrubbed(record).reason}"] if not record.valid else []
        if words:
            lines.append(f"{_time(record.ts_end)}  {record.bench.id}: {'; '.join(words)}")
    return lines


_TROUBLES = {
    "duty.sw_thermal", "duty.hw_thermal", "duty.hw_slowdown", "duty.power_brake", "ecc_corrected", "ecc_uncorrected",
    "remap_failed", "pcie_replays",
}  # fmt: skip


def _trouble(record: Record, name: str) -> float:
    return (_number(record.telemetry, name) or 0.0) if name in _TROUBLES else 0.0


def _number(table: Mapping[str, object], name: str) -> float | None:
    value: object = table
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, bool) else number(table, *name.split("."))


def stays(own: Sequence[Record]) -> list[tuple[str, str, str]]:
    """(node:slot, first day, last day) of each stay, oldest first."""
    found: list[tuple[str, str, str]] = []
    for record in own:
        place, day = f"{record.node_name}:{record.gpu.slurm_index}", _day(record.ts_end)
        if found and found[-1][0] == place:
            found[-1] = (place, found[-1][1], day)
        else:
            found.append((place, day, day))
    return found


def peers_csv(found: Sequence[PeerStanding]) -> str:
    """Values of the GPU and of its unnamed peers; slowest first."""
    rows: list[Sequence[object]] = [("benchmark", "class", "unit", "method", "who", "value")]
    for s in found:
        slowest_first = s.peers if s.group.unit not in TIME_UNITS else s.peers[::-1]
        head = (s.group.benchmark, s.group.sensitivity, s.group.unit, s.group.method_hash)
        rows.append((*head, "this GPU", f"{s.value:.7g}"))
        rows += [(*head, f"peer {i}", f"{value:.7g}") for i, value in enumerate(slowest_first, start=1)]
    return _csv(rows)


def telemetry_csv(own: Sequence[Record]) -> str:
    """Sensors and error counters of every run; empty where the device reports none."""
    rows: list[Sequence[object]] = [("time", "benchmark", "valid", *FIELDS, "xids", "flags")]
    for record in own:
        cells = ["" if (v := _number(record.telemetry, name)) is None else f"{v:g}" for name in FIELDS]
        xids = record.telemetry.get("xids") or ()
        words = " ".join(map(str, xids)) if isinstance(xids, list | tuple) else ""
        rows.append((_time(record.ts_end), record.bench.id, int(record.valid), *cells, words, " ".join(record.flags)))
    return _csv(rows)


def environment(own: Sequence[Record]) -> list[dict[str, Any]]:
    """The settings with which the GPU was measured, with the first and last day of each."""
    found: list[dict[str, Any]] = []
    for record in own:
        env, gpu = record.env, record.gpu
        table: dict[str, Any] = {
            "driver": env.driver, "vbios": gpu.vbios, "backend": env.backend, "runtime": env.runtime, "libs": env.libs,
            "tool_version": env.tool_version, "power_limit_w": env.power_limit_w,
            "default_power_limit_w": env.default_power_limit_w, "app_clocks_mhz": env.app_clocks_mhz,
            "config_group": env.config_group, "ecc_mode": gpu.ecc_mode, "mig_mode": gpu.mig_mode,
            "pci_bus_id": gpu.pci_bus_id,
        }  # fmt: skip
        day = _day(record.ts_end)
        if found and {k: found[-1][k] for k in table} == table:
            found[-1]["last"] = day
        else:
            found.append({"first": day, "last": day, **table})
    return found


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _day(ts: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(ts))


def _time(ts: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ts))


def picture(own: Sequence[Record], beside: PeerValues, now_s: float) -> bytes:
    """The history of the GPU against its peers as SVG; b"" if it has no run with a value.

    Raises MissingPackageError without matplotlib.
    """
    from slurm_pal.report.gpus import history_picture  # only here: the rest of the bundle needs no matplotlib

    found = findings(own, beside, now_s)
    events = {c: history_picture.findings_of(found, c) for c in SENSITIVITY_CLASSES}
    title = f"GPU {own[-1].gpu.uuid}"
    return history_picture.picture(title, own, beside.valid, events).images.get("svg", b"")


def findings(own: Sequence[Record], beside: PeerValues, now_s: float) -> tuple[Finding, ...]:
    """What happened to the GPU over the whole time of its records, but not what its peers went through with it."""
    found = drift.of_records(own, now_s, Params(retention_d=math.inf))
    return tuple(event for event in found if not _shared(event, own, beside))


def _shared(event: Finding, own: Sequence[Record], beside: PeerValues) -> bool:
    """Whether the median peer changed by half as much, or more, at the same time: a room, a minor driver, firmware."""
    times = sorted(r.ts_end for r in own if r.bench.id == event.benchmark)
    group = next((group_of(r) for r in own if r.bench.id == event.benchmark and r.ts_end == event.since_s), None)
    earlier = [at_s for at_s in times if at_s < event.since_s]
    if group is None or not earlier:
        return False
    # Sweeps take hours and are days apart: what was measured nearer to a run belongs to the same sweep.
    from_s = event.since_s if event.kind == DRIFT else (earlier[-1] + event.since_s) / 2.0
    until_s = event.seen_s if event.kind == DRIFT else from_s
    changes = []
    for uuid, values in beside.usable[group].items():
        at_s = beside.at_s[group][uuid]
        before, after = bisect_right(at_s, from_s) - 1, bisect_right(at_s, until_s)
        after -= event.kind == DRIFT
        if uuid != event.uuid and 0 <= before < after < len(values):
            ratio = values[after] / values[before]
            changes.append(ratio - 1.0 if group.unit in TIME_UNITS else 1.0 / ratio - 1.0)
    return len(changes) >= Params().small_group - 1 and median(changes) * math.copysign(2.0, event.change) >= abs(
        event.change
    )
