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


def faster(there: float, here: float, others: str) -> str:
    """How time factor `here` (above 0) compares with `there`, that of `others`: "3.1 % faster than ..."."""
    gain = round(100.0 * (there / here - 1.0), 1)
    if not gain:
        return f"as fast as {others}"
    return f"{abs(gain):.1f} % {'slower' if gain < 0 else 'faster'} than {others}"
