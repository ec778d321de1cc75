# SPDX-License-Identifier: MIT
"""Who a process on a GPU belongs to, as far as /proc shows an ordinary user."""

from __future__ import annotations

import os

from slurm_pal.base.job_folder import job_of

_MPS = "nvidia-cuda-mps"  # server and control daemon; the kernel cuts a command's name at 15 characters
MIB = 2**20


class NodeProcesses:
    """The processes of this node. `proc` is where procfs is mounted."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    def foreign(self, pid: int) -> bool:
        """Whether it is neither ours nor the number of a process in another namespace.

        Drivers list processes by their numbers on the host. In a container that has numbers of its own they
        name nobody here, not even ourselves: they are no evidence of a foreign job.
        """
        return not self.ours(pid) and (self._seen(pid) or _exists(pid))

    def ours(self, pid: int) -> bool:
        """Whether it is part of our Slurm job or, without one, of our session.

        What cannot be read is not ours: our own processes always can be.
        """
        job = job_of(self._read("self", "cgroup"))
        if job:
            return job_of(self._read(pid, "cgroup")) == job
        session = self._session("self")
        return bool(session) and self._session(pid) == session

    def serves_mps(self, pid: int) -> bool:
        """Whether it is the server that runs other processes' kernels (CUDA MPS)."""
        return self.command(pid).startswith(_MPS)

    def command(self, pid: int) -> str:
        """The command's name, at most 15 characters; "" where it cannot be read."""
        text = self._read(pid, "comm").strip()
        return "".join(c if c.isprintable() else "?" for c in text)

    def describe(self, pid: int, used_bytes: int | None) -> str:
        """One line for a record: pid, owner, command and device memory, as far as they are known."""
        try:
            owner = f" of uid {os.stat(os.path.join(self._proc, str(pid))).st_uid}"
        except OSError:
            owner = ""
        name = self.command(pid)
        memory = "" if used_bytes is None else f", {used_bytes // MIB} MiB"
        return f"pid {pid}{owner}{f' ({name})' if name else ''}{memory}"

    def _seen(self, pid: int) -> bool:
        return os.path.exists(os.path.join(self._proc, str(pid)))

    def _session(self, pid: int | str) -> str:
        # The command is in parentheses and may hold blanks: state, parent, group, session follow it.
        fields = self._read(pid, "stat").rpartition(")")[2].split()
        return fields[3] if len(fields) > 3 else ""

    def _read(self, pid: int | str, name: str) -> str:
        try:
            with open(os.path.join(self._proc, str(pid), name), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""


def _exists(pid: int) -> bool:
    """Whether there is such a process in our namespace, shown in /proc or hidden (hidepid)."""
    if pid <= 0:  # which kill(2) takes for more than one
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:  # somebody else's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
