# SPDX-License-Identifier: MIT
"""What is replayed: the jobs of a trace, and the rows of it that could not be used."""

from __future__ import annotations

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
