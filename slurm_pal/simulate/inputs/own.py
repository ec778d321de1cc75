# SPDX-License-Identifier: MIT
"""Our own CSV, `pal.trace/1`: every field of a job, written and read back without loss.

    # pal.trace/1 NAME
    job_id,submit_s,...

One row per line: a line end inside a text is written as `\\n` or `\\r`, a backslash as
`\\\\`. Bad and skipped rows are not written; they belong to the file they came from.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import GpuShape
from slurm_pal.simulate.inputs import csv_rows
from slurm_pal.simulate.inputs.collect import TraceCollector, Unusable, choice, number, shown, whole
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.inputs.reader_options import CLASSES, ReaderOptions
from slurm_pal.simulate.trace import Trace, TraceJob

FAMILY, VERSION = "pal.trace", 1
SCHEMA = f"{FAMILY}/{VERSION}"
COLUMNS = (
    "job_id", "submit_s", "gpus", "nodes", "per_node", "gpu_type", "whole_nodes", "ideal_s", "sensitivity", "limit_s",
    "app", "user", "account", "partition", "locality_penalty", "move_cost_s", "movable",
)  # fmt: skip
MORE = ("cpus", "mem_gib", "qos")
"""Columns that are written only where something is known for them."""

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_ESCAPED = {escape: plain for plain, escape in _ESCAPES.items()}
_FLAGS = ("0", "1")


def detects(first: str) -> bool:
    return first.startswith(f"# {FAMILY}/")


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """Read what `as_text` wrote. Raises UsageError for another file or a newer schema."""
    del options
    line, text = next(lines, (1, ""))
    schema, _, name = text.removeprefix("# ").partition(" ")
    if schema != SCHEMA:
        raise UsageError(f"line {line}: {shown(text)} must be '# {SCHEMA} NAME'")
    csv_rows.read_jobs(lines, COLUMNS, collector, _job)
    return collector.trace(name=_plain(name))


def _job(row: csv_rows.Row) -> TraceJob:
    if not row["job_id"]:
        raise Unusable("the job id is empty")
    return TraceJob(
        job_id=_plain(row["job_id"]),
        submit_s=number("submit_s", row["submit_s"], 0.0),
        shape=_shape(row),
        ideal_s=_positive("ideal_s", row["ideal_s"]),
        sensitivity=choice("sensitivity", row["sensitivity"], CLASSES),
        limit_s=_positive("limit_s", row["limit_s"]) if row["limit_s"] else None,
        app=_plain(row["app"]),
        user=_plain(row["user"]),
        account=_plain(row["account"]),
        partition=_plain(row["partition"]),
        locality_penalty=number("locality_penalty", row["locality_penalty"], 1.0) if row["locality_penalty"] else None,
        move_cost_s=number("move_cost_s", row["move_cost_s"], 0.0) if row["move_cost_s"] else None,
        movable=choice("movable", row["movable"], _FLAGS) == "1",
        cpus=whole("cpus", row["cpus"], 1) if row.get("cpus") else 0,
        memory_mib=_mib(row["mem_gib"]) if row.get("mem_gib") else 0,
        qos=_plain(row.get("qos", "")),
    )


def _shape(row: csv_rows.Row) -> GpuShape:
    nodes = whole("nodes", row["nodes"], 1) if row["nodes"] else None
    per_node = whole("per_node", row["per_node"], 1) if row["per_node"] else None
    total = whole("gpus", row["gpus"], 1)
    if nodes and per_node and nodes * per_node != total:
        raise Unusable(f"gpus = {total} is not nodes x per_node = {nodes} x {per_node}")
    whole_nodes = choice("whole_nodes", row["whole_nodes"], _FLAGS) == "1"
    return GpuShape(total, nodes, per_node, _plain(row["gpu_type"]), whole_nodes)


def _positive(name: str, text: str) -> float:
    value = number(name, text)
    if value <= 0:
        raise Unusable(f"{name} = {shown(text)} must be above 0")
    return value


def _mib(text: str) -> int:
    return max(1, round(1024 * _positive("mem_gib", text)))


def as_text(trace: Trace) -> str:
    """A trace as `pal.trace/1`. Numbers are written so that they read back equal."""
    out = io.StringIO()
    out.write(f"# {SCHEMA} {_escaped(trace.name)}\n")
    writer = csv.writer(out, lineterminator="\n")
    more = any(job.cpus or job.memory_mib or job.qos for job in trace.jobs)
    writer.writerow((*COLUMNS, *MORE) if more else COLUMNS)
    writer.writerows(_cells(job) + (_more(job) if more else []) for job in trace.jobs)
    return out.getvalue()


def _cells(job: TraceJob) -> list[object]:
    shape = job.shape
    # csv writes None as an empty cell and a float by repr, which reads back as the same float.
    return [
        _escaped(job.job_id), float(job.submit_s), shape.total, shape.nodes, shape.per_node, _escaped(shape.gpu_type),
        int(shape.whole_nodes), float(job.ideal_s), job.sensitivity, job.limit_s, _escaped(job.app),
        _escaped(job.user), _escaped(job.account), _escaped(job.partition), job.locality_penalty, job.move_cost_s,
        int(job.movable),
    ]  # fmt: skip


def _more(job: TraceJob) -> list[object]:
    return [job.cpus or None, job.memory_mib / 1024 if job.memory_mib else None, _escaped(job.qos)]


def _escaped(text: str) -> str:
    return re.sub(r"[\\\n\r]", lambda found: _ESCAPES[found.group()], text)


def _plain(text: str) -> str:
    return re.sub(r"\\[\\nr]", lambda found: _ESCAPED[found.group()], text)
