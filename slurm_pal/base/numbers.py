# SPDX-License-Identifier: MIT
"""Numbers read and shown. A whole number from Slurm, a user or a file consists of ASCII digits only.

`str.isdigit` also accepts "²", which `int` does not, and `int` accepts "1_0" and "٣"; and nobody
means a number of a thousand digits.
"""

from __future__ import annotations

MOST_DIGITS = 18
"""Fewer than 2^63."""

MOST_GPUS = 1024
"""Of one node; a text that counts more is not a list of indexes."""


def digits(text: str) -> int | None:
    """The number that a text of at most 18 ASCII digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def amount(text: str, units: str, most_digits: int = MOST_DIGITS) -> tuple[int, str] | None:
    """(number, unit) of a text like `16G`, the unit in upper case or ""; None for any other text.

    `units` are the letters that may stand behind the number, in upper case.
    """
    unit = text[-1:].upper()
    if not unit or unit not in units or not text.isascii():
        unit = ""
    number = digits(text[: len(text) - len(unit)])
    return None if number is None or len(text) - len(unit) > most_digits else (number, unit)


def faster(there: float, here: float, others: str) -> str:
    """How the time factor `here` (above 0) compares with `there`, the one of `others`: "3.1 % faster than ..."."""
    gain = round(100.0 * (there / here - 1.0), 1)
    if not gain:
        return f"as fast as {others}"
    return f"{abs(gain):.1f} % {'slower' if gain < 0 else 'faster'} than {others}"
