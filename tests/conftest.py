# SPDX-License-Identifier: MIT
"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: its threads wait by spinning, in every program

from hypothesis import settings

from .doubles.trials import share

settings.register_profile("ours", deadline=None, max_examples=share(100))  # no test passes or fails by wall time
settings.load_profile("ours")


def pytest_configure() -> None:
    """Tables are as wide as they like, as in a pipe: pytest-xdist gives its workers a terminal's width.

    Take signals as a terminal would: who runs the tests under nohup or with `&` has some ignored.

    An ignored signal is inherited by every process that a test starts, and a shell script
    cannot even set a trap for it.
    """
    os.environ.pop("COLUMNS", None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay to the end: the garbage collector need not visit them again and again."""
    gc.freeze()
