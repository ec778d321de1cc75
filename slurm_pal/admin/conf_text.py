# SPDX-License-Identifier: MIT
"""slurm.conf as Slurm reads it: which statement of a key is in force, and on which line of which file.

Seen on 22.05.8: a repeated key is not an error, the last one counts; `#` ends a line, and no
backslash after it continues the line; keys are case-insensitive; one statement per line; `Include` begins
in the first column, and a relative name is relative to the including file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from slurm_pal.admin.blocks import split
from slurm_pal.base.errors import UsageError

MOST_INCLUDES = 1000
_SETTING = re.compile(r'\s*([A-Za-z0-9_.]+)\s*=\s*(?:"([^"]*)"|(\S+))')
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE)


class Statement(NamedTuple):
    """One logical line: `key` in small letters, `include` for an Include."""

    key: str
    value: str
    first: int  # number of its first line, from 0
    lines: int  # how many it spans


class EffectiveSetting(NamedTuple):
    """The statement of a key that is in force."""

    path: str
    statement: Statement


def statements(text: str) -> Iterator[Statement]:
    """The statements of one file, in order."""
    first, joined = 0, ""
    for number, line in enumerate(split(text)):
        bare = _without_comment(line)
        stripped = bare.rstrip()
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            joined += stripped[:-1]
            continue
        yield from _statement(joined + bare, first, number + 1 - first)
        first, joined = number + 1, ""
    yield from _statement(joined, first, len(split(text)) - first)


def _statement(line: str, first: int, lines: int) -> Iterator[Statement]:
    if include := _INCLUDE.match(line):
        yield Statement("include", include.group(1), first, lines)
    elif setting := _SETTING.match(line):
        key, quoted, plain = setting.groups()
        yield Statement(key.lower(), plain if quoted is None else quoted, first, lines)


def read_all(path: str, read: Callable[[str], str]) -> dict[str, str]:
    """The texts of a slurm.conf and of all that it includes, by path.

    Raises UsageError if an included file cannot be read or includes itself.
    """
    texts = {path: read(path)}
    cluster = next((s.value for s in statements(texts[path]) if s.key == "clustername"), "")
    todo = [path]
    while todo:
        here = todo.pop()
        for statement in statements(texts[here]):
            if statement.key != "include":
                continue
            name = _included(here, statement, cluster)
            if name in texts:
                continue
            if len(texts) >= MOST_INCLUDES:
                raise UsageError(f"{path} includes more than {MOST_INCLUDES} files")
            try:
                texts[name] = read(name)
            except OSError as error:
                line = f"{here} line {statement.first + 1}"
                raise UsageError(f"{line} includes {name}, which cannot be read: {error.strerror}") from None
            todo.append(name)
    return texts


def in_force(path: str, texts: Mapping[str, str], key: str) -> EffectiveSetting | None:
    """The last statement of `key`, in the order in which Slurm reads the files; None if there is none."""
    cluster = next((s.value for s in statements(texts[path]) if s.key == "clustername"), "")
    return _last(path, texts, key.lower(), cluster, (path,))


def _last(
    path: str, texts: Mapping[str, str], key: str, cluster: str, above: tuple[str, ...]
) -> EffectiveSetting | None:
    found: EffectiveSetting | None = None
    for statement in statements(texts[path]):
        if statement.key == "include":
            name = _included(path, statement, cluster)
            if name in texts and name not in above:
                found = _last(name, texts, key, cluster, (*above, name)) or found
        elif statement.key == key:
            found = EffectiveSetting(path, statement)
    return found


def value(path: str, texts: Mapping[str, str], key: str) -> str:
    """The value of `key`, "" if it is not set."""
    place = in_force(path, texts, key)
    return place.statement.value if place else ""


def _included(path: str, statement: Statement, cluster: str) -> str:
    return os.path.normpath(os.path.join(os.path.dirname(path), statement.value.replace("%c", cluster)))


def _without_comment(line: str) -> str:
    """The line up to the first `#` that no backslash protects."""
    for at, letter in enumerate(line):
        if letter == "#":
            before = line[:at]
            if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
                return before
    return line
