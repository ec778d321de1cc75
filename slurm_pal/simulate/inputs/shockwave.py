# SPDX-License-Identifier: MIT
"""The Poisson traces of Shockwave (NSDI'23): iterations per job, without the time of one.

So every row is a bad one until an application table gives seconds per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_pal.simulate.inputs import csv_rows
from slurm_pal.simulate.inputs.collect import TraceCollector, number, whole
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.inputs.reader_options import App, ReaderOptions, app_of
from slurm_pal.simulate.inputs.sia import iterations_job
from slurm_pal.simulate.trace import Trace, TraceJob

COLUMNS = ("name", "model_name", "time", "num_iters", "num_replicas")


def detects(first: str) -> bool:
    return csv_rows.has_columns(first, COLUMNS)


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """Read such a trace; `time` is taken as seconds from 0. Raises UsageError for another header."""
    csv_rows.read_jobs(lines, COLUMNS, collector, lambda row: _job(row, options.apps))
    return collector.trace()


def _job(row: csv_rows.Row, apps: Mapping[str, App]) -> TraceJob:
    model = row["model_name"].strip()
    return iterations_job(
        job_id=row["name"].strip(),
        gpus=whole("num_replicas", row["num_replicas"], 0),
        submit_s=number("time", row["time"], 0.0),
        iterations=number("num_iters", row["num_iters"], 0.0),
        model=model,
        app=app_of(model, apps, {}),
    )
