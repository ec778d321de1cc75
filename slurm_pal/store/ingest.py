# SPDX-License-Identifier: MIT
"""From the spool to the database: result files that sweep jobs dropped by rename.

SPOOL/incoming/<sweep_id>.<node>.jsonl is written as *.tmp and renamed, so a file under its
final name is complete. Files go to SPOOL/ingested/ if every line was good, else to
SPOOL/rejected/; their good lines are kept all the same. Records are committed before
their file is moved: after a crash in between, the repeated insert changes nothing.
"""

from __future__ import annotations

import errno
import os
import time
from typing import NamedTuple

from slurm_pal.base.errors import DataError
from slurm_pal.base.files import open_trusted, remove_leftovers
from slurm_pal.store.database import Database
from slurm_pal.variability.records import Record, from_json
from slurm_pal.variability.validate import check_types

INCOMING, INGESTED, REJECTED = "incoming", "ingested", "rejected"
SUFFIX = ".jsonl"
MAX_BYTES = 64 * 2**20
"""A node of 16 GPUs and 20 benchmarks writes well under 1 MiB."""
MAX_REASONS = 100
"""At most this many reasons are kept for display; all are counted."""


class Complaint(NamedTuple):
    """A line (or, with line 0, a file) that was not taken."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        name = self.file if self.file.isprintable() else ascii(self.file)
        return f"{name}:{self.line}: {self.reason}" if self.line else f"{name}: {self.reason}"


class IngestReport(NamedTuple):
    """What one ingest did."""

    files: int  # examined
    new: int  # records added
    known: int  # records that were already there
    bad: int  # lines and files refused
    complaints: tuple[Complaint, ...]  # the first MAX_REASONS of them


def spool_directories(spool_dir: str) -> tuple[str, str, str]:
    """(incoming, ingested, rejected) of a spool."""
    incoming, ingested, rejected = (os.path.join(spool_dir, name) for name in (INCOMING, INGESTED, REJECTED))
    return incoming, ingested, rejected


def ingest(spool_dir: str, database: Database, now_s: float | None = None) -> IngestReport:
    """Take in all complete result files. `database` must be open for writing.

    Refused without being read: links, anything that is not a plain file, files of more
    than 64 MiB, and files that `open_trusted` refuses (for root: those of other users).
    A spool without `incoming` is empty.

    Raises DataError if the spool cannot be read or changed, if everyone may write to
    it, or if the database cannot be written; unfinished files stay in `incoming`.
    """
    now_s = time.time() if now_s is None else now_s
    incoming, ingested, rejected = spool_directories(spool_dir)
    files = new = known = 0
    complaints: list[Complaint] = []
    remove_leftovers(incoming, now_s)
    for name in names(incoming):
        try:
            raw = _read(os.path.join(incoming, name))
        except FileNotFoundError:
            continue  # removed meanwhile
        except DataError as error:
            raw, bad = b"", [Complaint(name, 0, str(error))]
        else:
            bad = []
        records, wrong = _parse(name, raw)
        inserted = database.insert(records, now_s)
        other = "is known with other content; the first is kept"
        bad += [*wrong, *(Complaint(name, 0, f"run {run!r} {other}") for run in inserted.conflicting)]
        move(incoming, name, rejected if bad else ingested)
        files, new, known = files + 1, new + inserted.new, known + inserted.known
        complaints += bad
    return IngestReport(files, new, known, len(complaints), tuple(complaints[:MAX_REASONS]))


def names(incoming: str, suffix: str = SUFFIX) -> list[str]:
    """The complete files there, in order; [] without such a folder. Raises DataError."""
    try:
        if os.stat(incoming).st_mode & 0o002:
            raise DataError(f"{incoming} can be written by everyone, so results could be forged: chmod o-w {incoming}")
        return sorted(name for name in os.listdir(incoming) if name.endswith(suffix))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"spool {incoming} cannot be read ({error.strerror}): run as its owner") from None


def _read(path: str) -> bytes:
    """The content of a plain, trusted file of sane size. Raises DataError or FileNotFoundError."""
    try:
        descriptor = open_trusted(path, follow=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        what = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise DataError(f"{what}; result files are plain files") from None
    with os.fdopen(descriptor, "rb") as stream:
        size = os.fstat(descriptor).st_size
        if size > MAX_BYTES:
            raise DataError(f"has {size} bytes, more than {MAX_BYTES} allowed")
        raw = stream.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise DataError(f"grew beyond {MAX_BYTES} bytes while it was read")
    return raw


def _parse(name: str, raw: bytes) -> tuple[list[Record], list[Complaint]]:
    """The records of a file, and a complaint for each line that is not one."""
    records: list[Record] = []
    wrong: list[Complaint] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = from_json(line.decode())
            check_types(record)
        except UnicodeDecodeError as error:
            wrong.append(Complaint(name, number, f"not UTF-8: {error.reason} at byte {error.start}"))
        except RecursionError:
            wrong.append(Complaint(name, number, "not a record: nested too deeply"))
        except (DataError, TypeError) as error:
            wrong.append(Complaint(name, number, str(error)))
        else:
            records.append(record)
    return records, wrong


def move(incoming: str, name: str, directory: str) -> None:
    """Move a file; an earlier one of the same name (another attempt) is kept as NAME.1, NAME.2, ..."""
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        target = os.path.join(directory, name)
        if os.path.lexists(target):
            copy = 1
            while os.path.lexists(f"{target}.{copy}"):
                copy += 1
            os.rename(target, f"{target}.{copy}")
        os.rename(os.path.join(incoming, name), target)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"{os.path.join(incoming, name)} cannot be moved to {directory} ({error.strerror})") from None
