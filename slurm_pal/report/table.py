# SPDX-License-Identifier: MIT
"""Columns of text, as sinfo prints them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from slurm_pal.base.terminal import visible


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], noheader: bool = False) -> list[str]:
    """Lines of left-aligned columns, two blanks apart, as wide as their widest cell."""
    shown = [[visible(cell) for cell in row] for row in (rows if noheader else [header, *rows])]
    if not shown:
        return []
    widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]


def parsable(header: Sequence[str], rows: Sequence[Sequence[str]], noheader: bool = False) -> list[str]:
    """Lines of cells separated by `|`, like `sacct --parsable2`; a `|` inside a cell becomes `/`."""
    shown = rows if noheader else [header, *rows]
    return ["|".join(visible(cell).replace("|", "/") for cell in row) for row in shown]


def age(seconds: float | None) -> str:
    """A short age: 42s, 7m, 3h, 12d; `-` for never."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def lasting(seconds: float) -> str:
    """How long something lasted, in a sentence: 40 s, 7 min, 2.5 h, 12 days."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days"
    if seconds >= 5400:
        return f"{seconds / 3600:.1f}".removesuffix(".0") + " h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(0.0, seconds):.0f} s"


def unbroken(text: str) -> str:
    """The text with each number and its percent sign kept on one line."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def counted(n: int, noun: str) -> str:
    """`1 GPU`, `1,000 GPUs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def day(ts: float) -> str:
    """A date, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(ts))
