# SPDX-License-Identifier: MIT
"""The sampler: a process of its own that looks at the sensors ten times a second.

A driver call that hangs or takes time then delays only the sampler, not the
measurement. It is forked before the device runtime is initialised (a process that forks
afterwards is broken), opens the sensors itself, and sends one JSON line per look over a
pipe. A second pipe, which nobody writes to, tells it that its parent has gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from slurm_pal.profiling.node.devices import DeviceError, SensorSample

HZ = 10.0
_STALE_S = 2.0  # an older look says nothing about now
_PATIENCE_S = 0.5  # for a sampler that is asked to end, and again for one that is killed
_PIPE_BYTES = 2**20  # what an ordinary user may ask for: about 15 min of looks that nobody takes
_KEPT = 36_000  # looks kept for `take`: an hour
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _no_events() -> tuple[int, ...]:
    return ()


class Eyes(NamedTuple):
    """What looks at one device. Either may raise DeviceError when the device is lost."""

    look: Callable[[], SensorSample]
    events: Callable[[], tuple[int, ...]] = _no_events  # errors the driver has reported since the last call


OpenEyes = Callable[[], Eyes]
"""Called in the sampler, so that a driver library is opened by the process that uses it."""


class Sampler:
    """A `Watch` whose looks come from another process.

    A sampler that died, hangs, has not yet begun or could not be forked leaves the fields of
    `sample()` empty; it never raises and never blocks.
    """

    def __init__(self, open_eyes: OpenEyes, hz: float = HZ) -> None:
        self.events: list[int] = []
        self._newest: SensorSample | None = None
        self._taken: deque[SensorSample] = deque(maxlen=_KEPT)
        self._buffer = b""
        self._closed = False
        self._data, data = os.pipe()
        lifeline, self._lifeline = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:  # the user's processes are used up: the measurement needs no sampler
            self.pid, self._closed = -1, True
            os.close(self._data)
            os.close(self._lifeline)
        if self.pid == 0:
            _child(open_eyes, data, lifeline, parent, 1.0 / hz)
        os.close(data)
        os.close(lifeline)
        if not self._closed:
            os.set_blocking(self._data, False)

    def sample(self) -> SensorSample:
        """The newest look, or one without fields when there is none from the last seconds."""
        self._hear()
        now_s = time.monotonic()
        if self._newest is None or now_s - self._newest.t_s > _STALE_S:
            return SensorSample(now_s)
        return self._newest

    def take(self) -> tuple[SensorSample, ...]:
        """All looks since the last call, oldest first; after `close` those that were left."""
        self._hear()
        taken = tuple(self._taken)
        self._taken.clear()
        return taken

    def close(self) -> None:
        """End the sampler and collect it; harmless when called twice.

        One that does not end by itself is killed; one that hangs inside the driver even then
        is left to the kernel.
        """
        if self._closed:
            return
        os.close(self._lifeline)
        if not _gone(self.pid, _PATIENCE_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _gone(self.pid, _PATIENCE_S)
        self._hear()
        self._closed = True
        self._newest = None
        os.close(self._data)

    def _hear(self) -> None:
        """Read the complete lines that have arrived."""
        while not self._closed:
            try:
                chunk = os.read(self._data, 65536)
            except BlockingIOError:
                break
            if not chunk:
                self._newest = None  # the sampler has ended: what it saw last no longer holds
                break
            *lines, self._buffer = (self._buffer + chunk).split(b"\n")
            for line in lines:
                fields, events = json.loads(line)
                self._newest = SensorSample(*fields)
                self._taken.append(self._newest)
                self.events.extend(events)


def _gone(pid: int, patience_s: float) -> bool:
    """Wait for a child's end and collect it; return whether it has ended."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)


def _child(open_eyes: OpenEyes, data: int, lifeline: int, parent: int, period_s: float) -> None:
    """The sampler's life; never returns into the parent's code."""
    try:
        # A look that hangs does not notice the lifeline: the kernel then ends us with our parent.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            gc.freeze()  # no finaliser of the parent's objects may run here
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            _let_go(data, lifeline)
            _serve(open_eyes(), data, lifeline, period_s)
    except BaseException:
        pass  # whatever went wrong: the fields stay empty and the measurement goes on
    finally:
        os._exit(0)


def _let_go(data: int, lifeline: int) -> None:
    """Close all that was inherited except our two pipes.

    Somebody who waits for the end of one of the parent's pipes, or of its output, would
    otherwise wait for a sampler that hangs.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (data, lifeline):
            with contextlib.suppress(OSError):
                os.close(int(name))
    for number in range(3):
        if number not in (data, lifeline):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)


def _serve(eyes: Eyes, data: int, lifeline: int, period_s: float) -> None:
    with contextlib.suppress(OSError):  # the user's pipe pages may be used up: then fewer looks fit
        fcntl.fcntl(data, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(data, False)
    told = select.poll()
    told.register(lifeline, select.POLLIN)
    due_s = time.monotonic()
    while True:
        events = eyes.events()
        try:
            sample = eyes.look()
        except DeviceError:
            _send(data, SensorSample(time.monotonic()), events)
            return
        _send(data, sample, events)
        due_s = max(due_s + period_s, time.monotonic())  # looks missed by a slow one are not made up for
        if told.poll(max(0.0, due_s - time.monotonic()) * 1000.0):
            return


def _send(data: int, sample: SensorSample, events: tuple[int, ...]) -> None:
    line = json.dumps([sample, events], separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(BlockingIOError):  # nobody reads; a line is short enough to go whole or not at all
        os.write(data, line)
