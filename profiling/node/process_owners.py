# SPDX-License-Identifier: MIT
"""Who a process on a GPU belongs to, as far as /proc shows an ordinary user."""

from __future__ import annotations

import os
import re

_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_MPS = "nvidia-cuda-mps"  # server and control daemon; the kernel cuts a command's name at 15 characters
MIB = 2**20


def job_of(cgroup: str) -> str:
    """The Slurm job in the text of a /proc/PID/cgroup (version 1 or 2); "" when there is none."""
    found = _JOB.search(cgroup)
    return found[1] if found else ""


class NodeProcesses:
    """The processes of this node. `proc` is where procfs is mounted."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

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
