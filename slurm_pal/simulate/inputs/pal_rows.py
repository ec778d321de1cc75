# SPDX-License-Identifier: MIT
"""The rows of a Sia-Philly trace: rigid jobs whose length is a number of iterations."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TextIO

from slurm_pal.base.errors import DataError, UsageError
from slurm_pal.simulate.inputs.pal_applications import application_of

COLUMNS = ("job_id", "num_gpus", "submit_time", "duration", "model")


class PalRow(NamedTuple):
    """One job of the trace. `iteration_s` is the time of one iteration on a median GPU."""

    job_id: str
    gpus: int
    submit_s: float
    iterations: float
    iteration_s: float
    sensitivity: str

    @property
    def ideal_s(self) -> float:
        """Run time on median GPUs of one node."""
        return self.iteration_s * self.iterations


def read_sia(path: str) -> list[PalRow]:
    """The jobs of a Sia-Philly trace (CSV with the columns COLUMNS), in file order.

    Raises DataError, with the line number where there is one: a missing column, a value
    that is not allowed, an unknown model, a job id that comes twice, or no job at all.
    """
    rows: list[PalRow] = []
    seen: dict[str, int] = {}
    for line, fields in read_csv(path, COLUMNS):
        where = f"{path} line {line}"
        row = _row(fields, where)
        if row.job_id in seen:
            raise DataError(f"{where}: job_id {row.job_id!r} is that of line {seen[row.job_id]}")
        seen[row.job_id] = line
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no job")
    return rows


def read_csv(path: str, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, stripped fields of `columns`) of each row that is not blank.

    Other columns are ignored; a byte order mark and spaces around names are allowed; a
    field that a short row lacks is "". Raises DataError for a file that cannot be read
    as CSV, or that lacks a column.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            yield from _fields(path, stream, columns)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from None


def _fields(path: str, stream: TextIO, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(stream)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(f"{path} line 1: no column {', '.join(missing)}; the columns are {', '.join(header) or 'none'}")
    places = [(name, header.index(name)) for name in columns]
    for values in reader:
        if any(value.strip() for value in values):
            yield reader.line_num, {name: values[i].strip() if i < len(values) else "" for name, i in places}


def _row(fields: Mapping[str, str], where: str) -> PalRow:
    if not fields["job_id"]:
        raise DataError(f"{where}: job_id is empty")
    gpus = number(fields, "num_gpus", where)
    if gpus != int(gpus) or gpus < 1:
        raise DataError(f"{where}: num_gpus {fields['num_gpus']!r} is not a whole number of at least 1")
    submit_s, iterations = number(fields, "submit_time", where), number(fields, "duration", where)
    if submit_s < 0:
        raise DataError(f"{where}: submit_time {fields['submit_time']!r} is before the start of the trace, 0 s")
    if iterations <= 0:
        raise DataError(f"{where}: duration {fields['duration']!r} is not a number of iterations above 0")
    try:
        application = application_of(fields["model"])
    except UsageError as error:
        raise DataError(f"{where}: {error}") from None
    return PalRow(fields["job_id"], int(gpus), submit_s, iterations, application.iteration_s, application.sensitivity)


def number(fields: Mapping[str, str], name: str, where: str) -> float:
    """The finite number in column `name`. Raises DataError."""
    try:
        value = float(fields[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {name} {fields[name]!r} is not a number")
    return value
