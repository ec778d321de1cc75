# SPDX-License-Identifier: MIT
"""The Standard Workload Format, version 2.2, of the Parallel Workloads Archive.

One job per line, 18 numbers, -1 for unknown, comments after `;`. Its processors are
read as GPUs, `processors_per_gpu` of them to one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from slurm_pal.base.errors import UsageError
from slurm_pal.base.jobs import UNKNOWN_CLASS, GpuShape
from slurm_pal.simulate.inputs.collect import NotReplayed, TraceCollector, Unusable, number, shown, whole
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.inputs.reader_options import ReaderOptions
from slurm_pal.simulate.trace import Trace, TraceJob

FIELDS = 18
COMMENT = ";"


class SwfStatus(IntEnum):
    """Field 11. A job that ran in parts has one line for each (2, 3, 4) and one for the whole (0 or 1)."""

    UNKNOWN = -1
    FAILED = 0
    COMPLETED = 1
    PART = 2
    LAST_PART_COMPLETED = 3
    LAST_PART_FAILED = 4
    CANCELLED = 5


PARTS = (SwfStatus.PART, SwfStatus.LAST_PART_COMPLETED, SwfStatus.LAST_PART_FAILED)


class Fields(NamedTuple):
    """The fields that are used; the others are counted, not read."""

    job: str
    submit: str
    run: str
    allocated: str
    requested: str
    limit: str
    status: str
    user: str
    group: str
    application: str


_PLACES = (0, 1, 3, 4, 7, 8, 10, 11, 12, 13)


def detects(first: str) -> bool:
    """A comment, or 18 numbers."""
    return first.startswith(COMMENT) or _is_row(first)


def _is_row(text: str) -> bool:
    try:
        return len([number("field", word) for word in text.split()]) == FIELDS
    except Unusable:
        return False


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """Read an SWF log; its times count from 0 already.

    Raises UsageError when no line of it is a job of 18 fields, or for processors_per_gpu below 1.
    """
    if options.processors_per_gpu < 1:
        raise UsageError(f"processors per GPU = {options.processors_per_gpu} must be at least 1")
    seen = False
    for line, text in lines:
        if text.startswith(COMMENT):
            continue
        words = text.split()
        seen = seen or len(words) == FIELDS
        try:
            if len(words) != FIELDS:
                raise Unusable(f"{len(words)} fields instead of {FIELDS}: {shown(text)}")
            collector.add(line, _job(Fields(*(words[place] for place in _PLACES)), options.processors_per_gpu))
        except Unusable as error:
            collector.bad(line, str(error))
        except NotReplayed as reason:
            collector.skip(str(reason))
    if not seen:
        raise UsageError(f"no line has the {FIELDS} fields of the Standard Workload Format")
    return collector.trace()


def _job(fields: Fields, processors_per_gpu: int) -> TraceJob:
    status = whole("status", fields.status, -1)
    if status not in tuple(SwfStatus):
        raise Unusable(f"status = {status} is not one of {', '.join(str(int(known)) for known in SwfStatus)}")
    run_s, processors = number("run time", fields.run, -1), whole("allocated processors", fields.allocated, -1)
    limit_s = number("requested time", fields.limit, -1)
    submit_s = number("submit time", fields.submit, 0)
    if processors <= 0:
        processors = whole("requested processors", fields.requested, -1)
    if status in PARTS:
        raise NotReplayed("part of a job that has a line of its own")
    if run_s <= 0:
        raise NotReplayed("cancelled before its start" if status == SwfStatus.CANCELLED else "no run time")
    if processors <= 0:
        raise NotReplayed("no processors")
    return TraceJob(
        job_id=str(whole("job number", fields.job, 0)),
        submit_s=submit_s,
        shape=GpuShape(math.ceil(processors / processors_per_gpu)),
        ideal_s=run_s,
        sensitivity=UNKNOWN_CLASS,
        limit_s=limit_s if limit_s > 0 else None,
        app=_named("", fields.application),
        user=_named("u", fields.user),
        account=_named("g", fields.group),
    )


def _named(prefix: str, text: str) -> str:
    """The number of a user, group or application as a name; "" where the log does not say."""
    return "" if text == "-1" else f"{prefix}{text}"
