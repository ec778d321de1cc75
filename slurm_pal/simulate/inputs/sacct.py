# SPDX-License-Identifier: MIT
"""The site's own history: an export of `sacct --parsable2` (Slurm 22.05 to 26.05).

Each row that ran on GPUs and has ended is a job; it ran `ElapsedRaw` seconds on the GPUs
it had, and that is taken as its ideal run time. docs/traces.md gives the command.
"""

from __future__ import annotations

import calendar
import fnmatch
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from slurm_pal.base.jobs import UNKNOWN_CLASS, GpuShape
from slurm_pal.sensitivity.catalogue import APPLICATIONS, class_of
from slurm_pal.simulate.inputs.collect import NotReplayed, TraceCollector, Unusable, number, shown, whole
from slurm_pal.simulate.inputs.lines import Numbered
from slurm_pal.simulate.inputs.reader_options import CLASSES, ReaderOptions
from slurm_pal.simulate.inputs.sacct_columns import header, is_header
from slurm_pal.simulate.trace import Trace, TraceJob
from slurm_pal.slurm.gres import gpu_count
from slurm_pal.slurm.parse import seconds
from slurm_pal.slurm.states import JOB_ACTIVE, JOB_ENDED, JOB_WAITING

Row = dict[str, str]

NO_MOMENT = frozenset({"", "unknown", "none", "n/a"})
NO_LIMIT = frozenset({"", "0", "unlimited", "partition_limit"})
NO_JOB = {"REQUEUED": "earlier run of a requeued job", "REVOKED": "revoked: ran on another cluster"}
"""States that sacct shows for a row whose job has another row: why the row is left out."""

BROKEN_OFF = frozenset({"NODE_FAIL", "PREEMPTED"})
"""States after which Slurm may have requeued the job; then a later row has the same job id."""

_JOB_ID = re.compile(r"\d+(?:_\d+|\+\d+)?")
_ARRAY_REST = re.compile(r"\d+_\[[^\]]*\]")  # tasks that have not started, in one row
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)")
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_GPU, _TYPED_GPU = "gres/gpu", "gres/gpu:"


class _Run(NamedTuple):
    """One usable row."""

    line: int
    state: str
    submit_s: float  # as the column says: distinguishes the runs of one job
    job: TraceJob


def detects(first: str) -> bool:
    return is_header(first)


def read_lines(lines: Iterator[Numbered], collector: TraceCollector, options: ReaderOptions) -> Trace:
    """Read an export; times count from the first submission of a job that is replayed.

    A missing column that is not needed is noted as a bad row of the header's line.
    Raises UsageError for a header without the needed columns and for a pattern that
    names an unknown application.
    """
    line, first = next(lines, (1, ""))
    columns = header(first)
    for loss in columns.missing():
        collector.bad(line, loss)
    apps = Apps(options)
    runs: list[_Run] = []
    last_submit_s: dict[str, float] = {}
    for line, text in lines:
        if text == first:
            collector.skip("repeated header")
            continue
        try:
            row = dict(zip(columns.names, columns.cut(text), strict=True))
            job_id, submit_s = _id(row), moment("Submit", row["submit"])
            if submit_s is None:
                raise Unusable(f"Submit = {shown(row['submit'])} must be a time")
            # Whether or not this row is replayed, it shows that the job ran again.
            last_submit_s[job_id] = max(submit_s, last_submit_s.get(job_id, submit_s))
            runs.append(_run(line, row, job_id, submit_s, apps))
        except Unusable as error:
            collector.bad(line, str(error))
        except NotReplayed as reason:
            collector.skip(str(reason))
    _add_one_run_each(runs, last_submit_s, collector)
    return collector.trace(from_first=True)


def _add_one_run_each(runs: list[_Run], last_submit_s: dict[str, float], collector: TraceCollector) -> None:
    """Leave out runs that a later row continues and rows that appear twice; keep ids distinct after a reset."""
    seen: dict[str, set[float]] = {}
    for run in runs:
        job_id = run.job.job_id
        submits = seen.setdefault(job_id, set())
        if run.state in BROKEN_OFF and run.submit_s < last_submit_s[job_id]:
            collector.skip(NO_JOB["REQUEUED"])
        elif run.submit_s in submits:
            collector.skip("repeated row")
        else:
            submits.add(run.submit_s)
            own_id = job_id if len(submits) == 1 else f"{job_id}#{len(submits)}"
            collector.add(run.line, run.job._replace(job_id=own_id))


