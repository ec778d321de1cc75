# SPDX-License-Identifier: MIT
"""How a process measures and spends time: in the twin by a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class Timing(NamedTuple):
    """The clock's part in a process that stays."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], None]


def _monotonic() -> float:
    return time.monotonic()


def _sleep(pause_s: float) -> None:
    time.sleep(pause_s)


REAL = Timing(_monotonic, _sleep)
