# SPDX-License-Identifier: MIT
"""What a reader gathers row by row: jobs, bad rows, counts of rows that are not to be replayed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable

from slurm_pal.simulate.trace import BadRow, Trace, TraceJob

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SHOWN = 60  # characters of a user's value in a reason


class Unusable(ValueError):
    """A row that says nothing usable; its text becomes the reason of the bad row."""


class NotReplayed(Exception):
    """A well-formed row that is not to be replayed; its text is the count it falls under."""


class TraceCollector:
    """Gathers one trace. Bad rows may come in any order and are sorted by line at the end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: list[TraceJob] = []
        self._lines: dict[str, int] = {}  # job id -> the line that gave it
        self._bad: list[BadRow] = []
        self._skipped: Counter[str] = Counter()

    def add(self, line: int, job: TraceJob) -> None:
        """Take a job; a job id that was given before makes the row a bad one."""
        first = self._lines.setdefault(job.job_id, line)
        if first != line:
            self.bad(line, f"job id {shown(job.job_id)} was given before, on line {first}; each job has its own")
        else:
            self._jobs.append(job)

    def bad(self, line: int, reason: str) -> None:
        self._bad.append(BadRow(line, reason))

    def skip(self, reason: str, count: int = 1) -> None:
        self._skipped[reason] += count

    def trace(self, from_first: bool = False, name: str | None = None) -> Trace:
        """The trace, in order of submission; with `from_first` times count from the first one."""
        jobs = sorted(self._jobs, key=lambda job: job.submit_s)
        if from_first and jobs:
            zero_s = jobs[0].submit_s
            jobs = [job._replace(submit_s=job.submit_s - zero_s) for job in jobs]
        bad = sorted(self._bad, key=lambda row: row.line)
        return Trace(self._name if name is None else name, tuple(jobs), tuple(bad), dict(self._skipped))


def shown(text: str) -> str:
    """A value as a reason quotes it: one line, not a page."""
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


def number(name: str, text: str, least: float = -math.inf) -> float:
    """A finite decimal number of at least `least`. Raises Unusable."""
    value = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(value) or value < least:
        limit = "" if least == -math.inf else f" of at least {least:g}"
        raise Unusable(f"{name} = {shown(text)} must be a number{limit}")
    return value


def whole(name: str, text: str, least: int) -> int:
    """A whole number of at least `least`. Raises Unusable."""
    if not _WHOLE.fullmatch(text.strip()) or int(text) < least:
        raise Unusable(f"{name} = {shown(text)} must be a whole number from {least}")
    return int(text)


def choice(name: str, text: str, allowed: Iterable[str]) -> str:
    """One of a few words. Raises Unusable."""
    words = tuple(allowed)
    if text not in words:
        raise Unusable(f"{name} = {shown(text)} is not one of {', '.join(words)}")
    return text
