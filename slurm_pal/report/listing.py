# SPDX-License-Identifier: MIT
"""One table that a command shows: which columns, in which order of rows, the same for text and for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_pal.base.errors import UsageError

_DIGITS = re.compile(r"([0-9]+)")


class Listing(NamedTuple):
    """Rows as entries of the command's JSON and, where it prints them so, as text.

    `header` and `cells` are empty where the text is no table of these rows; else `cells` has a line for each row.
    """

    names: Sequence[str]  # columns of the CSV
    rows: Sequence[Mapping[str, Any]]
    header: Sequence[str] = ()
    cells: Sequence[Sequence[str]] = ()
    shows: Mapping[str, str] = {}  # heading -> name of the column that it shows, where that is not the same word
    marked: Sequence[bool] = ()  # rows that stand out in colour

    def column(self, word: str, option: str) -> str:
        """The name of a column, also by its heading; upper and lower case are alike.

        Raises UsageError for an unknown one.
        """
        for name in self.names:
            if name.lower() == word.lower():
                return name
        for heading, name in self.shows.items():
            if heading.lower() == word.lower():
                return name
        raise UsageError(f"{option}: no column {word!r}; the columns are {', '.join(self.names)}")


def flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a row; keys of an object within it are joined by `_`."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}_{inner}", one) for inner, one in flat(value))
        else:
            yield key, value


def ordered(found: Listing, order: Sequence[str]) -> Listing:
    """By these columns, the first one first; a minus before a name turns its order round.

    Rows that are alike stay as they were; those without a value come last. Raises UsageError for an unknown column.
    """
    if not order:
        return found
    places = list(range(len(found.rows)))
    values = [dict(flat(row)) for row in found.rows]
    for word in reversed(order):
        down, name = word.startswith("-"), found.column(word.lstrip("+-"), "--sort")
        known = [place for place in places if values[place].get(name) not in (None, "")]
        known.sort(key=lambda place: _rank(values[place][name]), reverse=down)
        places = [*known, *(place for place in places if values[place].get(name) in (None, ""))]
    return found._replace(
        rows=[found.rows[place] for place in places],
        cells=[found.cells[place] for place in places] if found.header else (),
        marked=[found.marked[place] for place in places] if found.marked else (),
    )


def _rank(value: object) -> tuple[int, Any]:
    """Numbers by their value, and numbers within a text as well: n2 before n10."""
    if isinstance(value, int | float):
        return 0, value
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return 1, [_number(part) if k % 2 else (-1, part) for k, part in enumerate(_DIGITS.split(text))]


def _number(digits: str) -> tuple[int, str]:
    """Larger for a larger number; of any length, since the digits may be a user's."""
    kept = digits.lstrip("0")
    return len(kept), kept


def chosen(found: Listing, words: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a table with these columns; without words its own, else all of the CSV.

    A heading gives the cell as the table has it, the name of a column its plain value. Raises UsageError.
    """
    if not words and found.header:
        return list(found.header), [list(cells) for cells in found.cells]
    headings: list[str] = []
    columns: list[list[str]] = []
    own = {heading.lower(): place for place, heading in enumerate(found.header)}
    plain = [dict(flat(row)) for row in found.rows]
    for word in words or found.names:
        name = found.column(word, "--format")
        place = own.get(word.lower())  # a heading that is no column's would have been refused
        headings.append(name.upper() if place is None else found.header[place])
        columns.append(
            [_plain(row.get(name)) for row in plain] if place is None else [cells[place] for cells in found.cells]
        )
    return headings, [list(cells) for cells in zip(*columns, strict=True)]


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return (",".join(map(str, value)) or "-") if isinstance(value, list | tuple) else str(value)
