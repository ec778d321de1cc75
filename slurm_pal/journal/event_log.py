# SPDX-License-Identifier: MIT
"""The log of the tick: one JSON object in each line, and a line for the journal of the system beside it."""

from __future__ import annotations

import json
import os
import stat
import sys

SCHEMA = "pal.event/1"
TRACE = "trace"
"""A detail for the file only: where an error came from."""


class EventLog:
    """Appends to `path`, and with `echo` also says each event on stderr (journald reads that).

    The file is opened anew after somebody moved it away (logrotate(8)); no signal is needed. A
    failure is reported once on stderr, and again only after a line could be written; nothing here
    ever raises. `mode` is 0640 for the site's log, 0600 for an ordinary user's.
    """

    def __init__(self, path: str, echo: bool, mode: int = 0o640) -> None:
        self._path, self._echo, self._mode = path, echo, mode
        self._descriptor: int | None = None
        self._told = False
        self._torn = False  # the last line was cut short

    def write(self, at_s: float, what: str, **details: object) -> None:
        """One event at `at_s`, Unix seconds. The details are anything that JSON holds; the rest as its text."""
        if self._echo:
            _say(human(what, details))
        try:
            line = json.dumps({"schema": SCHEMA, "at_s": round(at_s, 3), "what": what, **details}, default=str)
            self._append(line.encode() + b"\n")
            self._told = False
        except (OSError, ValueError) as error:
            self.close()
            if not self._told:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                _say(f"log {self._path} cannot be written ({reason}); the work goes on without it")
            self._told = True

    def _append(self, line: bytes) -> None:
        descriptor = self._opened()
        whole = b"\n" + line if self._torn else line
        written = os.write(descriptor, whole)
        self._torn = written < len(whole)
        if self._torn:
            raise OSError(None, "only a part of a line fits on the disk")

    def _opened(self) -> int:
        """The descriptor of what `path` names now."""
        if self._descriptor is not None and not self._is_current(self._descriptor):
            self.close()
        if self._descriptor is None:
            # Without O_NONBLOCK the open of a FIFO would wait for a reader for ever.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, self._mode)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(None, "not a regular file")
            self._descriptor = descriptor
        return self._descriptor

    def _is_current(self, descriptor: int) -> bool:
        try:
            named = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def close(self) -> None:
        """Give the file back; the next event opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def human(what: str, details: dict[str, object]) -> str:
    """An event as one line for people: `move job_id=7 target=n2`; control characters are replaced."""
    texts = (json.dumps(value, default=str) if isinstance(value, dict | list | tuple) else str(value)
             for value in details.values())  # fmt: skip
    said = ((name, text) for name, text in zip(details, texts, strict=True) if text != "" and name != TRACE)
    line = " ".join([what, *(f"{name}={text}" for name, text in said)])
    return "".join(c if c.isprintable() else "?" for c in line)


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):  # stderr was closed: nobody reads it
        return
