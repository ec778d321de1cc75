# SPDX-License-Identifier: MIT
"""The lines of a trace file, numbered: UTF-8, LF or CRLF, plain or gzip, one at a time."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from slurm_pal.base.errors import UsageError
from slurm_pal.simulate.inputs.collect import TraceCollector

LINE_MAX_BYTES = 1 << 16
"""No row of any format comes near; a longer line means that the file is not text."""

_GZIP_MAGIC = b"\x1f\x8b"

Numbered = tuple[int, str]


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A trace file for reading, unpacked where it is gzip (by its first bytes, not by its name).

    Raises UsageError when it cannot be opened, read or unpacked.
    """
    try:
        with open(path, "rb") as raw:
            if raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield cast(BinaryIO, unpacked)
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be unpacked as gzip: {error}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def numbered(stream: BinaryIO, collector: TraceCollector) -> Iterator[Numbered]:
    """(line number, text without its line end) of each line that is not empty.

    A line that is too long or not UTF-8 goes to the collector as a bad row.
    """
    line = 0
    while raw := stream.readline(LINE_MAX_BYTES + 1):
        line += 1
        if len(raw) > LINE_MAX_BYTES:
            while raw and not raw.endswith(b"\n"):
                raw = stream.readline(LINE_MAX_BYTES)
            collector.bad(line, f"the line has more than {LINE_MAX_BYTES} bytes")
            continue
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            collector.bad(line, f"byte {error.start + 1} of the line is not UTF-8")
            continue
        if text.strip():
            yield line, text
