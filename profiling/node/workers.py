# SPDX-License-Identifier: MIT
"""One process per GPU, a barrier or turns before each phase, and a watchdog over all of them.

The parent only forks, waits and kills; all device calls happen in the workers, so a
driver that hangs takes along its worker only. Barrier and results go over
two pipes per worker: a lock shared by all would be left held by a killed one.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from slurm_pal.base.errors import one_line
from slurm_pal.profiling.node.devices import DeviceInfo

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Turn(NamedTuple):
    """What a worker hears when it may go on."""

    others: int  # living workers besides it
    peers: tuple[int, ...]  # slots of those whose GPU may be used as a peer: alive and not suspected
    first: bool  # nobody has had a turn in this phase before
    longest_s: float = 0.0  # the most device time that one of them has run since the last wait


class Channel:
    """The worker's end: messages to the parent, the barrier, and turns."""

    def __init__(self, out: int, back: int) -> None:
        self._out = out
        self._back = os.fdopen(back, "rb", buffering=0)

    def send(self, message: dict[str, Any]) -> None:
        """One JSON object to the parent."""
        raw = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        while raw:
            raw = raw[os.write(self._out, raw) :]

    def barrier(self, phase: str) -> int:
        """Wait until every living worker has come this far; return how many others there are."""
        return self._wait(phase, alone=False).others

    def any(self, phase: str, mine: bool) -> bool:
        """Wait as `barrier` does; whether one of the living workers has said yes."""
        self._ask(phase, spent_s=float(mine))
        return self._answer().longest_s > 0.0

    def turn(self, phase: str) -> Turn:
        """The same, but then go on one at a time: until this worker's next wait, or its end."""
        return self._wait(phase, alone=True)

    def run_on(self, phase: str, spent_s: float, block: Callable[[], float], own_clock: bool) -> None:
        """Wait as `barrier` does, but let the GPU work meanwhile, so that no neighbour is measured beside an idle one.

        `block` runs a block and returns its device time, 0 when it can run no more; `spent_s` is the device
        time since the last wait. A device whose clock is its own (`own_clock`) works as long by that clock as
        the slowest neighbour, any other one until the last neighbour has come. The last is never waited for
        longer than the watchdog allows, and this worker is watched, too: each block begins its time anew.
        """
        self._ask(phase, busy=not own_clock, spent_s=spent_s)
        if own_clock:
            longest_s = self._answer().longest_s
            while spent_s < longest_s and (seconds := block()) > 0.0:
                spent_s += seconds
            return
        while not select.select([self._back], [], [], 0.0)[0]:
            going = block() > 0.0
            self.send({"busy": going})
            if not going:
                break
        self._answer()

    def enter(self, phase: str, peer: int | None = None) -> None:
        """Announce what comes next without waiting: the watchdog restarts.

        `peer` is the slot of another GPU that the phase needs.
        """
        self.send({"phase": phase, "peer": peer})

    def _wait(self, phase: str, alone: bool) -> Turn:
        self._ask(phase, alone=alone)
        return self._answer()

    def _ask(self, phase: str, **about: object) -> None:
        self.send({"phase": phase, "wait": True, **about})

    def _answer(self) -> Turn:
        """Ends the worker when the parent is gone."""
        answer = self._back.readline()
        if not answer:
            os._exit(0)
        others, peers, first, longest_s = json.loads(answer)
        return Turn(others, tuple(peers), first, longest_s)


Work = Callable[[DeviceInfo, Channel], None]


