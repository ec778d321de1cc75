# SPDX-License-Identifier: MIT
"""Arms beside each other, as many at once as wanted, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slurm_pal.base.errors import PalError

Task = TypeVar("Task")
POLL_S = 0.2


class Beside(Generic[Task]):
    """Runs tasks in their order, `most` at once; what one raises ends the others, too."""

    def __init__(self, tasks: Sequence[Task], work: Callable[[Task, threading.Event], None], most: int) -> None:
        self._waiting = list(tasks)
        self._work, self._most = work, most
        self._ending = threading.Event()
        self._running: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def over(self) -> bool:
        """Start what may start; whether all has ended. Raises what a task raised, once all have ended."""
        self._running = [thread for thread in self._running if thread.is_alive()]
        while self._waiting and len(self._running) < self._most and not self._ending.is_set():
            task = self._waiting.pop(0)
            thread = threading.Thread(target=self._guarded, args=(task,), name=f"trial {task}")
            self._running.append(thread)
            thread.start()
        if self._running:
            return False
        if self._failed:
            raise self._failed[0]
        return True

    def end(self) -> None:
        """Have all tasks end, and wait for them."""
        self._ending.set()
        for thread in self._running:
            thread.join()

    def _guarded(self, task: Task) -> None:
        try:
            self._work(task, self._ending)
        except BaseException as error:
            if isinstance(error, PalError) or not self._ending.is_set():
                self._failed.append(error)
            self._ending.set()
