# SPDX-License-Identifier: MIT
"""Who promises to take lists back: a lock that dies with its process, and a file that outlives it.

A publisher that stays holds PATH.lock (PATH is the filter's table). While lists that rely on it may stand on
jobs, PATH.promise exists; it is removed when all of them are taken back. So a promise without a holder
of the lock is one that nobody keeps. Standard library only, and little of it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from slurm_pal.base.errors import BusyError
from slurm_pal.base.files import locked

GUARD = "lease guard"
_PAUSE_S = 0.05


def lock_path(table: str) -> str:
    """The lock of whoever publishes."""
    return f"{table}.lock"


def guard_path(table: str) -> str:
    """The lock of the lease guard itself."""
    return f"{table}.guard"


def child_path(journal: str) -> str:
    """The lock that the children of single ticks share."""
    return f"{journal}.child"


def promise_path(table: str) -> str:
    """The file that says that lists may stand on jobs."""
    return f"{table}.promise"


def made(table: str) -> str:
    """Who made the promise; "" without one."""
    return _text(promise_path(table))


def make(table: str) -> None:
    """Promise. Raises OSError where that cannot be written: then no list may be set."""
    text = f"pid {os.getpid()}\n"
    if _text(promise_path(table)) != text.strip():
        descriptor = os.open(promise_path(table), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            if os.pwrite(descriptor, text.encode(), 0) < len(text):
                raise OSError(28, "No space left on device")
        finally:
            os.close(descriptor)


def identity(table: str) -> tuple[int, int]:
    """Device and inode of the lock's file: a new file would lock nobody out. (0, 0) without one."""
    try:
        found = os.stat(lock_path(table), follow_symlinks=False)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def kept(table: str) -> None:
    """All lists are taken back."""
    with contextlib.suppress(OSError):
        os.unlink(promise_path(table))


def holder(table: str) -> str:
    """Who held the lock last, by its file; "" where there is none."""
    return _text(lock_path(table))


@contextlib.contextmanager
def publishing(table: str, wait_s: float) -> Iterator[None]:
    """Hold the lock of the publisher. A lease guard that is clearing up is waited for, `wait_s` at most.

    Raises BusyError when another publisher holds it, OSError.
    """
    until_s = time.monotonic() + wait_s
    while True:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(lock_path(table), "a publisher"))
            except BusyError as error:
                if GUARD not in str(error) or time.monotonic() >= until_s:
                    raise
            else:
                yield
                return
        time.sleep(_PAUSE_S)


def guarded(table: str) -> bool:
    """Whether a lease guard is at work, as far as this user may look."""
    return _held(guard_path(table))


def stood_by(journal: str) -> bool:
    """Whether the child of a tick is at work, which takes back what that has left, as far as this user may look."""
    return _held(child_path(journal))


def _held(path: str) -> bool:
    if not os.path.exists(path):  # made by whoever looks, perhaps root, it would keep its holder out
        return False
    try:
        with locked(path, "a lease guard"):
            return False
    except BusyError:
        return True
    except OSError:
        return False


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 200).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
