# SPDX-License-Identifier: MIT
"""The one directory of a lab: its paths, whether it may be used, and its removal.

Directory names get into slurm.conf and gres.conf, where some characters have a meaning
(`%n`, `[0-3]`, `,`, `#`, a blank), and into the names of unix sockets, which may have
107 bytes (unix(7)); both are checked before anything is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping

from slurm_pal.base.errors import BusyError, DataError, UsageError
from slurm_pal.base.files import write_atomic
from slurm_pal.emulation.gpus import FILE_NAME

SCHEMA = "pal.lab/1"
MARKER = "pal-lab.json"  # written first and removed last: it makes a directory a lab
SQL_ROOM = "sql"  # of a lab with accounting: the user's alone
ROOMS = ("etc", "run", "log", "state", "spool", "dev", "pal")
SOCKET_PATH_MAX_BYTES = 107
_LONGEST_SOCKET = "/spool/n0000/n0000_67043328.4294967291.1"  # slurmstepd's: node, largest job id, batch step
_LOCK_PATIENCE_S = 0.5
"""If `up` is killed, its child that has not yet become a daemon holds the lock a moment longer."""
_ALLOWED = re.compile(r"[\w@+.~/-]+")


def default_directory(environ: Mapping[str, str]) -> str:
    """The directory of a lab without --dir: the user's state directory (XDG base directories).

    Raises UsageError for a user without a home.
    """
    state = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(state):  # $XDG_STATE_HOME must be absolute; ~ stays ~ for a user without an account
        raise UsageError(f"the default directory {state!r} is not absolute: set HOME or XDG_STATE_HOME, or give --dir")
    return os.path.join(state, "slurm-pal", "lab")


class LabDirectory:
    """Names inside a lab's directory. Making one touches nothing."""

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)  # /proc shows real paths; `down` compares with them

    def __str__(self) -> str:
        return self.path

    def __call__(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    @property
    def marker(self) -> str:
        return self(MARKER)

    @property
    def conf(self) -> str:
        return self("etc", "slurm.conf")

    @property
    def pal_toml(self) -> str:
        return self("etc", "pal.toml")

    @property
    def registry(self) -> str:
        return self("etc", FILE_NAME)

    @property
    def table(self) -> str:
        return self("etc", "pal_table.lua")  # where the submit filter looks for it

    @property
    def gpus(self) -> str:
        return self("pal", "gpus.txt")

    @property
    def munge_socket(self) -> str:
        return self("run", "munge.sock")

    @property
    def rest_socket(self) -> str:
        return self("run", "rest.sock")

    @property
    def sql_room(self) -> str:
        return self(SQL_ROOM)

    @property
    def sql_data(self) -> str:
        return self(SQL_ROOM, "data")

    @property
    def sql_socket(self) -> str:
        return self(SQL_ROOM, "sock")

    @property
    def sql_init(self) -> str:
        return self(SQL_ROOM, "init.sql")

    @property
    def pids(self) -> str:
        return self("run", "pids.json")

    def log(self, name: str) -> str:
        return self("log", f"{name}.log")

    def is_lab(self) -> bool:
        return os.path.lexists(self.marker)

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def check_name(self) -> None:
        """Raises UsageError if Slurm could not run in a directory of this name."""
        if not _ALLOWED.fullmatch(self.path):
            raise UsageError(
                f"lab directory {self.path!r}: in Slurm's files a path may have only letters, digits and @+.~_-; "
                "choose another --dir"
            )
        length = len(os.fsencode(self.path))
        most = SOCKET_PATH_MAX_BYTES - len(_LONGEST_SOCKET)
        if length > most:
            raise UsageError(
                f"lab directory {self.path} has {length} bytes, at most {most} are possible: Slurm's sockets are "
                f"below it, and a socket's path may have {SOCKET_PATH_MAX_BYTES}; choose a shorter --dir, like /tmp/lab"
            )

    def facts(self) -> dict[str, object]:
        """What `up` recorded; {} if that is missing or truncated."""
        try:
            with open(self.marker, encoding="utf-8") as stream:
                table = json.load(stream)
        except (OSError, ValueError):
            return {}
        return table if isinstance(table, dict) and table.get("schema") == SCHEMA else {}

    def write_facts(self, facts: Mapping[str, object]) -> None:
        write_atomic(self.marker, json.dumps({"schema": SCHEMA, **facts}) + "\n")

    def make(self) -> bool:
        """Make the directory itself; whether it is new. Raises UsageError if it cannot be made or is not empty."""
        try:
            new = not self.exists()
            os.makedirs(self.path, mode=0o755, exist_ok=True)
            entries = os.listdir(self.path)
            writable = os.access(self.path, os.W_OK | os.X_OK)
        except OSError as error:
            raise UsageError(f"lab directory {self.path}: {error.strerror}; choose another with --dir") from None
        if not writable:
            raise UsageError(f"lab directory {self.path}: not writable; choose another with --dir")
        if entries and MARKER not in entries:
            raise UsageError(
                f"{self.path} is not empty and not a lab (it holds {sorted(entries)[0]!r}): choose another --dir"
            )
        return new

    def make_rooms(self, gpus_per_node: int) -> None:
        for room in (*ROOMS, os.path.join("pal", "spool")):
            os.makedirs(self(room), exist_ok=True)
        for index in range(gpus_per_node):
            # gres.conf(5) wants a character device whose name ends in the index; a link to
            # /dev/null is one, and needs no root.
            with contextlib.suppress(FileExistsError):
                os.symlink("/dev/null", self("dev", f"nvidia{index}"))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other `up` and `down` of this directory out; the lock leaves no file.

        Raises BusyError while another one is at work.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            deadline_s = time.monotonic() + _LOCK_PATIENCE_S
            while not _locked(descriptor):
                if time.monotonic() > deadline_s:
                    raise BusyError(f"another pal lab up or down is at work in {self.path}: try again when it is done")
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def empty_rooms(self) -> None:
        """Remove what is ours except the marker. Raises DataError if something cannot be removed."""
        for room in (*ROOMS, SQL_ROOM):
            try:
                shutil.rmtree(self(room))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise DataError(f"cannot remove {error.filename or self(room)}: {error.strerror}") from None

    def remove(self) -> list[str]:
        """Remove everything that is ours, and the directory; other files in it stay and are returned."""
        self.empty_rooms()
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.marker)
            others = sorted(os.listdir(self.path))
            if not others:
                os.rmdir(self.path)
        except OSError as error:
            raise DataError(f"cannot remove {self.path}: {error.strerror}") from None
        return others


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
