# SPDX-License-Identifier: MIT
"""What starts one of our programs with a given Python, as the installed program starts."""

from __future__ import annotations

_ENTRIES = {
    "pal": ("start", "main"), "pal_rebalance": ("start", "rebalance"), "pal_profile": ("start", "profile"),
    "palsub": ("palsub", "main"),
}  # fmt: skip


def start_code(program: str) -> str:
    """For python -c; exits as the program does."""
    module, entry = _ENTRIES[program]
    return f"import sys; from slurm_pal.cli.{module} import {entry}; sys.exit({entry}())"
