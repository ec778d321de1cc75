# SPDX-License-Identifier: MIT
"""Files that a command writes where the user said: refused at once if impossible, replaced whole."""

from __future__ import annotations

import os

from slurm_pal.base.errors import UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.cli import common


def check_place(path: str | None) -> None:
    """Raise UsageError at once, not after a minute of work, where no file can be written; nothing for None."""
    if not path:
        return
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a directory; name another file")
    if os.path.lexists(path) and not os.path.isfile(path):  # replacing /dev/null would take it from everybody
        raise UsageError(f"cannot write {path}: it is not a regular file; name another file")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no directory {folder} that you can write to; name another file")


def write(path: str, content: str | bytes) -> int:
    """Replace the file, mode 0644; return the number of its bytes. Raises UsageError."""
    raw = content.encode() if isinstance(content, str) else content
    check_place(path)
    try:
        write_atomic(path, raw, 0o644)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from None
    return len(raw)


def say_written(path: str, size: int) -> None:
    """One line on stderr."""
    common.say(f"written: {path} ({size:,} bytes)", err=True)
