# SPDX-License-Identifier: MIT
"""Records of single collectives, as the inspector plug-ins of NCCL and RCCL write them: one JSON object a line.

Each process of a job writes a file. Up to format v4.2 a line has its communicator (`header`) and its process
(`metadata`) with it; from v4.3 on they stand once, in the `dump_stats` line before a batch. Unknown keys are
skipped. The files are users' data and may hold anything: of each the end is read, all of them are bounded in number,
bytes and time, and a line that cannot be used is counted and left out.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from slurm_pal.base.errors import DataError

MOST_FILES = 4096
MOST_BYTES = 64 << 20
"""Of all files together."""
MOST_OF_FILE = 8 << 20
MOST_S = 10.0
LONGEST_LINE = 1 << 16
MOST_NAME = 255
SYMMETRIC = ("allreduce", "allgather", "reducescatter", "alltoall")
"""Every rank waits for every other; from a root's broadcast nobody can be seen to be late."""
_EACH = 256  # lines between two looks at the clock


class Collective(NamedTuple):
    """One collective on one rank."""

    comm: str
    number: int  # counts up in the communicator, the same on all its ranks
    kind: str  # what is done, and how many bytes
    rank: int  # in the communicator
    ranks: int
    host: str
    pid: int
    source: str  # the file
    exec_us: float  # from this rank's arrival to its end: a rank that is late has waited for nobody
    at_us: float  # when the record was written, Unix us


class Limits(NamedTuple):
    """How much is read."""

    files: int = MOST_FILES
    bytes: int = MOST_BYTES
    seconds: float = MOST_S


class Records(NamedTuple):
    """What a folder holds."""

    collectives: tuple[Collective, ...] = ()
    files: int = 0
    refused: int = 0  # lines that could not be used
    cut: str = ""  # why not all files were read


def read(
    folder: str,
    uid: int | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    since_s: float = 0.0,
) -> Records:
    """The newest records in a folder; with `uid` only files, and a folder, of this user, and no links.

    Those from before `since_s` (Unix s), when the job started, are left out: a job that is requeued or moved finds the
    files of its earlier runs in the same folder, with other GPUs.
    Raises DataError where there is no such folder, or it cannot be read.
    """
    limits = limits or Limits()
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if uid is None else os.O_NOFOLLOW)
    try:
        opened = os.open(folder, flags)
    except OSError as error:
        raise DataError(f"{folder}: no records of collectives can be read there ({error.strerror})") from None
    try:
        if uid is not None and os.fstat(opened).st_uid != uid:
            raise DataError(f"{folder} does not belong to the job's user (uid {uid})")
        return _of_files(opened, uid, limits, clock, since_s)
    finally:
        os.close(opened)


def _of_files(folder: int, uid: int | None, limits: Limits, clock: Callable[[], float], since_s: float) -> Records:
    until_s = clock() + limits.seconds
    names, more = _names(folder, limits.files)
    found: list[Collective] = []
    files = refused = 0
    cut = f"only {limits.files} files were read" if more else ""
    share = min(MOST_OF_FILE, limits.bytes // max(1, len(names)))
    for name in names:
        lines = _tail(folder, name, uid, share)
        if lines is None:
            continue
        files += 1
        for position, one in enumerate(_collectives(name, lines)):
            if position % _EACH == 0 and clock() > until_s:
                return Records(tuple(found), files, refused, f"reading was ended after {limits.seconds:g} s")
            if one is None:
                refused += 1
            elif not 0.0 < one.at_us < 1e6 * since_s:
                found.append(one)
    return Records(tuple(found), files, refused, cut)


def _names(folder: int, most: int) -> tuple[list[str], bool]:
    """At most so many names of the folder, in order, and whether there are more."""
    names: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == most:
                return sorted(names), True
            names.append(entry.name)
    return sorted(names), False


def _tail(folder: int, name: str, uid: int | None, most: int) -> list[bytes] | None:
    """The whole lines at the end of a file; None for what is no such file."""
    try:
        # Without O_NONBLOCK the open of a FIFO would wait for a writer for ever.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        info = os.fstat(opened)
        if not stat.S_ISREG(info.st_mode) or uid not in (None, info.st_uid):
            return None
        start = max(0, info.st_size - most)
        lines = os.pread(opened, most, start).split(b"\n")
        return lines[1:] if start else lines  # the first one is cut
    except OSError:
        return None
    finally:
        os.close(opened)


def _collectives(source: str, lines: list[bytes]) -> Iterator[Collective | None]:
    """What each line says; None for one that cannot be used. Lines about anything else are skipped."""
    context: dict[str, Any] = {}
    for line in lines:
        marker = b'"dump_stats"' in line
        if not marker and b'"coll_perf"' not in line:
            continue
        try:
            row = json.loads(line) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            yield None
        elif marker:
            context = row
        else:
            yield _collective(source, row, row if "header" in row else context)


def _collective(source: str, row: dict[str, Any], context: dict[str, Any]) -> Collective | None:
    perf, header, about = row.get("coll_perf"), context.get("header"), context.get("metadata")
    if not (isinstance(perf, dict) and isinstance(header, dict) and isinstance(about, dict)):
        return None
    name, comm, host = perf.get("coll"), header.get("id"), about.get("hostname")
    texts = (name, comm, host)
    if not all(isinstance(text, str) and 0 < len(text) <= MOST_NAME for text in texts):
        return None
    rank, ranks, number = (_whole(value) for value in (header.get("rank"), header.get("n_ranks"), perf.get("coll_sn")))
    exec_us = _real(perf.get("coll_exec_time_us"))
    if None in (rank, ranks, number, exec_us) or not rank < ranks:  # type: ignore[operator]
        return None
    kind = str(name).lower().removeprefix("nccl").removeprefix("rccl")
    return Collective(
        str(comm), number or 0, f"{kind} {_whole(perf.get('coll_msg_size_bytes')) or 0}", rank or 0, ranks or 0,
        str(host), _whole(about.get("pid")) or 0, source, exec_us or 0.0, _real(about.get("dump_timestamp_us")) or 0.0,
    )  # fmt: skip


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _real(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        return None
    return float(value) if math.isfinite(value) else None
