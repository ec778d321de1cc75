# SPDX-License-Identifier: MIT
"""Numbers read and shown. Whole numbers in what Slurm, a user or a file says: ASCII digits and nothing else.

`str.isdigit` also takes "²", which `int` does not, and `int` takes "1_0" and "٣"; and a number of a
thousand digits is none that anybody means.
"""

from __future__ import annotations

MOST_DIGITS = 18
"""Fewer than 2^63."""

MOST_GPUS = 1024
"""Of one node; what counts more is no list of indexes."""


def digits(text: str) -> int | None:
    """The number that a text of ASCII digits stands for; None for any other text, and for one of more than 18."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def faster(there: float, here: float) -> str:
    """How time factor `here` (above 0) compares with `there`, in words: "3.1 % faster", "0.4 % slower"."""
    gain = 100.0 * (there / here - 1.0)
    return f"{abs(gain):.1f} % {'slower' if gain < 0 else 'faster'}"
