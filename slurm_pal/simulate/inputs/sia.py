# SPDX-License-Identifier: MIT
"""Sia-Philly CSV: what the artifacts of Sia (SOSP'23) and PAL (SC'24) replay.

`duration` counts iterations, not seconds, and an iteration takes as long on any number
of GPUs. Seconds per iteration and class per model are those of PAL's artifact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import csv_rows
from slurm_pal.simulate.inputs.collect import NotReplayed, TraceCollector, Unusable, number, shown, whole
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.inputs.reader_options import App, ReaderOptions, app_of
from slurm_pal.simulate.trace import Trace, TraceJob

COLUMNS = ("job_id", "num_gpus", "submit_time", "duration", "model")

APPS: dict[str, App] = {
    "resnet50": App(0.17540429367763434, "A"),
    "BERT": App(0.179, "B"),
    "GPT2": App(3.5714, "B"),
    "DCGAN": App(0.0469266931, "B"),
    "vgg19": App(0.300610341, "C"),
    "PointNet": App(0.28125, "D"),
}
"""Model -> seconds per iteration and class in PAL's artifact."""

OTHER_CLASS = "A"
"""The class that PAL's artifact gives to a model it does not know."""


def detects(first: str) -> bool:
    return csv_rows.has_columns(first, COLUMNS)


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """Read a Sia-Philly trace; its times count from 0 already. Raises UsageError for another header."""
    csv_rows.read_jobs(lines, COLUMNS, collector, lambda row: _job(row, options.apps))
    return collector.trace()


def _job(row: csv_rows.Row, apps: Mapping[str, App]) -> TraceJob:
    model = row["model"].strip()
    app = app_of(model, apps, APPS)
    return iterations_job(
        job_id=row["job_id"].strip(),
        gpus=whole("num_gpus", row["num_gpus"], 0),
        submit_s=number("submit_time", row["submit_time"], 0.0),
        iterations=number("duration", row["duration"], 0.0),
        model=model,
        app=app._replace(sensitivity=app.sensitivity or OTHER_CLASS),
    )


def iterations_job(job_id: str, gpus: int, submit_s: float, iterations: float, model: str, app: App) -> TraceJob:
    """A job that is given in iterations. Raises Unusable without the seconds of one, NotReplayed for no work."""
    if not job_id:
        raise Unusable("the job id is empty")
    if not gpus:
        raise NotReplayed("no GPUs")
    if not iterations:
        raise NotReplayed("no run time")
    if app.iteration_s is None:
        raise Unusable(f"model {shown(model)}: seconds per iteration are unknown; give them in an application table")
    return TraceJob(
        job_id=job_id,
        submit_s=submit_s,
        shape=GpuShape(gpus),
        ideal_s=iterations * app.iteration_s,
        sensitivity=app.sensitivity or "?",
        app=model,
    )
