# SPDX-License-Identifier: MIT
"""Sleep until something is due or a signal asks to end; for the programs that stay."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterator
from types import FrameType

Woken = Callable[[float], bool]


@contextlib.contextmanager
def until_signal() -> Iterator[Woken]:
    """Yield `woken(seconds)`: sleep at most that long; return whether SIGTERM or SIGINT has come, even before."""
    read_end, write_end = os.pipe()

    def wake(number: int, frame: FrameType | None) -> None:
        os.write(write_end, b".")

    def woken(seconds: float) -> bool:
        return bool(select.select([read_end], [], [], seconds)[0])

    before = {number: signal.signal(number, wake) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield woken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)
