# SPDX-License-Identifier: MIT
"""What is replayed: the jobs of a trace, and the rows of it that could not be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.jobs import GpuShape


class TraceJob(NamedTuple):
    """One job as the trace describes it. Times are s, from the start of the trace where they are moments."""

    job_id: str
    submit_s: float
    shape: GpuShape
    ideal_s: float  # run time on median GPUs of one node
    sensitivity: str  # A, B, C, D or ?
    limit_s: float | None = None  # time limit; None: the replay's default
    app: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""  # "": any node
    locality_penalty: float | None = None  # this application's own; None: the replay's default
    move_cost_s: float | None = None  # checkpoint, Slurm's gap and restart; None: the replay's default
    movable: bool = True
    cpus: int = 0  # of all its nodes together; 0: not known
    memory_mib: int = 0  # the same
    qos: str = ""


class BadRow(NamedTuple):
    """A row that says nothing usable, or not what its format promises."""

    line: int  # from 1, as editors count
    reason: str  # one line: what is wrong, the value seen, what is allowed


class Trace(NamedTuple):
    """Jobs in order of submission (ties: as in the file), and what was left out and why."""

    name: str
    jobs: tuple[TraceJob, ...]
    bad: tuple[BadRow, ...] = ()
    skipped: dict[str, int] = {}  # well-formed rows that are not replayed: reason -> how many
    of: int = 1  # how many traces this stands for, in a report


def together(traces: Sequence[Trace]) -> Trace:
    """Several traces as one, for what is reported of all of them; never replayed."""
    if len(traces) == 1:
        return traces[0]
    names = list(dict.fromkeys(trace.name for trace in traces))
    skipped: Counter[str] = Counter()
    for trace in traces:
        skipped.update(trace.skipped)
    return Trace(
        ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others",
        tuple(job for trace in traces for job in trace.jobs),
        tuple(row._replace(reason=f"{trace.name}: {row.reason}") for trace in traces for row in trace.bad),
        dict(skipped), len(traces),
    )  # fmt: skip
