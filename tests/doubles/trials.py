# SPDX-License-Identifier: MIT
"""How many random examples a costly property is tried with: a quarter of them, and all with `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., None])
ALL = "PAL_LONG" in os.environ


def trials(number: int, **options: object) -> Callable[[Test], Test]:
    """As `settings(max_examples=number)` with `make test-long`; each run draws examples of its own."""
    found = settings(max_examples=number if ALL else -(-number // 4), **options)  # type: ignore[arg-type]

    def decorate(test: Test) -> Test:
        marked: Test = pytest.mark.trials(found(test))
        return marked

    return decorate
