# SPDX-License-Identifier: MIT
"""The marked block: all that we ever write into a file of the site, and how it is removed.

A line of the site that the block replaces is kept in it after `pal-was: `, byte for byte,
so that removing the block restores it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_pal.base.errors import DataError

BEGIN = "BEGIN slurm-pal (pal admin install)"
END = "END slurm-pal"
_WAS = "pal-was: "
_OPEN_END = "pal-note: the file did not end in a newline"
_NEW_FILE = "pal-note: the file was made for this block"

CONF = "#"
LUA = "--"
"""What begins a comment, in Slurm's files and in Lua."""


class Removed(NamedTuple):
    """A text without our blocks; None if the file was made for one and holds nothing else."""

    text: str | None
    inside: tuple[str, ...]  # the lines of the blocks


def insert(text: str | None, comment: str, at: int, drop: int, lines: Sequence[str]) -> str:
    """Put `lines` as a block before line number `at` (from 0), in place of `drop` lines.

    `text` is None for a file that does not exist yet.
    """
    old = split(text or "")
    head, was, tail = old[:at], old[at : at + drop], old[at + drop :]
    inside = [f"{comment}{_WAS}{line.removesuffix(chr(10))}" for line in was] + list(lines)
    if text is None:
        inside.insert(0, f"{comment} {_NEW_FILE}")
    before = was or head
    if not tail and before and not before[-1].endswith("\n"):
        inside.insert(0, f"{comment} {_OPEN_END}")
        if head and not was:
            head[-1] += "\n"
    block = "".join(f"{line}\n" for line in [f"{comment} {BEGIN}", *inside, f"{comment} {END}"])
    return "".join(head) + block + "".join(tail)


def append(text: str | None, comment: str, lines: Sequence[str]) -> str:
    """Put `lines` as a block at the end."""
    return insert(text, comment, len(split(text or "")), 0, lines)


def remove(text: str, comment: str, path: str) -> Removed:
    """Remove all blocks and restore the lines that they replaced.

    Raises DataError if a block has no end or no beginning; `path` names the file.
    """
    kept: list[str] = []
    inside: list[str] | None = None
    taken: list[str] = []
    new_file = open_end = False
    for number, line in enumerate(split(text), 1):
        word = line.strip()
        if word in (f"{comment} {BEGIN}", f"{comment} {END}"):
            if (inside is None) != word.endswith(BEGIN):
                raise DataError(f"{path} line {number}: the slurm-pal block is damaged; repair it by hand")
            if inside is None:
                inside = []
                continue
            back = _restored(inside, comment)
            open_end = f"{comment} {_OPEN_END}\n" in inside or (open_end and not back)
            kept += back
            new_file = new_file or f"{comment} {_NEW_FILE}\n" in inside
            taken, inside = taken + inside, None
        elif inside is not None:
            inside.append(line)
        else:
            kept.append(line)
            open_end = False
    if inside is not None:
        raise DataError(f"{path}: the slurm-pal block has no line `{comment} {END}`; repair it by hand")
    rest = "".join(kept)
    if open_end:
        rest = rest.removesuffix("\n")
    return Removed(None if new_file and not rest.strip() else rest, tuple(taken))


def split(text: str) -> list[str]:
    """Lines with their ends; only a newline ends a line (str.splitlines knows ten more)."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _restored(inside: Sequence[str], comment: str) -> list[str]:
    mark = f"{comment}{_WAS}"
    return [line.removeprefix(mark) for line in inside if line.startswith(mark)]
