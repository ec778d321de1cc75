# SPDX-License-Identifier: MIT
"""Jobs as their users name them: 4711, 4711_2, lists and ranges of both; and what Slurm knows of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_pal.base.errors import SlurmError, UsageError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.base.numbers import digits
from slurm_pal.slurm.client import SlurmClient

MOST_JOBS = 1000
"""So many jobs may be asked about at once."""
_FORMS = "a job like 4711, a task of an array like 4711_2, or a list like 4711,4713-4715,4720_[1-3]"
_SPAN = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,9}))?)?")
_BETWEEN = re.compile(r",(?![^\[]*\])")  # no comma within brackets


class JobName(NamedTuple):
    """A job as its user names it: 4711, or 4711_2 for a task of an array."""

    job_id: int
    task: int | None = None

    def __str__(self) -> str:
        return str(self.job_id) if self.task is None else f"{self.job_id}_{self.task}"


class FoundJob(NamedTuple):
    """What Slurm knows of a job."""

    number: int  # the job's own id
    job: SlurmJob | None
    trouble: str  # why it does not answer, "" where it does


def job_name(text: str) -> JobName:
    """Read one JOBID. Raises UsageError."""
    number, sign, task = text.partition("_")
    job_id, index = digits(number), digits(task) if sign else None
    if not job_id or (sign and index is None):
        raise UsageError(f"JOBID {text!r} is neither a job like 4711 nor a task of an array like 4711_2: see squeue")
    return JobName(job_id, index)


def job_names(text: str) -> list[JobName]:
    """Read a list of jobs, each once, in order: `4711,4713-4715,4720_[1-3]`. Raises UsageError."""
    found: dict[JobName, None] = {}
    for part in _BETWEEN.split(text):
        for name in _expanded(part, text):
            found[name] = None
            if len(found) > MOST_JOBS:
                raise UsageError(f"JOBID {text[:60]!r} names more than {MOST_JOBS} jobs: name fewer")
    return list(found)


def _expanded(part: str, whole: str) -> Iterator[JobName]:
    number, sign, tasks = part.partition("_")
    array = digits(number)
    if not sign:
        span = _span(number)
        if span and span[0]:
            return map(JobName, span)  # as far as the caller wants: 1-99999999999 is no list to be made
    elif array:
        inner = tasks[1:-1].partition("%")[0].split(",") if tasks[:1] + tasks[-1:] == "[]" else [tasks]
        spans = [_span(one) for one in inner]
        if all(spans):
            return (JobName(array, task) for span in spans for task in span or ())
    of = f" of {whole[:60]!r}" if part != whole else ""
    raise UsageError(f"JOBID {part[:60]!r}{of} is not {_FORMS}: see squeue")


def _span(text: str) -> range | None:
    """Like `4`, `4-9`, `0-8:2`; None for any other text, or an empty range."""
    match = _SPAN.fullmatch(text)
    step = int(match[3] or 1) if match else 0
    return range(int(match[1]), int(match[2] or match[1]) + 1, step) or None if match and step else None


def find_job(client: SlurmClient, named: JobName) -> FoundJob:
    """The job's own id, what Slurm knows of it, and why it does not answer. Raises UsageError for no array."""
    return find_jobs(client, [named])[0]


def find_jobs(client: SlurmClient, named: Sequence[JobName]) -> list[FoundJob]:
    """The same for several, by one question for each array and one for all jobs. Raises UsageError for no array."""
    numbers: dict[JobName, int] = {}
    trouble: dict[JobName, str] = {}
    try:
        for array in dict.fromkeys(name.job_id for name in named if name.task is not None):
            tasks = [name for name in named if name.job_id == array and name.task is not None]
            known = client.tasks(array, [name.task for name in tasks if name.task is not None])
            missing = [name for name in tasks if name.task not in known]
            numbers |= {name: known[name.task] for name in tasks if name.task in known}
            if missing and (other := client.job(array)) is not None:
                if other.array_job_id is None:
                    raise UsageError(f"job {array} is no array: leave out _{missing[0].task}")
                text = f"array {array} has no such task, or Slurm has forgotten it"
                trouble |= dict.fromkeys(missing, text)
        numbers |= {name: name.job_id for name in named if name.task is None}
        wanted = list(dict.fromkeys(numbers.values()))
        if len(wanted) == 1:
            one = client.job(wanted[0])
            jobs = {wanted[0]: one} if one is not None else {}
        else:
            jobs = client.jobs_of(wanted)
    except SlurmError as error:
        return [FoundJob(numbers.get(name, name.job_id), None, one_line(error)) for name in named]
    return [
        FoundJob(numbers[name], jobs.get(numbers[name]), "")
        if name in numbers
        else FoundJob(name.job_id, None, trouble.get(name, ""))
        for name in named
    ]
