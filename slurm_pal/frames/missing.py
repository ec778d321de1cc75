# SPDX-License-Identifier: MIT
"""What is said where a part of an answer is missing and the rest is worth having."""

from __future__ import annotations

import sys
import warnings


class MissingWarning(UserWarning):
    """A frame lacks rows or values, since one of its sources cannot be read."""


def warn(line: str) -> None:
    """Say what is missing. The place is the caller's, so that a notebook shows it below each cell that asks."""
    level, caller = 2, sys._getframe(1)
    while caller.f_back is not None and str(caller.f_globals.get("__name__", "")).startswith("slurm_pal."):
        level, caller = level + 1, caller.f_back
    warnings.warn(line, MissingWarning, stacklevel=level)
