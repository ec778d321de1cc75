# SPDX-License-Identifier: MIT
"""Jobs whose data makes our code raise: set aside, so that the work goes on for all others.

One mechanism for all parts of a tick. A part gets the cluster; where it raises an unexpected error, the job
in hand is found in the traceback, and the part is done again with that job as a husk, which holds its GPUs and
its lists and has no words of its own. Only when the part then succeeds was it the job.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import NamedTuple, TypeVar

from slurm_pal.base.errors import PalError, one_line
from slurm_pal.base.jobs import SlurmJob
from slurm_pal.slurm.client import Overview
from slurm_pal.slurm.parse import husk

T = TypeVar("T")

MOST_TRIES = 24
"""Jobs that are set aside at most for one part in one tick."""
MOST_S = 10.0  # after that no further try is begun
OF_ONE_USER = 3
"""Where this many jobs of one user are to blame, all of theirs are set aside: the rest would be found one by one."""
AGAIN_S = 600.0
"""After that a job is given another chance."""
MOST_KNOWN = 1000
"""Faults remembered as reported."""
_TEXT = 200  # characters of an error that are kept


class Fault(NamedTuple):
    """One unexpected error."""

    kind: str  # of the exception
    text: str
    where: str  # "tick/pace.py:51"
    trace: str

    @property
    def line(self) -> str:
        return f"{self.kind} at {self.where}: {self.text}" if self.text != self.kind else f"{self.kind} at {self.where}"


class Broken(NamedTuple):
    """A job that is set aside."""

    job_id: int
    user: str
    fault: Fault
    since_s: float  # Unix s


class UnexpectedError(PalError):
    """A part failed by an error of ours that no single job explains."""


def fault_of(error: BaseException) -> Fault:
    """Of an exception that was raised. Never raises."""
    place = "?"
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "slurm_pal" in name or place == "?":
            place = f"{'/'.join(name.split('/')[-2:])}:{trace.tb_lineno}"
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(error, limit=-12))
    except Exception:  # a MemoryError, again
        text = ""
    return Fault(type(error).__name__, one_line(error)[:_TEXT], place, text[-4000:])


def blamed(job_id: int, error: BaseException) -> str:
    """The line that reports that work on one job failed by an error of ours."""
    return f"job {job_id}: internal error, {fault_of(error).line}"


class Aside:
    """The jobs that one process has set aside. `report(job_id or None, fault)`: each job and kind of fault once."""

    def __init__(self, report: Callable[[int | None, Fault], None]) -> None:
        self._reporter = report
        self._broken: dict[int, Broken] = {}
        self._users: dict[str, float] = {}  # user -> since when all of theirs are
        self._reported: dict[tuple[int | None, str, str], None] = {}
        self.faults = 0  # unexpected errors so far

    def jobs(self) -> Mapping[int, Broken]:
        """Those that are to blame."""
        return self._broken

    def refresh(self, living: frozenset[int], now_s: float) -> list[int]:
        """Forget jobs that have left the queue, and give others another chance; which ones are free again."""
        free = [n for n, one in self._broken.items() if n not in living or not 0 <= now_s - one.since_s < AGAIN_S]
        for job_id in free:
            del self._broken[job_id]
        self._users = {user: at_s for user, at_s in self._users.items() if 0 <= now_s - at_s < AGAIN_S}
        self._reported = {key: None for key in self._reported if key[0] is None or key[0] in living}
        return free

    def add(self, job: SlurmJob, error: BaseException, now_s: float) -> None:
        """This job is to blame."""
        fault = fault_of(error)
        self.faults += 1
        self._blame({job.job_id: Broken(job.job_id, job.user, fault, now_s)})

    def report(self, error: BaseException, job_id: int | None = None) -> Fault:
        """Report an error once: one that ended a part, or for which one job was to blame."""
        self.faults += 1
        fault = fault_of(error)
        self._say(job_id, fault)
        return fault

    def without(self, overview: Overview) -> Overview:
        """The cluster with husks in the place of jobs that are set aside."""
        if not self._broken and not self._users:
            return overview
        return _husked(overview, frozenset(self._broken), frozenset(self._users))

    def run(self, part: Callable[[Overview], T], overview: Overview, now_s: float) -> T:
        """Do `part`, without the jobs that break it.

        Raises UnexpectedError where no job explains what goes wrong; PalError and OSError as the part does.
        """
        started = time.monotonic()
        blamed: dict[int, Broken] = {}
        users: Counter[str] = Counter()
        dropped: set[int] = set()  # even their husks break it
        while True:
            greedy = {user for user, count in users.items() if count >= OF_ONE_USER}
            seen = _husked(overview, {*self._broken, *blamed}, {*self._users, *greedy}, dropped)
            try:
                done = part(seen)
            except (PalError, OSError):
                raise
            except Exception as error:
                self.faults += 1
                job = culprit(error, seen)
                late = len(blamed) + len(dropped) >= MOST_TRIES or time.monotonic() - started > MOST_S
                if job is None or late or job.job_id in dropped:
                    fault = fault_of(error)
                    self._say(None, fault)
                    raise UnexpectedError(f"internal error, {fault.line}") from None
                if job.job_id in blamed or job.job_id in self._broken or job.user in {*greedy, *self._users}:
                    dropped.add(job.job_id)
                else:
                    blamed[job.job_id] = Broken(job.job_id, job.user, fault_of(error), now_s)
                    users[job.user] += 1
                continue
            self._blame(blamed)
            self._users |= dict.fromkeys(greedy, now_s)
            return done

    def _blame(self, blamed: Mapping[int, Broken]) -> None:
        self._broken |= blamed
        for one in blamed.values():
            self._say(one.job_id, one.fault)

    def _say(self, job_id: int | None, fault: Fault) -> None:
        key = (job_id, fault.kind, fault.where)
        if key not in self._reported:
            if len(self._reported) >= MOST_KNOWN:
                self._reported.pop(next(iter(self._reported)))
            self._reported[key] = None
            self._reporter(job_id, fault)


def culprit(error: BaseException, overview: Overview) -> SlurmJob | None:
    """The job that was in hand when an error was raised: the one nearest to it in the calls that led there."""
    jobs = {job.job_id: job for job in overview.jobs}
    frames = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames[-200:]):
        found = {n for value in frame.f_locals.values() if (n := _number(value)) in jobs}
        if isinstance(number := frame.f_locals.get("job_id"), int) and number in jobs:
            found = {number}
        if len(found) == 1:
            return jobs[found.pop()]
    return None


def _number(value: object) -> int:
    """The id of the job that a value is or is about, -1 where it is about none. No code of others is run."""
    if isinstance(value, SlurmJob):
        return value.job_id
    if isinstance(value, tuple):
        fields = getattr(type(value), "_fields", ())
        job = value[fields.index("job")] if "job" in fields else value[fields.index("one")] if "one" in fields else None
        if isinstance(job, tuple) and not isinstance(job, SlurmJob) and job is not value:
            return _number(job)
        if isinstance(job, SlurmJob):
            return job.job_id
        if "job_id" in fields:
            number = value[fields.index("job_id")]
            return number if isinstance(number, int) else -1
        found = {one.job_id for one in value if isinstance(one, SlurmJob)} if len(value) <= 8 else set()
        return found.pop() if len(found) == 1 else -1
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict) and len(own) <= 32:
        found = {n for inner in own.values() if isinstance(inner, tuple) and (n := _number(inner)) >= 0}
        return found.pop() if len(found) == 1 else -1
    return -1


def _husked(
    overview: Overview, job_ids: frozenset[int] | set[int], users: frozenset[str] | set[str],
    dropped: frozenset[int] | set[int] = frozenset(),
) -> Overview:  # fmt: skip
    if not job_ids and not users and not dropped:
        return overview
    jobs = tuple(
        husk(job) if job.job_id in job_ids or job.user in users else job
        for job in overview.jobs
        if job.job_id not in dropped
    )
    return overview._replace(jobs=jobs)
