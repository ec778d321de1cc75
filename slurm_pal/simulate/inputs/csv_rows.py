# SPDX-License-Identifier: MIT
"""Comma-separated traces with a header: one row per line, columns found by their names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.collect import NotReplayed, TraceCollector, Unusable, shown
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.trace import TraceJob

Row = dict[str, str]


def cells(text: str) -> list[str]:
    """The cells of one line. Raises Unusable for quotes that do not close."""
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise Unusable(f"cannot be read as CSV ({error}): {shown(text)}") from None


def has_columns(text: str, columns: Iterable[str]) -> bool:
    """Whether a line is a header with all these columns."""
    try:
        return set(columns) <= {cell.strip() for cell in cells(text)}
    except Unusable:
        return False


def read_jobs(
    lines: Iterator[Numbered], columns: Sequence[str], collector: TraceCollector, job: Callable[[Row], TraceJob]
) -> None:
    """Hand each row below the header to `job`, and what it says or raises to the collector.

    Raises UsageError when the first line lacks one of the columns.
    """
    line, text = next(lines, (1, ""))
    if not has_columns(text, columns):
        raise UsageError(f"line {line}: {shown(text)} is not the header; it must have {','.join(columns)}")
    names = [name.strip() for name in cells(text)]
    for line, text in lines:
        try:
            values = cells(text)
            if len(values) != len(names):
                raise Unusable(f"{len(values)} columns, but the header has {len(names)}: {shown(text)}")
            collector.add(line, job(dict(zip(names, values, strict=True))))
        except Unusable as error:
            collector.bad(line, str(error))
        except NotReplayed as reason:
            collector.skip(str(reason))
