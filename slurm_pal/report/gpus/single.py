# SPDX-License-Identifier: MIT
"""One GPU: where it stands, what its flags mean, its runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from slurm_pal.base.errors import UsageError
from slurm_pal.base.faults import OK, cure_of
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.report.gpus.course import JUMP
from slurm_pal.report.gpus.gpu_report import SMALLEST, GpuReport
from slurm_pal.report.gpus.heatmap import cell
from slurm_pal.report.gpus.reasons import AGE, by_gravity, kind, meaning, why_refused
from slurm_pal.report.gpus.shown_names import LONGEST_MODEL, cut
from slurm_pal.report.gpus.words import NOTHING, WORK, Section, when
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.table import age
from slurm_pal.variability.records import Record
from slurm_pal.variability.runs import number

RUNS = 30  # newest ones shown


def one_of(uuids: Collection[str], beginning: str, otherwise: str) -> str:
    """The one UUID with this beginning. Raises UsageError, which says `otherwise` if there is none."""
    found = sorted(uuid for uuid in uuids if beginning and uuid.startswith(beginning))
    if beginning in found or len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise UsageError(f"{len(found)} GPUs begin with {beginning!r}: {', '.join(found[:5])}{more}; write more of it")
    raise UsageError(f"no GPU {beginning!r} {otherwise}")


def row_of(rows: Iterable[GpuRow], uuid: str) -> GpuRow:
    """The GPU whose UUID is `uuid`, or the only one that begins with it. Raises UsageError if there is none."""
    found = {row.uuid: row for row in rows if row.uuid}
    return found[one_of(found, uuid, "here: pal gpus --json lists the UUIDs")]


def known(report: GpuReport, uuid: str) -> GpuRow:
    """The same among those shown."""
    return row_of(report.rows, uuid)


def gpu_title(report: GpuReport, uuid: str) -> str:
    row = known(report, uuid)
    return f"{cut(row.node)}:{row.gpu_index} {cut(row.model, LONGEST_MODEL) or NOTHING} {row.uuid}"


def rank(report: GpuReport, row: GpuRow, sensitivity: str) -> tuple[int, int] | None:
    """(place counted from the fastest, number of GPUs of its model); None without a score or if all are alike."""
    if sensitivity not in row.slowdown:
        return None
    peers = [r.slowdown[sensitivity] for r in report.rows if r.model == row.model and sensitivity in r.slowdown]
    return (1 + sum(1 for s in peers if s < row.slowdown[sensitivity]), len(peers)) if len(set(peers)) > 1 else None


def newest_of(report: GpuReport, uuid: str, sensitivity: str) -> float | None:
    """The slowdown of its newest usable run among the newest runs of its peers; None if they are too few."""
    groups = (g for g in report.measured.groups if g.group.sensitivity == sensitivity and g.spread.gpus >= SMALLEST)
    return next((p.slowdown for g in groups for p in g.points if p.uuid == uuid), None)


def gpu_claim(report: GpuReport, uuid: str) -> str:
    """The sentences at the top: its speed in the class in which its model suffers most, and its gravest flag.

    Its newest run comes first where its score does not follow it, so that the runs below do not contradict them.
    """
    row = known(report, uuid)
    c = next((c for c in SENSITIVITY_CLASSES if c in row.slowdown), None)
    if c is None or cell(row, c).slowdown is None:
        fault = f" ({row.state})" if row.state != OK else ""
        return f"It has no score that counts{fault}: pal-profile run measures it."
    newest = newest_of(report, row.uuid, c)
    if newest is not None and abs(newest / row.slowdown[c] - 1.0) >= JUMP:
        waits = "it is not confirmed yet" if "unconfirmed" in row.flags else "older runs and age count, too"
        return (
            f"In {WORK[c]} its newest run took {newest:.2f} times as long as the median GPU of its model; its score is "
            f"{row.slowdown[c]:.2f}, since {waits}. Confirm it: pal-profile run -w {cut(row.node)}"
        )
    at = rank(report, row, c)
    where = f" (place {at[0]} of {at[1]} from the fastest)" if at else ""
    grave = [flag for flag in by_gravity(row.flags) if kind(flag) != AGE]
    why = f"; {grave[0]}: {meaning(grave[0])}" if grave else ""
    return f"In {WORK[c]} it takes {row.slowdown[c]:.2f} times as long as the median GPU of its model{where}{why}."


def gpu_sections(report: GpuReport, uuid: str) -> list[Section]:
    """Its scores, flags and newest runs."""
    row = known(report, uuid)
    scores = []
    for c in SENSITIVITY_CLASSES:
        place = rank(report, row, c)
        if c in row.slowdown:
            at = f"{place[0]} of {place[1]}" if place else "all alike"
            scores.append((c, f"{row.slowdown[c]:.3f}", row.variability_class.get(c, "?"), at, age(row.age_s)))
    flags = [(flag, meaning(flag)) for flag in by_gravity(row.flags)]
    cure = cure_of(row.flags, row.node, row.gpu_index)
    own = runs(report, row.uuid)
    cells = [_run_cells(r) for r in own[:RUNS]]
    header = ("TIME", "SWEEP", "BENCH", "VALUE", "CI95", "MHZ", "W", "C", "NOTE")
    more = f"And {len(own) - RUNS} older ones: pal-profile show {row.uuid}" if len(own) > RUNS else ""
    return [
        Section("Scores", ("CLASS", "SLOWDOWN", "VARIABILITY", "FROM FASTEST", "AGE"), scores),
        Section("Flags", ("FLAG", "MEANING"), flags, f"Jobs are kept off it: {cure}" if cure else ""),
        Section("Runs, newest first", header, cells, more),
    ]


def runs(report: GpuReport, uuid: str) -> list[Record]:
    """Its records, newest first, if it is the one whose history is shown."""
    return [r for r in reversed(report.measured.own) if r.gpu.uuid == uuid]


def _run_cells(run: Record) -> tuple[str, ...]:
    r = run.result
    sensors = (number(run.telemetry, name, "p50") for name in ("sm_clk_mhz", "power_w", "temp_c"))
    note = [*run.flags, *([] if run.valid else [f"does not count: {why_refused(run)}"])]
    return (
        when(run.ts_end),
        run.sweep_id,
        run.bench.id,
        f"{r.value:.5g} {r.unit}",
        f"{r.ci95_pct:.3f} %",
        *(NOTHING if x is None else f"{x:.0f}" for x in sensors),
        ", ".join(note) or NOTHING,
    )


def run_json(run: Record) -> dict[str, Any]:
    """One run for `--json`, without its samples."""
    return {
        "run_id": run.run_id,
        "sweep": run.sweep_id,
        "ts": run.ts_end,
        "bench": run.bench.id,
        "class": run.bench.sensitivity_class,
        "value": run.result.value,
        "unit": run.result.unit,
        "ci95_pct": run.result.ci95_pct,
        "driver": run.env.driver,
        "valid": run.valid,
        "reason": why_refused(run),
        "flags": list(run.flags),
    }
