# SPDX-License-Identifier: MIT
"""Run the real sbatch as if the user had called it, and listen for the job id.

stdin is sbatch's own. stdout goes through a pipe, or a terminal pair where it is a
terminal, and is forwarded byte for byte as it comes. stderr is inherited, unless our words
are on the command line: then it is held until sbatch has accepted the job, so that a
refusal that we caused is not shown, and the user sees only plain sbatch's words.
"""

from __future__ import annotations

import errno
import os
import select
import time

from slurm_pal.base.light import Callable, NamedTuple, Sequence, signal, suppress
from slurm_pal.submit.early import DEFAULT_SIGNALS

TYPE_CHECKING = False  # typing's own constant costs the import of typing
if TYPE_CHECKING:
    from types import FrameType

HOLD_S = 2.0  # no output is held longer than this: a site's sbatch may be asking something
_SUBMITTED, _ON = b"Submitted batch job ", b" on cluster "
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)


started = False
"""Whether sbatch has been started in this process: the job may exist, and must not be submitted again."""
ended: int | None = None
"""The status of the last sbatch that has ended, whatever fails after that."""


class NotStarted(Exception):
    """sbatch could not be started; nothing was submitted. The text is the system's."""


class SbatchExit(NamedTuple):
    """How sbatch ended: `status` as os.waitstatus_to_exitcode gives it, negative for a signal."""

    status: int
    job_id: int | None
    held: bytes  # stderr that was not shown
    broken: bool  # our stdout was closed; in a shell, sbatch would get SIGPIPE


class _Channel:
    """One output stream of the child on its way to ours."""

    def __init__(self, target: int, hold: bool) -> None:
        self.target, self.hold = target, hold
        self.held = b""
        self.broken = False
        self.tty = os.isatty(target)
        self.read_end, self.write_end = _terminal_pair() if self.tty else os.pipe()

    def take(self) -> bytes:
        """Read the bytes that have arrived; b"" at the end."""
        try:
            block = os.read(self.read_end, 1 << 16)
        except OSError:  # a terminal pair says EIO where a pipe says end of file
            return b""
        if self.hold:
            self.held += block
        else:
            self._show(block)
        return block

    def release(self) -> None:
        """Show what was held, and hold no more."""
        self.hold = False
        self._show(self.held)
        self.held = b""

    def _show(self, block: bytes) -> None:
        view = memoryview(block)
        while view and not self.broken:
            try:
                view = view[os.write(self.target, view) :]
            except BlockingIOError:
                select.select([], [self.target], [])
            except OSError as error:
                self.broken = error.errno == errno.EPIPE
                return  # on a full disk sbatch, too, loses what it prints, and ends as if it had not


def _terminal_pair() -> tuple[int, int]:
    import termios

    master, slave = os.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST  # our own terminal does that
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    return master, slave


