# SPDX-License-Identifier: MIT
"""Tables: the options that every command with one has, and the printing of it in each form."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from slurm_pal.base.errors import UsageError
from slurm_pal.base.terminal import visible
from slurm_pal.cli import common
from slurm_pal.report import table
from slurm_pal.report.listing import Listing, chosen, flat, ordered

Body = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]


class Form(NamedTuple):
    """What the user wants to see of a table, and how."""

    as_json: bool = False
    as_csv: bool = False
    parsable2: bool = False
    noheader: bool = False
    sort: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    color: str = "auto"

    @property
    def plain(self) -> bool:
        """Whether the command's own text is wanted, sentences included."""
        return not (self.as_json or self.as_csv or self.parsable2 or self.sort or self.columns)

    @property
    def tabular(self) -> bool:
        """Whether rows and columns are wanted, in other words than those of the command or --json."""
        return not self._replace(as_json=False).plain

    def check(self) -> Form:
        """Raises UsageError for two forms at once."""
        for first, second, words in (
            (self.as_csv, self.as_json, "--csv and --json"),
            (self.as_csv, self.parsable2, "--csv and --parsable2"),
            (self.columns, self.as_json, "--format and --json (which has all columns)"),
        ):
            if first and second:
                raise UsageError(f"{words} exclude each other: give one of them")
        return self


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """NAME,... as a tuple. Raises UsageError where there is no name in it."""
    words = tuple(filter(None, (word.strip() for word in (value or "").split(","))))
    if value is not None and not words:
        raise UsageError(f"{parameter.opts[-1]} {value!r} names no column: give NAME,...")
    return words


_OPTIONS = (
    common.json_option,
    click.option("--csv", "as_csv", is_flag=True, help="Comma-separated rows for spreadsheets and data frames."),
    click.option("-P", "--parsable2", is_flag=True, help="Columns separated by | without padding."),
    click.option("--noheader", is_flag=True, help="No header line, nor sentences below the table."),
    click.option(
        "--sort", metavar="[-]NAME,...", callback=_names, help="Order of the rows, by column; -NAME: the largest first."
    ),
)  # fmt: skip
_FORMAT_HELP = "These columns only: their names in --csv, or their headings."
NAMES = Form._fields
"""Names of the parameters."""


def table_options(command: common.Command) -> common.Command:
    """The options of all commands that print a table; the command gets them as `form`, a `Form`."""
    return _with_form(command, "-o", "--format")


def table_options_beside_a_trace(command: common.Command) -> common.Command:
    """The same where --format is the format of a trace: columns are chosen by -o alone."""
    return _with_form(command, "-o")


def _with_form(command: common.Command, *words: str) -> common.Command:
    @functools.wraps(command)
    def formed(*args: Any, **options: Any) -> Any:  # noqa: ANN401  # the command's own
        return command(*args, form=Form(**{name: options.pop(name) for name in NAMES}).check(), **options)

    columns = click.option(*words, "columns", metavar="NAME,...", callback=_names, help=_FORMAT_HELP)
    made: common.Command = formed
    for option in reversed((*_OPTIONS, columns, common.color_option)):
        made = option(made)
    return made


def lines(header: Sequence[str], rows: Sequence[Sequence[str]], noheader: bool = False) -> list[str]:
    """A table as text that fits the screen."""
    return table.columns(header, rows, noheader, common.screen_width())


def say_notes(notes: Iterable[str]) -> None:
    """Sentences below a table, their lines broken between words."""
    for note in notes:
        common.say(*common.wrapped(note, "  "))


def show(
    form: Form, found: Listing, schema: str, body: Body, *, text: Callable[[], None] | None = None,
    notes: Sequence[str] = (), empty: str = "",
) -> None:  # fmt: skip
    """Print a table in the form that is asked for. Raises UsageError for an unknown column.

    `body` makes the command's JSON of the rows. `text` prints what the command shows when no form is asked for; without
    it that is the table, with `notes` below it, or `empty` where it has no row.
    """
    found = ordered(found, form.sort)
    header, cells = chosen(found, form.columns)
    if form.as_json:
        common.print_json(schema, body(found.rows))
    elif form.as_csv:
        names = [found.column(word, "--format") for word in form.columns] or found.names
        _print_csv(names, found.rows, form.noheader)
    elif form.parsable2:
        common.say(*table.parsable(header, cells, form.noheader))
    elif text is not None and form.plain:
        text()
    else:
        _print_text(form, header, cells, found.marked, notes, empty)


def _print_text(
    form: Form, header: Sequence[str], cells: Sequence[Sequence[str]], marked: Sequence[bool], notes: Sequence[str],
    empty: str,
) -> None:  # fmt: skip
    """On a terminal the header and rows that are marked stand out."""
    if not cells and empty:
        common.say(empty)
        return
    colored = common.use_color(form.color)
    printed = table.row_lines(header, cells, form.noheader, common.screen_width())
    if not form.noheader:
        common.say(*printed[0], color=colored, bold=colored)
    tints = marked or [False] * len(cells)
    for one, tint in zip(printed[not form.noheader :], tints, strict=True):
        common.say(*one, color=colored, fg="yellow" if colored and tint else None)
    if not form.noheader:
        say_notes(notes)


def _print_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], noheader: bool) -> None:
    """Print rows, entries of the command's JSON, quoted as in RFC 4180; a line ends with a newline.

    A column is a key, or keys joined by `_` where a value is itself an object. A null or missing value is an
    empty cell; a list is joined by commas. An apostrophe keeps a text from becoming a formula in a spreadsheet.
    """
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not noheader:
        writer.writerow(names)
    for row in (dict(flat(row)) for row in rows):
        writer.writerow([_csv_cell(row.get(name)) for name in names])
    common.say(*text.getvalue().splitlines())


_FORMULA = re.compile("(?:^|(?<=;))(?=\\s*[-=+@\uff0d\uff1d\uff0b\uff20])")
"""Where a spreadsheet would begin a formula: at the start of a cell, also after a semicolon that it takes for a
separator. Some accept the full-width signs of East Asian scripts as well."""


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return _FORMULA.sub("'", visible(text))
