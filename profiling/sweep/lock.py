# SPDX-License-Identifier: MIT
"""One sweep at a time: the lock of a state directory, and who holds it.

flock(2) also holds between hosts where the state directory is shared (NFS since Linux 2.6.12). The lock
dies with its process; the file `sweep.running` beside it names the holder and may outlive it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

from slurm_pal.base.errors import BusyError, DataError, one_line
from slurm_pal.base.files import locked, read_plain, write_atomic


class Holder(NamedTuple):
    """Who carries out a sweep."""

    sweep: str
    pid: int
    host: str = ""


def _lock(state_dir: str) -> str:
    return os.path.join(state_dir, "sweep.lock")


def _told(state_dir: str) -> str:
    return os.path.join(state_dir, "sweep.running")


@contextlib.contextmanager
def only_sweep(state_dir: str, sweep_id: str) -> Iterator[None]:
    """Keep other sweeps of this state directory out. Raises BusyError naming the other one."""
    holder = Holder(sweep_id, os.getpid(), os.uname().nodename)
    with contextlib.ExitStack() as held:
        try:
            os.makedirs(state_dir, exist_ok=True)
            held.enter_context(locked(_lock(state_dir), "a sweep"))
            write_atomic(_told(state_dir), json.dumps(holder._asdict()) + "\n")
        except BusyError as error:
            raise BusyError(
                f"{_named(_holder(state_dir))}{one_line(error)}; wait for it, or see pal-profile status"
            ) from None
        except OSError as error:
            raise DataError(
                f"state directory {state_dir}: {error.strerror}; check paths.state_dir (pal doctor)"
            ) from None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.unlink(_told(state_dir))


def _named(holder: Holder | None) -> str:
    elsewhere = f" on {holder.host}" if holder and holder.host not in ("", os.uname().nodename) else ""
    return f"sweep {holder.sweep} is running{elsewhere}: " if holder else ""


def _holder(state_dir: str) -> Holder | None:
    try:
        found = json.loads(read_plain(_told(state_dir)))
        return Holder(str(found["sweep"]), int(found["pid"]), str(found.get("host", "")))
    except (OSError, DataError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def at_work(state_dir: str) -> str:
    """The id of the sweep that a living process carries out, on any host; "" where there is none."""
    holder = _holder(state_dir)
    return holder.sweep if holder and _is_held(state_dir, holder) else ""


def _is_held(state_dir: str, holder: Holder) -> bool:
    """Whether the lock is held; who may not open it looks for the process, and believes one on another host."""
    import fcntl

    try:
        descriptor = os.open(_lock(state_dir), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return holder.host not in ("", os.uname().nodename) or _lives(holder.pid)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # and belongs to somebody else
    except (OSError, OverflowError):
        return False
    return True
