# SPDX-License-Identifier: MIT
"""What one check of `pal doctor` found."""

from __future__ import annotations

from typing import NamedTuple


class CheckResult(NamedTuple):
    """One check: level "ok", "note", "warn" or "fail"; `mend` is a command or an edit."""

    level: str
    topic: str
    text: str
    mend: str = ""
