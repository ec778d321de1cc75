# SPDX-License-Identifier: MIT
"""On which GPUs jobs started, beside the snapshot: Slurm forgets that when a job has ended.

One line of JSON for each run, `pal.start/1`, appended by the publisher. When the file is full it becomes the older of
two, so both together are bounded. Everybody may read them where Slurm shows everybody's jobs, else SlurmUser alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from slurm_pal.base.files import hand_to_slurm_user, read_trusted
from slurm_pal.base.jobs import SlurmJob

SCHEMA = "pal.start/1"
MOST_BYTES = 8 << 20
"""Of each of the two files: about 50,000 runs of jobs with a few GPUs."""
_OLDER = ".1"


class Start(NamedTuple):
    """One run of one job."""

    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    user: str
    at_s: float  # Unix s
    gpus: dict[str, tuple[int, ...]]  # node -> Slurm's GPU indexes


def path_of(snapshot_path: str) -> str:
    """The newer of the two files."""
    return snapshot_path + ".starts"


def hidden(private_data: str) -> bool:
    """Whether Slurm hides jobs of others, by PrivateData (slurm.conf(5))."""
    return bool({"jobs", "all"} & set(private_data.lower().replace(" ", "").split(",")))


class Starts:
    """The writer; one process at a time, which holds the publisher's lock."""

    def __init__(self, snapshot_path: str) -> None:
        self._path = path_of(snapshot_path)
        self._known: set[tuple[int, float]] | None = None  # (job, start) of runs that are written down

    def add(self, jobs: Iterable[SlurmJob], private: bool) -> list[SlurmJob]:
        """Write down the runs of jobs that hold GPUs and are not known yet; those jobs. Raises OSError, DataError."""
        running = {(job.job_id, job.start_s): job for job in jobs if job.gpus and any(job.gpus.values())}
        if self._known is None:
            self._known = {(one.job_id, one.at_s) for one in _of(_lines(self._path))} if running else set()
        new = [job for key, job in running.items() if key not in self._known]
        if new or os.path.lexists(self._path):
            self._append("".join(map(_line, new)), 0o600 if private else 0o644)
        self._known = set(running)
        return new

    def _append(self, text: str, mode: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_size + len(text) > MOST_BYTES:
                os.replace(self._path, self._path + _OLDER)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            info = os.fstat(descriptor)
            if not info.st_size:
                hand_to_slurm_user(descriptor)
            if info.st_mode & 0o777 != mode:
                os.fchmod(descriptor, mode)
                with contextlib.suppress(FileNotFoundError):
                    os.chmod(self._path + _OLDER, mode)
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def find(snapshot_path: str, job_id: int, task: int | None = None) -> Start | None:
    """The last known run of a job, or of a task of an array; None where there is none that this user may read.

    Raises DataError for a file that cannot be trusted.
    """
    path = path_of(snapshot_path)
    part = f'"array": {job_id},' if task is not None else f'"job": {job_id},'
    for place in (path, path + _OLDER):
        mine = [
            one
            for one in _of(_lines(place, part), part)
            if (one.job_id == job_id if task is None else (one.array_job_id, one.array_task_id) == (job_id, task))
        ]
        if mine:
            return mine[-1]
    return None


def _line(job: SlurmJob) -> str:
    row = {
        "schema": SCHEMA, "job": job.job_id, "array": job.array_job_id, "task": job.array_task_id, "user": job.user,
        "at_s": job.start_s, "gpus": {node: list(indexes) for node, indexes in job.gpus.items() if indexes},
    }  # fmt: skip
    return json.dumps(row) + "\n"


def _lines(path: str, part: str = "") -> list[str]:
    """The lines of a file that this user may read and that holds `part`, else none. Raises DataError."""
    try:
        raw = read_trusted(path, 2 * MOST_BYTES)
    except OSError:
        return []
    return raw.decode(errors="replace").split("\n") if part.encode() in raw else []  # for many jobs: quickly


def _of(lines: Iterable[str], part: str = "") -> Iterable[Start]:
    """The runs in these lines, those that hold `part` only; a line that was cut short is skipped."""
    for line in lines:
        if part in line:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                yield _decoded(json.loads(line))


def _decoded(row: dict[str, Any]) -> Start:
    if row["schema"] != SCHEMA:
        raise ValueError("another schema")
    array, task = (None if row[key] is None else int(row[key]) for key in ("array", "task"))
    gpus = {str(node): tuple(int(index) for index in indexes) for node, indexes in row["gpus"].items()}
    return Start(int(row["job"]), array, task, str(row["user"]), float(row["at_s"]), gpus)


def noted(start: Start) -> dict[str, Any]:
    """In the form in which palsub's record has it (submit/decision.py, `started`)."""
    return {"at_s": start.at_s, "gpus": [[node, index] for node, held in start.gpus.items() for index in held]}
