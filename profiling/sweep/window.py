# SPDX-License-Identifier: MIT
"""The hours of the day in which a sweep submits jobs. Site local time; over midnight is allowed."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from slurm_pal.base.errors import UsageError

_TIMES = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")
DAY_MIN = 24 * 60


class Window(NamedTuple):
    """From one minute of the local day to another; where the end is not later, to that of the next day."""

    start_min: int
    end_min: int

    def open_at(self, now_s: float) -> bool:
        """Whether jobs may be submitted at a moment (Unix s)."""
        local = time.localtime(now_s)
        after_start_min = (local.tm_hour * 60 + local.tm_min - self.start_min) % DAY_MIN
        return after_start_min < (self.end_min - self.start_min) % DAY_MIN

    def opens_s(self, now_s: float) -> float:
        """When it opens next after a moment outside it, Unix s."""
        local = time.localtime(now_s)
        days = (
            time.mktime((local.tm_year, local.tm_mon, local.tm_mday + day, *divmod(self.start_min, 60), 0, 0, 0, -1))
            for day in (0, 1, 2)  # mktime knows the days on which the clock is changed
        )
        return next(s for s in days if s > now_s)


def parse(text: str) -> Window:
    """The window of "20:00-06:00". Raises UsageError."""
    match = _TIMES.fullmatch(text.strip())
    numbers = [int(word) for word in match.groups()] if match else []
    if not numbers or max(numbers[0], numbers[2]) > 23 or max(numbers[1], numbers[3]) > 59:
        raise UsageError(f"window {text!r} must be two local times of day like 20:00-06:00 (00:00 to 23:59)")
    window = Window(numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3])
    if window.start_min == window.end_min:
        raise UsageError(f"window {text!r} is empty: its two times must differ; leave it out to measure all day")
    return window
