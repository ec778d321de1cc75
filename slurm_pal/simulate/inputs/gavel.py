# SPDX-License-Identifier: MIT
"""Traces of Gavel (OSDI'20): ten tab-separated columns without a header, work as a number of steps.

The time of a step is not in them: it comes from a throughput table (options.throughputs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs.collect import TraceCollector, Unusable, number, shown, whole
from slurm_pal.simulate.inputs.lines import Numbered, numbered, opened
from slurm_pal.simulate.inputs.reader_options import ReaderOptions
from slurm_pal.simulate.throughput_file import Throughputs
from slurm_pal.simulate.trace import Trace, TraceJob

COLUMNS = (
    "job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
    "priority_weight", "SLO", "arrival_time",
)  # fmt: skip
NO_DEADLINE = -1.0
LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6  # wider ratios are beyond the tolerance of a linear program


class GavelRow(NamedTuple):
    """One line of a trace. A job's number is its place among the lines that are not empty, from 0."""

    job_type: str  # model, as in the throughput table
    command: str
    working_directory: str
    num_steps_arg: str
    needs_data_dir: bool
    total_steps: int
    scale_factor: int  # GPUs
    priority_weight: float
    slo: float  # multiple of the duration on the reference GPUs; NO_DEADLINE: none
    arrival_s: float


def detects(first: str) -> bool:
    try:
        parse(first)
    except Unusable:
        return False
    return True


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """The jobs, numbered from 0 in file order; ideal run time is that on the GPU type that is fastest for the job.

    Raises UsageError without options.throughputs.
    """
    table = options.throughputs
    if table is None:
        raise UsageError("its jobs are counted in steps; give steps/s by model and GPU type with --throughputs FILE")
    for place, (line, text) in enumerate(lines):
        try:
            collector.add(line, _job(place, parse(text), table))
        except Unusable as error:
            collector.bad(line, str(error))
    return collector.trace()


def read_rows(path: str) -> list[GavelRow]:
    """All columns of a trace, plain or gzip, for the replica of Gavel's simulator.

    Raises DataError, with the line: a row of another form, an arrival before the one above it;
    UsageError for a file that cannot be opened; DataError for one without a job.
    """
    collector = TraceCollector(path)
    rows: list[GavelRow] = []
    with opened(path) as stream:
        for line, text in numbered(stream, collector):
            try:
                row = parse(text)
            except Unusable as error:
                raise DataError(f"{path} line {line}: {error}") from None
            if rows and row.arrival_s < rows[-1].arrival_s:
                raise DataError(
                    f"{path} line {line}: arrival_time {row.arrival_s:g} is before that of the job above, "
                    f"{rows[-1].arrival_s:g}; sort the trace by arrival"
                )
            rows.append(row)
    for bad in collector.trace().bad:
        raise DataError(f"{path} line {bad.line}: {bad.reason}")
    if not rows:
        raise DataError(f"{path} holds no job")
    return rows


def parse(text: str) -> GavelRow:
    """One line. Raises Unusable for anything but ten columns with values as GavelRow has them."""
    cells = text.split("\t")
    if len(cells) != len(COLUMNS):
        raise Unusable(f"{len(cells)} tab-separated columns, not the {len(COLUMNS)} of a Gavel trace: {shown(text)}")
    found = dict(zip(COLUMNS, cells, strict=True))
    if not found["job_type"].strip():
        raise Unusable("job_type is empty; it names the model")
    weight, slo = number("priority_weight", found["priority_weight"]), number("SLO", found["SLO"])
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise Unusable(f"priority_weight = {weight:g} must be from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}")
    if slo <= 0 and slo != NO_DEADLINE:
        raise Unusable(f"SLO = {slo:g} must be above 0, or -1 for none")
    return GavelRow(
        job_type=found["job_type"].strip(),
        command=found["command"],
        working_directory=found["working_directory"],
        num_steps_arg=found["num_steps_arg"],
        needs_data_dir=whole("needs_data_dir", found["needs_data_dir"], 0) == 1,
        total_steps=whole("total_steps", found["total_steps"], 1),
        scale_factor=whole("scale_factor", found["scale_factor"], 1),
        priority_weight=weight,
        slo=slo,
        arrival_s=number("arrival_time", found["arrival_time"], 0.0),
    )


def _job(place: int, row: GavelRow, table: Throughputs) -> TraceJob:
    """Run time on the fastest type: the replay has GPUs of one kind, and no job can be better off than there."""
    rate = max(table.packed.get((row.job_type, row.scale_factor), (0.0,)))
    if rate <= 0:
        raise Unusable(f"{shown(row.job_type)} on {row.scale_factor} GPUs runs on no type of the throughput table")
    return TraceJob(
        job_id=str(place),
        submit_s=row.arrival_s,
        shape=GpuShape(row.scale_factor),
        ideal_s=row.total_steps / rate,
        sensitivity="?",
        app=row.job_type,
    )
