# SPDX-License-Identifier: MIT
"""pal compare: two sweeps against each other."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurm_pal.base import config as settings
from slurm_pal.base.errors import UsageError
from slurm_pal.cli import common, tables
from slurm_pal.report.listing import Listing
from slurm_pal.store.database import SweepSpan, open_database

if TYPE_CHECKING:
    from slurm_pal.variability.compare import BenchmarkComparison, GpuSlots, SweepComparison

_LAST = re.compile(r"last(?:-(\d+))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
MAX_SHOWN = 10
COLUMNS = (
    "benchmark", "sensitivity", "model", "n_gpus", "ratio", "low", "high", "p_value", "n_changed", "relative",
    "differs", "raw_ratio", "noise",
    *(f"sensors_{name}_{when}" for name in ("clock_mhz", "power_w", "temp_c") for when in ("before", "after")),
)  # fmt: skip
"""Columns of the CSV."""
HEADER = ("BENCH", "CLASS", "MODEL", "GPUS", "RATIO", "95%", "P", "CHANGED", "CLOCK", "POWER", "TEMP")
_SHOWS = {
    "BENCH": "benchmark", "CLASS": "sensitivity", "GPUS": "n_gpus", "95%": "low", "P": "p_value",
    "CHANGED": "n_changed", "CLOCK": "sensors_clock_mhz_after", "POWER": "sensors_power_w_after",
    "TEMP": "sensors_temp_c_after",
}  # fmt: skip


@click.command()
@click.argument("before", metavar="SWEEP")
@click.argument("after", metavar="SWEEP")
@tables.table_options
@common.verbose_option
def compare(before: str, after: str, form: tables.Form) -> None:
    """What changed between two sweeps: GPU by GPU, beyond noise or not.

    SWEEP is a sweep's id, `last`, `last-1` (the one before it), or a date like 2026-11-20 (the last
    sweep of that day). RATIO is the second sweep's time over the first's: above 1 is slower.

    \b
    Examples:
      pal compare last-1 last            before and after a maintenance
      pal compare 2026-11-01 last        since that day
    """
    from slurm_pal.store.publish import params_of  # numpy and scipy are for this command alone
    from slurm_pal.variability.compare import compare as compared

    config = settings.load()
    with open_database(config.state_dir) as database:
        known = database.sweeps()
        spans = resolve(before, known), resolve(after, known)
        if spans[0].sweep_id == spans[1].sweep_id:
            raise UsageError(f"{before!r} and {after!r} are the same sweep, {spans[0].sweep_id}: name two")
        old, new = (database.records_in(span) for span in spans)
        found = compared(old, new, params_of(config))
    listing = Listing(
        COLUMNS, [row.to_json() for row in found.rows], HEADER, [_cells(row) for row in found.rows], _SHOWS
    )
    tables.show(
        form, listing, "compare", lambda told: _json(spans, found, told), text=lambda: _print_text(spans, found, form)
    )


def resolve(name: str, known: Sequence[SweepSpan]) -> SweepSpan:
    """The sweep that a name means; `known` in order of time. Raises UsageError."""
    if not known:
        raise UsageError("no sweep has been measured yet: see pal-profile run")
    newest = ", ".join(span.sweep_id for span in known[-3:])
    match = _LAST.fullmatch(name)
    if match:
        back = int(match[1] or 0)
        if back < len(known):
            return known[-1 - back]
        raise UsageError(f"{name!r}: sweeps so far: {len(known)}, the newest {newest}")
    day = [s for s in known if time.strftime("%Y-%m-%d", time.localtime(s.last_s)) == name]
    found = [s for s in known if s.sweep_id == name] or (day if _DATE.fullmatch(name) else [])
    if found:
        return found[-1]
    raise UsageError(f"no sweep {name!r}; give an id, last, last-1 or a date like 2026-11-20; the last are {newest}")


def _json(spans: Sequence[SweepSpan], found: SweepComparison, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    places = {name: [p._asdict() for p in getattr(found, name)] for name in ("moved", "appeared", "vanished")}
    return {
        "before": spans[0]._asdict(),
        "after": spans[1]._asdict(),
        "rows": rows,
        **places,
        "only_before": found.only_before,
        "only_after": found.only_after,
        "environment": found.environment,
    }


def _print_text(spans: Sequence[SweepSpan], found: SweepComparison, form: tables.Form) -> None:
    before = [f"{what:6} {_span(span)}" for what, span in zip(("before", "after"), spans, strict=True)]
    before += [f"{name}: {_counts(counts)}" for name, counts in found.environment.items()]
    rows = [_cells(row) for row in found.rows]
    if form.noheader:
        common.say(*tables.lines(HEADER, rows, noheader=True))
        return
    tables.say_notes([*before, ""])
    common.say(*tables.lines(HEADER, rows))
    tables.say_notes(_notes(found))


def _notes(found: SweepComparison) -> list[str]:
    """What to know of the rows, and which GPUs were not compared."""
    lines: list[str] = []
    for row in found.rows:
        if row.relative:
            lines.append(
                f"* {row.benchmark}: {', '.join(row.differs)}; each GPU relative to its sweep's median, "
                f"ratio of the numbers themselves {row.raw_ratio:.4f}"
            )
    lines += [line for row in found.rows if row.sensitivity for line in _changed(row)]
    for what, places in (("moved", found.moved), ("appeared", found.appeared), ("vanished", found.vanished)):
        if places:
            more = f" and {len(places) - MAX_SHOWN} more: --json" if len(places) > MAX_SHOWN else ""
            lines.append(f"{what} {len(places)}: {', '.join(map(_place, places[:MAX_SHOWN]))}{more}")
    if found.only_before or found.only_after:
        lines.append(
            f"not compared: {found.only_before} GPUs of nodes in the first sweep only, {found.only_after} in the second"
        )
    return lines


def _span(span: SweepSpan) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(span.last_s))
    return f"{span.sweep_id}  {when}  {span.gpus} GPUs"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} ({n} GPU{'s' * (n > 1)})" for what, n in counts.items())


def _cells(row: BenchmarkComparison) -> list[str]:
    interval = "-" if row.low is None or row.high is None else f"{row.low:.4f}..{row.high:.4f}"
    p_value = "-" if row.p_value is None else f"{row.p_value:.2g}"
    sensors = [_sensor(row.sensors.get(name)) for name in ("clock_mhz", "power_w", "temp_c")]
    name = row.benchmark + ("*" if row.relative else "")
    slower = sum(1 for g in row.changed if g.ratio > 1.0)
    changed = f"{len(row.changed)} (+{slower} -{len(row.changed) - slower})" if row.changed else "0"
    count = str(len(row.gpus))
    return [name, row.sensitivity or "-", row.model, count, f"{row.ratio:.4f}", interval, p_value, changed, *sensors]


def _sensor(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.0f} {pair[1] - pair[0]:+.1f}"


def _changed(row: BenchmarkComparison) -> list[str]:
    if not row.changed:
        return []
    shown = [f"{g.node}:{g.slot} {100 * (g.ratio - 1.0):+.1f} %" for g in row.changed[:MAX_SHOWN]]
    more = f" and {len(row.changed) - MAX_SHOWN} more: --json" if len(row.changed) > MAX_SHOWN else ""
    return [f"{row.benchmark} changed: {', '.join(shown)}{more}"]


def _place(place: GpuSlots) -> str:
    before, after = (f"{p[0]}:{p[1]}" if p else "" for p in (place.before, place.after))
    return f"{place.uuid} {before} -> {after}" if before and after else f"{place.uuid} {before or after}"
