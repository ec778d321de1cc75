# SPDX-License-Identifier: MIT
"""Columns of text, as sinfo prints them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from slurm_pal.base.terminal import visible
from slurm_pal.report.fitting import fitted


def columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], noheader: bool = False, width: int = sys.maxsize
) -> list[str]:
    """Lines of left-aligned columns, two blanks apart, as wide as their widest cell; none wider than `width`."""
    return [line for lines in row_lines(header, rows, noheader, width) for line in lines]


def row_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], noheader: bool = False, width: int = sys.maxsize
) -> list[list[str]]:
    """The same with the lines of each row together: one, unless the table is wider than `width`."""
    return fitted([[visible(cell) for cell in row] for row in (rows if noheader else [header, *rows])], width)


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
