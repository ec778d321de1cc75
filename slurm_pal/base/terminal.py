# SPDX-License-Identifier: MIT
"""Text of users as a terminal may show it: job names, comments, paths and Slurm's answers are data."""

from __future__ import annotations

_NO_BREAK_SPACE = "\xa0"  # ours, between a number and its unit


def visible(text: str) -> str:
    """The same on one line, with an escape like `\\x1b` for each character that a terminal would act on or not show.

    These are control characters, marks that change the direction of writing, line separators, and
    halves of characters (bytes that are not UTF-8): all that Unicode calls not printable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == _NO_BREAK_SPACE else _escape(ord(c)) for c in text)


def _escape(number: int) -> str:
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
