# SPDX-License-Identifier: MIT
"""What goes wrong in a program that stays, on stderr: each kind once, however often it recurs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from slurm_pal.cli import common

AGAIN_S = 3600.0
"""After this time a repeated line is shown again, with the number of times it came meanwhile."""
AWAY_S = 600.0
"""A line that has not come for this long counts as new."""
MOST = 500
"""This many lines are remembered; the one that has been away longest is forgotten first."""


class Complaints:
    """Lines that were shown, and when they came last. `clock` gives seconds that never go back."""

    def __init__(self, program: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._program, self._clock = program, clock
        self._seen: dict[str, tuple[float, float, int]] = {}  # line -> (shown at, came last, times since it was shown)

    def tell(self, lines: Iterable[str]) -> None:
        """Show the new ones. A full disk behind stderr stops nothing."""
        now_s = self._clock()
        for line in sorted(set(lines)):
            shown_s, last_s, times = self._seen.pop(line, (-AGAIN_S, -AWAY_S, 0))
            if now_s - last_s < AWAY_S and now_s - shown_s < AGAIN_S:
                self._seen[line] = shown_s, now_s, times + 1
                continue
            self._seen[line] = now_s, now_s, 0
            with contextlib.suppress(OSError):
                common.say(f"{self._program}: {line}{f' ({times} times since)' if times else ''}", err=True)
        while len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]
