# SPDX-License-Identifier: MIT
"""A site's own job_submit.lua or cli_filter.lua: how it calls ours."""

from __future__ import annotations

import re

from slurm_pal.admin import blocks

OURS = "-- slurm-pal"
"""How the first line of our own Lua files begins; all other files are the site's."""
_LONG_BRACKET = re.compile(r"\[=*\[|\]=*\]")
_LAST = re.compile(r"return\s+slurm\.SUCCESS\s*;?\s*(--.*)?")


def is_ours(text: str) -> bool:
    return text.startswith(OURS)


def call(path: str) -> str:
    """The line that passes a job to our filter at `path`."""
    return f'pcall(dofile, "{path}") -- slurm-pal'


def calls(text: str, path: str) -> int | None:
    """The number (from 1) of the line that calls the file at `path`, or None."""
    for number, line in enumerate(blocks.split(text), 1):
        if path in line.partition("--")[0]:
            return number
    return None


def with_call(text: str, path: str) -> str | None:
    """`text` with our call before its final `return slurm.SUCCESS`; None if it ends differently.

    A `return` in the last line of a Lua file is the file's own: a function would still
    have to be closed by `end`.
    """
    lines = blocks.split(text)
    at = len(lines) - 1
    while at >= 0 and (not lines[at].strip() or lines[at].lstrip().startswith("--")):
        at -= 1
    if at < 0 or not _LAST.fullmatch(lines[at].strip()) or _LONG_BRACKET.search("".join(lines[at:])):
        return None
    return blocks.insert(text, blocks.LUA, at, 0, [call(path)])
