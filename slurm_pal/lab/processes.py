# SPDX-License-Identifier: MIT
"""Which processes belong to a lab, and how to end only those.

A process is identified by its pid and its start time (proc(5), /proc/PID/stat field
22), so a pid that the kernel has reused is never signalled. A zombie counts as dead:
in a container perhaps nobody reaps it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from slurm_pal.base.files import write_atomic
from slurm_pal.lab.directory import LabDirectory

SCHEMA = "pal.lab-pids/1"
DAEMONS = ("slurmd", "slurmctld", "slurmrestd", "slurmdbd", "mariadbd", "munged")


class Process(NamedTuple):
    """One process, even after its pid was reused."""

    name: str
    pid: int
    start: int  # clock ticks after boot


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; [] for a dead process. The name before them may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int | None:
    """When a process started, or None if it is dead or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def identify(name: str, pid: int) -> Process | None:
    start = start_ticks(pid)
    return None if start is None else Process(name, pid, start)


def alive(process: Process) -> bool:
    return start_ticks(process.pid) == process.start


def boot_id() -> str:
    """An id that changes at every boot, when start times begin anew."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def write_pids(path: str, processes: Iterable[Process]) -> None:
    table = {"schema": SCHEMA, "boot_id": boot_id(), "processes": [process._asdict() for process in processes]}
    write_atomic(path, json.dumps(table) + "\n")


def read_pids(path: str) -> list[Process]:
    """The recorded processes; [] if the file is missing, broken or from before a reboot."""
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
        if table["schema"] != SCHEMA or table["boot_id"] != boot_id():
            return []
        return [Process(str(row["name"]), int(row["pid"]), int(row["start"])) for row in table["processes"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def stop(processes: Iterable[Process], term_s: float, reap: Callable[[], None], kill_s: float = 5.0) -> list[Process]:
    """SIGTERM, wait up to `term_s`, SIGKILL, wait up to `kill_s`; those that still live.

    `reap` is called while waiting, for children of the caller. Raises PermissionError
    for another user's process.
    """
    left = [process for process in processes if alive(process)]
    for number, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        for process in left:
            _signal(process, number)
        deadline = time.monotonic() + patience_s
        while left := [process for process in left if alive(process)]:
            if time.monotonic() > deadline:
                break
            reap()
            time.sleep(0.02)
    return left


def _signal(process: Process, number: signal.Signals) -> None:
    if alive(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


# -- processes that were not recorded ------------------------------------------------


def _all_pids() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def _read(pid: int, name: str) -> list[bytes]:
    """A NUL-separated file of /proc; [] if it cannot be read (another user's, or gone)."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def find_daemons(directory: LabDirectory) -> list[Process]:
    """Daemons of this lab by their command lines, which name a file of the lab; slurmdbd by its SLURM_CONF."""
    # Whole words, not a prefix: another lab may be in a directory below this one.
    files = {os.fsencode(w) for w in (directory.conf, directory.munge_socket, f"--datadir={directory.sql_data}")}
    conf = b"SLURM_CONF=" + os.fsencode(directory.conf)
    found = []
    for pid in _all_pids():
        words = _read(pid, "cmdline")
        name = os.path.basename(os.fsdecode(words[0])) if words else ""
        if name in DAEMONS and (files.intersection(words) or (name == "slurmdbd" and conf in _read(pid, "environ"))):
            found.append(identify(name, pid))
    return [process for process in found if process is not None]


def find_steps(directory: LabDirectory) -> list[Process]:
    """slurmstepds of this lab, their descendants, and job processes that lost their slurmstepd.

    slurmstepd outlives its slurmd and names no directory in its command line, but keeps
    its log open. A job process whose slurmstepd was killed is recognised by variables
    that only slurmd sets: SLURMD_NODENAME, with this lab's SLURM_CONF.
    """
    conf = b"SLURM_CONF=" + os.fsencode(directory.conf)
    parents = {pid: int(fields[1]) for pid in _all_pids() if (fields := _stat(pid))}
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    ours = {pid for pid in parents if _is_stepd_of(pid, directory)}
    for pid in set(parents) - ours:
        variables = _read(pid, "environ")
        if conf in variables and any(text.startswith(b"SLURMD_NODENAME=") for text in variables):
            ours.add(pid)
    waiting = list(ours)
    while waiting:
        below = [child for child in children.get(waiting.pop(), []) if child not in ours]
        ours.update(below)
        waiting += below
    ours.discard(os.getpid())
    found = [identify("job", pid) for pid in sorted(ours)]
    return [process for process in found if process is not None]


def with_variable(name: str, value: str) -> list[Process]:
    """The processes, but this one, in whose environment a variable has this value."""
    wanted = os.fsencode(f"{name}={value}")
    found = [identify(name, pid) for pid in _all_pids() if pid != os.getpid() and wanted in _read(pid, "environ")]
    return [process for process in found if process is not None]


def _is_stepd_of(pid: int, directory: LabDirectory) -> bool:
    if not os.path.basename(_link(f"/proc/{pid}/exe")).startswith("slurmstepd"):
        return False
    rooms = (directory("log") + "/", directory("spool") + "/")
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_link(f"/proc/{pid}/fd/{number}").startswith(rooms) for number in descriptors)