def run(
    path: str,
    argv: Sequence[str],
    stdin: int | None = None,
    *,
    careful: bool = False,
    parsable: bool = False,
    on_job: Callable[[int], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> SbatchExit:
    """Run `path` with `argv`; call `on_job` once, as soon as the line with the job id has been forwarded.

    `careful`: hold stderr, and on failure give it back in `held` instead of showing it. `meanwhile` is called while
    it runs.
    Raises NotStarted.
    """
    out = _Channel(1, hold=False)
    err = _Channel(2, hold=True) if careful else None
    channels = [out, err] if err else [out]
    actions = [(os.POSIX_SPAWN_DUP2, c.write_end, c.target) for c in channels]
    if stdin is not None:
        actions.insert(0, (os.POSIX_SPAWN_DUP2, stdin, 0))
    with _Wakeup() as wakeup:
        try:
            pid = wakeup.spawn(path, argv, actions)
        finally:
            for channel in channels:
                os.close(channel.write_end)
        meanwhile()
        listener = _Listener(out, err, parsable, on_job)
        status = listener.listen(pid, wakeup.descriptor)
    if err and status == 0:
        err.release()
    for channel in channels:
        os.close(channel.read_end)
    return SbatchExit(status, listener.job_id, err.held if err else b"", out.broken)


class _Listener:
    """Forwards the child's streams until it ends, and looks for the job id."""

    def __init__(self, out: _Channel, err: _Channel | None, parsable: bool, on_job: Callable[[int], None]) -> None:
        self._out, self._err, self._parsable, self._on_job = out, err, parsable, on_job
        self._head = b""
        self.job_id: int | None = None

    def listen(self, pid: int, wakeup: int) -> int:
        """The child's status, once it has ended and all its output has been forwarded."""
        global ended
        poll = select.poll()
        channels = {c.read_end: c for c in (self._out, self._err) if c}
        for descriptor in (*channels, wakeup):
            poll.register(descriptor, select.POLLIN)
        until_s = time.monotonic() + HOLD_S
        status: int | None = None
        while True:
            if status is None:
                done, raw = os.waitpid(pid, os.WNOHANG)
                status = ended = os.waitstatus_to_exitcode(raw) if done else None
            holding = self._err is not None and self._err.hold
            ready = poll.poll(0 if status is not None else 1000 * HOLD_S if holding else None)
            for descriptor, _ in ready:
                if descriptor == wakeup:
                    os.read(wakeup, 256)
                elif not self._forward(channels[descriptor]):
                    poll.unregister(descriptor)
            if holding and self._err and status is None and time.monotonic() > until_s:
                self._err.release()
            # A child of sbatch may still hold a stream open; we do not wait for it, since sbatch has ended.
            if status is not None and not any(descriptor != wakeup for descriptor, _ in ready):
                return status

    def _forward(self, channel: _Channel) -> bool:
        block = channel.take()
        if channel is self._out and self.job_id is None and len(self._head) < 1 << 16:
            self._head += block
            found = (_job_id(line, self._parsable) for line in self._head.split(b"\n")[:-1])
            self.job_id = next((job_id for job_id in found if job_id is not None), None)
            if self.job_id is not None:
                if self._err:
                    self._err.release()
                self._on_job(self.job_id)
        return bool(block)


def _job_id(line: bytes, parsable: bool) -> int | None:
    """The number in sbatch's line `Submitted batch job 7 on cluster c`, with `parsable` also in `7;c`; else None."""
    said = line.removesuffix(b"\r")
    if not parsable and not said.startswith(_SUBMITTED):
        return None
    number, named, cluster = said.removeprefix(_SUBMITTED).partition(_ON)
    if parsable and not named:
        number, named, cluster = number.partition(b";")
    return int(number) if number.isdigit() and (not named or cluster.split() == [cluster]) else None


class _Wakeup:
    """Forwards signals to the child while the block runs; its descriptor wakes the loop for each signal."""

    def __init__(self) -> None:
        self.pid = 0

    def __enter__(self) -> _Wakeup:
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._saved = {n: signal.getsignal(n) for n in (*_FORWARDED, *_FROM_TERMINAL, signal.SIGCHLD)}
        self._previous = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        for number in (*_FORWARDED, *_FROM_TERMINAL):
            if self._saved[number] != signal.SIG_IGN:  # a signal that we ignore (nohup) stays ignored for sbatch
                signal.signal(number, self.forward)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._previous)
        os.close(self.descriptor)
        os.close(self._write_end)

    def spawn(self, path: str, argv: Sequence[str], actions: list[tuple[int, int, int]]) -> int:
        """Start the child without losing a signal at any moment."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*_FORWARDED, *_FROM_TERMINAL])
        try:
            self.pid = os.posix_spawn(
                path, list(argv), os.environ, file_actions=actions, setsigdef=DEFAULT_SIGNALS, setsigmask=mask
            )
        except OSError as error:
            raise NotStarted(error.strerror) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        global started, ended
        started, ended = True, None
        return self.pid

    def forward(self, number: int, frame: FrameType | None) -> None:
        if self.pid and (number in _FORWARDED or not _in_foreground()):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler for SIGCHLD, which only has to wake the loop."""


def _in_foreground() -> bool:
    """Whether our group owns the terminal: then Ctrl-C has already reached sbatch."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(descriptor)


def leave(status: int) -> int:
    """The exit code for a status; after a death by signal we die by the same signal."""
    if status >= 0:
        return status
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core worth having is sbatch's
    with suppress(OSError):  # KILL and STOP cannot be set
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
    os.kill(os.getpid(), -status)
    return 128 - status


def replace(path: str, argv: Sequence[str], stdin: int | None = None) -> None:
    """Become sbatch. Raises OSError when it cannot be started."""
    if stdin is not None:
        os.dup2(stdin, 0)
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.execve(path, list(argv), os.environ)


def show_held(ended: SbatchExit) -> None:
    """Show the stderr output that was held."""
    view = memoryview(ended.held)
    with suppress(OSError):
        while view:
            view = view[os.write(2, view) :]
