# SPDX-License-Identifier: MIT
"""Processes on the submit path, without the `subprocess` module (4 ms to import)."""

from __future__ import annotations

import fcntl
import os
import select
import time

from slurm_pal.base.errors import SlurmError
from slurm_pal.base.light import Mapping, Sequence, suppress
from slurm_pal.slurm.question import NOT_IN_PATH, Completed
from slurm_pal.slurm.told import clean_environment
from slurm_pal.submit.early import Spawned

COMPLAINT_S = 0.3
REACH_S = 0.1
"""After so long a silence a command is checked for a connection: without one it only waits to try again, as sbatch
will, and for as long (9 s)."""
PIPE_BYTES = 1 << 20
"""The most that Linux gives an ordinary user."""
_SYN_SENT = "02"  # a connection that nobody has answered yet, in /proc/net/tcp (proc(5))


def which(command: str) -> tuple[str | None, bool]:
    """(path of the command in PATH, whether a file of that name was there but not executable).

    Searched as a shell does; a file that is palsub itself is skipped, so that a site may
    put palsub before the real sbatch in PATH under sbatch's name.
    """
    forbidden = False
    own = _own_identity()
    for place in os.environ.get("PATH", os.defpath).split(":"):
        path = os.path.join(place or ".", command)
        try:
            info = os.stat(path)
        except OSError:
            continue
        if not os.path.isfile(path) or (info.st_dev, info.st_ino) == own:
            continue
        if os.access(path, os.X_OK):
            return path, False
        forbidden = True
    return None, forbidden


def _own_identity() -> tuple[int, int] | None:
    import sys

    try:
        info = os.stat(sys.argv[0])
    except (OSError, IndexError):
        return None
    return info.st_dev, info.st_ino


class runner:
    """A runner whose commands may be started before their answers are wanted.

    It raises SlurmError if a command is missing or does not answer within `timeout_s`
    of its start; that can be changed until somebody waits for the answer.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._answers: list[Answer] = []

    def __call__(self, argv: Sequence[str], stdin: str) -> Completed:
        return self.start(argv, stdin)()

    def start(self, argv: Sequence[str], stdin: str, environment: Mapping[str, str] | None = None) -> Answer:
        """Start a command; call the result to get its answer. `environment`: None for one without users' settings."""
        try:
            spawned = Spawned(argv, stdin, clean_environment() if environment is None else environment)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = f"is not in PATH: {NOT_IN_PATH}" if missing else f"cannot be started: {error.strerror}"
            raise SlurmError(f"{argv[0]} {why}") from None
        return self.adopt(spawned)

    def adopt(self, spawned: Spawned) -> Answer:
        """Take over a running command; as the result of `start`."""
        with suppress(OSError):  # its answer waits in the pipe while another is read
            fcntl.fcntl(spawned.out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        answer = Answer(self, _Process(spawned), spawned.started_s)
        self._answers.append(answer)
        return answer

    def end(self) -> None:
        """End all running commands: nobody needs their answers."""
        for answer in self._answers:
            answer.end()


class Answer:
    """The answer of a running command."""

    def __init__(self, made_by: runner, process: _Process, started_s: float) -> None:
        self._made_by, self._process, self._started_s = made_by, process, started_s
        self._over = False

    def __call__(self) -> Completed:
        try:
            return self._process.collect(self._started_s, self._made_by.timeout_s)
        finally:
            self.end()

    def end(self) -> None:
        """Only the first call does anything."""
        if not self._over:
            self._over = True
            self._process.end()


class _Process:
    """A child whose output is collected, both streams at once."""

    def __init__(self, spawned: Spawned) -> None:
        self._child, self._name = spawned, spawned.name
        self._out, self._err, self._pid = spawned.out, spawned.err, spawned.pid
        self._code: int | None = None

    def collect(self, started_s: float, timeout_s: float) -> Completed:
        deadline_s, look_s = started_s + timeout_s, started_s + REACH_S
        texts: dict[int, list[bytes]] = {self._out: [], self._err: []}
        poll = select.poll()
        for descriptor in texts:
            poll.register(descriptor, select.POLLIN)
        unread = len(texts)
        while unread:
            ready = poll.poll(max(0.0, min(deadline_s, look_s) - time.monotonic()) * 1000)
            if not ready:
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    raise SlurmError(self._silence(b"".join(texts[self._err]), f"{self._name} took too long"))
                if not reaches(self._pid):
                    raise SlurmError(self._silence(b"".join(texts[self._err]), f"{self._name} cannot reach it"))
                look_s = now_s + REACH_S
            for descriptor, _ in ready:
                block = os.read(descriptor, 1 << 18)
                texts[descriptor].append(block)
                if descriptor == self._err and block and not texts[self._out]:
                    # It complains before any answer: it would do so for each question,
                    # with a time-out each.
                    deadline_s = min(deadline_s, time.monotonic() + COMPLAINT_S)
                if not block:
                    poll.unregister(descriptor)
                    unread -= 1
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        out, err = (b"".join(texts[d]).decode(errors="replace") for d in (self._out, self._err))
        return Completed(self._code, out, err)

    def _silence(self, said: bytes, otherwise: str) -> str:
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        return f"Slurm does not answer: {lines[-1] if lines else otherwise}; see scontrol ping"

    def end(self) -> None:
        if self._code is None:
            self._child.end()
        else:
            os.close(self._out)
            os.close(self._err)


def reaches(pid: int) -> bool:
    """False if a command of Slurm's lets time pass, or waits for a connection: nobody answers at slurmctld's port.

    The port is not asked of slurm.conf, which may be elsewhere and name several hosts.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            if stream.read().rpartition(b") ")[2][:1] != b"S":  # it starts, computes, or has ended
                return True
        with open(f"/proc/{pid}/wchan", "rb") as stream:
            where = stream.read()
        if b"sleep" in where:
            return False
        return b"poll" not in where or not _half_open(pid)
    except (OSError, IndexError):  # not to be known here
        return True


def _half_open(pid: int) -> bool:
    """Whether the only sockets of a process wait to be connected."""
    sockets = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(os.readlink(f"/proc/{pid}/fd/{number}"))
    sockets = {name for name in sockets if name.startswith("socket:")}
    waiting = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as rows:
            for row in rows:
                words = row.split()
                if words[3] == _SYN_SENT:
                    waiting.add(f"socket:[{words[9]}]")
    return bool(sockets) and sockets <= waiting
