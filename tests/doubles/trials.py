# SPDX-License-Identifier: MIT
"""How many random examples a property is tried with: a quarter of them, and all with `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., None])
ALL = "PAL_LONG" in os.environ


def share(number: int) -> int:
    """A quarter, rounded up, and all with `make test-long`."""
    return number if ALL else -(-number // 4)


def trials(number: int, **options: object) -> Callable[[Test], Test]:
    """As `settings(max_examples=number)` with `make test-long`; each run draws examples of its own."""
    return settings(max_examples=share(number), **options)  # type: ignore[arg-type]