class Worker:
    """The parent's view of one worker."""

    def __init__(self, device: DeviceInfo, work: Work, others: list[Worker]) -> None:
        self.device = device
        self.phase = "start"
        self.peer: int | None = None  # slot of the GPU that the phase needs besides
        self.waiting = False
        self.alone = False  # what it waits for is a turn
        self.busy = False  # its GPU works while it waits
        self.spent_s = 0.0  # device time that it has run when it waits
        self.waits = 0  # how many times it has waited: workers of one node wait in the same order
        self.since_s = time.monotonic()  # of the present phase
        self.error = ""
        self.flag = ""  # of a device error: the record's flag for it
        self.buffer = b""
        inward, out = os.pipe()
        back, outward = os.pipe()
        self.inward, self.outward = inward, outward
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            # A copy of a sibling's pipe in here would hide from it that the parent is gone.
            for end in (inward, outward, *(fd for w in others for fd in (w.inward, w.outward) if fd >= 0)):
                os.close(end)
            _child(device, work, Channel(out, back))
        os.close(out)
        os.close(back)
        os.set_blocking(inward, False)

    def enter(self, message: dict[str, Any]) -> None:
        """Note the phase that the worker announced."""
        self.phase, self.peer = message["phase"], message.get("peer")
        self.waiting, self.alone = message.get("wait", False), message.get("alone", False)
        self.busy, self.spent_s = message.get("busy", False), message.get("spent_s", 0.0)
        self.waits += self.waiting
        self.since_s = time.monotonic()

    @property
    def watched(self) -> bool:
        """Whether it may hang: its GPU is at work."""
        return self.busy or not self.waiting

    def messages(self) -> Iterator[dict[str, Any]]:
        """What has arrived; closes the pipe at its end."""
        while True:
            try:
                chunk = os.read(self.inward, 65536)
            except BlockingIOError:
                break
            if not chunk:
                self.close()
                break
            self.buffer += chunk
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        for descriptor in (self.inward, self.outward):
            if descriptor >= 0:
                os.close(descriptor)
        self.inward = self.outward = -1

    def kill(self, reason: str) -> None:
        """End the worker at once; a process stuck in the driver is left to the kernel."""
        self.error = self.error or reason
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()

    def reap(self, patience_s: float = 1.0) -> None:
        """Collect the dead process and note why it died, if nobody knows yet."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                if status and not self.error:
                    self.error = f"worker ended with {_cause(status)} in {self.phase}"
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _child(device: DeviceInfo, work: Work, channel: Channel) -> None:
    """The worker's life; never returns into the parent's code."""
    code = 0
    try:
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        work(device, channel)
    except BrokenPipeError:
        code = 0
    except BaseException as error:
        code = 1
        with contextlib.suppress(OSError):
            channel.send({"error": one_line(error), "flag": getattr(error, "flag", "")})
    finally:
        os._exit(code)


class Team:
    """All workers of a node."""

    def __init__(self, devices: tuple[DeviceInfo, ...], work: Work, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._suspects: set[int] = set()  # slots whose GPU hung somebody else's worker
        self._served = 0  # the wait that the last turn was given for
        self.stopped = ""  # the signal that ended us, if one did
        self._wake_r, self._wake_w = os.pipe()
        for end in (self._wake_r, self._wake_w):
            os.set_blocking(end, False)
        self._old_handlers = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        self._old_wakeup = signal.set_wakeup_fd(self._wake_w)
        self.workers: list[Worker] = []
        try:
            for device in devices:
                self.workers.append(Worker(device, work, self.workers))
        except BaseException:
            self.close()
            raise

    def _on_signal(self, number: int, frame: object) -> None:
        self.stopped = signal.Signals(number).name

    def run(self, on_message: Callable[[Worker, dict[str, Any]], str]) -> None:
        """Serve the workers until all have ended.

        `on_message` sees every message that is not ours; a text it returns ends the
        whole team with that reason.
        """
        try:
            while living := [w for w in self.workers if w.inward >= 0]:
                self._open(living)
                self._wait(living)
                if self.stopped:
                    self.end_all(f"stopped by {self.stopped}")
                    return
                for worker in living:
                    reason = self._hear(worker, on_message)
                    if reason:
                        self.end_all(reason)
                        return
                self._watch(living)
        finally:
            self.close()

    def _open(self, living: list[Worker]) -> None:
        """Let all go on once all wait; where turns are asked for, the first of those that are behind."""
        if not all(w.waiting for w in living):
            return
        behind = min(w.waits for w in living)
        due = [w for w in living if w.waits == behind]
        if due[0].alone:
            due = due[:1]
        first = self._served != behind
        self._served = behind
        longest_s = max(w.spent_s for w in due)
        for worker in due:
            peers = [w.device.slot for w in living if w is not worker and w.device.slot not in self._suspects]
            answer = json.dumps([len(living) - 1, peers, first, longest_s]).encode() + b"\n"
            worker.waiting = worker.busy = False
            worker.since_s = time.monotonic()
            with contextlib.suppress(BrokenPipeError):
                os.write(worker.outward, answer)

    def _wait(self, living: list[Worker]) -> None:
        now = time.monotonic()
        left = [w.since_s + self._timeout_s - now for w in living if w.watched]
        ready, _, _ = select.select(
            [self._wake_r, *(w.inward for w in living)], [], [], max(0.0, min(left, default=1.0))
        )
        if self._wake_r in ready:
            os.read(self._wake_r, 64)

    def _hear(self, worker: Worker, on_message: Callable[[Worker, dict[str, Any]], str]) -> str:
        for message in worker.messages():
            if "phase" in message:
                worker.enter(message)
            elif "busy" in message:
                # What was sent before the wait ended says nothing about the time after it.
                worker.busy = worker.waiting and message["busy"]
                worker.since_s = time.monotonic()
            elif "error" in message:
                worker.error, worker.flag = message["error"], message["flag"]
            elif reason := on_message(worker, message):
                return reason
        if worker.inward < 0:
            worker.reap()
        return ""

    def _watch(self, living: list[Worker]) -> None:
        now = time.monotonic()
        for worker in living:
            if worker.inward >= 0 and worker.watched and now - worker.since_s >= self._timeout_s:
                beside = "" if worker.peer is None else f" with GPU {worker.peer}"
                worker.kill(f"no answer within {self._timeout_s:g} s in {worker.phase}{beside}")
                worker.reap()
                # Which of the two hangs is unknown: keep both from the others. A suspect accuses nobody.
                if worker.peer is not None and worker.device.slot not in self._suspects:
                    self._suspects.add(worker.peer)

    def end_all(self, reason: str) -> None:
        """Kill whoever still lives."""
        for worker in self.workers:
            if worker.inward >= 0:
                worker.kill(reason)

    def close(self) -> None:
        """Leave no process, descriptor or handler behind."""
        self.end_all("ended")
        for worker in self.workers:
            worker.reap()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        if self._wake_r >= 0:
            os.close(self._wake_r)
            os.close(self._wake_w)
            self._wake_r = self._wake_w = -1
