# SPDX-License-Identifier: MIT
"""The traces that can be replayed, and one call that reads any of them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs import gavel, own, sacct, shockwave, sia, swf
from slurm_pal.simulate.inputs.collect import TraceCollector, shown
from slurm_pal.simulate.inputs.describe import describe
from slurm_pal.simulate.inputs.lines import Numbered, numbered, opened
from slurm_pal.simulate.inputs.reader_options import ReaderOptions
from slurm_pal.simulate.trace import Trace

__all__ = ["AUTO", "FORMATS", "ReaderOptions", "TraceFormat", "describe", "read"]

AUTO = "auto"


class Reader(Protocol):
    """What the module of a format offers."""

    def detects(self, first: str) -> bool:
        """Whether a file with this first line is of the format."""

    def read_lines(self, lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
        """Read all lines. Raises UsageError when the file is not of the format at all."""


class TraceFormat(NamedTuple):
    """One format of `--format`."""

    module: Reader
    summary: str


FORMATS: dict[str, TraceFormat] = {
    "pal": TraceFormat(own, "our own CSV, as written by the generator"),
    "sacct": TraceFormat(sacct, "export of sacct --parsable2"),
    "sia": TraceFormat(sia, "Sia-Philly CSV: job_id,num_gpus,submit_time,duration,model"),
    "shockwave": TraceFormat(shockwave, "Shockwave CSV: name,model_name,time,num_iters,num_replicas"),
    "gavel": TraceFormat(gavel, "Gavel trace: ten tab-separated columns, work in steps; needs a throughput table"),
    "swf": TraceFormat(swf, "Standard Workload Format of the Parallel Workloads Archive"),
}


def read(path: str, format: str = AUTO, options: ReaderOptions | None = None) -> Trace:
    """Read a trace file, plain or gzip; `auto` finds the format by its first line.

    Rows that cannot be used are in `bad`, with line and reason; rows that are not to be
    replayed are counted in `skipped`. Raises UsageError for a file that cannot be read,
    is empty, or is not of the format.
    """
    if format != AUTO and format not in FORMATS:
        raise UsageError(f"trace format {format!r} is not one of {', '.join((AUTO, *FORMATS))}")
    collector = TraceCollector(os.path.basename(path))
    with opened(path) as stream:
        lines = numbered(stream, collector)
        first = next(lines, None)
        if first is None:
            raise UsageError(f"{path}: there is no line of text in it")
        name = _detected(path, first[1]) if format == AUTO else format
        try:
            return FORMATS[name].module.read_lines(
                itertools.chain((first,), lines), collector, options or ReaderOptions()
            )
        except UsageError as error:
            raise UsageError(f"{path}: as {name}: {error}") from None


def _detected(path: str, first: str) -> str:
    for name, known in FORMATS.items():
        if known.module.detects(first):
            return name
    raise UsageError(f"{path}: the first line {shown(first)} is of no known format ({', '.join(FORMATS)}); give one")