def _id(row: Row) -> str:
    """The job id. Raises NotReplayed for a step, Unusable for something else."""
    text = (row.get("jobidraw") or row.get("jobid", "")).strip()
    if _JOB_ID.fullmatch(text):
        return text
    if _JOB_ID.fullmatch(text.partition(".")[0]):
        raise NotReplayed("step of a job")
    if _ARRAY_REST.fullmatch(text):
        raise NotReplayed("not started")
    raise Unusable(f"job id = {shown(text)} must be like 12, 12_3 or 12+0")


def _run(line: int, row: Row, job_id: str, submit_s: float, apps: Apps) -> _Run:
    state = _ended_state(row["state"])
    elapsed_s = _elapsed_s(row)
    if elapsed_s <= 0:
        raise NotReplayed("cancelled before its start" if state == "CANCELLED" else "no run time")
    shape = _shape(row)
    app, sensitivity = apps.of(row.get("jobname", ""))
    job = TraceJob(
        job_id=job_id,
        # Before that moment Slurm could not have started the job on any nodes.
        submit_s=max(submit_s, moment("Eligible", row.get("eligible", "")) or submit_s),
        shape=shape,
        ideal_s=elapsed_s,
        sensitivity=sensitivity,
        limit_s=_limit_s(row),
        app=app,
        user=row.get("user", ""),
        account=row.get("account", ""),
        partition=row.get("partition", ""),
        cpus=_taken(row, "cpu", lambda name, text: whole(name, text, 0)),
        memory_mib=_taken(row, "mem", _mib),
        qos=row.get("qos", ""),
    )
    return _Run(line, state, submit_s, job)


def _ended_state(text: str) -> str:
    """The state of a job that has ended, `CANCELLED by 1000` included. Raises NotReplayed for any other."""
    state = text.partition(" ")[0].rstrip("+").upper()
    if state in NO_JOB:
        raise NotReplayed(NO_JOB[state])
    if state in JOB_ENDED:
        return state
    if state in JOB_ACTIVE:
        raise NotReplayed("still running")
    if state in JOB_WAITING:
        raise NotReplayed("not started")
    raise Unusable(f"State = {shown(text)} is not a state of Slurm")


def moment(name: str, text: str) -> float | None:
    """Seconds of a time stamp, None where Slurm knows none.

    A stamp without a zone is read as if it were UTC: only differences matter here, and
    the zone of this machine need not be that of the cluster. Raises Unusable.
    """
    text = text.strip()
    if text.lower() in NO_MOMENT:
        return None
    if text.isdecimal():
        return number(name, text)
    if _STAMP.fullmatch(text):
        try:
            return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
        except ValueError:
            pass
    raise Unusable(f"{name} = {shown(text)} must be a time like 2026-01-31T23:59:59, Unix seconds or Unknown")


def _elapsed_s(row: Row) -> float:
    """How long the job ran; 0 where it never started."""
    if row.get("elapsedraw"):
        return float(whole("ElapsedRaw", row["elapsedraw"], 0))
    if row.get("elapsed"):
        elapsed_s = seconds(row["elapsed"].strip())
        if elapsed_s is None:
            raise Unusable(f"Elapsed = {shown(row['elapsed'])} must be like 1-02:03:04")
        return float(elapsed_s)
    start_s, end_s = moment("Start", row.get("start", "")), moment("End", row.get("end", ""))
    if start_s is None or end_s is None:
        return 0.0
    if end_s < start_s:
        raise Unusable(f"End = {shown(row['end'])} is before Start = {shown(row['start'])}")
    return end_s - start_s


