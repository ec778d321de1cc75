# SPDX-License-Identifier: MIT
"""When a training loop is to save, agreed on by its ranks; the answer to who asked; progress by the way.

    saver = Saver()
    for step in range(first, total):
        train(step)
        if saver.due(step + 1, total):
            save()
            saver.done()

palsub's wrapper sends the signal to the batch script's processes, and srun sends it on to every process of its step, a
little sooner to one than to another. So ranks decide by a reduction in which step they save, over a CPU group of their
own: the GPUs are not waited for.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from slurm_pal.submit import inside

SIGNALS = ("USR1", "USR2")
"""What `--pal-checkpoint` may name: each of them that nobody else handles in this process is ours."""
EVERY_S = 60.0
"""Between two reports of progress."""
LEAST_S = 50
"""`pal progress` itself counts in whole seconds: so it is asked for a little less than EVERY_S."""
OWN_S = 1.0
"""The longest way of a signal from one rank to another."""

_UNHANDLED = (signal.SIG_DFL, signal.SIG_IGN)


class Saver:
    """Made in the main thread before the first step, by every rank. All call `due` and `done` equally often."""

    def __init__(
        self,
        agree: Callable[[bool], bool] | None = None,
        *,
        signals: Iterable[str] = SIGNALS,
        every_steps: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        """`agree` tells whether any rank was asked; else torch.distributed does, which fails after `timeout_s`.

        Ranks agree only in steps that `every_steps` divides.
        """
        if every_steps < 1:
            raise ValueError(f"every_steps is at least 1, not {every_steps}")
        self._in_job = "SLURM_JOB_ID" in os.environ
        self._speaks = inside.speaks(os.environ) and os.environ.get("LOCAL_RANK", "0") == "0"
        self._agree = agree or Agreement(timeout_s)
        self._every_steps = every_steps
        self._taken: set[signal.Signals] = set()
        self._asked = False
        self._told_s: float | None = None
        self._program: subprocess.Popen[bytes] | None = None
        self.take(signals)

    def take(self, signals: Iterable[str]) -> None:
        """Listen to those of these signals that nobody handles.

        Blocked as well: srun signals all processes of a step, and a mask outlives exec, which a handler does not. A
        loader of data or a command that the training starts would die of it. A thread that is there already does not
        block it, and hears it by the handler.
        """
        if not self._in_job:
            return
        free = {number for name in signals if signal.getsignal(number := signal.Signals[f"SIG{name}"]) in _UNHANDLED}
        try:
            for number in free:
                signal.signal(number, self._hear)
        except ValueError:  # not the main thread
            return _say("made outside of the main thread: no checkpoint on demand")
        signal.pthread_sigmask(signal.SIG_BLOCK, free)
        self._taken |= free

    def _hear(self, *_: object) -> None:
        self._asked = True

    def _heard(self) -> bool:
        while came := self._taken & signal.sigpending():
            signal.sigwait(came)
            self._asked = True
        return self._asked

    def due(self, step: int, total: int | None = None) -> bool:
        """After each step, on every rank: whether all are to save now. `step` of `total` are done."""
        if not self._in_job:
            return False
        self._report(step, total)
        return step % self._every_steps == 0 and self._agree(self._heard())

    def done(self) -> None:
        """This rank has saved. When all have, the checkpoint is acknowledged."""
        until_s = time.monotonic() + OWN_S
        while not self._heard() and time.monotonic() < until_s:  # another rank heard it first
            time.sleep(0.01)
        self._agree(False)
        self._asked = False
        if self._speaks:
            acknowledge()

    def _report(self, step: int, total: int | None) -> None:
        now_s = time.monotonic()
        if not self._speaks or (self._told_s is not None and now_s - self._told_s < EVERY_S):
            return
        self._told_s = now_s
        if self._program is None or self._program.poll() is not None:
            of = [] if total is None or total < max(step, 1) else [str(total)]
            self._program = start("progress", str(step), *of, "--every", str(LEAST_S))


class Agreement:
    """Whether any rank of torch.distributed was asked."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._world: object = None
        self._group: Any = None
        self._alone = False

    def __call__(self, asked: bool) -> bool:
        torch = sys.modules.get("torch")
        dist: Any = getattr(torch, "distributed", None)
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return asked and self._is_alone()
        if dist.get_world_size() == 1:
            return asked
        if self._world is not dist.group.WORLD:
            limit = None if self._timeout_s is None else timedelta(seconds=self._timeout_s)
            self._world, self._group = dist.group.WORLD, dist.new_group(backend="gloo", timeout=limit)
        flag = torch.tensor([int(asked)])  # type: ignore[union-attr]
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def _is_alone(self) -> bool:
        """Whether this is the only task, as far as its launcher says: several would save in steps of their own."""
        tasks = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
        if tasks != "1" and not self._alone:
            self._alone = True
            _say(f"asked for a checkpoint, but {tasks} tasks cannot agree on a step: pass agree= to Saver")
        return tasks == "1"


def acknowledge(*, failed: bool = False) -> None:
    """Say that the checkpoint is written, or `failed`: by the wrapper's file, else by `pal ack`."""
    if failed:
        start("ack", "--failed")
    elif not inside.touch_ack(os.environ):
        start("ack")


def start(*words: str) -> subprocess.Popen[bytes] | None:
    """Start `pal` beside the training; nobody waits for it."""
    path = shutil.which("pal") or shutil.which("pal", path=os.path.dirname(sys.executable))
    try:
        if path is None:
            raise FileNotFoundError("it is not in PATH")
        return subprocess.Popen([path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    except OSError as error:
        _say(f"pal {words[0]} cannot be started: {error}")
        return None


def _say(line: str) -> None:
    print(f"slurm-pal: {line}", file=sys.stderr, flush=True)
