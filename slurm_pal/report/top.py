# SPDX-License-Identifier: MIT
"""What `pal top` shows: GPUs, jobs, lists of ours and moves, at one moment. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from slurm_pal.base import marks
from slurm_pal.base.faults import OK
from slurm_pal.base.hostlist import fold
from slurm_pal.base.jobs import SENSITIVITY_CLASSES, SlurmJob
from slurm_pal.decide import lease_marks
from slurm_pal.report import filter_mark, move_rows, table
from slurm_pal.report.gpus.job_shapes import OURS
from slurm_pal.report.inventory import GpuRow
from slurm_pal.report.listing import Listing
from slurm_pal.report.move_rows import MoveRow

JOB_HEADER = ("JOBID", "USER", "NAME", "PARTITION", "ST", "TIME", "GPUS", "CLASS", "SLOWEST", "NODES")
_JOB_SHOWS = {"JOBID": "job_id", "ST": "state", "TIME": "elapsed_s", "CLASS": "sensitivity"}
LIST_HEADER = ("JOBID", "USER", "WAITS", "LIST OF OURS", "INSTEAD OF")
MOVE_HEADER = ("WHEN", "JOBID", "USER", "FROM", "TO", "OUTCOME")
LONGEST_NAME = 16
MOST_MOVES = 5
SLOW = 1.1
"""A job whose slowest GPU is at least so slow comes first."""


class JobRow(NamedTuple):
    """One job with GPUs."""

    job_id: int
    user: str
    name: str
    partition: str
    state: str
    elapsed_s: float  # it has run or waited
    gpus: int  # 0: not known yet
    sensitivity: str  # class, "" if nobody knows it
    slowest: float | None  # of its GPUs, for its class (A where that is not known); None while it waits
    nodes: str


class ListRow(NamedTuple):
    """One pending job with a list of ours."""

    job_id: int
    user: str
    waits_s: float
    ours: str
    own: str  # what stands there when the list is taken back


class View(NamedTuple):
    """One screen."""

    at_s: float  # Unix seconds
    gpus: int
    used: int
    faulty: int
    running: int  # jobs with GPUs
    waiting: int
    jobs: tuple[JobRow, ...]  # those on slow GPUs first, then the newest, then those that wait
    lists: tuple[ListRow, ...]
    moves: tuple[MoveRow, ...]  # the newest first

    def to_json(self) -> dict[str, Any]:
        """The schema pal.top/1."""
        rows = {name: [row._asdict() for row in getattr(self, name)] for name in ("jobs", "lists", "moves")}
        return {**self._asdict(), **rows}


def view(rows: Sequence[GpuRow], jobs: Sequence[SlurmJob], moves: Sequence[MoveRow], now_s: float) -> View:
    """The screen of these GPUs (`rows`); `jobs` on other nodes are left out, and so are those of sweeps."""
    slowdown = {(row.node, row.gpu_index): row.slowdown for row in rows}
    nodes = {row.node for row in rows}
    ours = [job for job in jobs if not job.name.startswith(OURS)]
    running = [job for job in ours if job.state == "RUNNING" and not nodes.isdisjoint(job.gpus)]
    waiting = [job for job in ours if job.state == "PENDING" and job.asks.gpus]
    found = [_job(job, slowdown, now_s) for job in running]
    found.sort(key=lambda row: (-(row.slowest or 0.0) if (row.slowest or 0.0) >= SLOW else 0.0, row.elapsed_s))
    return View(
        now_s,
        len(rows),
        sum(bool(row.in_use) for row in rows),
        sum(row.state != OK for row in rows),
        len(running),
        len(waiting),
        (*found, *(_job(job, slowdown, now_s) for job in sorted(waiting, key=lambda job: job.rank))),
        tuple(_lists(waiting, now_s)),
        tuple(sorted(moves, key=lambda move: -move.made_s)[:MOST_MOVES]),
    )


def _job(job: SlurmJob, slowdown: Mapping[tuple[str, int], Mapping[str, float]], now_s: float) -> JobRow:
    sensitivity = _class_of(job)
    known = [
        slowdown.get((node, index), {}).get(sensitivity or SENSITIVITY_CLASSES[0])
        for node, indexes in job.gpus.items()
        for index in indexes
    ]
    begun_s = job.start_s if job.gpus else job.submit_s
    count = sum(map(len, job.gpus.values())) or job.asks.gpus_in_all or job.gpus_per_node * max(1, job.asks.nodes_min)
    return JobRow(
        job.job_id,
        job.user,
        job.name,
        job.partition,
        job.state,
        max(0.0, now_s - begun_s),
        count,
        sensitivity,
        max((x for x in known if x is not None), default=None),
        fold(job.nodes) if job.nodes else "",
    )


def _class_of(job: SlurmJob) -> str:
    """As palsub or the submit filter left it on the job."""
    said = marks.read(job.comment, marks.JOB).get(marks.JOB, "") or (filter_mark.decision(job) or {}).get("class", "")
    return said if said in SENSITIVITY_CLASSES else ""


def _lists(waiting: Sequence[SlurmJob], now_s: float) -> list[ListRow]:
    """What the marks on pending jobs say of lists that still stand there."""
    found = []
    for job in waiting:
        if own := lease_marks.in_force(job):
            ours = ",".join([*job.req_nodes, *(f"not {name}" for name in job.exc_nodes)]) or job.partition
            instead = ",".join(value for value in own.values() if value)
            found.append(ListRow(job.job_id, job.user, max(0.0, now_s - job.submit_s), ours, instead))
    return found


def head(seen: View, cluster: str, notes: Sequence[str]) -> list[str]:
    """The lines above the map: counts, then what is missing."""
    used = f"{seen.used:,} of {table.counted(seen.gpus, 'GPU')} in use"
    faulty = f", {seen.faulty} seen to fail" if seen.faulty else ""
    jobs = f"{seen.running} running and {seen.waiting} waiting with GPUs"
    return [f"{move_rows.stamp(seen.at_s)}  {cluster}: {used}{faulty}; jobs: {jobs}", *notes]


def tables(seen: View, height: int, width: int = sys.maxsize) -> list[str]:
    """Lists, moves and jobs in at most `height` lines of at most `width`; jobs that do not fit are counted."""
    lines: list[str] = []
    if seen.lists:
        cells = [[str(row.job_id), row.user, table.age(row.waits_s), row.ours, row.own or "-"] for row in seen.lists]
        lines += ["", *table.columns(LIST_HEADER, cells[:MOST_MOVES], width=width)]
        lines += [f"and {len(cells) - MOST_MOVES} more"] * (len(cells) > MOST_MOVES)
    if seen.moves:
        lines += ["", *table.columns(MOVE_HEADER, [_move(row) for row in seen.moves], width=width)]
    if not seen.jobs:
        return [*lines, "", "no jobs with GPUs"][:height]
    room = max(1, height - len(lines) - 3)
    jobs = [_cells(row) for row in seen.jobs[:room]]
    header, *rows = table.row_lines(JOB_HEADER, jobs, width=width)
    room -= len(header) - 1
    shown = [row for row, end in zip(rows, accumulate(map(len, rows)), strict=True) if end <= room] or rows[:1]
    lines = ["", *header, *(line for row in shown for line in row), *lines]
    if len(seen.jobs) > len(shown):
        lines.append(f"and {len(seen.jobs) - len(shown)} more jobs")
    return lines[:height]


def listing(seen: View) -> Listing:
    """The jobs as a table."""
    return Listing(
        JobRow._fields, [row._asdict() for row in seen.jobs], JOB_HEADER, list(map(_cells, seen.jobs)), _JOB_SHOWS,
        [row.slowest is not None and row.slowest >= SLOW for row in seen.jobs],
    )  # fmt: skip


def _cells(row: JobRow) -> list[str]:
    slowest = "-" if row.slowest is None else f"{row.slowest:.3f}"
    name = row.name if len(row.name) <= LONGEST_NAME else row.name[: LONGEST_NAME - 1] + "+"
    state = {"RUNNING": "R", "PENDING": "PD"}.get(row.state, row.state)
    return [
        str(row.job_id), row.user, name, row.partition, state, table.age(row.elapsed_s), str(row.gpus or "?"),
        row.sensitivity or "-", slowest, row.nodes or "-",
    ]  # fmt: skip


def _move(row: MoveRow) -> list[str]:
    outcome = row.outcome or f"under way ({row.step})" if row.step else row.outcome or "under way"
    return [move_rows.stamp(row.made_s), str(row.job_id), row.user, row.source or "-", row.target or "-", str(outcome)]
