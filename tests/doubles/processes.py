# SPDX-License-Identifier: MIT
"""Which processes there are, from /proc: ps and pgrep are not on every machine."""

from __future__ import annotations

from pathlib import Path


def in_session(session: int) -> list[int]:
    """The processes of a session, the lowest number first (proc_pid_stat(5), field 6)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if text.rpartition(")")[2].split()[3] == str(session):
            found.append(int(path.parent.name))
    return sorted(found)


def with_words(words: str) -> list[int]:
    """The processes in whose command lines these words follow each other."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words in text:
            found.append(int(path.parent.name))
    return sorted(found)
