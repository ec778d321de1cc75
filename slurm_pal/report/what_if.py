# SPDX-License-Identifier: MIT
"""What `pal whatif` shows: one sentence first, then a row for each way to submit the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_pal.report.headline import MEDIAN, compared
from slurm_pal.report.move_rows import stamp
from slurm_pal.report.table import lasting

Row = Mapping[str, Any]
SOONER_S = 60.0
"""A start or an end that is sooner by less is not worth another request."""


def verdict(rows: Sequence[Row]) -> str:
    """The first row is the job as written."""
    own, others = rows[0], [row for row in rows[1:] if not row["refused"] and row["kind"] not in ("later", "without")]
    if own["refused"]:
        taken = next((row for row in others), None)
        rest = f"; {taken['text']} it would be taken, and {_start(taken)}" if taken else ""
        return f"Slurm would not take the job as written: {own['refused']}{rest}"
    text = f"As written the job {_start(own)}{_on(own)}"
    sooner = [row for row in others if row["wait_s"] < own["wait_s"] - SOONER_S]
    if sooner:
        best = min(sooner, key=lambda row: (row["wait_s"], row["slowdown_at_most"] or 1.0))
        return f"{text}. {_first(best)} it {_start(best)}{_on(best)}"
    ends = [row for row in others if row["end_s"] and own["end_s"] and row["end_s"] < own["end_s"] - SOONER_S]
    if ends:
        best = min(ends, key=lambda row: float(row["end_s"]))
        return f"{text}. {_first(best)} it would end {lasting(own['end_s'] - best['end_s'])} sooner"
    return f"{text}. Nothing else that was asked about starts or ends sooner"


def _first(row: Row) -> str:
    """How a sentence about it begins."""
    return f"{row['text'][:1].upper()}{row['text'][1:]}"


def _start(row: Row) -> str:
    return f"starts in {lasting(row['wait_s'])}" if row["wait_s"] >= SOONER_S else "starts now"


def _on(row: Row) -> str:
    best, worst = row["slowdown"], row["slowdown_at_most"]
    where = f" on {row['gpus']}" if row["gpus"] else f" on {','.join(row['nodes'])}" if row["nodes"] else ""
    if best is None:
        return where
    if best == worst:
        return f"{where}, the slowest GPU {compared(best)} {MEDIAN}"
    return f"{where}, the slowest GPU at {best:.2f} to {worst:.2f} of a median GPU's time"


def cost(lost: Mapping[str, Any] | None, rows: Sequence[Row]) -> str:
    """What avoiding a class costs: capacity, and for a job also its wait; "" where nobody asked."""
    if lost is None:
        return ""
    share = f"{100.0 * lost['gpus'] / lost['of_gpus']:.0f} %" if lost["of_gpus"] else "none"
    if not lost["nodes"]:
        return f"Avoiding {lost['what']} costs nothing: no node here has such GPUs"
    text = (
        f"Avoiding {lost['what']} gives up {lost['gpus']} of {lost['of_gpus']} GPUs ({share}): "
        f"{lost['node_list']}, where {lost['slow_gpus']} GPUs are such"
    )
    own = rows[0] if rows else None
    other = next((row for row in rows if row["kind"] == "without"), None)
    if own is None or other is None or own["refused"]:
        return text
    if other["refused"]:
        return f"{text}; without them Slurm would not take the job: {other['refused']}"
    more_s = other["wait_s"] - own["wait_s"]
    wait = f"it waits {lasting(more_s)} longer" if more_s >= SOONER_S else "it waits no longer"
    before, after = own["slowdown_at_most"], other["slowdown_at_most"]
    gain = f", and its slowest GPU is at {after:.2f} instead of {before:.2f} at most" if before and after else ""
    return f"{text}; for this job {wait}{gain}"


def lines(rows: Sequence[Row]) -> list[str]:
    """A row each."""
    width = max(len(row["text"]) for row in rows)
    return [f"  {row['text'].ljust(width)}  {_row(row)}" for row in rows]


def _row(row: Row) -> str:
    if row["refused"]:
        return f"not possible: {row['refused']}"
    when = "now" if row["wait_s"] < SOONER_S else f"{stamp(row['start_s'])} (in {lasting(row['wait_s'])})"
    return f"{when}{_on(row)}"
