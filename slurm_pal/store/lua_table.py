# SPDX-License-Identifier: MIT
"""The table of the submit filter (pal.table/1): a Lua file that is read as data, line by line.

    return { ["schema"] = "pal.table/1", ["epoch"] = "1763712345678", ... ["clears"] = "daemon",
    ["KEY"] = "VALUE",
    ["end"] = "1763712345678" }

The first line shows whether the rest has changed; the last repeats the epoch, so that a
reader recognises a truncated file. Nothing in it can end a string: keys and values consist
of a few plain characters, and other names are refused here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import NamedTuple

from slurm_pal.base.config import public_table
from slurm_pal.base.errors import DataError
from slurm_pal.base.files import hand_to_slurm_user, read_trusted, write_atomic
from slurm_pal.base.numbers import digits

SCHEMA = "pal.table/1"
NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Names of nodes, partitions, GPU types, features and applications that a table may hold."""
_VALUE = re.compile(r"[A-Za-z0-9_.,:|=+@ -]*")
_HEAD = re.compile(
    r'return \{ \["schema"\] = "([^"]*)", \["epoch"\] = "(\d+)", \["written_s"\] = "(\d+)", '
    r'\["max_age_s"\] = "([0-9.]+)", \["clears"\] = "(|daemon)",'
)
_RECORD = re.compile(rf'\["({NAME.pattern})"\] = "({_VALUE.pattern})",')
_SCHEMA_WORD = re.compile(r'return \{ \["schema"\] = "([^"]*)"')


class Header(NamedTuple):
    """The first line."""

    epoch: int
    written_s: int  # Unix seconds; later events are not in the table
    max_age_s: float
    clears: str  # "daemon": somebody takes leases back; "": nobody does


class FilterTable(NamedTuple):
    """A table as a reader sees it."""

    header: Header
    records: dict[str, str]


def name(text: str, what: str) -> str:
    """`text`, if a table may hold it; `what` says what it names. Raises DataError."""
    if not NAME.fullmatch(text):
        raise DataError(f"the {what} {text!r} cannot be in the filter's table: only A-Z a-z 0-9 _ . - are allowed")
    return text


def encode(header: Header, records: Mapping[str, str]) -> bytes:
    """The file. Raises DataError for a key or value that the filter could not read."""
    lines = [
        f'return {{ ["schema"] = "{SCHEMA}", ["epoch"] = "{header.epoch}", ["written_s"] = "{header.written_s}", '
        f'["max_age_s"] = "{header.max_age_s:g}", ["clears"] = "{header.clears}",'
    ]
    if not _HEAD.fullmatch(lines[0]):
        raise DataError(f"the filter's table cannot begin with {lines[0]!r}")
    for key, value in records.items():
        if not NAME.fullmatch(key) or key == "end" or not _VALUE.fullmatch(value):
            raise DataError(f"the record {key!r} = {value[:80]!r} cannot be in the filter's table")
        lines.append(f'["{key}"] = "{value}",')
    return "\n".join([*lines, f'["end"] = "{header.epoch}" }}', ""]).encode()


def retire(path: str, now_s: float) -> None:
    """From now on nobody takes leases back: state that in the table and in the public one beside it.

    Then the filters set none. Raises DataError if there is no table or one cannot be written.
    """
    for place in (path, public_table(path)):
        if place == path or os.path.exists(place):
            header, kept = read_table(place)
            header = header._replace(epoch=max(int(now_s * 1000), header.epoch + 1), clears="")
            replace(place, encode(header, kept), private=not os.stat(place).st_mode & stat.S_IROTH)


def replace(path: str, data: bytes, private: bool) -> None:
    """Put a table in place of the old one; a private one is for slurmctld only. Raises DataError."""
    try:
        write_atomic(path, data, 0o600 if private else 0o644, hand_to_slurm_user if private else None)
    except OSError as error:
        raise DataError(f"table {path} cannot be written ({error.strerror}); the old one, if any, ages") from None


def read_table(path: str) -> FilterTable:
    """Read a table strictly: it is refused unless every line is what `encode` writes.

    Raises DataError if it is missing, not trustworthy, truncated, damaged or of a newer schema.
    """
    first, *lines = _text(path).split("\n")
    header = _header(path, first)
    if lines[-2:] != [f'["end"] = "{header.epoch}" }}', ""]:
        raise DataError(
            f"table {path} is truncated (its last line does not end epoch {header.epoch}): run pal publish-table"
        )
    return FilterTable(header, _records(path, lines[:-2]))


def read_header(path: str) -> Header:
    """The first line only; the rest may be damaged. Raises DataError as `read_table` does."""
    return _header(path, _text(path).partition("\n")[0])


def _text(path: str) -> str:
    try:
        return read_trusted(path).decode("ascii")
    except FileNotFoundError:
        raise DataError(f"no table at {path}: run pal publish-table") from None
    except OSError as error:
        raise DataError(f"table {path} cannot be read ({error.strerror}): chmod a+r {path}") from None
    except UnicodeDecodeError:
        raise DataError(f"table {path} is damaged (not plain text): run pal publish-table") from None


def _header(path: str, line: str) -> Header:
    schema = _SCHEMA_WORD.match(line)
    kind, _, version = (schema.group(1) if schema else "").partition("/")
    if kind == SCHEMA.partition("/")[0] and (digits(version) or 0) > int(SCHEMA.partition("/")[2]):
        raise DataError(f"table {path} has schema {kind}/{version}, newer than {SCHEMA} known here: update slurm-pal")
    found = _HEAD.fullmatch(line)
    if found is None or found.group(1) != SCHEMA:
        raise DataError(f"{path} is not a table of {SCHEMA}: run pal publish-table")
    _, epoch, written_s, max_age_s, clears = found.groups()
    try:
        return Header(int(epoch), int(written_s), float(max_age_s), clears)
    except ValueError:
        raise DataError(f"table {path} is damaged (max_age_s {max_age_s!r}): run pal publish-table") from None


def _records(path: str, lines: list[str]) -> dict[str, str]:
    records: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        found = _RECORD.fullmatch(line)
        if found is None or found.group(1) in records:
            raise DataError(f"table {path} is damaged (line {number}): run pal publish-table")
        records[found.group(1)] = found.group(2)
    return records
