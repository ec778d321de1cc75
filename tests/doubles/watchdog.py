# SPDX-License-Identifier: MIT
"""A watchdog that does not wait to see that a worker hangs."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_pal.profiling.node.workers import Team, Worker

HOUR_S = 3600.0  # who sleeps so long hangs


def hasten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that hangs says so in a file, and its time is over at once; nobody else's time is touched.

    The limit itself can then be so long that no load of the machine reaches it.
    """
    sleep, wait, watch = time.sleep, select.select, Team._watch
    hung: set[str] = set()

    def hang(seconds: float) -> None:
        if seconds >= HOUR_S:
            (folder / f"hangs.{os.getpid()}").touch()
        sleep(seconds)

    def look(inward: Sequence[int], out: Sequence[int], odd: Sequence[int], timeout_s: float) -> object:
        hung.update(path.suffix for path in folder.glob("hangs.*"))  # what they had said before is heard next
        return wait(inward, out, odd, min(timeout_s, 0.02))

    def give_up(self: Team, living: list[Worker]) -> None:
        for worker in living:
            if f".{worker.pid}" in hung:
                worker.since_s = -math.inf
        watch(self, living)

    monkeypatch.setattr(time, "sleep", hang)
    monkeypatch.setattr(select, "select", look)
    monkeypatch.setattr(Team, "_watch", give_up)
