# SPDX-License-Identifier: MIT
"""What all click programs share: errors as one line and an exit code, JSON, colour, columns."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from slurm_pal import __version__
from slurm_pal.base.errors import Exit, PalError, UsageError, one_line
from slurm_pal.base.jobs import SENSITIVITY_CLASSES
from slurm_pal.base.terminal import visible

if TYPE_CHECKING:
    from slurm_pal.base.config import Config

Command = Callable[..., Any]


def _one_form(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    """Raises UsageError when --csv is given with another form."""
    given = {**context.params, parameter.name or "": value}
    for name, word in (("as_json", "--json"), ("parsable2", "--parsable2")):
        if given.get("as_csv") and given.get(name):
            raise UsageError(f"--csv and {word} exclude each other: give one of them")
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_one_form, help="Machine-readable output, versioned by its schema."
)
csv_option = click.option(
    "--csv", "as_csv", is_flag=True, callback=_one_form, help="Comma-separated rows for spreadsheets and data frames."
)
class_option = click.option(
    "--class",
    "sensitivity",
    type=click.Choice(SENSITIVITY_CLASSES),
    default=SENSITIVITY_CLASSES[0],
    show_default=True,
    help="Sensitivity class: A compute-bound, B mixed, C memory-bound.",
)
noheader_option = click.option(
    "-h", "--noheader", is_flag=True, help="No header line (the letter of sinfo and squeue)."
)
parsable_option = click.option(
    "-P", "--parsable2", is_flag=True, callback=_one_form, help="Columns separated by | without padding."
)
color_option = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="Colours; NO_COLOR is honoured."
)
verbose_option = click.option(
    "-v", "--verbose", count=True, help="More detail; -vv shows tracebacks.", expose_value=False
)
version_option = click.version_option(__version__, "-V", "--version", message="%(prog)s (slurm-pal) %(version)s")


def run(command: click.Command, program: str) -> None:
    """Run a click program and exit with a code of the one table, `Exit`.

    A PalError becomes one line on stderr. Anything else that escapes is our
    defect: also one line, with the way to the traceback (-vv).
    """
    atexit.register(_drop_unsaid)
    verbose = any(word.startswith("-vv") or word == "--verbose" for word in sys.argv[1:])
    try:
        sys.exit(command.main(prog_name=program, standalone_mode=False) or 0)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        print(f"{program}: interrupted", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader has left (`pal gpus | head`): not an error, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        known = isinstance(error, PalError | OSError)
        kind = "" if known else f"internal error ({type(error).__name__}): "
        print(f"{program}: error: {kind}{one_line(error)}", file=sys.stderr)
        if not known and not verbose:
            print(f"{program}: run it again with -vv to see where, and please report it", file=sys.stderr)
        sys.exit(error.exit_code if isinstance(error, PalError) else Exit.FAILED)


def check_every(config: Config, every: float) -> None:
    """Raise UsageError for an interval so long that a table would be too old before the next one comes."""
    limit_s = config.number("filter", "max_age_s")
    if not 0 < every < limit_s:
        raise UsageError(
            f"--every {every:g} must be above 0 and below {limit_s:g} s, since an older table is not believed "
            "(filter.max_age_s)"
        )


def _drop_unsaid() -> None:
    """Output that stderr could not take (a full disk) does not fail the command; Python would exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def print_json(thing: str, body: dict[str, Any]) -> None:
    """Print `body` with its schema first, e.g. `"schema": "pal.gpus/1"`."""
    click.echo(json.dumps({"schema": f"pal.{thing}/1", **body}, indent=2, allow_nan=False))


_FORMULA = re.compile("(?:^|(?<=;))(?=\\s*[-=+@\uff0d\uff1d\uff0b\uff20])")
"""Where a spreadsheet would begin a formula: at the start of a cell, also after a semicolon that it takes for a
separator. Some accept the full-width signs of East Asian scripts as well."""


def print_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], noheader: bool = False) -> None:
    """Print rows, entries of the command's JSON, quoted as in RFC 4180; a line ends with a newline.

    A column is a key, or keys joined by `_` where a value is itself an object. A null or missing value is an
    empty cell; a list is joined by commas. An apostrophe keeps a text from becoming a formula in a spreadsheet.
    """
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not noheader:
        writer.writerow(columns)
    for flat in map(dict, map(_flat, rows)):
        writer.writerow([_csv_cell(flat.get(name)) for name in columns])
    say(*text.getvalue().splitlines())


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}_{inner}", one) for inner, one in _flat(value))
        else:
            yield key, value


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return str(value)
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return _FORMULA.sub("'", visible(text))


def say(*lines: str, err: bool = False, color: bool | None = None, bold: bool = False, fg: str | None = None) -> None:
    """Print lines, users' own text among them: no character that a terminal would act on reaches it.

    The one place where commands print text. `bold` and `fg` go to `click.style`; colour within a line, and files
    written to standard output, go through `click.echo`.
    """
    for line in lines:
        text = visible(line)
        click.echo(click.style(text, bold=bold or None, fg=fg) if bold or fg else text, err=err, color=color)


def say_finding(mark: str, tint: str | None, text: str, mend: str, colored: bool) -> None:
    """Print one finding of a check, and what mends it on a line of its own."""
    click.echo(f"{click.style(mark, fg=tint) if colored else mark}  {visible(text)}", color=colored)
    if mend:
        say(f"{'':19}-> {mend}")


def use_color(choice: str) -> bool:
    """Whether to colour standard output. NO_COLOR (no-color.org) counts in `auto`."""
    if choice == "auto":
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return choice == "always"