def _limit_s(row: Row) -> float | None:
    raw, text = row.get("timelimitraw", "").strip(), row.get("timelimit", "").strip()
    if raw and raw.lower() not in NO_LIMIT:
        return 60.0 * whole("TimelimitRaw", raw, 1)
    if raw or text.lower() in NO_LIMIT:
        return None
    limit_s = seconds(text)
    if limit_s is None:
        raise Unusable(f"Timelimit = {shown(text)} must be like 1-02:03:04, UNLIMITED or Partition_Limit")
    return float(limit_s) or None


# -- GPUs ---------------------------------------------------------------------------------


class Gpus(NamedTuple):
    """What a TRES text says of GPUs."""

    total: int
    types: dict[str, int]


def gpus_of(name: str, tres: str) -> Gpus:
    """The GPUs of a TRES text like `cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1`.

    `gres/gpu` counts all of them, whatever their type, and types come on top of it only
    as a repetition; a site that accounts for types alone has no `gres/gpu`. Raises Unusable.
    """
    total, types = 0, {}
    for item in tres.split(","):
        key, _, value = item.strip().partition("=")
        if key == _GPU:
            total = whole(f"{_GPU} in {name}", value, 0)
        elif key.startswith(_TYPED_GPU):
            types[key.removeprefix(_TYPED_GPU)] = whole(f"{key} in {name}", value, 0)
    return Gpus(total or sum(types.values()), types)


def _shape(row: Row) -> GpuShape:
    """Nodes x GPUs per node where the job got the node count it asked for, else only the total."""
    allocated, requested = row.get("alloctres", ""), row.get("reqtres", "")
    wanted = gpus_of("ReqTRES", requested)
    total = gpus_of("AllocTRES", allocated).total or wanted.total or gpu_count(row.get("allocgres", ""))
    if not total:
        raise NotReplayed("no GPUs")
    kind = next(iter(wanted.types), "") if list(wanted.types.values()) == [wanted.total] else ""
    nodes = whole("NNodes", row["nnodes"], 1) if row.get("nnodes", "").strip() else _nodes_of("AllocTRES", allocated)
    if nodes and nodes == _nodes_of("ReqTRES", requested) and total % nodes == 0:
        return GpuShape(total, nodes, total // nodes, kind)
    return GpuShape(total, gpu_type=kind)


def _nodes_of(name: str, tres: str) -> int | None:
    for item in tres.split(","):
        key, _, value = item.strip().partition("=")
        if key == "node":
            return whole(f"node in {name}", value, 1)
    return None


def _taken(row: Row, key: str, read: Callable[[str, str], int]) -> int:
    """What the job had of CPUs or memory, else what it asked for; 0 where the export does not say.

    ReqTRES counts one CPU for each task of a job with --cpus-per-gpu, and the default of a partition not at all.
    """
    for name, column in (("AllocTRES", "alloctres"), ("ReqTRES", "reqtres")):
        for item in row.get(column, "").split(","):
            word, _, value = item.strip().partition("=")
            if word == key:
                return read(f"{key} in {name}", value)
    return 0


def _mib(name: str, text: str) -> int:
    found = _MEMORY.fullmatch(text.strip())
    if not found:
        raise Unusable(f"{name} = {shown(text)} must be an amount of memory like 64000M or 62.50G")
    return math.ceil(float(found[1]) * _MIB[found[2]])


# -- applications -------------------------------------------------------------------------


class Apps:
    """Job name -> application and sensitivity class, by patterns, pal.toml and the catalogue."""

    def __init__(self, options: ReaderOptions) -> None:
        """Raises UsageError for a pattern that names an application nobody knows."""
        self._site = options.site_apps
        self._patterns = [(glob.lower(), self._named(name)) for glob, name in options.patterns]
        known = {name.lower() for name in (*APPLICATIONS, *options.site_apps)}
        self._exact = {name: self._named(name) for name in known}

    def _named(self, name: str) -> tuple[str, str]:
        return ("", name) if name in CLASSES else (name, class_of(name, self._site))

    def of(self, job_name: str) -> tuple[str, str]:
        """(application, class): the first pattern that fits, else the known application of that very name."""
        name = job_name.strip().lower()
        for glob, found in self._patterns:
            if fnmatch.fnmatchcase(name, glob):
                return found
        return self._exact.get(name, ("", UNKNOWN_CLASS))
