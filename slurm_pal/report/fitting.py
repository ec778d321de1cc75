# SPDX-License-Identifier: MIT
"""Tables that fit a terminal: long cells go on below, and columns without room on a second, indented line."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

GAP = 2
INDENT = 4
_PIECE = re.compile(r"\S+?(?:(?<=[,;+])(?=\S)|(?:\s+|$))")
"""What may stand alone on a line: a word, or a part of one up to a comma, semicolon or plus sign."""


def fitted(rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The lines of each row, none wider than `width` unless a single word is.

    `rows` have the same number of cells, the heading among them. Nothing is cut off. A table that fits has one line
    for each row.
    """
    if not rows:
        return []
    lengths = [sorted(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    natural = [column[-1] for column in lengths]
    if _taken(natural, range(len(natural))) <= width:
        return [_lines(row, range(len(natural)), natural) for row in rows]
    least = [max(_longest(row[i]) for row in rows) for i in range(len(natural))]
    made = []
    for groups in _layouts(natural, least, width):
        widths = natural.copy()
        for k, group in enumerate(groups):
            _shrink(widths, least, lengths, group, width - INDENT * bool(k))
        made.append([
            [" " * (INDENT * bool(k)) + line for k, group in enumerate(groups) for line in _lines(row, group, widths)]
            for row in rows
        ])  # fmt: skip
    return min(made, key=lambda lines: sum(map(len, lines)))


def _longest(text: str) -> int:
    return max((len(piece.rstrip()) for piece in _PIECE.findall(text)), default=0)


def _layouts(natural: Sequence[int], least: Sequence[int], width: int) -> list[list[Sequence[int]]]:
    """Which columns may stand beside each other: all, where they have room once long cells are wrapped; else fewer."""
    columns = range(len(natural))
    groups: list[list[int]] = [[]]
    for column in columns:
        room = width - INDENT * (len(groups) > 1)
        if groups[-1] and _taken(natural, groups[-1]) + GAP + min(natural[column], room) > room:
            groups.append([])
        groups[-1].append(column)
    return [[columns], [*groups]] if _taken(least, columns) <= width else [[*groups]]


def _taken(widths: Sequence[int], group: Sequence[int]) -> int:
    return sum(widths[column] for column in group) + GAP * (len(group) - 1)


def _shrink(
    widths: list[int], least: Sequence[int], lengths: Sequence[Sequence[int]], group: Sequence[int], room: int
) -> None:
    """Take what the line lacks, step by step, from the column where the fewest cells need another line for it."""

    def harm(column: int) -> tuple[int, int]:
        return len(lengths[column]) - bisect_right(lengths[column], widths[column] - 1), -widths[column]

    for _ in range(_taken(widths, group) - room):
        able = [column for column in group if widths[column] > least[column]]
        if not able:
            return
        widths[min(able, key=harm)] -= 1


def _lines(row: Sequence[str], group: Sequence[int], widths: Sequence[int]) -> list[str]:
    cells = [_wrapped(row[column], widths[column]) for column in group]
    made = []
    for k in range(max(map(len, cells))):
        parts = [cell[k] if k < len(cell) else "" for cell in cells]
        padded = [part.ljust(widths[column]) for column, part in zip(group, parts, strict=True)]
        made.append((" " * GAP).join(padded).rstrip())
    return made


def _wrapped(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    lines = [""]
    for piece in _PIECE.findall(text):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
